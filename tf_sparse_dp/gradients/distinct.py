"""Which ids of an example are proven to be of different rows.

Where several features share one table, each with rows of its own, an example
looks up no row twice. Norms are cheaper then. What is not recognised is only
slower.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

# They keep the numbers and their order. What is bounded fits in either type.
_KEEPS = frozenset({"Reshape", "Identity", "EnsureShape", "Cast"})
_LARGEST = 2**31 - 1
_INTEGERS = (tf.int32, tf.int64)


def has_distinct_columns(ids: tf.Tensor) -> bool:
    """Whether ids[b, i] and ids[b, j] are proven to differ for all i and j.

    They are if the ids are `maximum(minimum(x, high), low) + first` with
    constants, and the ranges of the columns, from `low + first` to
    `high + first`, do not overlap.

    Args:
      ids: A tensor [B, L], L known while tracing.
    """
    if not tf.is_symbolic_tensor(ids) or ids.shape.rank != 2:
        return False
    columns, source = ids.shape[1], _source(ids)
    if not columns or not _has_columns(source, columns):
        return False
    constants = []
    for kind in ("AddV2", "Maximum", "Minimum"):
        if source.op.type != kind or not _has_columns(source, columns):
            return False
        source, value = source.op.inputs[0], source.op.inputs[1]
        value = tf.get_static_value(value)
        if value is None or value.shape not in ((), (columns,)):
            return False
        if not ((value >= -_LARGEST) & (value <= _LARGEST)).all():
            return False
        constants.append(np.broadcast_to(value, [columns]).astype(np.int64))
    first, low, high = constants
    # If low is above high, all of the column is low.
    starts, ends = low + first, np.maximum(low, high) + first
    if starts.min() < 0 or ends.max() > _LARGEST:
        return False
    order = np.argsort(starts)
    return bool((ends[order][:-1] < starts[order][1:]).all())


def _source(ids: tf.Tensor) -> tf.Tensor:
    """What ids are, seen through what does not change them.

    If they are not negative: what Keras does with negative ones is passed over.
    """
    while True:
        # In other types, large numbers that differ may become the same.
        if ids.dtype not in _INTEGERS:
            return ids
        if ids.op.type in _KEEPS:
            ids = ids.op.inputs[0]
        elif ids.op.type == "SelectV2" and _is_for_negative_ones(ids):
            ids = ids.op.inputs[2]
        else:
            return ids


def _is_for_negative_ones(chosen: tf.Tensor) -> bool:
    """Whether it is `where(ids < 0, ids + n, ids)`, with scalars 0 and n.

    No other shape can come in, which would repeat ids along an axis.
    """
    condition, other, ids = chosen.op.inputs
    return (
        condition.op.type == "Less"
        and other.op.type == "AddV2"
        and condition.op.inputs[0] is ids
        and other.op.inputs[0] is ids
        and np.array_equal(tf.get_static_value(condition.op.inputs[1]), 0)
        and other.op.inputs[1].shape.rank == 0
    )


def _has_columns(tensor: tf.Tensor, columns: int) -> bool:
    return (
        tensor.shape.rank == 2
        and tensor.shape[1] == columns
        and tensor.dtype in _INTEGERS
    )
