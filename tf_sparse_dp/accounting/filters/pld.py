"""A budget for a sequence of events that is declared beforehand."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from typing import Any

import dp_accounting

from tf_sparse_dp.accounting.composition import composed_epsilon, unknown_part
from tf_sparse_dp.accounting.event_json import event_to_json
from tf_sparse_dp.accounting.filters.interface import (
    ADD_OR_REMOVE_ONE,
    PrivacyFilter,
)
from tf_sparse_dp.accounting.parts import Counted, whole
from tf_sparse_dp.accounting.reservations import Reservation, wanted
from tf_sparse_dp.accounting.search import largest_within
from tf_sparse_dp.errors import BudgetExhausted


class PldFilter(PrivacyFilter):
    """Spends a declared sequence as far as its privacy losses allow.

    Privacy loss distributions waste next to nothing of a budget, but they
    compose only what was fixed before the first release. So the sequence is
    declared here, and `spend` has to follow it, event by event. It may stop
    anywhere; it may not spend anything else.

    **Guarantee**: let n be the largest number of first events of the sequence
    whose epsilon at δ, by `composed_epsilon`, is at most ε
    (`affordable_events`). All that is released is a beginning of those n, cut
    where the releases themselves say; so it is a function of what all n
    release, which is (ε, δ)-DP.

    Args:
      epsilon: The budget; above 0.
      delta: The budget; from 0 to below 1.
      sequence: Events in their order, and how often each occurs in a row. It
        may be longer than the budget lasts.
      neighboring_relation: Of `dp_accounting`; the one for which events hold.

    Raises:
      UnsupportedEventError: The cost of an event is not known.
      ValueError: A number is out of range.

    Example:
      >>> step = dp_accounting.PoissonSampledDpEvent(
      ...     0.01, dp_accounting.GaussianDpEvent(1.0)
      ... )
      >>> budget = PldFilter(epsilon=2.0, delta=1e-6, sequence=[(step, 10_000)])
      >>> budget.affordable_events
      873
      >>> budget.spend(step, 873).can_spend(step)
      False
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        sequence: Iterable[Counted],
        neighboring_relation: (
            dp_accounting.NeighboringRelation
        ) = ADD_OR_REMOVE_ONE,
    ):
        super().__init__(epsilon, delta, neighboring_relation)
        self._sequence = _merged(sequence)
        counts = (count for _, count in self._sequence)
        self._ends = list(itertools.accumulate(counts))
        self._position = 0
        self._strayed = False
        self._affordable = self._longest_beginning()

    @property
    def affordable_events(self) -> int:
        """How many first events of the sequence the budget pays for."""
        return self._affordable

    def _longest_beginning(self) -> int:
        def epsilon_of(length: int) -> float:
            return composed_epsilon(
                self._beginning(length),
                delta=self.delta,
                neighboring_relation=self.neighboring_relation,
            )

        total = self._ends[-1] if self._ends else 0
        if epsilon_of(total) <= self.epsilon:
            return total
        return largest_within(epsilon_of, self.epsilon, total - 1)

    def _beginning(self, length: int) -> list[Counted]:
        place = bisect.bisect_left(self._ends, length)
        found = self._sequence[: place + 1]
        if found:
            event, count = found.pop()
            found.append((event, count - (self._ends[place] - length)))
        return found

    def _follows(self, event: dp_accounting.DpEvent, count: int) -> bool:
        """Whether these are the next events of the sequence."""
        place = bisect.bisect_right(self._ends, self._position)
        return (
            place < len(self._ends)
            and self._sequence[place][0] == event
            and self._position + count <= self._ends[place]
        )

    def _fits(self, event: dp_accounting.DpEvent, count: int) -> bool:
        event, count = _unrolled(event, count)
        if isinstance(event, dp_accounting.NoOpDpEvent):
            count = 0
        return (
            not self._strayed
            and self._position + count <= self._affordable
            and (count == 0 or self._follows(event, count))
        )

    def reserve(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        at_least: int | None = None,
        run: str | None = None,
    ) -> Reservation:
        """Spends for the next events of the sequence; see `PrivacyFilter`.

        What is given back can be spent again if nothing was reserved after it.
        Otherwise what is left is no beginning of the sequence any more, and
        nothing more is spent.

        Raises:
          ValueError: They are not the next ones. Nothing was reserved.
          BudgetExhausted: The budget does not pay for them. Nothing was
            reserved.
          UnsupportedEventError: The cost of the event is not known.
        """
        _, least = wanted(count, at_least)
        with self._lock:
            self._check_supported(event, count)
            if self._strayed:
                raise BudgetExhausted(
                    f"{self!r} holds events that are no beginning of its "
                    "sequence (recorded by `compose`, or left over of what "
                    "was reserved). Nothing may be released."
                )
            one, number = _unrolled(event, least)
            if not (self._fits(event, least) or self._follows(one, number)):
                place = bisect.bisect_right(self._ends, self._position)
                following = "nothing"
                if place < len(self._ends):
                    left = self._ends[place] - self._position
                    following = f"{left} of {self._sequence[place][0]!r}"
                raise ValueError(
                    f"{least} of {event!r} cannot be spent: after "
                    f"{self._position} events the sequence of {self!r} goes "
                    f"on with {following}. Privacy loss distributions hold "
                    "for what was declared beforehand only. Spend that; or "
                    "make the filter with a sequence of the event that is "
                    "spent here; or take a RenyiFilter, whose events may be "
                    "chosen as one goes."
                )
            return super().reserve(event, count, at_least=at_least, run=run)

    def remaining(self) -> float:
        """The part of epsilon that is left, from 1.0 down to 0.0."""
        with self._lock:
            spent = self.get_epsilon(self.delta)
        return max(0.0, 1 - spent / self.epsilon)

    def get_epsilon(self, target_delta: float) -> float:
        """Of what was composed, for another delta too.

        It is not what a run that stopped because of its releases may claim;
        see `PrivacyFilter`.
        """
        return composed_epsilon(
            self.entries,
            delta=target_delta,
            neighboring_relation=self.neighboring_relation,
        )

    def _maybe_compose(
        self, event: dp_accounting.DpEvent, count: int, do_compose: bool
    ) -> dp_accounting.PrivacyAccountant.CompositionErrorDetails | None:
        whole(event, count)
        unknown = unknown_part(event, self.neighboring_relation)
        if unknown is not None:
            return self.CompositionErrorDetails(
                invalid_event=unknown.event, error_message=unknown.reason
            )
        if do_compose:
            for one, times in _merged([(event, count)]):
                self._strayed |= not self._follows(one, times)
                self._position += times
        return None

    def _forget(self) -> None:
        self._position = 0
        self._strayed = False

    def get_config(self) -> dict[str, Any]:
        sequence = [
            {"event": event_to_json(event), "count": count}
            for event, count in self._sequence
        ]
        return {**super().get_config(), "sequence": sequence}


def _unrolled(event: dp_accounting.DpEvent, count: int) -> Counted:
    while isinstance(event, dp_accounting.SelfComposedDpEvent):
        event, count = event.event, count * event.count
    return event, count


def _merged(events: Iterable[Counted]) -> list[Counted]:
    """Events in a row as one entry, and those that are nothing left out."""
    found: list[Counted] = []
    for event, count in itertools.starmap(_unrolled, events):
        if isinstance(event, dp_accounting.NoOpDpEvent) or count == 0:
            continue
        if found and found[-1][0] == event:
            count += found.pop()[1]
        found.append((event, count))
    return found
