"""Replaying a ledger gives the epsilon of the run that it is from."""

from __future__ import annotations

import math

import dp_accounting
import pytest

from tf_sparse_dp.accounting import PrivacyPlan
from tf_sparse_dp.accounting.dp_events import FailingDpEvent
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.accounting.ledger_header import LedgerHeader


def header(plan, **changes):
    facts = {
        "account": {"class_name": "PrivacyPlan", "config": plan.get_config()},
        "neighbouring_relation": plan.neighbouring_relation,
    }
    return LedgerHeader(**(facts | changes))


def composition(plan):
    failure = plan.sampling.overflow_probability + plan.release_failure
    return FailingDpEvent(plan.event(1).event, failure)


def plans(poisson, passes):
    facts = {"delta": 1e-7}
    yield PrivacyPlan(noise_multiplier=1.1, sampling=poisson(), **facts)
    often = poisson(num_compositions=300, overflow_probability=1e-11)
    yield PrivacyPlan(noise_multiplier=1.1, sampling=often, **facts)
    yield PrivacyPlan(epsilon=2.0, sampling=often, **facts)
    yield PrivacyPlan(noise_multiplier=3.0, sampling=passes(5), **facts)
    yield PrivacyPlan(
        noise_multiplier=3.0, sampling=passes(5), noise="laplace", **facts
    )


def test_of_a_plan(poisson, passes):
    for plan in plans(poisson, passes):
        event = composition(plan)
        ledger = Ledger(header(plan))
        for count in (0, 1, 1, plan.num_compositions - 2, 20):
            ledger.append(event, count)
            ledger = Ledger.from_json(ledger.to_json())
            replayed = ledger.get_epsilon(plan.delta)
            spent = plan.epsilon_spent(ledger.num_events)
            if ledger.num_events == plan.num_compositions:
                # A plan never says more than what was asked for.
                assert spent == min(replayed, plan.epsilon)
                assert replayed <= plan.epsilon * (1 + 1e-5)
            else:
                assert replayed == spent


def test_overflow_can_use_up_delta(poisson):
    sampling = poisson(num_compositions=10, overflow_probability=1e-10)
    plan = PrivacyPlan(noise_multiplier=2.0, delta=1e-7, sampling=sampling)
    ledger = Ledger(header(plan), [(composition(plan), 100_000)])
    assert ledger.get_epsilon(1e-7) == math.inf == plan.epsilon_spent(100_000)


def test_spent_before_is_added(poisson):
    plan = PrivacyPlan(noise_multiplier=1.1, delta=1e-7, sampling=poisson())
    ledger = Ledger(
        header(plan, spent_before=(0.25, 2e-8)), [(composition(plan), 500)]
    )
    expected = 0.25 + plan.epsilon_spent(500)
    replayed = ledger.get_epsilon(1e-7 + 2e-8)
    assert replayed == pytest.approx(expected, rel=1e-9)
    assert ledger.get_epsilon(1e-8) == math.inf
    nothing = Ledger(header(plan, spent_before=(0.25, 2e-8)))
    assert nothing.get_epsilon(1e-7) == pytest.approx(0.25, rel=1e-15)


def test_of_two_runs_it_is_that_of_their_composition(poisson):
    one = PrivacyPlan(noise_multiplier=1.1, delta=1e-7, sampling=poisson())
    two = PrivacyPlan(noise_multiplier=1.5, delta=1e-7, sampling=poisson())
    ledgers = [Ledger(header(p), [(composition(p), 300)]) for p in (one, two)]
    merged = ledgers[0].merge(ledgers[1])
    by_dp_accounting = dp_accounting.pld.PLDAccountant(
        value_discretization_interval=1e-3
    )
    for plan in (one, two):
        by_dp_accounting.compose(plan.event(300))
    expected = by_dp_accounting.get_epsilon(1e-7)
    assert merged.get_epsilon(1e-7) == pytest.approx(expected, rel=0.01)
    assert merged.get_epsilon(1e-7) > ledgers[0].get_epsilon(1e-7)
