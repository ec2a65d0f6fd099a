"""Reservations from filters: paid in full, given back once, by their owner."""

from __future__ import annotations

import os
import random
import threading

import dp_accounting
import pytest

from tf_sparse_dp.accounting.dp_events import ApproxDpEvent
from tf_sparse_dp.accounting.filters import PrivacyFilter
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError


class SumFilter(PrivacyFilter):
    """Epsilons add up; whole numbers, so that tests see every unit."""

    def __init__(self, epsilon: float = 100.0):
        super().__init__(
            epsilon, 0.0, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        self._forget()

    def _forget(self):
        self._sum = 0.0

    def _maybe_compose(self, event, count, do_compose):
        if not isinstance(event, ApproxDpEvent):
            return self.CompositionErrorDetails(event, "not a sum")
        if do_compose:
            self._sum += event.epsilon * count
        return None

    def _fits(self, event, count):
        return self._sum + event.epsilon * count <= self.epsilon

    def remaining(self):
        return max(0.0, 1 - self._sum / self.epsilon)

    def get_epsilon(self, target_delta):
        return self._sum


ONE = ApproxDpEvent(1.0)
TWO = ApproxDpEvent(2.0)


def test_a_reservation_is_paid_in_full_until_it_is_settled():
    budget = SumFilter()
    reservation = budget.reserve(ONE, 60)
    assert budget.get_epsilon(0) == 60
    assert budget.entries == [(ONE, 60)]
    assert budget.ledger == dp_accounting.SelfComposedDpEvent(ONE, 60)
    with pytest.raises(BudgetExhausted):
        budget.reserve(ONE, 41)
    with pytest.raises(BudgetExhausted):
        budget.spend(ONE, 41)
    budget.settle(reservation, 10)
    assert budget.get_epsilon(0) == 10
    assert budget.remaining() == 0.9
    assert budget.ledger == dp_accounting.SelfComposedDpEvent(ONE, 10)
    budget.spend(ONE, 90)
    assert budget.remaining() == 0
    assert budget.entries == [(ONE, 100)]


def test_as_many_as_there_are():
    budget = SumFilter()
    assert budget.reserve(TWO, 30, at_least=1).count == 30
    assert budget.reserve(TWO, 30, at_least=20).count == 20
    with pytest.raises(BudgetExhausted, match="does not pay for 1 of"):
        budget.reserve(TWO, 30, at_least=1)
    assert budget.get_epsilon(0) == 100
    for count, at_least in ((0, None), (3, 0), (3, 4), (-1, None)):
        with pytest.raises(ValueError, match=r"count is|at_least"):
            budget.reserve(ONE, count, at_least=at_least)
    with pytest.raises(dp_accounting.UnsupportedEventError):
        budget.reserve(dp_accounting.GaussianDpEvent(1.0), 1)


def test_order_is_kept_and_others_stay_reserved():
    budget = SumFilter()
    budget.spend(ONE)
    first = budget.reserve(ONE, 10)
    second = budget.reserve(TWO, 10)
    third = budget.reserve(ONE, 10)
    budget.compose(TWO)
    budget.settle(second, 0)
    assert budget.entries == [(ONE, 21), (TWO, 1)]
    budget.settle(third, 3)
    budget.settle(first, 10)
    assert budget.get_epsilon(0) == 1 + 10 + 3 + 2
    assert [event for event, _ in budget.entries][-1] == TWO


def test_settled_once_by_its_own_budget_and_process():
    budget, other = SumFilter(), SumFilter()
    reservation = budget.reserve(ONE, 10)
    with pytest.raises(PrivacyStateError, match="not reserved from"):
        other.settle(reservation, 0)
    for used in (11, -1):
        with pytest.raises(ValueError):
            budget.settle(reservation, used)
    budget.settle(reservation, 4)
    with pytest.raises(PrivacyStateError, match="settled already"):
        budget.settle(reservation, 0)
    assert budget.get_epsilon(0) == 4


def in_fork(function) -> str:
    """What the function raised in a forked process, in words."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing"
        try:
            function()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 4096).decode()
    os.close(reading)
    os.close(writing)
    return said


def test_a_fork_can_neither_spend_nor_give_back():
    budget = SumFilter()
    reservation = budget.reserve(ONE, 10)
    said = in_fork(lambda: budget.settle(reservation, 0))
    assert said.startswith("PrivacyStateError") and "was made by" in said
    for act in (
        lambda: budget.spend(ONE),
        lambda: budget.reserve(ONE),
        lambda: budget.compose(ONE),
    ):
        said = in_fork(act)
        assert said.startswith("PrivacyStateError") and "SharedBudget" in said


def test_interrupted_while_counting_anew_is_refused_from_then_on(monkeypatch):
    budget = SumFilter()
    budget.spend(ONE, 50)
    reservation = budget.reserve(ONE, 10)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SumFilter, "_maybe_compose", interrupt)
        with pytest.raises(KeyboardInterrupt):
            budget.settle(reservation, 0)
    with pytest.raises(PrivacyStateError, match="does not know"):
        budget.spend(ONE)


def test_the_events_of_a_run():
    budget = SumFilter()
    block = budget.reserve(ONE, 10, run="a")
    budget.reserve(ONE, 5, run="b")
    budget.compose(ONE, 2, run="a")
    budget.spend(ONE, 3)
    assert (budget.events_of("a"), budget.events_of("b")) == (12, 5)
    budget.settle(block, 1)
    assert (budget.events_of("a"), budget.events_of("b")) == (3, 5)
    assert budget.events_of("c") == 0
    assert budget.get_epsilon(0) == 1 + 5 + 2 + 3


def test_any_sequence_counts_what_is_spent_and_what_is_held():
    source = random.Random(0)
    for _ in range(200):
        budget, held, spent = SumFilter(), {}, 0.0
        for _ in range(30):
            event = source.choice((ONE, TWO))
            number = source.randint(1, 15)
            if held and source.random() < 0.4:
                reservation = source.choice(list(held))
                used = source.randint(0, held.pop(reservation))
                budget.settle(reservation, used)
                spent += used * reservation.event.epsilon
            elif source.random() < 0.5:
                try:
                    reservation = budget.reserve(event, number, at_least=1)
                    held[reservation] = reservation.count
                except BudgetExhausted:
                    assert budget.affordable(event, number) == 0
            elif budget.can_spend(event, number):
                budget.spend(event, number)
                spent += number * event.epsilon
            reserved = sum(r.event.epsilon * n for r, n in held.items())
            assert budget.get_epsilon(0) == spent + reserved <= 100
            counted = sum(e.epsilon * n for e, n in budget.entries)
            assert counted == spent + reserved


def test_threads_never_overspend_and_spend_all():
    budget = SumFilter(1000.0)
    used = [0] * 4

    def work(mine):
        source = random.Random(mine)
        while True:
            try:
                block = budget.reserve(ONE, 7, at_least=1)
            except BudgetExhausted:
                return
            number = source.randint(1, block.count)
            used[mine] += number
            budget.settle(block, number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(used) == budget.get_epsilon(0) == 1000
