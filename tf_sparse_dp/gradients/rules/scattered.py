"""Operations on the flat values of ragged and sparse features.

Axis 0 holds the rows of a partition. A row may meet rows of the same partition
at the same place, and what is free; no rule lets it move along axis 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_dp.gradients.dims import broadcast, multiply, product
from tf_sparse_dp.gradients.factors import Factor
from tf_sparse_dp.gradients.ragged_rows import summed_rows
from tf_sparse_dp.gradients.ragged_types import (
    Distinct,
    Indices,
    Kept,
    OfRows,
    Partition,
    Places,
    Pooled,
    RowIds,
    Scattered,
    Splits,
    SplitsEdge,
)
from tf_sparse_dp.gradients.rules.reductions import reduced_axes
from tf_sparse_dp.gradients.rules.registry import (
    RAGGED_TYPING,
    TYPING,
    TypingRule,
    mixed,
    ragged_factoring,
    ragged_typing,
)
from tf_sparse_dp.gradients.rules.slicing import slice_axes
from tf_sparse_dp.gradients.rules.structure import without_wildcard
from tf_sparse_dp.gradients.types import (
    SUMMED,
    Batched,
    DataSize,
    Dim,
    Free,
    Ragged,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

AS_NUMBERS = (
    "Where an example's values lie among those of the batch, and how many "
    "there are, depends on the other examples. Use row_lengths() for numbers, "
    "tf.gather and tf.reduce_sum over the ragged axis for values."
)
_OTHER_ROWS = (
    "Values of ragged features may be combined with values of the same "
    "feature, and of features of the same row lengths (with_values). Gather "
    "what there is once per example by value_rowids()."
)
# What is the same for each entry, seen as an elementwise operation.
_SAME_VALUE = frozenset(
    "Identity PreventGradient Snapshot StopGradient EnsureShape".split()
)
_MAPS = frozenset(
    "StringToHashBucket StringToHashBucketFast StringToHashBucketStrong "
    "StringLower StringUpper StringStrip StaticRegexReplace".split()
)


def ragged_rule(op: tf.Operation) -> TypingRule:
    """The rule for an operation that meets a ragged or sparse feature."""
    rule = RAGGED_TYPING.get(op.type)
    if rule is not None:
        return rule
    elementwise = {
        TYPING[name] for name in ("Exp", "Cast", "Pow", "Sub", "Mul")
    }
    if op.type in _MAPS | _SAME_VALUE or TYPING.get(op.type) in elementwise:
        return _elementwise
    return _unknown


def _unknown(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    if any(isinstance(kind, (Scattered, Distinct)) for kind in inputs):
        return mixed(op, "has no rule for ragged and sparse values", AS_NUMBERS)
    return mixed(op, "uses the rows of a ragged feature as numbers", AS_NUMBERS)


def _elementwise(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    ragged = [kind for kind in inputs if isinstance(kind, Ragged)]
    if len(inputs) == 1 and (
        op.type in _SAME_VALUE or _casts_exactly(op, ragged[0])
    ):
        analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
        return ragged[0]
    if not all(isinstance(kind, (Ragged, Free)) for kind in inputs):
        return mixed(op, "pairs single values with whole examples", _OTHER_ROWS)
    if all(isinstance(kind, Scattered) for kind in ragged):
        result: Type | None = _merged(analysis, ragged)
    elif all(isinstance(kind, Distinct) for kind in ragged):
        same = len({kind.unique for kind in ragged}) == 1  # type: ignore[attr-defined]
        result = ragged[0] if same else None
    else:
        return _on_partitions(analysis, op, inputs)
    if result is None:
        return mixed(op, "pairs values of different features", _OTHER_ROWS)
    shapes: list[Any] = [analysis.sizes.dims(tensor) for tensor in op.inputs]
    if None in shapes:
        return mixed(op, "has an input of unknown rank")
    rank = max(len(shape) for shape in shapes)
    if op.type == "Select" and any(len(shape) != rank for shape in shapes):
        return mixed(op, "selects rows by a vector", "Use tf.where.")
    dims = shapes[0]
    for kind, shape in zip(inputs, shapes, strict=True):
        if isinstance(kind, Free):
            if len(shape) == rank and shape[0] != 1:
                return mixed(op, "meets a constant on the axis of the values")
        elif len(shape) != rank:
            return mixed(op, "pairs rows with columns", _OTHER_ROWS)
        dims = broadcast(dims, shape)
    analysis.sizes.set_dims(op.outputs[0], [result.rows, *dims[1:]])  # type: ignore[union-attr]
    return result


def _casts_exactly(op: tf.Operation, kind: Ragged) -> bool:
    if op.type != "Cast":
        return False
    if isinstance(kind, (Scattered, Distinct)):
        return True
    before, after = op.inputs[0].dtype, op.outputs[0].dtype
    if isinstance(kind, Pooled):
        return before == after or (before.is_floating and after.is_floating)
    return after in (tf.int32, tf.int64)


def _merged(analysis: Analysis, kinds: Sequence[Any]) -> Scattered | None:
    """The type of rows at the same places; None if of other partitions."""
    first = kinds[0]
    for kind in kinds[1:]:
        if not analysis.same_rows(first.partition, kind.partition):
            return None
    return Scattered(first.partition)


def _on_partitions(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """The few operations on partitions that say what they give."""
    if op.type == "Sub":
        end, begin = inputs
        if isinstance(end, SplitsEdge) and isinstance(begin, SplitsEdge):
            if end.end and not begin.end and end.partition == begin.partition:
                return Batched(0)
    if isinstance(inputs[0], RowIds):
        if op.type == "Maximum" and _zeros_like_row_ids(analysis, op.inputs[1]):
            return inputs[0]
        if (
            op.type == "GreaterEqual"
            and analysis.sizes.scalar(op.inputs[1]) == 0
            and isinstance(inputs[1], Free)
        ):
            return Scattered(inputs[0].partition)
        if op.type == "ZerosLike":
            return Scattered(inputs[0].partition)
    return mixed(op, "uses the rows of a ragged feature as numbers", AS_NUMBERS)


def _zeros_like_row_ids(analysis: Analysis, tensor: tf.Tensor) -> bool:
    """Whether a tensor is zeros in the place of row ids, as gradients use."""
    return tensor.op.type == "ZerosLike" and isinstance(
        analysis.type(tensor.op.inputs[0]), RowIds
    )


@ragged_typing("IdentityN")
def _identities(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> list[Type]:
    return list(inputs)


@ragged_typing("BroadcastGradientArgs")
def _axes_of_shapes(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    # Known where a sum uses it; whether there is one row is not free.
    return mixed(op, "depends on how many values each example has", AS_NUMBERS)


@ragged_typing("Reshape")
def _reshape(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, shape = inputs
    before = analysis.sizes.dims(op.inputs[0])
    after = analysis.sizes.value(op.inputs[1])
    if not isinstance(kind, Ragged) or not isinstance(shape, Free):
        return mixed(op, "takes its shape from example data", AS_NUMBERS)
    if before is None or after is None:
        return mixed(op, "has a shape that is not known while tracing")
    after = without_wildcard(before, after, op)
    width = product(after[1:])
    if not after or after[0] != before[0] or width != product(before[1:]):
        return mixed(op, "moves values to other rows", AS_NUMBERS)
    if not isinstance(width, int):
        return mixed(op, "has a shape that is not known while tracing")
    if isinstance(kind, Splits | SplitsEdge | RowIds | Places | Kept | Indices):
        if len(after) != (2 if isinstance(kind, Indices) else 1):
            return mixed(op, "gives row numbers another shape", AS_NUMBERS)
    analysis.sizes.set_dims(op.outputs[0], after)
    return kind


@ragged_typing("ExpandDims")
def _expand(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, axis_type = inputs
    axis = analysis.sizes.scalar(op.inputs[1])
    dims = analysis.sizes.dims(op.inputs[0])
    if not isinstance(kind, Scattered | Distinct) or axis is None:
        return _unknown(analysis, op, inputs)
    if not isinstance(axis_type, Free) or dims is None:
        return mixed(op, "has an axis that is not known while tracing")
    axis %= len(dims) + 1
    if axis == 0:
        return mixed(op, "moves the axis of the values", AS_NUMBERS)
    analysis.sizes.set_dims(op.outputs[0], [*dims[:axis], 1, *dims[axis:]])
    return kind


@ragged_typing("Squeeze")
def _squeeze(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind = inputs[0]
    dims = analysis.sizes.dims(op.inputs[0])
    if not isinstance(kind, Scattered | Distinct | Kept) or dims is None:
        return _unknown(analysis, op, inputs)
    axes = [axis % len(dims) for axis in op.get_attr("squeeze_dims")]
    if 0 in axes or not axes:
        return mixed(
            op,
            "may remove the axis of the values",
            "Name the axis: tf.squeeze(x, axis=-1).",
        )
    analysis.sizes.set_dims(
        op.outputs[0], [d for a, d in enumerate(dims) if a not in axes]
    )
    return kind


@ragged_typing("StridedSlice")
def _strided_slice(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, *bounds = inputs
    rank = op.inputs[0].shape.rank
    if rank is None or not all(isinstance(bound, Free) for bound in bounds):
        return mixed(op, "takes its bounds from example data", AS_NUMBERS)
    if isinstance(kind, Splits):
        return _edge(analysis, op, kind)
    if isinstance(kind, Indices):
        return _column(analysis, op, kind)
    if not isinstance(kind, Scattered):
        return _unknown(analysis, op, inputs)
    if slice_axes(analysis, op, 1, rank).get(0) != 0:
        return mixed(op, "takes a part of the values of the batch", AS_NUMBERS)
    return kind


def _edge(analysis: Analysis, op: tf.Operation, kind: Splits) -> Type:
    """splits[1:] or splits[:-1]."""
    begin, end, stride = (analysis.sizes.ints(x) for x in op.inputs[1:4])
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    whole = not any(op.get_attr(name) for name in others)
    if stride == [1] and whole:
        open_begin, open_end = (
            op.get_attr("begin_mask"),
            op.get_attr("end_mask"),
        )
        if begin == [1] and not open_begin and open_end:
            return SplitsEdge(kind.partition, end=True)
        if (open_begin or begin == [0]) and end == [-1] and not open_end:
            return SplitsEdge(kind.partition, end=False)
    return mixed(op, "uses row splits as numbers", AS_NUMBERS)


def _column(analysis: Analysis, op: tf.Operation, kind: Indices) -> Type:
    """indices[:, k]."""
    begin, strides = (analysis.sizes.ints(op.inputs[i]) for i in (1, 3))
    if (
        begin is not None
        and strides is not None
        and len(begin) == 2
        and not op.get_attr("ellipsis_mask")
        and not op.get_attr("new_axis_mask")
        and op.get_attr("shrink_axis_mask") == 2
        and slice_axes(analysis, op, 1, 2) == {0: 0}
        and strides[1] == 1
        and not op.get_attr("begin_mask") & 2
        and begin[1] in (0, 1)
    ):
        if begin[1] == 0:
            return RowIds(kind.partition)
        return Scattered(kind.partition)
    return mixed(op, "uses a sparse tensor's indices as numbers", AS_NUMBERS)


@ragged_typing("StridedSliceGrad")
def _strided_slice_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind = inputs[4]
    dims = analysis.sizes.value(op.inputs[0])
    if not isinstance(kind, Scattered) or dims is None:
        return _unknown(analysis, op, inputs)
    if not all(isinstance(x, Free) for x in inputs[:4]):
        return mixed(op, "takes its bounds from example data", AS_NUMBERS)
    axes = slice_axes(analysis, op, 1, len(dims))
    if axes.get(0) != 0 or dims[0] != kind.rows:
        return mixed(op, "takes a part of the values of the batch", AS_NUMBERS)
    analysis.sizes.set_dims(op.outputs[0], dims)
    return kind


@ragged_typing("Slice")
def _slice(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind = inputs[0]
    begin, size = (analysis.sizes.value(x) for x in op.inputs[1:])
    if not isinstance(kind, Scattered) or begin is None or size is None:
        return _unknown(analysis, op, inputs)
    if not all(isinstance(x, Free) for x in inputs[1:]):
        return mixed(op, "takes its bounds from example data", AS_NUMBERS)
    if begin[0] != 0 or size[0] not in (-1, kind.rows):
        return mixed(op, "takes a part of the values of the batch", AS_NUMBERS)
    return kind


@ragged_typing("Fill", "Tile", "BroadcastTo")
def _spread(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """Rows that are all alike belong to any partition."""
    place = 0 if op.type == "Fill" else 1
    value, shape = inputs[1 - place], inputs[place]
    entries = analysis.sizes.value(op.inputs[place])
    before = analysis.sizes.dims(op.inputs[1 - place])
    if not isinstance(shape, Free) or entries is None or before is None:
        return mixed(op, "takes its shape from example data", AS_NUMBERS)
    dims = list(entries)
    if op.type == "Tile":
        dims = [multiply(a, b) for a, b in zip(before, entries, strict=True)]
    if not dims or not all(isinstance(dim, int) for dim in dims[1:]):
        return mixed(op, "has a shape that is not known while tracing")
    if isinstance(value, Scattered):
        # Rows stay where they are; only their other axes are repeated.
        alone = op.type != "Tile" or entries[0] == 1
        if len(before) != len(dims) or dims[0] != value.rows or not alone:
            return mixed(op, "repeats values along their axis", AS_NUMBERS)
        analysis.sizes.set_dims(op.outputs[0], dims)
        return value
    size = dims[0]
    if not isinstance(value, Free) or not isinstance(size, DataSize):
        return mixed(op, "spreads example data over values", AS_NUMBERS)
    if not isinstance(size.of, Partition) or size.times != 1:
        return mixed(op, "takes its shape from example data", AS_NUMBERS)
    if len(before) == len(dims) and before[0] != 1:
        return mixed(op, "meets a constant on the axis of the values")
    analysis.sizes.set_dims(op.outputs[0], dims)
    return Scattered(size.of)


@ragged_typing("ConcatV2")
def _concat(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    *kinds, axis_type = inputs
    axis = analysis.sizes.scalar(op.inputs[-1])
    rank = op.outputs[0].shape.rank
    if not isinstance(axis_type, Free) or axis is None or rank is None:
        return mixed(op, "has an axis that is not known while tracing")
    if axis % rank:
        if all(isinstance(kind, Scattered) for kind in kinds):
            result = _merged(analysis, kinds)
            if result is not None:
                return result
        return mixed(op, "joins values of different features", _OTHER_ROWS)
    return mixed(op, "joins values of different examples", _OTHER_ROWS)


@ragged_typing("MatMul")
def _product(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    left, right = inputs
    flipped = op.get_attr("transpose_a"), op.get_attr("transpose_b")
    if isinstance(left, Scattered) and isinstance(right, Free):
        if not flipped[0]:
            return left
    if isinstance(left, Scattered) and isinstance(right, Scattered):
        if flipped == (True, False):
            if analysis.same_rows(left.partition, right.partition):
                return SUMMED
    return mixed(op, "multiplies values of different examples", _OTHER_ROWS)


@ragged_factoring("MatMul")
def _product_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    left, right = op.inputs
    kind: Any = analysis.type(left)
    parts = left[:, :, None] * right[:, None, :]
    return _summed(analysis, parts, kind.partition)


@ragged_typing("BiasAdd")
def _bias_add(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, bias = inputs
    rank = op.inputs[0].shape.rank
    if isinstance(value, Scattered) and isinstance(bias, Free):
        last = op.get_attr("data_format") == b"NHWC"
        if rank is not None and rank > 1 and (last or rank == 2):
            analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
            return value
    return _unknown(analysis, op, inputs)


@ragged_typing("BiasAddGrad")
def _bias_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    if isinstance(inputs[0], Scattered) and op.inputs[0].shape.rank == 2:
        return SUMMED
    return _unknown(analysis, op, inputs)


@ragged_factoring("BiasAddGrad")
def _bias_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    kind: Any = analysis.type(op.inputs[0])
    return _summed(analysis, op.inputs[0], kind.partition)


@ragged_typing("Softmax", "LogSoftmax")
def _softmax(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    rank = op.inputs[0].shape.rank
    if isinstance(inputs[0], Scattered) and rank is not None and rank > 1:
        return inputs[0]
    return mixed(op, "runs over the values of all examples", AS_NUMBERS)


@ragged_typing("LookupTableFindV2")
def _table_find(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    handle, keys, default = inputs
    if isinstance(keys, Scattered | Distinct):
        if isinstance(handle, Free) and isinstance(default, Free):
            return keys
    return _unknown(analysis, op, inputs)


@ragged_typing("Sum", "Mean", "Max", "Min", "Prod", "All", "Any")
def _reduction(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, axes_type = inputs
    axes = reduced_axes(analysis, op)
    dims = analysis.sizes.dims(op.inputs[0])
    if not isinstance(value, Scattered | Distinct):
        return _unknown(analysis, op, inputs)
    if not isinstance(axes_type, Free) or axes is None or dims is None:
        return mixed(op, "has axes that are not known while tracing")
    keep = op.get_attr("keep_dims")
    kept: list[Dim] = [
        1 if axis in axes else dim
        for axis, dim in enumerate(dims)
        if keep or axis not in axes
    ]
    analysis.sizes.set_dims(op.outputs[0], kept)
    if 0 not in axes:
        return value
    if op.type == "Sum" and isinstance(value, Scattered):
        return SUMMED
    return mixed(op, "runs over the values of all examples", AS_NUMBERS)


@ragged_factoring("Sum")
def _reduction_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    tensor = op.inputs[0]
    kind: Any = analysis.type(tensor)
    axes = reduced_axes(analysis, op) or []
    if not isinstance(kind, OfRows) or 0 not in axes:
        raise ValueError("sums something that has no examples")
    dims = analysis.sizes.dims(tensor) or []
    others = [axis for axis in axes if axis]
    if not all(isinstance(dim, int) for dim in dims[1:]):
        raise ValueError("sums over an axis of unknown size")
    factor: Factor = _summed(analysis, tensor, kind.partition, others)
    if op.get_attr("keep_dims"):
        kept = [1 if a in axes else int(dims[a]) for a in range(len(dims))]  # type: ignore[arg-type]
        factor = factor.reshaped(kept)
    return factor


def _summed(
    analysis: Analysis,
    rows: tf.Tensor,
    partition: Partition,
    axes: Sequence[int] = (),
) -> Factor:
    batch_size = tf.cast(analysis.batch_size, tf.int64)
    return summed_rows(rows, partition.examples(), batch_size, axes)
