"""The ledger of an optimizer: what it loaded, and what it released since."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent import futures

import dp_accounting
import tensorflow as tf

from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.accounting.ledger_header import LedgerHeader

Events = list[tuple[dp_accounting.DpEvent, int]]


class Record:
    """Keeps a ledger in step with the count of compositions.

    Steps are counted within the graph, and written down when somebody looks.

    Args:
      header: What the ledger belongs to.
      taken: Gives the number of compositions that this process paid for.
      events: Gives the last so many of them.
      run: The id of what this process takes, where it is known elsewhere.
      origin: The id of what that goes on from, where it is known.
    """

    def __init__(
        self,
        header: LedgerHeader,
        taken: Callable[[], int],
        events: Callable[[int], Events],
        run: str | None = None,
        origin: str | None = None,
    ):
        self._header = header
        self._taken = taken
        self._events = events
        self._run = run
        self._own = Ledger(header, run=run, origin=origin)
        self._written = 0
        # What other processes released, and this one went on from.
        self._loaded: list[Ledger] = []

    def ledger(self) -> Ledger:
        """Everything so far."""
        taken = self._taken()
        if taken > self._written:
            for event, count in self._events(taken - self._written):
                self._own.append(event, count)
            self._written = taken
        merged = copy.copy(self._own)
        for ledger in self._loaded:
            merged = merged.merge(ledger)
        return merged

    def load(self, ledger: Ledger) -> Ledger:
        """Takes over what was recorded elsewhere; returns everything so far.

        Raises:
          PrivacyStateError: The ledger belongs to something else.
        """
        ledger.check_belongs(self._header)
        merged = self.ledger().merge(ledger)
        self._loaded.append(ledger)
        if not self._written:
            # This run goes on from there.
            self._own = ledger.continued(self._header, run=self._run)
        return merged


class CheckpointedLedger(tf.train.experimental.PythonState):
    """The ledger as `tf.train.Checkpoint` sees it: restoring refunds nothing.

    A variable alone would take whatever an older checkpoint holds.

    Args:
      save: Gives the ledger as text.
      load: Takes it over.
    """

    def __init__(self, save: Callable[[], str], load: Callable[[str], None]):
        self._save, self._load = save, load

    def serialize(self) -> str:
        # A SavedModel is written while a graph is built, where variables
        # cannot be read; another thread is not building it.
        with futures.ThreadPoolExecutor(1) as thread:
            return thread.submit(self._save).result()

    def deserialize(self, string_value: bytes) -> None:
        # What is no text has the wrong digests, and is refused for them.
        self._load(string_value.decode(errors="replace"))
