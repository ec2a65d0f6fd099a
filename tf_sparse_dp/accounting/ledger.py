"""The record of every release, in order."""

from __future__ import annotations

import copy
import hashlib
import hmac
import math
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import dp_accounting

from tf_sparse_dp.accounting.composition import composed_epsilon
from tf_sparse_dp.accounting.dp_events import ApproxDpEvent
from tf_sparse_dp.accounting.event_json import canonical_json, parsed_json
from tf_sparse_dp.accounting.ledger_header import LedgerHeader
from tf_sparse_dp.accounting.ledger_run import (
    FORMAT,
    Run,
    chained,
    checked_count,
    malformed,
    read_run,
)
from tf_sparse_dp.errors import PrivacyStateError


class Ledger:
    """Every release's event, in order, with what it belongs to.

    A ledger is for keeping: with a model, in a file, in an archive. Replaying
    it gives the epsilon again.

    **Digests.** A chain of SHA-256 runs from the header through all entries,
    so that a changed, removed or exchanged entry is found when a ledger is
    read. Without a key, that detects accidents and careless edits; whoever
    changes a ledger on purpose can compute new digests as well. With a `key`
    that only you have, a changed ledger is found too. Neither can tell that
    somebody put an older copy of a ledger in the place of a newer one.

    **Runs.** A ledger that was loaded, copied, or taken over a fork, records
    what comes then as a run of its own. So `merge` of two ledgers that both
    went on from one checkpoint counts the beginning once, and both ends.

    Args:
      header: What it belongs to.
      entries: Events that were released already, with their counts.
      run: An id for the run, if it has one elsewhere; random if left out.
      origin: The id of what the run goes on from, likewise.

    Example:
      >>> header = LedgerHeader(
      ...     account={"class_name": "PrivacyPlan", "config": {"delta": 1e-7}},
      ...     neighbouring_relation="add_or_remove_one",
      ... )
      >>> ledger = Ledger(header)
      >>> ledger.append(dp_accounting.GaussianDpEvent(2.0), 3)
      >>> ledger.append(dp_accounting.GaussianDpEvent(2.0))
      >>> ledger.entries
      [(GaussianDpEvent(noise_multiplier=2.0), 4)]
      >>> saved = ledger.to_json()
      >>> Ledger.from_json(saved).num_events
      4
      >>> Ledger.from_json(saved.replace(",4,", ",3,"))
      Traceback (most recent call last):
          ...
      tf_sparse_dp.errors.PrivacyStateError: Entry 1 of run ... in the ledger...
    """

    def __init__(
        self,
        header: LedgerHeader,
        entries: Iterable[tuple[dp_accounting.DpEvent, int]] = (),
        *,
        run: str | None = None,
        origin: str | None = None,
    ):
        if not isinstance(header, LedgerHeader):
            raise TypeError(f"header is {header!r}, expected a LedgerHeader.")
        self._runs = [Run.new(header, run=run, origin=origin)]
        self._open_in: int | None = os.getpid()
        self._lock = threading.Lock()
        for event, count in entries:
            self.append(event, count)

    @classmethod
    def _of(cls, runs: Iterable[Run]) -> Ledger:
        """A ledger of runs that others may go on with; it does not."""
        runs = list(runs)
        ledger = cls(runs[0].header)
        ledger._runs = [
            Run(run.id, run.origin, run.header, list(run.entries))
            for run in runs
        ]
        ledger._open_in = None
        return ledger

    def append(self, event: dp_accounting.DpEvent, count: int = 1) -> None:
        """Records that the event was, or is about to be, released.

        Raises:
          TypeError: The event is none that a ledger can read back.
          ValueError: The count is negative.
          PrivacyStateError: The ledger is merged of several trainings.
        """
        count = checked_count(count)
        with self._lock:
            if self._open_in != os.getpid():
                if len({run.origin for run in self._runs}) > 1:
                    raise PrivacyStateError(
                        "A ledger merged of several trainings takes no more "
                        "events: of which one would they be? Record them in "
                        "the ledger of one, and merge again."
                    )
                self._start_run(self._runs[-1].header)
            if count:
                self._runs[-1].append(event, count)

    def continued(
        self, header: LedgerHeader, *, run: str | None = None
    ) -> Ledger:
        """A ledger of all this and of what comes, under a current header.

        For who resumes: whether there is a seed, and the version of the
        library, may be others by now.

        Raises:
          PrivacyStateError: The ledger belongs to something else.
        """
        self.check_belongs(header)
        ledger = copy.copy(self)
        ledger._start_run(header, run)
        return ledger

    def _start_run(self, header: LedgerHeader, run: str | None = None) -> None:
        origin = self._runs[-1].origin
        self._runs.append(Run.new(header, origin=origin, run=run))
        self._open_in = os.getpid()

    @property
    def header(self) -> LedgerHeader:
        """That of the latest run."""
        return self._runs[-1].header

    @property
    def runs(self) -> tuple[Run, ...]:
        """Copies of the runs, in the order in which they came."""
        return tuple(copy.copy(self)._runs)

    @property
    def entries(self) -> list[tuple[dp_accounting.DpEvent, int]]:
        """All events with their counts, run after run."""
        return [
            (entry.event, entry.count)
            for run in self.runs
            for entry in run.entries
        ]

    @property
    def num_events(self) -> int:
        """How many releases are recorded."""
        return sum(run.num_events for run in self.runs)

    @property
    def was_seeded(self) -> bool:
        """Whether any of the runs had a fixed seed."""
        return any(run.header.was_seeded for run in self.runs)

    @property
    def spent_before(self) -> tuple[float, float]:
        """Epsilon and delta spent beforehand, once for all that went on.

        Trainings that did not go on from one another are taken to have spent
        anew, even what they had in common. Where nothing was released under
        a header, it is taken to be about what others say alike.
        """
        runs = self.runs
        released = {_made(run) for run in runs if run.entries}
        spendings = {
            (run.origin, _made(run)): run.header.spent_before
            for run in runs
            if run.entries or _made(run) not in released
        }
        epsilons, deltas = zip(*spendings.values(), strict=True)
        return _sum_up(epsilons), _sum_up(deltas)

    @property
    def digest(self) -> str:
        """SHA-256 over everything in the ledger, in hexadecimal digits."""
        return _digest_of(self.runs)

    def merge(self, other: Ledger) -> Ledger:
        """The ledger of both: two trainings on the same data.

        What both have in common is kept once. Neither is changed.

        Raises:
          TypeError: The other is no ledger.
          PrivacyStateError: They protect different things, or disagree about
            what they have in common.
        """
        if not isinstance(other, Ledger):
            raise TypeError(
                f"other is {other!r}, expected a Ledger. Read one with "
                "Ledger.from_json(text), or LedgerFile(...).ledger()."
            )
        merged = {run.id: run for run in self.runs}
        for run in other.runs:
            for name in ("neighbouring_relation", "unit"):
                mine = getattr(self.header, name)
                others = getattr(run.header, name)
                if mine != others:
                    raise PrivacyStateError(
                        f"{name} of one ledger is {mine!r}, and of the other "
                        f"{others!r}. What they spent does not add up; keep "
                        "them apart."
                    )
            known = merged.get(run.id, run)
            if known.begins(run):
                merged[run.id] = run
            elif not run.begins(known):
                raise PrivacyStateError(
                    f"Both ledgers have the run {run.id}, but neither has what "
                    "the other has of it: one of them was changed, or a copy "
                    "of it was recorded to. Which events were released cannot "
                    "be told."
                )
        return self._of(merged.values())

    def check_belongs(self, header: LedgerHeader) -> None:
        """Refuses a ledger that is not all of the header's plan.

        Raises:
          PrivacyStateError: Saying what differs.
        """
        for run in self.runs:
            found = header.differences(run.header)
            if found:
                raise PrivacyStateError(
                    f"The ledger (there) belongs to something else, "
                    f"{run.header.summary()}: {'; '.join(found)}. "
                    "Its events are not those of this run. Use the plan and "
                    "mechanism it was made with, or the ledger of this one."
                )

    def verify(self) -> None:
        """Computes all digests anew.

        Raises:
          PrivacyStateError: One is not what it was when it was recorded.
        """
        for run in self.runs:
            run.verify()

    def to_json(self, *, key: bytes | None = None) -> str:
        """The ledger as text, which `from_json` reads.

        Args:
          key: Secret bytes, at least 16, that `from_json` can be given too.
        """
        runs = self.runs
        digest = _digest_of(runs)
        return canonical_json(
            {
                "format": FORMAT,
                "runs": [run.to_config() for run in runs],
                "digest": digest,
                "mac": None if key is None else _mac(key, digest),
            }
        )

    @classmethod
    def from_json(cls, text: str, *, key: bytes | None = None) -> Ledger:
        """The ledger of a `to_json`, verified.

        Args:
          text: From `to_json`.
          key: If given, the text must have been made with this key.

        Raises:
          TypeError: It is no text.
          PrivacyStateError: The text is no ledger, or not as it was made.
        """
        if not isinstance(text, str):
            raise TypeError(
                f"text is a {type(text).__name__}, expected the text that "
                "to_json gives. Read it from its file first: "
                "Ledger.from_json(pathlib.Path(path).read_text())."
            )
        if not text.startswith("{"):
            raise malformed(
                f"it begins with {text[:60]!r}; if that is a path, give what "
                "is in the file, by pathlib.Path(path).read_text()"
            )
        saved = parsed_json(text)
        parts = {"format", "runs", "digest", "mac"}
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            found = saved.get("format") if isinstance(saved, dict) else saved
            raise PrivacyStateError(
                f"The text is of format {found!r}, expected {FORMAT!r}. Read "
                "it with the version of this package that wrote it."
            )
        if set(saved) != parts or not isinstance(saved["runs"], list):
            raise malformed(f"it has {sorted(saved)}")
        runs = [read_run(run) for run in saved["runs"]]
        if not runs or len({run.id for run in runs}) != len(runs):
            raise malformed("it has no run, or one twice")
        ledger = cls._of(runs)
        ledger.verify()
        digest = ledger.digest
        if saved["digest"] != digest:
            raise PrivacyStateError(
                f"The digest of the ledger is {saved['digest']!r}, but what it "
                f"holds has {digest!r}: entries at its end, a header or a "
                "run were changed or removed. Use an intact copy."
            )
        if key is not None and not (
            isinstance(saved["mac"], str)
            and hmac.compare_digest(
                saved["mac"].encode(), _mac(key, digest).encode()
            )
        ):
            raise PrivacyStateError(
                "The ledger was not made with this key, or was changed by "
                "somebody without it"
                + (" (it has no mac)." if saved["mac"] is None else ".")
                + " Use an intact copy, and the key that it was made with."
            )
        return ledger

    def get_epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything, what was spent before included.

        Failures of events are charged to delta, as in `PrivacyPlan`; for the
        ledger of a plan it is what `epsilon_spent` finds, before that is cut
        to the epsilon that was asked for. It holds if the events and their
        number were fixed beforehand. A run that chose or stopped by what it
        released claims the budget of its filter instead.

        Args:
          delta: In all, what was spent before included.

        Raises:
          UnsupportedEventError: The cost of an event is not known.
        """
        epsilon_before, delta_before = self.spent_before
        left = delta
        if delta_before:
            left = math.nextafter(delta - delta_before, -math.inf)
        if left < 0:
            return math.inf
        epsilon = composed_epsilon(
            self.entries,
            delta=left,
            neighboring_relation=self.header.neighboring_relation,
        )
        if not epsilon_before:
            return epsilon
        return math.nextafter(epsilon_before + epsilon, math.inf)

    def replay(self, accountant: Any) -> Any:
        """Composes everything into an accountant or filter, and returns it.

        What was spent before goes first, as an `ApproxDpEvent`.

        Raises:
          PrivacyStateError: The accountant is for another neighbouring
            relation.
          UnsupportedEventError: It does not know one of the events. Those of
            `dp_accounting` know none of ours: `FailingDpEvent`, which a run
            with Poisson batches has, and `ApproxDpEvent`. See `get_epsilon`.
        """
        relation = self.header.neighboring_relation
        if accountant.neighboring_relation is not relation:
            raise PrivacyStateError(
                f"The accountant is for {accountant.neighboring_relation}, "
                f"but the ledger's events hold for {relation}. Make the "
                "accountant with that."
            )
        if any(self.spent_before):
            accountant.compose(ApproxDpEvent(*self.spent_before))
        for event, count in self.entries:
            accountant.compose(event, count)
        return accountant

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return (
            f"<Ledger of {self.num_events} events in {len(self.runs)} runs, "
            f"digest {self.digest[:12]}...>"
        )

    def __copy__(self) -> Ledger:
        with self._lock:
            return self._of(self._runs)

    def __deepcopy__(self, memo: Any) -> Ledger:
        return copy.copy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ledger.from_json, (self.to_json(),)


def _digest_of(runs: Sequence[Run]) -> str:
    return chained("", [run.digest() for run in runs])


def _made(run: Run) -> str:
    """The mechanism and what it took to make it."""
    return canonical_json([run.header.mechanism, run.header.spent_before])


def _sum_up(values: Sequence[float]) -> float:
    total = math.fsum(values)
    several = sum(map(bool, values)) > 1
    return math.nextafter(total, math.inf) if several else total


def _mac(key: bytes, digest: str) -> str:
    if not isinstance(key, bytes) or len(key) < 16:
        raise ValueError(
            "key must be at least 16 secret bytes, such as secrets.token_bytes("
            "32), kept where who may write ledgers cannot read it."
        )
    return hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()
