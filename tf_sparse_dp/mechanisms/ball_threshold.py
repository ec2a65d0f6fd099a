r"""The threshold that projects on a ball of sums of norms.

The projection on $\{z : \sum_r |z_r| \le R\}$ shrinks every norm by the same
$\tau \ge 0$: the one with $\sum_r (|z_r| - \tau)_+ = R$, or 0 inside the ball.
So what lies below a lower bound of $\tau$ need not be known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.mechanisms.noise_norms import Norms
from tf_sparse_dp.random_tails import Number

# By so many standard deviations noise alone must be expected to leave the
# ball. It falls short of that one time in 10⁹ (normal) or, where few cells
# make up the sum, more often; what is lost then is accuracy.
_MARGIN = 6.0


def certain_threshold(
    norms: Sequence[Norms], counts: Sequence[int], radius: float
) -> float:
    r"""A public lower bound of $\tau$ that all but certainly holds.

    The largest $\tau$ with $\sum_i N_i m_i(\tau) - 6 \sqrt{\sum_i N_i
    v_i(\tau)} \ge R$, with $m$ and $v$ the mean excess and mean squared excess
    of pure noise: data only make norms larger.

    Args:
      norms: Distributions of the norms of pure noise, one per table.
      counts: How many norms each of these tables has.
      radius: $R$.

    Returns:
      The bound; 0 if noise need not leave the ball.
    """

    def surplus(threshold: float) -> float:
        pairs = list(zip(norms, counts, strict=True))
        mean = sum(n * float(f.mean_excess(threshold)) for f, n in pairs)
        square = sum(
            n * float(f.mean_squared_excess(threshold)) for f, n in pairs
        )
        return mean - _MARGIN * math.sqrt(max(square, 0.0)) - radius

    low, high = (
        0.0,
        max(
            float(f.inverse_survival(1e-3 / max(n, 1)))
            for f, n in zip(norms, counts, strict=True)
        ),
    )
    if surplus(low) < 0:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if surplus(middle) >= 0:
            low = middle
        else:
            high = middle
    return low


def ball_shift(excess: tf.Tensor, radius: Number) -> tf.Tensor:
    r"""The $t \ge 0$ with $\sum_i (e_i - t)_+ = R$; 0 if $\sum_i e_i \le R$.

    Newton's method from the left: $t$ is what is right for all $e_i > t$ of the
    step before. As $t$ grows their number falls, and when it no longer does,
    $t$ is the solution.

    Args:
      excess: float32 [n], at least 0.
      radius: $R > 0$.

    Returns:
      A float32 scalar.
    """
    # In float64, as millions of excesses may be summed.
    excess = tf.cast(excess, tf.float64)
    radius = tf.cast(radius, tf.float64)

    def more(
        shift: tf.Tensor, count: tf.Tensor, before: tf.Tensor
    ) -> tf.Tensor:
        return count < before

    def step(
        shift: tf.Tensor, count: tf.Tensor, before: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        above = excess > shift
        total = tf.reduce_sum(tf.where(above, excess, 0.0))
        found = (total - radius) / tf.maximum(count, 1.0)
        shift = tf.maximum(shift, found)
        return shift, _count(excess > shift), count

    zero = tf.zeros([], tf.float64)
    count = _count(excess > zero)
    shift, _, _ = tf.while_loop(more, step, [zero, count, count + 1.0])
    return tf.cast(shift, tf.float32)


def _count(true: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(true, tf.float64))
