"""Convolutions within an example, and the gradients of their kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    product_slack,
)
from tf_sparse_dp.gradients.rows import example_major
from tf_sparse_dp.gradients.rules.registry import factoring, mixed, typing
from tf_sparse_dp.gradients.rules.structure import KEEP_AXIS
from tf_sparse_dp.gradients.types import (
    SUMMED,
    Batched,
    Block,
    Free,
    Mixed,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_ONE_GROUP = (
    "Split the channels, use one convolution for each group, and join what "
    "they give."
)
_FIRST = "Examples have to be on axis 0 of a convolution's input. " + KEEP_AXIS


def _misplaced(op: tf.Operation, kind: Type) -> Mixed | None:
    """Why an operation is no convolution over axes 1 and 2 of examples."""
    if not isinstance(kind, Batched):
        return mixed(op, "convolves a sum over examples")
    if op.get_attr("data_format") != b"NHWC":
        return mixed(
            op,
            f"has the data format {op.get_attr('data_format').decode()}",
            "Put the channels on the last axis (channels_last).",
        )
    if kind.axis != 0:
        return mixed(op, "convolves over the example axis", _FIRST)
    if op.get_attr("strides")[0] != 1 or op.get_attr("dilations")[0] != 1:
        return mixed(op, "strides over the example axis", _FIRST)
    if op.get_attr("padding") == b"EXPLICIT":
        return mixed(
            op,
            "has explicit padding",
            "Pad by a layer of its own (ZeroPadding2D, tf.pad).",
        )
    return None


@typing("Conv2D", "DepthwiseConv2dNative")
def _convolution(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, kernel = inputs
    if not isinstance(kernel, Free):
        return mixed(op, "has a kernel that depends on examples")
    if op.type == "Conv2D":
        channels = [tensor.shape[-1 - i] for i, tensor in enumerate(op.inputs)]
        if channels[0] != channels[1]:
            return mixed(op, "convolves in groups", _ONE_GROUP)
    return _misplaced(op, value) or value


@typing("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput")
def _input_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """The gradient of a convolution, and a transposed convolution."""
    shape, kernel, value = inputs
    if not isinstance(kernel, Free) or not isinstance(shape, Free):
        return mixed(op, "has a kernel or shape that depends on examples")
    found = _misplaced(op, value)
    if found is not None or not isinstance(value, Batched):
        return found or value
    dims = analysis.sizes.value(op.inputs[0])
    if dims is None or len(dims) != 4:
        return mixed(op, "has a shape that is not known while tracing")
    if dims[0] != analysis.sizes.rows(value.per_example):
        return mixed(op, "changes the number of examples")
    analysis.sizes.set_dims(op.outputs[0], dims)
    return value


@typing("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter")
def _kernel_gradient(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, shape, upstream = inputs
    if not isinstance(shape, Free):
        return mixed(op, "has a shape that depends on examples")
    for kind in (value, upstream):
        found = _misplaced(op, kind)
        if found is not None:
            return found
    if value != upstream:
        return mixed(op, "pairs rows of different examples", _FIRST)
    return SUMMED


@factoring("Conv2DBackpropFilter")
def _kernel_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    """Each position sees one patch: a kernel's gradient is a Dense one's."""
    patches, upstream = _by_position(analysis, op)
    height, width, depth, outputs = _kernel_shape(analysis, op)
    if patches.shape[2] != height * width * depth:
        raise ValueError("convolves in groups")
    layout = (("reshape", (height, width, depth, outputs)),)
    return OuterFactor(patches, upstream, layout)


@factoring("DepthwiseConv2dNativeBackpropFilter")
def _depthwise_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    patches, upstream = _by_position(analysis, op)
    height, width, depth, multiplier = _kernel_shape(analysis, op)
    batch_size, steps = analysis.batch_size, patches.shape[1]
    left = tf.reshape(patches, [batch_size, steps, height * width, depth])
    right = tf.reshape(upstream, [batch_size, steps, depth, multiplier])
    terms = tf.einsum("bpkd,bpdm->bkdm", left, right)
    terms = tf.reshape(terms, [batch_size, height, width, depth, multiplier])
    return DenseFactor(terms, product_slack(left, right))


def _by_position(
    analysis: Analysis, op: tf.Operation
) -> tuple[tf.Tensor, tf.Tensor]:
    """Patches and upstream gradients: [B, positions, entries]."""
    value, _, upstream = op.inputs
    kind = analysis.type(value)
    height, width, *_ = _kernel_shape(analysis, op)
    if not isinstance(kind, Batched):
        raise ValueError("convolves something that has no example axis")
    patches = tf.image.extract_patches(
        value,
        sizes=[1, height, width, 1],
        strides=op.get_attr("strides"),
        rates=op.get_attr("dilations"),
        padding=op.get_attr("padding").decode(),
    )
    return tuple(  # type: ignore[return-value]
        _flat(example_major(analysis, tensor, kind))
        for tensor in (patches, upstream)
    )


def _flat(rows: tf.Tensor) -> tf.Tensor:
    """[B, rows, height, width, entries] as [B, positions, entries]."""
    _, *positions, entries = rows.shape
    return tf.reshape(rows, [tf.shape(rows)[0], math.prod(positions), entries])


def _kernel_shape(analysis: Analysis, op: tf.Operation) -> list[int]:
    shape = analysis.sizes.ints(op.inputs[1])
    if shape is None or len(shape) != 4:
        raise ValueError("has a kernel of unknown size")
    return shape


@typing("SpaceToBatchND")
def _space_to_batch(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    """Dilation: positions of an example become rows, all of one kind first.

    The old row r becomes the rows k * rows + r, one for each position k in a
    block, so `outer` grows by the size of the block.
    """
    found = _blocks(analysis, op, inputs)
    if isinstance(found, Mixed):
        return found
    block, positions = found
    return Batched(0, (Block(block.outer * positions, block.inner),))


@typing("BatchToSpaceND")
def _batch_to_space(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    found = _blocks(analysis, op, inputs)
    if isinstance(found, Mixed):
        return found
    block, positions = found
    if block.outer % positions:
        return mixed(op, "moves rows of different examples", KEEP_AXIS)
    return Batched(0, (Block(block.outer // positions, block.inner),))


def _blocks(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> tuple[Block, int] | Mixed:
    """The rows' layout, and the number of positions in a block."""
    kind, *others = inputs
    if not all(isinstance(other, Free) for other in others):
        return mixed(op, "takes its shape from example data")
    shape = analysis.sizes.ints(op.inputs[1])
    if shape is None or not isinstance(kind, Batched):
        return mixed(op, "has a shape that is not known while tracing")
    if kind.axis != 0 or len(kind.blocks) > 1:
        return mixed(op, "moves rows of different examples", _FIRST)
    return kind.blocks[0], math.prod(shape)
