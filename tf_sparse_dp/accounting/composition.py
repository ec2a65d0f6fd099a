"""Epsilon of a sequence of different events that was fixed beforehand."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import dp_accounting
import numpy as np
from dp_accounting import privacy_accountant
from scipy import special

from tf_sparse_dp.accounting.accountants import (
    PLD_MAX_COMPOSITIONS,
    PLD_MAX_LOSS,
    RDP_ORDERS,
    ULP,
    ideal_epsilon,
    numerical_error,
    pure_epsilon,
    renyi_divergences,
)
from tf_sparse_dp.accounting.calibration import epsilon_with_failures
from tf_sparse_dp.accounting.loss_distributions import (
    composed_pld,
    largest_loss,
    mixtures_known,
)
from tf_sparse_dp.accounting.parts import (
    ADD_OR_REMOVE_ONE,
    Counted,
    Parts,
    parts_of,
)

# Each costs tenths of a second.
_MAX_DIFFERENT = 64


def composed_epsilon(
    events: Iterable[Counted],
    *,
    delta: float,
    neighboring_relation: dp_accounting.NeighboringRelation = ADD_OR_REMOVE_ONE,
) -> float:
    r"""Epsilon at `delta` of events that were fixed beforehand.

    **Guarantee**: an upper bound, if events, their parameters and their number
    do not depend on what they released. A run that was stopped, or whose noise
    was changed, because of what it released has a budget (`PrivacyFilter`)
    instead. Privacy loss distributions where their rounding is small against
    `delta`, Rényi divergences elsewhere; the sum of all ε, if each event has
    one, where that is smaller. `FailingDpEvent` is charged as in
    `overflow_charge`, with all failures together.

    For equal events this is what `PrivacyPlan.epsilon_spent` finds.

    Args:
      events: Events, and how often each occurs.
      delta: From 0 to below 1.
      neighboring_relation: Of `dp_accounting`; the one for which events hold.

    Returns:
      Epsilon; infinite if there is none.

    Raises:
      UnsupportedEventError: The cost of an event is not known.
      ValueError: A number is out of range.

    Example:
      >>> step = dp_accounting.PoissonSampledDpEvent(
      ...     0.01, dp_accounting.GaussianDpEvent(1.0)
      ... )
      >>> last = dp_accounting.LaplaceDpEvent(10.0)
      >>> round(composed_epsilon([(step, 1000)], delta=1e-6), 2)
      2.13
      >>> round(composed_epsilon([(step, 1000), (last, 1)], delta=1e-6), 2)
      2.16
    """
    if not 0 <= delta < 1:
        raise ValueError(
            f"delta is {delta!r}, expected a number from 0 to below 1."
        )
    parts = parts_of(events, neighboring_relation)
    if not parts.private:
        return math.inf
    ideal = functools.partial(_ideal, parts, neighboring_relation)
    return epsilon_with_failures(ideal, delta=delta, failure=parts.failure)


def _ideal(
    parts: Parts,
    relation: dp_accounting.NeighboringRelation,
    delta: float,
) -> float:
    if parts.size == 0:
        return 0.0
    if len(parts.releases) == 1 and parts.size == parts.releases.total():
        (release,) = parts.releases
        if delta > 0 or release.noise == "laplace":
            return ideal_epsilon(
                sampling_probability=release.sampling_probability,
                noise_multiplier=release.noise_multiplier,
                compositions=parts.size,
                delta=delta,
                relation=_name(relation),
                noise=release.noise,
            )
    pure = _pure(parts, delta)
    if delta == 0:
        return pure
    error = pld_error(parts)
    if _trusted(parts, error, delta):
        losses = composed_pld(parts)
        return min(pure, float(losses.get_epsilon_for_delta(delta - error)))
    return min(pure, _by_renyi(parts, relation, delta))


def _name(relation: dp_accounting.NeighboringRelation) -> str:
    # Without sampling, which other relations do not have, no accountant asks.
    return "add_or_remove_one" if relation is ADD_OR_REMOVE_ONE else "zero_out"


def _pure(parts: Parts, delta: float) -> float:
    """The sum of all ε, rounded up, if that of all δ does not exceed delta."""
    if parts.mixtures or parts.others:
        return math.inf
    terms, deltas = [], []
    for release, count in parts.releases.items():
        if release.noise != "laplace":
            return math.inf
        terms.append(
            pure_epsilon(
                sampling_probability=release.sampling_probability,
                noise_multiplier=release.noise_multiplier,
                compositions=count,
            )
        )
    for (epsilon, single), count in parts.approximate.items():
        terms.append(math.nextafter(count * epsilon, math.inf))
        deltas.append(math.nextafter(count * single, math.inf) if single else 0)
    if math.fsum(deltas) > delta:
        return math.inf
    return math.fsum(terms) * (1 + ULP if len(terms) > 1 else 1)


def pld_error(parts: Parts) -> float:
    """Bound on what rounding does to delta: that of every convolution."""
    different = (parts.releases, parts.approximate, parts.mixtures)
    convolutions = sum(len(counted) for counted in different)
    return numerical_error(parts.size) + convolutions * numerical_error(1)


def _trusted(parts: Parts, error: float, delta: float) -> bool:
    different = (parts.releases, parts.approximate, parts.mixtures)
    return (
        delta >= 2 * error
        and not parts.others
        and sum(len(counted) for counted in different) <= _MAX_DIFFERENT
        and parts.size <= PLD_MAX_COMPOSITIONS
        and largest_loss(parts) <= PLD_MAX_LOSS
        and mixtures_known(parts)
    )


def _by_renyi(
    parts: Parts, relation: dp_accounting.NeighboringRelation, delta: float
) -> float:
    divergences, given_away = _renyi(parts, relation)
    remaining = delta - given_away
    if remaining <= 0:
        return math.inf
    epsilon, _ = dp_accounting.rdp.compute_epsilon(
        RDP_ORDERS, divergences, remaining
    )
    return float(epsilon)


def _renyi(
    parts: Parts, relation: dp_accounting.NeighboringRelation
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], float]:
    """Rényi divergences at all orders, and the δ of (ε, δ) releases.

    Randomised response that tells all with probability δ is, but for that
    probability, one that does not; so the δ add up and the rest composes.
    """
    orders = np.asarray(RDP_ORDERS, dtype=np.float64)
    total = np.zeros_like(orders)
    given_away = 0.0
    for release, count in parts.releases.items():
        total += renyi_divergences(
            release.noise,
            release.sampling_probability,
            release.noise_multiplier,
            count,
            _name(relation),
        )
    for (epsilon, delta), count in parts.approximate.items():
        given_away += count * delta
        moments = np.logaddexp(orders * epsilon, (1 - orders) * epsilon)
        moments -= np.logaddexp(0.0, epsilon)
        total += count * (np.maximum(moments, 0.0) + 64 * ULP) / (orders - 1)
    for mixture, count in parts.mixtures.items():
        logs = []
        for weight, event in zip(
            mixture.probabilities, mixture.events, strict=True
        ):
            inner, lost = _renyi(parts_of([(event, 1)], relation), relation)
            given_away += count * weight * lost
            if weight > 0:
                logs.append(math.log(weight) + (orders - 1) * inner)
        moments = special.logsumexp(logs, axis=0)
        total += count * (np.maximum(moments, 0.0) + 64 * ULP) / (orders - 1)
    for event, _ in parts.others:
        raise privacy_accountant.UnsupportedEventError(
            f"the cost of {event!r} is not known under {relation.name}. Use "
            "events that are: Gaussian or Laplace noise, sampled by Poisson "
            "or not, ApproxDpEvent, and what is composed of them."
        )
    return total * (1 + 64 * ULP), given_away * (1 + 64 * ULP)
