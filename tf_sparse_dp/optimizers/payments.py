"""Who pays for steps, before they are taken."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Protocol

import dp_accounting
import tensorflow as tf

from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.accounting.reservations import Reservation
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError
from tf_sparse_dp.local_variable import local_variable

_MANY = 10**9
NOT_PAID_AHEAD = (
    "The next step was not paid ahead. Add the PrivacyBudget callback, which "
    "does that, or call optimizer.reserve(steps) before so many steps in a "
    "loop of your own."
)


class Payment(Protocol):
    """Pays for steps, or passes: number 1, number 2, and so on."""

    def affordable(self, number: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        """Within a traced step: whether step `number` may be taken.

        Args:
          number: Of the step, or of the pass that it is in.
          kind: Which of the plan's kinds of steps it is.
        """

    def pay(self, taken: tf.Tensor) -> None:
        """Within a traced step: charges it if it is taken."""

    def left(self, count: int) -> int:
        """How many more can be paid after `count` of them."""

    def can_go_on(self, count: int) -> bool:
        """Whether there is anything left to pay with."""

    def check(self, count: int) -> None:
        """Says why the step after `count` of them would not be taken.

        Raises:
          BudgetExhausted: There is nothing left to pay with.
          PrivacyStateError: It was not paid ahead.
        """

    def open(self) -> None:
        """Gets ready, if nothing has to be paid ahead for that."""

    def reserve(self, count: int, need: int, block: int) -> None:
        """Pays ahead for a `block`, if fewer than `need` are paid ahead."""

    def settle(self, count: int) -> None:
        """Gives back what was paid ahead and was not taken."""

    def change_noise(self, count: int) -> None:
        """What was paid ahead is not for the noise of the next steps."""

    def take_over(self, ledger: Ledger) -> None:
        """Charges what was released by other processes, all that there is."""


def left_of(budget: PrivacyFilter, count: int) -> str:
    """What is left of a filter that does not pay, and who spent it."""
    return (
        f"{budget.remaining():.3g} of its budget is left; this optimizer has "
        f"taken {count} {'step' if count == 1 else 'steps'}, and others that "
        "were given the filter may have spent of it, too."
    )


class PlanPayment:
    """A plan pays for a number of steps that is known beforehand."""

    def __init__(self, limit: int, unit: str):
        self._limit = limit
        self._units = {"step": "steps", "pass": "passes"}[unit]

    def affordable(self, number: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        return number <= self._limit

    def pay(self, taken: tf.Tensor) -> None:
        pass

    def left(self, count: int) -> int:
        return max(0, self._limit - count)

    def can_go_on(self, count: int) -> bool:
        return count < self._limit

    def check(self, count: int) -> None:
        if count >= self._limit:
            raise BudgetExhausted(
                f"The plan allows {self._limit} {self._units}, and {count} are "
                f"spent. Make a plan with more {self._units} before you start."
            )

    def open(self) -> None:
        pass

    def reserve(self, count: int, need: int, block: int) -> None:
        pass

    def settle(self, count: int) -> None:
        pass

    def change_noise(self, count: int) -> None:
        pass

    def take_over(self, ledger: Ledger) -> None:
        pass


class TakenOver:
    """Which events of other processes were charged here already.

    Args:
      run: The id of this run, whose events are charged as they come.
    """

    def __init__(self, run: str):
        self._charged: dict[str, float] = {run: math.inf}

    def charge(self, source: Any, ledger: Ledger) -> None:
        """Charges the ledger's events that were not to the source.

        Args:
          source: Has `compose`, and `events_of` for what it knows of a run.
          ledger: All events of all runs.
        """
        for run in ledger.runs:
            done = self._charged.get(run.id, 0)
            known = max(done, source.events_of(run.id))
            for entry in run.entries:
                covered = min(entry.count, known)
                known -= covered
                if covered < entry.count:
                    missing = entry.count - int(covered)
                    source.compose(entry.event, missing, run=run.id)
            self._charged[run.id] = max(done, run.num_events)


class BlockPayment:
    """Blocks of steps are paid ahead, out of a filter or a ledger file.

    What pays is asked once for a block, not in every step, and has a durable
    record of the block, if it is a file, before the first of its steps. A
    process that dies has paid for its last block in full.

    Args:
      source: A `Budget` that also has `affordable` and `compose`.
      event: Gives what the next step costs.
      run: The id of this run.
    """

    def __init__(
        self,
        source: Any,
        event: Callable[[], dp_accounting.DpEvent],
        run: str,
    ):
        self._source = source
        self._event = event
        self._run = run
        self._taken_over = TakenOver(run)
        self._open: list[tuple[Reservation, int]] = []  # And where they begin.
        self._paid = local_variable(0, name="paid_ahead", dtype=tf.int64)

    def affordable(self, number: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        return number <= self._paid

    def pay(self, taken: tf.Tensor) -> None:
        pass

    def left(self, count: int) -> int:
        ahead = self.paid_ahead(count)
        return ahead + self._source.affordable(self._event(), _MANY)

    def can_go_on(self, count: int) -> bool:
        ahead = self.paid_ahead(count)
        return ahead > 0 or self._source.affordable(self._event(), 1) > 0

    def check(self, count: int) -> None:
        if self.paid_ahead(count):
            return
        if self.can_go_on(count):
            raise PrivacyStateError(NOT_PAID_AHEAD)
        reason = ""
        try:
            refused = self._source.reserve(self._event(), run=self._run)
            self._source.settle(refused, 0)
        except BudgetExhausted:
            pass
        except ValueError as error:  # Not what was declared.
            reason = f" {error}"
        spent = f"{count} are spent."
        if isinstance(self._source, PrivacyFilter):
            spent = left_of(self._source, count)
        raise BudgetExhausted(
            f"{self._source!r} pays for no further step. {spent}{reason}"
        )

    def open(self) -> None:
        pass

    def reserve(self, count: int, need: int, block: int) -> None:
        ahead = self.paid_ahead(count)
        if ahead >= need:
            return
        while self._open and self._end(*self._open[0]) <= count:
            taken, _ = self._open.pop(0)
            self._source.settle(taken, taken.count)
        with contextlib.suppress(BudgetExhausted):
            # What is left of an earlier block is going to be taken first.
            begin = count + ahead
            reserved = self._source.reserve(
                self._event(),
                max(need, block) - ahead,
                at_least=1,
                run=self._run,
            )
            self._open.append((reserved, begin))
            self._paid.assign(self._end(reserved, begin))

    def settle(self, count: int) -> None:
        self._paid.assign(count)
        while self._open:
            reserved, begin = self._open[-1]
            used = min(max(0, count - begin), reserved.count)
            self._source.settle(reserved, used)
            self._open.pop()

    def paid_ahead(self, count: int) -> int:
        """How many steps after `count` are paid."""
        return max(0, int(self._paid.numpy()) - count)

    def change_noise(self, count: int) -> None:
        self.settle(count)

    def take_over(self, ledger: Ledger) -> None:
        self._taken_over.charge(self._source, ledger)

    @staticmethod
    def _end(reserved: Reservation, begin: int) -> int:
        return begin + reserved.count
