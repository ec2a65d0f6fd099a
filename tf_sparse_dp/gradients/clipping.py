"""Clipping: one scale per privacy unit, over all variables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import tensorflow as tf

from tf_sparse_dp.gradients.factors import LARGEST, Factor


@dataclasses.dataclass(frozen=True)
class Clipped:
    """Sums of clipped terms.

    Attributes:
      sums: One per factor: a tensor, or `tf.IndexedSlices` whose row ids may
        repeat.
      norms: Norms before clipping, one for each unit, float32. Not private.
        L1 norms are upper bounds.
    """

    sums: list[tf.Tensor | tf.IndexedSlices]
    norms: tf.Tensor


def terms_of_units(
    factors: Sequence[Factor],
    valid: tf.Tensor | None = None,
    examples_per_unit: int = 1,
) -> tuple[list[Factor], tf.Tensor | None]:
    r"""Terms of units out of terms of examples.

    $g_u = \sum_{i \in u} g_i$ over the valid examples $i$ of unit $u$. Example
    $i$ belongs to unit $\lfloor i / m \rfloor$, with $m$ =
    `examples_per_unit`.

    Args:
      factors: Terms of examples, one factor per variable.
      valid: Bool [B]; examples with False (padding) have no influence.
      examples_per_unit: How many consecutive examples are one unit. What is
        left over at the end of the batch has no influence.

    Returns:
      The terms of units, and which of those count; None if all do.
    """
    if examples_per_unit == 1:
        return list(factors), valid
    if valid is not None:
        factors = [factor.masked(valid) for factor in factors]
    # What is masked is zero.
    return [factor.grouped(examples_per_unit) for factor in factors], None


def clip_and_sum(
    factors: Sequence[Factor],
    *,
    clip_norm: float,
    scale: tf.Tensor | float = 1.0,
    valid: tf.Tensor | None = None,
    norm: Literal["l2", "l1"] = "l2",
) -> Clipped:
    r"""Sums of units' terms, each clipped over all variables jointly.

    $\sum_u \min(1, C / |s g_u|)\, s g_u$ over the valid units $u$, with $C$ =
    `clip_norm`, $s$ = `scale`, $g_u$ the terms of all factors together.

    **Guarantee.** Adding, removing or zeroing one unit changes the sums, all
    factors together, by at most `clip_norm` in the norm, up to float32 rounding
    of the sums. A unit whose norm is not finite counts as zero, with all of
    its examples.

    Args:
      factors: Terms of units, one factor per variable.
      clip_norm: Largest norm of one unit.
      scale: Undoes the loss reduction (the batch size for a mean).
      valid: Bool, one per unit; units with False have no influence.
      norm: Which norm: "l2", or "l1", the sum of absolute values. Of the latter
        upper bounds are used: a unit may be clipped a little more than it has
        to, if parts of its terms cancel.

    Returns:
      The clipped sums and the norms.
    """
    sums, norms = _clipped_sums(
        factors,
        clip_norm=clip_norm,
        scale=scale,
        valid=valid,
        norm=norm,
        parts=[None],
    )
    return Clipped(sums[0], norms)


def clip_and_sum_parts(
    factors: Sequence[Factor],
    parts: Sequence[tf.Tensor],
    *,
    clip_norm: float,
    scale: tf.Tensor | float = 1.0,
    valid: tf.Tensor | None = None,
) -> list[list[tf.Tensor | tf.IndexedSlices]]:
    """Sums as of `clip_and_sum` over several parts of the batch.

    Norms are taken once, whichever parts a unit is in.

    **Guarantee.** That of `clip_and_sum` for each part by itself.

    Args:
      factors: Terms of units, one factor per variable.
      parts: Bool tensors, one per unit: which of them are in each part.
      clip_norm: Largest L2 norm of one unit.
      scale: Undoes the loss reduction (the batch size for a mean).
      valid: Bool, one per unit; units with False have no influence.

    Returns:
      For each part one sum per factor.
    """
    sums, _ = _clipped_sums(
        factors,
        clip_norm=clip_norm,
        scale=scale,
        valid=valid,
        norm="l2",
        parts=parts,
    )
    return sums


def _clipped_sums(
    factors: Sequence[Factor],
    *,
    clip_norm: float,
    scale: tf.Tensor | float,
    valid: tf.Tensor | None,
    norm: str,
    parts: Sequence[tf.Tensor | None],
) -> tuple[list[list[tf.Tensor | tf.IndexedSlices]], tf.Tensor]:
    """Sums over each part (None: over all), and norms before clipping."""
    factors = [factor.compact() for factor in factors]
    scale = tf.cast(scale, tf.float32)
    if norm == "l1":
        norms = (
            tf.add_n([factor.absolute_norms() for factor in factors]) * scale
        )
        safe = tf.where(norms < LARGEST, norms, math.inf)
    elif norm == "l2":
        norms, safe = _euclidean(factors, scale)
    else:
        raise ValueError(f"norm={norm!r} was given; expected 'l2' or 'l1'.")
    finite = tf.math.is_finite(safe)
    counted = finite if valid is None else tf.logical_and(finite, valid)
    # A norm of 0 clips to factor 1: the term is zero, whatever its weight.
    shrink = clip_norm / tf.maximum(safe, clip_norm)
    weights = tf.where(counted, shrink, 0.0) * scale
    own = [
        weights if part is None else tf.where(part, weights, 0.0)
        for part in parts
    ]
    # Guarding against what is not finite costs, and is hardly ever needed.
    sums = tf.cond(
        tf.reduce_all(finite),
        lambda: [factor.finite_sum(w) for w in own for factor in factors],
        lambda: [factor.weighted_sum(w) for w in own for factor in factors],
    )
    count = len(factors)
    return [
        [
            _shaped(total, factor.shape)
            for total, factor in zip(
                sums[start : start + count], factors, strict=True
            )
        ]
        for start in range(0, len(sums), count)
    ], norms


def _euclidean(
    factors: Sequence[Factor], scale: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Norms, and norms that rounding has not made too small."""
    squared = tf.add_n([factor.squared_norms() for factor in factors])
    squared = tf.maximum(squared, 0.0)
    slacks = [factor.squared_slack() for factor in factors]
    slacks = [slack for slack in slacks if slack is not None]
    safe = tf.sqrt(tf.add_n([squared, *slacks]))
    return tf.sqrt(squared) * scale, safe * scale


def _shaped(
    total: tf.Tensor | tf.IndexedSlices, shape: tuple[int, ...]
) -> tf.Tensor | tf.IndexedSlices:
    """The sum with the static shape of the table, which `tf.cond` forgets."""
    if not isinstance(total, tf.IndexedSlices):
        return total
    return tf.IndexedSlices(
        total.values, total.indices, tf.constant(shape, tf.int64)
    )
