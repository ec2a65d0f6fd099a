"""The form in which rows of a table are released."""

from __future__ import annotations

import tensorflow as tf


def released_rows(
    ids: tf.Tensor,
    values: tf.Tensor,
    given: tf.IndexedSlices,
    *,
    fixed_size: bool = True,
) -> tf.IndexedSlices:
    """Rows in ascending order, after rows of zeros that fill up.

    Neither the order of rows nor what is left of a row that was dropped may
    tell which rows a batch touched.

    Args:
      ids: Row ids, int64 [n]. Of rows that are not zero, each occurs once.
      values: Rows, float32 [n, width]; zeros for what is not released.
      given: The sums before noise, for their shape and types.
      fixed_size: Whether to keep as many rows as there are; without it rows
        of zeros are left out.
    """
    ids = tf.where(tf.reduce_any(values != 0, 1), ids, -1)
    order = tf.argsort(ids)
    if not fixed_size:
        order = order[tf.reduce_sum(tf.cast(ids < 0, tf.int32)) :]
    ids = tf.maximum(tf.gather(ids, order), 0)
    shape = tf.get_static_value(given.dense_shape).tolist()
    values = tf.reshape(tf.gather(values, order), [-1, *shape[1:]])
    return tf.IndexedSlices(
        tf.cast(values, given.values.dtype),
        tf.cast(ids, given.indices.dtype),
        given.dense_shape,
    )
