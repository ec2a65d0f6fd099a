"""A filter of Rényi divergences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.arguments import checked_real
from tf_sparse_dp.accounting.divergences import ULP, Array
from tf_sparse_dp.accounting.filters.additive import AdditiveFilter
from tf_sparse_dp.accounting.filters.interface import ADD_OR_REMOVE_ONE
from tf_sparse_dp.accounting.renyi_costs import renyi_prices

# Of delta, for deltas and failures of events, unless told otherwise.
EVENT_SHARE = 2.0**-10
_MOST_ORDER = 4096
_CANDIDATES = (
    *range(2, 65),
    *(round(64 * 2 ** (step / 8)) for step in range(1, 49)),
)


def _terms(orders: Array, delta: float) -> tuple[Array, Array]:
    """What epsilon has beside the divergence, and its rounding."""
    first = np.log1p(-1 / orders)
    second = (math.log(delta) + np.log(orders)) / (orders - 1)
    size = np.abs(first) + (abs(math.log(delta)) + np.log(orders)) / (
        orders - 1
    )
    return first - second, 8 * ULP * size


def renyi_epsilon(divergences: Array, orders: Array, delta: float) -> Array:
    r"""Epsilon of a Rényi divergence at delta, for every order, rounded up.

    .. math:: \rho + \ln(1 - 1/\alpha) - \ln(\delta\alpha) / (\alpha - 1)

    Proof: for u = e^(L-ε) with L the privacy loss, 1 - 1/u is at most
    u^(α-1) (1 - 1/α)^α / (α-1), as calculus shows; E e^((α-1)L) ≤ e^((α-1)ρ)
    then bounds E(1 - e^(ε-L))₊ by δ (Canonne, Kamath and Steinke, *The discrete
    Gaussian for differential privacy*, 2020, Proposition 12). It holds as well
    for a part of the distribution in place of the whole.
    """
    beside, rounding = _terms(orders, delta)
    result: Array = (divergences + beside + rounding) * (1 + 4 * ULP)
    return np.maximum(result, 0.0)


def renyi_budgets(epsilon: float, orders: Array, delta: float) -> Array:
    """The largest divergence for every order that costs at most epsilon.

    Rounded down; negative where even none costs more.
    """
    beside, rounding = _terms(orders, delta)
    result: Array = epsilon - beside - rounding
    return result - 4 * ULP * np.abs(result)


def default_orders(epsilon: float, delta: float) -> tuple[int, ...]:
    """Three orders, up to the one that is best for Gaussian noise.

    Where sampling still gains a lot, the best order was found between 0.55
    times that one and that one itself, for all of 42 pairs of noise and
    sampling. Every order more costs ln(|Λ|)/(α-1) of ε.
    """
    orders = np.arange(2.0, _MOST_ORDER + 1)
    budgets = renyi_budgets(epsilon, orders, delta / 4)
    best = float(orders[np.argmax(budgets / orders)])
    grid = {max(2, round(best * share)) for share in (0.65, 0.8, 1.0)}
    return tuple(sorted(grid))


class RenyiFilter(AdditiveFilter):
    r"""Adaptive spending of Rényi divergences.

    .. math:: \exists \alpha \in \Lambda: \sum_t \rho_t(\alpha) \le B_\alpha
      = \varepsilon - \ln(1 - 1/\alpha)
      + \frac{\ln(\alpha \delta' / |\Lambda|)}{\alpha - 1}

    with Λ = `orders`, fixed before the first event, ρ_t the divergences of the
    events, and δ' what is left of δ beside `event_delta`. For training with
    sampled batches it is the filter to use.

    **Guarantee**: that of `PrivacyFilter`. Proof: fix α. As long as the sum is
    at most B_α, exp((α-1) (L_t - Σρ)) is a supermartingale, L_t being the
    privacy loss after event t, so that E exp((α-1) L) ≤ exp((α-1) B_α) at the
    last such time T_α, whatever the events were chosen by (Feldman and Zrnic,
    *Individual privacy accounting via a Rényi filter*, 2021, Theorem 4.3). By
    `renyi_epsilon` the hockey-stick divergence E(1 - e^(ε-L))₊ at T_α is at
    most δ'/|Λ|. The filter stops at T = max T_α, when *every* order is
    exceeded. T is one of the T_α, so the divergence at T is at most the sum of
    those at all T_α: δ'. What events reveal with probability and where they
    fail is within `event_delta` (`AdditiveFilter`).

    Args:
      epsilon: The budget.
      delta: The budget.
      orders: Integers of at least 2. Fewer orders allow more steps if one of
        them fits the events; a single one loses nothing to the choice, see
        `suited_to`. None for three that suit Gaussian noise, sampled or not.
      event_delta: The part of delta for deltas (`ApproxDpEvent`) and failures
        (`FailingDpEvent`) of events; None for a 1024th.
      neighboring_relation: Of `dp_accounting`; the one for which events hold.

    Raises:
      ValueError: A number is out of range, or no order has a budget.

    Example:
      >>> budget = RenyiFilter(epsilon=3.0, delta=1e-6)
      >>> step = dp_accounting.PoissonSampledDpEvent(
      ...     0.01, dp_accounting.GaussianDpEvent(1.0)
      ... )
      >>> budget.spend(step, 1000).affordable(step, most=2000)
      454
      >>> quieter = dp_accounting.PoissonSampledDpEvent(
      ...     0.01, dp_accounting.GaussianDpEvent(2.0)
      ... )
      >>> budget.affordable(quieter, most=9999)
      3509
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        orders: Sequence[int] | None = None,
        event_delta: float | None = None,
        neighboring_relation: dp_accounting.NeighboringRelation = (
            ADD_OR_REMOVE_ONE
        ),
    ):
        event_delta = checked_event_delta(
            epsilon, delta, event_delta, EVENT_SHARE
        )
        if orders is None:
            orders = default_orders(epsilon, delta)
        orders = tuple(orders)
        whole = all(int(a) == a and 2 <= a <= _MOST_ORDER for a in orders)
        if not orders or not whole or len(set(orders)) < len(orders):
            raise ValueError(
                f"orders are {orders}, expected different integers from 2 to "
                f"{_MOST_ORDER}."
            )
        self._orders = tuple(int(order) for order in orders)
        share = (delta - event_delta) / len(orders) * (1 - 4 * ULP)
        budgets = renyi_budgets(epsilon, self.orders, share)
        if np.all(budgets <= 0):
            raise ValueError(
                f"orders are {orders}, of which none has a budget at epsilon = "
                f"{epsilon} and delta = {delta}. Give larger ones, or None."
            )
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            event_delta=event_delta,
            prices=renyi_prices(self._orders, neighboring_relation),
            budgets=tuple(budgets.tolist()),
            neighboring_relation=neighboring_relation,
        )

    @classmethod
    def suited_to(
        cls,
        event: dp_accounting.DpEvent,
        *,
        epsilon: float,
        delta: float,
        event_delta: float | None = None,
        neighboring_relation: dp_accounting.NeighboringRelation = (
            ADD_OR_REMOVE_ONE
        ),
    ) -> RenyiFilter:
        """A filter with the one order that allows the event most often.

        Nothing is lost to a choice of orders; other events than the one that is
        expected are paid for at this order as well.

        Args:
          event: What is expected to be spent mostly.
          epsilon: The budget.
          delta: The budget.
          event_delta: As for the class.
          neighboring_relation: Of `dp_accounting`.

        Raises:
          UnsupportedEventError: The event has no Rényi divergence here.
          ValueError: A number is out of range, or the budget does not pay for
            the event at any order.

        Example:
          >>> step = dp_accounting.PoissonSampledDpEvent(
          ...     0.01, dp_accounting.GaussianDpEvent(1.0)
          ... )
          >>> budget = RenyiFilter.suited_to(step, epsilon=3.0, delta=1e-6)
          >>> budget.orders, budget.affordable(step, most=9999)
          (array([7.]), 1647)
        """
        budget = {
            "epsilon": epsilon,
            "delta": delta,
            "event_delta": event_delta,
            "neighboring_relation": neighboring_relation,
        }
        divergences, _ = cls(orders=_CANDIDATES, **budget).cost(event)
        share = delta - checked_event_delta(
            epsilon, delta, event_delta, EVENT_SHARE
        )
        orders = np.asarray(_CANDIDATES, np.float64)
        with np.errstate(divide="ignore"):
            steps = renyi_budgets(epsilon, orders, share) / divergences
        best = int(np.argmax(steps))
        if steps[best] < 1:
            raise ValueError(
                f"{event!r} costs more than epsilon = {epsilon} at delta = "
                f"{delta}, at every order. Add noise, or sample less."
            )
        return cls(orders=[_CANDIDATES[best]], **budget)

    @property
    def orders(self) -> Array:
        """The orders, as numbers."""
        return np.asarray(self._orders, np.float64)

    def _epsilon_at(self, delta: float) -> float:
        divergences = np.asarray(self._spent.sizes)
        return float(np.min(renyi_epsilon(divergences, self.orders, delta)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "orders": list(self._orders)}


def checked_event_delta(
    epsilon: float, delta: float, event_delta: float | None, share: float
) -> float:
    """What is set aside of delta.

    Raises:
      ValueError: Nothing would be left, or there is nothing to take it from.
    """
    checked_real("epsilon", epsilon)
    checked_real("delta", delta, below=1.0)
    if event_delta is None:
        event_delta = share * delta
    checked_real("event_delta", event_delta, at_least=0.0, below=1.0)
    if not 0 <= event_delta < delta < 1:
        raise ValueError(
            f"delta is {delta!r} and event_delta is {event_delta!r}, expected "
            "0 <= event_delta < delta < 1: what is left of delta pays for "
            "composition."
        )
    return float(event_delta)
