"""The model of a selection claims what the selection cost."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers import small_run

keras = tf.keras
RUN = small_run.plan()
PLAN = tsdp.SelectionPlan(run=RUN, delta=1e-2, mean_runs=2)


def selected(plan: tsdp.SelectionPlan = PLAN, steps: int = 3):
    def train(run):
        model = small_run.model(RUN)
        small_run.train(model, steps, shuffle=False)
        return model, {"rate": 0.1}

    return tsdp.private_selection(train, lambda _: 0.0, plan)


def test_its_figure_is_the_selections(tmp_path: pathlib.Path) -> None:
    best = selected()
    model, _ = best.value
    statement = model.optimizer.privacy_statement()
    assert RUN.epsilon < PLAN.epsilon
    for epsilon in (statement.epsilon, statement.epsilon_spent):
        assert epsilon == PLAN.epsilon
    assert statement.delta == PLAN.delta and statement.private
    words = " ".join(str(statement).split())
    assert "selected among several runs" in words
    assert f"{RUN.epsilon:.4g}" not in words.split("Mechanism:")[0]
    small_run.save(model, "keras", tmp_path)
    loaded = small_run.load("keras", tmp_path)
    again = loaded.optimizer.privacy_statement()
    assert (again.epsilon, again.epsilon_spent) == (PLAN.epsilon,) * 2
    assert again.delta == PLAN.delta
    assert again.selected == statement.selected
    # Who compiles it again is told of the selection.
    model.compile(
        tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), RUN), loss="mse"
    )
    with pytest.warns(tsdp.PrivacyWarning, match="3 steps, selected among"):
        small_run.train(model, 1, shuffle=False)
    # Who goes on pays for it, too.
    small_run.train(loaded, 1, shuffle=False)
    after = loaded.optimizer.privacy_statement()
    assert after.epsilon == PLAN.epsilon + RUN.epsilon
    assert after.delta == PLAN.delta + RUN.delta
    assert "Afterwards 1 more" in " ".join(str(after).split())


def test_all_are_told_where_all_are_revealed() -> None:
    plan = dataclasses.replace(PLAN, reveal_all=True)
    best = selected(plan, steps=1)
    told = [model.optimizer.privacy_statement() for (model, _), _ in best.runs]
    assert [one.epsilon for one in told] == [plan.epsilon] * 2


def test_other_models_claim_their_own() -> None:
    model = small_run.model(RUN)
    statement = model.optimizer.privacy_statement()
    assert statement.epsilon == pytest.approx(RUN.epsilon)
    assert statement.selected == ""


@pytest.mark.parametrize(
    ("plan", "others", "words"),
    [
        (PLAN, {"seed": 7}, "noise has a fixed seed"),
        (
            PLAN,
            {
                "mechanism": tsdp.FrequencySelection.private(
                    {"embedding": [1, 2, 3]},
                    table_rows={"embedding": 10},
                    top=1,
                    epsilon=20.0,
                    delta=1e-3,
                )
            },
            "spent privacy before training",
        ),
        (
            tsdp.SelectionPlan(
                run=(RUN.epsilon / 2, RUN.delta), delta=1e-2, mean_runs=2
            ),
            {},
            "Expected no more than that",
        ),
    ],
    ids=["seed", "spent before", "larger"],
)
def test_runs_that_cost_more_are_refused(plan, others, words) -> None:
    def train(run):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(
            tsdp.DPSparseOptimizer(keras.optimizers.SGD(), RUN, **others),
            loss="mse",
        )
        return model

    with pytest.raises(ValueError, match=words):
        tsdp.private_selection(train, lambda _: 0.0, plan)
