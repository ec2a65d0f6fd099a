"""Operations that take or add a part of an axis: split, slice, pad, reverse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.rules.structure import KEEP_AXIS
from tf_sparse_dp.gradients.types import (
    SUMMED,
    Batched,
    Dim,
    Free,
    Summed,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


@typing("Split", "SplitV")
def _split(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, axis = (1, 0) if op.type == "Split" else (0, 2)
    kind, rank = inputs[value], op.inputs[value].shape.rank
    at = analysis.sizes.scalar(op.inputs[axis])
    if any(
        not isinstance(inputs[i], Free)
        for i in range(len(inputs))
        if i != value
    ):
        return mixed(op, "takes its sizes from example data")
    if isinstance(kind, Summed):
        return SUMMED
    if not isinstance(kind, Batched) or at is None or rank is None:
        return mixed(op, "has an axis that is not known while tracing")
    if at % rank == kind.axis:
        return mixed(op, "splits the batch", KEEP_AXIS)
    dims = analysis.sizes.dims(op.inputs[value])
    lengths = analysis.sizes.ints(op.inputs[1]) if op.type == "SplitV" else None
    if dims is not None and lengths is not None and min(lengths) >= 0:
        for output, length in zip(op.outputs, lengths, strict=True):
            shape = list(dims)
            shape[at % rank] = length
            analysis.sizes.set_dims(output, shape)
    return kind


@typing("Slice")
def _slice(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, *bounds = inputs
    if not all(isinstance(bound, Free) for bound in bounds):
        return mixed(op, "takes its bounds from example data")
    if isinstance(kind, Summed):
        return SUMMED
    begin, size = (analysis.sizes.value(x) for x in op.inputs[1:])
    dims = analysis.sizes.dims(op.inputs[0])
    if not isinstance(kind, Batched) or None in (begin, size, dims):
        return mixed(op, "has bounds that are not known while tracing")
    start, length = begin[kind.axis], size[kind.axis]  # type: ignore[index]
    analysis.sizes.set_dims(
        op.outputs[0],
        [
            None if here == -1 and first != 0 else dim if here == -1 else here
            for here, first, dim in zip(size, begin, dims, strict=True)  # type: ignore[arg-type]
        ],
    )
    rows = analysis.sizes.rows
    if start == 0 and length in (-1, rows(kind.per_example)):
        return kind
    passed = 0
    for block in kind.blocks:  # The gradient of joining blocks: one of them.
        here = 0 if passed == 0 else rows(passed)
        if start == here and length == rows(block.per_example):
            return Batched(kind.axis, (block,))
        passed += block.per_example
    return mixed(op, "takes a part of the batch", KEEP_AXIS)


@typing("StridedSlice")
def _strided_slice(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, *bounds = inputs
    if not all(isinstance(bound, Free) for bound in bounds):
        return mixed(op, "takes its bounds from example data")
    if isinstance(kind, Summed):
        return SUMMED
    rank = op.inputs[0].shape.rank
    if not isinstance(kind, Batched) or rank is None:
        return mixed(op, "has an input of unknown rank")
    axis = slice_axes(analysis, op, 1, rank).get(kind.axis)
    if axis is None:
        return mixed(op, "takes a part of the batch", KEEP_AXIS)
    return kind.moved_to(axis)


@typing("StridedSliceGrad")
def _strided_slice_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    *bounds, kind = inputs
    if not all(isinstance(bound, Free) for bound in bounds):
        return mixed(op, "takes its bounds from example data")
    if isinstance(kind, Summed):
        return SUMMED
    dims = analysis.sizes.value(op.inputs[0])
    if not isinstance(kind, Batched) or dims is None:
        return mixed(op, "has a shape that is not known while tracing")
    for before, after in slice_axes(analysis, op, 1, len(dims)).items():
        if after == kind.axis:
            if dims[before] != analysis.sizes.rows(kind.per_example):
                break
            analysis.sizes.set_dims(op.outputs[0], dims)
            return kind.moved_to(before)
    return mixed(op, "takes a part of the batch", KEEP_AXIS)


def slice_axes(
    analysis: Analysis, op: tf.Operation, first: int, rank: int
) -> dict[int, int]:
    """Axes that a strided slice keeps whole: axis before -> axis after."""
    bounds = op.inputs[first : first + 3]
    begin, strides = (analysis.sizes.value(bounds[i]) for i in (0, 2))
    count = bounds[0].shape[0]

    def flag(name: str, place: int) -> bool:
        return bool(op.get_attr(name) >> place & 1)

    places = range(count)
    taken = sum(
        not flag("new_axis_mask", p) and not flag("ellipsis_mask", p)
        for p in places
    )
    kept: dict[int, int] = {}
    before = after = 0
    for place in places:
        if flag("ellipsis_mask", place):
            for _ in range(rank - taken):
                kept[before] = after
                before, after = before + 1, after + 1
        elif flag("new_axis_mask", place):
            after += 1
        elif flag("shrink_axis_mask", place):
            before += 1
        else:
            starts = flag("begin_mask", place) or (
                begin is not None and begin[place] == 0
            )
            if starts and flag("end_mask", place):
                if strides is not None and strides[place] == 1:
                    kept[before] = after
            before, after = before + 1, after + 1
    while before < rank:
        kept[before] = after
        before, after = before + 1, after + 1
    return kept


@typing("Pad", "PadV2", "MirrorPad")
def _pad(analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]) -> Type:
    kind, *others = inputs
    if not all(isinstance(other, Free) for other in others):
        return mixed(op, "pads with example data")
    if isinstance(kind, Summed):
        return SUMMED if op.type == "Pad" else mixed(op, "pads a batch sum")
    amounts = _amounts(analysis, op.inputs[1])
    if not isinstance(kind, Batched) or amounts is None:
        return mixed(op, "has amounts that are not known while tracing")
    if amounts[kind.axis] != (0, 0):
        return mixed(op, "pads the batch", KEEP_AXIS)
    return kind


def _amounts(
    analysis: Analysis, tensor: tf.Tensor
) -> list[tuple[Dim, Dim]] | None:
    """Rows of a padding matrix: how much before and after each axis."""
    op = tensor.op
    if op.type == "ConcatV2" and analysis.sizes.scalar(op.inputs[2]) == 1:
        # The gradient of a slice joins two columns.
        columns = [analysis.sizes.value(x) for x in op.inputs[:2]]
        if any(x.shape.as_list()[1:] != [1] for x in op.inputs[:2]):
            return None
        if columns[0] is None or columns[1] is None:
            return None
        return list(zip(columns[0], columns[1], strict=True))
    constant = tf.get_static_value(tensor)
    if constant is None:
        return None
    return [(int(before), int(after)) for before, after in constant]


@typing("ReverseV2")
def _reverse(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, rank = inputs[0], op.inputs[0].shape.rank
    axes = analysis.sizes.ints(op.inputs[1])
    if not isinstance(kind, Batched) or axes is None or rank is None:
        return mixed(op, "has axes that are not known while tracing")
    if kind.axis in [axis % rank for axis in axes]:
        return mixed(op, "reorders the batch", KEEP_AXIS)
    return kind


@typing("ReverseSequence")
def _reverse_sequence(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """Reverses the beginning of each example's sequence, by its length."""
    kind, lengths = inputs
    batch_axis, axis = op.get_attr("batch_dim"), op.get_attr("seq_dim")
    if not isinstance(kind, Batched) or kind.axis != batch_axis:
        return mixed(op, "reorders the batch", KEEP_AXIS)
    if axis == batch_axis or lengths != kind.moved_to(0):
        return mixed(op, "reorders the batch", KEEP_AXIS)
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    return kind


@typing("Roll")
def _roll(analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]) -> Type:
    kind, *others = inputs
    rank, axes = op.inputs[0].shape.rank, analysis.sizes.ints(op.inputs[2])
    if not all(isinstance(other, Free) for other in others):
        return mixed(op, "shifts by example data")
    if not isinstance(kind, Batched) or axes is None or rank is None:
        return mixed(op, "has axes that are not known while tracing")
    if kind.axis in [axis % rank for axis in axes]:
        return mixed(op, "reorders the batch", KEEP_AXIS)
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    return kind
