"""Plans: what they solve for, refuse, remember and release."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys

import dp_accounting
import numpy as np
import pytest

from tf_sparse_dp.accounting import PrivacyPlan, Sampling
from tf_sparse_dp.errors import PrivacyWarning


def test_solves_for_noise_and_back(poisson):
    sampling = poisson()
    there = PrivacyPlan(epsilon=2.0, delta=1e-7, sampling=sampling)
    assert there.epsilon == 2.0
    back = PrivacyPlan(
        noise_multiplier=there.noise_multiplier, delta=1e-7, sampling=sampling
    )
    assert 0.999 * 2.0 <= back.epsilon <= 2.0
    assert there.num_compositions == 1000
    assert there.neighbouring_relation == "add_or_remove_one"
    assert there.accountant == "PLD"


def test_tiny_delta_is_left_to_rdp(poisson):
    plan = PrivacyPlan(epsilon=2.0, delta=1e-16, sampling=poisson())
    assert plan.accountant == "RDP"
    assert plan.epsilon_spent(1000) <= 2.0


def test_epsilon_rises_from_zero_to_the_budget(poisson):
    sampling = poisson(num_compositions=300, overflow_probability=1e-12)
    plan = PrivacyPlan(epsilon=1.5, delta=1e-7, sampling=sampling)
    curve = [plan.epsilon_spent(k) for k in (0, 1, 2, 3, 50, 51, 299, 300)]
    assert curve[0] == 0.0
    assert all(a < b for a, b in itertools.pairwise(curve))
    assert 0.998 * 1.5 <= curve[-1] <= 1.5
    assert plan.epsilon_spent(301) > plan.epsilon_spent(300)


def test_beyond_the_plan_overflow_may_leave_nothing(poisson):
    sampling = poisson(num_compositions=10, overflow_probability=1e-10)
    plan = PrivacyPlan(noise_multiplier=2.0, delta=1e-7, sampling=sampling)
    assert math.isfinite(plan.epsilon)
    assert plan.epsilon_spent(100_000) == math.inf


def test_events(poisson, passes):
    plan = PrivacyPlan(noise_multiplier=1.0, delta=1e-7, sampling=poisson())
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    step = dp_accounting.PoissonSampledDpEvent(0.01, gaussian)
    assert plan.event() == dp_accounting.SelfComposedDpEvent(step, 1000)
    assert plan.event(7) == dp_accounting.SelfComposedDpEvent(step, 7)
    assert plan.event(0) == dp_accounting.NoOpDpEvent()
    plan = PrivacyPlan(noise_multiplier=1.0, delta=1e-7, sampling=passes(3))
    assert plan.event() == dp_accounting.SelfComposedDpEvent(gaussian, 3)
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    rdp = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    rdp.compose(plan.event())
    assert plan.epsilon <= rdp.get_epsilon(1e-7) <= 1.2 * plan.epsilon


@pytest.fixture
def compute_dp_sgd_privacy(monkeypatch):
    # Its package imports TensorFlow unless told otherwise. What that leaves
    # out should not be missed by other tests, so forget the import afterwards.
    monkeypatch.setattr(sys, "skip_tf_privacy_import", True, raising=False)
    before = set(sys.modules)
    yield pytest.importorskip(
        "tensorflow_privacy.privacy.analysis.compute_dp_sgd_privacy_lib"
    ).compute_dp_sgd_privacy
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "tensorflow_privacy":
            del sys.modules[name]


@pytest.mark.parametrize(
    ("noise_multiplier", "epochs", "gap"),
    # Rényi divergences are loosest for little noise and few steps.
    [(0.8, 3, 1.6), (1.1, 30, 1.2), (3.0, 100, 1.2)],
)
def test_agrees_with_tensorflow_privacy(
    noise_multiplier, epochs, gap, poisson, compute_dp_sgd_privacy
):
    theirs, _ = compute_dp_sgd_privacy(
        60_000, 256, noise_multiplier, epochs, 1e-6
    )
    plan = PrivacyPlan(
        noise_multiplier=noise_multiplier,
        delta=1e-6,
        sampling=poisson(
            num_units=60_000,
            sampling_probability=256 / 60_000,
            num_compositions=math.ceil(epochs * 60_000 / 256),
        ),
    )
    orders = [1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5]
    orders += [*range(5, 64), 128, 256, 512]
    same = dp_accounting.rdp.RdpAccountant(orders).compose(plan.event())
    assert same.get_epsilon(1e-6) == pytest.approx(theirs, rel=1e-9)
    assert plan.epsilon <= theirs <= gap * plan.epsilon


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon is 0.0, expected a finite"),
        ({"epsilon": -1.0}, ValueError, "epsilon is -1.0"),
        ({"epsilon": math.nan}, ValueError, "epsilon is nan"),
        ({"epsilon": math.inf}, ValueError, "epsilon is inf"),
        ({"epsilon": 1e9}, ValueError, "below 500"),
        ({"epsilon": "3"}, TypeError, "epsilon is '3'"),
        ({"epsilon": True}, TypeError, "epsilon is True"),
        ({"epsilon": 1.0, "delta": 0.0}, ValueError, "delta is 0.0"),
        ({"epsilon": 1.0, "delta": 1.0}, ValueError, "delta is 1.0"),
        ({"epsilon": 1.0, "delta": -1e-9}, ValueError, "delta is -1e-09"),
        ({"epsilon": 1.0, "delta": math.nan}, ValueError, "delta is nan"),
        ({"epsilon": 1.0, "delta": None}, TypeError, "delta is None"),
        ({"noise_multiplier": 0.0}, ValueError, "leave out the plan"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier is -1.0"),
        ({"noise_multiplier": math.nan}, ValueError, "multiplier is nan"),
        ({"noise_multiplier": math.inf}, ValueError, "multiplier is inf"),
        ({"noise_multiplier": 1e-200}, ValueError, "at least 0.001"),
        ({}, ValueError, "exactly one of them"),
        (
            {"epsilon": 1.0, "noise_multiplier": 1.0},
            ValueError,
            "exactly one of them",
        ),
    ],
)
def test_bad_numbers(arguments, error, words, poisson):
    with pytest.raises(error, match=words):
        PrivacyPlan(**{"delta": 1e-7, "sampling": poisson()} | arguments)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"sampling_probability": 0.0}, "expected a number in"),
        ({"sampling_probability": 1.5}, "sampling_probability is 1.5"),
        ({"sampling_probability": math.nan}, "sampling_probability is nan"),
        ({"composition_unit": "epoch"}, "expected 'step' or 'pass'"),
        ({"num_compositions": 0}, "num_compositions is 0"),
        ({"examples_per_unit": 0}, "examples_per_unit is 0"),
        ({"examples_per_unit": 2.0}, "examples_per_unit is 2.0"),
        ({"overflow_probability": math.nan}, "overflow_probability is nan"),
        ({"overflow_probability": -0.1}, "overflow_probability is -0.1"),
        ({"neighbouring_relation": "replace_one"}, "twice the clip norm"),
        ({"neighbouring_relation": "replace_all"}, "expected one of"),
        ({"neighbouring_relation": "zero_out"}, "no amplification"),
        ({"overflow_probability": 1e-3}, "Raise max_batch_size"),
    ],
)
@pytest.mark.parametrize("given", ["epsilon", "noise_multiplier"])
def test_bad_samplings(facts, words, given, poisson):
    with pytest.raises(ValueError, match=words):
        PrivacyPlan(delta=1e-7, sampling=poisson(**facts), **{given: 1.0})


def test_a_sampling_is_needed(poisson):
    assert isinstance(poisson(), Sampling)
    with pytest.raises(TypeError, match="expected a PoissonSampling"):
        PrivacyPlan(epsilon=1.0, delta=1e-7, sampling=4096)


@pytest.mark.parametrize("delta", [1e-3, 2e-3])
def test_large_delta_warns_where_the_plan_is_made(delta, poisson):
    with pytest.warns(PrivacyWarning, match="publishing one random") as record:
        PrivacyPlan(
            noise_multiplier=1.0,
            delta=delta,
            sampling=poisson(num_units=1000),
        )
    assert record[0].filename == __file__


@pytest.mark.parametrize("count", [-1, 1.5, "1", True, None])
def test_bad_counts(count, poisson):
    plan = PrivacyPlan(noise_multiplier=1.0, delta=1e-7, sampling=poisson())
    with pytest.raises((TypeError, ValueError), match="compositions is"):
        plan.epsilon_spent(count)


def test_numpy_numbers_are_numbers(poisson):
    plan = PrivacyPlan(
        noise_multiplier=np.float32(1.5),
        delta=np.float64(1e-7),
        sampling=poisson(),
    )
    assert type(plan.noise_multiplier) is float
    assert type(plan.delta) is float
    assert type(plan.epsilon) is float
    assert plan.epsilon_spent(np.int64(1000)) == plan.epsilon


def test_plans_are_values(poisson):
    plan = PrivacyPlan(noise_multiplier=1.0, delta=1e-7, sampling=poisson())
    again = PrivacyPlan(noise_multiplier=1.0, delta=1e-7, sampling=poisson())
    assert plan == again
    assert hash(plan) == hash(again)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.epsilon = 5.0
    with pytest.raises(TypeError):
        PrivacyPlan(3.0, 1e-7, poisson())


@pytest.mark.parametrize("given", ["epsilon", "noise_multiplier"])
def test_round_trip(given, poisson):
    plan = PrivacyPlan(delta=1e-7, sampling=poisson(), **{given: 1.2})
    config = json.loads(json.dumps(plan.get_config()))
    sampling = poisson(**config["sampling"]["config"])
    assert PrivacyPlan.from_config(config, sampling=sampling) == plan
    config["sampling"] = poisson()
    assert PrivacyPlan.from_config(config) == plan


def test_a_saved_plan_cannot_promise_too_much(poisson):
    plan = PrivacyPlan(epsilon=1.2, delta=1e-7, sampling=poisson())
    config = plan.get_config() | {"sampling": poisson(), "epsilon": 0.5}
    with pytest.warns(PrivacyWarning, match="saved with epsilon=0.5"):
        restored = PrivacyPlan.from_config(config)
    assert restored.noise_multiplier == plan.noise_multiplier
    assert restored.epsilon == pytest.approx(1.2, rel=1e-3)


def test_a_plan_is_restored_with_its_own_sampling_only(poisson):
    plan = PrivacyPlan(noise_multiplier=1.0, delta=1e-7, sampling=poisson())
    other = poisson(num_compositions=999)
    for sampling in (None, other):
        with pytest.raises(ValueError, match="expected the plan's own"):
            PrivacyPlan.from_config(plan.get_config(), sampling=sampling)
