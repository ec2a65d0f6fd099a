"""What is no number, relation, filter or ledger is refused in so many words."""

from __future__ import annotations

import dp_accounting
import pytest

from tf_sparse_dp.accounting import (
    ApproxDpEvent,
    ApproxDPFilter,
    Ledger,
    LedgerHeader,
    PldFilter,
    PrivacyOdometer,
    RenyiFilter,
    SharedBudget,
    ZcdpFilter,
)
from tf_sparse_dp.accounting.composition import composed_epsilon
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError

pytestmark = [pytest.mark.once]

NOISY = dp_accounting.GaussianDpEvent(20.0)
RELATION = dp_accounting.NeighboringRelation.REPLACE_ONE
ACCOUNTS = {
    "approximate": lambda **given: ApproxDPFilter(
        **{"epsilon": 1.0, "delta": 1e-6, **given}
    ),
    "renyi": lambda **given: RenyiFilter(
        **{"epsilon": 1.0, "delta": 1e-6, **given}
    ),
    "suited": lambda **given: RenyiFilter.suited_to(
        NOISY, **{"epsilon": 1.0, "delta": 1e-6, **given}
    ),
    "zcdp": lambda **given: ZcdpFilter(
        **{"epsilon": 1.0, "delta": 1e-6, **given}
    ),
    "pld": lambda **given: PldFilter(
        **{"epsilon": 1.0, "delta": 1e-6, "sequence": [], **given}
    ),
    "odometer": lambda **given: PrivacyOdometer(**{"delta": 1e-6, **given}),
    "composed": lambda **given: composed_epsilon(
        [(NOISY, 1)], delta=0, **given
    ),
    "event": lambda **given: ApproxDpEvent.of(NOISY, delta=1e-6, **given),
}


@pytest.mark.parametrize("account", ACCOUNTS)
@pytest.mark.parametrize("relation", ["REPLACE_ONE", "replace_one", 2, None])
def test_a_relation_is_never_guessed(account, relation):
    ACCOUNTS[account](neighboring_relation=RELATION)
    with pytest.raises(TypeError, match="expected a dp_accounting") as by:
        ACCOUNTS[account](neighboring_relation=relation)
    assert repr(relation) in str(by.value)


@pytest.mark.parametrize("name", ["epsilon", "delta"])
@pytest.mark.parametrize(
    "account", ["approximate", "renyi", "suited", "zcdp", "pld", "odometer"]
)
def test_a_budget_is_numbers(account, name):
    if (account, name) == ("odometer", "epsilon"):
        name = "event_share"
    for wrong in ("3", None, True):
        with pytest.raises(TypeError, match=f"{name} is {wrong!r}, expected"):
            ACCOUNTS[account](**{name: wrong})
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"{name} is {wrong!r}, expected"):
            ACCOUNTS[account](**{name: wrong})


def test_what_is_left_is_said_as_a_percentage():
    budget = ZcdpFilter(epsilon=1.0, delta=1e-6)
    with pytest.raises(BudgetExhausted, match="100% of the budget is left"):
        budget.spend(NOISY, 1000)


def test_what_is_no_filter_has_no_budget_to_share(tmp_path):
    path = tmp_path / "budget.jsonl"
    budget = ZcdpFilter(epsilon=1.0, delta=1e-6)
    for filter in (str(path), None, PrivacyOdometer(delta=1e-6)):
        with pytest.raises(TypeError, match=r"filter is .* expected a privacy"):
            SharedBudget(path, filter)
    with pytest.raises(TypeError, match=r"cap is 1\.0, expected a privacy"):
        budget.child("one", cap=1.0)
    assert not budget.children


def test_what_is_no_ledger_is_not_read():
    ledger = Ledger(LedgerHeader(account={}, neighbouring_relation="zero_out"))
    with pytest.raises(TypeError, match="other is 'path', expected a Ledger"):
        ledger.merge("path")
    with pytest.raises(TypeError, match="text is a dict, expected the text"):
        Ledger.from_json({})
    with pytest.raises(PrivacyStateError, match="if that is a path, give"):
        Ledger.from_json("/data/ledger.json")
