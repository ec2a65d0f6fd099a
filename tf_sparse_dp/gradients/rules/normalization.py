"""Fused normalisation, which tf-keras uses for LayerNormalization too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor, summed_parts
from tf_sparse_dp.gradients.rows import example_major
from tf_sparse_dp.gradients.rules.registry import factoring, mixed, typing
from tf_sparse_dp.gradients.types import (
    FREE,
    SUMMED,
    Batched,
    Free,
    Mixed,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_CHANNEL_AXIS = {b"NHWC": 3, b"NCHW": 1}
_USE_LAYER_NORMALIZATION = (
    "Replace BatchNormalization by LayerNormalization, or freeze it with "
    "trainable=False."
)


@typing("FusedBatchNormV3")
def _fused(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> list[Type]:
    value, *parameters = inputs
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    channels = _CHANNEL_AXIS.get(op.get_attr("data_format"))
    if not isinstance(value, Batched):
        return [_refused(op)] * len(op.outputs)
    if not op.get_attr("is_training"):
        if value.axis != channels and _all_free(parameters):
            return [value, *[FREE] * (len(op.outputs) - 1)]
        return [_refused(op)] * len(op.outputs)
    # Statistics are taken over all axes but the channels. LayerNormalization
    # puts its rows there, so that each row has statistics of its own.
    if value.axis == channels and _per_channel(value, parameters):
        return [value, *[value.moved_to(0)] * (len(op.outputs) - 1)]
    return [_refused(op)] * len(op.outputs)


@typing("FusedBatchNormGradV3")
def _fused_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> list[Type]:
    upstream, value, *parameters = inputs
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    channels = _CHANNEL_AXIS.get(op.get_attr("data_format"))
    if isinstance(upstream, Batched) and upstream == value:
        if op.get_attr("is_training"):
            if value.axis == channels and _per_channel(value, parameters):
                return [value, *[value.moved_to(0)] * (len(op.outputs) - 1)]
        elif value.axis != channels and _all_free(parameters):
            # Scale and offset; the rest is empty.
            return [value, SUMMED, SUMMED, *[FREE] * (len(op.outputs) - 3)]
    return [_refused(op)] * len(op.outputs)


@factoring("FusedBatchNormGradV3")
def _parameter_terms(
    analysis: Analysis, op: tf.Operation
) -> list[Factor | None]:
    """Scale and offset of a normalisation by constants.

    With y = (x - mean) / sqrt(variance + epsilon) * scale + offset, an entry's
    parts are upstream * (x - mean) / sqrt(variance + epsilon) and upstream.
    """
    upstream, value, _, mean, variance = op.inputs[:5]
    kind = analysis.type(value)
    if op.get_attr("is_training") or not isinstance(kind, Batched):
        raise ValueError("normalises over examples")
    if op.get_attr("data_format") != b"NHWC":
        raise ValueError("has its channels on axis 1")
    upstream, value = (
        tf.cast(example_major(analysis, tensor, kind), mean.dtype)
        for tensor in (upstream, value)
    )
    # Example axis 0, rows, then two of height, width and batch: all but the
    # channels are added up.
    count = math.prod(value.shape[1:-1])
    spread = tf.math.rsqrt(variance + op.get_attr("epsilon"))
    scale = upstream * (value - mean) * spread
    parts = [
        summed_parts(x, [1, 2, 3], float(count)) for x in (scale, upstream)
    ]
    return [None, *parts, None, None]


def _all_free(kinds: Sequence[Type]) -> bool:
    return all(isinstance(kind, Free) for kind in kinds)


def _per_channel(value: Batched, kinds: Sequence[Type]) -> bool:
    return all(
        isinstance(kind, Free) or kind == value.moved_to(0) for kind in kinds
    )


def _refused(op: tf.Operation) -> Mixed:
    return mixed(op, "normalises over examples", _USE_LAYER_NORMALIZATION)
