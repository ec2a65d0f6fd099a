"""`dp_accounting`'s own tests of accountants, run on every filter of sums."""

from __future__ import annotations

from collections.abc import Collection

import dp_accounting
import pytest
from dp_accounting import privacy_accountant_test

from tf_sparse_dp import (
    ApproxDPFilter,
    PrivacyFilter,
    RenyiFilter,
    ZcdpFilter,
)

pytestmark = [pytest.mark.once, pytest.mark.lane]

RELATIONS = tuple(dp_accounting.NeighboringRelation)


class TestRenyiFilter(privacy_accountant_test.PrivacyAccountantTest):
    def _make_test_accountants(self) -> Collection[PrivacyFilter]:
        return [
            RenyiFilter(
                epsilon=1.0,
                delta=1e-6,
                orders=orders,
                neighboring_relation=relation,
            )
            for relation in RELATIONS
            for orders in (None, [20])
        ]


class TestZcdpFilter(privacy_accountant_test.PrivacyAccountantTest):
    def _make_test_accountants(self) -> Collection[PrivacyFilter]:
        return [
            ZcdpFilter(epsilon=1.0, delta=1e-6, neighboring_relation=relation)
            for relation in RELATIONS
        ]


class TestApproxDPFilter(privacy_accountant_test.PrivacyAccountantTest):
    def _make_test_accountants(self) -> Collection[PrivacyFilter]:
        return [
            ApproxDPFilter(
                epsilon=1.0,
                delta=1e-6,
                event_delta=event_delta,
                neighboring_relation=relation,
            )
            for relation in RELATIONS
            for event_delta in (None, 0.0)
        ]
