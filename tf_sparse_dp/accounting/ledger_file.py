"""A ledger on disk that is written before anything is released."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import dp_accounting

from tf_sparse_dp.accounting.chained_file import ChainedFile
from tf_sparse_dp.accounting.event_json import (
    canonical_json,
    event_from_json,
    event_to_json,
    parsed_json,
    whole_number,
)
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.accounting.ledger_header import LedgerHeader
from tf_sparse_dp.accounting.ledger_run import Run, checked_count, random_id
from tf_sparse_dp.accounting.reservations import Reservation, wanted
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError

_FORMAT = "tf_sparse_dp ledger file 1"


@dataclasses.dataclass
class Charge:
    """Events that are charged, by whom, and whether that is settled."""

    id: str
    run: str
    event: dp_accounting.DpEvent
    count: int
    settled: bool = False


class LedgerFile:
    """A file of charged events that several processes may reserve from.

    What `reserve` returned is on disk: a process that dies later, or a machine
    that stops, has charged at least what it released. `settle` gives back what
    was not used; a reservation of a process that died stays charged for ever.
    Two runs that use the file at once add up, to no more than `limit`.

    The file is append-only JSON lines with chained digests: a line that was
    changed, removed or put in between is found. As with `Ledger`, somebody who
    means to can compute digests, and an older copy of the file, or one that
    lacks lines at its end, looks as the file once was.

    **Assumptions**: `flock` excludes other processes and `fsync` writes to the
    disk. Both hold for local file systems of Linux and macOS. On a network
    file system they depend on the server, its version and how it is mounted,
    which cannot be found out from here: do not share a file between machines
    unless you know that it honours `flock` across them. Systems without
    `flock` are refused.

    Args:
      path: Of the file. It is made if it is not there.
      header: What it belongs to; that of a file that is there must not differ.
        What was spent to make the mechanism, which then must not differ
        either, counts once for all processes that use the file.
      limit: The most events that can be charged, such as
        `plan.num_compositions`; None sets no limit. All processes must agree.

    Raises:
      PrivacyStateError: The file was changed, belongs to something else, or
        cannot be used safely.

    Example:
      >>> import tempfile
      >>> header = LedgerHeader(
      ...     account={"class_name": "PrivacyPlan", "config": {"delta": 1e-7}},
      ...     neighbouring_relation="add_or_remove_one",
      ... )
      >>> path = os.path.join(tempfile.mkdtemp(), "ledger.jsonl")
      >>> file = LedgerFile(path, header, limit=150)
      >>> step = dp_accounting.GaussianDpEvent(20.0)
      >>> block = file.reserve(step, 100)
      >>> LedgerFile(path, header, limit=150).reserve(
      ...     step, 100, at_least=1
      ... ).count
      50
      >>> file.settle(block, used=30)
      >>> file.num_events
      80
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: LedgerHeader,
        *,
        limit: int | None = None,
        affordable: Callable[[dp_accounting.DpEvent, int], int] | None = None,
    ):
        self._header = header
        self._limit = None if limit is None else checked_count(limit)
        self._affordable = affordable
        self._start_over()
        first = {
            "kind": "header",
            "format": _FORMAT,
            "id": random_id(),
            "header": header.to_config(),
            "limit": self._limit,
        }
        self._file = ChainedFile(path, first, self._take_in)
        self.refresh()

    def _start_over(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._run = random_id()
        self._own: dict[Reservation, str] = {}
        self._id = ""
        self._charges: dict[str, Charge] = {}
        self._num_events = 0
        self.history: list[Charge] = []

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._file.path

    @property
    def header(self) -> LedgerHeader:
        """What the file belongs to."""
        return self._header

    @property
    def num_events(self) -> int:
        """How many events are charged, by all processes, until now."""
        self.refresh()
        return self._num_events

    @property
    def id(self) -> str:
        """Of the file: what all its runs go on from."""
        return self._id

    @property
    def run(self) -> str:
        """The id of what this object reserves, among the ledger's runs."""
        with self._held():
            return self._run

    def events_of(self, run: str) -> int:
        """How many events of a run are charged."""
        with self._held():
            self.refresh()
            charges = self._charges.values()
            return sum(c.count for c in charges if c.run == run)

    def affordable(self, event: dp_accounting.DpEvent, most: int) -> int:
        """How often, up to `most` times, the event can be reserved now."""
        with self._held():
            self.refresh()
            return self._allowed(event, most)

    @property
    def digest(self) -> str:
        """Of all lines, until now; to keep elsewhere for `check_contains`."""
        self.refresh()
        return self._file.digest

    def check_contains(self, digest: str) -> None:
        """Refuses a file that is older than where the digest is from.

        Raises:
          PrivacyStateError: The file does not begin with what it was then.
        """
        self.refresh()
        if not self._file.had_digest(digest):
            raise PrivacyStateError(
                f"{self.path} does not begin with the lines that have the "
                f"digest {digest[:12]}...: it is an older copy, or another "
                "file. What was charged since is missing; put the file back."
            )

    def reserve(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        at_least: int | None = None,
        run: str | None = None,
    ) -> Reservation:
        """Charges events before they are released; on disk when it returns.

        Args:
          event: What may be released.
          count: How often at most.
          at_least: If the limit does not allow all, as many are reserved as
            it allows, if those are so many; else none. All if left out.
          run: The id of the run that is going to release it, for `events_of`
            and in the ledger; `run` of this object if left out.

        Raises:
          BudgetExhausted: The limit does not allow it. Nothing was reserved.
          PrivacyStateError: The file cannot be written, or was changed.
            Nothing was reserved.
        """
        most, least = wanted(count, at_least)
        with self._held(), self._file.locked(to_write=True) as file:
            name, number = self._charge_allowed(
                file, event, (most, least), "reserve", run
            )
            reservation = Reservation(event, number)
            self._own[reservation] = name
            return reservation

    def spend(self, event: dp_accounting.DpEvent, count: int = 1) -> None:
        """Charges events for good, before they are released.

        Raises:
          BudgetExhausted, PrivacyStateError: As `reserve`.
        """
        bounds = wanted(count, None)
        with self._held(), self._file.locked(to_write=True) as file:
            self._charge_allowed(file, event, bounds, "spend", None)

    def settle(self, reservation: Reservation, used: int) -> None:
        """Gives back what was not used of a reservation, once.

        Args:
          reservation: From `reserve` of this object, in this process.
          used: How often the event was released. No more of it may be
            released under this reservation.

        Raises:
          PrivacyStateError: The reservation is not of this object and process,
            or is settled already; or the file cannot be written. Then settling
            can be tried again, but nothing more be released.
        """
        with self._held():
            if reservation not in self._own:
                raise PrivacyStateError(
                    f"{reservation!r} is not reserved by this object from "
                    f"{self.path}, or was settled already. Settle every "
                    "reservation once, where it was made."
                )
            used = reservation.check_used(used)
            charge = self._own[reservation]
            if used < reservation.count:
                with self._file.locked(to_write=True) as file:
                    # Unless an attempt that failed got to the disk after all.
                    known = self._charges[charge]
                    if not known.settled:
                        record = {"kind": "settle", "id": charge, "used": used}
                        self._file.append(file, record)
                    elif known.count != used:
                        raise PrivacyStateError(
                            f"An earlier attempt settled with {known.count}, "
                            f"and this one with {used}. Record what was "
                            "released in between with compose."
                        )
            del self._own[reservation]

    def compose(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        run: str | None = None,
    ) -> None:
        """Charges what was released, whether the limit allows it or not."""
        count, _ = wanted(count, None)
        with self._held(), self._file.locked(to_write=True) as file:
            self._charge(file, event, count, "spend", run)

    def ledger(self) -> Ledger:
        """All that is charged, of each process as a run of its own.

        Take it when all is settled: what is given back later is in it.
        """
        with self._held():
            self.refresh()
            runs: dict[str, Run] = {self._id: self._new_run(self._id)}
            for charge in self._charges.values():
                run = runs.setdefault(charge.run, self._new_run(charge.run))
                if charge.count:
                    run.append(charge.event, charge.count)
            return Ledger._of(runs.values())

    def refresh(self) -> None:
        """Takes in what other processes wrote."""
        with self._held(), self._file.locked(to_write=False):
            pass

    def _no_copy(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"The object for {self.path} cannot be copied or pickled: a copy "
            "would not see what the other charges. Make another LedgerFile "
            "with the same path."
        )

    __copy__ = __deepcopy__ = __reduce_ex__ = _no_copy

    def _held(self) -> contextlib.AbstractContextManager[bool]:
        """The lock of this object, which after a fork starts anew."""
        if self._process != os.getpid():
            self._start_over()
            self._file.start_over()
        return self._lock

    def _new_run(self, name: str) -> Run:
        return Run(name, self._id, self._header, [])

    def _allowed(self, event: dp_accounting.DpEvent, most: int) -> int:
        if self._limit is not None:
            most = min(most, max(0, self._limit - self._num_events))
        if self._affordable is not None:
            most = min(most, self._affordable(event, most))
        return most

    def _charge_allowed(
        self,
        file: int,
        event: dp_accounting.DpEvent,
        bounds: tuple[int, int],
        kind: str,
        run: str | None,
    ) -> tuple[str, int]:
        most, least = bounds
        number = self._allowed(event, most)
        if number < least:
            raise BudgetExhausted(
                f"{self.path} does not allow {least} more of {event!r}: "
                f"{self._num_events} events are charged, and there is room for "
                f"{number}. Nothing was reserved; nothing may be released."
            )
        return self._charge(file, event, number, kind, run), number

    def _charge(
        self,
        file: int,
        event: dp_accounting.DpEvent,
        count: int,
        kind: str,
        run: str | None,
    ) -> str:
        record = event_to_json(event)
        # What cannot be read back would make the file useless.
        event_from_json(parsed_json(canonical_json(record)))
        name = random_id()
        line = {
            "kind": kind,
            "id": name,
            "run": self._run if run is None else run,
            "event": record,
            "count": count,
        }
        self._file.append(file, line)
        return name

    def _take_in(self, record: dict[str, Any]) -> None:
        """Makes a line's record part of what is known, or raises."""
        kind = record["kind"]
        if not self._id:
            if kind != "header" or record["format"] != _FORMAT:
                raise PrivacyStateError(
                    f"the file is of format {record.get('format')!r}, expected "
                    f"{_FORMAT!r}."
                )
            self._check_header(record)
            self._id = record["id"]
        elif kind in ("reserve", "spend"):
            event = event_from_json(record["event"])
            count = whole_number(record["count"])
            name = record["id"]
            if name in self._charges or not isinstance(record["run"], str):
                raise ValueError(f"{name} is reserved twice, or of no run")
            settled = kind == "spend"
            charge = Charge(name, record["run"], event, count, settled)
            self._charges[name] = charge
            self._num_events += count
            self.history.append(dataclasses.replace(charge))
        elif kind == "settle":
            charge = self._charges[record["id"]]
            used = whole_number(record["used"])
            if charge.settled or used > charge.count:
                raise ValueError(f"{charge} cannot be settled with {used}")
            self._num_events -= charge.count - used
            charge.count, charge.settled = used, True
            self.history.append(dataclasses.replace(charge))
        else:
            raise ValueError(f"{kind} is no kind of line")

    def _check_header(self, record: dict[str, Any]) -> None:
        saved = LedgerHeader.from_config(record["header"])
        found = self._header.differences(saved)
        if record["limit"] != self._limit:
            found.append(
                f"limit is {self._limit!r} here and {record['limit']!r} there"
            )
        if found:
            raise PrivacyStateError(
                f"the file (there) belongs to something else, "
                f"{saved.summary()}: {'; '.join(found)}. Use the plan "
                "or budget it was made for, or another file."
            )
