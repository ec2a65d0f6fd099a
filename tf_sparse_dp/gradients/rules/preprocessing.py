"""What preprocessing layers are made of: strings, hashes, buckets, counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.rules.elementwise import aligned
from tf_sparse_dp.gradients.rules.registry import (
    mixed,
    recognising,
    typing,
)
from tf_sparse_dp.gradients.types import FREE, Batched, Block, Free, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_PER_EXAMPLE = (
    "Count and cross within an example: ids of shape [examples, ids per "
    "example]."
)


@typing(
    "Bucketize",
    "RegexReplace",
    "StaticRegexFullMatch",
    "StaticRegexReplace",
    "StringJoin",
    "StringLength",
    "StringLower",
    "StringStrip",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "StringToNumber",
    "StringUpper",
    "Substr",
)
def _entry_by_entry(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    if not all(isinstance(kind, Free | Batched) for kind in inputs):
        return mixed(op, "of a sum over examples")
    return aligned(analysis, op, inputs)


@recognising("Minimum")
def _clamped(analysis: Analysis, op: tf.Operation) -> Type | None:
    """min(n, max(n, largest id + 1)): n, whatever the examples' ids are."""
    return None if analysis.sizes.scalar(op.outputs[0]) is None else FREE


@typing("DenseBincount")
def _counts(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """How often each id occurs in a row; of a vector, in the whole batch."""
    ids, size, weights = inputs
    if not isinstance(ids, Batched) or not isinstance(size, Free):
        return mixed(op, "takes its size from example data", _PER_EXAMPLE)
    if op.inputs[0].shape.rank != 2 or ids.axis != 0:
        return mixed(op, "counts over examples", _PER_EXAMPLE)
    unweighted = op.inputs[2].shape.num_elements() == 0
    if not unweighted and weights != ids:
        return mixed(op, "weighs ids of different examples", _PER_EXAMPLE)
    columns = analysis.sizes.scalar(op.inputs[1])
    rows = analysis.sizes.rows(ids.per_example)
    analysis.sizes.set_dims(op.outputs[0], [rows, columns])
    return ids


@typing("SparseCross")
def _cross(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> list[Type]:
    """All combinations of each example's values, example by example.

    Without sparse inputs every example has as many, so where they stand
    depends on shapes only.
    """
    refused: list[Type] = [
        mixed(op, "crosses values of different examples", _PER_EXAMPLE)
    ]
    if op.get_attr("N") or not inputs:
        return refused * 3
    counts = [tensor.shape[1:].as_list() for tensor in op.inputs]
    if any(kind != Batched(0) for kind in inputs):
        return refused * 3
    if any(len(count) != 1 or None in count for count in counts):
        return refused * 3
    crosses = math.prod(count[0] for count in counts)
    kind = Batched(0, (Block(inner=crosses),))
    rows = analysis.sizes.rows(crosses)
    analysis.sizes.set_dims(op.outputs[0], [rows, 2])
    analysis.sizes.set_dims(op.outputs[1], [rows])
    return [kind, kind, FREE]


@typing("SparseToDense")
def _crosses_as_rows(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """The combinations above as one row per example; nothing else."""
    default = inputs[3]
    sources = [tensor.op for tensor in op.inputs[:3]]
    places = [tensor.value_index for tensor in op.inputs[:3]]
    kind = inputs[2]
    if (
        any(source is not sources[0] for source in sources)
        or sources[0].type != "SparseCross"
        or places != [0, 2, 1]
        or not isinstance(kind, Batched)
        or not isinstance(default, Free)
    ):
        return mixed(op, "puts values where example data say")
    rows = analysis.sizes.rows(1)
    analysis.sizes.set_dims(op.outputs[0], [rows, kind.per_example])
    return Batched(0)
