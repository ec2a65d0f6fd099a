"""The paper's filter: what it pays for, and what it does not know."""

from __future__ import annotations

import dp_accounting
import pytest
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting import FailingDpEvent
from tf_sparse_dp.accounting.filters.bias_reduced import (
    BiasReducedFilter,
    paper_noise_multiplier,
)

UNITS, EPSILON, DELTA = 64, 1.0, 1e-6
NOISE = paper_noise_multiplier(EPSILON, DELTA)


def fresh() -> BiasReducedFilter:
    return BiasReducedFilter(epsilon=EPSILON, delta=DELTA, num_examples=UNITS)


def sample(
    size: int, noise: float = NOISE, units: int = UNITS
) -> dp_accounting.DpEvent:
    return dp_accounting.SampledWithoutReplacementDpEvent(
        units, size, dp_accounting.GaussianDpEvent(noise)
    )


def step(size: int) -> dp_accounting.DpEvent:
    return dp_accounting.ComposedDpEvent(
        [sample(size, NOISE / 2**0.5), sample(1)]
    )


@pytest.mark.parametrize("size", [2, 16, 64])
def test_a_step_costs_what_the_paper_says(size: int) -> None:
    squares, delta = fresh().cost(step(size))
    share = (3 * size + 1) / (16 * UNITS)
    assert squares == pytest.approx((EPSILON * share) ** 2)
    assert delta == pytest.approx(DELTA * share)
    assert share <= 0.25


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.GaussianDpEvent(NOISE),
        dp_accounting.NonPrivateDpEvent(),
        sample(2, NOISE / 2),
        sample(2, units=UNITS + 1),
        dp_accounting.PoissonSampledDpEvent(
            0.1, dp_accounting.GaussianDpEvent(NOISE)
        ),
        # More than a quarter of the budget in one.
        dp_accounting.ComposedDpEvent([sample(64), sample(64)]),
        dp_accounting.SelfComposedDpEvent(step(2), 100),
        FailingDpEvent(step(2), DELTA),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(
    event: dp_accounting.DpEvent,
) -> None:
    budget = fresh()
    with pytest.raises(privacy_accountant.UnsupportedEventError):
        budget.spend(event)
    assert not budget.entries


def test_counts_are_as_many_single_events() -> None:
    one, block = fresh(), fresh()
    taken = 0
    while one.can_spend(step(8)):
        one.spend(step(8))
        taken += 1
    assert block.affordable(step(8), 1000) == taken > 2
    block.spend(step(8), taken)
    assert not block.can_spend(step(8))
    assert block.can_spend(step(8), 0)


def test_what_is_given_back_can_be_spent_again() -> None:
    budget, other = fresh(), fresh()
    most = budget.affordable(step(8), 1000)
    reserved = budget.reserve(step(8), most)
    assert not budget.can_spend(step(2))
    budget.settle(reserved, 3)
    other.spend(step(8), 3)
    assert budget.affordable(step(8), 1000) == other.affordable(step(8), 1000)


def test_a_restored_state_pays_for_no_more_than_before() -> None:
    budget, restored = (
        fresh(),
        BiasReducedFilter.from_config(fresh().get_config()),
    )
    budget.spend(step(8), 5)
    restored.set_state(budget.get_state())
    left = budget.affordable(step(8), 1000)
    assert 0 < restored.affordable(step(8), 1000) <= left
    budget.spend(step(8), left)
    restored.set_state(budget.get_state())
    assert not restored.can_spend(step(2))


@pytest.mark.parametrize("size", [2, 16, 64])
def test_only_what_it_did_not_pay_for_exceeds_it(size: int) -> None:
    """Two steps past the sums that fit are paid for; a third is not."""
    budget = fresh()
    while budget.can_spend(step(size)):
        budget.spend(step(size))
    assert budget.remaining() == 0 and not budget.exceeded
    assert budget.get_seen_state() != budget.get_state()
    budget.compose(step(size))
    assert budget.exceeded
    at_once = fresh()
    at_once.compose(step(size), budget.entries[0][1])
    assert at_once.exceeded


def test_which_steps_were_the_last_is_not_known_of_a_restored_state() -> None:
    budget, restored = fresh(), fresh()
    budget.spend(step(8), budget.affordable(step(8), 1000))
    restored.set_state(budget.get_state())
    assert restored.exceeded and not budget.exceeded
    assert restored.get_seen_state() == restored.get_state()
