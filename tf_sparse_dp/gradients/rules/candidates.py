"""TensorFlow's own samplers of negatives, and what they are used with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.types import FREE, Batched, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


@typing(
    "AllCandidateSampler",
    "FixedUnigramCandidateSampler",
    "LogUniformCandidateSampler",
    "UniformCandidateSampler",
)
def _sampler(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> list[Type]:
    """Draws from a fixed distribution; labels are only given their odds."""
    (labels,) = inputs
    if not isinstance(labels, Batched) or labels.axis != 0:
        labels = mixed(op, "has labels that are not one row per example")
    return [FREE, labels, FREE]


@typing("LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler")
def _learned_sampler(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    return mixed(
        op,
        "draws negatives from the labels that it has seen",
        "Draw them from a fixed distribution: a uniform or log-uniform "
        "sampler.",
    )


@typing("ComputeAccidentalHits")
def _accidental_hits(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    return mixed(
        op,
        "lists the hits of all examples together",
        "Pass remove_accidental_hits=False, or mask hits yourself: "
        "tf.where(candidates == label, -1e9, scores).",
    )
