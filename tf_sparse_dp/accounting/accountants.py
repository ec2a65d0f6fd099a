"""Epsilon of composed noise, on the safe side of every rounding.

Two accountants of `dp_accounting` do the work. Privacy loss distributions (PLD)
are all but exact, as long as delta is well above the rounding of the Fourier
transform that composes them; Rényi divergences (RDP) are looser, by a tenth and
more where noise is small and steps are few, but
have no such floor. `ideal_epsilon` uses the first where it can be trusted.

Laplace noise gives every composition an epsilon of its own at delta = 0. These
add up, and that sum bounds what an accountant finds ("pure").
"""

from __future__ import annotations

import fractions
import functools
import math
from typing import Literal, TypeAlias

import dp_accounting
import numpy as np
from scipy import special, stats

from tf_sparse_dp.accounting.divergences import ULP
from tf_sparse_dp.accounting.events import (
    Noise,
    neighbouring_relation,
    training_event,
)
from tf_sparse_dp.accounting.progress import evaluating

# A Gaussian is cut at 10 standard deviations (a mass of e^-50 goes to infinite
# loss), so the loss of one release lies within 10/z + 1/(2 z²). Beyond this the
# exponentials of losses leave the range of floats; such noise is no privacy.
PLD_MAX_LOSS = 200.0
# `numerical_error` was measured up to here.
PLD_MAX_COMPOSITIONS = 1_000_000
GRID_POINTS = 25_000
PLD: TypeAlias = (
    dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution
)
# Integer orders only: their Rényi divergence is a sum of positive terms. The
# alternating series of fractional orders fails to converge for some noise.
RDP_ORDERS = (
    *range(2, 64),
    *(64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
)


def numerical_error(compositions: int) -> float:
    r"""Bound on what rounding does to the delta of a composed PLD.

    Composition raises each Fourier coefficient, of modulus at most 1, to the
    power k = `compositions`, which multiplies its relative error of a few units
    in the last place by k. The error of the tail mass, a sum of such errors,
    was measured against exponentially tilted convolutions (which have
    *relative* accuracy in the tail) at about k·1.5e-16, of either sign: without
    this allowance, epsilon at a small delta can be reported too low. The
    factor 8 ulp = 1.8e-15 is ten times what was measured; the constant covers
    the mass of 1e-15 that the tails are cut by.
    """
    return 8 * ULP * (compositions + 16)


def loss_range(noise: Noise, noise_multiplier: float) -> float:
    """Bound on the loss of one release, but for a mass that is charged."""
    if noise == "laplace":
        return 1 / noise_multiplier
    return 10 / noise_multiplier + 0.5 / noise_multiplier**2


def chi_squared(noise: Noise, noise_multiplier: float) -> float:
    """Variance of the likelihood ratio of one release without sampling."""
    if noise == "laplace":
        loss = 1 / noise_multiplier
        return (2 * math.expm1(loss) + math.expm1(-2 * loss)) / 3
    return math.expm1(noise_multiplier**-2)


def _grid_interval(
    noise: Noise,
    probability: float,
    noise_multiplier: float,
    compositions: int,
    grid_points: int,
) -> float:
    """Width of the grid on which the losses of one release are placed.

    The discretisation only ever overstates the loss. Against a loss of standard
    deviation s it overstates the variance by about h²/(6 s²) for an interval of
    h, so s/12 costs less than 0.1 % of epsilon. The number of grid points is
    bounded where heavy tails would make that too slow.
    """
    largest = loss_range(noise, noise_multiplier)
    gain = math.log1p(probability * math.expm1(largest))
    loss = largest if probability == 1 else -math.log1p(-probability)
    extent = gain + min(loss, largest)
    spread = probability * math.sqrt(chi_squared(noise, noise_multiplier))
    if noise == "laplace" and compositions > 20:
        # Losses are bounded, so that few points are enough, and there are many
        # after composition: at most 0.02 % of epsilon was measured.
        return max(min(spread / 24, 1e-3), extent / grid_points, 1e-10)
    return max(
        # Up to 1000 points are composed by other code, which first raises the
        # number of points to the power of compositions: very slow for many.
        min(spread / 12, 1e-3, extent / 1500),
        extent / grid_points,
        1e-10,
    )


@functools.lru_cache(maxsize=32)
def release_pld(
    noise: Noise, probability: float, noise_multiplier: float, interval: float
) -> PLD:
    """Losses of one release; the same for both neighbouring relations.

    Zeroing a unit and removing it give the same pair of distributions, noise
    around 0 against noise around 1, in this order and in the other. For many
    coordinates it is the worst pair: Gaussians turn with the difference, and
    for Laplace noise see `training_event`.
    """
    if noise == "laplace":
        laplace = dp_accounting.pld.privacy_loss_distribution
        return laplace.from_laplace_mechanism(
            parameter=noise_multiplier,
            sampling_prob=probability,
            value_discretization_interval=interval,
        )
    return dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=probability,
        value_discretization_interval=interval,
    )


@functools.lru_cache(maxsize=2)
def _composed_pld(
    noise: Noise,
    probability: float,
    noise_multiplier: float,
    interval: float,
    compositions: int,
) -> PLD:
    losses = release_pld(noise, probability, noise_multiplier, interval)
    return losses.self_compose(compositions)


@functools.lru_cache(maxsize=4096)
def _pld_epsilon(
    noise: Noise,
    probability: float,
    noise_multiplier: float,
    interval: float,
    compositions: int,
    delta: float,
) -> float:
    losses = _composed_pld(
        noise, probability, noise_multiplier, interval, compositions
    )
    remaining = delta - numerical_error(compositions)
    return float(losses.get_epsilon_for_delta(remaining))


@functools.lru_cache(maxsize=16)
def _rdp(
    probability: float | None,
    noise_multiplier: float,
    compositions: int,
    relation: str,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    accountant = dp_accounting.rdp.RdpAccountant(
        list(RDP_ORDERS), neighbouring_relation(relation)
    ).compose(
        training_event(
            sampling_probability=probability,
            noise_multiplier=noise_multiplier,
            compositions=compositions,
        )
    )
    orders = np.asarray(RDP_ORDERS, dtype=np.float64)
    # Log-gammas of the order carry the rounding, and can turn a divergence of
    # next to nothing negative.
    rounding = 8 * ULP * (1 + orders * np.log(orders)) / (orders - 1)
    values: np.ndarray[tuple[int], np.dtype[np.float64]]
    values = np.maximum(accountant.rdp, 0) + compositions * rounding
    return values


def pure_epsilon(
    *,
    sampling_probability: float | None,
    noise_multiplier: float,
    compositions: int,
) -> float:
    r"""Epsilon of Laplace noise at delta = 0, rounded up.

    .. math:: k / z \quad\text{or}\quad k \ln(1 + q (e^{1/z} - 1))

    with k = `compositions`, z = `noise_multiplier`, q = `sampling_probability`:
    a release is (1/z)-DP, and a likelihood ratio between e^(-1/z) and e^(1/z)
    that matters with probability q only lies between 1 - q + q e^(-1/z) and
    1 - q + q e^(1/z), of which the second is further from 1.

    Example:
      >>> pure_epsilon(
      ...     sampling_probability=None, noise_multiplier=1.5, compositions=3
      ... )
      2.0
    """
    if sampling_probability is None:
        exact = compositions / fractions.Fraction(noise_multiplier)
        nearest = float(exact)
        return (
            nearest if nearest >= exact else math.nextafter(nearest, math.inf)
        )
    loss = 1 / noise_multiplier
    if loss < 700:  # Beyond, sampling gains next to nothing.
        loss = math.log1p(sampling_probability * math.expm1(loss))
    return compositions * loss * (1 + 16 * ULP)


@functools.lru_cache(maxsize=16)
def _laplace_rdp(
    probability: float, noise_multiplier: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rényi divergences of one release with Laplace noise.

    With densities p and r of noise around 0 and 1, and α an integer,
    E_p[((1-q) + q r/p)^α] is a sum over j of binomial weights times
    E_p[(r/p)^j] = (j e^((j-1)/z) + (j-1) e^(-j/z)) / (2j-1). Reflection swaps
    p and r, so the divergence in the other direction is not larger (Mironov,
    Talwar and Zhang, 2019, Theorem 5).
    """
    loss = 1 / noise_multiplier
    values = np.empty(len(RDP_ORDERS))
    for place, order in enumerate(RDP_ORDERS):
        j = np.arange(order + 1, dtype=np.float64)
        with np.errstate(divide="ignore"):
            weights = stats.binom.logpmf(j, order, probability)
            # For j = 0 the two terms are 0 and 1, for j = 1 they are 1 and 0.
            moments = np.logaddexp(
                np.log(j / (2 * j - 1)) + (j - 1) * loss,
                np.log((j - 1) / (2 * j - 1)) - j * loss,
            )
        total = special.logsumexp(weights + moments)
        # Log-gammas of the order carry the rounding, and large exponents.
        rounding = 64 * ULP * (1 + order * (math.log(order) + loss))
        values[place] = (max(total, 0.0) + rounding) / (order - 1)
    return values


def accountant_for(
    *,
    sampling_probability: float | None,
    noise_multiplier: float,
    compositions: int,
    delta: float,
    noise: Noise = "gaussian",
) -> Literal["PLD", "RDP", "pure"]:
    """Which accountant answers: "PLD" where it can be trusted, else "RDP".

    "pure" for delta = 0, where the answer is a sum.
    """
    if delta == 0:
        return "pure"
    if sampling_probability is None and noise == "gaussian":
        noise_multiplier, compositions = _joined(noise_multiplier, compositions)
    trusted = (
        delta >= 2 * numerical_error(compositions)
        and loss_range(noise, noise_multiplier) <= PLD_MAX_LOSS
        and compositions <= PLD_MAX_COMPOSITIONS
    )
    return "PLD" if trusted else "RDP"


def _joined(noise_multiplier: float, compositions: int) -> tuple[float, int]:
    """Gaussians of one noise are one Gaussian: nothing to convolve."""
    return noise_multiplier / math.sqrt(compositions), 1


def ideal_epsilon(
    *,
    sampling_probability: float | None,
    noise_multiplier: float,
    compositions: int,
    delta: float,
    relation: str,
    noise: Noise = "gaussian",
    grid_points: int = GRID_POINTS,
) -> float:
    """Epsilon at `delta` of batches that never overflow; an upper bound."""
    choice = accountant_for(
        sampling_probability=sampling_probability,
        noise_multiplier=noise_multiplier,
        compositions=compositions,
        delta=delta,
        noise=noise,
    )
    pure = math.inf
    if noise == "laplace":
        pure = pure_epsilon(
            sampling_probability=sampling_probability,
            noise_multiplier=noise_multiplier,
            compositions=compositions,
        )
    if choice == "pure":
        return pure
    if choice == "RDP":
        if noise == "laplace":
            divergences = compositions * _laplace_rdp(
                sampling_probability or 1.0, noise_multiplier
            )
        else:
            divergences = _rdp(
                sampling_probability, noise_multiplier, compositions, relation
            )
        epsilon, _ = dp_accounting.rdp.compute_epsilon(
            RDP_ORDERS, divergences, delta
        )
        return min(pure, float(epsilon))
    probability = sampling_probability
    if probability is None:
        probability = 1.0
        if noise == "gaussian":
            noise_multiplier, compositions = _joined(
                noise_multiplier, compositions
            )
    interval = _grid_interval(
        noise, probability, noise_multiplier, compositions, grid_points
    )
    evaluating(
        f"noise multiplier {noise_multiplier:.5g}, sampling probability "
        f"{probability:.3g}, {compositions} times"
    )
    found = _pld_epsilon(
        noise, probability, noise_multiplier, interval, compositions, delta
    )
    return min(pure, found)
