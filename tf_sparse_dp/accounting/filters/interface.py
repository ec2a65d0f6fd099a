"""What every privacy filter can do."""

from __future__ import annotations

import abc
import copy
import dataclasses
import itertools
import os
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn

import dp_accounting
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting.arguments import check_relation, checked_real
from tf_sparse_dp.accounting.ledger_run import random_id
from tf_sparse_dp.accounting.reservations import Reservation, wanted
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError

if TYPE_CHECKING:
    from tf_sparse_dp.accounting.filters.children import ChildFilter

_INTERRUPTED = -1  # Is no process.
ADD_OR_REMOVE_ONE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclasses.dataclass(eq=False)
class _Charge:
    event: dp_accounting.DpEvent
    count: int
    held: bool = False  # By a reservation: not to be joined with others.
    run: str | None = None


class Hold:
    """What a holder of a filter, and nobody else, may do to it."""

    def __init__(self, held: PrivacyFilter):
        self._held = held

    def compose(
        self, event: dp_accounting.DpEvent, count: int, *, run: str
    ) -> None:
        """Records what was released."""
        self._held._charge(event, count, run=run)

    def events_of(self, run: str) -> int:
        """As of the filter."""
        return self._held.events_of(run)

    def end(self) -> None:
        """Lets others spend again, when all that was released is recorded."""
        self._held._holder = ""


class PrivacyFilter(dp_accounting.PrivacyAccountant):
    """A budget of (ε, δ) that adaptive spending cannot exceed.

    **Guarantee**: let every release be made only after `spend` of its event
    returned. Then all releases together are (ε, δ)-DP, although which event
    comes next, and whether any does, may depend on what was released before.
    What a run may claim is this budget, however little of it was spent: the
    epsilon of `get_epsilon` holds only for a sequence of events that was fixed
    beforehand together with its length.

    Releases may be interleaved, by threads too: a filter decides on one event
    at a time. It cannot be copied, for two copies would spend one budget twice;
    nor can it be spent in a forked process: see `SharedBudget` for that, and
    `child` for several models or runs of one process.

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
        check_relation(neighboring_relation)
        super().__init__(neighboring_relation)
        self._epsilon = checked_real("epsilon", epsilon)
        self._delta = checked_real("delta", delta, at_least=0.0, below=1.0)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._charges: list[_Charge] = []
        self._reserved: dict[Reservation, _Charge] = {}
        self._children: dict[str, ChildFilter] = {}
        self._holder = ""
        self._id = random_id()

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

    @property
    def exceeded(self) -> bool:
        """Whether more was composed than the budget pays for."""
        return not self.can_spend(dp_accounting.NoOpDpEvent())

    @abc.abstractmethod
    def _forget(self) -> None:
        """Makes the sums what they were before anything was composed."""

    def get_config(self) -> dict[str, Any]:
        """All that decides what the filter pays for, in plain values.

        Processes that share a budget must agree on it. A filter that decides
        by more than the budget adds that.
        """
        return {
            "epsilon": self._epsilon,
            "delta": self._delta,
            "neighboring_relation": self.neighboring_relation.name,
        }

    @property
    def entries(self) -> list[tuple[dp_accounting.DpEvent, int]]:
        """What was composed or reserved, in order, with counts."""
        with self._lock:
            several = itertools.groupby(self._charges, lambda c: c.event)
            return [
                (event, sum(c.count for c in group)) for event, group in several
            ]

    @property
    def id(self) -> str:
        """Random: tells this filter from others with the same budget."""
        return self._id

    def entries_of_others(
        self, runs: Collection[str]
    ) -> list[tuple[dp_accounting.DpEvent, int]]:
        """What was composed or reserved by others than these runs."""
        with self._lock:
            return [
                (charge.event, charge.count)
                for charge in self._charges
                if charge.run not in runs
            ]

    def events_of(self, run: str) -> int:
        """How many events of a run are charged, those it reserved included.

        Args:
          run: An id that was given to `reserve` or `compose`.
        """
        with self._lock:
            return sum(c.count for c in self._charges if c.run == run)

    def compose(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        run: str | None = None,
    ) -> PrivacyFilter:
        """Records what was released, whether the budget pays for it or not.

        Args:
          event: What was released.
          count: How often.
          run: The id of the run that released it, for `events_of`.

        Raises:
          UnsupportedEventError: The filter does not know what the event costs.
        """
        with self._lock:
            self._check_free()
            self._charge(event, count, run=run)
        return self

    def _charge(
        self,
        event: dp_accounting.DpEvent,
        count: int,
        *,
        held: bool = False,
        run: str | None = None,
    ) -> _Charge:
        with self._lock:
            self._check_process()
            super().compose(event, count)
            charge = _Charge(_own(event), count, held, run)
            self._charges.append(charge)
            self._charges[-2:] = _joined(self._charges[-2:])
            return charge

    def _check_process(self) -> None:
        if self._process == _INTERRUPTED:
            raise PrivacyStateError(
                f"{self!r} was interrupted while it computed anew what is "
                "spent, and does not know. Make a new one, and compose all of "
                "`entries` of this one."
            )
        if self._process != os.getpid():
            raise PrivacyStateError(
                f"{self!r} was made by process {self._process}, and this is "
                f"{os.getpid()}: two processes would spend one budget twice. "
                "Make a SharedBudget on a file, which all processes can spend."
            )

    def can_spend(self, event: dp_accounting.DpEvent, count: int = 1) -> bool:
        """Whether `spend` would spend.

        Raises:
          UnsupportedEventError: The filter does not know what the event costs.
        """
        self._check_supported(event, count)
        with self._lock:
            return self._fits(event, count)

    def _check_supported(
        self, event: dp_accounting.DpEvent, count: int = 1
    ) -> None:
        error = self._maybe_compose(event, count, False)
        if error is not None:
            raise privacy_accountant.UnsupportedEventError(
                f"{type(self).__name__} does not know what {event!r} costs: "
                f"{error.error_message} (caused by subevent "
                f"{error.invalid_event!r})"
            )

    def spend(
        self, event: dp_accounting.DpEvent, count: int = 1
    ) -> PrivacyFilter:
        """Takes `count` times the event out of the budget, or nothing.

        Raises:
          BudgetExhausted: The budget does not pay for it. Nothing was spent.
          UnsupportedEventError: The filter does not know what the event costs.
        """
        with self._lock:
            self.settle(self.reserve(event, count), count)
        return self

    def reserve(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        at_least: int | None = None,
        run: str | None = None,
    ) -> Reservation:
        """Spends for releases to come; `settle` gives back those that did not.

        See `accounting.reservations` for why that is right. Until it is
        settled, all of a reservation counts as spent, everywhere.

        Args:
          event: What may be released.
          count: How often at most.
          at_least: If the budget does not pay for all, as many are reserved
            as it pays for, if those are so many; else none. All if left out.
          run: The id of the run that is going to release it, for `events_of`.

        Raises:
          BudgetExhausted: The budget does not pay for that many. Nothing was
            reserved.
          UnsupportedEventError: The filter does not know what the event costs.
        """
        most, least = wanted(count, at_least)
        with self._lock:
            self._check_free()
            number = most
            if not self.can_spend(event, most):
                number = self.affordable(event, most - 1) if least < most else 0
                if number < least:
                    raise BudgetExhausted(
                        f"{self!r} does not pay for {least} of {event!r}: "
                        f"{100 * self.remaining():.3g}% of the budget is left, "
                        "and this costs more. Nothing was spent; nothing may "
                        f"be released.{self._advice(event, least)}"
                    )
            return self._hold(event, number, run)

    def _advice(self, event: dp_accounting.DpEvent, count: int) -> str:
        """What to do about an event that does not fit, after a blank."""
        return ""

    def _hold(
        self, event: dp_accounting.DpEvent, count: int, run: str | None
    ) -> Reservation:
        """A reservation, whether the budget pays for it or not."""
        with self._lock:
            reservation = Reservation(event, count)
            self._reserved[reservation] = self._charge(
                event, count, held=True, run=run
            )
            return reservation

    def settle(self, reservation: Reservation, used: int) -> None:
        """Gives back what was not used of a reservation, once.

        Args:
          reservation: From `reserve` of this filter, in this process.
          used: How often the event was released. No more of it may be
            released under this reservation.

        Raises:
          PrivacyStateError: The reservation is not of this filter and
            process, or is settled already.
        """
        with self._lock:
            self._check_reserved(reservation)
            used = reservation.check_used(used)
            if self._release(reservation, used):
                self._replay()

    def _release(self, reservation: Reservation, used: int) -> bool:
        """Ends a reservation; whether charges must be composed anew."""
        charge = self._reserved.pop(reservation)
        charge.held = False
        if used < charge.count:
            charge.count = used
            return True
        self._charges[-2:] = _joined(self._charges[-2:])
        return False

    def _check_reserved(self, reservation: Reservation) -> None:
        if reservation not in self._reserved:
            raise PrivacyStateError(
                f"{reservation!r} is not reserved from {self!r}, or was "
                "settled already. Settle every reservation once, with the "
                "budget that it is from."
            )

    def child(
        self, name: str, *, cap: PrivacyFilter | None = None
    ) -> ChildFilter:
        """A part of this budget for one of several models or runs.

        What a child spends is spent here, at once; what all children and the
        filter itself spend together is within the budget.

        Args:
          name: Of the model or run; no two children may share one.
          cap: A new filter of its own, whose budget the child keeps to as
            well: what the child releases by itself is within that.

        Raises:
          TypeError: The cap is no filter.
          ValueError: The name is taken, or the cap is not for this.

        Example:
          >>> from tf_sparse_dp.accounting.filters import ZcdpFilter
          >>> budget = ZcdpFilter(epsilon=3.0, delta=1e-6)
          >>> noisy = dp_accounting.GaussianDpEvent(20.0)
          >>> first = budget.child("first").spend(noisy, 100)
          >>> budget.child("second").affordable(noisy, 100)
          48
          >>> first.entries
          [(GaussianDpEvent(noise_multiplier=20.0), 100)]
        """
        # It is a filter itself, hence made of this class.
        from tf_sparse_dp.accounting.filters.children import ChildFilter

        if cap is not None and not isinstance(cap, PrivacyFilter):
            raise TypeError(
                f"cap is {cap!r}, expected a privacy filter or None. Make one, "
                "such as RenyiFilter(epsilon=1.0, delta=1e-6)."
            )
        with self._lock:
            if not isinstance(name, str) or name in self._children:
                raise ValueError(
                    f"name is {name!r}, expected a text other than those of "
                    f"the children that there are: {sorted(self._children)}."
                )
            child = ChildFilter(name, self, cap)
            self._children[name] = child
            return child

    @property
    def children(self) -> dict[str, ChildFilter]:
        """The children by name; a copy."""
        with self._lock:
            return dict(self._children)

    def _start_over(self) -> None:
        """Forgets everything, for who has it in a file."""
        self._lock = threading.RLock()
        self._charges, self._reserved = [], {}
        self._replay()

    def _replay(self) -> None:
        """Composes all charges anew: differences of sums would be rounded."""
        self._process = _INTERRUPTED
        self._charges = _joined(self._charges)
        self._ledger = dp_accounting.DpEventBuilder()
        self._forget()
        for charge in self._charges:
            super().compose(charge.event, charge.count)
        self._process = os.getpid()

    def hold(self, holder: str) -> Hold:
        """Lets nobody spend, reserve or compose but who decides by itself.

        Raises:
          PrivacyStateError: Another one holds it.
        """
        with self._lock:
            self._check_process()
            self._check_free()
            self._holder = holder
            return Hold(self)

    def _check_free(self) -> None:
        if self._holder:
            raise PrivacyStateError(
                f"{self!r} is held by a {self._holder}, which decides by "
                "itself what the budget pays for. Wait until it settles, or "
                "give each of several a child of the filter."
            )

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


def _own(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """The event, as nobody else can change it: some have lists."""
    try:
        hash(event)
    except TypeError:
        return copy.deepcopy(event)
    return event


def _joined(charges: list[_Charge]) -> list[_Charge]:
    """Without those of nothing, and equal neighbours as one."""
    joined: list[_Charge] = []
    for charge in charges:
        last = joined[-1] if joined else charge
        if last is charge or charge.held or last.held:
            alike = False
        else:
            alike = (last.event, last.run) == (charge.event, charge.run)
        if alike:
            last.count += charge.count
        elif charge.count:
            joined.append(charge)
    return joined
