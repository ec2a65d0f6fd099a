"""The terms of a table that examples look up as often as they like."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.gradients.factors import (
    UNIT_ROUNDOFF,
    DenseFactor,
    Factor,
    RowFactor,
    absolute_sums,
    parts_slack,
)
from tf_sparse_dp.gradients.placed import PlacedFactor


@dataclasses.dataclass(frozen=True)
class RaggedRowFactor(Factor):
    """Terms with few rows that are not zero; their number varies.

    A row that an example looks up several times counts as the sum. The number
    of lookups is known only when the step runs, so XLA cannot compile this.

    Attributes:
      values: [N, width].
      ids: Row numbers, [N].
      examples: Whose lookup it is, int64 [N].
      batch_size: Number of examples, int64.
      table_shape: Shape of the table.
      sparse: Whether sums are given as `tf.IndexedSlices`.
    """

    values: tf.Tensor
    ids: tf.Tensor
    examples: tf.Tensor
    batch_size: tf.Tensor
    table_shape: tuple[int, ...]
    sparse: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table_shape

    @property
    def norms_by(self) -> str:
        return "from sums of equal rows"

    def squared_norms(self) -> tf.Tensor:
        rows, ids = self.table_shape[0], tf.cast(self.ids, tf.int64)
        # Row numbers that the table does not have count as one row more.
        ids = tf.where((ids >= 0) & (ids < rows), ids, rows)
        pairs, places = tf.unique(self.examples * (rows + 1) + ids)
        sums = tf.math.unsorted_segment_sum(
            tf.cast(self.values, tf.float32), places, tf.size(pairs)
        )
        squares = tf.reduce_sum(tf.square(sums), 1)
        total = per_example_sums(squares, pairs // (rows + 1), self.batch_size)
        return tf.cast(total, tf.float32)

    def squared_slack(self) -> tf.Tensor:
        squares = tf.reduce_sum(tf.square(tf.cast(self.values, tf.float32)), 1)
        # M² = (Σ_j |v_j|)² ≤ n Σ_j |v_j|² for n lookups.
        mass = self._counts() * self._per_example(squares)
        return tf.cast(parts_slack(mass), tf.float32)

    def absolute_norms(self) -> tf.Tensor:
        total = self._per_example(absolute_sums(self.values))
        # Adding n numbers errs by n roundoffs, and one more is float32's.
        roundoffs = self._counts() * 2.0**-53 + 2 * UNIT_ROUNDOFF
        return tf.cast(total * (1 + roundoffs), tf.float32)

    def _counts(self) -> tf.Tensor:
        """How many lookups each example has, float64."""
        return self._per_example(tf.ones_like(self.examples))

    def _per_example(self, values: tf.Tensor) -> tf.Tensor:
        return per_example_sums(values, self.examples, self.batch_size)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        values = self._weighted(weights)
        total = tf.IndexedSlices(
            tf.reshape(values, [-1, *self.table_shape[1:]]),
            self.ids,
            tf.constant(self.table_shape, tf.int64),
        )
        return total if self.sparse else tf.convert_to_tensor(total)

    def _weighted(self, weights: tf.Tensor) -> tf.Tensor:
        weights = tf.gather(weights, self.examples)[:, None]
        return tf.math.multiply_no_nan(
            self.values, tf.cast(weights, self.values.dtype)
        )

    def per_example(self) -> tf.Tensor:
        rows, ids = self.table_shape[0], tf.cast(self.ids, tf.int64)
        # GPUs read ids that are out of range; they must not reach others.
        there = (ids >= 0) & (ids < rows)
        places = tf.where(there, self.examples * rows + ids, -1)
        terms = tf.math.unsorted_segment_sum(
            self.values, places, self.batch_size * rows
        )
        return tf.reshape(terms, [-1, *self.table_shape])

    def scaled(self, scale: tf.Tensor | float) -> Factor:
        values = self.values * tf.cast(scale, self.values.dtype)
        return dataclasses.replace(self, values=values)

    def cast(self, dtype: tf.DType) -> Factor:
        wide = dtype if dtype.size >= 4 else tf.float32
        return dataclasses.replace(self, values=tf.cast(self.values, wide))

    def masked(self, valid: tf.Tensor) -> Factor:
        return dataclasses.replace(self, values=self._weighted(valid))

    def grouped(self, size: int) -> Factor:
        groups = self.batch_size // size
        whole = self.examples < groups * size
        return dataclasses.replace(
            self,
            values=tf.boolean_mask(self.values, whole),
            ids=tf.boolean_mask(self.ids, whole),
            examples=tf.boolean_mask(self.examples, whole) // size,
            batch_size=groups,
        )

    def reshaped(self, shape: Sequence[int]) -> Factor:
        if tuple(shape) == self.table_shape:
            return self
        return super().reshaped(shape)

    def joined(self, others: Sequence[Factor]) -> Factor | None:
        factors = [self, *map(as_ragged, others)]
        if any(factor is None for factor in factors):
            return None
        return dataclasses.replace(
            self,
            values=tf.concat([f.values for f in factors], 0),  # type: ignore[union-attr]
            ids=tf.concat([tf.cast(f.ids, tf.int64) for f in factors], 0),  # type: ignore[union-attr]
            examples=tf.concat([f.examples for f in factors], 0),  # type: ignore[union-attr]
            sparse=all(factor.sparse for factor in factors),  # type: ignore[union-attr]
        )


def as_ragged(factor: Factor) -> RaggedRowFactor | None:
    """The same terms without a fixed number of lookups; None if not rows."""
    if isinstance(factor, RaggedRowFactor):
        return factor
    if isinstance(factor, PlacedFactor):
        factor = factor.as_rows()
    if not isinstance(factor, RowFactor):
        return None
    batch_size = tf.shape(factor.ids, tf.int64)[0]
    return RaggedRowFactor(
        tf.reshape(factor.values, [-1, factor.values.shape[2]]),
        tf.reshape(factor.ids, [-1]),
        tf.repeat(tf.range(batch_size), factor.rows_per_example),
        batch_size,
        factor.table_shape,
        factor.sparse,
    )


def per_example_sums(
    values: tf.Tensor, examples: tf.Tensor, batch_size: tf.Tensor
) -> tf.Tensor:
    """Sums over an example's numbers, in float64.

    An example may have any number of them, and a float32 sum of ones stops
    growing at 2²⁴: norms would be too small.
    """
    return tf.math.unsorted_segment_sum(
        tf.cast(values, tf.float64), examples, batch_size
    )


def summed_rows(
    rows: tf.Tensor,
    examples: tf.Tensor,
    batch_size: tf.Tensor,
    axes: Sequence[int] = (),
) -> DenseFactor:
    """Terms that are sums of an example's rows, and over some of their axes.

    Args:
      rows: [N, ...], with sizes that are known but for the first.
      examples: Whose row it is, [N].
      batch_size: Number of examples.
      axes: Axes of `rows` that are summed over as well.
    """
    terms = tf.math.unsorted_segment_sum(
        tf.reduce_sum(rows, axes) if axes else rows, examples, batch_size
    )
    squares = tf.square(tf.cast(rows, tf.float32))
    squares = tf.reduce_sum(squares, list(range(1, rows.shape.rank)))
    counts = per_example_sums(tf.ones_like(squares), examples, batch_size)
    parts = counts * math.prod(rows.shape[axis] for axis in axes)
    mass = per_example_sums(squares, examples, batch_size)
    slack = parts_slack(parts * mass)
    return DenseFactor(terms, tf.cast(slack, tf.float32))
