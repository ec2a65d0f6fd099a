"""What events cost in Rényi divergence."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import attr
import dp_accounting
import numpy as np
from dp_accounting import dp_event

from tf_sparse_dp.accounting.costs import (
    SUMS,
    Cost,
    Prices,
    Sample,
    UnknownCost,
    added,
    amplified,
    checked_number,
    sample_of,
    times,
)
from tf_sparse_dp.accounting.divergences import (
    ULP,
    Array,
    divergence,
    gaussian_excess,
    laplace_excess,
    mixed_excess,
    pure_excess,
)
from tf_sparse_dp.accounting.dp_events import ApproxDpEvent

_Relation = dp_accounting.NeighboringRelation
# It exists from dp-accounting 0.6 on.
_ZCDpEvent: Any = getattr(dp_accounting, "ZCDpEvent", None)


class RenyiPrices(Prices):
    r"""Costs as Rényi divergences.

    **Neighbouring relations**: the noise multiplier of an event is over the
    largest norm C of one unit's contribution. Adding, removing or zeroing a
    unit changes a sum by at most C, replacing it by up to 2C, which halves the
    noise multiplier.

    **Laplace noise** on many coordinates tells no more than on one that takes
    the whole change; `training_event` has the proof.

    **Samples without replacement**, m of n: let H_s(P‖Q) = ∫(P - sQ)₊. If
    replacing a unit gives the pair P, Q without sampling then with it, for both
    directions and s ≥ 1, H_s is at most that of the pair (1-γ)Q + γP and Q, for
    γ = m/n (Balle, Barthe and Gaboardi, 2018, Theorem 9). With A a moment of
    order α, A - 1 = ∫ α(α-1) s^(α-2) (H_s - (1-s)₊) ds over s > 0; H_s for
    s < 1 is that of s > 1 in the other direction. So A - 1 is at most the sum
    of what the moments of ((1-γ)Q + γP, Q) and of (Q, (1-γ)Q + γP) exceed 1 by,
    of which the first is larger (Mironov, Talwar and Zhang, 2019, Theorem 5):
    twice the excess of a Poisson sample, with a change of 2C. Zeroing a unit is
    replacing it. A size that is fixed says nothing about adding or removing.

    **Repeating and selecting** is left to `dp_accounting` (Papernot and
    Steinke, *Hyperparameter tuning with Rényi differential privacy*, 2022).

    Args:
      orders: Integers of at least 2.
      neighboring_relation: Of `dp_accounting`.
    """

    def __init__(
        self,
        orders: Sequence[int],
        neighboring_relation: dp_accounting.NeighboringRelation,
    ):
        super().__init__(neighboring_relation, len(orders))
        self._orders = tuple(int(order) for order in orders)

    def _divergences(self, excess: Array) -> tuple[float, ...]:
        return tuple(divergence(excess, self._orders).tolist())

    def _release(self, event: dp_accounting.DpEvent) -> Cost:
        kind = type(event)
        if kind in SUMS:
            replace = self._relation is _Relation.REPLACE_ONE
            return self._noisy(event, 1.0, 2.0 if replace else 1.0)
        if kind is ApproxDpEvent:
            return self._approximate(event, 1.0)
        sample = sample_of(event, self._relation)
        if sample is not None:
            return self._sampled(sample)
        if kind is dp_event.RepeatAndSelectDpEvent:
            return self._selected(event)
        if kind is _ZCDpEvent:
            rho = checked_number(event, "rho")
            xi = checked_number(event, "xi")
            return Cost(
                tuple(added(xi, times(order, rho)) for order in self._orders)
            )
        raise UnknownCost(event, "its Rényi divergence is not known here.")

    def _noisy(
        self, event: dp_accounting.DpEvent, probability: float, change: float
    ) -> Cost:
        noise = checked_number(event, "noise_multiplier")
        if noise == 0 and probability > 0:
            return self._flat(math.inf)
        gaussian = type(event) is dp_accounting.GaussianDpEvent
        formula = gaussian_excess if gaussian else laplace_excess
        excess = formula(probability, noise / change, self._orders)
        if change == 2 and probability < 1:  # Both halves of the proof above.
            excess = excess + math.log(2) * (1 + 4 * ULP)
        return Cost(self._divergences(excess))

    def _approximate(self, event: ApproxDpEvent, probability: float) -> Cost:
        epsilon = amplified(event.epsilon, probability)
        if math.isinf(epsilon):
            return self._flat(math.inf)
        return Cost(
            self._divergences(pure_excess(epsilon, self._orders)),
            times(event.delta, probability),
        )

    def _sampled(self, sample: Sample) -> Cost:
        if type(sample.release) is ApproxDpEvent:
            cost = self._approximate(sample.release, sample.probability)
        else:
            cost = self._noisy(
                sample.release, sample.probability, sample.change
            )
        return dataclasses.replace(cost, failure=sample.failure)

    def _selected(self, event: dp_accounting.DpEvent) -> Cost:
        """Of the best of a random number of runs.

        A run fails with probability p at most, so one of K does with E[K]·p, K
        being independent of all.

        A run that reveals all with probability δ, and is P (for the neighbour
        P') otherwise, is one of K to do so with probability E[1 - (1-δ)^K],
        which is at most δ·E[K]. Given that none did, K has probabilities
        proportional to P(K=k)(1-δ)^k: again the truncated negative binomial
        distribution of the same shape with 1-γ multiplied by 1-δ, or Poisson's
        with a mean multiplied by it. Its mean is no larger and its γ no
        smaller, in which the bounds below are monotone.
        """
        mean = checked_number(event, "mean")
        shape = checked_number(event, "shape")
        if not 1 <= mean < math.inf:
            raise UnknownCost(event, f"mean is {mean}, expected at least 1.")
        # The bound looks for the best of all orders, not only of ours.
        orders = sorted({*self._orders, *range(2, 64), 128, 256, 512})
        run = renyi_prices(tuple(orders), self._relation).cost(event.event)
        if np.any(np.isinf(run.sizes)):
            return self._flat(math.inf)
        # It takes 1 - e^-ρ for one of its bounds, which loses the digits of
        # small ρ; from 1e-10 on, what it rounds is less than a part in 1e5.
        known = _KnownDpEvent(tuple(max(size, 1e-10) for size in run.sizes))
        repeated = dp_event.RepeatAndSelectDpEvent(known, mean, shape)
        accountant = _KnownAccountant(orders, self._relation).compose(repeated)
        places = np.searchsorted(orders, self._orders)
        sizes = accountant.rdp[places] * (1 + 1e-5)
        return Cost(
            tuple(sizes.tolist()),
            min(1.0, times(mean, run.delta)),
            times(mean, run.failure),
        )

    def _mixed(self, weights: Array, sizes: Array) -> Array:
        excess = mixed_excess(weights, sizes, self._orders)
        return divergence(excess, self._orders)


@functools.lru_cache(maxsize=32)
def renyi_prices(
    orders: tuple[int, ...],
    neighboring_relation: dp_accounting.NeighboringRelation,
) -> RenyiPrices:
    """`RenyiPrices`, which remember what they were asked before."""
    return RenyiPrices(orders, neighboring_relation)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class _KnownDpEvent(dp_accounting.DpEvent):
    """An event whose divergences were found before."""

    divergences: tuple[float, ...]


class _KnownAccountant(dp_accounting.rdp.RdpAccountant):
    """`dp_accounting`'s own, which is told what one run costs."""

    def _maybe_compose(
        self, event: dp_accounting.DpEvent, count: int, do_compose: bool
    ) -> Any:
        if not isinstance(event, _KnownDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        if do_compose:
            self._rdp += count * np.asarray(event.divergences)
        return None
