"""The bound from one run, against laws that are known exactly."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tf_sparse_dp import audit
from tf_sparse_dp.audit.one_run import (
    default_guesses,
    p_value,
    refuted_epsilon,
)

pytestmark = [pytest.mark.once]


def binomial_tail(number: int, at_least: int, odds: int) -> Fraction:
    """P(Binomial(number, odds/(1+odds)) >= at_least), in whole numbers."""
    total = sum(
        math.comb(number, k) * odds**k for k in range(at_least, number + 1)
    )
    return Fraction(total, (1 + odds) ** number)


@pytest.mark.parametrize("correct", [0, 1, 5, 17, 20])
@pytest.mark.parametrize("odds", [1, 3, 20])
def test_without_delta_it_is_the_tail_of_randomised_response(
    correct: int, odds: int
) -> None:
    """Which is attained: by randomised response, each coin told by itself."""
    found = p_value(50, 20, correct, epsilon=math.log(odds), delta=0.0)
    assert found == pytest.approx(float(binomial_tail(20, correct, odds)))


def test_with_delta_against_sums_of_fractions() -> None:
    number, correct, odds, delta = 30, 25, 3, 1e-4
    tail = binomial_tail(number, correct, odds)
    alpha = max(
        (binomial_tail(number, correct - i, odds) - tail) / i
        for i in range(1, correct + 1)
    )
    expected = float(tail) + 2 * float(alpha) * 40 * delta
    found = p_value(40, number, correct, epsilon=math.log(odds), delta=delta)
    assert found == pytest.approx(expected)
    assert found < float(tail) + 40 * delta


def worst_case(number: int, at_least: int, delta: float) -> float:
    """Success of telling i of the coins, chosen at random, and flipping others.

    With probability m·delta/i, and nothing at all but random answers else:
    (0, delta)-private, since each coin is told with probability delta.
    """
    half = stats.binom(number, 0.5)
    best = 0.0
    for told in range(1, number + 1):
        share = number * delta / told
        others = stats.binom(number - told, 0.5).sf(at_least - told - 1)
        best = max(best, share * others + (1 - share) * half.sf(at_least - 1))
    return best


@pytest.mark.parametrize("at_least", [6, 8, 10])
def test_covers_a_mechanism_that_tells_some_coins_for_good(
    at_least: int,
) -> None:
    """An (0, delta)-private one, whose success is known exactly."""
    delta = 1e-3
    found = worst_case(10, at_least, delta)
    bound = p_value(10, 10, at_least, epsilon=0.0, delta=delta)
    without = p_value(10, 10, at_least, epsilon=0.0, delta=0.0)
    assert without < found <= bound  # So that delta cannot be left out.


def test_covers_every_mechanism_of_two_coins() -> None:
    """Mechanisms whose delta is computed from the definition, not stated.

    Random tables of P(answer | coins), answers being two guesses. The smallest
    delta at epsilon is over all neighbours and events; the success probability
    is a sum. Seeded: 300 tables, none by chance.
    """
    random = np.random.default_rng(0)
    coins = list(itertools.product((0, 1), repeat=2))
    tight = 0.0
    for _ in range(300):
        law = random.dirichlet(np.full(4, 0.3), size=4)  # [coins, answers]
        law = 0.5 * law + 0.5 * np.eye(4) * random.random()
        law /= law.sum(1, keepdims=True)
        for epsilon in (0.0, 0.5, 2.0):
            delta = max(
                np.maximum(law[a] - math.exp(epsilon) * law[b], 0).sum()
                for a, b in itertools.permutations(range(4), 2)
                if sum(x != y for x, y in zip(coins[a], coins[b], strict=True))
                == 1
            )
            for at_least in (1, 2):
                success = sum(
                    law[s, t] / 4
                    for s in range(4)
                    for t in range(4)
                    if sum(
                        x == y for x, y in zip(coins[s], coins[t], strict=True)
                    )
                    >= at_least
                )
                bound = p_value(2, 2, at_least, epsilon=epsilon, delta=delta)
                assert success <= bound + 1e-12
                tight = max(tight, success / bound)
    assert tight > 0.9


def test_bound_is_refuted_and_a_little_more_is_not() -> None:
    found = refuted_epsilon(1000, 400, 380, delta=1e-6, level=0.05)
    for epsilon in np.linspace(0, found, 50):
        p = p_value(1000, 400, 380, epsilon=float(epsilon), delta=1e-6)
        assert p <= 0.05
    assert p_value(1000, 400, 380, epsilon=found + 1e-4, delta=1e-6) > 0.05


def test_nothing_is_shown_by_guesses_that_are_right_by_chance() -> None:
    assert refuted_epsilon(1000, 400, 200, delta=0.0, level=0.05) == 0.0
    assert refuted_epsilon(1000, 400, 400, delta=0.1, level=0.05) == 0.0


def sigma(epsilon: float, delta: float) -> float:
    """Of a Gaussian mechanism of sensitivity 1, from its exact delta."""
    low, high = 0.01, 100.0
    for _ in range(100):
        s = (low + high) / 2
        exact = stats.norm.cdf(0.5 / s - epsilon * s) - math.exp(
            epsilon
        ) * stats.norm.cdf(-0.5 / s - epsilon * s)
        low, high = (s, high) if exact > delta else (low, s)
    return high


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_gaussian_mechanism(epsilon: float) -> None:
    """Seeded. A true epsilon is not refuted; that of 0.3 of the noise is."""
    random = np.random.default_rng(1)
    delta = 1e-7
    coins = random.random(20_000) < 0.5
    noise = sigma(epsilon, delta) * random.standard_normal(coins.size)
    honest = audit.one_run(coins + noise, coins, delta=delta)
    # What the largest scores of so many canaries tell is less than epsilon.
    assert epsilon / 10 < honest.epsilon < epsilon
    cut = audit.one_run(coins + 0.3 * noise, coins, delta=delta)
    assert cut.epsilon > epsilon


def test_confidence_is_true_for_randomised_response() -> None:
    """It is exceeded in 5 % of 2000 audits at most; near that at one choice.

    Randomised response is the mechanism for which the theorem is an equality:
    the number of right guesses is binomial. Seeded; by chance more than 7 %
    would exceed with probability below 1e-4, and fewer than 2 % below 1e-9,
    the binomial tail nearest to 5 % being 3.9 %.
    """
    random = np.random.default_rng(2)
    epsilon, canaries = 1.5, 200
    truth = 1 / (1 + math.exp(-epsilon))
    right = random.binomial(canaries, truth, size=2000)
    bounds = {
        v: refuted_epsilon(canaries, canaries, v, delta=0.0, level=0.05)
        for v in set(right.tolist())
    }
    exceeded = np.mean([bounds[v] > epsilon for v in right.tolist()])
    assert 0.02 < exceeded < 0.07


def test_a_delta_that_is_too_large_for_the_confidence_shows_nothing() -> None:
    """A mechanism may tell all coins with probability m·delta, or nearly so."""
    coins = np.arange(1000) % 2 == 0
    sure = audit.one_run(coins, coins, delta=1e-7, confidence=1 - 1e-9)
    assert sure.epsilon == 0.0
    assert audit.one_run(coins, coins, delta=1e-7).epsilon > 4


def test_choices_of_guesses_depend_on_the_number_of_canaries_alone() -> None:
    for canaries in (1, 2, 15, 16, 1000):
        choices = default_guesses(canaries)
        assert choices
        assert len(set(choices)) == len(choices)
        assert all(0 < i + o <= canaries for i, o in choices)


def test_guesses_that_were_chosen_beforehand() -> None:
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    coins = np.array([True, True, False, True, False, False])
    bound = audit.one_run(scores, coins, delta=0.0, guesses=(2, 2))
    assert (bound.guesses, bound.correct, bound.trials) == (4, 4, 6)
    assert audit.one_run(-scores, coins, delta=0.0, guesses=(2, 2)).correct == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scores": [[1.0]]}, ValueError, "expected a vector"),
        ({"scores": ["a", "b"]}, TypeError, "no array of numbers"),
        ({"scores": [math.nan, 1.0]}, ValueError, "1 values that are not a"),
        ({"included": [1, 0]}, ValueError, "expected 2 truth values"),
        ({"included": [True]}, ValueError, "expected 2 truth values"),
        ({"delta": 1.0}, ValueError, "delta is 1.0, expected a number"),
        ({"delta": "0"}, TypeError, "delta is '0', expected a number"),
        ({"confidence": 0}, ValueError, "confidence is 0, expected"),
        ({"guesses": 3}, TypeError, "expected two whole numbers"),
        ({"guesses": (2, 1)}, ValueError, "to 2 at most"),
        ({"guesses": (0, 0)}, ValueError, "1 at least"),
    ],
)
def test_refuses(arguments: dict, error: type, message: str) -> None:
    usual = {"scores": [1.0, 0.0], "included": [True, False], "delta": 0.0}
    with pytest.raises(error, match=message):
        audit.one_run(**{**usual, **arguments})


def test_equal_scores_tell_nothing_in_whatever_order_they_come() -> None:
    """All "out" first and then all "in": 2000 ties are 2000 coins.

    So many right by chance have a bound above 0 less than one time in twenty
    times; above 1 it never has one.
    """
    coins = np.repeat([False, True], 1000)
    assert audit.one_run(np.zeros(2000), coins, delta=0.0).epsilon < 1.0
    few = np.zeros(2000)
    few[::100] = 1.0
    assert audit.one_run(few, coins, delta=0.0).epsilon < 1.0
    assert audit.one_run(coins.astype(float), coins, delta=0.0).epsilon > 4.0
