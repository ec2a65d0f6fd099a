"""Filters stop where formulas say, and no earlier."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest

from tf_sparse_dp import (
    ApproxDpEvent,
    ApproxDPFilter,
    BudgetExhausted,
    FailingDpEvent,
    PrivacyFilter,
    RenyiFilter,
    ZcdpFilter,
)
from tf_sparse_dp.accounting.filters.approximate import epsilon_of_squares
from tf_sparse_dp.accounting.filters.renyi import default_orders

pytestmark = [pytest.mark.once]

Gaussian = dp_accounting.GaussianDpEvent
Laplace = dp_accounting.LaplaceDpEvent
MANY = 10**12


def conversion(rho: float, alpha: float, delta: float) -> float:
    """Epsilon of order alpha, as in Canonne, Kamath and Steinke (2020)."""
    gain = math.log((alpha - 1) / alpha) - math.log(alpha) / (alpha - 1)
    return rho + math.log(1 / delta) / (alpha - 1) + gain


@pytest.mark.parametrize("alpha", [3, 8, 30])
def test_gaussians_stop_a_single_order(alpha: int) -> None:
    budget = RenyiFilter(epsilon=6.0, delta=1e-4, orders=[alpha], event_delta=0)
    steps = budget.affordable(Gaussian(50.0), MANY)
    each = alpha / (2 * 50.0**2)
    assert conversion(steps * each, alpha, 1e-4) <= 6.0
    assert conversion((steps + 1) * each, alpha, 1e-4) > 6.0


def test_every_order_more_is_paid_for_by_delta() -> None:
    orders = [6, 8, 10]
    budget = RenyiFilter(epsilon=3.0, delta=1e-6, orders=orders, event_delta=0)
    steps = budget.affordable(Gaussian(50.0), MANY)
    epsilons = [
        [conversion(k * a / 5000, a, 1e-6 / 3) for a in orders]
        for k in (steps, steps + 1)
    ]
    assert min(epsilons[0]) <= 3.0 < min(epsilons[1])


def test_gaussians_stop_the_concentrated_filter() -> None:
    budget = ZcdpFilter(epsilon=2.0, delta=1e-4, event_delta=0)
    steps = budget.affordable(Gaussian(50.0), MANY)
    orders = 1 + np.geomspace(1e-3, 1e4, 100_000)
    epsilons = [
        min(conversion(k * a / 5000, a, 1e-4) for a in orders)
        for k in (steps, steps + 1)
    ]
    assert epsilons[0] <= 2.0 < epsilons[1]
    # The simpler bound ρ + 2 sqrt(ρ ln(1/δ)) would have stopped earlier.
    rho = steps / 5000
    assert rho + 2 * math.sqrt(rho * math.log(1e4)) > 2.0


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_laplace_stops_the_filter_of_pairs(epsilon: float) -> None:
    budget = ApproxDPFilter(epsilon=epsilon, delta=1e-5, event_delta=0.0)
    steps = budget.affordable(Laplace(100.0), MANY)
    rate = math.sqrt(2 * math.log(1e5)) / 100
    assert rate * steps**0.5 + steps / 2e4 <= epsilon
    assert rate * (steps + 1) ** 0.5 + (steps + 1) / 2e4 > epsilon


@pytest.mark.parametrize(
    "budget",
    [
        RenyiFilter(epsilon=3.0, delta=1e-6),
        RenyiFilter(epsilon=0.5, delta=1e-9, orders=[90]),
        ZcdpFilter(epsilon=3.0, delta=1e-6),
        ApproxDPFilter(epsilon=3.0, delta=1e-6),
    ],
    ids=repr,
)
def test_small_steps_spend_nearly_all(budget: PrivacyFilter) -> None:
    event = Laplace(400.0)
    steps = 0
    while budget.can_spend(event, 7):
        budget.spend(event, 7)
        steps += 7
    assert steps > 500
    assert 0 <= budget.remaining() < 0.01
    if not isinstance(budget, RenyiFilter) or len(budget.orders) == 1:
        composed = budget.get_epsilon(budget.delta - budget.event_delta)
        assert 0.99 * budget.epsilon < composed <= budget.epsilon


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-3])
def test_default_orders_lose_little_with_gaussians(
    epsilon: float, delta: float
) -> None:
    budget = RenyiFilter(epsilon=epsilon, delta=delta)
    assert len(budget.orders) <= 3
    assert tuple(budget.orders) == default_orders(epsilon, delta)
    best = ZcdpFilter(epsilon=epsilon, delta=delta)
    noise = 100 / epsilon
    few = budget.affordable(Gaussian(noise), MANY)
    many = best.affordable(Gaussian(noise), MANY)
    assert 0.6 * many < few <= many


def stopping_time(
    pairs: list[tuple[float, float]], epsilon: float, rest: float, given: float
) -> int:
    """The theorem's T, in exact sums: the last event that is released.

    T = inf{t: ε < ε_[0:t+1]} ∧ inf{t: δ'' < δ_[0:t+1]}.
    """

    def exceeds(t: int) -> bool:
        squares = sum(Fraction(e) ** 2 for e, _ in pairs[: t + 1])
        rate = math.sqrt(2 * math.log(1 / rest) * squares)
        deltas = sum(Fraction(d) for _, d in pairs[: t + 1])
        return rate + squares / 2 > epsilon or deltas > Fraction(given)

    for t in range(len(pairs) - 1):
        if exceeds(t + 1):
            return t
    return len(pairs) - 1


def test_pairs_stop_when_the_theorem_says() -> None:
    rng = random.Random(871)
    ends = set()
    for _ in range(2000):
        epsilon = math.exp(rng.uniform(-2, 2))
        rest, given = 10 ** rng.uniform(-9, -3), 10 ** rng.uniform(-9, -3)
        length = rng.randint(2, 12)
        pairs = [
            (
                0.1 * epsilon * rng.random() ** 2,
                given * rng.random() / rng.choice((4, 100)),
            )
            for _ in range(length)
        ]
        end = stopping_time(pairs, epsilon, rest, given)
        budget = ApproxDPFilter(
            epsilon=epsilon, delta=rest + given, event_delta=given
        )
        for t, pair in enumerate(pairs):
            assert budget.can_spend(ApproxDpEvent(*pair)) == (t <= end)
            if t > end:
                break
            budget.spend(ApproxDpEvent(*pair))
        ends.add((end, end == length - 1))
    assert len(ends) > 10  # Some stop early and some never.


def test_the_first_event_is_asked_for_too() -> None:
    large = ApproxDpEvent(2.0)
    assert stopping_time([(2.0, 0.0)] * 2, 1.0, 1e-6, 1e-6) == 0
    with pytest.raises(BudgetExhausted):
        ApproxDPFilter(epsilon=1.0, delta=1e-6).spend(large)


def test_failures_cost_what_coupling_says() -> None:
    budget = ZcdpFilter(epsilon=2.0, delta=1e-4, event_delta=1e-5)
    event = FailingDpEvent(Gaussian(1e9), 1e-9)
    steps = budget.affordable(event, MANY)
    assert steps == math.floor(1e-5 / ((1 + math.exp(2.0)) * 1e-9))
    pair = ApproxDpEvent(0.0, 1e-9)
    assert budget.affordable(pair, MANY) in (9999, 10000)


def test_sums_do_not_drift_below_the_truth() -> None:
    event = ApproxDpEvent(epsilon=0.0, delta=1e-9)
    budget = ZcdpFilter(epsilon=1.0, delta=1e-3, event_delta=5e-4)
    naive = 0.0
    below = False
    for number in range(1, 5001):
        budget.spend(event)
        naive += 1e-9
        exact = number * Fraction(1e-9)
        assert Fraction(budget.get_state()["delta"]) >= exact
        below |= Fraction(naive) < exact
    assert below  # Sums that are rounded to nearest do.
    assert budget.get_state()["delta"] < 5000e-9 * (1 + 1e-12)


def test_composed_epsilon_of_failures_is_enough() -> None:
    budget = ZcdpFilter(epsilon=2.0, delta=1e-4)
    budget.compose(FailingDpEvent(Gaussian(10.0), 1e-6), 5)
    epsilon = budget.get_epsilon(1e-4)
    left = 1e-4 - 5e-6 * (1 + math.exp(epsilon))
    ideal = ZcdpFilter(epsilon=2.0, delta=1e-4).compose(Gaussian(10.0), 5)
    assert ideal.get_epsilon(left) == pytest.approx(epsilon, rel=1e-6)
    assert ideal.get_epsilon(left) <= epsilon
    assert budget.get_epsilon(9e-6) == math.inf


def test_one_order_suits_an_event() -> None:
    step = dp_accounting.PoissonSampledDpEvent(0.01, Gaussian(1.0))
    suited = RenyiFilter.suited_to(step, epsilon=3.0, delta=1e-6)
    (order,) = suited.orders
    counts = {
        alpha: RenyiFilter(epsilon=3.0, delta=1e-6, orders=[alpha]).affordable(
            step, MANY
        )
        for alpha in range(6, 20)
    }
    assert counts[order] == max(counts.values())
    assert suited.affordable(step, MANY) == counts[order]
    default = RenyiFilter(epsilon=3.0, delta=1e-6)
    assert default.affordable(step, MANY) < counts[order]
    with pytest.raises(ValueError, match="at every order"):
        RenyiFilter.suited_to(Gaussian(0.1), epsilon=1.0, delta=1e-6)
    free = RenyiFilter.suited_to(
        dp_accounting.NoOpDpEvent(), epsilon=1.0, delta=1e-6
    )
    assert free.remaining() == 1.0


def test_one_release_that_plain_epsilons_would_pay_for() -> None:
    """What it costs is said, and the filter that is named does pay."""
    event = ApproxDpEvent(epsilon=1.0, delta=1e-6)
    pairs = ApproxDPFilter(epsilon=2.0, delta=1e-5)
    counted = epsilon_of_squares(1.0, 5e-6)
    with pytest.raises(BudgetExhausted, match=f"count as {counted:.4g} here"):
        pairs.spend(event)
    RenyiFilter(epsilon=2.0, delta=1e-5, event_delta=5e-6).spend(event)
    ZcdpFilter(epsilon=2.0, delta=1e-5).spend(Gaussian(5.0))
    with pytest.raises(BudgetExhausted) as refused:
        pairs.spend(ApproxDpEvent(epsilon=3.0, delta=1e-6))
    assert "count as" not in str(refused.value)
