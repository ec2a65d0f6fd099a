"""Selecting the same entries of every example, by a mask that holds no data.

`tf.boolean_mask(x, mask)` finds the numbers of the mask's true entries in the
flattened batch, and gathers them. Where the mask is made of shapes alone and is
the same for every example, each example keeps the same entries, as many as
every other, and in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.rules.sources import sees_free
from tf_sparse_dp.gradients.types import FREE, Batched, Block, Free, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_BY_DATA = (
    "Multiply by the mask, or choose with tf.where(mask, x, 0), so that every "
    "example keeps its shape."
)
_FLAT_IDS = ("Squeeze", "Reshape", "Identity")


@typing("MatrixBandPart")
def _band(analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]) -> Type:
    value, *bounds = inputs
    rank = op.inputs[0].shape.rank
    if not all(isinstance(kind, Free) for kind in bounds):
        return mixed(op, "takes its bounds from example data")
    if not isinstance(value, Batched) or rank is None:
        return mixed(op, "of a sum over examples")
    if value.axis >= rank - 2:
        return mixed(op, "has examples for rows or columns")
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    return value


@typing("Where")
@sees_free
def _found(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    mask = _flat_pattern(analysis, op.inputs[0])
    if mask is None and isinstance(inputs[0], Free):
        return FREE
    if mask is None:
        return mixed(op, "finds entries by example data", _BY_DATA)
    count = int(np.count_nonzero(mask))
    if not count:
        return mixed(op, "finds nothing")
    analysis.sizes.set_dims(op.outputs[0], [analysis.sizes.rows(count), 1])
    return Batched(0, (Block(inner=count),))


def chosen_entries(
    analysis: Analysis, values: tf.Tensor, ids: tf.Tensor
) -> Batched | None:
    """Type of values[ids] where ids are a mask's true entries, or None."""
    mask = _mask_behind(analysis, ids)
    if mask is None:
        return None
    if analysis.type(values) != Batched(0, (Block(inner=len(mask)),)):
        return None
    return Batched(0, (Block(inner=int(np.count_nonzero(mask))),))


def restored_entries(
    analysis: Analysis, values: tf.Tensor, ids: tf.Tensor, count: tf.Tensor
) -> Batched | None:
    """Type of values put back to the places of a mask's true entries."""
    mask = _mask_behind(analysis, ids)
    if mask is None:
        return None
    kept = Batched(0, (Block(inner=int(np.count_nonzero(mask))),))
    if analysis.type(values) != kept:
        return None
    if analysis.sizes.value(count) != [analysis.sizes.rows(len(mask))]:
        return None
    return Batched(0, (Block(inner=len(mask)),))


def _mask_behind(analysis: Analysis, ids: tf.Tensor) -> np.ndarray | None:
    """The flat mask whose true entries a vector of ids numbers."""
    if ids.shape.rank != 1:
        return None
    while ids.op.type in _FLAT_IDS:
        ids = ids.op.inputs[0]
    if ids.op.type != "Where":
        return None
    return _flat_pattern(analysis, ids.op.inputs[0])


def _flat_pattern(analysis: Analysis, tensor: tf.Tensor) -> np.ndarray | None:
    """What each example has in a vector that holds all examples' masks."""
    if tensor.op.type != "Reshape" or tensor.shape.rank != 1:
        return None
    mask = _pattern(analysis, tensor.op.inputs[0])
    if mask is None:
        return None
    if analysis.sizes.dims(tensor) != [analysis.sizes.rows(mask.size)]:
        return None
    return mask.ravel()


def _pattern(analysis: Analysis, tensor: tf.Tensor) -> np.ndarray | None:
    """Entries that are the same for every example, without the batch axis."""
    op = tensor.op
    if op.type == "OnesLike":
        dims = analysis.sizes.dims(tensor)
        if analysis.type(tensor) != Batched(0) or dims is None:
            return None
        if not all(isinstance(dim, int) for dim in dims[1:]):
            return None
        return np.ones(dims[1:])  # type: ignore[arg-type]
    if op.type == "Const":  # With a batch size that is known while tracing.
        value = tf.get_static_value(tensor)
        batch_size = analysis.sizes.batch_size
        if not value.ndim or len(value) != batch_size:
            return None
        if np.any(value != value[:1]):
            return None
        return value[0]
    if op.type == "Sub":
        left, right = (_pattern(analysis, x) for x in op.inputs)
        if left is None or right is None or left.shape != right.shape:
            return None
        return left - right
    if op.type == "MatrixBandPart":
        value = _pattern(analysis, op.inputs[0])
        lower, upper = (analysis.sizes.scalar(x) for x in op.inputs[1:])
        if value is None or value.ndim < 2 or lower is None or upper is None:
            return None
        below = np.subtract.outer(*(np.arange(n) for n in value.shape[-2:]))
        kept = (lower < 0) | (below <= lower)
        return value * (kept & ((upper < 0) | (-below <= upper)))
    return None
