"""Backward through layers that were applied to public inputs.

A tower that encodes public candidates sees no example; only what comes back
from the loss does, already summed over examples. Each layer is linear in
that, so every example's term goes back through the layer by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    product_slack,
    summed_parts,
)
from tf_sparse_dp.gradients.rules.elementwise import UPSTREAM
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
