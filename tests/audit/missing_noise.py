"""Training that lacks noise which its plan counts on: for tests alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tensorflow as tf

from tf_sparse_dp.layers.pending_noise import PendingNoise
from tf_sparse_dp.optimizers.core import PrivateStep


def cut_noise(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Every release has less noise than its plan says."""
    facts_of = PrivateStep.public_facts

    def public_facts(self: Any, *args: Any, **kwargs: Any) -> Any:
        facts = facts_of(self, *args, **kwargs)
        less = by * facts.noise_multiplier
        return dataclasses.replace(facts, noise_multiplier=less)

    monkeypatch.setattr(PrivateStep, "public_facts", public_facts)


def skip_lazy_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a step reads count as noisy from then on, and are not."""

    def draw(self: Any, ids: tf.Tensor) -> tf.Tensor:
        ids = tf.unique(ids)[0]
        marked = tf.raw_ops.ResourceScatterUpdate(
            resource=self._first.handle,
            indices=ids,
            updates=tf.fill(tf.shape(ids), tf.identity(self._step)),
        )
        with tf.control_dependencies([marked]):
            return tf.constant(True)

    monkeypatch.setattr(PendingNoise, "_draw_traced", draw)
