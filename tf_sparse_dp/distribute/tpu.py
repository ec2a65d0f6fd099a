r"""Replicas of a TPU: all of them run the whole step, on the same numbers.

A TPU's cores run one program, each on its own part of the batch. What has to
happen once for all replicas happens on each of them in the same way: sums and
sizes are exchanged, which gives the same bits to all; the key of the noise, the
counts and the weights are equal on all; so noise, decision and update are, too,
and copies stay equal bit by bit. Nobody adds noise of its own, and nothing that
was released is added up again.
"""

from __future__ import annotations

import tensorflow as tf


def added(value: tf.Tensor) -> tf.Tensor:
    """The sum over all replicas."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def joined(value: tf.Tensor) -> tf.Tensor:
    """What all replicas have, one after another on axis 0."""
    if value.dtype == tf.int64:  # TPUs have it as pairs of int32, too.
        pairs = joined(tf.bitcast(value, tf.int32))
        return tf.bitcast(pairs, tf.int64)
    return tf.distribute.get_replica_context().all_gather(value, axis=0)
