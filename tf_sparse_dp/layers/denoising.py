"""Tables whose noise is shrunk away where there is nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_sparse_dp.layers.lazy_variable import LazyVariable


class Denoising:
    r"""Reads a table of noisy sums as its best linear guess of the sums.

    A table $W$ that private SGD has trained is $W_0 + S + \xi$: its initial
    values, a sum of steps, and noise of known variance $V$ on every entry. By
    the columns' mean squares $m_c = \frac1n \sum_r (W - W_0)_{rc}^2$, a share
    $\lambda_c = \max(0, 1 - V / m_c)$ of column $c$ is sum, the rest noise,
    and $W_0 + \lambda \circ (W - W_0)$ is the linear estimate of $W_0 + S$
    with the smallest error (empirical Bayes, with a normal prior whose
    variance is estimated). That is what lookups give. Gradients go to $W$ as
    they are: dual averaging.

    **Guarantee.** That of $W$: all of it is computed from $W$ with its noise
    and from public numbers. Which rows are looked at for $m_c$ is fixed
    beforehand; rows that batches touched would tell who is in them.

    Args:
      table: The variable $W$.
      initial: Gives rows of $W_0$ by their ids.
      shrinkage: Variable for $\lambda$, [width].
      variance: Variable for $V$, a float64 number.
    """

    def __init__(
        self,
        table: LazyVariable,
        initial: Callable[[tf.Tensor], tf.Tensor],
        shrinkage: Any,
        variance: Any,
    ):
        self._table = table
        self._initial = initial
        self._shrinkage = shrinkage
        self._variance = variance

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows as lookups give them."""
        rows = self._table.sparse_read(ids)
        noise = (rows - self._initial(ids)) * (1.0 - self._shrinkage)
        return rows - tf.stop_gradient(noise)

    def add_variance(self, stddev: tf.Tensor) -> None:
        """One more step put noise of this size on every entry."""
        self._variance.assign_add(tf.cast(stddev, tf.float64) ** 2)

    def estimate(self, sample_rows: int) -> None:
        r"""Estimates the shrinkage anew, from rows that are always the same.

        The mean square of n numbers of noise is $V (1 \pm \sqrt{2/n})$, so
        that much counts as noise: a column without signal is to be all noise.
        """
        count = self._table.shape[0]
        size = min(sample_rows, count)
        ids = tf.range(size, dtype=tf.int64) * count // size
        change = self._table.sparse_read(ids) - self._initial(ids)
        squares = tf.reduce_mean(tf.cast(change, tf.float64) ** 2, 0)
        noise = self._variance * (1.0 + math.sqrt(2.0 / size))
        share = 1.0 - tf.math.divide_no_nan(noise, squares)
        self._shrinkage.assign(tf.cast(tf.maximum(share, 0.0), tf.float32))
