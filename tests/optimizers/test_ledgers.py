"""What was released is written down: with the model, and in a file before."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers import small_run
from tests.optimizers.test_state import FORMATS

keras = tf.keras


def model(plan: Any = None, **options: Any) -> Any:
    result = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), plan or small_run.plan(), **options
    )
    result.compile(optimizer=optimizer, loss="mse")
    return result


def train(trained: Any, steps: int, reserve: int = 4, **options: Any) -> None:
    callbacks = [tsdp.PrivacyBudget(reserve=reserve)]
    small_run.train(
        trained, steps, callbacks=[*callbacks, *options.pop("callbacks", [])]
    )


def other_plan() -> tsdp.PrivacyPlan:
    return tsdp.PrivacyPlan(
        noise_multiplier=2.0, delta=1e-3, sampling=small_run.poisson()
    )


def load(form: str, folder: pathlib.Path, into: Any) -> None:
    small_run.load(form, folder, into=into)


@pytest.mark.parametrize("form", FORMATS)
def test_the_ledger_is_saved_with_the_model(
    form: str, tmp_path: pathlib.Path
) -> None:
    trained = model()
    train(trained, 3)
    small_run.save(trained, form, tmp_path)
    if form in small_run.WHOLE_MODELS:
        loaded = small_run.load(form, tmp_path)
    else:
        loaded = model()
        load(form, tmp_path, loaded)
    ledger = loaded.optimizer.ledger()
    assert ledger.entries == [(small_run.plan().step_event, 3)]
    assert ledger.get_epsilon(1e-3) == small_run.plan().epsilon_spent(3)
    train(loaded, 2)
    ledger = loaded.optimizer.ledger()
    assert ledger.num_events == 5
    again = tsdp.Ledger.from_json(ledger.to_json())
    assert again.get_epsilon(1e-3) == small_run.plan().epsilon_spent(5)


@pytest.mark.parametrize("form", ["weights", "checkpoint"])
def test_state_of_another_plan_is_refused(
    form: str, tmp_path: pathlib.Path
) -> None:
    trained = model()
    train(trained, 3)
    small_run.save(trained, form, tmp_path)
    other = model(other_plan())
    # Keras may turn the error into a warning; the step refuses all the same.
    with pytest.raises(
        (tsdp.PrivacyStateError, ValueError), match="noise_multiplier is 2"
    ):
        load(form, tmp_path, other)
        train(other, 1)
    with pytest.raises(tsdp.PrivacyStateError, match="noise_multiplier is 2"):
        other.optimizer.privacy_statement()


@pytest.mark.once
def test_a_changed_ledger_is_refused() -> None:
    trained = model()
    train(trained, 3)
    config = trained.optimizer.get_config()
    (saved,) = json.loads(config["ledger"])
    ledger = json.loads(saved)
    ledger["runs"][0]["entries"][0][1] = 1
    config["ledger"] = json.dumps([json.dumps(ledger)])
    with pytest.raises(tsdp.PrivacyStateError, match="was changed"):
        tsdp.DPSparseOptimizer.from_config(config)


@pytest.mark.once
def test_both_of_two_that_go_on_from_one_state_count(
    tmp_path: pathlib.Path,
) -> None:
    trained = model()
    train(trained, 2)
    small_run.save(trained, "weights", tmp_path)
    ledgers = []
    for steps in (1, 3):
        resumed = model()
        load("weights", tmp_path, resumed)
        train(resumed, steps)
        ledgers.append(resumed.optimizer.ledger())
    merged = ledgers[0].merge(ledgers[1]).merge(trained.optimizer.ledger())
    assert merged.num_events == 2 + 1 + 3


@pytest.mark.once
def test_a_seed_is_remembered(tmp_path: pathlib.Path) -> None:
    trained = model(seed=1)
    train(trained, 1)
    small_run.save(trained, "checkpoint", tmp_path)
    fresh = model()
    load("checkpoint", tmp_path, fresh)
    assert not fresh.optimizer.privacy_statement().private


def test_a_run_without_a_plan_is_not_one_of_a_plan(
    tmp_path: pathlib.Path,
) -> None:
    loose = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    loose.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=1.0,
            expected_batch_size=8.0,
        ),
        loss="mse",
    )
    small_run.train(loose, 2)
    small_run.save(loose, "weights", tmp_path)
    planned = model()
    with pytest.raises(
        (tsdp.PrivacyStateError, ValueError), match="belongs to something"
    ):
        load("weights", tmp_path, planned)
        train(planned, 1)


# The file that is written before.


class Crash(keras.callbacks.Callback):
    """Ends training as an exception would, without settling."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 == self.step:
            raise KeyboardInterrupt


@pytest.mark.once
def test_steps_are_on_disk_before_they_are_taken(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    trained = model(ledger=path)
    with pytest.raises(KeyboardInterrupt):
        train(trained, 8, callbacks=[Crash(5)])
    assert trained.optimizer.compositions_spent == 5
    # Another process finds both blocks of 4 charged.
    resumed = model(ledger=path)
    assert resumed.optimizer.compositions_spent == 8
    assert resumed.optimizer.compositions_left == small_run.STEPS - 8
    # The first goes on with what it has paid for, and gives nothing twice.
    train(trained, 3)
    assert trained.optimizer.compositions_spent == 8
    assert model(ledger=path).optimizer.compositions_spent == 8


@pytest.mark.once
def test_what_was_not_used_is_given_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ledger.jsonl"
    train(model(ledger=path), 5)
    resumed = model(ledger=path)
    assert resumed.optimizer.compositions_spent == 5
    train(resumed, 3)
    assert model(ledger=path).optimizer.compositions_spent == 8


@pytest.mark.once
def test_two_runs_share_the_steps_of_a_plan(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first, second = model(ledger=path), model(ledger=path)
    train(first, 7)
    train(second, 7)  # There are 10.
    for trained, taken in ((first, 7), (second, 3)):
        assert int(trained.optimizer.iterations.numpy()) == taken
        assert not trained.optimizer.can_go_on
        # Both say what was released in all.
        assert trained.optimizer.compositions_spent == 10
        assert trained.optimizer.privacy_statement().compositions == 10
        assert trained.optimizer.ledger().num_events == 10


@pytest.mark.once
def test_a_state_that_the_file_knows_is_not_charged_again(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    trained = model(ledger=path)
    train(trained, 4)
    small_run.save(trained, "weights", tmp_path)
    resumed = model(ledger=path)
    load("weights", tmp_path, resumed)
    assert resumed.optimizer.compositions_spent == 4
    train(resumed, 2)
    assert model(ledger=path).optimizer.compositions_spent == 6
    # One that it does not know is.
    foreign = model(ledger=tmp_path / "other.jsonl")
    load("weights", tmp_path, foreign)
    assert foreign.optimizer.compositions_spent == 4
    again = model(ledger=tmp_path / "other.jsonl")
    assert again.optimizer.compositions_spent == 4


@pytest.mark.parametrize(
    "form", [form for form in FORMATS if form in small_run.WHOLE_MODELS]
)
def test_a_model_that_is_loaded_whole_goes_on_with_the_file(
    form: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    trained = model(ledger=path)
    train(trained, 2)
    small_run.save(trained, form, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(trained, 4, callbacks=[Crash(2)])
    loaded = small_run.load(form, tmp_path)
    assert loaded.optimizer.compositions_spent == 2 + 4
    assert loaded.optimizer.ledger().num_events == 2 + 4
    train(loaded, 1)
    assert model(ledger=path).optimizer.compositions_spent == 7

    path.rename(tmp_path / "moved.jsonl")
    lost = small_run.load(form, tmp_path)
    assert np.isfinite(lost.predict(small_run.FEATURES, verbose=0)).all()
    for refused in (lost.optimizer.privacy_statement, lambda: train(lost, 1)):
        with pytest.raises(tsdp.PrivacyStateError, match="which is not there"):
            refused()


@pytest.mark.once
def test_a_file_of_another_plan_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ledger.jsonl"
    model(ledger=path)
    with pytest.raises(tsdp.PrivacyStateError, match="noise_multiplier is 2"):
        model(other_plan(), ledger=path)


@pytest.mark.once
def test_a_filter_has_a_file_of_its_own(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ledger.jsonl"
    options = {"sampling": small_run.poisson(), "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match="pass SharedBudget"):
        model(tsdp.RenyiFilter(epsilon=4.0, delta=1e-2), ledger=path, **options)

    def made() -> Any:
        budget = tsdp.RenyiFilter(epsilon=4.0, delta=1e-2)
        return model(tsdp.SharedBudget(path, budget), **options)

    trained = made()
    with pytest.raises(KeyboardInterrupt):
        train(trained, 8, callbacks=[Crash(5)])
    small_run.save(trained, "weights", tmp_path)
    resumed = made()
    before = resumed.optimizer.budget_left
    load("weights", tmp_path, resumed)
    assert resumed.optimizer.compositions_spent == 5
    assert resumed.optimizer.budget_left == before  # The file has 8.
    train(resumed, 1)
    assert resumed.optimizer.compositions_spent == 6


def exhausted() -> Any:
    """A run that spent what a tuning run had left of one filter."""
    sampling = small_run.poisson(40)
    budget = tsdp.RenyiFilter(epsilon=2.0, delta=1e-2)
    options = {"sampling": sampling, "noise_multiplier": 1.0}
    left = budget.affordable(
        tsdp.PrivacyPlan(
            noise_multiplier=1.0, delta=1e-2, sampling=sampling
        ).step_event,
        40,
    )
    tuning, trained = model(budget, **options), model(budget, **options)
    train(tuning, left - 2)
    small_run.train(trained, 9, callbacks=[tsdp.PrivacyBudget()])
    assert trained.optimizer.compositions_spent == 2
    return trained, options


@pytest.mark.parametrize("form", ["keras", "weights", "checkpoint"])
def test_what_others_spent_of_a_filter_is_saved_too(
    form: str, tmp_path: pathlib.Path
) -> None:
    trained, options = exhausted()
    small_run.save(trained, form, tmp_path)
    if form == "keras":
        loaded = small_run.load(form, tmp_path)
    else:
        loaded = model(tsdp.RenyiFilter(epsilon=2.0, delta=1e-2), **options)
        load(form, tmp_path, loaded)
    for _ in range(2):  # Loading again charges nothing twice.
        assert loaded.optimizer.compositions_spent == 2
        assert loaded.optimizer.compositions_left == 0
        assert loaded.optimizer.budget_left == trained.optimizer.budget_left
        assert loaded.optimizer.privacy_statement().private
        if form != "keras":
            load(form, tmp_path, loaded)
    # In its own process the filter knows already.
    if form != "keras":
        load(form, tmp_path, trained)
    assert trained.optimizer.budget_left == loaded.optimizer.budget_left


@pytest.mark.once
def test_a_count_without_its_ledger_is_refused_where_a_filter_pays() -> None:
    trained, options = exhausted()
    values = [np.asarray(v) for v in trained.optimizer.variables]
    fresh = model(tsdp.RenyiFilter(epsilon=2.0, delta=1e-2), **options)
    with pytest.raises(tsdp.PrivacyStateError, match="0 are in a ledger"):
        fresh.optimizer.set_weights(values)
    with pytest.raises(tsdp.PrivacyStateError, match="0 are in a ledger"):
        train(fresh, 1)


@pytest.mark.once
def test_whatever_fails_while_loading_stops_training(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, options = exhausted()
    small_run.save(trained, "checkpoint", tmp_path)
    budget = tsdp.RenyiFilter(epsilon=2.0, delta=1e-2)
    fresh = model(budget, **options)

    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(budget, "compose", fails)
        with pytest.raises(MemoryError):
            load("checkpoint", tmp_path, fresh)
    for refused in (fresh.optimizer.privacy_statement, fresh.optimizer.ledger):
        with pytest.raises(tsdp.PrivacyStateError, match="MemoryError"):
            refused()


@pytest.mark.once
def test_a_ledger_file_needs_a_plan(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="without a plan"):
        tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=1.0,
            expected_batch_size=8.0,
            ledger=tmp_path / "ledger.jsonl",
        )


@pytest.mark.once
def test_passes_are_on_disk_before_they_start(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ledger.jsonl"
    sampling = tsdp.EpochSampling(
        num_examples=small_run.EXAMPLES, batch_size=32, epochs=3
    )
    plan = tsdp.PrivacyPlan(noise_multiplier=4.0, delta=1e-3, sampling=sampling)
    data = sampling.dataset((small_run.FEATURES, small_run.LABELS))
    trained = model(plan, ledger=path)
    with pytest.raises(KeyboardInterrupt):
        trained.fit(
            data,
            epochs=2,
            verbose=0,
            callbacks=[tsdp.PrivacyBudget(), Crash(1)],
        )
    resumed = model(plan, ledger=path)
    assert resumed.optimizer.compositions_spent == 1
    resumed.fit(data, epochs=9, verbose=0, callbacks=[tsdp.PrivacyBudget()])
    assert resumed.optimizer.compositions_spent == 3
    assert np.all(np.isfinite(resumed.get_weights()[0]))
