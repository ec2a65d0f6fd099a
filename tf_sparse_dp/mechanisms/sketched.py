"""The sketches of units' terms, which are what is clipped and released."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor, RowFactor, parts_slack
from tf_sparse_dp.mechanisms.measurements import Measurement


@dataclasses.dataclass(frozen=True)
class SketchedFactor(Factor):
    """Terms A g_i for the terms g_i of a table, A a random matrix.

    Norms are those of the sketches: a unit whose rows the matrix happens to
    align has a sketch far longer than its gradient, and is clipped for it.

    Rounding. Norms and sums are taken in float64. What float32 rounds is each
    row v_l times the unit's weight, and columns a_l of random numbers in their
    last digits: with M = Σ_l |v_l| |a_l| some 2e-7 M together, times the
    weight. Norms |A g| ≤ M are made larger by more than that.

    Attributes:
      rows: The terms of the table [rows, k].
      measurement: The matrix.
    """

    rows: RowFactor
    measurement: Measurement

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.measurement.count, self.rows.values.shape[2])

    @property
    def norms_by(self) -> str:
        return f"{self.rows.norms_by}, of sketches"

    def squared_norms(self) -> tf.Tensor:
        squares, mass = self.measurement.unit_squares(
            self.rows.values, self.rows.ids
        )
        # √(a² + 1e-6 M²) ≥ a + 4e-7 M for a ≤ M.
        return tf.cast(squares + parts_slack(mass), tf.float32)

    def squared_slack(self) -> None:
        return None  # Norms are upper bounds already.

    def absolute_norms(self) -> tf.Tensor:
        # No more than √n times the norm, for n numbers.
        size = math.prod(self.shape)
        return math.sqrt(1.001 * size) * tf.sqrt(self.squared_norms())

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self._sketch(self.rows.weighted_sum(weights))

    def finite_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self._sketch(self.rows.finite_sum(weights))

    def _sketch(self, total: tf.IndexedSlices) -> tf.Tensor:
        values = tf.reshape(total.values, [-1, self.shape[1]])
        return self.measurement.sketch(values, total.indices)

    def per_example(self) -> tf.Tensor:
        return tf.map_fn(
            lambda unit: self.measurement.sketch(*unit),
            (self.rows.values, self.rows.ids),
            fn_output_signature=tf.float64,
        )

    def scaled(self, scale: tf.Tensor | float) -> Factor:
        return self._with(self.rows.scaled(scale))

    def cast(self, dtype: tf.DType) -> Factor:
        return self._with(self.rows.cast(dtype))

    def masked(self, valid: tf.Tensor) -> Factor:
        return self._with(self.rows.masked(valid))

    def grouped(self, size: int) -> Factor:
        return self._with(self.rows.grouped(size))

    def _with(self, rows: Factor) -> Factor:
        return dataclasses.replace(self, rows=rows)  # type: ignore[arg-type]


def as_coordinates(rows: RowFactor) -> RowFactor:
    """The same terms as those of a table of numbers: one row for each entry."""
    lookups, width = rows.values.shape[1:]
    ids = coordinate_ids(rows.ids, rows.table_shape[0], width)
    return RowFactor(
        tf.reshape(rows.values, [-1, lookups * width, 1]),
        tf.reshape(ids, [-1, lookups * width]),
        (rows.table_shape[0] * width, 1),
    )


def coordinate_ids(ids: tf.Tensor, rows: int, width: int) -> tf.Tensor:
    """Numbers of all entries of the given rows: [...] to [..., width]."""
    ids = tf.cast(ids, tf.int64)[..., tf.newaxis]
    # A row that the table does not have must not become one that it has.
    there = (ids >= 0) & (ids < rows)
    entries = ids * width + tf.range(width, dtype=tf.int64)
    return tf.where(there, entries, -tf.ones_like(entries))
