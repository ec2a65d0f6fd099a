"""Initial values of a table that need not be kept to be known again."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Rows that are made at a time when the whole table is filled.
_CHUNK = 2**16


class InitialRows:
    """Random rows that are functions of their ids and of a public key.

    Has the laws of Keras' initialisers whose entries are independent: uniform,
    normal, constant. Of any other law a table keeps a copy.

    Is itself an initialiser, with a key of its own: not a secret one, but
    another one every time.

    Args:
      law: "uniform", "normal" or "constant".
      numbers: Its bounds; its mean and standard deviation; its value.
      width: Entries of a row.

    Attributes:
      key: int32 [2].
    """

    def __init__(self, law: str, numbers: tuple[float, ...], width: int):
        self._law, self._numbers, self._width = law, numbers, width
        self.key = np.frombuffer(os.urandom(8), np.int32)

    @classmethod
    def of(cls, initializer: Any, width: int) -> InitialRows | None:
        """The law of a Keras initialiser, if it is one of these."""
        config: dict[str, Any] = getattr(initializer, "get_config", dict)()
        name = type(initializer).__name__
        if name == "RandomUniform":
            return cls("uniform", (config["minval"], config["maxval"]), width)
        if name == "RandomNormal":
            return cls("normal", (config["mean"], config["stddev"]), width)
        if name == "Constant" and np.ndim(initializer.value) == 0:
            return cls("constant", (float(initializer.value),), width)
        if name in ("Zeros", "Ones"):
            return cls("constant", (float(name == "Ones"),), width)
        return None

    def rows(self, ids: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """The rows with these ids, [*ids, width]; the key is int32 [2]."""
        if self._law == "constant":
            return tf.constant(self._numbers[0], tf.float32)
        uniform = self._uniform(ids, key)
        first, second = self._numbers
        if self._law == "uniform":
            return first + (second - first) * uniform
        return first + second * math.sqrt(2) * tf.math.erfinv(2 * uniform - 1)

    def __call__(
        self, shape: Sequence[int], dtype: Any = None, **options: Any
    ) -> np.ndarray:
        """All rows of a table, as its key makes them."""
        rows, width = shape
        table = np.empty([rows, width], np.float32)
        for begin in range(0, rows, _CHUNK):
            ids = tf.range(begin, min(begin + _CHUNK, rows))
            table[begin : begin + _CHUNK] = self.rows(ids, self.key)
        return table

    def _uniform(self, ids: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Numbers between 0 and 1."""
        low, high = tf.unstack(tf.cast(key, tf.uint32))
        columns = np.arange(self._width, dtype=np.uint32) * 0x9E3779B1
        words = tf.cast(ids, tf.uint32)[..., tf.newaxis]
        words = _mixed(_mixed(words + low) + columns + high)
        return _fractions(words)


def _fractions(words: tf.Tensor) -> tf.Tensor:
    """Numbers between 0 and 1, neither of them included."""
    # With one bit more, the largest would be rounded to 1.
    digits = tf.bitwise.right_shift(words, _shift(words, 9))
    return (tf.cast(digits, tf.float32) + 0.5) * 2.0**-23


def _mixed(words: tf.Tensor) -> tf.Tensor:
    """Other words, one to one, in which every bit depends on all bits.

    Two multiplications and three shifts, as in Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", 2014.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        shifted = tf.bitwise.right_shift(words, _shift(words, shift))
        words = tf.bitwise.bitwise_xor(words, shifted)
        words *= tf.constant(factor, tf.uint32)
    return words


def _shift(words: tf.Tensor, by: int) -> tf.Tensor:
    return tf.constant(by, words.dtype)
