"""Public facts for sums that a test makes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.mechanisms.interface import PublicFacts, Sum, Variable


def facts(
    sums: Sequence[Sum],
    stddev: float,
    *,
    lookups: int | None = None,
    **others: Any,
) -> PublicFacts:
    """Facts about sums of 100 units, with clip norm 1 unless told."""
    clip_norm = others.pop("clip_norm", 1.0)
    return PublicFacts(
        variables=tuple(_variable(total, lookups) for total in sums),
        clip_norm=clip_norm,
        noise_multiplier=stddev / clip_norm,
        expected_batch_size=others.pop("expected_batch_size", 100.0),
        failure_probability=others.pop("failure_probability", 2.0**-100),
        **others,
    )


def _variable(total: Sum, lookups: int | None) -> Variable:
    if not isinstance(total, tf.IndexedSlices):
        return Variable(shape=tuple(total.shape))
    shape = tuple(tf.get_static_value(total.dense_shape).tolist())
    return Variable(shape=shape, sparse=True, lookups=lookups)
