"""What filters have in common whose costs add up."""

from __future__ import annotations

import abc
import math
import operator
from typing import Any, TypeVar

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.costs import (
    MOST_COUNT,
    Cost,
    Prices,
    UnknownCost,
    added,
    sum_of,
    times,
)
from tf_sparse_dp.accounting.divergences import ULP, Array
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter

_Filter = TypeVar("_Filter", bound="AdditiveFilter")
_Details = dp_accounting.PrivacyAccountant.CompositionErrorDetails


class AdditiveFilter(PrivacyFilter):
    """A filter that compares sums of costs with budgets.

    It pays for an event as long as, with it, the sum of sizes is within the
    budget in at least one place, and the charge for deltas and failures within
    `event_delta`. All sums are rounded up and all budgets down: however many
    steps there are, nothing that is spent is ever smaller than its cost, and
    the comparison errs on the side of refusing.

    **Failures**: let the releases be another process than the one accounted
    for, which gives the same until a failure occurs. Failures of events add up
    to at most p on every path, hence so does the probability of any. With the
    accounted process (ε, δ)-DP, P(S) ≤ p + δ + e^ε (Q(S) + p): the releases are
    (ε, δ + (1 + e^ε) p)-DP. The charge is (1 + e^ε) p and the sum of deltas.

    Args:
      epsilon: The budget.
      delta: The budget.
      event_delta: The part of delta for deltas and failures of events.
      prices: What events cost.
      budgets: What sizes may add up to; the same length as sizes.
      neighboring_relation: Of `dp_accounting`.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        event_delta: float,
        prices: Prices,
        budgets: tuple[float, ...],
        neighboring_relation: dp_accounting.NeighboringRelation,
    ):
        super().__init__(epsilon, delta, neighboring_relation)
        self._event_delta = event_delta
        self._prices = prices
        self._budgets = budgets
        self._spent = self._raised = Cost((0.0,) * len(budgets))

    @abc.abstractmethod
    def _epsilon_at(self, delta: float) -> float:
        """Epsilon of the spent sizes, without failures, for delta above 0."""

    @property
    def event_delta(self) -> float:
        """The part of delta that pays for deltas and failures of events."""
        return self._event_delta

    @property
    def decides_late(self) -> bool:
        """Whether sums may go over: see `BiasReducedFilter`, which proves it.

        A decision then looks at the sums without the event itself, and without
        the one before it.
        """
        return False

    @property
    def budgets(self) -> Array:
        """What `spent` may grow to, in at least one place."""
        return np.asarray(self._budgets)

    @property
    def spent(self) -> Array:
        """The sums of what was composed."""
        return np.asarray(self._spent.sizes)

    def cost(self, event: dp_accounting.DpEvent) -> tuple[Array, float]:
        """What an event adds to `spent`, and what it takes of `event_delta`.

        Raises:
          UnsupportedEventError: The filter does not know what the event costs.
        """
        self._check_supported(event)
        cost = self._prices.cost(event)
        return np.asarray(cost.sizes), charge_of(cost, self._epsilon)

    def remaining(self) -> float:
        spent = self._spent
        left = max(
            1 - size / budget if size < budget else 0.0
            for size, budget in zip(spent.sizes, self._budgets, strict=True)
        )
        charge = charge_of(spent, self._epsilon)
        if charge > 0:
            left = min(left, 1 - min(1.0, charge / self._event_delta))
        return left

    def get_epsilon(self, target_delta: float) -> float:
        """Epsilon of what was composed, had it been fixed beforehand.

        After spending that adapted, claim the filter's budget, not this.
        """
        spent = self._spent
        if all(map(math.isinf, spent.sizes)):
            return math.inf
        free = not (any(spent.sizes) or spent.delta or spent.failure)
        if free or target_delta >= 1:
            return 0.0
        epsilon = 0.0
        # Failures cost more delta the larger epsilon is. What is returned is
        # enough for the delta that is left beside the charge at just that.
        for _ in range(1000):
            left = target_delta - charge_of(spent, epsilon)
            left -= 2 * ULP * target_delta
            if left <= 0:
                break
            needed = self._epsilon_at(left) if any(spent.sizes) else 0.0
            if needed <= epsilon:
                return epsilon
            epsilon = needed * (1 + 1e-9) if spent.failure else needed
        return math.inf

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "event_delta": self._event_delta}

    @classmethod
    def from_config(cls: type[_Filter], config: dict[str, Any]) -> _Filter:
        """A filter with the same budget, of which nothing is spent yet.

        It is the same budget once more: see `set_state`.
        """
        relation = config["neighboring_relation"]
        relation = dp_accounting.NeighboringRelation[relation]
        return cls(**{**config, "neighboring_relation": relation})

    def get_state(self) -> dict[str, Any]:
        """What was spent, in plain values; reservations count as spent."""
        return state_of(self._spent)

    def get_seen_state(self) -> dict[str, Any]:
        """The part of it that the next decision looks at: see `decides_late`.

        It is all of it, unless the filter decides late.
        """
        return self.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state; what was spent here stays spent.

        Raises:
          ValueError: The state is that of another kind of filter.
        """
        self.raise_spent(
            state["spent"], delta=state["delta"], failure=state["failure"]
        )

    def raise_spent(
        self, spent: Any, *, delta: float = 0.0, failure: float = 0.0
    ) -> None:
        """Lets at least so much be spent. What was spent never shrinks.

        Nor does it fall below this if reservations are given back later.

        Args:
          spent: As `spent`.
          delta: The sum of deltas of events.
          failure: The sum of failure probabilities of events.

        Raises:
          ValueError: Another length, or numbers that are none.
        """
        sizes = np.array(spent, np.float64)
        numbers = np.concatenate([sizes.ravel(), [delta, failure]])
        if sizes.shape != (len(self._budgets),) or not np.all(numbers >= 0):
            raise ValueError(
                f"spent is {spent!r}, delta {delta!r} and failure {failure!r}, "
                f"expected {len(self._budgets)} numbers of at least 0, and two "
                "more. Restore the state of a filter with the same budget."
            )
        with self._lock:
            settled = self._raised
            for charge in self._charges:
                if not charge.held:
                    price = self._prices.cost(charge.event)
                    settled = sum_of(settled, price, charge.count)
            # Not what is held: that may be given back.
            more = Cost(
                tuple(map(_missing, settled.sizes, sizes.tolist())),
                _missing(settled.delta, float(delta)),
                _missing(settled.failure, float(failure)),
            )
            self._raised = sum_of(self._raised, more, 1)
            self._spent = sum_of(self._spent, more, 1)

    def _forget(self) -> None:
        self._spent = self._raised

    def _maybe_compose(
        self, event: dp_accounting.DpEvent, count: int, do_compose: bool
    ) -> Any:
        try:
            after = self._after(event, count)
        except UnknownCost as unknown:
            return _Details(unknown.event, unknown.reason)
        if do_compose:
            self._spent = after
        return None

    def _fits(self, event: dp_accounting.DpEvent, count: int) -> bool:
        after = self._after(event, count)
        charge = charge_of(after, self._epsilon)
        within = any(map(operator.le, after.sizes, self._budgets))
        return within and charge <= self._event_delta

    def _after(self, event: dp_accounting.DpEvent, count: int) -> Cost:
        if not isinstance(count, int) or not 0 <= count <= MOST_COUNT:
            raise ValueError(
                f"count is {count!r}, expected an integer from 0 to 2^53."
            )
        return sum_of(self._spent, self._prices.cost(event), count)


def state_of(spent: Cost) -> dict[str, Any]:
    """Sums, in plain values."""
    return {
        "spent": list(spent.sizes),
        "delta": spent.delta,
        "failure": spent.failure,
    }


def charge_of(cost: Cost, epsilon: float) -> float:
    """What deltas and failures take of delta, rounded up."""
    price = math.inf
    if epsilon < 700:
        price = (1 + math.exp(epsilon)) * (1 + 4 * ULP)
    return added(cost.delta, times(price, cost.failure))


def _missing(settled: float, wanted: float) -> float:
    """What has to be added, for good, if less than `wanted` is spent."""
    if wanted <= settled:
        return 0.0
    gap = wanted - settled
    return gap if settled == 0 else math.nextafter(gap, math.inf)
