"""Per-example gradients from one ordinary backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor, OuterFactor, RowFactor
from tf_sparse_dp.gradients.placed import PlacedFactor
from tf_sparse_dp.gradients.ragged_rows import RaggedRowFactor
from tf_sparse_dp.gradients.separation import Gradient, Separation


class RowTerms(NamedTuple):
    """A table's gradients: row `row_ids[j]` of example `example_ids[j]`.

    A row that an example looks up several times appears several times; its
    gradient is the sum.
    """

    values: tf.Tensor
    row_ids: tf.Tensor
    example_ids: tf.Tensor


class OuterTerms(NamedTuple):
    """A kernel's gradients: example i has `left[i]ᵀ right[i]`.

    `left` is [B, T, rows], `right` is [B, T, columns].
    """

    left: tf.Tensor
    right: tf.Tensor


class DenseTerms(NamedTuple):
    """A small variable's gradients, one after another: [B, *shape]."""

    values: tf.Tensor


Terms: TypeAlias = "RowTerms | OuterTerms | DenseTerms | None"


class PerExampleGradients(NamedTuple):
    """Gradients of every example's own loss.

    Attributes:
      terms: One per variable; None where no example influences the gradient.
      norms: L2 norm of each example's gradient over all variables, [B].
    """

    terms: list[Terms]
    norms: tf.Tensor


def per_example_gradients(
    gradients: Sequence[Gradient],
    variables: Sequence[Any],
    *,
    loss_reduction: str = "mean",
) -> PerExampleGradients:
    """Takes a step's gradients apart into one gradient per example.

    To be called where `tape.gradient` was called, while a `tf.function` is
    traced. Costs no second backward pass, and compiles with XLA. What no
    example influences, such as a regulariser, is left out.

    **Not private**: this is what a mechanism has to protect.

    Args:
      gradients: What `tape.gradient(loss, variables)` returned.
      variables: The variables.
      loss_reduction: "mean" or "sum": how `loss` combines examples.

    Returns:
      The gradients, as tensors that a `tf.function` may return.

    Raises:
      NotSeparableError: If examples may mix.
      ValueError: If `loss_reduction` is neither.

    Example:
      >>> table = tf.Variable([[1.0], [2.0], [3.0]])
      >>> @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
      ... def gradients(ids):
      ...     with tf.GradientTape() as tape:
      ...         loss = tf.reduce_mean(tf.gather(table, ids)[:, 0] ** 2)
      ...     return per_example_gradients(
      ...         tape.gradient(loss, [table]), [table]
      ...     )
      >>> gradients(tf.constant([2, 0])).norms.numpy()
      array([6., 2.], dtype=float32)
    """
    if loss_reduction not in ("mean", "sum"):
        raise ValueError(
            f"loss_reduction={loss_reduction!r} was given; expected 'mean' or "
            "'sum': how the loss combines the examples of a batch."
        )
    separation = Separation(
        gradients,
        [getattr(v, "path", v.name) for v in variables],
        [tuple(v.shape) for v in variables],
    )
    scale = 1.0
    if loss_reduction == "mean":
        scale = tf.cast(separation.batch_size, tf.float32)
    factors = [
        None if part is None or part.terms is None else part.terms.scaled(scale)
        for part in separation.parts
    ]
    squared = [f.squared_norms() for f in factors if f is not None]
    norms = tf.sqrt(tf.maximum(tf.add_n(squared), 0.0))
    terms = [None if f is None else _terms(f) for f in factors]
    return PerExampleGradients(terms, norms)


def _terms(factor: Factor) -> Terms:
    if isinstance(factor, PlacedFactor):
        factor = factor.as_rows()
    if isinstance(factor, RowFactor):
        lookups = factor.rows_per_example
        examples = tf.repeat(tf.range(tf.shape(factor.ids)[0]), lookups)
        width = factor.values.shape[2]
        return RowTerms(
            tf.reshape(factor.values, [-1, width]),
            tf.reshape(factor.ids, [-1]),
            examples,
        )
    if isinstance(factor, RaggedRowFactor):
        return RowTerms(factor.values, factor.ids, factor.examples)
    if isinstance(factor, OuterFactor) and not factor.layout:
        return OuterTerms(factor.left, factor.right)
    return DenseTerms(factor.per_example())
