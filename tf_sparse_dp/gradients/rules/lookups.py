"""Reading rows of tables, and the gradients of reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor, RowFactor
from tf_sparse_dp.gradients.rows import example_major
from tf_sparse_dp.gradients.rules.constants import constant
from tf_sparse_dp.gradients.rules.masks import (
    chosen_entries,
    restored_entries,
)
from tf_sparse_dp.gradients.rules.places import IN_RANGE, within_rows
from tf_sparse_dp.gradients.rules.registry import factoring, mixed, typing
from tf_sparse_dp.gradients.types import (
    SUMMED,
    Batched,
    Dim,
    Free,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_ACROSS = "Gather within an example (batch_dims), or from a table of weights."


@typing("ResourceGather")
def _resource_gather(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    _, indices = inputs
    if not isinstance(indices, Batched) or op.get_attr("batch_dims"):
        return mixed(op, "gathers across examples", _ACROSS)
    dims = analysis.sizes.dims(op.inputs[1])
    if dims is not None:
        row = op.outputs[0].shape[len(dims) :]
        analysis.sizes.set_dims(op.outputs[0], [*dims, *row])
    return indices


@typing("GatherV2")
def _gather(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    values, indices, axis_type = inputs
    axis = analysis.sizes.scalar(op.inputs[2])
    shapes = [analysis.sizes.dims(tensor) for tensor in op.inputs[:2]]
    if axis is None or not isinstance(axis_type, Free) or None in shapes:
        return mixed(op, "has an axis that is not known while tracing")
    batch_dims = op.get_attr("batch_dims")
    values_shape, indices_shape = shapes
    axis %= len(values_shape)  # type: ignore[arg-type]
    if batch_dims < 0:
        batch_dims += len(indices_shape)  # type: ignore[arg-type]
    analysis.sizes.set_dims(
        op.outputs[0],
        [
            *values_shape[:axis],  # type: ignore[index]
            *indices_shape[batch_dims:],  # type: ignore[index]
            *values_shape[axis + 1 :],  # type: ignore[index]
        ],
    )
    added = len(indices_shape) - batch_dims  # type: ignore[arg-type]
    if len(values_shape) == 1:  # type: ignore[arg-type]
        chosen = chosen_entries(analysis, *op.inputs[:2])
        if chosen is not None:
            return chosen
    if isinstance(values, Free) and isinstance(indices, Batched):
        if batch_dims:
            return mixed(op, "gathers from a constant per position")
        return indices.moved_to(axis + indices.axis)
    if isinstance(values, Batched) and values.axis == axis:
        return mixed(op, "gathers across examples", _ACROSS)
    if isinstance(values, Batched) and isinstance(indices, Free):
        if values.axis < batch_dims:
            return mixed(op, "gathers with a constant per position")
        moved = added - 1 if axis < values.axis else 0
        return values.moved_to(values.axis + moved)
    if isinstance(values, Batched) and values == indices:
        if values.axis < batch_dims:
            return values
    return mixed(op, "gathers across examples", _ACROSS)


@typing("OneHot")
def _one_hot(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    indices, *others = inputs
    if not isinstance(indices, Batched) or not all(
        isinstance(kind, Free) for kind in others
    ):
        return mixed(op, "takes its depth or values from example data")
    axis = op.get_attr("axis") % op.outputs[0].shape.rank
    return indices.moved_to(indices.axis + (axis <= indices.axis))


@typing("LookupTableFindV2")
def _table_find(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    _, keys, default = inputs
    if isinstance(keys, Batched) and isinstance(default, Free):
        return keys
    return mixed(op, "looks up a sum over examples")


@typing("UnsortedSegmentSum")
def _scatter(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    values, ids, count = inputs
    if op.inputs[0].shape.rank == 1:
        restored = restored_entries(analysis, *op.inputs)
        if restored is not None:
            rows = analysis.sizes.rows(restored.per_example)
            analysis.sizes.set_dims(op.outputs[0], [rows])
            return restored
    segments = analysis.sizes.value(op.inputs[2])
    if isinstance(ids, Free) and isinstance(count, Free) and segments:
        shared = _shared_segments(analysis, op, values, segments[0])
        if shared is not None:
            return shared
    if (
        not isinstance(values, Batched)
        or values != ids
        or values.axis != 0
        or op.inputs[1].shape.rank != 1
        or not isinstance(count, Free)
        or segments is None
    ):
        return mixed(op, "adds rows of different examples")
    within = within_rows(analysis, op.inputs[1], segments[0])
    if within is not None:
        rest = op.inputs[0].shape.as_list()[1:]
        analysis.sizes.set_dims(op.outputs[0], [segments[0], *rest])
        return within
    if isinstance(segments[0], int):
        # The dense gradient of a lookup: row ids[j] gets values[j].
        return SUMMED
    return mixed(op, "may add to rows of other examples", IN_RANGE)


def _shared_segments(
    analysis: Analysis, op: tf.Operation, values: Type, segments: Dim
) -> Batched | None:
    """Type of sums within every example, over places that hold no data.

    The gradient of gathering constant places along another axis than that of
    the examples. The ids number the first axes; those behind them, the
    example axis among them, stay as they are.
    """
    dims = analysis.sizes.dims(op.inputs[0])
    numbered = op.inputs[1].shape.rank
    if not isinstance(values, Batched) or dims is None or numbered is None:
        return None
    if values.axis < numbered or segments is None:
        return None
    analysis.sizes.set_dims(op.outputs[0], [segments, *dims[numbered:]])
    return values.moved_to(values.axis - numbered + 1)


@factoring("UnsortedSegmentSum")
def _scatter_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    values, ids, count = op.inputs
    rows = analysis.sizes.scalar(count)
    shape = (rows, *values.shape[1:])
    return row_factor(analysis, values, ids, shape, sparse=False)


def row_factor(
    analysis: Analysis,
    values: tf.Tensor,
    ids: tf.Tensor,
    table_shape: Sequence[int],
    sparse: bool,
) -> RowFactor:
    """The terms of a gradient that is given as rows and row ids."""
    kind = analysis.type(values)
    if (
        not isinstance(kind, Batched)
        or kind.axis != 0
        or kind != analysis.type(ids)
    ):
        raise ValueError("pairs rows and row ids of different examples")
    width = 1
    for size in table_shape[1:]:
        width *= size
    ids = example_major(analysis, ids, kind)
    values = example_major(analysis, values, kind)
    lookups = kind.per_example
    return RowFactor(
        tf.reshape(values, [analysis.batch_size, lookups, width]),
        tf.ensure_shape(ids, [None, lookups]),
        tuple(table_shape),
        sparse,
    )


def paired_rows(
    analysis: Analysis, values: tf.Tensor, ids: tf.Tensor
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Rows and row ids of each lookup, where several were joined.

    The tape joins the lookups of one table. Lookups of single examples can
    stay joined; a lookup that all examples share must be taken out first.
    """
    rows, numbers = _leaves(analysis, values), _leaves(analysis, ids)
    if len(rows) != len(numbers):
        return [(values, ids)]
    for pair in zip(rows, numbers, strict=True):
        sizes = [analysis.sizes.dims(tensor) for tensor in pair]
        if None in sizes or sizes[0][0] != sizes[1][0] or sizes[0][0] is None:  # type: ignore[index]
            return [(values, ids)]
    return list(zip(rows, numbers, strict=True))


def _leaves(analysis: Analysis, tensor: tf.Tensor) -> list[tf.Tensor]:
    """What a tensor was joined from, along axis 0."""
    op = tensor.op
    if (
        isinstance(analysis.type(tensor), Batched)
        or op.type != "ConcatV2"
        or analysis.sizes.scalar(op.inputs[-1]) != 0
    ):
        return [tensor]
    return [leaf for part in op.inputs[:-1] for leaf in _leaves(analysis, part)]


def check_shared_rows(
    values: tf.Tensor, ids: tf.Tensor, table_shape: Sequence[int]
) -> None:
    """Whether rows that all examples share have known sizes.

    Raises:
      ValueError: If they do not.
    """
    count = ids.shape[0] if ids.shape.rank == 1 else None
    if count is None or values.shape.as_list() != [count, *table_shape[1:]]:
        raise ValueError(
            f"has rows of shape {values.shape} for row ids of shape "
            f"{ids.shape}, which is not known well enough while tracing"
        )


def are_distinct(analysis: Analysis, ids: tf.Tensor) -> bool:
    """Whether row ids are a constant of the step in which none occurs twice."""
    value = constant(analysis, ids)
    return value is not None and np.unique(value).size == value.size
