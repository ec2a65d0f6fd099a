"""A line now and then about what takes long."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import time
from collections.abc import Callable, Iterator

_PATIENCE = 3.0  # Seconds without a word.


class Progress:
    """Passes on what is evaluated; by default to stderr, if it takes long.

    Args:
      task: What all of it is for, in a few words.
      report: Is called with a line for everything that is evaluated. If None,
        a line goes to stderr every three seconds, the first after three.
    """

    def __init__(self, task: str, report: Callable[[str], None] | None = None):
        self._task = task
        self._report = report
        self._number = 0
        self._started = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    def tell(self, evaluated: str) -> None:
        """Says that something is about to be evaluated."""
        self._number += 1
        now = time.monotonic()
        line = (
            f"{self._task}: evaluation {self._number}, {evaluated} "
            f"({now - self._started:.0f} s)"
        )
        if self._report is not None:
            self._report(line)
        elif now - self._told >= _PATIENCE:
            self._told = now
            sys.stderr.write(f"tf_sparse_dp: {line}\n")
            sys.stderr.flush()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Listens to `evaluating` of whatever is called inside."""
        token = _watcher.set(self)
        try:
            yield
        finally:
            _watcher.reset(token)


_watcher: contextvars.ContextVar[Progress | None] = contextvars.ContextVar(
    "watcher", default=None
)


def evaluating(what: str) -> None:
    """Tells whoever watches that something slow begins."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.tell(what)
