"""Statements claim what holds, and say so when nothing does."""

from __future__ import annotations

import json
import math

import pytest

from tf_sparse_dp.accounting import PrivacyPlan, privacy_statement


@pytest.fixture
def plan(poisson):
    return PrivacyPlan(
        epsilon=3.0, delta=1e-7, sampling=poisson(num_compositions=200)
    )


def state(plan, **changes):
    arguments = {
        "plan": plan,
        "mechanism": "Gaussian noise on every weight",
        "clip_norm": 1.5,
        "noise_multiplier": plan.noise_multiplier if plan else 1.0,
        "compositions": 50,
    }
    return privacy_statement(**arguments | changes)


def test_a_private_run(plan):
    statement = state(plan)
    assert statement.private
    assert statement.epsilon == 3.0
    assert statement.delta == 1e-7
    assert statement.epsilon_spent == plan.epsilon_spent(50)
    assert (statement.compositions, statement.compositions_left) == (50, 150)
    text = " ".join(str(statement).split())
    for words in (
        "Differentially private: epsilon = ",
        "and 3 at the end of the plan, at delta = 1e-07",
        "with and without any one example",
        "Gaussian noise on every weight",
        "L2 norm of 1.5",
        "Each example joins each batch by its own coin.",
        "50 steps taken, 150 left in the plan",
        "Shuffled batches do not qualify",
        "hyper-parameters",
        "metrics",
        "Preprocessing",
    ):
        assert words in text
    assert max(len(line) for line in str(statement).splitlines()) <= 78


def test_pure_and_laplace(passes):
    plan = PrivacyPlan(
        epsilon=2.0, delta=0.0, sampling=passes(4), noise="laplace"
    )
    statement = state(plan, noise="laplace", fixed_sizes=True, compositions=1)
    assert statement.private
    assert (statement.delta, statement.failure_charge) == (0.0, 0.0)
    text = " ".join(str(statement).split())
    for words in (
        "epsilon = 0.5 so far, and 2 at the end of the plan, at delta = 0 "
        "(pure differential privacy)",
        "an L1 norm of 1.5 times the square root",
        "each pass's epsilon is added",
    ):
        assert words in text
    assert "L2" not in text
    assert "Fixed sizes" not in text


@pytest.mark.parametrize("fixed_sizes", [False, True])
def test_fixed_sizes_are_named(plan, fixed_sizes):
    statement = state(plan, fixed_sizes=fixed_sizes)
    charge = 200 * (1 + math.exp(3.0)) * 2.0**-100
    assert statement.failure_charge == pytest.approx(charge * fixed_sizes)
    assert ("for which 3.4e-27 of delta" in str(statement)) == fixed_sizes


def test_shown_epsilon_is_never_below_the_one_spent(plan):
    for compositions in (1, 17, 50, 199):
        statement = state(plan, compositions=compositions)
        words = str(statement).split("epsilon = ")[1].split()[0]
        assert float(words) >= statement.epsilon_spent
        assert float(words) <= statement.epsilon_spent * 1.001


def test_passes_are_explained(passes):
    plan = PrivacyPlan(epsilon=3.0, delta=1e-7, sampling=passes(4))
    text = " ".join(str(state(plan, compositions=1)).split())
    assert "1 passes started" not in text
    assert "1 pass started, 3 left" in text
    assert "zero-out" in text
    assert "at most one batch of a pass" in text


def test_before_the_first_step(plan):
    statement = state(plan, compositions=0)
    assert statement.private
    assert statement.epsilon_spent == 0.0
    assert "epsilon = 0 so far" in str(statement)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise multiplier is 0"),
        ({"noise_multiplier": 0.1}, "is below the plan's"),
        ({"seeded": True}, "The seed is fixed"),
        ({"compositions": 201}, "1 more"),
        ({"noise": "laplace"}, "has laplace noise, but the plan accounts"),
    ],
)
def test_not_private(plan, changes, words):
    statement = state(plan, **changes)
    assert not statement.private
    text = " ".join(str(statement).split())
    assert "NOT PRIVATE" in text
    assert words in text
    assert "Differentially private" not in text
    if "noise_multiplier" in changes or "noise" in changes:
        assert statement.epsilon is statement.epsilon_spent is None
        assert "epsilon =" not in text


def test_more_than_planned_is_counted(plan):
    statement = state(plan, compositions=400)
    assert statement.compositions_left == 0
    assert statement.epsilon_spent > 3.0


@pytest.mark.parametrize("noise_multiplier", [0.0, 1.0])
def test_without_a_plan(noise_multiplier):
    statement = state(None, noise_multiplier=noise_multiplier)
    assert not statement.private
    assert statement.epsilon is statement.delta is None
    assert "NOT PRIVATE" in str(statement)
    assert "no end is enforced" in str(statement)


def test_what_was_spent_before_adds_up(plan, passes):
    zeroed = PrivacyPlan(epsilon=3.0, delta=1e-7, sampling=passes(50))
    for one in (plan, zeroed):
        statement = state(one, spent_before=(0.25, 2e-7))
        assert statement.private
        assert statement.epsilon == 3.25
        assert statement.epsilon_spent == 0.25 + one.epsilon_spent(50)
        assert statement.delta == pytest.approx(3e-7)
        text = " ".join(str(statement).split())
        assert "3.25 at the end of the plan" in text
        assert "epsilon = 0.25 at delta = 2e-07 was spent" in text
        assert "at delta = 3e-07." in text
        assert json.loads(json.dumps(statement.as_dict()))["spent_before"] == [
            0.25,
            2e-7,
        ]
    assert state(plan, spent_before=(0.25, 0.0), compositions=0).epsilon_spent
    assert "before training" not in str(state(plan))


def test_further_assumptions(plan):
    statement = state(plan, extra_assumptions=("Rows are public.",))
    assert "- Rows are public." in str(statement)


@pytest.fixture
def users_plan(poisson):
    sampling = poisson(
        num_units=5000,
        examples_per_unit=8,
        unit="user",
        num_compositions=200,
        description="Each user joins each batch by a coin of their own.",
    )
    return PrivacyPlan(epsilon=3.0, delta=1e-7, sampling=sampling)


def test_users(users_plan):
    statement = state(users_plan, examples_per_unit=8)
    assert statement.private
    assert (statement.unit, statement.examples_per_unit) == ("user", 8)
    text = " ".join(str(statement).split())
    for words in (
        "with and without any one user with all examples of that user (add",
        "contributions of one user, the sum over at most 8 examples in a batch",
        "Each user joins each batch",
        "No more than 5000 users are in the data",
        "Every 8 consecutive rows of a batch",
        "each user independently",
    ):
        assert words in text
    assert "one example" not in text
    assert max(len(line) for line in str(statement).splitlines()) <= 78


def test_users_with_one_example_each(poisson):
    sampling = poisson(unit="user", num_compositions=200)
    plan = PrivacyPlan(epsilon=3.0, delta=1e-7, sampling=sampling)
    text = " ".join(str(state(plan)).split())
    assert "any one user with all examples of that user" in text
    assert "contributions of one user clipped" in text
    assert "consecutive rows" not in text


@pytest.mark.parametrize("size", [1, 5])
def test_units_that_the_plan_does_not_have(users_plan, size):
    statement = state(users_plan, examples_per_unit=size)
    assert not statement.private
    assert statement.epsilon is None
    text = " ".join(str(statement).split())
    assert f"{size} consecutive examples were clipped as one" in text
    assert "sampling 8 belong to one user" in text


def test_units_without_a_plan():
    assert state(None).unit == "example"
    statement = state(None, examples_per_unit=3)
    assert statement.unit == "unit"
    assert "one unit, the sum over at most 3 examples" in " ".join(
        str(statement).split()
    )


def test_as_data(plan):
    data = json.loads(json.dumps(state(plan, seeded=True).as_dict()))
    assert data["private"] is False
    assert data["seeded"] is True
    assert data["epsilon"] == 3.0
    assert data["accountant"] == "PLD"
    assert len(data["not_covered"]) > 3
