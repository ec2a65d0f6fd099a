"""A budget that several processes spend."""

from __future__ import annotations

import os
from typing import Any

import dp_accounting

from tf_sparse_dp.accounting.filters.additive import AdditiveFilter
from tf_sparse_dp.accounting.filters.approximate import ApproxDPFilter
from tf_sparse_dp.accounting.filters.children import ChildFilter
from tf_sparse_dp.accounting.filters.concentrated import ZcdpFilter
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.accounting.ledger_file import LedgerFile
from tf_sparse_dp.accounting.ledger_header import LedgerHeader, relation_name
from tf_sparse_dp.accounting.reservations import Reservation
from tf_sparse_dp.errors import PrivacyStateError

_KINDS: dict[str, type[AdditiveFilter]] = {
    kind.__name__: kind for kind in (ApproxDPFilter, RenyiFilter, ZcdpFilter)
}


class SharedBudget(PrivacyFilter):
    """A filter whose state is a file, which other processes spend too.

    Every spending locks the file, takes in what others have spent since,
    decides by the filter, writes, and has it on disk before it returns. A
    process that dies has charged at least what it released. Queries look at
    the file as well; their answers hold until somebody else spends.

    **Guarantee**: the filter's, for all that all processes release. See
    `LedgerFile` for what is assumed of the file system, and `ChildFilter` for
    releases that are made at the same time.

    Args:
      path: Of the file, which is made if it is not there.
      filter: A new filter, the same in all processes. It belongs to the
        shared budget from then on; do not use it by itself.
      unit: What is protected, in a word.

    Raises:
      PrivacyStateError: The file belongs to another budget, or was changed.
      ValueError: Something was spent of the filter.
      TypeError: The path is none, or the filter is none or spends the budget
        of another.

    Example:
      >>> import tempfile
      >>> from tf_sparse_dp.accounting.filters import ZcdpFilter
      >>> path = os.path.join(tempfile.mkdtemp(), "budget.jsonl")
      >>> def budget():
      ...     return SharedBudget(path, ZcdpFilter(epsilon=3.0, delta=1e-6))
      >>> here, there = budget(), budget()  # In two processes.
      >>> step = dp_accounting.GaussianDpEvent(20.0)
      >>> block = here.reserve(step, 100)
      >>> there.reserve(step, 100, at_least=1).count
      48
      >>> here.settle(block, used=60)
      >>> there.affordable(step, 100)
      40
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        filter: PrivacyFilter,
        *,
        unit: str = "example",
    ):
        if isinstance(filter, (ChildFilter, SharedBudget)):
            raise TypeError(
                f"filter is {filter!r}, whose budget is somebody else's, "
                "expected a filter of its own. Make children of a shared "
                "budget rather than the reverse."
            )
        if not isinstance(filter, PrivacyFilter):
            raise TypeError(
                f"filter is {filter!r}, expected a privacy filter after the "
                "path: SharedBudget(path, RenyiFilter(...)). A plan's budget "
                "is shared by the ledger of DPSparseOptimizer."
            )
        relation = filter.neighboring_relation
        super().__init__(filter.epsilon, filter.delta, relation)
        if filter.entries or filter.remaining() != 1 or filter.children:
            raise ValueError(
                f"filter is {filter!r}, of which {filter.remaining():.3g} is "
                "left, expected a new one: what was spent of it is not in the "
                "file. Make a filter for this, and spend the shared budget."
            )
        self._filter = filter
        account = {
            "class_name": type(filter).__name__,
            "config": filter.get_config(),
        }
        header = LedgerHeader(
            account=account,
            neighbouring_relation=relation_name(relation),
            unit=unit,
        )
        self._forget()
        self._file = LedgerFile(path, header, affordable=self._pays_for)

    def _forget(self) -> None:
        self._held: dict[str, Reservation] = {}
        self._taken_in = 0
        self._filter._start_over()

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._file.path

    def saved_ledger(self) -> Ledger:
        """All that is charged, of each process as a run of its own."""
        return self._file.ledger()

    @property
    def entries(self) -> list[tuple[dp_accounting.DpEvent, int]]:
        """What all processes have spent or reserved."""
        return self._current().entries

    @property
    def ledger(self) -> dp_accounting.DpEvent:
        """What all processes have spent or reserved, as one event."""
        return self._current().ledger

    def events_of(self, run: str) -> int:
        """How many events of a run are charged, by whatever process."""
        return self._file.events_of(run)

    def compose(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        run: str | None = None,
    ) -> SharedBudget:
        self._check_supported(event, count)
        with self._lock:
            self._file.compose(event, count, run=run)
        return self

    def spend(
        self, event: dp_accounting.DpEvent, count: int = 1
    ) -> SharedBudget:
        self._check_supported(event, count)
        with self._lock:
            self._file.spend(event, count)
        return self

    def reserve(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        at_least: int | None = None,
        run: str | None = None,
    ) -> Reservation:
        self._check_supported(event, count)
        with self._lock:
            return self._file.reserve(event, count, at_least=at_least, run=run)

    def settle(self, reservation: Reservation, used: int) -> None:
        with self._lock:
            self._file.settle(reservation, used)

    def affordable(self, event: dp_accounting.DpEvent, most: int) -> int:
        with self._lock:
            return self._current().affordable(event, most)

    def remaining(self) -> float:
        with self._lock:
            return self._current().remaining()

    def get_epsilon(self, target_delta: float) -> float:
        """Of what all processes spent, had it been fixed beforehand."""
        with self._lock:
            return float(self._current().get_epsilon(target_delta))

    def get_config(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "unit": self._file.header.unit,
            "filter": dict(self._file.header.account),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SharedBudget:
        """The budget of a `get_config`, with all that its file holds.

        Raises:
          PrivacyStateError: The file is not there, or belongs to another
            budget, or its filter cannot be made here.
        """
        path, described = config["path"], config["filter"]
        kind = _KINDS.get(described["class_name"])
        if kind is None or not os.path.exists(path):
            raise PrivacyStateError(
                f"The shared budget {path} of a {described['class_name']} "
                "cannot be made here: the file, with all that others have "
                f"spent, is not there, or the filter is none of "
                f"{sorted(_KINDS)}. Put the file back, or make the "
                "SharedBudget yourself and pass it."
            )
        return cls(
            path, kind.from_config(described["config"]), unit=config["unit"]
        )

    def _current(self) -> PrivacyFilter:
        """The filter with all that the file holds."""
        with self._lock:
            self._file.refresh()
            return self._synchronised()

    def _synchronised(self) -> PrivacyFilter:
        """The filter with all that was read; the file may be locked."""
        inner = self._filter
        # Forked, or interrupted, maybe in the midst of this.
        if not self._process == inner._process == os.getpid():
            self._process = os.getpid()
            self._forget()
        history = self._file.history
        lower = False
        for charge in history[self._taken_in :]:
            held = self._held.pop(charge.id, None)
            if held is not None:
                lower |= inner._release(held, charge.count)
            elif charge.settled:
                inner.compose(charge.event, charge.count, run=charge.run)
            else:
                self._held[charge.id] = inner._hold(
                    charge.event, charge.count, charge.run
                )
            self._taken_in += 1
        if lower:
            inner._replay()
        return inner

    def _pays_for(self, event: dp_accounting.DpEvent, most: int) -> int:
        inner = self._synchronised()
        if inner.can_spend(event, most):
            return most
        return inner.affordable(event, most - 1)

    def _maybe_compose(
        self, event: dp_accounting.DpEvent, count: int, do_compose: bool
    ) -> Any:
        return self._filter._maybe_compose(event, count, False)

    def _fits(self, event: dp_accounting.DpEvent, count: int) -> bool:
        return self._current()._fits(event, count)

    def __repr__(self) -> str:
        return f"SharedBudget({self.path!r}, {self._filter!r})"


def budgets_of(budget: PrivacyFilter) -> set[str]:
    """What a filter's statement speaks for, by names that do not repeat."""
    names = {budget.id}
    if isinstance(budget, SharedBudget):
        names.add(os.path.realpath(budget.path))
    # With a cap of its own, a child claims no more than what it releases.
    if isinstance(budget, ChildFilter) and budget._cap is None:
        names |= budgets_of(budget._parent)
    return names
