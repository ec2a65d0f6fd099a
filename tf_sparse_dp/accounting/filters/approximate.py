"""A filter of (ε, δ) pairs."""

from __future__ import annotations

import functools
import math

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.costs import (
    Cost,
    Prices,
    UnknownCost,
    amplified,
    checked_number,
    sample_of,
    times,
)
from tf_sparse_dp.accounting.divergences import ULP, Array
from tf_sparse_dp.accounting.dp_events import ApproxDpEvent
from tf_sparse_dp.accounting.filters.additive import AdditiveFilter
from tf_sparse_dp.accounting.filters.interface import ADD_OR_REMOVE_ONE
from tf_sparse_dp.accounting.filters.renyi import checked_event_delta

_Relation = dp_accounting.NeighboringRelation


class ApproximatePrices(Prices):
    """Costs as ε², and δ.

    Of a public mixture, the largest ε² and the expected δ: a draw is an event
    that costs nothing, after which the sums grow by no more than that.
    """

    def __init__(self, neighboring_relation: dp_accounting.NeighboringRelation):
        super().__init__(neighboring_relation, 1)

    def _release(self, event: dp_accounting.DpEvent) -> Cost:
        sample = sample_of(event, self._relation)
        if sample is None:
            change = 2.0 if self._relation is _Relation.REPLACE_ONE else 1.0
            return self._squared(event, 1.0, change, 0.0)
        return self._squared(
            sample.release, sample.probability, sample.change, sample.failure
        )

    def _squared(
        self,
        event: dp_accounting.DpEvent,
        probability: float,
        change: float,
        failure: float,
    ) -> Cost:
        if type(event) is dp_accounting.LaplaceDpEvent:
            noise = checked_number(event, "noise_multiplier")
            with np.errstate(divide="ignore", over="ignore"):
                loss = float(np.float64(change) / np.float64(noise))
            epsilon, delta = loss * (1 + 2 * ULP), 0.0
        elif type(event) is ApproxDpEvent:
            epsilon, delta = event.epsilon, event.delta
        else:
            raise UnknownCost(
                event,
                "it has no epsilon without a delta. Where you spend events "
                "yourself, name one: ApproxDpEvent.of(event, delta). To train "
                "with an optimizer, use a RenyiFilter, or a mechanism with "
                "Laplace noise.",
            )
        epsilon = amplified(epsilon, probability)
        squared = times(epsilon, epsilon)
        return Cost((squared,), times(delta, probability), failure)

    def _mixed(self, weights: Array, sizes: Array) -> Array:
        largest: Array = np.max(sizes, axis=0)
        return largest


@functools.cache
def _prices(
    relation: dp_accounting.NeighboringRelation,
) -> ApproximatePrices:
    return ApproximatePrices(relation)


def squares_within(epsilon: float, delta: float) -> float:
    """The largest Σ ε_t² that is within (ε, δ'), rounded down.

    The square of the root of s²/2 + cs = ε with c = sqrt(2 ln(1/δ')).
    """
    rate = math.sqrt(-2 * math.log(delta * (1 - 2 * ULP))) * (1 + 8 * ULP)
    root = 2 * epsilon / (rate + math.sqrt(rate * rate + 2 * epsilon))
    return root * root * (1 - 16 * ULP)


def epsilon_of_squares(total: float, delta: float) -> float:
    """sqrt(2 ln(1/δ') Σ ε_t²) + Σ ε_t² / 2, rounded up."""
    rate = math.sqrt(-2 * math.log(delta) * total)
    return (rate + total / 2) * (1 + 8 * ULP)


class ApproxDPFilter(AdditiveFilter):
    r"""Adaptive spending of (ε, δ) pairs.

    .. math:: \sqrt{2 \ln(1/\delta') \sum_t \varepsilon_t^2}
      + \tfrac12 \sum_t \varepsilon_t^2 \le \varepsilon
      \quad\text{and}\quad \sum_t \delta_t \le \delta''

    with δ'' = `event_delta` and δ' = δ - δ''. For releases of which nothing but
    (ε_t, δ_t) is known. Gaussian noise has an ε for every δ; name one with
    `ApproxDpEvent.of`, or use `ZcdpFilter` or `RenyiFilter`, which lose less.

    **Guarantee**: that of `PrivacyFilter` (Whitehouse, Ramdas, Rogers and Wu,
    *Fully-adaptive composition in differential privacy*, 2023, Theorem 1). The
    filter releases what the stopping time of that theorem does, except that it
    also asks whether the very first event fits.

    Args:
      epsilon: The budget.
      delta: The budget.
      event_delta: The part of delta for deltas and failures of events; None for
        a half.
      neighboring_relation: Of `dp_accounting`; the one for which events hold.

    Example:
      >>> budget = ApproxDPFilter(epsilon=1.0, delta=1e-6)
      >>> event = ApproxDpEvent(epsilon=0.02, delta=1e-9)
      >>> budget.affordable(event, most=1000)
      83
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
        event_delta = checked_event_delta(epsilon, delta, event_delta, 0.5)
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            event_delta=event_delta,
            prices=_prices(neighboring_relation),
            budgets=(squares_within(epsilon, delta - event_delta),),
            neighboring_relation=neighboring_relation,
        )

    def _advice(self, event: dp_accounting.DpEvent, count: int) -> str:
        cost = self._prices.cost(event)
        total = count * cost.sizes[0]
        counted = epsilon_of_squares(total, self._delta - self._event_delta)
        plain = count * math.sqrt(cost.sizes[0])
        if not plain <= self._epsilon < counted:
            return ""
        return (
            f" (Epsilons of these add up to {plain:.4g}, but count as "
            f"{counted:.4g} here: sqrt(2 ln(1/delta')) times the root of the "
            "sum of squares, which pays for many small releases only. For few "
            "large ones take a RenyiFilter, with an event_delta if events have "
            "deltas, or a ZcdpFilter if they are Gaussian, and spend the event "
            "of the mechanism itself.)"
        )

    def _epsilon_at(self, delta: float) -> float:
        return epsilon_of_squares(self._spent.sizes[0], delta)
