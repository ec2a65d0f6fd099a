"""Selecting the same entries of every example, by a mask that holds no data.

`tf.boolean_mask(x, mask)` finds the numbers of the mask's true entries in the
flattened batch, and gathers them. Where the mask is made of shapes alone and is
the same for every example, each example keeps the same entries, as many as
every other, and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tf_sparse_dp.gradients.rules.constants import constant
from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.rules.sources import sees_free
from tf_sparse_dp.gradients.types import FREE, Batched, Block, Dim, Free, Type

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
        known = constant(analysis, op.inputs[0])
        rank = op.inputs[0].shape.rank
        if known is not None and known.dtype == bool and rank is not None:
            count = int(np.count_nonzero(known))
            analysis.sizes.set_dims(op.outputs[0], [count, rank])
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
    """Entries that are the same for every example, without the batch axis.

    They are zeros, ones and minus ones only, which every type of numbers holds
    and compares exactly.
    """
    derive = _PATTERNS.get(tensor.op.type)
    mask = None if derive is None else derive(analysis, tensor.op)
    return mask if mask is not None and _is_exact(mask) else None


def _is_exact(value: np.ndarray) -> bool:
    return bool(np.all((value == 0) | (value == 1) | (value == -1)))


def _ones(analysis: Analysis, op: tf.Operation) -> np.ndarray | None:
    if analysis.type(op.outputs[0]) != Batched(0):
        return None
    dims = analysis.sizes.dims(op.outputs[0])
    return _repeated(analysis, op, dims, np.array(1))


def _filled(analysis: Analysis, op: tf.Operation) -> np.ndarray | None:
    dims = analysis.sizes.value(op.inputs[0])
    return _repeated(analysis, op, dims, tf.get_static_value(op.inputs[1]))


def _repeated(
    analysis: Analysis,
    op: tf.Operation,
    dims: list[Dim] | None,
    value: np.ndarray | None,
) -> np.ndarray | None:
    """One example's part of a tensor that holds one number everywhere."""
    if not dims or dims[0] != analysis.sizes.rows(1) or value is None:
        return None
    if not all(isinstance(dim, int) for dim in dims[1:]):
        return None
    dtype = op.outputs[0].dtype.as_numpy_dtype
    return np.full(dims[1:], value, dtype)  # type: ignore[arg-type]


def _constant(analysis: Analysis, op: tf.Operation) -> np.ndarray | None:
    # With a batch size that is known while tracing.
    value = tf.get_static_value(op.outputs[0])
    if not value.ndim or len(value) != analysis.sizes.batch_size:
        return None
    return None if np.any(value != value[:1]) else value[0]


def _difference(analysis: Analysis, op: tf.Operation) -> np.ndarray | None:
    left, right = (_pattern(analysis, x) for x in op.inputs)
    if left is None or right is None or left.shape != right.shape:
        return None
    return left - right


def _band_of(analysis: Analysis, op: tf.Operation) -> np.ndarray | None:
    value = _pattern(analysis, op.inputs[0])
    lower, upper = (analysis.sizes.scalar(x) for x in op.inputs[1:])
    if value is None or value.ndim < 2 or lower is None or upper is None:
        return None
    below = np.subtract.outer(*(np.arange(n) for n in value.shape[-2:]))
    kept = (lower < 0) | (below <= lower)
    return value * (kept & ((upper < 0) | (-below <= upper)))


def _positive(analysis: Analysis, op: tf.Operation) -> np.ndarray | None:
    value, bound = _pattern(analysis, op.inputs[0]), op.inputs[1]
    if value is None or bound.shape.rank != 0:
        return None
    return value > 0 if tf.get_static_value(bound) == 0 else None


def _truths(analysis: Analysis, op: tf.Operation) -> np.ndarray | None:
    value = _pattern(analysis, op.inputs[0])
    if value is None or op.outputs[0].dtype != tf.bool:
        return None
    return value != 0


_PATTERNS: dict[str, Callable[[Analysis, tf.Operation], np.ndarray | None]] = {
    # tf.ones_like is one of the first three, by size and what is known of it.
    "Const": _constant,
    "Fill": _filled,
    "OnesLike": _ones,
    "Sub": _difference,
    "MatrixBandPart": _band_of,
    "Greater": _positive,
    "Cast": _truths,
}
