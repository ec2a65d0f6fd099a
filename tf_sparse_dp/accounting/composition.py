"""Epsilon of a sequence of different events that was fixed beforehand."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import dp_accounting
import numpy as np
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting.accountants import (
    PLD_MAX_COMPOSITIONS,
    PLD_MAX_LOSS,
    RDP_ORDERS,
    ideal_epsilon,
    numerical_error,
    pure_epsilon,
)
from tf_sparse_dp.accounting.arguments import check_relation
from tf_sparse_dp.accounting.calibration import epsilon_with_failures
from tf_sparse_dp.accounting.costs import Cost, UnknownCost, sum_of
from tf_sparse_dp.accounting.divergences import ULP
from tf_sparse_dp.accounting.filters.renyi import renyi_epsilon
from tf_sparse_dp.accounting.loss_distributions import (
    composed_pld,
    largest_loss,
)
from tf_sparse_dp.accounting.parts import (
    ADD_OR_REMOVE_ONE,
    Counted,
    Parts,
    parts_of,
)
from tf_sparse_dp.accounting.renyi_costs import RenyiPrices

# Each costs tenths of a second.
_MAX_DIFFERENT = 64
# Beyond, epsilon says nothing, and the grid would be long.
_MAX_EPSILON = 500.0


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
    instead. The least of what privacy loss distributions say, where their
    rounding is small against `delta`, of what Rényi divergences say, and of the
    sum of all ε, if each event has one. `FailingDpEvent` is charged as in
    `overflow_charge`, with all failures together.

    For equal events this is what `PrivacyPlan.epsilon_spent` finds.

    Args:
      events: Events, and how often each occurs.
      delta: From 0 to 1.
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
    check_relation(neighboring_relation)
    if not 0 <= delta <= 1:
        raise ValueError(f"delta is {delta!r}, expected a number from 0 to 1.")
    events = list(events)
    parts = parts_of(events, neighboring_relation)
    for event, _ in events:
        unknown = unknown_part(event, neighboring_relation)
        if unknown is not None:
            raise privacy_accountant.UnsupportedEventError(
                f"the cost of {event!r} is not known. {unknown.event!r}: "
                f"{unknown.reason}"
            )
    if not parts.private:
        return math.inf
    if parts.unknown is not None:
        cost = _renyi_cost(events, neighboring_relation)
        return epsilon_with_failures(
            functools.partial(_by_renyi, cost),
            delta=delta,
            failure=cost.failure,
        )
    ideal = functools.partial(_ideal, parts, events, neighboring_relation)
    return epsilon_with_failures(ideal, delta=delta, failure=parts.failure)


def unknown_part(
    event: dp_accounting.DpEvent,
    neighboring_relation: dp_accounting.NeighboringRelation,
) -> UnknownCost | None:
    """Why the event cannot be composed here; None if it can."""
    if parts_of([(event, 1)], neighboring_relation).unknown is None:
        return None
    try:
        _prices(neighboring_relation).cost(event)
    except UnknownCost as unknown:
        return unknown
    return None


def _ideal(
    parts: Parts,
    events: list[Counted],
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
                relation="add_or_remove_one",
                noise=release.noise,
            )
    pure = _pure(parts, delta)
    if delta == 0:
        return pure
    found = min(pure, _by_renyi(_renyi_cost(events, relation), delta))
    error = pld_error(parts)
    if found <= _MAX_EPSILON and _trusted(parts, error, delta):
        losses = composed_pld(parts)
        found = min(found, float(losses.get_epsilon_for_delta(delta - error)))
    return found


def _pure(parts: Parts, delta: float) -> float:
    """The sum of all ε, rounded up, if that of all δ does not exceed delta."""
    if parts.mixtures:
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
    return numerical_error(parts.size) + parts.different * numerical_error(1)


def _trusted(parts: Parts, error: float, delta: float) -> bool:
    return (
        delta >= 2 * error
        and parts.different <= _MAX_DIFFERENT
        and parts.size <= PLD_MAX_COMPOSITIONS
        and largest_loss(parts) <= PLD_MAX_LOSS
    )


@functools.lru_cache(maxsize=4)
def _prices(relation: dp_accounting.NeighboringRelation) -> RenyiPrices:
    """Prices remember what events cost."""
    return RenyiPrices(RDP_ORDERS, relation)


def _renyi_cost(
    events: Iterable[Counted],
    relation: dp_accounting.NeighboringRelation,
) -> Cost:
    prices = _prices(relation)
    total = Cost((0.0,) * len(RDP_ORDERS))
    for event, count in events:
        total = sum_of(total, prices.cost(event), count)
    return total


def _by_renyi(cost: Cost, delta: float) -> float:
    remaining = delta - cost.delta
    if remaining <= 0:
        return math.inf
    orders = np.asarray(RDP_ORDERS, np.float64)
    divergences = np.asarray(cost.sizes)
    return float(np.min(renyi_epsilon(divergences, orders, remaining)))
