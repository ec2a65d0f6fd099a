"""DP-SGD through a plan costs what dp_accounting finds, within 1 %."""

from __future__ import annotations

import dp_accounting
import pytest

from tf_sparse_dp.accounting import PrivacyPlan

GRID = [
    (0.002, 0.7, 20),
    (0.002, 1.5, 400),
    (0.002, 6.0, 5000),
    (0.02, 0.7, 400),
    (0.02, 1.5, 20),
    (0.02, 6.0, 400),
    (0.2, 0.7, 20),
    (0.2, 1.5, 400),
    (0.2, 6.0, 20),
]


@pytest.mark.parametrize(("q", "z", "k"), GRID)
def test_epsilon_of_dp_sgd(q, z, k, poisson):
    plan = PrivacyPlan(
        noise_multiplier=z,
        delta=1e-7,
        sampling=poisson(sampling_probability=q, num_compositions=k),
    )
    assert plan.accountant == "PLD"
    accountant = dp_accounting.pld.PLDAccountant()
    theirs = accountant.compose(plan.event()).get_epsilon(1e-7)
    assert plan.epsilon == pytest.approx(theirs, rel=0.01)


def test_another_event_would_be_found(poisson):
    plan = PrivacyPlan(
        noise_multiplier=1.5,
        delta=1e-7,
        sampling=poisson(sampling_probability=0.02, num_compositions=400),
    )
    accountant = dp_accounting.pld.PLDAccountant()
    theirs = accountant.compose(plan.event(390)).get_epsilon(1e-7)
    assert plan.epsilon != pytest.approx(theirs, rel=0.01)
