"""One test for all claims about a sampler: events that have their probability.

A claim such as "examples 3 and 5 are drawn together with probability q²" names
an event; its count in independent trials is binomial. By Chernoff's bound,

    P(|count/trials - p| as far from p as seen) <= 2 exp(-trials KL(seen || p)),

for any number of trials, so the false-failure probabilities stated in the
tests are bounds, not approximations.
"""

from __future__ import annotations

import math

import numpy as np

FALSE_FAILURE = 1e-6


def _divergence(seen: float, p: float) -> float:
    """Kullback-Leibler divergence between two coins, in nats."""
    total = 0.0
    for a, b in ((seen, p), (1 - seen, 1 - p)):
        if a > 0:
            total += a * math.log(a / b) if b > 0 else math.inf
    return total


def refuted(
    counts: dict[str, int],
    trials: int,
    probabilities: dict[str, float],
) -> list[str]:
    """The events whose counts contradict their probabilities.

    For a sampler that is right, the list is empty but with probability
    `FALSE_FAILURE` at most, over all the events together (union bound).
    """
    limit = math.log(2 * len(counts) / FALSE_FAILURE)
    return [
        event
        for event, count in counts.items()
        if trials * _divergence(count / trials, probabilities[event]) > limit
    ]


def poisson_claims_refuted(drawn: np.ndarray, q: float) -> set[str]:
    """Which of the claims of Poisson sampling a record of draws contradicts.

    Args:
      drawn: Truth values [steps, examples]: who was in which batch.
      q: The sampling probability.

    Returns:
      A subset of "inclusion", "pairs", "sizes" and "consecutive". For true
      Poisson draws, not empty with probability 4 FALSE_FAILURE at most.
    """
    steps, n = drawn.shape
    members = drawn.astype(np.int64)
    together = members.T @ members
    sizes = np.bincount(members.sum(1), minlength=n + 1)
    # Disjoint pairs of steps, so that the trials are independent.
    before, after = members[0 : steps - 1 : 2], members[1:steps:2]
    again = np.sum(before * after, axis=0)
    rejected = {
        "inclusion": refuted(
            {str(i): together[i, i] for i in range(n)},
            steps,
            {str(i): q for i in range(n)},
        ),
        "pairs": refuted(
            {f"{i},{j}": together[i, j] for i in range(n) for j in range(i)},
            steps,
            {f"{i},{j}": q * q for i in range(n) for j in range(i)},
        ),
        "sizes": refuted(
            {str(k): sizes[k] for k in range(n + 1)},
            steps,
            {str(k): binomial(n, q, k) for k in range(n + 1)},
        ),
        "consecutive": refuted(
            {str(i): again[i] for i in range(n)},
            len(after),
            {str(i): q * q for i in range(n)},
        ),
    }
    return {claim for claim, events in rejected.items() if events}


def binomial(n: int, q: float, k: int) -> float:
    return math.comb(n, k) * q**k * (1 - q) ** (n - k)
