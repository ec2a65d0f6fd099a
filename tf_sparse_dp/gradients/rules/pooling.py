"""Pooling and resizing within an example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.rules.structure import KEEP_AXIS
from tf_sparse_dp.gradients.types import Batched, Free, Mixed, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


def _misplaced(op: tf.Operation, kind: Type) -> Mixed | None:
    """Why a window may reach over several examples."""
    if not isinstance(kind, Batched):
        return mixed(op, "pools a sum over examples")
    if op.get_attr("data_format") != b"NHWC":
        return mixed(
            op,
            f"has the data format {op.get_attr('data_format').decode()}",
            "Put the channels on the last axis (channels_last).",
        )
    window, strides = op.get_attr("ksize"), op.get_attr("strides")
    if kind.axis != 0 or window[0] != 1 or strides[0] != 1:
        return mixed(op, "pools over the example axis", KEEP_AXIS)
    if op.get_attr("padding") == b"EXPLICIT":
        return mixed(
            op,
            "has explicit padding",
            "Pad by a layer of its own (ZeroPadding2D, tf.pad).",
        )
    return None


@typing("MaxPool", "AvgPool")
def _pool(analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]) -> Type:
    return _misplaced(op, inputs[0]) or inputs[0]


@typing("AvgPoolGrad")
def _average_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    shape, value = inputs
    if not isinstance(shape, Free):
        return mixed(op, "takes its shape from example data")
    found = _misplaced(op, value)
    if found is not None or not isinstance(value, Batched):
        return found or value
    dims = analysis.sizes.value(op.inputs[0])
    if dims is None or dims[0] != analysis.sizes.rows(value.per_example):
        return mixed(op, "has a shape that is not known while tracing")
    analysis.sizes.set_dims(op.outputs[0], dims)
    return value


@typing("MaxPoolGrad")
def _maximum_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    for kind in inputs:
        found = _misplaced(op, kind)
        if found is not None:
            return found
        if kind != inputs[0]:
            return mixed(op, "pairs rows of different examples", KEEP_AXIS)
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    return inputs[0]


@typing(
    "ResizeNearestNeighbor",
    "ResizeNearestNeighborGrad",
    "ResizeBilinear",
)
def _resize(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, size = inputs
    if not isinstance(size, Free) or not isinstance(value, Batched):
        return mixed(op, "resizes a sum over examples, or by example data")
    if value.axis != 0:
        return mixed(op, "resizes the example axis", KEEP_AXIS)
    return value


@typing("ResizeBilinearGrad")
def _resize_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, original = inputs
    if not isinstance(value, Batched) or value.axis != 0:
        return mixed(op, "resizes the example axis", KEEP_AXIS)
    if original != value:
        return mixed(op, "pairs rows of different examples", KEEP_AXIS)
    analysis.sizes.copy_dims(op.inputs[1], op.outputs[0])
    return value
