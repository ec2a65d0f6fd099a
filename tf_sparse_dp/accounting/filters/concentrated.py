"""A filter of zero-concentrated differential privacy."""

from __future__ import annotations

import functools
from typing import Any

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.costs import (
    Cost,
    Prices,
    UnknownCost,
    checked_number,
)
from tf_sparse_dp.accounting.divergences import ULP, Array
from tf_sparse_dp.accounting.dp_events import ApproxDpEvent
from tf_sparse_dp.accounting.filters.additive import AdditiveFilter
from tf_sparse_dp.accounting.filters.interface import ADD_OR_REMOVE_ONE
from tf_sparse_dp.accounting.filters.renyi import (
    EVENT_SHARE,
    checked_event_delta,
    renyi_budgets,
    renyi_epsilon,
)

_Relation = dp_accounting.NeighboringRelation
_ZCDpEvent: Any = getattr(dp_accounting, "ZCDpEvent", None)
# Any order gives a bound; these are fine enough to find nearly the best.
_ORDERS = 1 + np.geomspace(2.0**-12, 2.0**40, 64 * 52 + 1)


def _half_square(change: float, noise: float) -> float:
    """(change/noise)²/2, rounded up."""
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.float64(change) / np.float64(noise)
        return float(ratio * ratio * 0.5 * (1 + 4 * ULP))


class ConcentratedPrices(Prices):
    """Costs as ρ: a Rényi divergence of at most αρ at every order α.

    A Gaussian has ρ = 1/(2z²); what is ε-DP has ε²/2 (Bun and Steinke,
    *Concentrated differential privacy*, 2016, Propositions 1.4 and 1.6). A
    public mixture has at most the largest ρ of its components.
    """

    def __init__(self, neighboring_relation: dp_accounting.NeighboringRelation):
        super().__init__(neighboring_relation, 1)

    def _release(self, event: dp_accounting.DpEvent) -> Cost:
        kind = type(event)
        replace = self._relation is _Relation.REPLACE_ONE
        if kind in (
            dp_accounting.GaussianDpEvent,
            dp_accounting.LaplaceDpEvent,
        ):
            noise = checked_number(event, "noise_multiplier")
            return self._flat(_half_square(2.0 if replace else 1.0, noise))
        if kind is ApproxDpEvent:
            return self._flat(_half_square(event.epsilon, 1.0), event.delta)
        if kind is _ZCDpEvent and event.xi == 0:
            return self._flat(checked_number(event, "rho"))
        raise UnknownCost(
            event,
            "it has no ρ of zero-concentrated DP. Sampled noise has none "
            "that is better than without sampling; RenyiFilter knows what "
            "sampling gains.",
        )

    def _mixed(self, weights: Array, sizes: Array) -> Array:
        largest: Array = np.max(sizes, axis=0)
        return largest


@functools.cache
def _prices(
    relation: dp_accounting.NeighboringRelation,
) -> ConcentratedPrices:
    return ConcentratedPrices(relation)


@functools.lru_cache(maxsize=256)
def _budget(epsilon: float, delta: float) -> float:
    budgets = renyi_budgets(epsilon, _ORDERS, delta) / _ORDERS
    return float(np.max(budgets)) * (1 - 4 * ULP)


class ZcdpFilter(AdditiveFilter):
    r"""Adaptive spending of zero-concentrated DP.

    .. math:: \sum_t \rho_t \le B = \max_\alpha \frac{1}{\alpha} \Big(
      \varepsilon - \ln(1 - 1/\alpha)
      + \frac{\ln(\alpha \delta')}{\alpha - 1} \Big)

    with δ' what is left of δ beside `event_delta`. For Gaussian noise without
    sampling it is the filter to use.

    **Guarantee**: that of `PrivacyFilter`. Proof: the maximum is at an order
    that depends on the budget only. The filter is that of a `RenyiFilter` with
    this one order: its divergences are at most αρ_t, its budget is αB.

    Args:
      epsilon: The budget.
      delta: The budget.
      event_delta: The part of delta for deltas (`ApproxDpEvent`) and failures
        (`FailingDpEvent`) of events; None for a 1024th.
      neighboring_relation: Of `dp_accounting`; the one for which events hold.

    Example:
      >>> budget = ZcdpFilter(epsilon=3.0, delta=1e-6)
      >>> budget.affordable(dp_accounting.GaussianDpEvent(20.0), most=1000)
      148
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        event_delta: float | None = None,
        neighboring_relation: dp_accounting.NeighboringRelation = (
            ADD_OR_REMOVE_ONE
        ),
    ):
        event_delta = checked_event_delta(
            epsilon, delta, event_delta, EVENT_SHARE
        )
        share = (delta - event_delta) * (1 - 4 * ULP)
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            event_delta=event_delta,
            prices=_prices(neighboring_relation),
            budgets=(_budget(epsilon, share),),
            neighboring_relation=neighboring_relation,
        )

    def _epsilon_at(self, delta: float) -> float:
        (rho,) = self._spent.sizes
        divergences = rho * _ORDERS * (1 + ULP)
        return float(np.min(renyi_epsilon(divergences, _ORDERS, delta)))
