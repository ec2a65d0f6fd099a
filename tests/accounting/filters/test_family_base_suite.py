"""`dp_accounting`'s own tests, on children and shared budgets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection

import dp_accounting
from dp_accounting import privacy_accountant_test

from tf_sparse_dp.accounting.filters import (
    PrivacyFilter,
    RenyiFilter,
    SharedBudget,
    ZcdpFilter,
)

RELATIONS = tuple(dp_accounting.NeighboringRelation)


def parts(relation) -> dict:
    return {"epsilon": 1.0, "delta": 1e-6, "neighboring_relation": relation}


class TestChildFilter(privacy_accountant_test.PrivacyAccountantTest):
    def _make_test_accountants(self) -> Collection[PrivacyFilter]:
        return [
            RenyiFilter(**parts(relation)).child(
                "one", cap=ZcdpFilter(**parts(relation)) if capped else None
            )
            for relation in RELATIONS
            for capped in (False, True)
        ]


class TestSharedBudget(privacy_accountant_test.PrivacyAccountantTest):
    def _make_test_accountants(self) -> Collection[PrivacyFilter]:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "budget")
        return [
            SharedBudget(f"{path}{i}", RenyiFilter(**parts(relation)))
            for i, relation in enumerate(RELATIONS)
        ]
