"""The exceptions that users meet, and the one warning category."""

from __future__ import annotations


class NotSeparableError(ValueError):
    """A gradient could not be proven to be a sum of per-example parts.

    Raised while the training step is traced, before any weight changes. The
    message names the operation, the layer it came from, and the remedy.
    """


class BudgetExhausted(RuntimeError):
    """A step was refused because it would spend more than the plan allows.

    The weights are as they were before that step.
    """


class PrivacyStateError(RuntimeError):
    """Saved privacy state is missing, or belongs to something else.

    Carrying on would forget privacy that was already spent.
    """


class PrivacyWarning(UserWarning):
    """Legal, but probably not the guarantee that the user has in mind."""
