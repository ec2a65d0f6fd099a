"""Epsilon of composed Gaussians, on the safe side of every rounding.

Two accountants of `dp_accounting` do the work. Privacy loss distributions (PLD)
are all but exact, as long as delta is well above the rounding of the Fourier
transform that composes them; Rényi divergences (RDP) are looser, by a tenth and
more where noise is small and steps are few, but
have no such floor. `ideal_epsilon` uses the first where it can be trusted.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, TypeAlias

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.events import (
    neighbouring_relation,
    training_event,
)

_ULP = 2.0**-52
# A Gaussian is cut at 10 standard deviations (a mass of e^-50 goes to infinite
# loss), so the loss of one release lies within 10/z + 1/(2 z²). Beyond this the
# exponentials of losses leave the range of floats; such noise is no privacy.
_PLD_MAX_LOSS = 200.0
# `numerical_error` was measured up to here.
_PLD_MAX_COMPOSITIONS = 1_000_000
GRID_POINTS = 25_000
_PLD: TypeAlias = (
    dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution
)
# Integer orders only: their Rényi divergence is a sum of positive terms. The
# alternating series of fractional orders fails to converge for some noise.
_RDP_ORDERS = (
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
    return 8 * _ULP * (compositions + 16)


def _loss_range(noise_multiplier: float) -> float:
    return 10 / noise_multiplier + 0.5 / noise_multiplier**2


def _grid_interval(
    probability: float, noise_multiplier: float, grid_points: int
) -> float:
    """Width of the grid on which the losses of one release are placed.

    The discretisation only ever overstates the loss. Against a loss of standard
    deviation s it overstates the variance by about h²/(6 s²) for an interval of
    h, so s/12 costs less than 0.1 % of epsilon. The number of grid points is
    bounded where heavy tails would make that too slow.
    """
    largest = _loss_range(noise_multiplier)
    gain = math.log1p(probability * math.expm1(largest))
    loss = largest if probability == 1 else -math.log1p(-probability)
    extent = gain + min(loss, largest)
    spread = probability * math.sqrt(math.expm1(noise_multiplier**-2))
    return max(
        # Up to 1000 points are composed by other code, which first raises the
        # number of points to the power of compositions: very slow for many.
        min(spread / 12, 1e-3, extent / 1500),
        extent / grid_points,
        1e-10,
    )


@functools.lru_cache(maxsize=8)
def _release_pld(
    probability: float, noise_multiplier: float, interval: float
) -> _PLD:
    """Losses of one release; the same for both neighbouring relations.

    Zeroing a unit and removing it give a Gaussian the same pair of
    distributions, N(0, z²) against N(1, z²), in this order and in the other.
    """
    return dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=probability,
        value_discretization_interval=interval,
    )


@functools.lru_cache(maxsize=2)
def _composed_pld(
    probability: float,
    noise_multiplier: float,
    interval: float,
    compositions: int,
) -> _PLD:
    losses = _release_pld(probability, noise_multiplier, interval)
    return losses.self_compose(compositions)


@functools.lru_cache(maxsize=4096)
def _pld_epsilon(
    probability: float,
    noise_multiplier: float,
    interval: float,
    compositions: int,
    delta: float,
) -> float:
    losses = _composed_pld(
        probability, noise_multiplier, interval, compositions
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
        list(_RDP_ORDERS), neighbouring_relation(relation)
    ).compose(
        training_event(
            sampling_probability=probability,
            noise_multiplier=noise_multiplier,
            compositions=compositions,
        )
    )
    orders = np.asarray(_RDP_ORDERS, dtype=np.float64)
    # Log-gammas of the order carry the rounding, and can turn a divergence of
    # next to nothing negative.
    rounding = 8 * _ULP * (1 + orders * np.log(orders)) / (orders - 1)
    values: np.ndarray[tuple[int], np.dtype[np.float64]]
    values = np.maximum(accountant.rdp, 0) + compositions * rounding
    return values


def accountant_for(
    *,
    sampling_probability: float | None,
    noise_multiplier: float,
    compositions: int,
    delta: float,
) -> Literal["PLD", "RDP"]:
    """Which accountant answers: "PLD" where it can be trusted, else "RDP"."""
    if sampling_probability is None:
        noise_multiplier, compositions = _joined(noise_multiplier, compositions)
    trusted = (
        delta >= 2 * numerical_error(compositions)
        and _loss_range(noise_multiplier) <= _PLD_MAX_LOSS
        and compositions <= _PLD_MAX_COMPOSITIONS
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
    grid_points: int = GRID_POINTS,
) -> float:
    """Epsilon at `delta` of batches that never overflow; an upper bound."""
    choice = accountant_for(
        sampling_probability=sampling_probability,
        noise_multiplier=noise_multiplier,
        compositions=compositions,
        delta=delta,
    )
    if choice == "RDP":
        divergences = _rdp(
            sampling_probability, noise_multiplier, compositions, relation
        )
        epsilon, _ = dp_accounting.rdp.compute_epsilon(
            _RDP_ORDERS, divergences, delta
        )
        return float(epsilon)
    probability = sampling_probability
    if probability is None:
        noise_multiplier, compositions = _joined(noise_multiplier, compositions)
        probability = 1.0
    interval = _grid_interval(probability, noise_multiplier, grid_points)
    return _pld_epsilon(
        probability, noise_multiplier, interval, compositions, delta
    )
