"""What every privacy filter can do."""

from __future__ import annotations

import abc
import math
import threading
from typing import Any, NoReturn

import dp_accounting
from dp_accounting import privacy_accountant

from tf_sparse_dp.errors import BudgetExhausted

ADD_OR_REMOVE_ONE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


class PrivacyFilter(dp_accounting.PrivacyAccountant):
    """A budget of (ε, δ) that adaptive spending cannot exceed.

    **Guarantee**: let every release be made only after `spend` of its event
    returned. Then all releases together are (ε, δ)-DP, although which event
    comes next, and whether any does, may depend on what was released before.
    What a run may claim is this budget, however little of it was spent: the
    epsilon of `get_epsilon` holds only for a sequence of events that was fixed
    beforehand together with its length.

    Releases may be interleaved, by threads too: a filter decides on one event
    at a time. It cannot be copied, for two copies would spend one budget twice.

    Args:
      epsilon: The budget; above 0.
      delta: The budget; from 0 to below 1.
      neighboring_relation: Of `dp_accounting`; the one for which events hold.
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        neighboring_relation: dp_accounting.NeighboringRelation,
    ):
        super().__init__(neighboring_relation)
        if not 0 < epsilon < math.inf or not 0 <= delta < 1:
            raise ValueError(
                f"epsilon is {epsilon!r} and delta is {delta!r}, expected a "
                "finite epsilon above 0 and a delta from 0 to below 1."
            )
        self._epsilon = float(epsilon)
        self._delta = float(delta)
        self._lock = threading.RLock()

    @property
    def epsilon(self) -> float:
        """The budget."""
        return self._epsilon

    @property
    def delta(self) -> float:
        """The budget."""
        return self._delta

    @abc.abstractmethod
    def _fits(self, event: dp_accounting.DpEvent, count: int) -> bool:
        """Whether the budget pays for what was composed and for this too."""

    @abc.abstractmethod
    def remaining(self) -> float:
        """The part of the budget that is left, from 1.0 down to 0.0."""

    def can_spend(self, event: dp_accounting.DpEvent, count: int = 1) -> bool:
        """Whether `spend` would spend.

        Raises:
          UnsupportedEventError: The filter does not know what the event costs.
        """
        error = self._maybe_compose(event, count, False)
        if error is not None:
            raise privacy_accountant.UnsupportedEventError(
                f"{type(self).__name__} does not know what {event!r} costs: "
                f"{error.error_message} ({error.invalid_event!r})"
            )
        with self._lock:
            return self._fits(event, count)

    def spend(
        self, event: dp_accounting.DpEvent, count: int = 1
    ) -> PrivacyFilter:
        """Takes `count` times the event out of the budget, or nothing.

        Raises:
          BudgetExhausted: The budget does not pay for it. Nothing was spent.
          UnsupportedEventError: The filter does not know what the event costs.
        """
        with self._lock:
            if not self.can_spend(event, count):
                raise BudgetExhausted(
                    f"{self!r} does not pay for {count} of {event!r}: "
                    f"{self.remaining():.3g} of it is left. Nothing was spent; "
                    "nothing may be released."
                )
            self.compose(event, count)
        return self

    def affordable(self, event: dp_accounting.DpEvent, most: int) -> int:
        """How often, up to `most` times, the event can be spent from now."""
        with self._lock:
            low, high = 0, most + 1  # The first fits, the last does not.
            while high - low > 1:
                middle = (low + high) // 2
                if self.can_spend(event, middle):
                    low = middle
                else:
                    high = middle
            return low

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(epsilon={self._epsilon:g}, "
            f"delta={self._delta:g})"
        )

    def _no_copy(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied or pickled: two copies would spend one "
            "budget twice. Pass the filter itself."
        )

    __copy__ = __deepcopy__ = __reduce_ex__ = _no_copy
