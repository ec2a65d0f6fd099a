"""Projection of noisy tables where nothing at all may fail.

A bound below the projection's threshold is lowered until it is one. What is
above the next bound is drawn given that it is below the last, so that all that
is drawn has the law of noise on all cells, wherever that ends; the data only
decide when. Shapes are dynamic: not for XLA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_dp.mechanisms.ball_threshold import ball_shift
from tf_sparse_dp.mechanisms.interface import Sum
from tf_sparse_dp.mechanisms.noisy_tables import (
    LOWERED,
    UNTOUCHED,
    Layout,
    SparseTable,
    cells_of,
    with_noise,
)
from tf_sparse_dp.mechanisms.tail_sampling import (
    Exceedances,
    exceedances,
    exceedances_between,
    expected_hits,
)
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.random_tails import Number

# The first bound is exceeded by so many cells of pure noise, expected, and
# each further one by four times as many: about four times too many at worst.
_FIRST_HITS = 16.0
_MORE_HITS = 4.0


class Found(NamedTuple):
    """Untouched cells that were drawn so far, and their norms."""

    cells: tf.Tensor
    sizes: tf.Tensor


def exactly_projected(
    sums: Sequence[tf.IndexedSlices],
    keys: Sequence[tf.Tensor],
    layouts: Sequence[Layout],
    radius: Number,
) -> tuple[list[Sum], tf.Tensor]:
    """The tables after noise and projection on one ball.

    Args:
      sums: What the batch contributes; row ids may repeat.
      keys: One per table.
      layouts: What is public about the tables.
      radius: Of the ball.

    Returns:
      The tables, and by how much norms were shrunk.
    """
    bounds = falling_bounds(layouts)
    descents = [
        _Descent(*given, bounds)
        for given in zip(sums, keys, layouts, strict=True)
    ]

    def bound(level: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.constant(bounds, tf.float32), level)

    def uncertain(level: tf.Tensor, found: list[Found]) -> tf.Tensor:
        above = tf.zeros([])
        for descent, own in zip(descents, found, strict=True):
            for sizes in (descent.touched_sizes, own.sizes):
                above += tf.reduce_sum(tf.nn.relu(sizes - bound(level)))
        return (level < len(bounds) - 1) & (above < radius)

    def lower(
        level: tf.Tensor, found: list[Found]
    ) -> tuple[tf.Tensor, list[Found]]:
        return level + 1, [
            descent.lowered(own, level)
            for descent, own in zip(descents, found, strict=True)
        ]

    vector = tf.TensorShape([None])
    level, found = tf.while_loop(
        uncertain,
        lower,
        (tf.constant(0), [descent.first() for descent in descents]),
        shape_invariants=(
            tf.TensorShape([]),
            [Found(vector, vector)] * len(descents),
        ),
    )
    tables = [
        descent.table(own, bound(level))
        for descent, own in zip(descents, found, strict=True)
    ]
    shift = ball_shift(tf.concat([t.excess for t in tables], 0), radius)
    return [table.shrunk(shift) for table in tables], bound(level) + shift


def falling_bounds(layouts: Sequence[Layout]) -> list[float]:
    """Thresholds that more and more cells of pure noise exceed; 0 at last."""
    highest = max(
        float(layout.norms.inverse_survival(1e-3 / layout.cells))
        for layout in layouts
    )
    bounds: list[float] = []
    target = _FIRST_HITS
    while True:
        low, high = 0.0, highest
        for _ in range(60):
            middle = (low + high) / 2
            hits = sum(
                expected_hits(layout.norms, layout.cells, middle)
                for layout in layouts
            )
            low, high = (middle, high) if hits > target else (low, middle)
        if not any(layout.sparse_above(low) for layout in layouts):
            return [*bounds, 0.0]
        bounds.append(low)
        target *= _MORE_HITS


class _Descent:
    """One table, down from the first bound."""

    def __init__(
        self,
        total: tf.IndexedSlices,
        key: tf.Tensor,
        layout: Layout,
        bounds: Sequence[float],
    ):
        self._total, self._layout = total, layout
        # Where a bound is exceeded by much of the table, all of it is drawn.
        self._lows = [b if layout.sparse_above(b) else 0.0 for b in bounds]
        self._touched = with_noise(total, key, layout)
        self._touched_cells = cells_of(self._touched.ids, layout)
        self._key = fold_in(key, UNTOUCHED)
        self._lower_key = fold_in(key, LOWERED)

    @property
    def touched_sizes(self) -> tf.Tensor:
        return self._layout.sizes(self._touched.values)

    def first(self) -> Found:
        """What is above the first bound."""
        low = self._lows[0]
        found = exceedances(
            self._layout.norms,
            self._layout.cells,
            low,
            self._touched_cells,
            self._key,
            failure_probability=0.0,
        )
        return _live(found, low)

    def lowered(self, found: Found, level: tf.Tensor) -> Found:
        """What is above the next bound, given what is above this one."""
        lows = tf.constant(self._lows, tf.float64)
        low, high = tf.gather(lows, level + 1), tf.gather(lows, level)

        def more() -> Found:
            further = exceedances_between(
                self._layout.norms,
                self._layout.cells,
                low,
                high,
                tf.concat([self._touched_cells, found.cells], 0),
                fold_in(self._lower_key, level),
            )
            both = zip(found, _live(further, low), strict=True)
            return Found(*(tf.concat(pair, 0) for pair in both))

        return tf.cond(low < high, more, lambda: found)

    def table(self, found: Found, bound: tf.Tensor) -> SparseTable:
        """The table above the last bound."""
        order = tf.argsort(found.cells)
        return SparseTable(
            layout=self._layout,
            threshold=bound,
            touched=self._touched,
            cells=tf.gather(found.cells, order),
            hits=tf.nn.relu(tf.gather(found.sizes, order) - bound),
            key=self._key,
            fixed_size=False,
            given=self._total,
        )


def _live(found: Exceedances, threshold: Number) -> Found:
    """Without the places where there is no cell."""
    sizes = tf.cast(threshold, tf.float32) + found.excess
    return Found(
        tf.boolean_mask(found.ids, found.live),
        tf.boolean_mask(sizes, found.live),
    )
