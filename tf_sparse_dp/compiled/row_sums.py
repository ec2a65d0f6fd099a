"""Rows that have the same id, added up."""

from __future__ import annotations

import math

import tensorflow as tf

from tf_sparse_dp.compiled.kernels import can_do, kernel, with_room


def can_add_up(rows: tf.Tensor) -> bool:
    """Whether a kernel can, and should, do it."""
    shape = rows.shape
    return shape.is_fully_defined() and can_do(math.prod(shape))


def row_sums(rows: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each id once, and the sum of its rows.

    TensorFlow takes a tenth of a microsecond for a row that it adds to
    another, whether it adds them up first or adds them to a table one by one.

    Args:
      rows: [n, ...], such that `can_add_up`.
      ids: Whose rows they are, [n].
    """
    ids, places = tf.unique(ids)
    count = tf.shape(ids)[0]

    def of_size(size: int) -> tf.Tensor:
        add_up = kernel(
            lambda rows, places: tf.math.unsorted_segment_sum(
                rows, places, size
            )
        )
        return add_up(rows, places)[:count]

    return ids, with_room(count, rows.shape[0], of_size)
