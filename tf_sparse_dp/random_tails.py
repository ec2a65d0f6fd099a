"""Random numbers whose far tails are right.

TensorFlow's float32 normal never goes beyond about 5.7 standard deviations.
For privacy that is a hole: a value that noise around one data set can reach,
and noise around its neighbour cannot, tells the two apart, and at 5.7 standard
deviations that happens more often than a usual delta allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_sparse_dp.random_keys import ALGORITHM


def normal(shape: Sequence[int], key: tf.Tensor) -> tf.Tensor:
    r"""Standard normal float32 numbers, with tails out to 9.4.

    Box and Muller's transform, with a radius from 64 random bits: $r =
    \sqrt{-2 \ln u}$ for $u$ on a grid of $2^{-64}$ reaches 9.4, beyond which
    a normal number lies with probability below $10^{-20}$.

    Args:
      shape: Shape of the result.
      key: A key, int64 [2].

    Returns:
      A float32 tensor.
    """
    size = math.prod(shape)
    pairs = (size + 1) // 2
    high, low, turn = tf.unstack(
        tf.random.stateless_uniform(
            [3, pairs],
            key,
            minval=None,
            maxval=None,
            dtype=tf.uint32,
            alg=ALGORITHM,
        )
    )
    uniform = tf.cast(high, tf.float32) * 2.0**-32
    uniform += (tf.cast(low, tf.float32) + 0.5) * 2.0**-64
    radius = tf.sqrt(-2.0 * tf.math.log(tf.minimum(uniform, 1.0)))
    angle = tf.cast(turn, tf.float32) * np.float32(2 * np.pi * 2.0**-32)
    both = [radius * tf.cos(angle), radius * tf.sin(angle)]
    return tf.reshape(tf.concat(both, 0)[:size], shape)
