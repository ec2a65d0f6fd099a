"""From one form of ragged and sparse features to another.

Row numbers out of row splits, rows that a mask keeps, examples without values
that get a default, and tensors of a fixed length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.ragged_types import (
    Distinct,
    Indices,
    Kept,
    OfRows,
    Partition,
    Places,
    RowIds,
    Scattered,
    Splits,
    SplitsEdge,
)
from tf_sparse_dp.gradients.rules.registry import (
    mixed,
    ragged_typing,
    recognising,
)
from tf_sparse_dp.gradients.rules.scattered import AS_NUMBERS
from tf_sparse_dp.gradients.sizes import key
from tf_sparse_dp.gradients.types import (
    Batched,
    Block,
    DataSize,
    Dim,
    Free,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_ACROSS = (
    "Gather from a table of weights, or by value_rowids() what there is once "
    "per example."
)
_LENGTH = (
    "The longest example of the batch would decide the length. Give it: "
    "to_tensor(shape=[None, length]), or a constant dense_shape[1]."
)
_ONE_ROW_EACH = (Block(),)


@ragged_typing("GatherV2")
def _gather(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    values, indices, axis_type = inputs
    axis = analysis.sizes.scalar(op.inputs[2])
    shapes = [analysis.sizes.dims(tensor) for tensor in op.inputs[:2]]
    if axis is None or not isinstance(axis_type, Free) or None in shapes:
        return mixed(op, "has an axis that is not known while tracing")
    table, rows = shapes
    axis %= len(table)  # type: ignore[arg-type]
    if axis != 0 or op.get_attr("batch_dims"):
        if isinstance(values, Scattered) and isinstance(indices, Free):
            if axis != 0 and not op.get_attr("batch_dims"):
                return values
        return mixed(op, "gathers across examples", _ACROSS)
    result = _gathered(analysis, values, indices)
    if result is None:
        return mixed(op, "gathers across examples", _ACROSS)
    analysis.sizes.set_dims(op.outputs[0], [*rows, *table[1:]])  # type: ignore[index,misc]
    return result


def _gathered(
    analysis: Analysis, values: Type, indices: Type
) -> Scattered | Distinct | OfRows | None:
    """The type of values[indices]; None if rows of others may come along."""
    if isinstance(values, Free):
        return indices if isinstance(indices, Scattered | Distinct) else None
    if isinstance(values, Batched):
        per_example = values == Batched(0, _ONE_ROW_EACH)
        if per_example and isinstance(indices, RowIds):
            return Scattered(indices.partition)
        return None
    if isinstance(values, OfRows) and isinstance(indices, Kept):
        if analysis.same_rows(indices.source, values.partition):
            return dataclasses.replace(values, partition=indices.partition)
        return None
    if isinstance(values, Distinct) and isinstance(indices, Places):
        if values.unique == indices.unique:
            return Scattered(indices.partition)
    return None


@ragged_typing("ResourceGather")
def _resource_gather(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    table, indices = inputs
    if not isinstance(table, Free) or op.get_attr("batch_dims"):
        return mixed(op, "gathers across examples", _ACROSS)
    if not isinstance(indices, Scattered | Distinct):
        return mixed(op, "looks up row numbers", AS_NUMBERS)
    dims = analysis.sizes.dims(op.inputs[1])
    if dims is not None:
        row = op.outputs[0].shape[len(dims) :]
        analysis.sizes.set_dims(op.outputs[0], [*dims, *row])
    return indices


@ragged_typing("GatherNd")
def _gather_entries(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """The gradient of making a sparse tensor dense."""
    values, indices = inputs
    if isinstance(indices, Indices) and values == Batched(0, _ONE_ROW_EACH):
        return Scattered(indices.partition)
    return mixed(op, "gathers across examples", _ACROSS)


@ragged_typing("Where")
def _where(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    mask, kind = op.inputs[0], inputs[0]
    if not isinstance(kind, Scattered) or mask.shape.rank != 1:
        return mixed(op, "gives positions among all values", AS_NUMBERS)
    while mask.op.type in ("Identity", "Reshape"):
        mask = mask.op.inputs[0]
        if mask.shape.rank != 1:
            return mixed(op, "gives positions among all values", AS_NUMBERS)
    source = kind.partition
    kept = Partition(
        lambda: tf.gather(source.examples(), tf.reshape(op.outputs[0], [-1])),
        parent=source,
        derivation=("kept", *map(str, key(mask))),
    )
    return Kept(source, kept)


@ragged_typing("SparseFillEmptyRows")
def _fill_sparse(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type | list[Type]:
    indices, values, shape, default = inputs
    dims = analysis.sizes.value(op.inputs[2])
    if (
        not isinstance(indices, Indices)
        or not isinstance(values, Scattered)
        or not isinstance(shape, Free)
        or not isinstance(default, Free)
        or dims is None
        or dims[0] != analysis.sizes.rows(1)
        or not analysis.same_rows(indices.partition, values.partition)
    ):
        return mixed(op, "has a form that is not understood")
    filled = _filled(indices.partition, op.outputs[0][:, 0])
    return [
        Indices(filled),
        Scattered(filled),
        Batched(0),
        mixed(op, "gives positions among all values", AS_NUMBERS),
    ]


@ragged_typing("RaggedFillEmptyRows")
def _fill_ragged(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type | list[Type]:
    rows, values, count, default = inputs
    if (
        not isinstance(rows, RowIds)
        or not isinstance(values, Scattered)
        or not isinstance(count, Free)
        or not isinstance(default, Free)
        or analysis.sizes.value(op.inputs[2]) != [analysis.sizes.rows(1)]
        or not analysis.same_rows(rows.partition, values.partition)
    ):
        return mixed(op, "has a form that is not understood")
    filled = _filled(rows.partition, op.outputs[0])
    return [
        RowIds(filled),
        Scattered(filled),
        Batched(0),
        mixed(op, "gives positions among all values", AS_NUMBERS),
    ]


def _filled(partition: Partition, examples: tf.Tensor) -> Partition:
    """An example without rows gets one; the others' rows stay in order."""
    return Partition(
        lambda: examples, parent=partition, derivation=("filled",), full=True
    )


@ragged_typing("SparseReshape")
def _sparse_reshape(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type | list[Type]:
    indices, before, after = inputs
    dims, new = (analysis.sizes.value(x) for x in op.inputs[1:])
    if not isinstance(indices, Indices) or not (
        isinstance(before, Free) and isinstance(after, Free)
    ):
        return mixed(op, "has a form that is not understood")
    # Two sizes that are not known need not be equal.
    if dims is None or len(dims) != 2 or None in dims or dims != new:
        return mixed(
            op,
            "moves values to other examples",
            "Keep sparse tensors at [examples, columns].",
        )
    analysis.sizes.set_value(op.outputs[1], dims)
    return [indices, mixed(op, "gives the longest length", _LENGTH)]


@ragged_typing("RaggedTensorToSparse")
def _to_sparse(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type | list[Type]:
    *splits, values = inputs
    if (
        len(splits) != 1
        or not isinstance(splits[0], Splits)
        or not isinstance(values, Scattered)
        or not analysis.same_rows(splits[0].partition, values.partition)
        or op.inputs[1].shape.rank != 1
    ):
        return mixed(op, "has a form that is not understood")
    longest = DataSize(op.outputs[2].name)
    analysis.sizes.set_value(op.outputs[2], [analysis.sizes.rows(1), longest])
    return [
        Indices(values.partition),
        values,
        mixed(op, "gives the longest length", _LENGTH),
    ]


@ragged_typing("RaggedTensorToTensor")
def _to_tensor(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    shape, values, default, *splits = inputs
    if (
        op.get_attr("row_partition_types") != [b"ROW_SPLITS"]
        or not isinstance(shape, Free)
        or not isinstance(default, Free)
        or not isinstance(splits[0], Splits)
        or not isinstance(values, Scattered)
        or not analysis.same_rows(splits[0].partition, values.partition)
    ):
        return mixed(op, "has a form that is not understood")
    return _of_length(analysis, op, analysis.sizes.value(op.inputs[0]))


@ragged_typing("SparseToDense")
def _to_dense(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    indices, shape, values, default = inputs
    if (
        not isinstance(indices, Indices)
        or not isinstance(shape, Free)
        or not isinstance(default, Free)
        or not isinstance(values, Scattered)
        or not analysis.same_rows(indices.partition, values.partition)
    ):
        return mixed(op, "has a form that is not understood")
    if not op.get_attr("validate_indices"):
        # A column beyond the last is the next example's first, on a GPU.
        return mixed(
            op,
            "does not check that indices are in range",
            "Leave validate_indices at True.",
        )
    return _of_length(analysis, op, analysis.sizes.value(op.inputs[1]))


def _of_length(
    analysis: Analysis, op: tf.Operation, dims: list[Dim] | None
) -> Type:
    """One row of public length for each example."""
    rows = analysis.sizes.rows(1)
    if dims is None or len(dims) < 2 or dims[0] not in (-1, rows):
        return mixed(op, "has a length that the batch decides", _LENGTH)
    if not isinstance(dims[1], int) or dims[1] < 0:
        return mixed(op, "has a length that the batch decides", _LENGTH)
    width = op.outputs[0].shape.as_list()[2:]
    if len(width) != len(dims) - 2 or None in width:
        return mixed(op, "has a shape that is not known while tracing")
    analysis.sizes.set_dims(op.outputs[0], [rows, dims[1], *width])
    return Batched(0)


# What TensorFlow writes out in many operations, none of which keeps to rows.


@recognising("GatherV2")
def _repeated(analysis: Analysis, op: tf.Operation) -> Type | None:
    """tf.repeat(x, row lengths): x once for each of an example's values.

    As Σ over examples of "the first `length` of `longest` copies": a mask over
    [B, longest], flattened, chooses from copies that are laid out alike.
    """
    chosen = _masked(analysis, op)
    if chosen is None:
        return None
    copies, mask = chosen
    if copies.op.type != "Tile" or mask.op.type != "Less":
        return None
    once, counts = copies.op.inputs
    if once.op.type != "ExpandDims" or counts.op.type != "Pack":
        return None
    if len(counts.op.inputs) < 2 or not _ones(
        analysis, [counts.op.inputs[0], *counts.op.inputs[2:]]
    ):
        return None
    longest = counts.op.inputs[1]
    value, axis = once.op.inputs
    if analysis.sizes.scalar(axis) != 1 or value.shape.rank is None:
        return None
    positions, lengths = mask.op.inputs
    if positions.op.type != "Range" or not _counts_up(analysis, positions.op):
        return None
    if key(positions.op.inputs[1]) != key(longest):
        return None
    lengths = _uncast(lengths)
    if lengths.op.type != "ExpandDims" or analysis.sizes.scalar(
        lengths.op.inputs[1]
    ) not in (1, -1):
        return None
    lengths = lengths.op.inputs[0]
    if lengths.shape.rank != 1 or not _is_longest(analysis, longest, lengths):
        return None
    partition = _partition_of_lengths(analysis, lengths)
    if partition is None:
        return None
    if _numbers_examples(analysis, value):
        return RowIds(partition)
    if analysis.type(value) == Batched(0, _ONE_ROW_EACH):
        return Scattered(partition)
    return None


@recognising("UnsortedSegmentSum")
def _from_tensor(analysis: Analysis, op: tf.Operation) -> Type | None:
    """The gradient of `to_tensor` of a fixed length, back to flat values."""
    values, places, count = op.inputs
    rows, numbers = _masked(analysis, values.op), _masked(analysis, places.op)
    if rows is None or numbers is None or key(rows[1]) != key(numbers[1]):
        return None
    gradient, mask, table = rows[0], rows[1], numbers[0]
    if mask.op.type != "NotEqual" or key(mask.op.inputs[0]) != key(table):
        return None
    if analysis.sizes.scalar(mask.op.inputs[1]) != -1:
        return None
    if table.op.type != "RaggedTensorToTensor":
        return None
    if table.op.get_attr("row_partition_types") != [b"ROW_SPLITS"]:
        return None
    shape, numbered, absent, splits = table.op.inputs
    kind = analysis.type(splits)
    dims = analysis.sizes.value(shape)
    if not isinstance(kind, Splits) or dims is None or len(dims) != 2:
        return None
    if numbered.op.type != "Range" or not _counts_up(analysis, numbered.op):
        return None
    size = [DataSize(kind.partition)]
    if analysis.sizes.value(numbered.op.inputs[1]) != size:
        return None
    if analysis.sizes.value(count) != size:
        return None
    if analysis.sizes.scalar(absent) != -1:
        return None
    there = analysis.sizes.dims(gradient)
    if analysis.type(gradient) != Batched(0, _ONE_ROW_EACH) or there is None:
        return None
    if dims[0] not in (-1, there[0]) or dims[1] != there[1]:
        return None
    if not isinstance(dims[1], int):
        return None
    analysis.sizes.set_dims(op.outputs[0], [*size, *there[2:]])
    return Scattered(kind.partition)


def _masked(
    analysis: Analysis, op: tf.Operation
) -> tuple[tf.Tensor, tf.Tensor] | None:
    """(x, mask) if an operation is tf.boolean_mask(x, mask) over two axes."""
    if op.type == "Reshape":  # To the shape that it has.
        if op.inputs[0].op.type != "GatherV2":
            return None
        rank = op.outputs[0].shape.rank
        if rank is None or op.inputs[0].shape.rank != rank:
            return None
        if op.inputs[0].shape[1:] != op.outputs[0].shape[1:]:
            return None
        if not op.outputs[0].shape[1:].is_fully_defined():
            return None
        op = op.inputs[0].op
    if op.type != "GatherV2" or op.get_attr("batch_dims"):
        return None
    flat, positions, axis = op.inputs
    if analysis.sizes.scalar(axis) != 0 or flat.op.type != "Reshape":
        return None
    if positions.op.type != "Squeeze" or positions.shape.rank != 1:
        return None
    where = positions.op.inputs[0].op
    if where.type != "Where" or where.inputs[0].op.type != "Reshape":
        return None
    values, mask = flat.op.inputs[0], where.inputs[0].op.inputs[0]
    if where.inputs[0].shape.rank != 1 or mask.shape.rank != 2:
        return None
    if values.shape.rank is None or values.shape.rank != flat.shape.rank + 1:
        return None
    rest = values.shape[2:]
    # Given the rest, the two first axes can only have become one.
    if not rest.is_fully_defined() or flat.shape[1:] != rest:
        return None
    if 0 in rest:
        return None
    return values, mask


def _counts_up(analysis: Analysis, op: tf.Operation) -> bool:
    """Whether a range runs from 0 by 1."""
    start, _, step = op.inputs
    sizes = analysis.sizes
    return sizes.scalar(start) == 0 and sizes.scalar(step) == 1


def _ones(analysis: Analysis, tensors: Sequence[tf.Tensor]) -> bool:
    return all(analysis.sizes.scalar(tensor) == 1 for tensor in tensors)


def _uncast(tensor: tf.Tensor) -> tf.Tensor:
    """What an integer was before casts that keep it."""
    while tensor.op.type in ("Identity", "Cast") and (
        tensor.dtype in (tf.int32, tf.int64)
        and tensor.op.inputs[0].dtype in (tf.int32, tf.int64)
    ):
        tensor = tensor.op.inputs[0]
    return tensor


def _is_longest(
    analysis: Analysis, tensor: tf.Tensor, lengths: tf.Tensor
) -> bool:
    """Whether a tensor is max(0, the largest of all lengths)."""
    tensor = _uncast(tensor)
    if tensor.op.type != "Maximum":
        return False
    zero, largest = tensor.op.inputs
    if analysis.sizes.scalar(zero) != 0 or largest.op.type != "Max":
        return False
    if analysis.sizes.ints(largest.op.inputs[1]) not in ([0], [-1]):
        return False
    return key(_uncast(largest.op.inputs[0])) == key(_uncast(lengths))


def _numbers_examples(analysis: Analysis, tensor: tf.Tensor) -> bool:
    """Whether a tensor is range(B)."""
    if tensor.op.type != "Range" or not _counts_up(analysis, tensor.op):
        return False
    count = analysis.sizes.value(tensor.op.inputs[1])
    return count == [analysis.sizes.rows(1)]


def _partition_of_lengths(
    analysis: Analysis, tensor: tf.Tensor
) -> Partition | None:
    """The partition whose row lengths a tensor holds."""
    tensor = _uncast(tensor)
    if tensor.op.type == "BroadcastTo":
        tensor, shape = tensor.op.inputs
        if analysis.sizes.value(shape) != [analysis.sizes.rows(1)]:
            return None
        tensor = _uncast(tensor)
    if tensor.op.type != "Sub":
        return None
    end, begin = (analysis.type(x) for x in tensor.op.inputs)
    if not isinstance(end, SplitsEdge) or not isinstance(begin, SplitsEdge):
        return None
    if not end.end or begin.end or end.partition != begin.partition:
        return None
    return end.partition
