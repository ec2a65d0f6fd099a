"""Several models or runs that spend one budget of one process."""

from __future__ import annotations

import json
import random
import threading

import dp_accounting
import pytest

from tf_sparse_dp.accounting.dp_events import ApproxDpEvent
from tf_sparse_dp.accounting.filters import (
    ApproxDPFilter,
    ChildFilter,
    RenyiFilter,
    SharedBudget,
    ZcdpFilter,
)
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError

GAUSSIAN = dp_accounting.GaussianDpEvent(20.0)
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.01, GAUSSIAN)
PAIR = ApproxDpEvent(0.02, 1e-9)
FILTERS = [
    (ApproxDPFilter, PAIR),
    (RenyiFilter, GAUSSIAN),
    (ZcdpFilter, GAUSSIAN),
]


def zcdp(epsilon=3.0, **arguments):
    return ZcdpFilter(epsilon=epsilon, delta=1e-6, **arguments)


@pytest.mark.parametrize(("kind", "event"), FILTERS)
def test_children_spend_what_their_parent_has(kind, event):
    budget = kind(epsilon=3.0, delta=1e-6)
    alone = kind(epsilon=3.0, delta=1e-6)
    total = alone.affordable(event, 10_000)
    first, second = budget.child("first"), budget.child("second")
    first.spend(event, total // 2)
    assert second.affordable(event, 10_000) == total - total // 2
    second.spend(event, total - total // 2 - 1)
    budget.spend(event)
    for one in (first, second, budget):
        with pytest.raises(BudgetExhausted):
            one.spend(event)
    alone.spend(event, total)
    assert budget.remaining() == first.remaining()
    assert budget.remaining() == pytest.approx(alone.remaining(), abs=1e-9)
    assert first.entries == [(event, total // 2)]
    assert second.entries == [(event, total - total // 2 - 1)]
    assert budget.entries == [(event, total)]
    assert first.get_epsilon(1e-6) < budget.get_epsilon(1e-6)


def test_a_child_reserves_from_its_parent():
    budget = zcdp()
    child = budget.child("one")
    total = child.affordable(GAUSSIAN, 1000)
    block = child.reserve(GAUSSIAN, 100)
    assert budget.entries == child.entries == [(GAUSSIAN, 100)]
    with pytest.raises(PrivacyStateError, match="not reserved from"):
        budget.settle(block, 0)
    with pytest.raises(PrivacyStateError, match="not reserved from"):
        budget.child("other").settle(block, 0)
    child.settle(block, 30)
    assert budget.entries == child.entries == [(GAUSSIAN, 30)]
    with pytest.raises(PrivacyStateError, match="settled already"):
        child.settle(block, 0)
    rest = child.reserve(GAUSSIAN, 1000, at_least=1)
    assert rest.count == total - 30
    with pytest.raises(BudgetExhausted):
        child.reserve(GAUSSIAN, 1000, at_least=1)
    child.compose(GAUSSIAN, 5)  # Records, whatever the budget.
    assert sum(count for _, count in budget.entries) == total + 5


def test_a_cap_holds_for_the_child_and_the_parent_for_all():
    budget = zcdp(3.0)
    capped = budget.child("capped", cap=zcdp(1.0))
    limit = zcdp(1.0).affordable(GAUSSIAN, 1000)
    total = zcdp(3.0).affordable(GAUSSIAN, 1000)
    assert (capped.epsilon, capped.delta) == (1.0, 1e-6)
    assert capped.affordable(GAUSSIAN, 1000) == limit
    block = capped.reserve(GAUSSIAN, 1000, at_least=1)
    assert block.count == limit
    with pytest.raises(BudgetExhausted):
        capped.spend(GAUSSIAN)
    capped.settle(block, 1)
    budget.spend(GAUSSIAN, total - 3)
    # Two are left: more than those the cap has, but not the parent.
    assert capped.reserve(GAUSSIAN, 5, at_least=1).count == 2
    with pytest.raises(BudgetExhausted):
        capped.spend(GAUSSIAN)
    assert budget.entries[-1][1] <= total
    # What the parent refused was given back to the cap.
    assert capped._cap.entries == [(GAUSSIAN, 6)]


def test_what_the_parent_refuses_is_not_taken_from_the_cap():
    budget, cap = zcdp(0.5), zcdp(3.0)
    child = budget.child("one", cap=cap)
    with pytest.raises(BudgetExhausted):
        child.spend(GAUSSIAN, 100)
    assert cap.entries == budget.entries == child.entries == []
    with pytest.raises(dp_accounting.UnsupportedEventError):
        child.compose(SAMPLED)
    assert cap.entries == budget.entries == child.entries == []


def test_grandchildren_and_names():
    budget = zcdp()
    child = budget.child("one")
    child.child("of one").spend(GAUSSIAN, 7)
    assert budget.entries == child.entries == [(GAUSSIAN, 7)]
    assert list(budget.children) == ["one"]
    for name in ("one", 1):
        with pytest.raises(ValueError, match="name is"):
            budget.child(name)
    used = zcdp()
    used.spend(GAUSSIAN)
    other = zcdp(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    for cap in (used, other, budget):
        with pytest.raises(ValueError, match="nothing was spent"):
            budget.child("two", cap=cap)
    assert list(budget.children) == ["one"]


def test_a_child_is_not_made_from_a_config():
    child = zcdp().child("one", cap=zcdp(1.0))
    config = json.loads(json.dumps(child.get_config()))
    with pytest.raises(PrivacyStateError, match="its budget is its parent's"):
        ChildFilter.from_config(config)


def test_threads_of_children_never_overspend_and_spend_all():
    budget = zcdp()
    total = budget.affordable(GAUSSIAN, 1000)
    released = [0] * 3

    def work(mine):
        source = random.Random(mine)
        child = budget.child(f"run {mine}")
        while True:
            try:
                block = child.reserve(GAUSSIAN, 5, at_least=1)
            except BudgetExhausted:
                break
            used = source.randint(1, block.count)
            released[mine] += used
            child.settle(block, used)
        assert sum(count for _, count in child.entries) == released[mine]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(released) == total
    assert sum(count for _, count in budget.entries) == total


def test_a_shared_budget_has_children(tmp_path):
    def shared():
        return SharedBudget(tmp_path / "budget.jsonl", zcdp())

    here, there = shared(), shared()
    child = here.child("one", cap=zcdp(1.0))
    block = child.reserve(GAUSSIAN, 10)
    assert there.entries == [(GAUSSIAN, 10)]
    child.settle(block, 4)
    assert there.entries == child.entries == [(GAUSSIAN, 4)]
    block = child.reserve(GAUSSIAN, 10)
    fine = (tmp_path / "budget.jsonl").rename(tmp_path / "elsewhere")
    with pytest.raises(PrivacyStateError, match="was removed"):
        child.settle(block, 1)
    fine.rename(tmp_path / "budget.jsonl")
    child.settle(block, 1)  # What failed can be tried again.
    assert there.entries == child.entries == [(GAUSSIAN, 5)]
    with pytest.raises(TypeError, match="somebody else's"):
        SharedBudget(tmp_path / "other.jsonl", zcdp().child("one"))
