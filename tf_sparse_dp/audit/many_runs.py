"""A lower bound on epsilon from many runs, with a canary and without it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

from tf_sparse_dp.audit.lower_bound import (
    LowerBound,
    checked_scores,
    checked_share,
)


def many_runs(
    with_canary: Any,
    without_canary: Any,
    *,
    delta: float,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> LowerBound:
    r"""Epsilon is at least this, from runs with a canary and without it.

    Whoever guesses from a run's score whether the canary was in, by whether
    the score exceeds τ = `threshold`, errs with two rates: FPR, runs without
    the canary whose score exceeds τ, and FNR, runs with it whose score does
    not. If training is (ε, δ)-private, then both ways round

    .. math::
       1 - FNR \le e^ε FPR + δ, \qquad 1 - FPR \le e^ε FNR + δ,

    .. math::
       ε \ge \max\left( \ln \frac{1 - δ - FNR}{FPR},
                        \ln \frac{1 - δ - FPR}{FNR} \right).

    The rates are not known. In their place stand upper bounds after Clopper
    and Pearson, each of which fails with probability (1 - `confidence`)/2 at
    most: the right side falls as either rate grows, so that the bound holds
    whenever both do.

    τ must not be chosen by the runs that are counted. If it is not given, the
    runs with even numbers choose it, for the largest bound, and only those
    with odd numbers are counted.

    **Neighbours**: the data with and without the canary. So ε is for adding or
    removing one example; or for zeroing one out, if the canary is there with
    weight zero in the other runs.

    Args:
      with_canary: A score of each run with the canary, of which larger ones
        speak for it. Runs are independent, with noise, batches and initial
        values of their own (or with initial values that all runs share).
      without_canary: The same of runs without it.
      delta: δ, of the guarantee that is put to the test.
      confidence: How likely the bound holds.
      threshold: τ, if it was chosen without looking at these runs.

    Raises:
      TypeError, ValueError: The arguments are not what is described above.

    Example:
      >>> random = np.random.default_rng(0)
      >>> bound = many_runs(
      ...     random.laplace(1.0, 1.0, 20_000),
      ...     random.laplace(0.0, 1.0, 20_000),
      ...     delta=0.0,
      ... )
      >>> 0.8 < bound.epsilon < 1.0  # Laplace noise of scale 1: ε = 1.
      True

    Reference: Jagielski, Ullman and Oprea, "Auditing Differentially Private
    Machine Learning: How Private is Private SGD?" (2020).
    """
    present = checked_scores("with_canary", with_canary)
    absent = checked_scores("without_canary", without_canary)
    delta = checked_share("delta", delta, zero_allowed=True)
    confidence = checked_share("confidence", confidence)
    if threshold is None:
        for name, runs in (("with", present), ("without", absent)):
            if runs.size < 2:
                raise ValueError(
                    f"There is {runs.size} run {name} the canary, expected at "
                    "least 2: one half of them chooses the threshold, the "
                    "other is counted. Give more runs, or a threshold that "
                    "was chosen without them."
                )
        threshold = best_threshold(
            present[::2], absent[::2], delta=delta, confidence=confidence
        )
        present, absent = present[1::2], absent[1::2]
    elif not isinstance(threshold, (int, float)) or math.isnan(threshold):
        raise TypeError(f"threshold is {threshold!r}, expected a number.")
    false_positives = int((absent > threshold).sum())
    false_negatives = int((present <= threshold).sum())
    epsilon = epsilon_from_rates(
        highest_rate(false_positives, absent.size, (1 - confidence) / 2),
        highest_rate(false_negatives, present.size, (1 - confidence) / 2),
        delta=delta,
    )
    number = present.size + absent.size
    return LowerBound(
        epsilon=float(epsilon),
        delta=delta,
        confidence=confidence,
        method="many runs",
        trials=number,
        guesses=number,
        correct=number - false_positives - false_negatives,
        detail=(
            f"{false_positives:,} of {absent.size:,} runs without the canary "
            f"scored above {threshold:.4g}, and {false_negatives:,} of "
            f"{present.size:,} runs with it did not."
        ),
    )


def highest_rate(count: Any, number: int, level: float) -> Any:
    """The largest rate that so few events leave possible.

    Clopper and Pearson's upper bound: with more, `count` events or fewer of
    `number` would have probability below `level`.

    Example:
      >>> round(float(highest_rate(0, 100, 0.05)), 6), 1 - 0.05**0.01
      (0.029513, 0.0295130...)
    """
    count = np.asarray(count)
    inner = stats.beta.ppf(
        1 - level, count + 1, np.maximum(number - count, 0.5)
    )
    return np.where(count >= number, 1.0, inner)


def epsilon_from_rates(
    false_positive_rate: Any, false_negative_rate: Any, *, delta: float
) -> Any:
    """The least ε at which a test may have error rates as low as these."""

    def one_way(first: Any, second: Any) -> Any:
        room = np.maximum(1 - delta - first, 1e-300)
        return np.log(room / np.maximum(second, 1e-300))

    return np.maximum.reduce(
        [
            one_way(false_negative_rate, false_positive_rate),
            one_way(false_positive_rate, false_negative_rate),
            np.zeros_like(np.asarray(false_positive_rate, float)),
        ]
    )


def best_threshold(
    present: np.ndarray, absent: np.ndarray, *, delta: float, confidence: float
) -> float:
    """The threshold with the largest bound on these runs."""
    values = np.unique(np.concatenate([present, absent]))
    level = (1 - confidence) / 2
    above = absent.size - np.searchsorted(np.sort(absent), values, "right")
    below = np.searchsorted(np.sort(present), values, "right")
    bounds = epsilon_from_rates(
        highest_rate(above, absent.size, level),
        highest_rate(below, present.size, level),
        delta=delta,
    )
    return float(values[int(np.argmax(bounds))])
