"""Fused losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.types import Batched, Free, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


@typing("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def _cross_entropy(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    batched = [kind for kind in inputs if not isinstance(kind, Free)]
    first = batched[0]
    if not isinstance(first, Batched) or any(k != first for k in batched):
        return mixed(op, "of logits and labels of different examples")
    if first.axis != 0:
        return mixed(op, "over the example axis")
    rows = analysis.sizes.rows(first.per_example)
    for tensor, kind in zip(op.inputs, inputs, strict=True):
        dims = analysis.sizes.dims(tensor)
        if isinstance(kind, Free) and (
            dims is None or dims[0] not in (1, rows)
        ):
            return mixed(op, "meets a constant on the example axis")
    if isinstance(inputs[0], Batched):
        analysis.sizes.copy_dims(op.inputs[0], op.outputs[1])
    return first
