"""Variables of one process: one each, however many replicas there are.

A distribution strategy makes of every `tf.Variable` as many copies as it has
devices, and merges what they are assigned. Counts, keys and sums of what was
spent are facts about the process: there is one of each, and a step writes it
once, for all replicas (`distribute.replicas`).

Cores of a TPU read no memory but their own. There each core has a copy, all of
them with the same value: a core assigns to its own, and all cores compute the
same (`distribute.tpu`); whoever assigns from outside of a step assigns to all.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# What tf.Variable(...) makes: its name is not public, its class is. In a graph,
# since the first eager operation ends the time to choose threads and devices.
# Called by its class it asks no strategy.
with tf.Graph().as_default():
    LocalVariable: Any = type(tf.Variable(0))

TPU_STRATEGIES = (
    tf.distribute.TPUStrategy,
    tf.distribute.experimental.TPUStrategy,
)


def local_variable(value: Any, *, name: str, dtype: Any = None) -> tf.Variable:
    """A variable that is not trained and has no copies, but on a TPU.

    Args:
      value: What it starts with; eager, also while something is traced.
      name: Its name.
      dtype: Its type; by default that of the value.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
      >>> with strategy.scope():
      ...     count = local_variable(1, name="count", dtype=tf.int64)
      >>> type(count) is LocalVariable
      True
    """
    with tf.init_scope():
        on_tpu = isinstance(tf.distribute.get_strategy(), TPU_STRATEGIES)
        kind = tf.Variable if on_tpu else LocalVariable
        return kind(value, dtype=dtype, trainable=False, name=name)
