"""Operations that make tensors out of nothing but shapes, keys and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.dims import multiply
from tf_sparse_dp.gradients.rules.elementwise import BATCH_STATISTIC
from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.types import (
    FREE,
    SUMMED,
    Batched,
    BatchMultiple,
    Block,
    Dim,
    Free,
    Summed,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


def sees_free(rule):  # type: ignore[no-untyped-def]
    """Marks a rule that is asked even when all inputs are free."""
    rule.sees_free = True
    return rule


@typing("Placeholder")
@sees_free
def _captured(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    tensor = op.outputs[0]
    outer = analysis.captured(tensor)
    if tensor.dtype == tf.resource:
        return FREE
    if outer is None:
        return mixed(
            op,
            "is a loop variable or the argument of a branch, which may hold "
            "data of several examples",
            "Put the training step into a tf.function of its own, with the "
            "batch as its argument.",
        )
    if not tf.is_symbolic_tensor(outer):  # Eager: a constant of the step.
        return FREE
    return mixed(
        op,
        "stands for a tensor of an outer function, whose origin is not seen",
        "Pass the tensor as an argument of the inner tf.function.",
    )


@typing(
    "Fill",
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "StatelessRandomUniform",
    "StatelessRandomUniformV2",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomNormal",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
)
@sees_free
def _filled(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    if not all(isinstance(kind, Free) for kind in inputs):
        return mixed(op, "takes its shape, key or value from example data")
    return spread(analysis, op, analysis.sizes.value(op.inputs[0]))


def spread(
    analysis: Analysis, op: tf.Operation, dims: Sequence[Dim] | None
) -> Type:
    """Type of a data-free tensor: batched when a size is a multiple of B.

    Rows that depend on no example depend on one example only. The view
    matters where the rows are summed later: the sum then has one term per
    example, as in a loop over examples.
    """
    if dims is None:
        return FREE
    analysis.sizes.set_dims(op.outputs[0], dims)
    for axis, dim in enumerate(dims):
        if isinstance(dim, BatchMultiple):
            return Batched(axis, (Block(inner=dim.per_example),))
    return FREE


def _spread_sum(
    op: tf.Operation, inputs: Sequence[Type], sizes: Sequence[Dim] | None
) -> Type:
    """Type of copies of a sum: a sum too, unless they go to the examples."""
    if isinstance(inputs[0], Summed) and isinstance(inputs[1], Free):
        if sizes is not None and all(isinstance(n, int) for n in sizes):
            return SUMMED
    return mixed(op, "spreads a batch sum over examples", BATCH_STATISTIC)


@typing("BroadcastTo")
@sees_free
def _broadcast(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, shape = inputs
    dims = analysis.sizes.value(op.inputs[1])
    if not isinstance(shape, Free) or isinstance(value, Summed):
        return _spread_sum(op, inputs, dims)
    if dims is None:
        return mixed(op, "has a shape that is not known while tracing")
    if isinstance(value, Free):
        return spread(analysis, op, dims)
    if not isinstance(value, Batched):
        return value
    analysis.sizes.set_dims(op.outputs[0], dims)
    axis = value.axis + len(dims) - op.inputs[0].shape.rank
    if dims[axis] != analysis.sizes.rows(value.per_example):
        return mixed(op, "repeats examples along the example axis")
    return value.moved_to(axis)


@typing("Tile")
@sees_free
def _tiled(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value = inputs[0]
    counts = analysis.sizes.value(op.inputs[1])
    if not isinstance(inputs[1], Free) or isinstance(value, Summed):
        return _spread_sum(op, inputs, counts)
    before = analysis.sizes.dims(op.inputs[0])
    if counts is None or before is None:
        return FREE if isinstance(value, Free) else mixed(op, "is dynamic")
    dims = [multiply(a, b) for a, b in zip(before, counts, strict=True)]
    if isinstance(value, Free):
        return spread(analysis, op, dims)
    if not isinstance(value, Batched):
        return value
    if counts[value.axis] != 1:
        return mixed(op, "repeats examples along the example axis")
    analysis.sizes.set_dims(op.outputs[0], dims)
    return value
