"""The bound from many runs, against rates that are known exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tf_sparse_dp import audit
from tf_sparse_dp.audit.many_runs import (
    best_threshold,
    epsilon_from_rates,
    highest_rate,
)

pytestmark = [pytest.mark.once]


@pytest.mark.parametrize(("count", "number"), [(0, 40), (3, 40), (39, 40)])
def test_highest_rate_is_where_so_few_become_unlikely(
    count: int, number: int
) -> None:
    rate = float(highest_rate(count, number, 0.01))
    assert stats.binom(number, rate).cdf(count) == pytest.approx(0.01)


def test_highest_rate_of_all() -> None:
    assert float(highest_rate(40, 40, 0.01)) == 1.0


def test_epsilon_from_rates_both_ways() -> None:
    odds = epsilon_from_rates(0.01, 0.5, delta=0.1)
    assert float(odds) == pytest.approx(math.log(0.4 / 0.01))
    assert float(epsilon_from_rates(0.5, 0.01, delta=0.1)) == pytest.approx(
        math.log(0.4 / 0.01)
    )
    assert float(epsilon_from_rates(0.5, 0.5, delta=0.0)) == 0.0
    assert float(epsilon_from_rates(1.0, 1.0, delta=0.5)) == 0.0


def test_randomised_response_of_known_epsilon() -> None:
    """Seeded; the bound fails with probability 1e-6, and comes within 5 %."""
    random = np.random.default_rng(0)
    truth = 1 / (1 + math.exp(-2.0))
    present = random.random(100_000) < truth
    absent = random.random(100_000) >= truth
    bound = audit.many_runs(
        present, absent, delta=0.0, confidence=1 - 1e-6, threshold=0.5
    )
    assert 1.9 < bound.epsilon < 2.0
    assert bound.trials == 200_000


def test_threshold_is_chosen_by_runs_that_are_not_counted() -> None:
    """Else the best of many thresholds would be believed too much.

    Runs with and without the canary have one law, so that epsilon is 0: the
    bound exceeds 0 in 10 % of the audits at most, of which there are 300.
    Choosing by the runs that are counted exceeds it more often. Seeded.
    """
    random = np.random.default_rng(3)
    exceeded, cheated = 0, 0
    for _ in range(300):
        runs = random.standard_normal((2, 1000))
        bound = audit.many_runs(*runs, delta=0.0, confidence=0.9)
        exceeded += bound.epsilon > 0
        threshold = best_threshold(*runs, delta=0.0, confidence=0.9)
        cheated += (
            audit.many_runs(
                *runs, delta=0.0, confidence=0.9, threshold=threshold
            ).epsilon
            > 0
        )
    assert exceeded <= 30 < 45 < cheated


def test_best_threshold_is_the_best_of_all() -> None:
    random = np.random.default_rng(4)
    present, absent = random.normal(1, 1, 60), random.normal(0, 1, 60)
    best = best_threshold(present, absent, delta=1e-3, confidence=0.95)

    def bound(threshold: float) -> float:
        return audit.many_runs(
            present, absent, delta=1e-3, threshold=threshold
        ).epsilon

    tried = [bound(float(t)) for t in np.concatenate([present, absent])]
    assert bound(best) == max(tried) > 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"with_canary": []}, ValueError, "at least one number"),
        ({"without_canary": [1.0]}, ValueError, "1 run without the canary"),
        ({"with_canary": [1.0, math.nan]}, ValueError, "not a number"),
        ({"threshold": math.nan}, TypeError, "threshold is nan"),
        ({"delta": -0.1}, ValueError, "delta is -0.1"),
        ({"confidence": 1.0}, ValueError, "confidence is 1.0"),
    ],
)
def test_refuses(arguments: dict, error: type, message: str) -> None:
    usual = {
        "with_canary": [1.0, 2.0],
        "without_canary": [0.0, 1.0],
        "delta": 0.0,
    }
    with pytest.raises(error, match=message):
        audit.many_runs(**{**usual, **arguments})
