"""What was spent so far, valid whenever and why ever one stops."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.arguments import check_relation, checked_real
from tf_sparse_dp.accounting.costs import (
    MOST_COUNT,
    Cost,
    UnknownCost,
    sum_of,
)
from tf_sparse_dp.accounting.divergences import Array
from tf_sparse_dp.accounting.filters.interface import ADD_OR_REMOVE_ONE
from tf_sparse_dp.accounting.renyi_costs import RenyiPrices

# The best order for Gaussian noise is near 1 + 2 ln(1/δ)/ε. These are a factor
# of at most 1.5 apart, from an epsilon of 0.05 to one of 50.
ORDERS = (
    *(2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
)
# For failures: epsilons at which they are charged.
_LEVELS = (1, 2, 4, 8, 16, 32, 64)


class PrivacyOdometer(dp_accounting.PrivacyAccountant):
    r"""Epsilon spent so far, without a budget that was set before.

    After the events t = 1, ..., T it shows the ε_T that solves

    .. math:: \frac{1}{|\Lambda|} \sum_{\alpha \in \Lambda}
      \exp\Big((\alpha-1) \big(\varepsilon_T
      - \textstyle\sum_{t \le T} \rho_t(\alpha)\big)\Big) = \frac{1}{\delta'}

    with Λ = `orders`, ρ_t(α) the Rényi divergence of event t, and
    δ' = (1 - `event_share`) δ.

    **Guarantee**: let which event comes next, and whether any does, depend on
    all that was released before. Then, with probability at least 1 - δ' over
    the releases, the privacy loss is below ε_T after every event T, at once.
    For whatever rule to stop, and every set S of outcomes at which the
    odometer shows a finite ε_T, neighbours P and Q have

        P(S) ≤ E_Q[e^{ε_T}; S] + δ,

    which is (ε, δ)-DP if ε_T ≤ ε throughout S. δ must be chosen before the
    first event; a smaller epsilon at a δ that was picked later is not promised.

    *Losses.* Let L_t be the privacy loss of the first t releases under P. For
    every α, exp((α-1) (L_t - Σρ)) is a supermartingale that begins with 1,
    hence so is the mean M_t over α. By Ville's inequality M_t reaches 1/δ' at
    any time with probability at most δ'. M_t grows with L_t, and is 1/δ' at
    L_t = ε_t; so L_t < ε_t for all t, or else that happened. (The equation is
    solved for the mean of the orders. It costs less than a part of δ' for each,
    which would give min_α Σρ + ln(|Λ|/δ')/(α-1).)

    *Deltas* of events add up, see `accounting.costs`; the odometer shows
    infinity once their sum exceeds half of `event_share` δ. Before, one of them
    reveals all with no more than that probability, and P(S) grows by as much.

    *Failures* (`FailingDpEvent`): let P' and Q' be the releases, P and Q what
    is accounted for, the same until a failure occurs. Let S_l be those outcomes
    in S with ε_T up to a level l of 1, 2, 4, ..., 64 and above the one before.
    The odometer shows infinity unless the failures until T add up to at most
    f_l = `event_share` δ / (2·7·(1 + e^l)). A failure occurs while that holds
    with probability at most f_l. So P'(S_l) ≤ P(S_l) + f_l, and
    E_Q[e^{ε_T}; S_l] ≤ E_Q'[e^{ε_T}; S_l] + e^l f_l. All seven levels together
    take the other half.

    Args:
      delta: δ, above 0 and below 1.
      orders: Integers of at least 2, fixed beforehand.
      event_share: The part of δ for deltas and failures of events, above 0 and
        below 1.
      neighboring_relation: Of `dp_accounting`; the one for which events hold.

    Raises:
      TypeError: An argument is of the wrong kind.
      ValueError: A number is out of range.

    Example:
      >>> odometer = PrivacyOdometer(delta=1e-6)
      >>> step = dp_accounting.PoissonSampledDpEvent(
      ...     0.01, dp_accounting.GaussianDpEvent(1.0)
      ... )
      >>> for _ in range(3):
      ...     print(round(odometer.compose(step, 500).spent(), 2))
      2.84
      3.28
      3.72

    Reference: Rogers, Roth, Ullman and Vadhan, "Privacy Odometers and Filters"
    (2016), for the notion; Whitehouse, Ramdas, Rogers and Wu, "Fully Adaptive
    Composition in Differential Privacy" (2023), for supermartingales of losses;
    Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform Chernoff bounds via
    nonnegative supermartingales" (2020), for mixing them.
    """

    def __init__(
        self,
        *,
        delta: float,
        orders: Sequence[int] = ORDERS,
        event_share: float = 0.1,
        neighboring_relation: dp_accounting.NeighboringRelation = (
            ADD_OR_REMOVE_ONE
        ),
    ):
        check_relation(neighboring_relation)
        super().__init__(neighboring_relation)
        self._delta = checked_real("delta", delta, below=1.0)
        self._event_share = checked_real("event_share", event_share, below=1.0)
        orders = tuple(orders)
        whole = all(int(order) == order >= 2 for order in orders)
        if not orders or not whole or len(set(orders)) < len(orders):
            raise ValueError(
                f"orders are {orders}, expected different integers from 2 on."
            )
        self._orders = tuple(int(order) for order in orders)
        self._prices = RenyiPrices(self._orders, neighboring_relation)
        self._spent = Cost((0.0,) * len(orders))
        self._lock = threading.Lock()

    @property
    def delta(self) -> float:
        """δ, which was chosen beforehand."""
        return self._delta

    def spent(self) -> float:
        """Epsilon spent so far, at `delta`."""
        return self.get_epsilon(self._delta)

    def get_epsilon(self, target_delta: float) -> float:
        """As `spent`, at another delta that was also chosen beforehand."""
        spent = self._spent
        if np.all(np.isinf(spent.sizes)):
            return math.inf
        if target_delta >= 1:
            return 0.0
        epsilon = 0.0
        if np.any(spent.sizes):
            if target_delta <= 0:
                return math.inf
            epsilon = float(
                ville_epsilon(
                    np.asarray(spent.sizes),
                    self._orders,
                    target_delta * (1 - self._event_share),
                )
            )
        if self._covers(spent, epsilon, target_delta * self._event_share / 2):
            return epsilon
        return math.inf

    @staticmethod
    def _covers(spent: Cost, epsilon: float, share: float) -> bool:
        """Whether deltas, and failures at this epsilon, are within a share."""
        if spent.delta > share:
            return False
        if spent.failure == 0:
            return True
        reached = [level for level in _LEVELS if epsilon <= level]
        if not reached:
            return False
        charge = spent.failure * (1 + math.exp(reached[0]))
        return len(_LEVELS) * charge * (1 + 1e-12) <= share

    def _maybe_compose(
        self, event: dp_accounting.DpEvent, count: int, do_compose: bool
    ) -> Any:
        if not isinstance(count, int) or not 0 <= count <= MOST_COUNT:
            raise ValueError(
                f"count is {count!r}, expected an integer from 0 to 2^53."
            )
        try:
            cost = self._prices.cost(event)
        except UnknownCost as unknown:
            return self.CompositionErrorDetails(unknown.event, unknown.reason)
        if do_compose:
            with self._lock:
                self._spent = sum_of(self._spent, cost, count)
        return None


def ville_epsilon(
    divergences: Array, orders: Sequence[int], delta: float
) -> Array:
    """The bound that a loss ever reaches with probability delta at most.

    Solves the equation of `PrivacyOdometer` from above.

    Args:
      divergences: Sums, with the orders on the last axis.
      orders: Above 1.
      delta: Above 0 and below 1.
    """
    steps = np.asarray(orders, np.float64) - 1
    weight = -math.log(len(orders))
    with np.errstate(invalid="ignore"):
        bounds = divergences + (-math.log(delta) - weight) / steps
        epsilon = np.min(bounds, axis=-1)
        # The logarithm of the mean is convex and grows with epsilon. Newton's
        # method from a point that is too large stays there on its way down.
        for _ in range(8):
            terms = weight + steps * (epsilon[..., np.newaxis] - divergences)
            largest = np.max(terms, axis=-1)
            parts = np.exp(terms - largest[..., np.newaxis])
            total = np.sum(parts, axis=-1)
            excess = largest + np.log(total) + math.log(delta)
            slope = np.sum(parts * steps, axis=-1) / total
            epsilon = np.minimum(epsilon, epsilon - excess / slope)
    # Rounding moves a logarithm by a few units in the last place of its terms,
    # and epsilon by as little relative to itself, for slopes are like terms.
    result: Array = epsilon * (1 + 1e-12) + 1e-13
    return result
