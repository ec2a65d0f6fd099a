"""One budget for several processes, in a file."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time

import dp_accounting
import pytest

from tf_sparse_dp.accounting.dp_events import ApproxDpEvent
from tf_sparse_dp.accounting.filters import (
    ApproxDPFilter,
    PldFilter,
    RenyiFilter,
    SharedBudget,
    ZcdpFilter,
)
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError

GAUSSIAN = dp_accounting.GaussianDpEvent(20.0)
PAIR = ApproxDpEvent(0.02, 1e-9)
FILTERS = [
    (ApproxDPFilter, PAIR),
    (RenyiFilter, GAUSSIAN),
    (ZcdpFilter, GAUSSIAN),
]


def zcdp(epsilon=3.0):
    return ZcdpFilter(epsilon=epsilon, delta=1e-6)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "budget.jsonl"


@pytest.mark.parametrize(("kind", "event"), FILTERS)
def test_decides_as_its_filter_does(path, kind, event):
    def new():
        return kind(epsilon=3.0, delta=1e-6)

    alone, here, there = (
        new(),
        SharedBudget(path, new()),
        SharedBudget(path, new()),
    )
    source = random.Random(0)
    held = {}
    for _ in range(80):
        one = source.choice((here, there))
        if held and source.random() < 0.5:
            block = source.choice(list(held))
            same, holder = held.pop(block)
            used = source.randint(0, block.count)
            holder.settle(block, used)
            alone.settle(same, used)
        elif source.random() < 0.3 and alone.can_spend(event, 3):
            one.spend(event, 3)
            alone.spend(event, 3)
        else:
            most = source.randint(1, 60)
            try:
                same = alone.reserve(event, most, at_least=1)
            except BudgetExhausted:
                with pytest.raises(BudgetExhausted):
                    one.reserve(event, most, at_least=1)
                continue
            block = one.reserve(event, most, at_least=1)
            assert block.count == same.count
            held[block] = same, one
        assert one.affordable(event, 100) == alone.affordable(event, 100)
        assert one.can_spend(event, 30) == alone.can_spend(event, 30)
    for one in (here, there, SharedBudget(path, new())):
        assert one.remaining() == pytest.approx(alone.remaining(), abs=1e-9)
        assert one.get_epsilon(1e-6) == pytest.approx(alone.get_epsilon(1e-6))
        assert sum(n for _, n in one.entries) == sum(
            n for _, n in alone.entries
        )
    assert here.saved_ledger().num_events == sum(n for _, n in alone.entries)


def test_a_declared_sequence_is_shared_too(path):
    def new():
        sequence = [(GAUSSIAN, 90), (PAIR, 3)]
        return PldFilter(epsilon=3.0, delta=1e-6, sequence=sequence)

    here, there = SharedBudget(path, new()), SharedBudget(path, new())
    block = here.reserve(GAUSSIAN, 60)
    there.child("there").spend(GAUSSIAN, 10)
    with pytest.raises(BudgetExhausted, match="room for 0"):
        there.spend(PAIR)
    here.settle(block, 50)
    assert there.affordable(GAUSSIAN, 100) == 30
    there.spend(GAUSSIAN, 30).spend(PAIR, 3)
    with pytest.raises(BudgetExhausted):
        here.spend(PAIR)
    assert here.entries == [(GAUSSIAN, 90), (PAIR, 3)]


def test_records_without_enforcing(path):
    budget = SharedBudget(path, zcdp())
    budget.compose(GAUSSIAN, 10_000)
    assert budget.remaining() == 0
    assert budget.ledger == dp_accounting.SelfComposedDpEvent(GAUSSIAN, 10_000)
    with pytest.raises(BudgetExhausted):
        SharedBudget(path, zcdp()).spend(GAUSSIAN)
    sampled = dp_accounting.PoissonSampledDpEvent(0.01, GAUSSIAN)
    before = path.read_bytes()
    for act in (budget.compose, budget.spend, budget.reserve):
        with pytest.raises(dp_accounting.UnsupportedEventError):
            act(sampled)
    assert path.read_bytes() == before


def test_all_processes_must_have_the_same_budget(path):
    SharedBudget(path, zcdp())
    with pytest.raises(PrivacyStateError, match=r"epsilon is 3\.1 here"):
        SharedBudget(path, zcdp(3.1))
    with pytest.raises(PrivacyStateError, match="class_name is 'RenyiFilter'"):
        SharedBudget(path, RenyiFilter(epsilon=3.0, delta=1e-6))
    with pytest.raises(PrivacyStateError, match="unit is 'user' here"):
        SharedBudget(path, zcdp(), unit="user")
    other = path.parent / "other.jsonl"
    SharedBudget(other, RenyiFilter(epsilon=3.0, delta=1e-6, orders=[8]))
    with pytest.raises(PrivacyStateError, match="orders"):
        SharedBudget(other, RenyiFilter(epsilon=3.0, delta=1e-6, orders=[9]))
    spent = zcdp()
    spent.spend(GAUSSIAN)
    restored = zcdp()
    restored.set_state(spent.get_state())
    for used in (spent, restored):
        with pytest.raises(ValueError, match="expected a new one"):
            SharedBudget(path, used)


def test_a_run_that_goes_on_elsewhere_is_known(path, tmp_path):
    first = SharedBudget(path, zcdp())
    block = first.reserve(GAUSSIAN, 10, run="mine")
    first.reserve(GAUSSIAN, 7, run="other")
    first.settle(block, 4)
    first.spend(GAUSSIAN)
    again = SharedBudget(path, zcdp())
    child = again.child("mine")
    again.compose(GAUSSIAN, 2, run="mine")
    for budget in (first, again, child):
        assert budget.events_of("mine") == 6
        assert budget.events_of("other") == 7
        assert budget.events_of("unknown") == 0
    # A cap of this process does not know what an earlier one spent.
    capped = again.child("capped", cap=zcdp(1.0))
    assert capped.events_of("mine") == 0
    assert [run.num_events for run in first.saved_ledger().runs] == [0, 6, 7, 1]


@pytest.mark.parametrize(("kind", "event"), FILTERS)
def test_made_again_from_its_config(path, kind, event):
    budget = SharedBudget(path, kind(epsilon=3.0, delta=1e-6), unit="user")
    budget.spend(event, 3)
    config = json.loads(json.dumps(budget.get_config()))
    again = SharedBudget.from_config(config)
    assert again.entries == [(event, 3)]
    again.spend(event)
    assert budget.entries == [(event, 4)]
    path.rename(path.parent / "elsewhere")
    # Not a new file, of which nothing would be spent.
    with pytest.raises(PrivacyStateError, match="is not there"):
        SharedBudget.from_config(config)
    assert not path.exists()


def test_an_interruption_loses_nothing(path, monkeypatch):
    budget = SharedBudget(path, zcdp())
    budget.spend(GAUSSIAN, 100)
    block = budget.reserve(GAUSSIAN, 20)
    other = SharedBudget(path, zcdp())
    assert other.affordable(GAUSSIAN, 1000) == 28
    budget.settle(block, 10)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ZcdpFilter, "_forget", interrupt)
        with pytest.raises(KeyboardInterrupt):
            other.remaining()
    assert other.affordable(GAUSSIAN, 1000) == 38


def work(budget, writing, seed):
    """Spends all there is, in blocks, and says how much it released."""
    source = random.Random(seed)
    while True:
        try:
            block = budget.reserve(GAUSSIAN, source.randint(1, 9), at_least=1)
        except BudgetExhausted:
            return
        used = source.randint(0, block.count)
        os.write(writing, b"x" * used)
        budget.settle(block, used)


def forked(function, *arguments) -> int:
    process = os.fork()
    if not process:
        status = 1
        try:
            function(*arguments)
            status = 0
        finally:
            os._exit(status)
    return process


def test_racing_processes_never_overspend_and_spend_all(path):
    total = zcdp().affordable(GAUSSIAN, 1000)
    reading, writing = os.pipe()
    inherited = SharedBudget(path, zcdp())
    inherited.spend(GAUSSIAN)
    workers = [
        forked(work, inherited, writing, 0),
        forked(lambda: work(SharedBudget(path, zcdp()), writing, 1)),
    ]
    status = [os.waitpid(worker, 0)[1] for worker in workers]
    os.close(writing)
    released = 1 + len(os.read(reading, 1 << 16))
    os.close(reading)
    assert status == [0, 0]
    assert released == sum(count for _, count in inherited.entries)
    assert 0.99 * total <= released <= total
    assert inherited.get_epsilon(1e-6) <= 3.0
    assert not inherited.can_spend(GAUSSIAN)


def test_killed_anywhere_never_charges_less_than_was_released(path):
    source = random.Random(1)
    released = 0
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    for attempt in range(8):
        worker = forked(
            lambda seed: work(SharedBudget(path, zcdp(5.0)), writing, seed),
            attempt,
        )
        if not attempt:  # However slow the machine is, something is released.
            select.select([reading], [], [], 60)
        time.sleep(source.uniform(0.0, 0.06))
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        while True:
            try:
                released += len(os.read(reading, 1 << 16))
            except BlockingIOError:
                break
        budget = SharedBudget(path, zcdp(5.0))
        charged = sum(count for _, count in budget.entries)
        assert released <= charged
        assert budget.get_epsilon(1e-6) <= 5.0
    os.close(reading)
    os.close(writing)
    assert released > 0
