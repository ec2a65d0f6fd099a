"""Entries that are read or added where ids say, entry by entry.

Backward passes add into a flat tensor of all rows, at row * n + place. That
stays within an example only if each place is known to lie in [0, n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.dims import multiply
from tf_sparse_dp.gradients.factors import Factor, RowFactor
from tf_sparse_dp.gradients.rows import example_major
from tf_sparse_dp.gradients.rules.registry import factoring, mixed, typing
from tf_sparse_dp.gradients.types import (
    SUMMED,
    Batched,
    Block,
    Dim,
    Free,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

IN_RANGE = (
    "Ids within an example need a known range, or they could reach into "
    "others: clip them, tf.clip_by_value(ids, 0, size - 1)."
)
# What keeps the order of entries, and what takes or moves some of them.
_REORDERED = ("Identity", "Reshape", "ExpandDims", "Squeeze")
_TAKEN = (*_REORDERED, "Slice", "StridedSlice", "Transpose")


@typing("GatherNd", "ResourceGatherNd")
def _gather_nd(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    values, ids = inputs
    rank = op.inputs[1].shape.rank
    if not isinstance(values, Free) or not isinstance(ids, Batched):
        return mixed(
            op,
            "gathers across examples",
            "Gather within an example with tf.gather(..., batch_dims=1), or "
            "from a table of weights.",
        )
    if rank is None or ids.axis == rank - 1:
        return mixed(op, "has ids that are made of several examples")
    return ids


@typing("ScatterNd")
def _scatter_nd(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    ids, values, shape = inputs
    rank = op.inputs[0].shape.rank
    dims = _scattered_dims(analysis, op)
    if not isinstance(shape, Free) or dims is None or rank is None:
        return mixed(op, "has a shape that is not known while tracing")
    if not isinstance(ids, Batched) or values != ids or ids.axis == rank - 1:
        return mixed(op, "adds rows of different examples")
    if op.inputs[0].shape[-1] == 1:
        within = within_rows(analysis, op.inputs[0], dims[0])
        if within is not None:
            analysis.sizes.set_dims(op.outputs[0], dims)
            return within
    if all(isinstance(dim, int) for dim in dims):
        return SUMMED
    return mixed(op, "may add to rows of other examples", IN_RANGE)


def _scattered_dims(analysis: Analysis, op: tf.Operation) -> list[Dim] | None:
    """The shape that is scattered into; that of a variable is static."""
    if op.outputs[0].shape.is_fully_defined():
        return list(op.outputs[0].shape)
    return analysis.sizes.value(op.inputs[2])


@factoring("ScatterNd")
def _scatter_nd_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    """Rows of the table whose first axes are taken as one."""
    ids, values, _ = op.inputs
    kind, depth = analysis.type(ids), ids.shape[-1]
    dims = [d for d in _scattered_dims(analysis, op) or [] if type(d) is int]
    if not isinstance(kind, Batched) or not dims or depth is None:
        raise ValueError("has a shape that is not known while tracing")
    strides = [math.prod(dims[i + 1 : depth]) for i in range(depth)]
    batch_size, width = analysis.batch_size, math.prod(dims[depth:])
    ids = example_major(analysis, ids, kind)
    places = math.prod(ids.shape[1:-1])
    ids = tf.reduce_sum(ids * tf.constant(strides, ids.dtype), -1)
    values = example_major(analysis, values, kind)
    factor: Factor = RowFactor(
        tf.reshape(values, [batch_size, places, width]),
        tf.reshape(ids, [batch_size, places]),
        (math.prod(dims[:depth]), width),
        sparse=False,
    )
    return factor.reshaped(dims)


def within_rows(
    analysis: Analysis, ids: tf.Tensor, segments: Dim
) -> Batched | None:
    """Type of a sum by ids row * n + place, if 0 <= place < n is known.

    Args:
      analysis: The types so far.
      ids: Ids of the segments, one for each entry.
      segments: How many segments there are: n for each row.

    Returns:
      The type of the flat segments; None if nothing is known.
    """
    tensor = _behind(ids, _REORDERED)
    if tensor.op.type != "AddV2":
        return None
    for place, start in (tensor.op.inputs, tensor.op.inputs[::-1]):
        kind, size = analysis.type(place), _row_size(analysis, start)
        dims = analysis.sizes.dims(start)
        if not isinstance(kind, Batched) or kind.axis or size is None:
            continue
        rows = analysis.sizes.rows(kind.per_example)
        if place.shape.rank != len(dims or []):
            continue
        if dims != [rows] + [1] * (len(dims or []) - 1):
            continue
        if multiply(rows, size) != segments:
            continue
        if not _below(analysis, place, size):
            continue
        blocks = [Block(b.outer, b.inner * size) for b in kind.blocks]
        return Batched(0, tuple(blocks))
    return None


def _behind(tensor: tf.Tensor, op_types: Sequence[str]) -> tf.Tensor:
    while tensor.op.type in op_types or _is_wide_cast(tensor.op):
        tensor = tensor.op.inputs[0]
    return tensor


def _is_wide_cast(op: tf.Operation) -> bool:
    """Whether sizes of tensors, which fit into 32 bits, survive a cast."""
    wide = (tf.int32, tf.int64)
    return op.type == "Cast" and all(
        tensor.dtype in wide for tensor in (op.inputs[0], op.outputs[0])
    )


def _row_size(analysis: Analysis, start: tf.Tensor) -> int | None:
    """The n of numbers 0, n, 2n, ... in order; None if they are others."""
    tensor = _behind(start, _REORDERED)
    factor: int | None = 1
    if tensor.op.type == "Mul":
        for number, rest in (tensor.op.inputs, tensor.op.inputs[::-1]):
            if analysis.sizes.scalar(number) is not None:
                factor = analysis.sizes.scalar(number)
                tensor = _behind(rest, _REORDERED)
                break
    if tensor.op.type != "Range" or factor is None:
        return None
    first, step = (analysis.sizes.scalar(tensor.op.inputs[i]) for i in (0, 2))
    if first != 0 or step is None or step * factor <= 0:
        return None
    return step * factor


def _below(analysis: Analysis, tensor: tf.Tensor, size: int) -> bool:
    """Whether all entries of an integer tensor are in [0, size)."""
    tensor = _behind(tensor, _TAKEN)
    op, scalar = tensor.op, analysis.sizes.scalar
    if op.type == "TopKV2" and tensor.value_index == 1:
        last = op.inputs[0].shape[-1]
        return last is not None and last <= size
    if op.type in ("ArgMax", "ArgMin"):
        axis, dims = scalar(op.inputs[1]), analysis.sizes.dims(op.inputs[0])
        length = None if axis is None or dims is None else dims[axis]
        return isinstance(length, int) and length <= size
    if op.type == "FloorMod":
        divisor = scalar(op.inputs[1])
        return divisor is not None and 0 < divisor <= size
    if op.type == "ClipByValue":
        least, most = (scalar(x) for x in op.inputs[1:])
        return (
            least is not None
            and most is not None
            and (0 <= least <= most < size)
        )
    if op.type == "Maximum":  # max(min(ids, most), least)
        for least, inner in (op.inputs, op.inputs[::-1]):
            if inner.op.type != "Minimum":
                continue
            low = scalar(least)
            highs = [scalar(x) for x in inner.op.inputs]
            if low is not None and 0 <= low < size:
                if any(h is not None and h < size for h in highs):
                    return True
    return False
