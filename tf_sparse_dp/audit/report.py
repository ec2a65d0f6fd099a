"""What an audit found, in plain words."""

from __future__ import annotations

import dataclasses

from tf_sparse_dp.accounting.wording import wrapped
from tf_sparse_dp.audit.lower_bound import LowerBound

_DIFFERENCE = {
    "add_or_remove_one": "with one example more or less",
    "zero_out": "with one example replaced by nothing, in its place",
    "replace_one": "with one example replaced by another, which adds nothing",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What canaries showed about a trained model. `str` gives it in words.

    Attributes:
      bound: What was shown, with the counts that it comes from.
      stated_epsilon: What is claimed, at the delta of the bound.
      neighbouring_relation: What the claim is about.
      own_share: Which part of a canary's gradient, in L2 norm, lies in rows of
        its own; the median of all canaries. Only that part is looked at.
      moved: How many canaries have rows that are not what they were.
    """

    bound: LowerBound
    stated_epsilon: float
    neighbouring_relation: str
    own_share: float
    moved: int

    @property
    def lower_bound(self) -> float:
        """Epsilon is at least this."""
        return self.bound.epsilon

    @property
    def confidence(self) -> float:
        """How likely the lower bound holds, at least."""
        return self.bound.confidence

    @property
    def delta(self) -> float:
        """Of the claim and of the bound."""
        return self.bound.delta

    @property
    def violation(self) -> bool:
        """Whether the claim is refuted, at the bound's confidence."""
        return self.lower_bound > self.stated_epsilon

    def __str__(self) -> str:
        outcome = "VIOLATION" if self.violation else "no violation found"
        lines = [
            f"Privacy audit: {outcome}",
            "",
            f"Stated:  epsilon <= {self.stated_epsilon:.4g} at delta = "
            f"{self.delta:g}, for data "
            f"{_DIFFERENCE[self.neighbouring_relation]}.",
            f"Shown:   epsilon >= {self.lower_bound:.4g} with confidence "
            f"{self.confidence:g}.",
            "",
            f"How: {self.bound.detail} Rows of {self.moved:,} canaries have "
            f"moved. {self.own_share:.0%} of a canary's gradient is in rows of "
            "its own, and nothing else was looked at.",
            self._meaning(),
        ]
        return wrapped(lines)

    __repr__ = __str__

    def _meaning(self) -> str:
        if self.violation:
            rate = 1 - self.confidence
            return (
                "What it means: the statement is wrong, or a coincidence of "
                f"probability {rate:.2g} at most has happened. Audit again "
                "with new canaries; if that is a violation too, do not "
                "release the model."
            )
        return (
            "What it means: these canaries, in this run, looked at in this "
            "way, told no more than the statement allows. That is no proof: "
            "other examples, or a better look at the model, may tell more. "
            "The bound is nearly always far below the true epsilon."
        )
