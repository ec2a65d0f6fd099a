"""Selections of all outputs of small mechanisms, summed up exactly."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import stats

from tf_sparse_dp.accounting import (
    ApproxDpEvent,
    PrivacyPlan,
    RenyiFilter,
    SelectionPlan,
    selection_budget,
)
from tf_sparse_dp.accounting.renyi_costs import RenyiPrices
from tf_sparse_dp.accounting.run_counts import RunCount
from tf_sparse_dp.sampling import EpochSampling, PoissonSampling

ADD = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
SHAPES = [0.0, 0.5, 1.0, 3.0]


def generating(count: RunCount, q: np.ndarray) -> np.ndarray:
    """E[q^K], from ratios of successive probabilities."""
    numbers = np.arange(1.0, 1500.0)
    if math.isinf(count.shape):
        ratios = count.mean / numbers
        chances = np.concatenate([[1.0], np.cumprod(ratios)])
    else:
        ratios = (1 - count.gamma) * (numbers + count.shape) / (numbers + 1)
        chances = np.concatenate([[0.0, 1.0], np.cumprod(ratios)])
    chances /= np.sum(chances)
    if count.most is not None:
        kept = chances[: count.most + 1].copy()
        kept[-1] += np.sum(chances[count.most + 1 :])
        chances = kept
    powers = np.minimum(q, 1.0)[:, np.newaxis] ** np.arange(len(chances))
    return powers @ chances


def selected(chances: np.ndarray, count: RunCount) -> np.ndarray:
    """Chances of what is released; later outputs have higher scores."""
    below = np.concatenate([[0.0], np.cumsum(chances)])
    return np.diff(generating(count, below))


def exceeding(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The least delta for this epsilon, over all sets of outputs."""
    grown = math.exp(epsilon)
    return max(
        np.sum(np.maximum(p - grown * q, 0)),
        np.sum(np.maximum(q - grown * p, 0)),
    )


def pairs(number: int, seed: int):
    """Mechanisms on neighbours, and their epsilons."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        size = int(rng.integers(2, 7))
        p = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 5.0]))) + 1e-6
        q = p * np.exp(rng.choice([0.1, 1.0]) * rng.integers(0, 2, size))
        p, q = p / p.sum(), q / q.sum()
        yield p, q, float(np.max(np.abs(np.log(p / q))))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 10.0])
def test_pure_runs(shape, mean) -> None:
    count = RunCount(mean=mean, shape=shape)
    for p, q, epsilon in pairs(100, seed=1):
        first, second = selected(p, count), selected(q, count)
        ratio = np.max(np.abs(np.log(first / second)))
        assert ratio <= (2 + shape) * epsilon + 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_no_smaller_factor_holds(shape) -> None:
    """The middle one of three outputs, of which the best has become rarer."""
    epsilon, best, middle = 0.5, 1e-3, 1e-7
    p = np.array([1 - best - middle, middle, best])
    grown = math.exp(epsilon)
    q = np.array([0.0, middle / grown, best * grown])
    q[0] = 1 - q.sum()
    gamma = 1e-6

    def middle_one(p: np.ndarray) -> float:
        above = gamma + (1 - gamma) * p[2]
        powers = above, above + (1 - gamma) * p[1]
        if shape == 0:
            return math.log(powers[1] / powers[0])
        return powers[0] ** -shape - powers[1] ** -shape

    ratio = middle_one(p) / middle_one(q)
    assert 0.98 < math.log(ratio) / ((2 + shape) * epsilon) <= 1.00001


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("most", [None, 30])
def test_runs_that_may_reveal_all(shape, most) -> None:
    """And a limit on their number; the claim without the limit fails."""
    count = RunCount(mean=4.0, shape=shape, most=most)
    delta, exceeded = 0.01, 0
    for number, (p, q, epsilon) in enumerate(pairs(60, seed=2)):
        # What is revealed may have the highest score, or the lowest.
        place = [len(p), 0][number % 2]
        first = np.insert((1 - delta) * p, place, [delta, 0])
        second = np.insert((1 - delta) * q, place, [0, delta])
        first, second = selected(first, count), selected(second, count)
        total = (2 + shape) * epsilon
        found = exceeding(first, second, total)
        claim = delta * count.mean
        assert found <= claim + (1 + math.exp(total)) * count.cut + 1e-12
        exceeded += found > claim / 4
    assert exceeded  # By a claim of a quarter.


@pytest.mark.parametrize("shape", [*SHAPES, math.inf])
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_renyi_divergences_of_gaussian_runs(shape, delta) -> None:
    """Gaussian noise in 160 bins, with scores of several kinds."""
    z, mean = 1.5, 6.0
    orders = (2, 3, 5, 9, 17)
    run: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(z)
    if delta:
        run = dp_accounting.ComposedDpEvent([run, ApproxDpEvent(0.0, delta)])
    cost = RenyiPrices(orders, ADD).cost(
        dp_event.RepeatAndSelectDpEvent(run, mean, shape)
    )
    assert cost.delta == pytest.approx(mean * delta)
    edges = np.concatenate([[-np.inf], np.linspace(-5, 6, 159), [np.inf]])
    p = np.diff(stats.norm.cdf(edges, 0, z))
    q = np.diff(stats.norm.cdf(edges, 1, z))
    count = RunCount(mean=mean, shape=shape)
    # Given that nothing is revealed, by the exact generating function.
    survived = generating(count, np.array([1 - delta]))[0] if delta else 1.0
    orderings = [
        np.arange(160),
        np.arange(160)[::-1],
        np.argsort(-np.abs(np.arange(160) - 87)),
        np.random.default_rng(0).permutation(160),
    ]
    largest = 0.0
    for ordering, swapped in itertools.product(orderings, [False, True]):
        first, second = (q, p) if swapped else (p, q)
        first, second = (
            np.diff(
                generating(
                    count,
                    (1 - delta) * np.concatenate([[0], np.cumsum(x[ordering])]),
                )
            )
            / survived
            for x in (first, second)
        )
        none = 0.0 if math.isfinite(shape) else math.exp(-mean) / survived
        for order, size in zip(orders, cost.sizes, strict=True):
            moment = np.sum(first**order * second ** (1.0 - order)) + none
            found = math.log(moment) / (order - 1)
            assert found <= size
            largest = max(largest, found / size)
    assert largest > 0.15  # The bound is not met by being infinite.


def test_generating_functions_are_those_of_the_draws(monkeypatch) -> None:
    """By 3,000 draws; 4.5 standard errors, so 1 in 10,000 fails."""
    import random

    from tf_sparse_dp import exact_draws

    source = random.Random(3)
    monkeypatch.setattr(exact_draws.secrets, "randbits", source.getrandbits)
    for shape, most in [(0.0, None), (0.5, None), (1.0, 3), (math.inf, None)]:
        count = RunCount(mean=2.5, shape=shape, most=most)
        drawn = np.array([count.draw() for _ in range(3000)])
        powers = 0.4**drawn
        error = 4.5 * np.std(powers) / math.sqrt(3000)
        assert abs(np.mean(powers) - count.failure_probability(0.6)) < error
        wrong = RunCount(mean=3.2, shape=shape, most=most)
        assert abs(np.mean(powers) - wrong.failure_probability(0.6)) > error
        if most is None:
            error = 4.5 * np.std(drawn) / math.sqrt(3000)
            assert abs(np.mean(drawn) - 2.5) < error
        else:
            assert np.max(drawn) == most


def test_success_grows_with_the_number_of_runs() -> None:
    failures = [RunCount(mean=m).failure_probability(0.5) for m in (2, 10, 100)]
    expected = [1 / (1 + m) for m in (2, 10, 100)]  # γ/(1+γ) with γ = 1/m.
    np.testing.assert_allclose(failures, expected)
    for shape in (*SHAPES, math.inf):
        count = RunCount.for_failure(0.3, shape=shape)
        assert count.failure_probability(0.5) == pytest.approx(0.3, rel=1e-6)


def test_the_papers_gamma_misses_half_of_beta() -> None:
    """γ = 3β/4 leaves more than the β/2 that the paper's proof needs."""
    beta = 0.1
    claimed = RunCount(mean=1 / (3 * beta / 4)).failure_probability(0.5)
    assert claimed == pytest.approx(0.75 * beta / (1 + 0.75 * beta))
    assert claimed > beta / 2
    right = RunCount(mean=(2 - beta) / beta).failure_probability(0.5)
    assert right == pytest.approx(beta / 2)


@pytest.mark.parametrize("form", ["renyi", "tight", "paper"])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_budgets_fit(form, relation) -> None:
    plan = selection_budget(
        epsilon=1.0,
        delta=1e-6,
        mean_runs=8,
        form=form,
        neighboring_relation=relation,
    )
    assert plan.form == form
    assert 0.4 < plan.epsilon <= 1.0
    epsilon, delta = plan.run
    assert 0 < epsilon < 0.5 and 0 < delta < 1e-6
    if form == "paper":
        assert epsilon == 1 / 12
        limit = math.ceil(8 * math.log(2 * (1 + math.exp(0.5)) / 1e-6))
        assert plan.max_runs == limit
        assert delta == pytest.approx((1e-6 / 4 / limit) ** 2)
        # 24B/(nε) on the mean if units are replaced, half if added.
        assert plan.score_noise_multiplier == [12, 24][relation is REPLACE]
        assert plan.epsilon == pytest.approx(0.5, rel=1e-4)
    more = SelectionPlan(
        run=(epsilon * 4, delta),
        delta=1e-6,
        mean_runs=8,
        max_runs=plan.max_runs,
        form=form,
        score_noise_multiplier=plan.score_noise_multiplier,
        score_noise=plan.score_noise,
        neighboring_relation=relation,
    )
    assert more.epsilon > 1.0


def test_pure_budget() -> None:
    plan = selection_budget(
        epsilon=3.0,
        delta=0.0,
        failure_probability=0.05,
        form="tight",
        score_noise="laplace",
    )
    assert plan.mean_runs == pytest.approx(19)
    assert plan.run[0] == pytest.approx(0.9) and plan.run[1] == 0.0
    assert plan.epsilon <= 3.0


def test_plans_of_runs() -> None:
    sampling = PoissonSampling(num_examples=10_000, batch_size=500, epochs=2)
    plan = selection_budget(
        epsilon=3.0, delta=1e-6, mean_runs=5, sampling=sampling
    )
    assert isinstance(plan.run, PrivacyPlan) and plan.epsilon <= 3.0
    single = PrivacyPlan(epsilon=3.0, delta=1e-6, sampling=sampling)
    assert 1 < plan.run.noise_multiplier / single.noise_multiplier < 2
    less = PrivacyPlan(
        noise_multiplier=plan.run.noise_multiplier * 0.99,
        delta=1e-7,
        sampling=sampling,
    )
    worse = SelectionPlan(
        run=less,
        delta=1e-6,
        mean_runs=5,
        score_noise_multiplier=plan.score_noise_multiplier,
    )
    assert worse.epsilon > 3.0
    # By simple composition of as many runs, all of which may be shown.
    shown = SelectionPlan(
        run=plan.run, delta=1e-6, mean_runs=5, reveal_all=True
    )
    assert shown.epsilon > plan.epsilon


def test_relations_are_those_of_runs() -> None:
    epochs = EpochSampling(num_examples=1000, batch_size=100, epochs=1)
    run = PrivacyPlan(epsilon=1.0, delta=1e-5, sampling=epochs)
    plan = SelectionPlan(run=run, delta=1e-5, mean_runs=3)
    special = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    assert plan.neighboring_relation is special
    with pytest.raises(ValueError, match="Leave it out"):
        SelectionPlan(
            run=run, delta=1e-5, mean_runs=3, neighboring_relation=ADD
        )
    budget = RenyiFilter(epsilon=0.3, delta=1e-6, neighboring_relation=REPLACE)
    plan = SelectionPlan(run=budget, delta=1e-5, mean_runs=3, form="tight")
    assert plan.neighboring_relation is REPLACE
    assert plan.epsilon == pytest.approx(0.9, rel=0.01)


def test_limits_are_charged() -> None:
    free = SelectionPlan(run=(0.5, 0.0), delta=1e-6, mean_runs=5, form="tight")
    limited = SelectionPlan(
        run=(0.5, 0.0), delta=1e-6, mean_runs=5, max_runs=90, form="tight"
    )
    assert limited.run_count.cut == pytest.approx(0.8**90)
    assert free.epsilon <= limited.epsilon
    with pytest.raises(ValueError, match="max_runs = 20 cuts"):
        SelectionPlan(
            run=(0.5, 0.0), delta=1e-6, mean_runs=5, max_runs=20, form="tight"
        )
    with pytest.raises(ValueError, match="max_runs = 20 cuts"):
        SelectionPlan(
            run=dp_accounting.GaussianDpEvent(5.0),
            delta=1e-6,
            mean_runs=5,
            max_runs=20,
        )


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"run": 3.0}, TypeError, "run is 3.0"),
        ({"run": (-1.0, 0.0)}, ValueError, "epsilon is -1.0"),
        ({"mean_runs": 0.5}, ValueError, "mean_runs is 0.5"),
        ({"mean_runs": True}, TypeError, "mean_runs is True"),
        ({"shape": -1.0}, ValueError, "shape is -1.0"),
        ({"shape": 1e-9}, ValueError, "shape is 1e-09"),
        ({"max_runs": 0}, ValueError, "max_runs is 0"),
        ({"max_runs": 2.5}, ValueError, "max_runs is 2.5"),
        ({"delta": 1.0}, ValueError, "delta is 1.0"),
        ({"form": "loose"}, ValueError, "form is 'loose'"),
        ({"form": "paper"}, ValueError, "max_runs None"),
        ({"form": "tight", "shape": math.inf}, ValueError, "Poisson"),
        ({"score_noise": "none"}, ValueError, "score_noise is"),
        ({"score_noise_multiplier": 0.0}, ValueError, "noise_multiplier"),
        ({"reveal_all": True, "mean_runs": 2.5}, ValueError, "whole number"),
        ({"run": (0.1, 0.3)}, ValueError, "no epsilon"),
        ({"neighboring_relation": "add"}, TypeError, "neighboring_relation"),
    ],
)
def test_refusals(arguments, error, words) -> None:
    given = {"run": (0.1, 1e-9), "delta": 1e-6, "mean_runs": 4.0, **arguments}
    with pytest.raises(error, match=words):
        SelectionPlan(**given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mean_runs": None}, "exactly one"),
        ({"failure_probability": 0.1}, "exactly one"),
        ({"score_share": 1.0}, "score_share"),
        ({"delta": 0.0}, "form='tight'"),
        ({"delta": 0.0, "form": "paper"}, "expected one above 0"),
        ({"delta": 0.0, "form": "tight"}, "score_noise='laplace'"),
        ({"max_runs": 20, "form": "tight"}, "Raise it, or leave it out"),
        ({"mean_runs": None, "failure_probability": 1e-9}, "million runs"),
    ],
)
def test_budget_refusals(arguments, words) -> None:
    given = {"epsilon": 1.0, "delta": 1e-6, "mean_runs": 5, **arguments}
    with pytest.raises(ValueError, match=words):
        selection_budget(**given)


def test_refusals_have_numbers() -> None:
    budget = RenyiFilter(epsilon=2.0, delta=1e-6)
    for run in (budget, (2.0, 1e-6)):
        with pytest.raises(ValueError, match=r"1e-06 of a run, times 10 runs"):
            SelectionPlan(run=run, delta=1e-5, mean_runs=10)
    with pytest.raises(ValueError, match=r"mean_runs is 0.5, expected .* 1 to"):
        selection_budget(epsilon=1.0, delta=1e-6, mean_runs=0.5)
