"""Noise, stopping times and ledgers of bias-reduced SGD."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest

from tf_sparse_dp.accounting import PublicMixtureDpEvent
from tf_sparse_dp.accounting.bias_reduced_sgd import BiasReducedBudget
from tf_sparse_dp.accounting.filters.bias_reduced import (
    BiasReducedFilter,
    paper_noise_multiplier,
)
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter

REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
UNITS, EPSILON, DELTA, RUNS = 1024, 1.0, 1e-7, 1000


def paper_budget(units: int = UNITS) -> BiasReducedBudget:
    return BiasReducedBudget(
        num_examples=units, epsilon=EPSILON, delta=DELTA, accounting="paper"
    )


def levels(budget: BiasReducedBudget, steps: int, seed: int) -> Any:
    p = budget.probabilities
    draws = np.random.default_rng(seed)
    return draws.choice(len(p), size=(RUNS, steps), p=p)


def algorithm_4(drawn: Any, units: int, share: float = 1.0) -> Any:
    """How many steps runs take: the loop of the paper, as it stands there.

    t starts at -1. While what s = 0, ..., t - 1 cost is within half of the
    budget, t goes up by one and step t is taken.

    Args:
      drawn: N_0, N_1, ..., a row for each run.
      units: n.
      share: What costs are multiplied by; 1 is right.
    """
    cost = share * (3 * 2.0 ** (drawn + 1) + 1) / (16 * units)
    squares, total = np.cumsum(cost**2, axis=1), np.cumsum(cost, axis=1)
    root = np.sqrt(2 * math.log(4 / DELTA) * squares)
    over = (root + EPSILON / 2 * squares > 0.5) | (total > 0.25)
    assert np.all(over[:, -1]), "The draws do not suffice."
    # The first t for which s = 0, ..., t - 1 is over; steps 0, ..., t.
    t = np.argmax(over, axis=1) + 1
    return t + 1


def lemma_bounds(units: int) -> tuple[float, float]:
    """Of the expected T, for which the loop takes T + 2 steps."""
    log = math.log(4 / DELTA)
    return units**2 / ((units + 1) * log) - 1, 64 * units / (9 * log)


def lemma_time(units: int) -> float:
    """t with P[T <= t] <= 1/4: n / (23 ln(4/δ)), for δ < 1/n².

    P[T <= t] is at most t ln(4/δ) (18n + 1) / (4n²) + t (6 log2(n) + 1) / (4n)
    by Markov's inequality, as in the paper but for a 4 that was a 16 there:
    2 sqrt(2 ln(4/δ) A) > 1/2 is A > 1 / (32 ln(4/δ)), and 256/32 is 8. With
    log2(n) <= ln(1/δ) / (2 ln 2), four times that is below 23 t ln(4/δ) / n.
    """
    return units / (23 * math.log(4 / DELTA))


def spent_by(
    budget: BiasReducedFilter, events: list[Any], drawn: np.ndarray
) -> int:
    """How many steps a fresh filter pays for."""
    for step, level in enumerate(drawn):
        if not budget.can_spend(events[level]):
            return step
        budget.spend(events[level])
    raise AssertionError("It never stopped.")


@pytest.fixture(scope="module")
def paper_runs() -> tuple[np.ndarray, np.ndarray]:
    """Draws of N, and the numbers of steps."""
    drawn = levels(paper_budget(), 4000, seed=0)
    return drawn, algorithm_4(drawn, UNITS)


def test_the_filter_stops_where_the_papers_loop_does(
    paper_runs: tuple[np.ndarray, np.ndarray],
) -> None:
    drawn, steps = (part[:25] for part in paper_runs)
    budget = paper_budget()
    events, config = budget.step_events(), budget.filter.get_config()
    paid = [
        spent_by(BiasReducedFilter.from_config(config), events, run)
        for run in drawn
    ]
    assert np.all(paid <= steps)
    # Where a sum is the budget to the last digit, it is rounded up.
    assert np.all(algorithm_4(drawn, UNITS, 1 + 1e-12) <= paid)
    assert np.mean(paid == steps) > 0.5


def test_stopping_times_are_within_the_lemmas_bounds(
    paper_runs: tuple[np.ndarray, np.ndarray],
) -> None:
    drawn, steps = paper_runs
    low, high = lemma_bounds(UNITS)
    times = steps - 2
    error = times.std() / math.sqrt(RUNS)
    assert low < times.mean() - 4 * error
    assert times.mean() + 4 * error < high
    time = lemma_time(UNITS)
    assert 0 < time < low
    assert np.mean(times <= time) <= 0.25
    # Wrong factors are seen: the 16 and the 1/2 forgotten, or a 4 too many.
    dear = algorithm_4(drawn, UNITS, 32.0) - 2
    assert np.mean(dear <= time) > 0.25
    assert dear.mean() < low
    cheap = algorithm_4(drawn, UNITS, 0.25) - 2
    assert cheap.mean() > high


def test_every_run_of_the_papers_rule_is_within_its_budget(
    paper_runs: tuple[np.ndarray, np.ndarray],
) -> None:
    """Advanced composition, and two steps more by basic composition."""

    def spent(
        drawn: np.ndarray, steps: int, factor: float = 1.0
    ) -> tuple[float, float]:
        share = factor * (3 * 2.0 ** (drawn[:steps] + 1) + 1) / (16 * UNITS)
        squares = EPSILON**2 * np.sum(share[:-2] ** 2)
        rate = math.sqrt(2 * math.log(4 / DELTA) * squares)
        epsilon = rate + squares / 2 + EPSILON * np.sum(share[-2:])
        return epsilon, DELTA * (0.25 + np.sum(share))

    runs = list(zip(*paper_runs, strict=True))
    ledgers = np.array([spent(*run) for run in runs])
    assert np.all(ledgers <= (EPSILON, DELTA))
    # Were steps twice as dear as the rule has them, some would go over.
    dear = np.array([spent(*run, factor=2.0) for run in runs])
    assert np.any(dear[:, 0] > EPSILON)


def test_the_worst_draws_are_within_the_budget() -> None:
    """Two whole batches after the sums that just fit: ε/2 + 2ε/4."""
    budget = paper_budget()
    whole = budget.step_events()[-1]
    small = budget.step_events()[0]
    paid = budget.filter
    while paid.get_state()["spent"][0] <= 0.9 * paid.budgets[0] and (  # type: ignore[attr-defined]
        paid.get_state()["delta"] <= 0.9 * DELTA / 4  # type: ignore[attr-defined]
    ):
        paid.spend(small)
    before = len(paid.entries), paid.entries[0][1]
    assert before[0] == 1
    while paid.can_spend(whole):
        paid.spend(whole)
    assert paid.entries[1][1] == 2
    state = paid.get_state()  # type: ignore[attr-defined]
    assert state["delta"] + DELTA / 4 <= DELTA


@pytest.mark.parametrize("steps", [40, 200])
def test_tight_noise_gives_as_many_steps_as_were_asked_for(steps: int) -> None:
    budget = BiasReducedBudget(
        num_examples=UNITS, epsilon=EPSILON, delta=DELTA, steps=steps
    )
    paid = budget.filter
    assert isinstance(paid, RenyiFilter)
    costs = np.array([paid.cost(e)[0][0] for e in budget.step_events()])
    total = np.cumsum(costs[levels(budget, 20 * steps, seed=steps)], axis=1)
    room = paid.budgets[0] - costs.max()
    assert np.all(total[:, -1] > room)
    # The first time that the dearest step would not fit.
    taken = np.argmax(total > room, axis=1) + 1
    error = taken.std() / math.sqrt(RUNS)
    assert taken.mean() > steps - 4 * error
    assert np.all(total[np.arange(RUNS), taken - 1] <= paid.budgets[0])
    # It is the least noise: with less, the bound is not met.
    quieter = BiasReducedBudget(
        num_examples=UNITS, epsilon=EPSILON, delta=DELTA, steps=steps + 10
    )
    assert quieter.noise_multiplier > budget.noise_multiplier


def test_a_run_with_the_tight_filter_stays_within_it() -> None:
    budget = BiasReducedBudget(num_examples=64, epsilon=2.0, delta=1e-5)
    events = budget.step_events()
    draws = np.random.default_rng(1)
    taken = 0
    while budget.filter.can_spend(events[-1]):
        budget.filter.spend(
            events[draws.choice(len(events), p=budget.probabilities)]
        )
        taken += 1
    assert taken >= 2
    assert budget.filter.get_epsilon(1e-5) <= 2.0


def test_noise_of_the_paper_and_of_the_tight_account() -> None:
    """n = 1024, ε = 1, δ = 1e-6: over the sensitivity, which is 2."""
    assert paper_noise_multiplier(1.0, 1e-6) / 2 == pytest.approx(186, abs=1)
    budget = BiasReducedBudget(
        num_examples=1024, epsilon=1.0, delta=1e-6, steps=375
    )
    assert budget.noise_multiplier / 2 == pytest.approx(9.1, abs=0.05)
    # Paying for the mixture, before the draw, allows fewer steps for that.
    mixture = PublicMixtureDpEvent(
        tuple(budget.probabilities), tuple(budget.step_events())
    )
    certain = RenyiFilter.suited_to(
        mixture, epsilon=1.0, delta=1e-6, neighboring_relation=REPLACE_ONE
    )
    assert certain.affordable(mixture, 1000) == pytest.approx(216, abs=2)


def test_one_budget_is_one_filter() -> None:
    budget = paper_budget()
    assert budget.filter is budget.filter
    assert budget.filter.neighboring_relation is REPLACE_ONE


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"num_examples": 1}, ValueError, "num_examples is 1"),
        ({"epsilon": 0.0}, ValueError, "epsilon is 0.0"),
        ({"delta": 1.0}, ValueError, "delta is 1.0"),
        ({"accounting": "loose"}, ValueError, "accounting is 'loose'"),
        ({"steps": 0}, ValueError, "steps is 0"),
        ({"steps": 5, "accounting": "paper"}, ValueError, "steps=5"),
        ({"epsilon": 20.0, "accounting": "paper"}, ValueError, "at most 13"),
        ({"steps": 10**15}, ValueError, "fewer steps"),
    ],
)
def test_what_is_no_budget_is_refused(
    change: dict[str, Any], error: type[Exception], match: str
) -> None:
    arguments: dict[str, Any] = {
        "num_examples": 64,
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    with pytest.raises(error, match=match):
        BiasReducedBudget(**{**arguments, **change})
