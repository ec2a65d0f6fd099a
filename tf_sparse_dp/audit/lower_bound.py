"""What an experiment shows about epsilon: a lower bound, and how sure it is."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowerBound:
    """Epsilon is at least this much, with this confidence.

    If a mechanism is (ε, δ)-private, then `epsilon` exceeds ε with probability
    at most 1 - `confidence`, over the runs, the coins and the noise.

    Attributes:
      epsilon: The bound; 0.0 if nothing was shown.
      delta: The delta that it is for.
      confidence: How likely the bound holds, at least.
      method: "one run" or "many runs".
      trials: Canaries of the one run, or runs that were counted.
      guesses: Of how many of these something was guessed.
      correct: How many guesses were right.
      detail: How it came about, in a sentence.
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    trials: int
    guesses: int
    correct: int
    detail: str

    def __str__(self) -> str:
        return (
            f"epsilon >= {self.epsilon:.3f} at delta = {self.delta:g}, with "
            f"confidence {self.confidence:g} ({self.method}): {self.detail}"
        )


def checked_scores(name: str, scores: Any) -> np.ndarray:
    """Scores as a vector of float64; infinite ones are allowed.

    Raises:
      TypeError, ValueError: They are no vector of numbers.
    """
    try:
        vector = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} is a {type(scores).__name__} that is no array of "
            "numbers, expected one number for each canary or run."
        ) from None
    if vector.ndim != 1 or not vector.size:
        raise ValueError(
            f"{name} has shape {vector.shape}, expected a vector of at least "
            "one number. Flatten it, one number for each canary or run."
        )
    if np.isnan(vector).any():
        raise ValueError(
            f"{name} holds {int(np.isnan(vector).sum())} values that are not a "
            "number, expected none. Replace them by a score that says "
            "nothing, such as 0."
        )
    return vector


def checked_share(
    name: str, value: Any, *, zero_allowed: bool = False
) -> float:
    """A number between 0 and 1.

    Raises:
      TypeError, ValueError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}, expected a number.")
    share = float(value)
    low = share >= 0 if zero_allowed else share > 0
    if not (low and share < 1 and math.isfinite(share)):
        least = "at least 0" if zero_allowed else "above 0"
        raise ValueError(
            f"{name} is {value!r}, expected a number {least} and below 1."
        )
    return share
