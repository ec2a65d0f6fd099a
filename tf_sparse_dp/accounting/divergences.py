r"""Rényi divergences of single releases at integer orders, rounded up.

The divergence at order α is ln(A)/(α-1) with a moment A of the likelihood
ratio. What A exceeds 1 by is a sum of positive terms at integer orders. These
are summed without the 1, as logarithms ("excess"), so that small divergences
are right to nearly all digits.

A mechanism is private in both directions of a pair of neighbours. For a mixture
(1-q) P + q R and P, where a reflection swaps P and R, the divergence of the
mixture from P is the larger one (Mironov, Talwar and Zhang, *Rényi differential
privacy of the sampled Gaussian mechanism*, 2019, Theorem 5); that is the one
given here.
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
# As good as infinite, and no infinity has to be subtracted from another.
_HUGE = 1e300


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


def _log_expm1(x: Array) -> Array:
    """The logarithm of e^x - 1."""
    result: Array = x + np.log(-np.expm1(-x))
    return result


def _subsampled(q: float, orders: Sequence[int], lifted: Array) -> Array:
    r"""Logarithm of a sum over k = 2, 3, ... up to the order, rounded up.

    .. math:: \ln \sum_k \binom{\alpha}{k} q^k (1-q)^{\alpha-k} e^{l_k}

    with l = `lifted`. A term's logarithm is a sum of four numbers, each right
    to a few units in its last place; `rounding` is more than what these, and
    the sum of at most α terms, can be wrong by.
    """
    alpha = np.asarray(orders, np.float64)[:, np.newaxis]
    choices = log_binomials(orders)[:, 2:]
    k = np.arange(2.0, choices.shape[1] + 2.0)
    with np.errstate(divide="ignore"):
        chosen = special.xlogy(k, q)
        others = special.xlog1py(np.maximum(alpha - k, 0.0), -q)
        terms = choices + chosen + others + lifted
        largest = np.max(terms, axis=1)
        shift = np.where(largest > -np.inf, largest, 0.0)
        total = np.sum(np.exp(terms - shift[:, np.newaxis]), axis=1)
        sizes = np.where(terms > -np.inf, np.abs(lifted) - chosen - others, 0.0)
        rounding = 8 * ULP * (alpha[:, 0] + np.max(sizes, axis=1))
        result: Array = shift + np.log(total) + rounding
    return result


def _powers(orders: Sequence[int]) -> Array:
    return np.arange(2.0, max(orders) + 1.0)


def gaussian_excess(q: float, z: float, orders: Sequence[int]) -> Array:
    r"""Excess of a Gaussian that sees a unit with probability q.

    .. math:: \ln \sum_{k=2}^\alpha \binom{\alpha}{k} q^k (1-q)^{\alpha-k}
      \big(e^{k(k-1)/(2 z^2)} - 1\big)
    """
    k = _powers(orders)
    with np.errstate(divide="ignore", over="ignore"):
        half = 0.5 / np.float64(z) / np.float64(z)
        growth = np.minimum(k * (k - 1) * half, _HUGE)
        return _subsampled(q, orders, _log_expm1(growth))


def laplace_excess(q: float, z: float, orders: Sequence[int]) -> Array:
    r"""Excess of Laplace noise that sees a unit with probability q.

    .. math:: \ln \sum_{k=2}^\alpha \binom{\alpha}{k} q^k (1-q)^{\alpha-k}
      \frac{k (e^{(k-1)/z} - 1) + (k-1) (e^{-k/z} - 1)}{2k-1}

    The fraction is E[(r/p)^k] - 1 under p, with densities p and r of noise
    around 0 and around 1.
    """
    k = _powers(orders)
    with np.errstate(divide="ignore", over="ignore"):
        loss = np.minimum(1 / np.float64(z), _HUGE)
        # From 30 on, neglecting what is subtracted is nothing but rounding up.
        far = (k - 1) * loss > 30
        near = np.where(far, 0.0, loss)
        rise, fall = k * np.expm1((k - 1) * near), (k - 1) * np.expm1(-k * near)
        moment = rise + fall + 4 * ULP * (rise - fall)
        return _subsampled(
            q,
            orders,
            np.where(far, (k - 1) * loss + np.log(k), np.log(moment))
            - np.log(2 * k - 1),
        )


def pure_excess(epsilon: float, orders: Sequence[int]) -> Array:
    r"""Excess of randomised response, the worst of all that is ε-DP.

    .. math:: \ln \frac{(e^{(\alpha-1)\varepsilon} - 1)
      (1 - e^{-\alpha\varepsilon})}{1 + e^{-\varepsilon}}

    Whatever is ε-DP is a post-processing of it (Kairouz, Oh and Viswanath, *The
    composition theorem for differential privacy*, 2015).
    """
    alpha = np.asarray(orders, np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        epsilon = min(epsilon, _HUGE)
        growth = np.minimum((alpha - 1) * epsilon, _HUGE)
        excess: Array = (
            _log_expm1(growth)
            + np.log(-np.expm1(-alpha * epsilon))
            - np.log1p(np.exp(-epsilon))
        )
    size: Array = growth + np.maximum(-excess, 0.0).clip(max=1e3)
    return excess + 8 * ULP * (1 + size)


def divergence(excess: Array, orders: Sequence[int]) -> Array:
    """The divergence ln(1 + e^excess)/(α-1), rounded up."""
    steps = np.asarray(orders, np.float64) - 1
    result: Array = np.logaddexp(0.0, excess) / steps
    return result * (1 + 8 * ULP)


def poisson_gaussian_divergence(
    q: float, z: float, orders: Sequence[int]
) -> Array:
    r"""Rényi divergence of a Poisson-subsampled Gaussian, rounded up.

    .. math:: \frac{1}{\alpha-1} \ln \Big(1 + \sum_{k=2}^\alpha
      \binom{\alpha}{k} q^k (1-q)^{\alpha-k}
      \big(e^{k(k-1)/(2 z^2)} - 1\big)\Big)

    for every α of `orders`, q the probability of sampling, z the noise
    multiplier: the divergence of (1-q) N(0, z²) + q N(1, z²) from N(0, z²).
    With q = 1 it is α/(2z²).

    Example:
      >>> poisson_gaussian_divergence(0.01, 1.0, [2, 8]).round(6)
      array([0.000172, 0.000894])
    """
    return divergence(gaussian_excess(q, z, orders), orders)


def mixed_excess(
    weights: Array, divergences: Array, orders: Sequence[int]
) -> Array:
    r"""Excess of a public mixture, the draw included.

    .. math:: \ln \sum_k p_k \big(e^{(\alpha-1)\rho_k(\alpha)} - 1\big)

    with p = `weights` and ρ_k the rows of `divergences`.
    """
    growth = divergences * (np.asarray(orders, np.float64) - 1)
    with np.errstate(divide="ignore"):
        terms = np.log(weights)[:, np.newaxis] + _log_expm1(growth)
        excess: Array = np.logaddexp.reduce(terms, axis=0)
    sizes: Array = (
        len(weights) - np.min(np.log(weights)) + np.max(growth, axis=0)
    )
    sizes += np.maximum(-excess, 0.0).clip(max=1e3)
    return excess + 8 * ULP * sizes
