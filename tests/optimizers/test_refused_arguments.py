"""Arguments that make no sense are refused where they are given."""

from __future__ import annotations

import importlib
import math
from typing import Any

import dp_accounting
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.model_cases import KERAS_3

NAN, INF = math.nan, math.inf
SAMPLING = tsdp.EpochSampling(num_examples=100, batch_size=10, epochs=1)
PLAN = tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-5, sampling=SAMPLING)
NO_PLAN = {"noise_multiplier": 1.0, "expected_batch_size": 8}


def made(inner: Any = None, **options: Any) -> Any:
    inner = tf.keras.optimizers.SGD(0.1) if inner is None else inner
    return tsdp.DPSparseOptimizer(inner, **options)


def test_what_is_right_is_taken() -> None:
    assert made(**NO_PLAN).noise_multiplier == 1.0
    assert made(plan=PLAN).plan == PLAN


@pytest.mark.parametrize("value", [0, 0.0, -1.0, NAN, INF, -INF, True, "1"])
@pytest.mark.parametrize("name", ["clip_norm", "expected_batch_size"])
def test_what_must_be_above_zero(name: str, value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        made(**{**NO_PLAN, name: value})
    assert f"{name}={value!r} was given" in str(caught.value)
    assert "expected a finite number above 0" in str(caught.value)


@pytest.mark.parametrize("value", [-0.1, NAN, INF, True, "1"])
def test_noise_multiplier(value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        made(**{**NO_PLAN, "noise_multiplier": value})
    assert f"noise_multiplier={value!r} was given" in str(caught.value)
    assert "expected a finite number at least 0" in str(caught.value)


@pytest.mark.parametrize("name", NO_PLAN)
def test_a_plan_and_what_it_fixes(name: str) -> None:
    with pytest.raises(ValueError, match=r"together with.*leave them out"):
        made(plan=PLAN, **{name: NO_PLAN[name]})


@pytest.mark.parametrize(
    ("noise", "mechanism"),
    [("laplace", tsdp.Gaussian()), ("gaussian", tsdp.Laplace())],
)
def test_noise_that_the_plan_does_not_account_for(
    noise: str, mechanism: Any
) -> None:
    plan = tsdp.PrivacyPlan(
        noise_multiplier=1.0, delta=1e-5, sampling=SAMPLING, noise=noise
    )
    with pytest.raises(ValueError) as caught:
        made(plan=plan, mechanism=mechanism)
    family = mechanism.noise_family
    assert f"The plan accounts for {noise} noise" in str(caught.value)
    assert f"make the plan with noise='{family}'" in str(caught.value)


class Gaussian(tsdp.Gaussian):
    """Says that a release costs two."""

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        return dp_accounting.SelfComposedDpEvent(
            super().event(noise_multiplier), 2
        )


def test_a_mechanism_that_costs_more_than_its_noise() -> None:
    with pytest.raises(ValueError, match="at a noise multiplier of 1"):
        made(plan=PLAN, mechanism=Gaussian())


class Projection(tsdp.Projection):
    """Another one of the name."""


def test_a_mechanism_of_the_same_name_is_not_taken_for_ours() -> None:
    optimizer = made(plan=PLAN, mechanism=Projection())
    with pytest.raises(ValueError, match="has a Projection of tests"):
        type(optimizer).from_config(optimizer.get_config())


def test_a_seed_is_not_forgotten_by_saving() -> None:
    optimizer = made(plan=PLAN, seed=1)
    for _ in range(2):
        optimizer = type(optimizer).from_config(optimizer.get_config())
        assert "seed" in str(optimizer.privacy_statement().reasons)
    assert not optimizer.private_step.keys.seeded  # Noise is fresh again.


def test_pure_plans_forbid_fixed_sizes() -> None:
    plan = tsdp.PrivacyPlan(
        epsilon=2.0, delta=0.0, sampling=SAMPLING, noise="laplace"
    )
    for given, failure in [
        ({"plan": plan, "mechanism": tsdp.Laplace()}, 0.0),
        ({"plan": PLAN}, 2.0**-100),
        (NO_PLAN, 2.0**-100),
    ]:
        facts = made(**given).private_step.public_facts([], [], [])
        assert facts.failure_probability == failure


@pytest.mark.parametrize("given", [(), *((name,) for name in NO_PLAN)])
def test_neither_a_plan_nor_all_that_replaces_it(given: tuple[str]) -> None:
    with pytest.raises(ValueError) as caught:
        made(**{name: NO_PLAN[name] for name in given})
    assert "Expected a PrivacyPlan, or both" in str(caught.value)
    for name in NO_PLAN:
        value = NO_PLAN[name] if name in given else None
        assert f"{name}={value!r}" in str(caught.value)


@pytest.mark.parametrize("plan", [SAMPLING, 3.0, {"epsilon": 1.0}])
def test_a_plan_that_is_none(plan: Any) -> None:
    with pytest.raises(TypeError) as caught:
        made(plan=plan)
    assert f"plan is a {type(plan).__name__}" in str(caught.value)
    assert "tf_sparse_dp.PrivacyPlan(epsilon=" in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_examples_per_unit(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        made(**NO_PLAN, examples_per_unit=value)
    assert f"examples_per_unit is {value!r}" in str(caught.value)


@pytest.mark.parametrize(
    "sampling",
    [
        SAMPLING,
        tsdp.EpochSampling(
            num_examples=90, batch_size=9, epochs=1, examples_per_unit=3
        ),
        tsdp.PoissonSampling(num_examples=100, batch_size=10, steps=1),
        tsdp.UserSampling(
            num_users=90, users_per_batch=9, examples_per_user=3, steps=1
        ),
    ],
    ids=lambda s: f"{type(s).__name__} {s.examples_per_unit}",
)
def test_the_plan_decides_what_a_unit_is(sampling: Any) -> None:
    plan = tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-5, sampling=sampling)
    size = sampling.examples_per_unit
    for given in ({}, {"examples_per_unit": size}):
        assert made(plan=plan, **given).get_config()["examples_per_unit"] == (
            size
        )
    for other in {1, 2, 3} - {size}:
        with pytest.raises(ValueError) as caught:
            made(plan=plan, examples_per_unit=other)
        for words in (
            f"examples_per_unit={other} was given",
            f"{type(sampling).__name__} has {size}",
            "leave it out",
            "UserSampling",
        ):
            assert words in str(caught.value)


@pytest.mark.parametrize("value", ["none", "average", None, "MEAN"])
def test_loss_reduction(value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        made(**NO_PLAN, loss_reduction=value)
    assert f"loss_reduction={value!r} was given" in str(caught.value)
    assert "('mean', 'sum')" in str(caught.value)


@pytest.mark.parametrize("value", ["gaussian", None, tsdp.Gaussian])
def test_mechanism(value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        made(**NO_PLAN, mechanism=value)
    assert f"mechanism={value!r} was given" in str(caught.value)
    assert "tf_sparse_dp.Gaussian()" in str(caught.value)


@pytest.mark.parametrize(
    "inner", ["adagrad", None, 0.1, tf.keras.optimizers.SGD]
)
def test_an_inner_optimizer_that_is_none(inner: Any) -> None:
    with pytest.raises(TypeError) as caught:
        tsdp.DPSparseOptimizer(inner, **NO_PLAN)
    assert f"inner_optimizer is {inner!r}" in str(caught.value)
    assert "tf.keras.optimizers.Adagrad(0.1)" in str(caught.value)


def test_a_private_optimizer_inside_another() -> None:
    with pytest.raises(TypeError) as caught:
        made(made(**NO_PLAN), **NO_PLAN)
    assert "DPSparseOptimizer" in str(caught.value)


def test_an_inner_optimizer_of_the_other_keras() -> None:
    other = importlib.import_module("tf_keras" if KERAS_3 else "keras")
    running = "Keras 3" if KERAS_3 else "tf-keras"
    with pytest.raises(TypeError) as caught:
        made(other.optimizers.Adagrad(0.1), **NO_PLAN)
    for text in (
        f"Adagrad of {other.__name__}",
        f"tf.keras is {running}",
        "TF_USE_LEGACY_KERAS",
    ):
        assert text in str(caught.value)
