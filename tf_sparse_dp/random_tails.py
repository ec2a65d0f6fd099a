"""Random numbers whose far tails are right.

TensorFlow's float32 normal never goes beyond about 5.7 standard deviations.
For privacy that is a hole: a value that noise around one data set can reach,
and noise around its neighbour cannot, tells the two apart, and at 5.7 standard
deviations that happens more often than a usual delta allows.

Shapes are sequences of sizes; sizes may be scalar tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tf_sparse_dp.random_keys import fold_in, random_bits

Size: TypeAlias = "int | tf.Tensor"
Number: TypeAlias = "float | tf.Tensor"


def normal(
    shape: Sequence[Size], key: tf.Tensor, stddev: float = 1.0
) -> tf.Tensor:
    r"""Normal float32 numbers, with tails out to 9.4 standard deviations.

    Box and Muller's transform, with a radius from 64 random bits: $r =
    \sqrt{2 e}$ for an exponential number $e$ that is right near 0, where a
    hole around the sum would tell what the sum is, and reaches 45: beyond $r$
    = 9.4 a normal number lies with probability below $10^{-20}$.

    Args:
      shape: Shape of the result.
      key: A key, int64 [2].
      stddev: Standard deviation.

    Returns:
      A float32 tensor.
    """
    size = _product(shape)
    pairs = (size + 1) // 2
    # Every operation on all of them takes about as long as the next.
    words = _words(3, [pairs], key)
    drawn = _exponential(tf.unstack(words[:2]), tf.float32)
    radius = tf.sqrt((2.0 * stddev**2) * drawn)
    turn = tf.cast(words[2], tf.float32) * np.float32(2 * np.pi * 2.0**-32)
    # The sine is the cosine a quarter of a turn before.
    both = radius * tf.cos(turn + np.array([[0.0], [-np.pi / 2]], np.float32))
    both = tf.reshape(both, [-1])
    return tf.reshape(both[:size] if _is_odd(shape) else both, shape)


def exponential(
    shape: Sequence[Size], key: tf.Tensor, dtype: tf.DType = tf.float32
) -> tf.Tensor:
    r"""Exponential numbers of mean 1, right near 0 and far out.

    $-\ln u$ with $u$ from 64 random bits (float32) or 96 (float64): above
    $1/2$, $1 - u$ is what is drawn, so that small numbers keep all their
    digits. They reach 45 and 67, beyond which an exponential number lies with
    probability $2^{-65}$ and $2^{-97}$.

    Args:
      shape: Shape of the result.
      key: A key, int64 [2].
      dtype: tf.float32 or tf.float64.

    Returns:
      Positive numbers.
    """
    count = 3 if dtype == tf.float64 else 2
    return _exponential(tf.unstack(_words(count, shape, key)), dtype)


def laplace(shape: Sequence[Size], key: tf.Tensor) -> tf.Tensor:
    """Laplace float32 numbers of scale 1, with tails out to 45.

    Args:
      shape: Shape of the result.
      key: A key, int64 [2].
    """
    *words, side = tf.unstack(_words(3, shape, key))
    size = _exponential(words, tf.float32)
    return tf.where(_coin(side), size, -size)


def signs(shape: Sequence[Size], key: tf.Tensor) -> tf.Tensor:
    """1.0 or -1.0, as often either."""
    return tf.where(_coin(_words(1, shape, key)[0]), 1.0, -1.0)


def cut_exponential(
    shape: Sequence[Size], key: tf.Tensor, high: Number
) -> tf.Tensor:
    """Exponential float32 numbers of mean 1, given that they are below `high`.

    Args:
      shape: Shape of the result.
      key: A key, int64 [2].
      high: At least 0; may be infinite.
    """
    length = tf.cast(high, tf.float32)
    return _until_accepted(shape, key, tf.ones([]), length, tf.zeros_like)


def chi_excess(
    shape: Sequence[Size],
    key: tf.Tensor,
    *,
    width: int,
    low: Number,
    high: Number = math.inf,
) -> tf.Tensor:
    r"""How far the norm of a normal vector exceeds `low`, given that it does.

    For $x$ with density proportional to $e^{h(x)}$ on $(low, high]$,
    $h(x) = (k-1) \ln x - x^2/2$, draws $x - low$ without ever subtracting the
    two. $h$ is concave for every $k \ge 1$, hence nowhere above its tangent at
    any $c$: a number proposed from the exponential density along the tangent
    and accepted with probability $e^{h(x) - tangent(x)}$ has this law exactly.
    The choice of $c$ only decides how many are accepted: 95 of 100 far out.

    Args:
      shape: Shape of the result.
      key: A key, int64 [2].
      width: Length $k$ of the vector.
      low: What the norm exceeds, at least 0.
      high: What the norm does not exceed.

    Returns:
      Non-negative float32 numbers.

    Raises:
      ValueError: If no norm can lie between.
    """
    fixed = not (tf.is_tensor(low) or tf.is_tensor(high))
    if fixed and not 0 <= low < high:
        raise ValueError(
            f"No norm is above {low} and at most {high}: expected "
            "0 <= low < high."
        )
    touching = _touching_point(width, low, high)
    slope = touching - (width - 1) / touching  # Downwards.
    ahead, touching, slope, length = (
        tf.cast(x, tf.float32)
        for x in (touching - low, touching, slope, high - low)
    )

    def log_accepted(excess: tf.Tensor) -> tf.Tensor:
        # h(x) - tangent(x), written in x - c, which is small.
        beyond = excess - ahead
        gap = -0.5 * tf.square(beyond)
        if width > 1:
            ratio = tf.maximum(beyond / touching, -1.0)
            gap += (width - 1) * (tf.math.log1p(ratio) - ratio)
        return gap

    return _until_accepted(shape, key, slope, length, log_accepted)


def _touching_point(width: int, low: Number, high: Number) -> Number:
    """Where the tangent leaves the fewest numbers unaccepted.

    Without `high` that is where the mean of the proposals is: c = low + 1 /
    slope(c), the largest root of a cubic. Newton's method comes down to it
    from low + √k, and wherever it stops is good enough.
    """
    point = low + math.sqrt(width)
    for _ in range(8):
        value = point * (point * (point - low) - width) + low * (width - 1)
        point -= value / (point * (3 * point - 2 * low) - width)
    tensors = tf.is_tensor(point) or tf.is_tensor(high)
    return tf.minimum(point, high) if tensors else min(point, high)


def _until_accepted(
    shape: Sequence[Size],
    key: tf.Tensor,
    slope: tf.Tensor,
    length: tf.Tensor,
    log_accepted: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """Numbers on [0, length], drawn along a slope until all are accepted."""

    def again(
        turn: tf.Tensor, excess: tf.Tensor, done: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        drawn = exponential(shape, fold_in(key, 2 * turn))
        dice = -exponential(shape, fold_in(key, 2 * turn + 1))
        candidate = _along_slope(drawn, slope, length)
        accepted = (candidate >= 0) & (candidate <= length)
        accepted &= dice <= log_accepted(candidate)
        excess = tf.where(done, excess, candidate)
        return turn + 1, excess, done | accepted

    start = (0, tf.zeros(shape), tf.zeros(shape, tf.bool))
    _, excess, _ = tf.while_loop(
        lambda turn, excess, done: ~tf.reduce_all(done), again, start
    )
    return excess


def _along_slope(
    drawn: tf.Tensor, slope: tf.Tensor, length: tf.Tensor
) -> tf.Tensor:
    """Exponential numbers made to have density exp(-slope·w) on [0, length].

    Up to numbers that lie outside, to be drawn anew. A negative slope is a
    positive one seen from the other end.
    """
    steepness = tf.maximum(tf.abs(slope), 1e-12)  # Level: as good as.
    fall = steepness * length
    # Over less than a fall of 1 too many would lie outside, unless a uniform
    # number is put through the inverse distribution function.
    short = tf.minimum(fall, 1.0)
    inside = -tf.math.log1p(tf.exp(-drawn) * tf.math.expm1(-short))
    distance = tf.where(fall < 1.0, inside, drawn) / steepness
    return tf.where(slope >= 0.0, distance, length - distance)


def _exponential(words: Sequence[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """From 32-bit words: a coin, and all other bits for 0 < v < 1/2."""
    first, *others = words
    rest = tf.bitwise.right_shift(first, tf.ones_like(first))
    small = 0.5
    for word in reversed(others):
        small = (tf.cast(word, dtype) + small) * 2.0**-32
    small = (tf.cast(rest, dtype) + small) * 2.0**-32
    coin = _coin(first)
    # Each branch is finite for all words.
    return tf.where(coin, -tf.math.log(small), -tf.math.log1p(-small))


def _coin(words: tf.Tensor) -> tf.Tensor:
    one = tf.ones_like(words)
    return tf.equal(tf.bitwise.bitwise_and(words, one), one)


def _words(count: int, shape: Sequence[Size], key: tf.Tensor) -> tf.Tensor:
    """Random 32-bit words [count, *shape]."""
    return random_bits([count, *shape], key, tf.uint32)


def _product(shape: Sequence[Size]) -> Size:
    if all(isinstance(size, int) for size in shape):
        return math.prod(shape)
    return tf.reduce_prod(tf.stack([tf.cast(s, tf.int64) for s in shape]))


def _is_odd(shape: Sequence[Size]) -> bool:
    """Whether there may be an odd number of entries."""
    return all(tf.is_tensor(size) or size % 2 for size in shape)
