"""A stretch of a ledger that one process recorded."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import Any

import dp_accounting

from tf_sparse_dp.accounting.event_json import (
    canonical_json,
    event_from_json,
    event_to_json,
    whole_number,
)
from tf_sparse_dp.accounting.ledger_header import LedgerHeader
from tf_sparse_dp.errors import PrivacyStateError

FORMAT = "tf_sparse_dp ledger 1"


@dataclasses.dataclass(frozen=True)
class Entry:
    """The same event, `count` times in a row; `digest` covers all before."""

    event: dp_accounting.DpEvent
    count: int
    digest: str


@dataclasses.dataclass
class Run:
    """What one process recorded from its start, or its loading, to its end.

    Attributes:
      id: Random: no two runs share it, so that what both of two ledgers have
        is known from what only looks alike.
      origin: The id of the run that this one continues, or its own.
      header: What it belongs to.
      entries: What was released.
    """

    id: str
    origin: str
    header: LedgerHeader
    entries: list[Entry]

    @classmethod
    def new(
        cls,
        header: LedgerHeader,
        *,
        origin: str | None = None,
        run: str | None = None,
    ) -> Run:
        fresh = run or random_id()
        return cls(fresh, origin or fresh, header, [])

    @property
    def num_events(self) -> int:
        return sum(entry.count for entry in self.entries)

    def start_digest(self) -> str:
        return chained(
            "",
            {
                "format": FORMAT,
                "header": self.header.to_config(),
                "id": self.id,
                "origin": self.origin,
            },
        )

    def digest(self) -> str:
        return self.entries[-1].digest if self.entries else self.start_digest()

    def append(self, event: dp_accounting.DpEvent, count: int) -> None:
        record = event_to_json(event)
        if self.entries:
            last = self.entries[-1]
            if canonical_json(event_to_json(last.event)) == canonical_json(
                record
            ):
                count += last.count
                self.entries.pop()
        digest = chained(self.digest(), [record, count])
        self.entries.append(Entry(event, count, digest))

    def begins(self, other: Run) -> bool:
        """Whether the other run is this one, or this one and then some."""
        if (self.id, self.origin, self.header) != (
            other.id,
            other.origin,
            other.header,
        ):
            return False
        if not self.entries:
            return True
        last = len(self.entries) - 1
        if last >= len(other.entries):
            return False
        mine, others = self.entries[last], other.entries[last]
        return (
            self.entries[:last] == other.entries[:last]
            and mine.event == others.event
            and mine.count <= others.count
        )

    def verify(self) -> None:
        """Computes the digests anew.

        Raises:
          PrivacyStateError: One is not what it was when it was recorded.
        """
        digest = self.start_digest()
        for number, entry in enumerate(self.entries, start=1):
            record = [event_to_json(entry.event), entry.count]
            digest = chained(digest, record)
            if digest != entry.digest:
                raise PrivacyStateError(
                    f"Entry {number} of run {self.id} in the ledger "
                    f"({entry.count} of {entry.event!r}), or what stands "
                    "before it, is not what was recorded: its digest is "
                    f"{str(entry.digest)[:12]}..., expected {digest[:12]}.... "
                    "The ledger was changed; use an intact copy."
                )

    def to_config(self) -> dict[str, Any]:
        """Plain values, which `read_run` reads."""
        return {
            "id": self.id,
            "origin": self.origin,
            "header": self.header.to_config(),
            "entries": [
                [event_to_json(entry.event), entry.count, entry.digest]
                for entry in self.entries
            ],
        }


def read_run(saved: Any) -> Run:
    """The run of a `Run.to_config`; digests are not verified.

    Raises:
      PrivacyStateError: It is no run.
    """
    if not isinstance(saved, dict) or set(saved) != {
        "id",
        "origin",
        "header",
        "entries",
    }:
        raise malformed(f"a run of it is {str(saved)[:80]}")
    if not isinstance(saved["entries"], list) or not all(
        isinstance(saved[name], str) for name in ("id", "origin")
    ):
        raise malformed("a run has an id or entries of the wrong kind")
    entries = []
    for entry in saved["entries"]:
        if not (isinstance(entry, list) and len(entry) == 3):
            raise malformed(f"an entry of it is {str(entry)[:80]}")
        event, count, digest = entry
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise malformed(f"an event occurs {count!r} times in it")
        entries.append(Entry(event_from_json(event), count, digest))
    header = LedgerHeader.from_config(saved["header"])
    return Run(saved["id"], saved["origin"], header, entries)


def chained(before: str, record: object) -> str:
    """The digest of a record that follows what has the digest `before`."""
    text = f"{before}\n{canonical_json(record)}"
    return hashlib.sha256(text.encode()).hexdigest()


def random_id() -> str:
    """128 random bits of the operating system, in hexadecimal digits."""
    return os.urandom(16).hex()


def checked_count(count: object) -> int:
    """The count, if it is a whole number of at least 0.

    Raises:
      TypeError, ValueError: It is not.
    """
    try:
        return whole_number(count)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"count is {count!r}, expected a whole number of at least 0. Give "
            "the number of releases."
        ) from None


def malformed(what: str) -> PrivacyStateError:
    """For a text that is not what a ledger writes."""
    message = f"The text is no ledger: {what}. It was changed; use another."
    error: PrivacyStateError = PrivacyStateError(message)
    return error
