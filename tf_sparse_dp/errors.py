"""The exceptions that users meet, and the one warning category.

AutoGraph replaces an exception that crosses a traced function by a generic
one unless its `__init__` is that of `Exception`; hence the assignments.
"""

from __future__ import annotations

import sys


class NotSeparableError(ValueError):
    """A gradient could not be proven to be a sum of per-example parts.

    Raised while the training step is traced, before any weight changes. The
    message names the operation, the layer it came from, and the remedy.

    The attributes repeat parts of the message; they are empty where it has no
    such parts, and where AutoGraph made the exception anew (`fit` of tf-keras).

    Attributes:
      reason: What was found.
      operation: Name of the operation where it was found.
      remedy: What to do about it.
      report: What `check_separable` found, if that was who raised.
    """

    reason: str = ""
    operation: str = ""
    remedy: str = ""
    report: object = None

    __init__ = Exception.__init__


class BudgetExhausted(RuntimeError):
    """A step was refused because it would spend more than the plan allows.

    The weights are as they were before that step.
    """

    __init__ = Exception.__init__


class PrivacyStateError(RuntimeError):
    """Saved privacy state is missing, or belongs to something else.

    Carrying on would forget privacy that was already spent.
    """

    __init__ = Exception.__init__


class PrivacyWarning(UserWarning):
    """Legal, but probably not the guarantee that the user has in mind."""


def callers_level() -> int:
    """The `stacklevel` with which a warning points out of this package."""
    level, frame = 1, sys._getframe(1)
    package = __name__.partition(".")[0]
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != package:
            break
        level, frame = level + 1, frame.f_back
    return level
