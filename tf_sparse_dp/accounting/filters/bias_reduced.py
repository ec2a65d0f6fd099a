"""The stopping rule of the paper's bias-reduced SGD, as a filter."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting

from tf_sparse_dp.accounting.arguments import checked_real
from tf_sparse_dp.accounting.costs import (
    Cost,
    Prices,
    UnknownCost,
    checked_count,
    checked_number,
    sample_of,
    sum_of,
    times,
)
from tf_sparse_dp.accounting.divergences import ULP, Array
from tf_sparse_dp.accounting.filters.additive import (
    AdditiveFilter,
    charge_of,
    state_of,
)
from tf_sparse_dp.accounting.filters.approximate import (
    epsilon_of_squares,
    squares_within,
)

_REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
_MOST_EPSILON = 13.0


def paper_noise_multiplier(epsilon: float, delta: float) -> float:
    r"""Noise over the clip norm of each of the paper's four releases.

    .. math:: z = \frac{\sqrt{8 \ln(1.25/\delta')}}{\varepsilon'}, \quad
      \varepsilon' = \frac{\varepsilon}{32}, \quad \delta' = \frac{\delta}{16}

    for which a sum that changes by up to twice the clip norm is
    (ε', δ')-DP, ε' being below 1 (Dwork and Roth, *The algorithmic foundations
    of differential privacy*, 2014, Theorem A.1). Rounded up.

    Example:
      >>> round(paper_noise_multiplier(1.0, 1e-6), 1)
      371.1
    """
    noise = 32 / epsilon * math.sqrt(8 * math.log(20 / delta))
    return noise * (1 + 2.0**-40)


class BiasReducedPrices(Prices):
    r"""Costs as the paper has them: ε_t², and δ_t.

    .. math:: \varepsilon_t = \frac{(3 \cdot 2^{N+1} + 1) \varepsilon}{16 n},
      \quad \delta_t = \frac{(3 \cdot 2^{N+1} + 1) \delta}{16 n}

    Proof: of a sample of m, three releases are at most (3ε/32, 3δ/16)-DP
    together. (There are two that see any one example, which is less.) By
    sampling it becomes (ln(1 + (m/n)(e^(3ε/32) - 1)), 3mδ/(16n)), and
    e^x - 1 ≤ 2x for x ≤ 1.25, which holds up to ε = 13. The sample of one has
    a single release. Both add up. What costs more than a quarter of the budget
    has no price: the proof of `BiasReducedFilter` needs that.
    """

    def __init__(self, epsilon: float, delta: float, num_examples: int):
        super().__init__(_REPLACE_ONE, 1)
        self._epsilon = epsilon
        self._delta = delta
        self._units = num_examples
        # What paper_noise_multiplier is rounded up from, and more.
        self._noise = paper_noise_multiplier(epsilon, delta) * (1 - 2.0**-41)

    def _cost(self, event: dp_accounting.DpEvent) -> Cost:
        kind = type(event)
        if kind is dp_accounting.SelfComposedDpEvent:
            raise UnknownCost(event, "several steps are several events.")
        if kind is dp_accounting.ComposedDpEvent:
            cost = self._step(sum(map(self._weight, event.events)))
        else:
            cost = super()._cost(event)
        within = cost.sizes[0] <= (self._epsilon / 4) ** 2
        if not within or charge_of(cost, self._epsilon) > self._delta / 4:
            raise UnknownCost(
                event, "it takes more than a quarter of epsilon or of delta."
            )
        return cost

    def _release(self, event: dp_accounting.DpEvent) -> Cost:
        return self._step(self._weight(event))

    def _step(self, weight: int) -> Cost:
        share = weight / (16 * self._units) * (1 + 2 * ULP)
        epsilon = times(self._epsilon, share)
        return Cost((times(epsilon, epsilon),), times(self._delta, share))

    def _weight(self, event: dp_accounting.DpEvent) -> int:
        """16n times what a sampled release costs, over the budget."""
        if type(event) is dp_accounting.SampledWithoutReplacementDpEvent:
            units = checked_count(event, "source_dataset_size", 1)
            size = checked_count(event, "sample_size", 1)
            sample = sample_of(event, _REPLACE_ONE)
            gaussian = (
                sample is not None
                and sample.failure == 0
                and type(sample.release) is dp_accounting.GaussianDpEvent
            )
            if gaussian and units == self._units:
                noise = checked_number(sample.release, "noise_multiplier")  # type: ignore[union-attr]
                if noise >= self._noise and size == 1:
                    return 1
                if noise * math.sqrt(2) >= self._noise:
                    return 3 * size
        raise UnknownCost(
            event,
            "the paper's bias-reduced SGD consists of Gaussian releases with "
            f"noise of at least {self._noise:.4g} from samples of "
            f"{self._units} examples without replacement. For others use a "
            "RenyiFilter.",
        )

    def _mixed(self, weights: Array, sizes: Array) -> Array:
        largest: Array = sizes.max(axis=0)
        return largest


class BiasReducedFilter(AdditiveFilter):
    r"""When the paper's bias-reduced SGD stops.

    Step t is taken if the steps *before the last one* were within half of the
    budget:

    .. math:: \sqrt{2 \ln(4/\delta) \textstyle\sum_{s<t-1} \varepsilon_s^2}
      + \tfrac12 \sum_{s<t-1} \varepsilon_s^2 \le \frac{\varepsilon}{2}
      \quad\text{and}\quad \sum_{s<t-1} \delta_s \le \frac{\delta}{4}

    with ε_s and δ_s of `BiasReducedPrices`. Whether a step is taken does not
    depend on its own batch, as the analysis of the regret needs it.

    **Guarantee**: all steps are (ε, δ)-DP, if one example is replaced, n is
    public and batches are samples without replacement. Proof: up to the last
    sums that are within half of the budget they are (ε/2, δ/2)-DP, by the
    theorem of `ApproxDPFilter` with δ' = δ'' = δ/4. Two steps come after,
    not one as the paper says: the one with which the sums go over, and, as the
    rule sees that a step late, the next. Each is (ε/4, δ/4)-DP at most, for
    (3n + 1)/(16n) ≤ 1/4. With basic composition, ε/2 + 2ε/4 = ε and
    δ/2 + 2δ/4 = δ. (How many steps there are depends on public draws alone.)

    The paper's constants are for comparison: a `RenyiFilter` allows a small
    part of the noise for as many steps. See `BiasReducedBudget`.

    Args:
      epsilon: The budget, at most 13.
      delta: The budget.
      num_examples: n.

    Raises:
      ValueError: A number is out of range.

    Example:
      >>> budget = BiasReducedFilter(epsilon=1.0, delta=1e-6, num_examples=64)
      >>> noise = paper_noise_multiplier(1.0, 1e-6)
      >>> whole = dp_accounting.SampledWithoutReplacementDpEvent(
      ...     64, 64, dp_accounting.GaussianDpEvent(noise)
      ... )
      >>> budget.affordable(whole, 100)  # The first goes over already.
      2
    """

    def __init__(self, *, epsilon: float, delta: float, num_examples: int):
        checked_real("epsilon", epsilon)
        checked_real("delta", delta, below=1.0)
        if epsilon > _MOST_EPSILON:
            raise ValueError(
                f"epsilon is {epsilon!r}, expected at most {_MOST_EPSILON:g}, "
                "up to which the paper's account is right. Use the tight one, "
                "or a RenyiFilter."
            )
        if not isinstance(num_examples, int) or num_examples < 2:
            raise ValueError(
                f"num_examples is {num_examples!r}, expected an integer of at "
                "least 2."
            )
        self._num_examples = num_examples
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            event_delta=delta / 4,
            prices=BiasReducedPrices(epsilon, delta, num_examples),
            budgets=(squares_within(epsilon / 2, delta / 4),),
            neighboring_relation=_REPLACE_ONE,
        )
        # Without the last event, and without the last two.
        self._but_last = self._but_two = self._spent

    @property
    def decides_late(self) -> bool:
        return True

    @property
    def exceeded(self) -> bool:
        with self._lock:
            return not self._within_half(self._but_two)

    def _within_half(self, sums: Cost) -> bool:
        within = sums.sizes[0] <= self._budgets[0]
        return within and charge_of(sums, self._epsilon) <= self._event_delta

    def _fits(self, event: dp_accounting.DpEvent, count: int) -> bool:
        if count == 0:
            return True
        seen = self._but_last
        if count > 1:
            seen = self._after(event, count - 2)
        return self._within_half(seen)

    def _maybe_compose(
        self, event: dp_accounting.DpEvent, count: int, do_compose: bool
    ) -> Any:
        before, but_last = self._spent, self._but_last
        error = super()._maybe_compose(event, count, do_compose)
        if error is None and do_compose and count > 0:
            price = self._prices.cost(event)
            self._but_last = sum_of(before, price, count - 1)
            self._but_two = but_last
            if count > 1:
                self._but_two = sum_of(before, price, count - 2)
        return error

    def get_seen_state(self) -> dict[str, Any]:
        return state_of(self._but_last)

    def raise_spent(
        self, spent: Any, *, delta: float = 0.0, failure: float = 0.0
    ) -> None:
        super().raise_spent(spent, delta=delta, failure=failure)
        # Which steps were the last is not known: all of it counts.
        self._but_last = self._but_two = self._spent

    def _forget(self) -> None:
        super()._forget()
        self._but_last = self._but_two = self._spent

    def _epsilon_at(self, delta: float) -> float:
        return epsilon_of_squares(self._spent.sizes[0], delta)

    def get_config(self) -> dict[str, Any]:
        return {
            "epsilon": self._epsilon,
            "delta": self._delta,
            "num_examples": self._num_examples,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BiasReducedFilter:
        return cls(**config)
