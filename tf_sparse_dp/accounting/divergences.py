"""Rényi divergences of single releases at integer orders, rounded up.

At an integer order α the divergence of a subsampled release is a sum of
positive terms. What is added to 1 in it is summed on its own, so that small
divergences are right to all digits and not lost beside the 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from scipy import special

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
ULP = 2.0**-52


@functools.lru_cache(maxsize=32)
def _log_binomials(orders: tuple[int, ...]) -> Array:
    table = np.full((len(orders), max(orders) + 1), -np.inf)
    for row, order in enumerate(orders):
        choices = 1  # Exact integers: no log-gamma has to be trusted.
        for k in range(order + 1):
            table[row, k] = math.log(choices)
            choices = choices * (order - k) // (k + 1)
    table.flags.writeable = False
    return table


def log_binomials(orders: Sequence[int]) -> Array:
    """Logarithms of C(α, k) for every order α (rows) and k = 0, 1, ... .

    They are -inf for k > α.

    Example:
      >>> np.exp(log_binomials([2, 3])).round(12)
      array([[1., 2., 1., 0.],
             [1., 3., 3., 1.]])
    """
    return _log_binomials(tuple(int(order) for order in orders))


def poisson_gaussian_divergence(
    q: float, z: float, orders: Sequence[int]
) -> Array:
    r"""Rényi divergence of a Poisson-subsampled Gaussian, rounded up.

    .. math:: \frac{1}{\alpha-1} \ln \Big(1 + \sum_{k=2}^\alpha
      \binom{\alpha}{k} q^k (1-q)^{\alpha-k}
      \big(e^{k(k-1)/(2 z^2)} - 1\big)\Big)

    for every α of `orders`, q the probability of sampling, z the noise
    multiplier. It is the divergence of (1-q) N(0, z²) + q N(1, z²) from
    N(0, z²); the one in the other direction is not larger (Mironov, Talwar and
    Zhang, *Rényi differential privacy of the sampled Gaussian mechanism*, 2019,
    Theorem 5). With q = 1 it is α/(2z²).

    The logarithm of a term is a sum of four numbers, each right to a few units
    in the last place of its own; `rounding` is more than what these and the sum
    of at most α terms can be wrong by.

    Example:
      >>> poisson_gaussian_divergence(0.01, 1.0, [2, 8]).round(6)
      array([0.000172, 0.000894])
    """
    alpha = np.asarray(orders, np.float64)[:, np.newaxis]
    choices = log_binomials(orders)[:, 2:]
    k = np.arange(2.0, choices.shape[1] + 2.0)
    with np.errstate(divide="ignore", over="ignore"):
        # Without noise it is as good as infinite, and no infinity cancels.
        growth = np.minimum(k * (k - 1) * (0.5 / np.float64(z) / z), 1e300)
        chosen = special.xlogy(k, q)
        others = special.xlog1py(np.maximum(alpha - k, 0.0), -q)
        # ln(e^x - 1) = x + ln(1 - e^-x).
        lifted = growth + np.log(-np.expm1(-growth))
        terms = choices + chosen + others + lifted
        largest = np.max(terms, axis=1)
        shift = np.where(largest > -np.inf, largest, 0.0)
        total = np.sum(np.exp(terms - shift[:, np.newaxis]), axis=1)
        sizes = np.where(terms > -np.inf, growth - chosen - others, 0.0)
        rounding = 8 * ULP * (alpha[:, 0] + np.max(sizes, axis=1))
        excess = shift + np.log(total) + rounding
    divergence: Array = np.logaddexp(0.0, excess) / (alpha[:, 0] - 1)
    return divergence * (1 + 8 * ULP)
