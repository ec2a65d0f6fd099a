"""Backward through layers that were applied to public inputs.

A tower that encodes public candidates sees no example; only what comes back
from the loss does, already summed over examples. Each layer is linear in
that, so every example's term goes back through the layer by itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    product_slack,
    summed_parts,
)
from tf_sparse_dp.gradients.rules.elementwise import UPSTREAM, spread_terms
from tf_sparse_dp.gradients.rules.registry import lifting

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


@lifting("MatMul")
def _lift_product(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    """Terms X_i of the product's one operand become A X_i or X_i A."""
    flags = (op.get_attr("transpose_a"), op.get_attr("transpose_b"))
    other = op.inputs[1 - index]
    if flags[1 - index]:
        other = tf.transpose(other)
    if flags[index]:
        factor = factor.transposed((1, 0))
    if isinstance(factor, OuterFactor):
        flipped = factor.layout == (("transpose", (1, 0)),)
        if flipped or not factor.layout:
            left, right = factor.left, factor.right
            if flipped:
                left, right = right, left
            if index == 0:  # Σ_t l_tᵀ (r_t A)
                return OuterFactor(left, _rows_times(right, other))
            return OuterFactor(_rows_times(left, tf.transpose(other)), right)
    terms = factor.per_example()
    if index == 0:
        product = tf.einsum("bij,jk->bik", terms, other)
    else:
        product = tf.einsum("ij,bjk->bik", other, terms)
    slack = product_slack(terms, tf.expand_dims(other, 0))
    inherited = factor.squared_slack()
    if inherited is not None:
        # A product's norm is at most that of its operands multiplied.
        slack += inherited * tf.reduce_sum(tf.square(_float32(other)))
    return DenseFactor(product, slack)


def _rows_times(rows: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    return tf.einsum("bti,ij->btj", rows, matrix)


def _float32(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32)


@lifting("BiasAddGrad")
def _lift_bias(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    if op.get_attr("data_format") != b"NHWC":
        raise ValueError("has its channels on axis 1")
    terms = factor.per_example()
    axes = list(range(1, terms.shape.rank - 1))
    count = terms.shape[1:-1].num_elements()
    sums = summed_parts(terms, axes, float(count))
    inherited = factor.squared_slack()
    if inherited is None:
        return sums
    slack = count * inherited
    return DenseFactor(
        sums.values, slack if sums.slack is None else slack + sums.slack
    )


@lifting(*UPSTREAM)
def _lift_derivative(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    """An activation's derivative, at public inputs, times each term."""
    if index != UPSTREAM[op.type]:
        raise ValueError("is not linear in a sum over examples")
    names = [argument.name for argument in op.op_def.input_arg]
    at = op.inputs[1 - index]
    options = {names[index]: tf.ones_like(at), names[1 - index]: at}
    if op.type == "LeakyReluGrad":
        options["alpha"] = op.get_attr("alpha")
    return factor.multiplied(getattr(tf.raw_ops, op.type)(**options))


@lifting("SelectV2")
def _lift_select(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    """What a public condition lets through, and zero elsewhere."""
    condition, other = op.inputs[0], op.inputs[3 - index]
    if other.op.type != "ZerosLike":
        value = tf.get_static_value(other)
        if value is None or np.any(value):
            raise ValueError("chooses between a sum over examples and others")
    chosen = tf.cast(condition, op.outputs[0].dtype)
    if index == 2:
        chosen = 1 - chosen
    if factor.shape != tuple(op.outputs[0].shape):
        factor = spread_terms(factor, op.outputs[0].shape)
    return factor.multiplied(chosen)


@lifting("BroadcastTo")
def _lift_broadcast(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    return spread_terms(factor, op.outputs[0].shape)


@lifting("Tile")
def _lift_tile(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    counts = analysis.sizes.ints(op.inputs[1])
    if counts is None:
        raise ValueError("has a shape that is not known while tracing")
    slack = factor.squared_slack()
    return DenseFactor(
        tf.tile(factor.per_example(), [1, *counts]),
        None if slack is None else math.prod(counts) * slack,
    )


@lifting("Slice")
def _lift_slice(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    begin = analysis.sizes.ints(op.inputs[1])
    size = op.outputs[0].shape
    if begin is None or not size.is_fully_defined():
        raise ValueError("has bounds that are not known while tracing")
    if isinstance(factor, OuterFactor) and not factor.layout:
        return OuterFactor(
            tf.slice(factor.left, [0, 0, begin[0]], [-1, -1, size[0]]),
            tf.slice(factor.right, [0, 0, begin[1]], [-1, -1, size[1]]),
        )
    return DenseFactor(
        tf.slice(factor.per_example(), [0, *begin], [-1, *size]),
        factor.squared_slack(),
    )
