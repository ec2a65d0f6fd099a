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
    columns = ids.shape[1]
    while ids.op.type in _KEEPS:
        ids = ids.op.inputs[0]
    if columns is None or not _has_columns(ids, columns):
        return False
    summed = _with_constant(ids, "AddV2", columns)
    raised = summed and _with_constant(summed[0], "Maximum", columns)
    lowered = raised and _with_constant(raised[0], "Minimum", columns)
    if not lowered:
        return False
    first, low, high = summed[1], raised[1], lowered[1]
    # If low is above high, all of the column is low.
    starts, ends = low + first, np.maximum(low, high) + first
    if (np.abs([low, high, first, starts, ends]) > _LARGEST).any():
        return False
    order = np.argsort(starts)
    return bool((ends[order][:-1] < starts[order][1:]).all())


def _has_columns(tensor: tf.Tensor, columns: int) -> bool:
    return (
        tensor.shape.rank == 2
        and tensor.shape[1] == columns
        and tensor.dtype in (tf.int32, tf.int64)
    )


def _with_constant(
    tensor: tf.Tensor, kind: str, columns: int
) -> tuple[tf.Tensor, np.ndarray] | None:
    """The input of an operation with a constant for each column, and that."""
    if tensor.op.type != kind:
        return None
    value = tf.get_static_value(tensor.op.inputs[1])
    if value is None or value.shape not in ((), (columns,)):
        return None
    # An operand of one column would be repeated for all.
    if kind != "Minimum" and not _has_columns(tensor.op.inputs[0], columns):
        return None
    return tensor.op.inputs[0], np.broadcast_to(value, [columns]).astype(int)
