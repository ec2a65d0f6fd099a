"""Secret keys for noise: drawn from the operating system, never used twice.

A key is two int64 numbers. The root key of a run exists only in the memory of
its process: it is no constant of a graph, it is in no checkpoint, and a copy
of the object that holds it draws a root of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# XLA and TPUs have other default generators; the same one everywhere.
_PHILOX = tf.random.Algorithm.PHILOX.value
_SCRAMBLER = np.array([0x02461E293EC8F720], np.uint64)


def fold_in(key: tf.Tensor, data: tf.Tensor | int) -> tf.Tensor:
    """A new key, one for each value of `data`, as good as independent."""
    pair = tf.cast(tf.stack([0, data]), tf.int64)
    return random_bits([2], tf.bitwise.bitwise_xor(key, pair), tf.int64)


def random_bits(
    shape: Sequence[int | tf.Tensor], key: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    """Integers of which every bit is random.

    What `tf.random.stateless_uniform` gives with Philox, bit for bit, but with
    a quarter of its operations: tracing a step draws from many keys. As there,
    the key is scrambled first, so that keys may be alike; half of the result
    is Philox's own key, half the upper half of its counter.

    Reference: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
    2011.
    """
    scrambled = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[2],
        key=_SCRAMBLER,
        counter=tf.bitcast(key, tf.uint64),
        alg=_PHILOX,
        dtype=tf.uint64,
    )
    own, upper = tf.split(scrambled, 2)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape,
        key=own,
        counter=tf.concat([np.zeros(1, np.uint64), upper], 0),
        alg=_PHILOX,
        dtype=dtype,
    )


# What tf.Variable(...) makes: its name is not public, its class is. In a graph,
# since the first eager operation ends the time to choose threads and devices.
with tf.Graph().as_default():
    _Variable: Any = type(tf.Variable(0))


class _Secret(_Variable):  # type: ignore[misc]
    """A variable that is in no file."""

    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "The key of noise was about to be saved, with which anybody could "
            "take the noise off again. Save the model, not the training step; "
            "and build functions that are to be exported when they are "
            "exported, not before."
        )

    _serialize_to_tensors = _export_to_saved_model_graph = _refused
    _gather_saveables_for_checkpoint = __deepcopy__ = __reduce__ = _refused


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
            self._root = _Secret(root, trainable=False, name="noise_root")
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
