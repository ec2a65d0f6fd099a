"""A lower bound on epsilon from one training run with many canaries."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from tf_sparse_dp.audit.lower_bound import (
    LowerBound,
    checked_scores,
    checked_share,
)

# Fewer guesses than this show next to nothing.
_FEWEST_GUESSES = 8
# Of epsilon: bounds are looked for in steps of this, then halved.
_STEP = 0.1
_HALVINGS = 16
_LARGEST = 100.0  # Of epsilon; more is never shown.


def one_run(
    scores: Any,
    included: Any,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: tuple[int, int] | None = None,
) -> LowerBound:
    r"""Epsilon is at least this, from one run on randomly included canaries.

    **Theorem.** Let m canaries be in the data by fair, independent coins
    $S_i$, secret from the training and from the guesser, and let training be
    (ε, δ)-private for data that differ in one canary. From what training
    released, and from nothing that depends on the coins, guess $S_i$ for
    exactly r of them. Then, for every v,

    .. math::
       P(\text{at least } v \text{ right}) \le P(W \ge v)
         + \min(1, 2\alpha) m \delta, \quad
       \alpha = \max_{i \ge 1} \tfrac1i P(v > W \ge v - i)

    with W binomial: r coins of probability $q = e^ε / (1 + e^ε)$.

    *Proof.* Look at canaries one after another. Let P and Q be the laws of
    what is released given $S_1, ..., S_{i-1}$ and that canary i is in, or out;
    later coins are averaged over, so P and Q are (ε, δ)-close. Given the
    release t, canary i is in with probability P(t)/(P(t)+Q(t)), which exceeds q
    by $(1-q)(P - e^ε Q)_+ / (P + Q)$ at most; likewise for out. So a guess is
    right with probability at most $q + (1 - q) b_i$, where b_i has mean at
    most $\frac12(δ + δ) = δ$ under (P + Q)/2. So the guess is right at most as
    often as if a coin of q, independent of all else, or else a coin of b_i had
    to say so. Some coin of a b_i does with probability mδ at most; if none
    does, no more guesses are right than the W coins of q. That gives mδ. With
    2αmδ it is Theorem 5.2 of the paper below, which uses how W is distributed
    just below v. ∎

    The bound is the largest ε for which the right side is at most 1 -
    `confidence`, at the number v that were right; it and all smaller ones are
    refuted. Guesses are "in" for the largest scores, "out" for the smallest.
    How many of each has to be chosen without looking: by default a fixed list
    of choices is tried, and 1 - `confidence` is divided among them.

    **Neighbours** are data with canary i in and out. If a canary that is out
    is not there, these differ by one example that is added or removed. If it
    stands there with weight zero, the relation is zero-out; for Poisson
    sampling that is the same, and where examples are replaced it is one way of
    replacing. An ε for replacing one example by *any* other may be up to twice
    the ε for adding and removing one, and is not refuted by a bound between
    the two unless canaries that are out were so replaced.

    Args:
      scores: One for each of the m canaries, of which larger ones speak for
        "in". Any function of what was released, of canaries, and of what was
        known before the coins were flipped. Equal scores are put in a random
        order.
      included: The coins: whether each canary was in.
      delta: δ, of the guarantee that is put to the test.
      confidence: How likely the bound holds.
      guesses: How often to guess "in" and "out", if that was chosen
        beforehand.

    Raises:
      TypeError, ValueError: The arguments are not what is described above.

    Example:
      Randomised response with ε = 2 tells each coin with probability
      $e^2/(1+e^2)$; the bound comes near, and exceeds it once in twenty times.

      >>> random = np.random.default_rng(0)
      >>> coins = random.random(4000) < 0.5
      >>> honest = random.random(4000) < 1 / (1 + np.exp(-2.0))
      >>> told = np.where(honest, coins, ~coins)
      >>> bound = one_run(told, coins, delta=0.0)
      >>> 1.8 < bound.epsilon < 2.0
      True

    Reference: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1)
    Training Run" (2023), Theorem 5.2.
    """
    values = checked_scores("scores", scores)
    coins = _coins(included, values.size)
    delta = checked_share("delta", delta, zero_allowed=True)
    confidence = checked_share("confidence", confidence)
    choices = (
        default_guesses(values.size)
        if guesses is None
        else [_guesses(guesses, values.size)]
    )
    level = (1 - confidence) / len(choices)
    # Ties fall as chance will have it: the order in which canaries are given
    # may depend on the coins.
    shuffled = np.random.default_rng().permutation(values.size)
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    best = (-1.0, 0, 0, (0, 0))
    for ins, outs in choices:
        right = int(coins[order[values.size - ins :]].sum())
        right += int((~coins[order[:outs]]).sum())
        epsilon = refuted_epsilon(
            values.size, ins + outs, right, delta=delta, level=level
        )
        best = max(best, (epsilon, ins + outs, right, (ins, outs)))
    epsilon, number, right, (ins, outs) = best
    return LowerBound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method="one run",
        trials=values.size,
        guesses=number,
        correct=right,
        detail=(
            f"of {values.size:,} canaries the {ins:,} with the largest scores "
            f"were guessed to be in and the {outs:,} with the smallest to be "
            f"out; {right:,} of {number:,} guesses were right."
        ),
    )


def default_guesses(canaries: int) -> list[tuple[int, int]]:
    """How often to guess "in" and "out": a list that no score decides.

    Half of the canaries, a quarter, an eighth and so on: on both sides, on the
    one, on the other.
    """
    choices = []
    each = canaries // 2
    while True:
        choices += [(each, each), (each, 0), (0, each)]
        each //= 2
        if each < _FEWEST_GUESSES:
            return choices if canaries > 1 else [(1, 0)]


def p_value(
    canaries: int, guesses: int, correct: int, *, epsilon: float, delta: float
) -> float:
    """How likely so many guesses are right at most, if (ε, δ) is true.

    The right side of the theorem of `one_run`.

    Example:
      >>> # All of ten right, where each is with probability 1/2 at best.
      >>> p_value(10, 10, 10, epsilon=0.0, delta=0.0) == 2.0**-10
      True
    """
    probability = 1 / (1 + math.exp(-epsilon))
    law = stats.binom(guesses, probability)
    tail = float(law.sf(correct - 1))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    below = np.cumsum(law.pmf(np.arange(correct - 1, -1, -1)))
    alpha = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, tail + min(1.0, 2 * alpha) * canaries * delta)


def refuted_epsilon(
    canaries: int, guesses: int, correct: int, *, delta: float, level: float
) -> float:
    """The largest ε that so many right guesses refute, with all below it.

    Args:
      canaries: m.
      guesses: r.
      correct: v.
      delta: δ.
      level: How likely a true ε may be refuted.
    """
    return _last(
        lambda epsilon: (
            p_value(canaries, guesses, correct, epsilon=epsilon, delta=delta)
            <= level
        )
    )


def _last(refuted: Callable[[float], bool]) -> float:
    """The end of the interval from 0 on in which all is refuted; or 0.0.

    The term with δ need not grow with ε, so nothing is taken for granted
    beyond the first ε that stands.
    """
    if not refuted(0.0):
        return 0.0
    low = 0.0
    while low < _LARGEST and refuted(low + _STEP):
        low += _STEP
    high = low + _STEP
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


def _coins(included: Any, count: int) -> np.ndarray:
    coins = np.asarray(included)
    if coins.dtype != bool or coins.shape != (count,):
        raise ValueError(
            f"included has type {coins.dtype} and shape {coins.shape}, "
            f"expected {count} truth values, one for each score. Pass "
            "np.asarray(included, bool)."
        )
    return coins


def _guesses(guesses: Sequence[int], count: int) -> tuple[int, int]:
    whole = (
        isinstance(guesses, tuple)
        and len(guesses) == 2
        and all(
            isinstance(g, numbers.Integral) and not isinstance(g, bool)
            for g in guesses
        )
    )
    if not whole:
        raise TypeError(
            f"guesses is {guesses!r}, expected two whole numbers: how often "
            "to guess that a canary is in, and that it is out."
        )
    ins, outs = map(int, guesses)
    if min(ins, outs) < 0 or not 0 < ins + outs <= count:
        raise ValueError(
            f"guesses is {guesses!r}, expected two numbers of at least 0 that "
            f"add up to 1 at least and to {count} at most, the number of "
            "canaries."
        )
    return ins, outs
