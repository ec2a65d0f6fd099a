"""Terms that reach the same rows of a table for every example.

A loss that scores every example against the same public candidates, negatives
that the batch shares or a whole catalogue, gives each example a gradient at
all of these rows. Held as lookups that would be one row for each example and
candidate; here it stays what it was: two thin matrices, as for a Dense kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_sparse_dp.gradients import factors
from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    RowFactor,
    parts_slack,
)

Block: TypeAlias = "OuterFactor | DenseFactor"


@dataclasses.dataclass(frozen=True)
class PlacedFactor(Factor):
    """Terms whose row j is placed at row `ids[j]` of a table.

    Ids may repeat: the row is then the sum.

    Attributes:
      block: Terms of shape [K, width]; an `OuterFactor` has no layout.
      ids: Row numbers, [K]. The same for all examples, hence public.
      table_shape: Shape of the table.
      sparse: Whether sums are given as `tf.IndexedSlices`.
      rows: What examples looked up in the table by themselves; added.
      distinct: Whether it is known that no id occurs twice.
    """

    block: Block
    ids: tf.Tensor
    table_shape: tuple[int, ...]
    sparse: bool = True
    rows: RowFactor | None = None
    distinct: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table_shape

    @property
    def rows_per_example(self) -> int:
        own = 0 if self.rows is None else self.rows.rows_per_example
        return self.ids.shape[0] + own

    @property
    def norms_by(self) -> str:
        return f"{self.block.norms_by}, on shared rows"

    def squared_norms(self) -> tf.Tensor:
        block = self.block
        runs = tf.range(self.ids.shape[0])
        if not self.distinct:
            runs = _runs(self.ids)
            block = _merged(block, runs)
        if self.rows is None:
            return block.squared_norms()
        block, rows = self._disjoint(block, runs, self.rows)
        return block.squared_norms() + rows.squared_norms()

    def squared_slack(self) -> tf.Tensor | None:
        # A row is the sum of at most so many rows of the block, and of what
        # was looked up: (Σ_j m_j)² ≤ n Σ_j m_j² for n summands.
        most = 2.0
        if not self.distinct:
            runs = _runs(self.ids)
            sizes = tf.math.unsorted_segment_sum(
                tf.ones_like(runs), runs, self.ids.shape[0]
            )
            most *= tf.cast(tf.reduce_max(sizes), tf.float32)
        slack = parts_slack(most * self.block.squared_norms())
        inherited = self.block.squared_slack()
        if inherited is not None:
            slack += most * inherited
        if self.rows is not None:
            values = tf.cast(self.rows.values, tf.float32)
            squares = tf.reduce_sum(tf.square(values), [1, 2])
            slack += parts_slack(2 * self.rows.rows_per_example * squares)
        return slack

    def absolute_norms(self) -> tf.Tensor:
        norms = self.block.absolute_norms()
        return (
            norms if self.rows is None else norms + self.rows.absolute_norms()
        )

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        values = self.block.weighted_sum(weights)
        values = [tf.reshape(values, [-1, *self.table_shape[1:]])]
        ids = [self.ids]
        if self.rows is not None:
            own = dataclasses.replace(self.rows, sparse=True)
            own = own.weighted_sum(weights)
            values.append(own.values)
            ids.append(tf.cast(own.indices, self.ids.dtype))
        total = tf.IndexedSlices(
            tf.concat(values, 0),
            tf.concat(ids, 0),
            tf.constant(self.table_shape, tf.int64),
        )
        return total if self.sparse else tf.convert_to_tensor(total)

    def per_example(self) -> tf.Tensor:
        return self.as_rows().per_example()

    def scaled(self, scale: tf.Tensor | float) -> Factor:
        return self._mapped(lambda factor: factor.scaled(scale))

    def cast(self, dtype: tf.DType) -> Factor:
        return self._mapped(lambda factor: factor.cast(dtype))

    def masked(self, valid: tf.Tensor) -> Factor:
        return self._mapped(lambda factor: factor.masked(valid))

    def grouped(self, size: int) -> Factor:
        return self._mapped(lambda factor: factor.grouped(size))

    def reshaped(self, shape: Sequence[int]) -> Factor:
        if tuple(shape) == self.table_shape:
            return self
        return super().reshaped(shape)

    def as_rows(self) -> RowFactor:
        """The same terms, with a row for each example and id."""
        values = self.block.per_example()
        ids = tf.broadcast_to(self.ids, tf.shape(values)[:2])
        ids = tf.ensure_shape(ids, [None, self.ids.shape[0]])
        if self.rows is not None:
            values = tf.concat([values, self.rows.values], 1)
            ids = tf.concat([ids, tf.cast(self.rows.ids, ids.dtype)], 1)
        return RowFactor(values, ids, self.table_shape, self.sparse)

    def _mapped(self, function):  # type: ignore[no-untyped-def]
        return dataclasses.replace(
            self,
            block=function(self.block),
            rows=None if self.rows is None else function(self.rows),
        )

    def _disjoint(
        self, block: Block, runs: tf.Tensor, rows: RowFactor
    ) -> tuple[Block, RowFactor]:
        """The same terms, with no row of the table in both parts.

        What a merged block has at a row that the example looked up moves to
        the lookups. Then squares add up, and nothing cancels between them.
        """
        count = self.ids.shape[0]
        run_of_row = tf.tensor_scatter_nd_update(
            tf.fill([self.table_shape[0]], count),
            self.ids[:, tf.newaxis],
            runs,
        )
        run = tf.gather(run_of_row, rows.ids)
        # XLA and GPUs read some row where there is none, and add to none.
        there = (rows.ids >= 0) & (rows.ids < self.table_shape[0])
        met = there & (run < count)
        run = tf.minimum(run, count - 1)
        batch_size = tf.shape(run)[0]
        examples = tf.zeros_like(run) + tf.range(batch_size)[:, tf.newaxis]
        lookups = tf.scatter_nd(
            tf.stack([examples, run], 2),
            tf.cast(met, rows.values.dtype),
            [batch_size, count],
        )
        # A row that was looked up several times gets its part in shares.
        times = tf.maximum(tf.gather(lookups, run, batch_dims=1), 1)
        moved = _rows_at(block, run) / times[:, :, tf.newaxis]
        moved = tf.where(met[:, :, tf.newaxis], moved, tf.zeros_like(moved))
        return (
            _without(block, lookups > 0),
            dataclasses.replace(rows, values=rows.values + moved),
        )


def placed(
    terms: Factor,
    ids: tf.Tensor,
    table_shape: Sequence[int],
    *,
    sparse: bool,
    distinct: bool = False,
) -> PlacedFactor:
    """Terms of shape [K, ...], row j placed at row `ids[j]` of a table."""
    width = 1
    for size in table_shape[1:]:
        width *= size
    block = _plain(terms, (ids.shape[0], width))
    return PlacedFactor(
        block, ids, tuple(table_shape), sparse, distinct=distinct
    )


def added(parts: Sequence[Factor]) -> Factor:
    """As `factors.added`, without giving up what is placed or an outer product.

    A table that is looked up and also multiplied as a whole (tied weights)
    has lookups and products for terms. Products are placed at all its rows.
    """
    for place, part in enumerate(parts):
        together = part.joined([*parts[:place], *parts[place + 1 :]])
        if together is not None:
            return together
    rows = [part for part in parts if isinstance(part, RowFactor)]
    at_places = [part for part in parts if isinstance(part, PlacedFactor)]
    others = [
        part
        for part in parts
        if not isinstance(part, (RowFactor, PlacedFactor))
    ]
    shape = parts[0].shape
    if others and (rows or at_places):
        whole = placed(
            factors.added(others),
            tf.range(shape[0]),
            shape,
            sparse=False,
            distinct=True,
        )
        at_places = [whole, *at_places]
    if not at_places:
        return factors.added(parts)
    first, *more = at_places
    rows += [part.as_rows() for part in more]
    if first.rows is not None:
        rows.append(first.rows)
    if not rows:
        return first
    sparse = first.sparse and all(part.sparse for part in rows)
    own: Any = factors.added(rows)
    return dataclasses.replace(first, rows=own, sparse=sparse)


def _runs(ids: tf.Tensor) -> tf.Tensor:
    """A number for each id, the same for equal ids; less than their count."""
    order = tf.argsort(ids)
    ordered = tf.gather(ids, order)
    starts = tf.pad(ordered[1:] != ordered[:-1], [[1, 0]])
    numbers = tf.cumsum(tf.cast(starts, tf.int32))
    return tf.scatter_nd(order[:, tf.newaxis], numbers, [ids.shape[0]])


def _plain(terms: Factor, shape: tuple[int, int]) -> Block:
    """Terms as products of [B, T, K] and [B, T, width], or materialised."""
    if isinstance(terms, OuterFactor):
        left, right = terms.left, terms.right
        for kind, argument in terms.layout:
            now = (left.shape[2], right.shape[2])
            if kind == "transpose" and argument == (1, 0):
                left, right = right, left
            elif argument != (now if kind == "reshape" else (0, 1)):
                break
        else:
            if (left.shape[2], right.shape[2]) == shape:
                return OuterFactor(left, right)
    slack = terms.squared_slack()
    return DenseFactor(terms.per_example(), slack).reshaped(shape)  # type: ignore[return-value]


def _merged(block: Block, runs: tf.Tensor) -> Block:
    """Equal ids' rows added up, at the number of their run."""

    def merged(tensor: tf.Tensor, axis: int) -> tf.Tensor:
        order = [axis, *(a for a in range(3) if a != axis)]
        sums = tf.math.unsorted_segment_sum(
            tf.transpose(tensor, order), runs, tensor.shape[axis]
        )
        return tf.transpose(sums, [order.index(a) for a in range(3)])

    if isinstance(block, OuterFactor):
        return OuterFactor(merged(block.left, 2), block.right)
    return DenseFactor(merged(block.values, 1))


def _rows_at(block: Block, places: tf.Tensor) -> tf.Tensor:
    """Rows [B, L, width] of the terms, at places [B, L]."""
    if isinstance(block, DenseFactor):
        return tf.gather(block.values, places, batch_dims=1)
    left = tf.gather(block.left, places, axis=2, batch_dims=1)
    return tf.matmul(left, block.right, transpose_a=True)


def _without(block: Block, left_out: tf.Tensor) -> Block:
    """The block with rows set to zero where `left_out` [B, K] says so."""
    if isinstance(block, OuterFactor):
        left = tf.where(left_out[:, tf.newaxis], 0.0, block.left)
        return OuterFactor(left, block.right)
    values = tf.where(left_out[:, :, tf.newaxis], 0.0, block.values)
    return DenseFactor(values)
