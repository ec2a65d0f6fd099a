r"""Projection of noisy tables on one ball, drawing few of their cells.

By definition, noise is added to all cells, and then every norm is shrunk by
the $\tau$ with $\sum_r (|z_r| - \tau)_+ = R$ over all tables together. A bound
below $\tau$ suffices to know which cells need not be drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.mechanisms.ball_threshold import ball_shift, certain_threshold
from tf_sparse_dp.mechanisms.exact_projection import exactly_projected
from tf_sparse_dp.mechanisms.interface import Sum
from tf_sparse_dp.mechanisms.noisy_tables import Layout, noisy_table
from tf_sparse_dp.random_tails import Number


def projected(
    sums: Sequence[tf.IndexedSlices],
    keys: Sequence[tf.Tensor],
    layouts: Sequence[Layout],
    radius: Number,
    failure_probability: float,
    *,
    largest_radius: float,
) -> tuple[list[Sum], tf.Tensor]:
    """The tables after noise and projection on one ball.

    The bound is public, so that sizes can be: noise alone all but certainly
    puts the threshold above it. If it does not, norms are shrunk by the
    bound, and the result lies deeper in the ball than the projection.

    Args:
      sums: What the batch contributes; row ids may repeat.
      keys: One per table.
      layouts: What is public about the tables.
      radius: Of the ball.
      failure_probability: How likely cells may be missing because a size was
        fixed beforehand. 0 fixes no size, and makes the projection exact.
      largest_radius: What the radius is at most, if it is a tensor; the bound
        is one for that. The radius itself if it is not.

    Returns:
      The tables, and by how much norms were shrunk.
    """
    if failure_probability == 0:
        return exactly_projected(sums, keys, layouts, radius)
    threshold = certain_threshold(
        [layout.norms for layout in layouts],
        [layout.cells for layout in layouts],
        largest_radius,
    )
    if not any(layout.sparse_above(threshold) for layout in layouts):
        threshold = 0.0  # Everything is drawn: there is nothing to bound.
    tables = [
        noisy_table(
            total, key, layout, threshold, failure_probability / len(sums)
        )
        for total, key, layout in zip(sums, keys, layouts, strict=True)
    ]
    shift = ball_shift(tf.concat([t.excess for t in tables], 0), radius)
    return [table.shrunk(shift) for table in tables], threshold + shift
