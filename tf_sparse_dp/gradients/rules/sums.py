"""Operations on a sum over examples that act on its terms one by one.

The sum is a gradient here, or a part of one: kernels that layers cut into
pieces have gradients that are joined from pieces, and the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.factors import DenseFactor, Factor
from tf_sparse_dp.gradients.rules.registry import joining, lifting

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


@joining("ConcatV2")
def _join_concat(
    analysis: Analysis, op: tf.Operation, terms: Sequence[tf.Tensor]
) -> tf.Tensor:
    rank = op.outputs[0].shape.rank
    axis = analysis.sizes.scalar(op.inputs[-1])
    if axis is None or rank is None:
        raise ValueError("has an axis that is not known while tracing")
    return tf.concat(terms, axis % rank + 1)


@joining("Pack")
def _join_pack(
    analysis: Analysis, op: tf.Operation, terms: Sequence[tf.Tensor]
) -> tf.Tensor:
    rank = op.outputs[0].shape.rank
    if rank is None:
        raise ValueError("has an input of unknown rank")
    return tf.stack(terms, op.get_attr("axis") % rank + 1)


@lifting("StridedSlice")
def _lift_strided_slice(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    terms = tf.raw_ops.StridedSlice(
        input=factor.per_example(), **_shifted(op, op.inputs[1:4])
    )
    return _dense(op, terms, factor)


@lifting("StridedSliceGrad")
def _lift_strided_slice_gradient(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    if index != 4:
        raise ValueError("takes its bounds from a sum over examples")
    shape, *bounds = op.inputs[:4]
    terms = factor.per_example()
    shape = tf.concat([tf.shape(terms, shape.dtype)[:1], shape], 0)
    terms = tf.raw_ops.StridedSliceGrad(
        shape=shape, dy=terms, **_shifted(op, bounds)
    )
    return _dense(op, terms, factor)


def _shifted(op: tf.Operation, bounds: Sequence[tf.Tensor]) -> dict:
    """A slice's arguments with a whole axis in front."""
    begin, end, strides = bounds
    zero, one = (tf.constant([x], begin.dtype) for x in (0, 1))
    masks = {
        name: op.get_attr(name) << 1 | (name in ("begin_mask", "end_mask"))
        for name in (
            "begin_mask",
            "end_mask",
            "ellipsis_mask",
            "new_axis_mask",
            "shrink_axis_mask",
        )
    }
    return {
        "begin": tf.concat([zero, begin], 0),
        "end": tf.concat([zero, end], 0),
        "strides": tf.concat([one, strides], 0),
        **masks,
    }


@lifting("Pad")
def _lift_pad(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    paddings = op.inputs[1]
    none = tf.zeros([1, 2], paddings.dtype)
    paddings = tf.concat([none, paddings], 0)
    return _dense(op, tf.pad(factor.per_example(), paddings), factor)


@lifting("Split", "SplitV")
def _lift_split(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> list[Factor]:
    axis = analysis.sizes.scalar(op.inputs[0 if op.type == "Split" else 2])
    if axis is None:
        raise ValueError("has an axis that is not known while tracing")
    pieces = len(op.outputs) if op.type == "Split" else op.inputs[1]
    parts = tf.split(
        factor.per_example(),
        pieces,
        axis % len(factor.shape) + 1,
        num=len(op.outputs),
    )
    return [_dense(op, part, factor, place) for place, part in enumerate(parts)]


@lifting("Unpack")
def _lift_unpack(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> list[Factor]:
    axis = op.get_attr("axis") % len(factor.shape) + 1
    parts = tf.unstack(factor.per_example(), len(op.outputs), axis)
    return [_dense(op, part, factor, place) for place, part in enumerate(parts)]


def _dense(
    op: tf.Operation, terms: tf.Tensor, factor: Factor, output: int = 0
) -> Factor:
    """Terms that hold entries of a factor's terms, some of them or all."""
    shape = op.outputs[output].shape
    terms = tf.ensure_shape(terms, [None, *shape])
    return DenseFactor(terms, factor.squared_slack())
