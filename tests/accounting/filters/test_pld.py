"""The budget of a declared sequence: kept to, and used up."""

from __future__ import annotations

import copy
import functools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import privacy_accountant, privacy_accountant_test
from scipy import stats

from tf_sparse_dp.accounting.composition import composed_epsilon
from tf_sparse_dp.accounting.dp_events import ApproxDpEvent, FailingDpEvent
from tf_sparse_dp.accounting.filters import PldFilter
from tf_sparse_dp.errors import BudgetExhausted

pytestmark = [pytest.mark.once]

GAUSSIAN = dp_accounting.GaussianDpEvent(10.0)
LAPLACE = dp_accounting.LaplaceDpEvent(20.0)
STEP = dp_accounting.PoissonSampledDpEvent(
    0.01, dp_accounting.GaussianDpEvent(1.0)
)


@pytest.mark.lane
class PldFilterTest(privacy_accountant_test.PrivacyAccountantTest):
    def _make_test_accountants(self):
        return [
            PldFilter(epsilon=1.0, delta=1e-6, sequence=[]),
            PldFilter(epsilon=1.0, delta=1e-6, sequence=[(STEP, 10)]),
            PldFilter(
                epsilon=1.0,
                delta=0.0,
                sequence=[(LAPLACE, 3)],
                neighboring_relation=(
                    dp_accounting.NeighboringRelation.REPLACE_ONE
                ),
            ),
        ]


del privacy_accountant_test


def make(sequence, epsilon=1.0, delta=1e-6):
    return PldFilter(epsilon=epsilon, delta=delta, sequence=sequence)


def test_many_small_steps_use_it_up():
    budget = make([(STEP, 100_000)], epsilon=2.0)
    number = budget.affordable(STEP, 100_000)
    assert 0 < number == budget.affordable_events < 100_000
    assert 0.99 * 2.0 <= budget.spend(STEP, number).get_epsilon(1e-6) <= 2.0
    assert budget.remaining() < 0.01
    assert composed_epsilon([(STEP, number + 1)], delta=1e-6) > 2.0


def test_pure_budgets():
    budget = make([(LAPLACE, 100)], delta=0.0)
    assert budget.affordable_events == 20
    budget = make([(LAPLACE, 10), (GAUSSIAN, 1), (LAPLACE, 9)], delta=0.0)
    assert budget.affordable_events == 10


# Plain Laplace noise has atoms of loss at 1/3 and 1/12 below.
WIDTH, POINTS = 1 / 1200, 2**16


@functools.lru_cache(maxsize=64)
def spectrum(event, forwards):
    """Fourier transform of the losses, found by integrating over outcomes."""
    q = getattr(event, "sampling_probability", 1.0)
    event = getattr(event, "event", event)
    law = {
        dp_accounting.GaussianDpEvent: stats.norm,
        dp_accounting.LaplaceDpEvent: stats.laplace,
    }[type(event)](scale=event.noise_multiplier)
    x = event.noise_multiplier * np.arange(-30, 30, 2e-3)
    here = law.logpdf(x)
    there = np.log(q * law.pdf(x - 1) + (1 - q) * law.pdf(x))
    upper, lower = (here, there) if forwards else (there, here)
    place, share = np.divmod((upper - lower) / WIDTH, 1)
    mass = np.exp(upper)
    histogram = np.zeros(POINTS)
    np.add.at(histogram, place.astype(int), mass * (1 - share))
    np.add.at(histogram, place.astype(int) + 1, mass * share)
    return np.fft.rfft(histogram / mass.sum())


def independent_delta(events, epsilon):
    """Delta to within a percent or so, from nothing but the densities."""
    losses = np.fft.fftfreq(POINTS, 1 / POINTS) * WIDTH
    weights = np.where(losses > epsilon, -np.expm1(epsilon - losses), 0.0)
    found = []
    for forwards in (True, False):
        product = math.prod(
            spectrum(event, forwards) ** count for event, count in events
        )
        found.append(np.fft.irfft(product, POINTS) @ weights)
    return max(found)


def random_sequence(random):
    events = []
    for _ in range(random.integers(1, 4)):
        noise = float(random.choice([3.0, 12.0]))
        kind = random.choice(
            [dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent]
        )
        event = kind(noise)
        if random.random() < 0.5:
            event = dp_accounting.PoissonSampledDpEvent(0.2, event)
        events.append((event, int(random.integers(1, 40))))
    return events


def test_no_random_sequence_exceeds_its_budget():
    random = np.random.default_rng(0)
    cut = 0
    for _ in range(200):
        sequence = random_sequence(random)
        epsilon = float(random.choice([0.3, 1.0]))
        delta = float(random.choice([1e-5, 1e-7]))
        budget = make(sequence, epsilon, delta)
        spent = []
        try:
            for event, count in sequence:
                while count:
                    part = min(count, int(random.integers(1, 20)))
                    part = min(part, budget.affordable(event, part) or part)
                    budget.spend(event, part)
                    spent.append((event, part))
                    count -= part
        except BudgetExhausted:
            cut += 1
        assert sum(part for _, part in spent) == budget.affordable_events
        if spent:
            # Its grid moves the largest losses by up to half a point each.
            assert independent_delta(spent, 1.005 * epsilon) <= 1.01 * delta
    assert 50 < cut < 200


def test_the_independent_account_would_find_an_overspent_budget():
    event = dp_accounting.GaussianDpEvent(40.0)
    step = dp_accounting.PoissonSampledDpEvent(0.5, event)
    number = make([(step, 10_000)]).affordable_events
    found = [
        independent_delta([(step, int(number * share))], 1.003) / 1e-6
        for share in (0.97, 1.0, 1.03)
    ]
    assert found[0] < 0.8 < 0.9 < found[1] < 1.01 < 1.1 < found[2]


def test_only_the_declared_sequence_is_spent():
    budget = make([(STEP, 2), (LAPLACE, 1), (STEP, 1)], epsilon=5.0)
    assert not budget.can_spend(LAPLACE)
    with pytest.raises(ValueError, match="goes on with 2 of PoissonSampled"):
        budget.spend(LAPLACE)
    with pytest.raises(ValueError, match="3 of PoissonSampled"):
        budget.spend(STEP, 3)
    assert budget.get_epsilon(1e-6) == 0.0
    budget.spend(dp_accounting.SelfComposedDpEvent(STEP, 2))
    budget.spend(dp_accounting.NoOpDpEvent())
    with pytest.raises(ValueError, match="goes on with 1 of Laplace"):
        budget.spend(STEP)
    budget.spend(LAPLACE).spend(STEP)
    with pytest.raises(ValueError, match="goes on with nothing"):
        budget.spend(STEP)
    assert budget.get_epsilon(1e-6) == composed_epsilon(
        [(STEP, 2), (LAPLACE, 1), (STEP, 1)], delta=1e-6
    )


def test_what_compose_records_is_no_longer_there_to_spend():
    budget = make([(STEP, 10)], epsilon=5.0)
    budget.compose(STEP, 4)
    assert budget.affordable(STEP, 100) == 6
    budget.compose(GAUSSIAN)
    assert not budget.can_spend(STEP)
    with pytest.raises(BudgetExhausted, match="no beginning of its"):
        budget.spend(STEP)
    assert budget.get_epsilon(1e-6) == composed_epsilon(
        [(STEP, 4), (GAUSSIAN, 1)], delta=1e-6
    )


def test_spending_is_all_or_nothing():
    budget = make([(GAUSSIAN, 50)], epsilon=1.0)
    number = budget.affordable_events
    budget.spend(GAUSSIAN, number - 1)
    with pytest.raises(BudgetExhausted, match="does not pay for 2"):
        budget.spend(GAUSSIAN, 2)
    budget.spend(GAUSSIAN)
    with pytest.raises(BudgetExhausted, match="Nothing was spent"):
        budget.spend(GAUSSIAN)
    assert budget.get_epsilon(1e-6) <= 1.0


def test_reservations_follow_the_sequence_too():
    budget = make([(STEP, 10), (LAPLACE, 5)], epsilon=5.0)
    block = budget.reserve(STEP, 100, at_least=1)
    assert block.count == 10
    budget.settle(block, 6)
    assert budget.affordable(STEP, 100) == 4
    last = budget.reserve(STEP, 4)
    budget.spend(LAPLACE)
    budget.settle(last, 3)
    # One step too few lies before what was spent: not a beginning any more.
    assert not budget.can_spend(LAPLACE)
    assert budget.get_config()["sequence"][1]["count"] == 5


def test_failures_and_approximate_events():
    failing = FailingDpEvent(STEP, 1e-9)
    ideal = make([(STEP, 10_000)]).affordable_events
    charged = make([(failing, 10_000)]).affordable_events
    assert 0.8 * ideal < charged < ideal
    small = ApproxDpEvent(0.01, 1e-9)
    budget = make([(small, 10_000)])
    assert 99 < budget.affordable_events < 1000


def test_relations_and_copies():
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    with pytest.raises(privacy_accountant.UnsupportedEventError):
        PldFilter(
            epsilon=1.0,
            delta=1e-6,
            sequence=[(STEP, 1)],
            neighboring_relation=relation,
        )
    budget = make([(GAUSSIAN, 3)])
    with pytest.raises(TypeError, match="two copies"):
        copy.deepcopy(budget)
    for count in (-1, 0.5):
        with pytest.raises((TypeError, ValueError), match="whole number"):
            budget.spend(GAUSSIAN, count)
    assert math.isclose(budget.remaining(), 1.0)


def test_what_was_composed_beyond_it_is_known():
    budget = PldFilter(epsilon=1.0, delta=1e-6, sequence=[(STEP, 1000)])
    nothing = dp_accounting.NoOpDpEvent()
    budget.spend(STEP, budget.affordable_events)
    assert budget.can_spend(nothing)
    budget.compose(STEP)
    assert not budget.can_spend(nothing)
