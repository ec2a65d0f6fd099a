"""Sums over each example's values, and the terms of ragged lookups.

`tf.nn.embedding_lookup_sparse` reads each distinct id of the batch once. What
it reads is a function of the id, so that going back from ids to lookups gives
every lookup its own row again; and the gradient of a row that several examples
read is taken apart into the lookups that it was added up from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor
from tf_sparse_dp.gradients.ragged_rows import RaggedRowFactor
from tf_sparse_dp.gradients.ragged_types import (
    Distinct,
    Indices,
    Kept,
    Partition,
    Places,
    Pooled,
    RowIds,
    Scattered,
)
from tf_sparse_dp.gradients.rules.lookups import row_factor
from tf_sparse_dp.gradients.rules.registry import (
    mixed,
    ragged_factoring,
    ragged_typing,
)
from tf_sparse_dp.gradients.rules.scattered import AS_NUMBERS
from tf_sparse_dp.gradients.sizes import key
from tf_sparse_dp.gradients.types import (
    SUMMED,
    Batched,
    DataSize,
    Free,
    Ragged,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_OTHER_SEGMENTS = (
    "Sum an example's own values: tf.reduce_sum(x, axis=1) of a RaggedTensor, "
    "or segments of its value_rowids()."
)
_SPARSE = ("Sum", "Mean", "SqrtN")
_SPARSE_SUMS = tuple(f"SparseSegment{name}" for name in _SPARSE)
_COUNTED_SUMS = tuple(f"{name}WithNumSegments" for name in _SPARSE_SUMS)
_SPARSE_GRADIENTS = tuple(f"{name}Grad" for name in _SPARSE_SUMS)


@ragged_typing("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin")
def _sorted_segments(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    values, rows = inputs
    if not isinstance(values, Scattered) or not isinstance(rows, RowIds):
        return mixed(op, "adds values of different examples", _OTHER_SEGMENTS)
    if not analysis.same_rows(values.partition, rows.partition):
        return mixed(op, "adds values of different examples", _OTHER_SEGMENTS)
    return _one_row_each(analysis, op, rows.partition)


@ragged_typing(*_SPARSE_SUMS, *_COUNTED_SUMS)
def _gathered_segments(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    table, places, rows, *count = inputs
    if not isinstance(rows, RowIds) or not _looks_up(table, places):
        return mixed(op, "adds values of different examples", _OTHER_SEGMENTS)
    if not analysis.same_rows(places.partition, rows.partition):  # type: ignore[union-attr]
        return mixed(op, "adds values of different examples", _OTHER_SEGMENTS)
    if not count:
        return _one_row_each(analysis, op, rows.partition)
    if not isinstance(count[0], Free) or not _is_batch(analysis, op.inputs[3]):
        return mixed(op, "has other segments than examples", _OTHER_SEGMENTS)
    return Batched(0)


def _looks_up(table: Type, places: Type) -> bool:
    if isinstance(table, Distinct) and isinstance(places, Places):
        return table.unique == places.unique
    return isinstance(table, Free) and isinstance(places, Scattered)


def _is_batch(analysis: Analysis, count: tf.Tensor) -> bool:
    return analysis.sizes.value(count) == [analysis.sizes.rows(1)]


def _one_row_each(
    analysis: Analysis, op: tf.Operation, partition: Partition
) -> Type:
    """Segments end with the last row: examples without rows may be missing."""
    if not partition.full:
        analysis.requirements.append(
            lambda: tf.shape(op.outputs[0])[0] == analysis.batch_size
        )
    return Batched(0)


@ragged_typing(
    "UnsortedSegmentSum",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentProd",
)
def _segments(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    values, ids, count = inputs
    rows = analysis.sizes.scalar(op.inputs[2])
    if not isinstance(count, Free) or op.inputs[1].shape.rank != 1:
        return mixed(op, "has a form that is not understood")
    if isinstance(values, Scattered) and isinstance(ids, RowIds):
        if _is_batch(analysis, op.inputs[2]):
            if analysis.same_rows(values.partition, ids.partition):
                return Batched(0)
    elif op.type != "UnsortedSegmentSum":
        pass
    elif isinstance(values, Scattered) and isinstance(ids, Places):
        size = [DataSize(ids.unique)]
        if analysis.sizes.value(op.inputs[2]) == size:
            if analysis.same_rows(values.partition, ids.partition):
                return Pooled(ids.unique, ids.partition, op.name)
    elif isinstance(values, Scattered) and isinstance(ids, Kept):
        size = [DataSize(ids.source)]
        if analysis.sizes.value(op.inputs[2]) == size:
            if analysis.same_rows(values.partition, ids.partition):
                return Scattered(ids.source)
    elif rows is not None and _are_lookups(analysis, values, ids):
        return SUMMED  # The dense gradient of a lookup.
    return mixed(op, "adds values of different examples", _OTHER_SEGMENTS)


@ragged_typing(*_SPARSE_GRADIENTS)
def _gradient_of_segments(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    gradient, places, rows, count = inputs
    if gradient != Batched(0) or not isinstance(rows, RowIds):
        return mixed(op, "adds values of different examples", _OTHER_SEGMENTS)
    if not isinstance(count, Free) or not isinstance(
        places, Places | Scattered
    ):
        return mixed(op, "has a form that is not understood")
    if not analysis.same_rows(places.partition, rows.partition):
        return mixed(op, "adds values of different examples", _OTHER_SEGMENTS)
    size = analysis.sizes.value(op.inputs[3])
    if isinstance(places, Places):
        if size == [DataSize(places.unique)]:
            return Pooled(places.unique, rows.partition, op.name)
    elif analysis.sizes.scalar(op.inputs[3]) is not None:
        return SUMMED
    return mixed(op, "has a shape that is not known while tracing")


@ragged_typing("Unique")
def _unique(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type | list[Type]:
    ids = inputs[0]
    if not isinstance(ids, Scattered) or op.inputs[0].shape.rank != 1:
        return mixed(op, "compares row numbers", AS_NUMBERS)
    return [Distinct(op.name, ids.partition), Places(op.name, ids.partition)]


@ragged_typing("SparseTensorDenseMatMul")
def _sparse_product(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    indices, values, shape, dense = inputs
    dims = analysis.sizes.value(op.inputs[2])
    if (
        not isinstance(indices, Indices)
        or not isinstance(values, Scattered)
        or not isinstance(shape, Free)
        or dims is None
        or dims[0] != analysis.sizes.rows(1)
        or op.get_attr("adjoint_b")
        or not analysis.same_rows(indices.partition, values.partition)
    ):
        return mixed(op, "has a form that is not understood")
    if op.get_attr("adjoint_a"):
        return SUMMED if dense == Batched(0) else _strange(op)
    return Batched(0) if isinstance(dense, Free) else _strange(op)


def _strange(op: tf.Operation) -> Type:
    return mixed(op, "multiplies values of different examples", AS_NUMBERS)


@ragged_factoring("SparseTensorDenseMatMul")
def _sparse_product_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    indices, values, _, gradient = op.inputs
    kind: Any = analysis.type(values)
    rows = op.outputs[0].shape[0]
    if rows is None:
        rows = _kernel_rows(op)
    weights = tf.cast(values, gradient.dtype)[:, None]
    return _rows(
        analysis,
        tf.gather(gradient, kind.partition.examples()) * weights,
        indices[:, 1],
        kind.partition,
        (rows, gradient.shape[1]),
        sparse=False,
    )


def _kernel_rows(op: tf.Operation) -> int:
    """Rows of the kernel whose product this is the gradient of.

    That product has the same sparse operand, and would have failed if its
    columns were not the kernel's rows.
    """
    for product in op.inputs[2].consumers():
        if (
            product.type == op.type
            and not product.get_attr("adjoint_a")
            and not product.get_attr("adjoint_b")
            and key(product.inputs[2]) == key(op.inputs[2])
            and product.inputs[3].shape[0] is not None
        ):
            return product.inputs[3].shape[0]
    raise ValueError("has a shape that is not known while tracing")


@ragged_factoring("UnsortedSegmentSum")
def _scatter_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    values, ids, count = op.inputs
    rows: Any = analysis.sizes.scalar(count)
    shape = (rows, *values.shape[1:])
    return lookup_terms(analysis, values, ids, shape, sparse=False)


@ragged_factoring(*_SPARSE_GRADIENTS)
def _gradient_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    rows: Any = analysis.sizes.scalar(op.inputs[3])
    kind: Any = analysis.type(op.inputs[2])
    return _rows(
        analysis,
        _lookup_gradients(analysis, op, kind.partition),
        op.inputs[1],
        kind.partition,
        (rows, *op.inputs[0].shape[1:]),
        sparse=False,
    )


def _are_lookups(analysis: Analysis, values: Type, ids: Type) -> bool:
    """Whether rows and row ids belong to the same lookups."""
    if isinstance(values, Pooled) and isinstance(ids, Distinct):
        return values.unique == ids.unique
    if isinstance(values, Scattered) and isinstance(ids, Scattered):
        return analysis.same_rows(values.partition, ids.partition)
    return False


def lookup_terms(
    analysis: Analysis,
    values: tf.Tensor,
    ids: tf.Tensor,
    table_shape: Sequence[int],
    sparse: bool,
) -> Factor:
    """The terms of a gradient that is given as rows and row ids.

    Raises:
      ValueError: If rows and row ids may be of different examples.
    """
    kinds = analysis.type(values), analysis.type(ids)
    if not any(isinstance(kind, Ragged) for kind in kinds):
        return row_factor(analysis, values, ids, table_shape, sparse)
    if not _are_lookups(analysis, *kinds):
        raise ValueError("pairs rows and row ids of different examples")
    kind: Any = kinds[0]
    if isinstance(kind, Pooled):
        unique = analysis.graph.get_operation_by_name(kind.unique)
        source = analysis.graph.get_operation_by_name(kind.source)
        values = _lookup_gradients(analysis, source, kind.partition)
        ids = tf.gather(ids, unique.outputs[1])
    return _rows(analysis, values, ids, kind.partition, table_shape, sparse)


def _lookup_gradients(
    analysis: Analysis, op: tf.Operation, partition: Partition
) -> tf.Tensor:
    """What each lookup contributed to a sum over lookups: [N, ...]."""
    if op.type == "UnsortedSegmentSum":
        return op.inputs[0]
    examples = partition.examples()
    rows = tf.gather(op.inputs[0], examples)
    if op.type == "SparseSegmentSumGrad":
        return rows
    counts = tf.math.unsorted_segment_sum(
        tf.ones_like(examples), examples, analysis.batch_size
    )
    counts = tf.cast(tf.gather(counts, examples), rows.dtype)
    if op.type == "SparseSegmentSqrtNGrad":
        counts = tf.sqrt(counts)
    return rows / tf.reshape(counts, [-1] + [1] * (rows.shape.rank - 1))


def _rows(
    analysis: Analysis,
    values: tf.Tensor,
    ids: tf.Tensor,
    partition: Partition,
    table_shape: Sequence[int],
    sparse: bool,
) -> Factor:
    width = 1
    for size in table_shape[1:]:
        width *= size
    return RaggedRowFactor(
        tf.reshape(values, [-1, width]),
        ids,
        partition.examples(),
        tf.cast(analysis.batch_size, tf.int64),
        tuple(table_shape),
        sparse,
    )
