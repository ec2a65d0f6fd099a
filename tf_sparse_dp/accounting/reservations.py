"""Paying for releases before they are made, some at a time.

Whoever releases often, such as an optimizer in a compiled step, reserves a
block of releases, makes as many of them as it comes to, and settles:

    reservation = budget.reserve(event, 100, at_least=1)
    ...  # At most reservation.count releases of the event.
    budget.settle(reservation, used)

`PrivacyFilter`, its children, `SharedBudget` and `LedgerFile` are such budgets.

**Why giving back is right.** What is charged at any time is what was released
and what is reserved and may yet be. A budget's condition is monotone: what
pays for events pays for some of them. So at the moment of a release, all that
was released up to then, this release included, is a part of what was charged
then, and keeps the condition; no theorem about filters asks for more, for they
are about the sequence of releases. That a reserved event was not released is
the choice of whoever chooses the events anyway, who may look at all releases,
and must look at nothing else of the data. It costs nothing as long as nothing
was released, which only the process that holds the reservation can know:
nobody else can settle, and of a process that died all reservations stay
charged for ever.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Protocol

import dp_accounting

from tf_sparse_dp.accounting.ledger_run import checked_count
from tf_sparse_dp.errors import PrivacyStateError


@dataclasses.dataclass(frozen=True, eq=False)
class Reservation:
    """Releases that are paid for and not yet made, held by one process.

    Attributes:
      event: What may be released.
      count: How often.
      process: The id of the process that may release it.
    """

    event: dp_accounting.DpEvent
    count: int
    process: int = dataclasses.field(default_factory=os.getpid)

    def check_used(self, used: object) -> int:
        """The number that was used, if this process may say so.

        Raises:
          PrivacyStateError: Another process made the reservation.
          TypeError, ValueError: It is no number from 0 to the count.
        """
        if self.process != os.getpid():
            raise PrivacyStateError(
                f"The reservation of {self.count} events was made by process "
                f"{self.process}, and this is {os.getpid()}: only the process "
                "that made it knows what was released. It stays charged; make "
                "a reservation of its own in every process."
            )
        number = checked_count(used)
        if number > self.count:
            raise ValueError(
                f"used is {used!r}, expected at most the {self.count} that "
                "were reserved. What was released beyond was never paid for; "
                "record it with compose, and claim no guarantee for it."
            )
        return number


class Budget(Protocol):
    """What pays for releases."""

    def reserve(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        at_least: int | None = None,
        run: str | None = None,
    ) -> Reservation:
        """Pays for the event, `count` times, before any is released.

        Args:
          event: What may be released.
          count: How often at most.
          at_least: If there is no budget for all, as many are reserved as
            there is budget for, if those are so many; else none. All if left
            out.
          run: The id of the run that is going to release it, by which
            `events_of` finds it: a run that is resumed, in another process
            perhaps, is not charged again for what its budget has of it.

        Raises:
          BudgetExhausted: There is no budget for that many. Nothing was
            reserved.
        """

    def events_of(self, run: str) -> int:
        """How many events of a run are charged, those it reserved included."""

    def settle(self, reservation: Reservation, used: int) -> None:
        """Gives back what was not used of a reservation, once.

        Args:
          reservation: From `reserve` of this object, in this process.
          used: How often the event was released. No more of it may be
            released under this reservation.

        Raises:
          PrivacyStateError: The reservation is not of this object and
            process, or is settled already.
        """


def wanted(count: object, at_least: object) -> tuple[int, int]:
    """The most and the least to reserve.

    Raises:
      TypeError, ValueError: They are no such numbers.
    """
    most = checked_count(count)
    least = most if at_least is None else checked_count(at_least)
    if not 1 <= least <= most:
        raise ValueError(
            f"count is {count!r} and at_least is {at_least!r}, expected at "
            "least 1 each, and at_least not above count."
        )
    return most, least
