"""Tables after noise on every row, of which only large norms are ever drawn.

A cell is what has a norm of its own: a row, or one coordinate of a row.
"""

from __future__ import annotations

import abc
import dataclasses
import math

import tensorflow as tf

from tf_sparse_dp.mechanisms.grid import rounded
from tf_sparse_dp.mechanisms.interface import PublicFacts, Sum
from tf_sparse_dp.mechanisms.noise_norms import (
    GaussianNorms,
    LaplaceNorms,
    Norms,
)
from tf_sparse_dp.mechanisms.released_rows import released_rows
from tf_sparse_dp.mechanisms.tail_sampling import (
    Rows,
    directions,
    exceedances,
    expected_hits,
    touched_rows,
)
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.random_tails import Number, Size, laplace, normal

# In smaller tables dense noise costs next to nothing.
FEWEST_ROWS = 1000

# What the parts of a key are for.
_TOUCHED, UNTOUCHED, LOWERED = range(3)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is public about a table and the noise on it.

    Attributes:
      shape: Shape of the table.
      geometry: "rows" or "coordinates": what a cell is.
      noise: "gaussian" or "laplace".
      size: Standard deviation or scale of the noise.
    """

    shape: tuple[int, ...]
    geometry: str
    noise: str
    size: float

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        """Of a row."""
        return math.prod(self.shape[1:])

    @property
    def cells_per_row(self) -> int:
        return 1 if self.geometry == "rows" else self.width

    @property
    def cells(self) -> int:
        return self.rows * self.cells_per_row

    @property
    def norms(self) -> Norms:
        """The law of the norm of a cell of pure noise."""
        if self.noise == "laplace":
            return LaplaceNorms(self.size)
        return GaussianNorms(self.size, self.width // self.cells_per_row)

    def sparse_above(self, threshold: float) -> bool:
        """Whether drawing all rows would be much more work."""
        hits = expected_hits(self.norms, self.cells, threshold)
        return self.rows >= FEWEST_ROWS and hits <= self.rows / 4

    def touched(self, total: tf.IndexedSlices) -> Rows:
        """The rows of a sum, each once."""
        # Arguments of a traced function have forgotten the shape.
        shape = tf.constant(self.shape, tf.int64)
        return touched_rows(
            tf.IndexedSlices(total.values, total.indices, shape)
        )

    def draw(self, rows: Size, key: tf.Tensor) -> tf.Tensor:
        """Noise for so many rows, float32 [rows, width]."""
        family = laplace if self.noise == "laplace" else normal
        return self.size * family([rows, self.width], key)

    def sizes(self, noisy: tf.Tensor) -> tf.Tensor:
        """Norms of the cells of [T, width]: [T, cells_per_row]."""
        if self.geometry == "coordinates":
            return tf.abs(noisy)
        # In units of the noise, whose squares float32 can hold.
        return self.size * tf.norm(noisy / self.size, axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyTable(abc.ABC):
    """The noisy sums of a table, as far as norms exceed a threshold."""

    layout: Layout
    threshold: Number

    @property
    @abc.abstractmethod
    def excess(self) -> tf.Tensor:
        """By how much norms exceed the threshold, else 0; float32 [n]."""

    @abc.abstractmethod
    def shrunk(self, shift: tf.Tensor) -> Sum:
        """All cells' norms shrunk by the threshold plus `shift` >= 0."""

    def _excess(self, sizes: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(sizes - tf.cast(self.threshold, tf.float32))

    def _shrunk(self, noisy: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
        sizes = self.layout.sizes(noisy)
        kept = tf.nn.relu(self._excess(sizes) - shift)
        return noisy * (kept / tf.maximum(sizes, 1e-30))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseTable(NoisyTable):
    """All rows.

    Attributes:
      noisy: float32 [rows, width].
      dtype: Of the table.
    """

    noisy: tf.Tensor
    dtype: tf.DType

    @property
    def excess(self) -> tf.Tensor:
        return tf.reshape(self._excess(self.layout.sizes(self.noisy)), [-1])

    def shrunk(self, shift: tf.Tensor) -> Sum:
        values = rounded(self._shrunk(self.noisy, shift), self.layout.size)
        return tf.cast(tf.reshape(values, self.layout.shape), self.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseTable(NoisyTable):
    """Rows that the batch touched, and cells elsewhere above the threshold.

    Attributes:
      touched: The touched rows after noise.
      cells: int64 [K], ascending where `hits` is not 0. None is of a touched
        row.
      hits: By how much they exceed the threshold, float32 [K]; 0 for places
        where there is no cell.
      key: For what else is to be drawn.
      fixed_size: Whether shapes must not depend on the noise.
      given: The sums without noise, for their dtypes.
    """

    touched: Rows
    cells: tf.Tensor
    hits: tf.Tensor
    key: tf.Tensor
    fixed_size: bool
    given: tf.IndexedSlices

    @property
    def excess(self) -> tf.Tensor:
        sizes = self.layout.sizes(self.touched.values)
        return tf.concat([tf.reshape(self._excess(sizes), [-1]), self.hits], 0)

    def shrunk(self, shift: tf.Tensor) -> tf.IndexedSlices:
        untouched_ids, untouched = self._untouched(shift)
        ids = tf.concat([self.touched.ids, untouched_ids], 0)
        values = tf.concat(
            [self._shrunk(self.touched.values, shift), untouched], 0
        )
        values = rounded(values, self.layout.size)
        shape = tf.constant(self.layout.shape, tf.int64)
        given = tf.IndexedSlices(self.given.values, self.given.indices, shape)
        return released_rows(ids, values, given, fixed_size=self.fixed_size)

    def _untouched(self, shift: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids and values of rows that were not touched, each id once."""
        count = self.cells.shape[0]
        count = tf.shape(self.cells)[0] if count is None else count
        width = self.layout.width // self.layout.cells_per_row
        values = tf.nn.relu(self.hits - shift)[:, tf.newaxis]
        values *= directions(self.key, count, width)
        if self.layout.cells_per_row == 1:
            return self.cells, values
        ids = self.cells // self.layout.cells_per_row
        columns = self.cells % self.layout.cells_per_row
        new = tf.concat([ids[:1] >= 0, ids[1:] != ids[:-1]], 0)
        places = tf.cumsum(tf.cast(new, tf.int64)) - 1
        merged = tf.scatter_nd(
            tf.stack([places, columns], 1),
            values[:, 0],
            [count, self.layout.width],
        )
        ids = tf.tensor_scatter_nd_max(
            tf.zeros_like(ids), places[:, tf.newaxis], ids
        )
        return ids, merged


def with_noise(total: tf.IndexedSlices, key: tf.Tensor, layout: Layout) -> Rows:
    """The rows that a batch touched, after noise; zeros where it is no row."""
    ids, values, live = layout.touched(total)
    count = ids.shape[0]
    count = tf.shape(ids)[0] if count is None else count
    noisy = values + layout.draw(count, fold_in(key, _TOUCHED))
    return Rows(ids, tf.where(live[:, tf.newaxis], noisy, 0.0), live)


def cells_of(ids: tf.Tensor, layout: Layout) -> tf.Tensor:
    """The cells of rows; int64, ascending if the rows are."""
    each = tf.range(layout.cells_per_row, dtype=tf.int64)
    cells = ids[:, tf.newaxis] * layout.cells_per_row + each
    return tf.minimum(tf.reshape(cells, [-1]), layout.cells)


def dense_table(
    total: tf.IndexedSlices,
    key: tf.Tensor,
    layout: Layout,
    threshold: float,
) -> DenseTable:
    """All rows of the table, after noise."""
    touched = layout.touched(total)
    noisy = tf.tensor_scatter_nd_add(
        layout.draw(layout.rows, fold_in(key, _TOUCHED)),
        tf.minimum(touched.ids, layout.rows - 1)[:, tf.newaxis],
        touched.values,
    )
    return DenseTable(
        layout=layout,
        threshold=threshold,
        noisy=noisy,
        dtype=total.values.dtype,
    )


def noisy_table(
    total: tf.IndexedSlices,
    key: tf.Tensor,
    layout: Layout,
    threshold: float,
    failure_probability: float,
) -> NoisyTable:
    """The table after noise, above a public threshold.

    Args:
      total: Sums of what the batch contributes; row ids may repeat.
      key: A key of its own, int64 [2].
      layout: What is public about the table.
      threshold: What norms have to exceed.
      failure_probability: How likely cells may be missing because a size was
        fixed beforehand. 0 fixes no size.
    """
    if not layout.sparse_above(threshold):
        return dense_table(total, key, layout, threshold)
    touched = with_noise(total, key, layout)
    key = fold_in(key, UNTOUCHED)
    found = exceedances(
        layout.norms,
        layout.cells,
        threshold,
        cells_of(touched.ids, layout),
        key,
        failure_probability,
    )
    return SparseTable(
        layout=layout,
        threshold=threshold,
        touched=touched,
        cells=found.ids,
        hits=found.excess,
        key=key,
        fixed_size=failure_probability > 0,
        given=total,
    )


def check_tables(facts: PublicFacts) -> None:
    """Refuses tables without rows or columns.

    Raises:
      ValueError: If there is one.
    """
    for variable in facts.variables:
        if variable.sparse and math.prod(variable.shape) == 0:
            raise ValueError(
                f"The table {variable.name!r} has shape {variable.shape}: "
                f"{variable.shape[0]} rows of {math.prod(variable.shape[1:])} "
                "entries. Expected at least one of each. Leave it out of the "
                "variables that are trained."
            )
