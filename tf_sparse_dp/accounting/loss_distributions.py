"""Privacy loss distributions of different releases, on one grid.

`dp_accounting` composes distributions whose grids are the same. A grid only
ever overstates losses ("connect the dots", see `PrivacyPlan`).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.accountants import (
    GRID_POINTS,
    PLD,
    chi_squared,
    loss_range,
    release_pld,
)
from tf_sparse_dp.accounting.divergences import ULP
from tf_sparse_dp.accounting.parts import Mixture, Parts, Release

_distribution = dp_accounting.pld.privacy_loss_distribution
_mechanism = dp_accounting.pld.privacy_loss_mechanism
_pmf = dp_accounting.pld.pld_pmf


def largest_loss(parts: Parts) -> float:
    """Beyond which no release goes, but for a mass that is charged."""
    losses = [
        loss_range(release.noise, release.noise_multiplier)
        for release, _ in _single(parts)
    ]
    losses += [epsilon for epsilon, _ in parts.approximate]
    return max(losses, default=0.0)


def _single(parts: Parts) -> list[tuple[Release, int]]:
    """All releases, those of mixtures included, with how often at most."""
    mixed = [
        (release, count)
        for mixture, count in parts.mixtures.items()
        for release in mixture.releases
        if release is not None
    ]
    return [*parts.joined().items(), *mixed]


def grid_interval(parts: Parts) -> float:
    """Width of the grid for losses of all parts together.

    Moving a loss to both ends of an interval of width h, in proportion, adds
    at most h²/4 to the variance; with h = s/12, s² being the mean variance of
    all releases, that is 0.2 % of the variance and 0.1 % of epsilon. The number
    of grid points is bounded where heavy tails would make that too slow. A
    power of two, so that beginnings of one sequence share their grid.
    """
    variance = extent = 0.0
    for release, count in _single(parts):
        probability = release.sampling_probability or 1.0
        largest = loss_range(release.noise, release.noise_multiplier)
        gain = math.log1p(probability * math.expm1(largest))
        chi = chi_squared(release.noise, release.noise_multiplier)
        spread = min(probability * math.sqrt(chi), gain)
        variance += count * spread**2
        extent = max(extent, 2 * gain)
    for (epsilon, _), count in parts.approximate.items():
        variance += count * (epsilon * math.tanh(epsilon / 2))
        extent = max(extent, 2 * epsilon)
    width = min(math.sqrt(variance / parts.size) / 12, 1e-3)
    width = max(width, extent / (2 * GRID_POINTS), 1e-10)
    return 2.0 ** math.floor(math.log2(width))


def composed_pld(parts: Parts) -> PLD:
    """Losses of all parts together.

    Each release is a function of one draw from one of two distributions, the
    pair that dominates it, and so are all of them together of independent
    draws, in whatever order and with whatever queries they are made (Zhu, Dong
    and Wang, "Optimal Accounting of Differential Privacy via Characteristic
    Function", 2022, Theorem 10). Losses of independent draws add up.
    """
    interval = grid_interval(parts)
    several = [
        _release(release, interval, count)
        for release, count in parts.joined().items()
    ]
    several += [
        _approximate(epsilon, delta, interval, count)
        for (epsilon, delta), count in parts.approximate.items()
    ]
    several += [
        _mixture(mixture, interval, count)
        for mixture, count in parts.mixtures.items()
    ]
    return functools.reduce(lambda some, more: some.compose(more), several)


@functools.lru_cache(maxsize=64)
def _release(release: Release, interval: float, count: int) -> PLD:
    losses = release_pld(
        release.noise,
        release.sampling_probability or 1.0,
        release.noise_multiplier,
        interval,
    )
    return losses.self_compose(count)


@functools.lru_cache(maxsize=64)
def _approximate(
    epsilon: float, delta: float, interval: float, count: int
) -> PLD:
    """Of randomised response that tells all with probability δ.

    Every (ε, δ)-DP release is a function of it (Kairouz, Oh and Viswanath,
    "The Composition Theorem for Differential Privacy", 2015, Theorem 8).
    A mass m at the loss l between grid points a < b goes to both, so that m
    and m e^(-l), its masses under the two data sets, stay what they are: then
    no hockey-stick divergence falls, since t ↦ (1 - e^ε t)₊ is convex.
    """
    masses: dict[int, float] = {}
    keep = 1 / (1 + math.exp(-epsilon))
    for loss, mass in ((epsilon, keep), (-epsilon, 1 - keep)):
        below = math.floor(loss / interval)
        share = math.expm1(below * interval - loss) / math.expm1(-interval)
        share = min(max(share * (1 + 8 * ULP), 0.0), 1.0)
        mass *= 1 - delta
        masses[below + 1] = masses.get(below + 1, 0.0) + mass * share
        masses[below] = masses.get(below, 0.0) + mass * (1 - share)
    losses = _distribution.PrivacyLossDistribution
    return losses.create_from_rounded_probability(
        masses, delta, interval
    ).self_compose(count)


@functools.lru_cache(maxsize=64)
def _mixture(mixture: Mixture, interval: float, count: int) -> PLD:
    r"""Of a public draw together with what was drawn.

    .. math:: H(\varepsilon) = \sum_i p_i H_i(\varepsilon)

    with H the hockey-stick divergence: outcomes name their i, so the positive
    parts of different i do not mix.
    """
    directions = [
        _mixture_pmf(mixture, interval, direction)
        for direction in (
            _mechanism.AdjacencyType.REMOVE,
            _mechanism.AdjacencyType.ADD,
        )
    ]
    return _distribution.PrivacyLossDistribution(*directions).self_compose(
        count
    )


def _mixture_pmf(mixture: Mixture, interval: float, direction: Any) -> Any:
    losses = [_additive(release, direction) for release in mixture.releases]
    bounds = [loss.connect_dots_bounds() for loss in losses if loss is not None]
    lower = min([-1, *(math.floor(b.epsilon_lower / interval) for b in bounds)])
    upper = max([1, *(math.ceil(b.epsilon_upper / interval) for b in bounds)])
    epsilons = np.arange(lower, upper + 1) * interval
    total = math.fsum(mixture.probabilities)
    divergences = np.zeros_like(epsilons)
    for weight, loss in zip(mixture.probabilities, losses, strict=True):
        if loss is None:  # Nothing is released.
            found = np.maximum(-np.expm1(epsilons), 0.0)
        else:
            found = loss.get_delta_for_epsilon(epsilons)
        divergences += (weight / total) * found
    # Rounding must not let a divergence rise; where it does, lift those before.
    divergences = np.maximum.accumulate(divergences[::-1])[::-1]
    return _pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, lower, upper, np.clip(divergences, 0.0, 1.0)
    )


def _additive(release: Release | None, direction: Any) -> Any:
    if release is None:
        return None
    kind = (
        _mechanism.LaplacePrivacyLoss
        if release.noise == "laplace"
        else _mechanism.GaussianPrivacyLoss
    )
    return kind(
        release.noise_multiplier,
        sampling_prob=release.sampling_probability or 1.0,
        adjacency_type=direction,
    )
