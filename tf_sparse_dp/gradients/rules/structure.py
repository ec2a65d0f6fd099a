"""Operations that give entries another place: reshape, transpose, join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.dims import divide, product
from tf_sparse_dp.gradients.factors import Factor
from tf_sparse_dp.gradients.rules.registry import lifting, mixed, typing
from tf_sparse_dp.gradients.types import (
    FREE,
    SUMMED,
    Batched,
    Block,
    Dim,
    Free,
    Summed,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

KEEP_AXIS = "Keep the examples on an axis of their own."


@typing("Reshape")
def _reshape(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """The flat index f of an entry survives, and so does its example.

    With `outer` and `inner` the products of all sizes before and after the
    batch size, the example is (f // inner) % B. The new axis is the one whose
    neighbours' sizes divide those products.
    """
    kind, shape = inputs
    if not isinstance(shape, Free):
        return mixed(op, "takes its shape from example data")
    if isinstance(kind, Summed):
        return SUMMED
    if not isinstance(kind, Batched):
        return FREE
    before = analysis.sizes.dims(op.inputs[0])
    after = analysis.sizes.value(op.inputs[1])
    if before is None or after is None:
        return mixed(op, "has a shape that is not known while tracing")
    after = without_wildcard(before, after, op)
    if None in after or None in before:
        return mixed(op, "has a shape that is not known while tracing")
    result = _relocated(analysis, kind, before, after)
    if result is None:
        return mixed(op, "moves rows of different examples", KEEP_AXIS)
    analysis.sizes.set_dims(op.outputs[0], after)
    return result


def without_wildcard(
    before: list[Dim], after: list[Dim], op: tf.Operation
) -> list[Dim]:
    """The shape after a reshape, with its open size filled in if possible."""
    static = op.outputs[0].shape
    if -1 not in after and None not in after and static.rank == len(after):
        return after
    if static.rank == len(after):
        after = [
            here if dim is None and here is not None else dim
            for dim, here in zip(after, static.as_list(), strict=True)
        ]
    unknown = [a for a, dim in enumerate(after) if dim in (-1, None)]
    if len(unknown) != 1:
        return [None if dim == -1 else dim for dim in after]
    known = product([d for a, d in enumerate(after) if a != unknown[0]])
    after = list(after)
    after[unknown[0]] = divide(product(before), known)
    return after


def _relocated(
    analysis: Analysis, kind: Batched, before: list[Dim], after: list[Dim]
) -> Batched | None:
    lead, trail = before[: kind.axis], before[kind.axis + 1 :]
    if len(kind.blocks) > 1:
        # Joined blocks: only axes of size 1 may come and go before them.
        rows = analysis.sizes.rows(kind.per_example)
        for axis, dim in enumerate(after):
            if product(lead) == product(after[:axis]) == 1 and dim == rows:
                if product(after[axis + 1 :]) == product(trail):
                    return kind.moved_to(axis)
        return None
    (block,) = kind.blocks
    outer, inner = product([*lead, block.outer]), product([*trail, block.inner])
    for axis, dim in enumerate(after):
        new_outer = divide(outer, product(after[:axis]))
        new_inner = divide(inner, product(after[axis + 1 :]))
        if not isinstance(new_outer, int) or not isinstance(new_inner, int):
            continue
        if dim == analysis.sizes.rows(new_outer * new_inner):
            return Batched(axis, (Block(new_outer, new_inner),))
    return None


@typing("Transpose")
def _transpose(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, permutation_type = inputs
    permutation = analysis.sizes.ints(op.inputs[1])
    if not isinstance(permutation_type, Free) or permutation is None:
        return mixed(op, "has a permutation that is not known while tracing")
    if isinstance(kind, Summed):
        return SUMMED
    dims = analysis.sizes.dims(op.inputs[0])
    if not isinstance(kind, Batched) or dims is None:
        return mixed(op, "has an input of unknown rank")
    analysis.sizes.set_dims(op.outputs[0], [dims[a] for a in permutation])
    return kind.moved_to(permutation.index(kind.axis))


@typing("ExpandDims")
def _expand(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, axis_type = inputs
    axis = analysis.sizes.scalar(op.inputs[1])
    if not isinstance(axis_type, Free) or axis is None:
        return mixed(op, "has an axis that is not known while tracing")
    if isinstance(kind, Summed):
        return SUMMED
    dims = analysis.sizes.dims(op.inputs[0])
    if not isinstance(kind, Batched) or dims is None:
        return mixed(op, "has an input of unknown rank")
    axis %= len(dims) + 1
    analysis.sizes.set_dims(op.outputs[0], [*dims[:axis], 1, *dims[axis:]])
    return kind.moved_to(kind.axis + (axis <= kind.axis))


@typing("Squeeze")
def _squeeze(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind = inputs[0]
    if isinstance(kind, Summed):
        return SUMMED
    dims = analysis.sizes.dims(op.inputs[0])
    if not isinstance(kind, Batched) or dims is None:
        return mixed(op, "has an input of unknown rank")
    axes = [axis % len(dims) for axis in op.get_attr("squeeze_dims")]
    if not axes and all(isinstance(dim, int) for dim in dims):
        axes = [axis for axis, dim in enumerate(dims) if dim == 1]
    elif not axes:
        # An example axis of size 1 would go as well.
        return mixed(
            op,
            "may remove the example axis",
            "Name the axis, tf.squeeze(x, axis=-1), or train on batches whose "
            "size is known while tracing: sampling.dataset(...), or "
            "batch(n, drop_remainder=True).",
        )
    if kind.axis in axes:
        return mixed(
            op,
            "removes the example axis",
            "Name the axis: tf.squeeze(x, axis=-1).",
        )
    analysis.sizes.set_dims(
        op.outputs[0], [d for a, d in enumerate(dims) if a not in axes]
    )
    return kind.moved_to(kind.axis - sum(axis < kind.axis for axis in axes))


@typing("ConcatV2")
def _concat(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    *kinds, axis_type = inputs
    axis = analysis.sizes.scalar(op.inputs[-1])
    rank = op.outputs[0].shape.rank
    if not isinstance(axis_type, Free) or axis is None or rank is None:
        return mixed(op, "has an axis that is not known while tracing")
    if not any(isinstance(kind, Batched) for kind in kinds):
        return SUMMED
    batched = _agreeing(op, kinds, ignore_blocks=True)
    if not isinstance(batched, Batched):
        return batched
    if batched.axis != axis % rank:
        return _agreeing(op, kinds)
    if not all(isinstance(kind, Batched) for kind in kinds):
        return mixed(
            op,
            "joins examples and constants on the example axis",
            "Look the examples' own rows and public candidates up separately, "
            "in two lookups.",
        )
    blocks = [b for kind in kinds for b in kind.blocks]  # type: ignore[union-attr]
    return Batched(batched.axis, tuple(blocks))


def _agreeing(
    op: tf.Operation, kinds: Sequence[Type], ignore_blocks: bool = False
) -> Type:
    """The one batched type among free ones; Mixed if there are several."""
    first: Batched | None = None
    for kind in kinds:
        if isinstance(kind, Summed):
            return mixed(op, "joins a sum over examples with single ones")
        if not isinstance(kind, Batched):
            continue
        if first is None:
            first = kind
        elif first.axis != kind.axis:
            return mixed(op, "joins different example axes", KEEP_AXIS)
        elif first.blocks != kind.blocks and not ignore_blocks:
            return mixed(op, "joins rows of different examples", KEEP_AXIS)
    return first if first is not None else FREE


@typing("Pack")
def _pack(analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]) -> Type:
    if not any(isinstance(kind, Batched) for kind in inputs):
        return SUMMED
    kind = _agreeing(op, inputs)
    rank = op.outputs[0].shape.rank
    if not isinstance(kind, Batched) or rank is None:
        return kind
    axis = op.get_attr("axis") % rank
    return kind.moved_to(kind.axis + (axis <= kind.axis))


@typing("Unpack")
def _unpack(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, rank = inputs[0], op.inputs[0].shape.rank
    if isinstance(kind, Summed):
        return SUMMED
    if not isinstance(kind, Batched) or rank is None:
        return mixed(op, "has an input of unknown rank")
    axis = op.get_attr("axis") % rank
    if axis == kind.axis:
        return mixed(op, "takes single examples out of the batch", KEEP_AXIS)
    return kind.moved_to(kind.axis - (axis < kind.axis))


@lifting("Reshape", "ExpandDims", "Squeeze")
def _lift_reshape(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    shape = op.outputs[0].shape
    if not shape.is_fully_defined():
        dims = (
            analysis.sizes.value(op.inputs[1]) if len(op.inputs) > 1 else None
        )
        if op.type != "Reshape" or dims is None:
            raise ValueError("has a shape that is not known while tracing")
        shape = [d for d in dims if isinstance(d, int) and d >= 0]
        if len(shape) != len(dims):
            raise ValueError("has a shape that is not known while tracing")
    return factor.reshaped(tuple(shape))


@lifting("Transpose")
def _lift_transpose(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    permutation = analysis.sizes.ints(op.inputs[1])
    if permutation is None:
        raise ValueError("has a permutation that is not known while tracing")
    return factor.transposed(permutation)
