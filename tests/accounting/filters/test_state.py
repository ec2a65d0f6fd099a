"""Spending is all or nothing, for threads too, and is never forgotten."""

from __future__ import annotations

import copy
import json
import math
import random
import threading
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import privacy_accountant

from tf_sparse_dp import (
    ApproxDpEvent,
    ApproxDPFilter,
    BudgetExhausted,
    FailingDpEvent,
    RenyiFilter,
    ZcdpFilter,
)
from tf_sparse_dp.accounting.filters.additive import AdditiveFilter

pytestmark = [pytest.mark.once, pytest.mark.lane]

Laplace = dp_accounting.LaplaceDpEvent
MAKERS: dict[str, Callable[..., AdditiveFilter]] = {
    "renyi": RenyiFilter,
    "zcdp": ZcdpFilter,
    "approximate": ApproxDPFilter,
}
each_kind = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def seen(budget: AdditiveFilter) -> list[Any]:
    """All that can be seen of what was spent."""
    return [
        budget.get_state(),
        budget.spent.tolist(),
        budget.remaining(),
        budget.get_epsilon(1e-7),
        repr(budget.ledger),
        budget.entries,
    ]


@each_kind
def test_a_refused_spend_changes_nothing(make) -> None:
    budget = make(epsilon=1.0, delta=1e-6)
    budget.spend(Laplace(50.0), 3)
    budget.spend(FailingDpEvent(Laplace(70.0), 1e-12))
    before = seen(budget)
    too_much = [
        (Laplace(0.5), 1),
        (Laplace(50.0), 10**9),
        (ApproxDpEvent(0.01, 1e-3), 1),
        (FailingDpEvent(Laplace(1e6), 0.1), 1),
        (dp_accounting.NonPrivateDpEvent(), 1),
        (dp_accounting.ComposedDpEvent([Laplace(99.0), Laplace(0.1)]), 1),
    ]
    for event, count in too_much:
        assert not budget.can_spend(event, count)
        with pytest.raises(BudgetExhausted, match="Nothing was spent"):
            budget.spend(event, count)
        assert seen(budget) == before
    unknown = dp_accounting.UnsupportedDpEvent()
    for event in (unknown, dp_accounting.ComposedDpEvent([unknown])):
        with pytest.raises(privacy_accountant.UnsupportedEventError):
            budget.spend(event)
        with pytest.raises(privacy_accountant.UnsupportedEventError):
            budget.cost(event)
        assert seen(budget) == before
    for count in (-1, 1.5, 2**60):
        with pytest.raises((ValueError, TypeError)):
            budget.spend(Laplace(50.0), count)
        assert seen(budget) == before
    budget.spend(Laplace(50.0))
    assert seen(budget) != before


@each_kind
def test_composing_records_beyond_the_budget(make) -> None:
    budget = make(epsilon=1.0, delta=1e-6)
    budget.compose(Laplace(0.1), 5)
    assert budget.remaining() == 0.0
    assert budget.get_epsilon(1e-6) > 1.0
    assert not budget.can_spend(Laplace(1e6))


@each_kind
def test_racing_threads_never_overspend(make) -> None:
    event = Laplace(50.0)
    budget = make(epsilon=0.5, delta=1e-6)
    limit = budget.affordable(event, 10_000)
    spent = []
    start = threading.Barrier(8)

    def race(seed: int) -> None:
        rng = random.Random(seed)
        mine = 0
        start.wait()
        while True:
            count = rng.randint(1, 4)
            try:
                budget.spend(event, count)
            except BudgetExhausted:
                if count == 1:
                    break
            else:
                mine += count
        spent.append(mine)

    threads = [threading.Thread(target=race, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limit > 20
    # Many roundings upwards may cost the last one.
    assert sum(spent) in (limit - 1, limit)
    assert sum(count for _, count in budget.entries) == sum(spent)


@each_kind
def test_a_saved_filter_keeps_what_it_spent(make) -> None:
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    budget = make(
        epsilon=1.0,
        delta=1e-6,
        event_delta=1e-8,
        neighboring_relation=relation,
    )
    budget.spend(Laplace(50.0), 2).spend(ApproxDpEvent(0.01, 1e-10))
    budget.spend(FailingDpEvent(Laplace(70.0), 1e-12))
    saved = json.loads(
        json.dumps({"config": budget.get_config(), "state": budget.get_state()})
    )
    restored = type(budget).from_config(saved["config"])
    assert restored.get_config() == budget.get_config()
    assert restored.neighboring_relation is relation
    np.testing.assert_array_equal(restored.budgets, budget.budgets)
    restored.set_state(saved["state"])
    assert restored.get_state() == budget.get_state()
    assert restored.get_epsilon(1e-6) == budget.get_epsilon(1e-6)
    # Nothing more is spent by restoring it once more, or an older state.
    older = dict(saved["state"], spent=[0.0] * len(budget.spent), delta=0.0)
    for state in (saved["state"], older):
        restored.set_state(state)
        assert restored.get_state() == budget.get_state()
    for both in (restored, budget):
        both.spend(Laplace(60.0), 3)
    assert restored.get_state() == budget.get_state()


@each_kind
@pytest.mark.parametrize(
    "wrong", [[], [0.1] * 9, [-1.0], [math.nan], 0.5, [[0.1]]], ids=repr
)
def test_states_of_others_are_refused(make, wrong) -> None:
    budget = make(epsilon=1.0, delta=1e-6)
    if isinstance(wrong, list) and len(wrong) == 1:
        wrong = wrong * len(budget.spent)
    with pytest.raises(ValueError, match="same budget"):
        budget.raise_spent(wrong)
    with pytest.raises(ValueError, match="same budget"):
        budget.raise_spent(budget.spent, failure=-1.0)


@each_kind
def test_what_is_raised_survives_reservations(make) -> None:
    event = Laplace(50.0)
    (each, *_), _ = make(epsilon=1.0, delta=1e-6).cost(event)

    def first(budget: AdditiveFilter) -> float:
        return float(budget.spent[0] / each)

    def raised(budget: AdditiveFilter, steps: int) -> None:
        budget.raise_spent(steps * budget.cost(event)[0])

    # What is reserved may come back, and does not count for it.
    budget = make(epsilon=1.0, delta=1e-6)
    reservation = budget.reserve(event, 10)
    raised(budget, 7)
    budget.settle(reservation, 0)
    assert first(budget) == pytest.approx(7)
    assert first(budget) >= 7 * (1 - 1e-15)
    # Of a state in which more was spent: that stays spent.
    budget = make(epsilon=1.0, delta=1e-6).spend(event, 2)
    reservation = budget.reserve(event, 10)
    raised(budget, 15)
    assert first(budget) >= 15
    budget.settle(reservation, 0)
    assert first(budget) == pytest.approx(15)
    assert first(budget) >= 15 * (1 - 1e-15)
    budget.spend(event)
    assert first(budget) == pytest.approx(16)


@each_kind
def test_budgets_are_not_copied_and_not_changed(make) -> None:
    budget = make(epsilon=1.0, delta=1e-6)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(budget)
    budget.budgets[:] = 1e9
    budget.spent[:] = -1e9
    assert not budget.can_spend(Laplace(0.01))


@each_kind
@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"epsilon": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
        {"event_delta": 1e-6},
        {"event_delta": -1e-9},
        {"event_delta": math.nan},
    ],
    ids=repr,
)
def test_impossible_budgets_are_refused(make, wrong) -> None:
    with pytest.raises(ValueError, match="expected"):
        make(**{"epsilon": 1.0, "delta": 1e-6, **wrong})


@pytest.mark.parametrize(
    "orders", [[], [1], [2.5], [3, 3], [10_000], [2]], ids=repr
)
def test_impossible_orders_are_refused(orders) -> None:
    with pytest.raises(ValueError, match="orders are"):
        RenyiFilter(epsilon=1.0, delta=1e-6, orders=orders)


def test_a_tiny_epsilon_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="none has a budget"):
        RenyiFilter(epsilon=1e-4, delta=1e-9)
    assert ZcdpFilter(epsilon=1e-4, delta=1e-9).remaining() == 1.0


@each_kind
def test_a_list_that_is_changed_later_refunds_nothing(make) -> None:
    events = [Laplace(50.0), Laplace(50.0)]
    budget = make(epsilon=1.0, delta=1e-6)
    budget.spend(dp_accounting.ComposedDpEvent(events))
    spent = budget.spent
    events.clear()
    budget.settle(budget.reserve(Laplace(50.0)), 0)  # All is added up anew.
    np.testing.assert_array_equal(budget.spent, spent)


@each_kind
def test_no_release_is_for_nothing(make) -> None:
    event = Laplace(1e300)
    for _ in range(20):
        event = dp_accounting.SelfComposedDpEvent(event, 2**53)
    assert not make(epsilon=1.0, delta=1e-6).can_spend(event)
