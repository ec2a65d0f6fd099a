"""Secret keys for noise: drawn from the operating system, never used twice.

A key is two int64 numbers. The root key of a run exists only in the memory of
its process: it is no constant of a graph, it is in no checkpoint, and a copy
of the object that holds it draws a root of its own.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

# XLA and TPUs have other default generators; the same one everywhere.
ALGORITHM = "philox"


def fold_in(key: tf.Tensor, data: tf.Tensor | int) -> tf.Tensor:
    """A new key, one for each value of `data`, as good as independent."""
    data = tf.cast(data, tf.int64)
    seed = tf.bitwise.bitwise_xor(key, tf.stack([tf.zeros_like(data), data]))
    return tf.random.stateless_uniform(
        [2], seed, minval=None, maxval=None, dtype=tf.int64, alg=ALGORITHM
    )


class KeyStream:
    """A sequence of keys without repetition, for use in traced functions.

    The counter is not saved with a model and never goes back, so restoring an
    older state cannot bring back noise that was used already.

    Args:
      seed: For tests only: makes the keys reproducible, hence not secret.
    """

    def __init__(self, seed: int | None = None):
        self._seed = seed
        if seed is None:
            root = np.frombuffer(os.urandom(16), np.int64)
        else:
            root = np.array([seed, 0], np.int64)
        with tf.init_scope():
            self._root = tf.Variable(root, trainable=False, name="noise_root")
            self._count = tf.Variable(
                0, dtype=tf.int64, trainable=False, name="noise_count"
            )

    @property
    def seeded(self) -> bool:
        """Whether the keys are reproducible."""
        return self._seed is not None

    def next(self) -> tf.Tensor:
        """The next key. Each run of the traced operation gives another."""
        return fold_in(
            tf.convert_to_tensor(self._root),
            self._count.assign_add(1, read_value=True),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyStream:
        return KeyStream(self._seed)

    def __reduce__(self) -> tuple[type[KeyStream], tuple[int | None]]:
        return (KeyStream, (self._seed,))
