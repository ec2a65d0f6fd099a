"""Sums, means and other reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.dims import product
from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    summed_parts,
)
from tf_sparse_dp.gradients.rows import example_major
from tf_sparse_dp.gradients.rules.registry import (
    factoring,
    lifting,
    mixed,
    typing,
)
from tf_sparse_dp.gradients.types import (
    FREE,
    SUMMED,
    Batched,
    Dim,
    Free,
    Summed,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_OVER_EXAMPLES = (
    "Keep to axes within an example: normalise, sort and compare along them. "
    "Sums or means over the example axis may stand only in the loss's final "
    "reduction."
)


def reduced_axes(analysis: Analysis, op: tf.Operation) -> list[int] | None:
    """The axes that a reduction removes; None if not known while tracing."""
    dims = analysis.sizes.dims(op.inputs[0])
    if dims is None:
        return None
    axes_of, shift = _shifted(analysis, op.inputs[1])
    if axes_of.op.type == "BroadcastGradientArgs":
        found = _broadcast_axes(analysis, axes_of.op, axes_of.value_index)
        return None if found is None else [axis + shift for axis in found]
    axes = analysis.sizes.ints(op.inputs[1])
    return None if axes is None else sorted({a % len(dims) for a in axes})


def _shifted(analysis: Analysis, axes: tf.Tensor) -> tuple[tf.Tensor, int]:
    """Looks through the number that an Einsum's gradient adds to all axes."""
    tensor = axes
    if tensor.op.type == "Pack" and len(tensor.op.inputs) == 1:
        tensor = tensor.op.inputs[0]
    if tensor.op.type == "AddV2":
        for number, rest in (tensor.op.inputs, tensor.op.inputs[::-1]):
            shift = analysis.sizes.scalar(number)
            if shift is not None and rest.op.type == "BroadcastGradientArgs":
                return rest, shift
    return axes, 0


def _broadcast_axes(
    analysis: Analysis, op: tf.Operation, index: int
) -> list[int] | None:
    """Axes along which one operand of a broadcast was repeated."""
    shapes = [analysis.sizes.value(shape) for shape in op.inputs]
    if shapes[0] is None or shapes[1] is None:
        return None
    rank = max(len(shapes[0]), len(shapes[1]))
    mine: list[Dim] = [1] * (rank - len(shapes[index])) + shapes[index]  # type: ignore
    other: list[Dim] = [1] * (rank - len(shapes[1 - index])) + shapes[1 - index]  # type: ignore
    axes = []
    for axis, (here, there) in enumerate(zip(mine, other, strict=True)):
        if here is None or (here != 1 and there is None):
            # A size of 1 decides; `here` known and not 1 is never repeated.
            if here is None and there != 1:
                return None
            continue
        if here == 1:
            axes.append(axis)
    return axes


@typing("BroadcastGradientArgs", "BroadcastArgs")
def _axes_of_shapes(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    return mixed(op, "takes a shape from example data")


@typing("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def _reduction(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, axes_type = inputs
    if not isinstance(axes_type, Free):
        return mixed(op, "takes its axes from example data")
    linear = op.type in ("Sum", "Mean")
    if isinstance(value, Summed):
        return SUMMED if linear else mixed(op, "of a sum over examples")
    if not isinstance(value, Batched):
        return FREE
    axes = reduced_axes(analysis, op)
    if axes is None:
        return mixed(op, "has axes that are not known while tracing")
    keep = op.get_attr("keep_dims")
    dims = analysis.sizes.dims(op.inputs[0])
    analysis.sizes.set_dims(
        op.outputs[0],
        [
            1 if axis in axes else dim
            for axis, dim in enumerate(dims)  # type: ignore[arg-type]
            if keep or axis not in axes
        ],
    )
    if value.axis in axes:
        if linear:
            return SUMMED
        return mixed(op, "over the example axis", _OVER_EXAMPLES)
    removed = 0 if keep else sum(axis < value.axis for axis in axes)
    return value.moved_to(value.axis - removed)


@factoring("Sum", "Mean")
def _reduction_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    tensor = op.inputs[0]
    kind = analysis.type(tensor)
    if not isinstance(kind, Batched):
        raise ValueError("sums something that has no example axis")
    axes = reduced_axes(analysis, op) or []
    dims = analysis.sizes.dims(tensor) or []
    rows = example_major(analysis, tensor, kind)
    # Axis a of the tensor is axis a + 1 or a + 2 of the rows, as it lies
    # after or before the example axis that moved to the front.
    others = [a + 2 if a < kind.axis else a + 1 for a in axes if a != kind.axis]
    count = product([dims[a] for a in axes if a != kind.axis])
    if not isinstance(count, int):
        raise ValueError("sums over an axis of unknown size")
    factor: Factor = summed_parts(
        rows, [1, *others], float(count * kind.per_example)
    )
    if op.type == "Mean":
        size = tf.size(tensor) // tf.maximum(tf.size(op.outputs[0]), 1)
        factor = factor.scaled(1.0 / tf.cast(size, tf.float32))
    if op.get_attr("keep_dims"):
        kept = [1 if a in axes else int(dims[a]) for a in range(len(dims))]  # type: ignore[arg-type]
        factor = factor.reshaped(kept)
    return factor


@lifting("Sum", "Mean")
def _lift_reduction(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    axes = reduced_axes(analysis, op)
    if axes is None:
        raise ValueError("reduces axes that are not known while tracing")
    count = math.prod(factor.shape[axis] for axis in axes)
    sums = summed_parts(
        factor.per_example(), [axis + 1 for axis in axes], float(count)
    )
    inherited = factor.squared_slack()
    if inherited is not None:
        slack = count * inherited
        if sums.slack is not None:
            slack += sums.slack
        sums = DenseFactor(sums.values, slack)
    result: Factor = sums
    if op.type == "Mean":
        result = result.scaled(1.0 / count)
    if op.get_attr("keep_dims"):
        result = result.reshaped(
            [1 if a in axes else n for a, n in enumerate(factor.shape)]
        )
    return result


@typing("BiasAddGrad")
def _bias_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value = inputs[0]
    if isinstance(value, Summed):
        return SUMMED
    if op.get_attr("data_format") != b"NHWC":
        return mixed(op, "has its channels on axis 1")
    if value.axis == op.inputs[0].shape.rank - 1:  # type: ignore[union-attr]
        return mixed(op, "has its channels on the example axis")
    return SUMMED


@factoring("BiasAddGrad")
def _bias_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    tensor = op.inputs[0]
    kind = analysis.type(tensor)
    if not isinstance(kind, Batched):
        raise ValueError("sums something that has no example axis")
    rows = example_major(analysis, tensor, kind)
    axes = list(range(1, rows.shape.rank - 1))
    return summed_parts(rows, axes, float(rows.shape[1:-1].num_elements()))


@typing("Softmax", "LogSoftmax")
def _softmax(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    return along_last_axis(op, inputs[0])


def along_last_axis(op: tf.Operation, kind: Type) -> Type:
    """Type of an operation that mixes entries along the last axis only."""
    if not isinstance(kind, Batched):
        return mixed(op, "of a sum over examples")
    if op.inputs[0].shape.rank in (None, kind.axis + 1):
        return mixed(op, "over the example axis", _OVER_EXAMPLES)
    return kind


@typing("TopKV2")
def _top_k(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    if not isinstance(inputs[1], Free):
        return mixed(op, "takes k from example data")
    return along_last_axis(op, inputs[0])


@typing("ArgMax", "ArgMin", "Cumsum", "Cumprod", "CumulativeLogsumexp")
def _along_one_axis(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, axis_type = inputs
    axis = analysis.sizes.scalar(op.inputs[1])
    if not isinstance(value, Batched) or not isinstance(axis_type, Free):
        return mixed(op, "of a sum over examples")
    if axis is None:
        return mixed(op, "has an axis that is not known while tracing")
    axis %= op.inputs[0].shape.rank
    if axis == value.axis:
        return mixed(op, "over the example axis", _OVER_EXAMPLES)
    if op.type.startswith("Arg"):
        return value.moved_to(value.axis - (axis < value.axis))
    return value
