"""What came of a case, and whether that may be.

Whatever a training is given, one of two things happens: an error says that it
was refused, and no weight moved; or the step was taken, and paid. Nothing else
does: no step is taken for less than its price, none is left out without a
word, and no process dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp

REFUSED = "refused before any step"
CHARGED = "of these, charged"
PAID = "taken and paid"
CRASHED = "crashed"
UNPAID = "unpaid steps"
SKIPPED = "silent skips"
UNCLEAR = "unclear errors"
BROKEN = "weights that are no numbers"
WRONG = (CRASHED, UNPAID, SKIPPED, UNCLEAR, BROKEN)

# Errors of Python, TensorFlow and Keras that say what was wrong.
CLEAR = (
    *(tsdp.NotSeparableError, tsdp.BudgetExhausted, tsdp.PrivacyStateError),
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OSError),
    *(NotImplementedError, RuntimeError, tf.errors.OpError, EOFError),
    *(zipfile.BadZipFile, zlib.error),
)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What was seen of a case.

    Attributes:
      error: The error that was raised, as text; empty if there was none.
      clear: Whether the error is one that says what was wrong.
      changed: Whether any trainable weight moved.
      finite: Whether all weights are numbers.
      steps: How many steps the inner optimizer took.
      spent: How many were charged.
      must_step: Whether the case has to be taken, whatever its values.
      may_be_none: Whether there may be nothing to take a step with.
    """

    error: str = ""
    clear: bool = True
    changed: bool = False
    finite: bool = True
    steps: int = 0
    spent: int = 0
    must_step: bool = False
    may_be_none: bool = False


def verdict(seen: Seen) -> str:
    """What came of it, in one of the phrases above."""
    if not seen.finite:
        return BROKEN
    if seen.spent < max(seen.steps, int(seen.changed)):
        return UNPAID
    if not seen.clear:
        return UNCLEAR
    if seen.error and not seen.changed:
        return SKIPPED if seen.must_step else REFUSED
    if not seen.changed:
        return REFUSED if seen.may_be_none else SKIPPED
    if seen.must_step and (seen.error or seen.spent != 1):
        return UNPAID if seen.spent < 1 else UNCLEAR
    return PAID


@dataclasses.dataclass
class Watched:
    """Filled in when the block of `watched` ends."""

    seen: Seen = dataclasses.field(default_factory=Seen)


@contextlib.contextmanager
def watched(model: Any, **expected: bool) -> Iterator[Watched]:
    """Looks at a model before and after something is done with it.

    Args:
      model: Compiled with a private optimizer.
      expected: `must_step` and `may_be_none` of `Seen`.
    """
    optimizer, found = model.optimizer, Watched()
    before = _state(model)
    error, clear = "", True
    try:
        yield found
    except Exception as caught:
        clear = isinstance(caught, CLEAR) and bool(str(caught).strip())
        error = f"{type(caught).__name__}: {str(caught)[:300]}"
    forget = getattr(optimizer, "forget_refusals", None)
    if forget is not None:
        forget()  # So that the next case does not hear of it.
    after = _state(model)
    found.seen = Seen(
        error=error,
        clear=clear,
        changed=any(
            not np.array_equal(old, new, equal_nan=True)
            for old, new in zip(before[0], after[0], strict=True)
        ),
        finite=all(np.isfinite(new).all() for new in after[0]),
        steps=after[1] - before[1],
        spent=after[2] - before[2],
        **expected,
    )


def _state(model: Any) -> tuple[list[np.ndarray], int, int]:
    optimizer = model.optimizer
    return (
        [np.array(v) for v in model.trainable_variables],
        int(np.array(optimizer.iterations)),
        int(getattr(optimizer, "compositions_spent", 0)),
    )
