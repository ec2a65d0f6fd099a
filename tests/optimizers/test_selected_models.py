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


@pytest.mark.once
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


def few(plan: tsdp.SelectionPlan, train, runs: int = 1):
    """A selection among so many runs."""
    fixed = dataclasses.replace(plan, reveal_all=True, mean_runs=runs)
    return tsdp.private_selection(train, lambda _: 0.0, fixed)


def test_a_second_selection_does_not_forget_the_first() -> None:
    (model, _), _ = few(PLAN, lambda _: (small_run.model(RUN), 0)).runs[0]
    with pytest.raises(ValueError, match="earlier selection chose"):
        few(PLAN, lambda _: model)


@pytest.mark.once
def test_all_trainings_of_a_run_count() -> None:
    def models(make, number=3):
        return lambda _: [small_run.model(make()) for _ in range(number)]

    with pytest.raises(ValueError, match="3 models with a budget of their own"):
        few(PLAN, models(lambda: RUN))
    pair = (2.5 * RUN.epsilon, 2.5 * RUN.delta)
    of_pairs = tsdp.SelectionPlan(run=pair, delta=1e-2, mean_runs=2)
    few(of_pairs, models(lambda: RUN, 2))
    with pytest.raises(ValueError, match="Expected no more than that"):
        few(of_pairs, models(lambda: RUN))

    def alternating(run):  # One optimizer may train several models.
        model, other = small_run.model(RUN), small_run.model(RUN)
        other.optimizer = model.optimizer
        return [model, other]

    few(PLAN, alternating)


@pytest.mark.once
def test_ensembles_may_share_a_filter() -> None:
    def budget():
        return tsdp.RenyiFilter(epsilon=2.0, delta=1e-6)

    def model(paid):
        made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(),
            paid,
            sampling=RUN.sampling,
            noise_multiplier=4.0,
        )
        made.compile(optimizer, loss="mse")
        return made

    plan = tsdp.SelectionPlan(run=budget(), delta=1e-2, mean_runs=2)
    one = budget()
    few(plan, lambda _: [model(one), model(one)])
    with pytest.raises(ValueError, match="2 models with a budget of their own"):
        few(plan, lambda _: [model(budget()), model(budget())])


def test_runs_start_anew(tmp_path: pathlib.Path) -> None:
    there: list[bool] = []

    def resumed(run):
        model = small_run.model(RUN)
        if there:
            model = small_run.load("keras", tmp_path)
        small_run.train(model, 1, shuffle=False)
        small_run.save(model, "keras", tmp_path)
        there.append(True)
        return model

    with pytest.raises(ValueError, match="began before the run"):
        few(PLAN, resumed, runs=2)
    with pytest.raises(ValueError, match="began before the run"):
        few(PLAN, resumed)  # From what the last selection left.
    made = small_run.model(RUN)
    with pytest.raises(ValueError, match="began before the run"):
        few(PLAN, lambda _: made)

    def saved_and_loaded(run):
        folder = pathlib.Path(run.directory)
        model = small_run.model(RUN)
        small_run.train(model, 1, shuffle=False)
        small_run.save(model, "keras", folder)
        return small_run.load("keras", folder)

    few(PLAN, saved_and_loaded)


@pytest.mark.once
@pytest.mark.filterwarnings("ignore::tf_sparse_dp.PrivacyWarning")
def test_weights_are_trained_by_one_optimizer() -> None:
    def twice(run):
        model = small_run.model(RUN)
        small_run.train(model, 1, shuffle=False)
        model.compile(
            tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), RUN), loss="mse"
        )
        small_run.train(model, 1, shuffle=False)
        return model

    with pytest.raises(ValueError, match="another private optimizer has"):
        few(PLAN, twice)
