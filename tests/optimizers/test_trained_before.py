"""Weights that two optimizers train: neither claims to be the only one."""

from __future__ import annotations

import gc
import pathlib
import weakref
from typing import Any

import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers import small_run
from tf_sparse_dp.optimizers import trained_before

keras = tf.keras
WORDS = "another private optimizer"


def optimizer(plan: Any = None, **arguments: Any) -> tsdp.DPSparseOptimizer:
    return tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), plan or small_run.plan(), **arguments
    )


def train(model: Any, steps: int, **options: Any) -> None:
    small_run.train(model, steps, shuffle=False, **options)


def anew(model: Any, *arguments: Any, **more: Any) -> Any:
    model.compile(optimizer(*arguments, **more), loss="mse")
    return model


def test_compiling_again_warns_and_the_statement_says_so() -> None:
    model = anew(small_run.model())
    train(model, 2)
    first = model.optimizer.privacy_statement()
    assert first.also_trained == ()
    anew(model)
    with pytest.warns(tsdp.PrivacyWarning, match=WORDS) as caught:
        train(model, 3)
        train(model, 1)  # It was said.
    (warning,) = (w for w in caught if w.category is tsdp.PrivacyWarning)
    epsilon = f"2 steps, epsilon = {first.epsilon_spent:.4g}"[:20]
    assert epsilon in str(warning.message)
    statement = model.optimizer.privacy_statement()
    (line,) = statement.also_trained
    assert epsilon in line and "the two compose" in line
    assert line in " ".join(str(statement).split())
    anew(model)
    with pytest.warns(tsdp.PrivacyWarning, match=r"2 steps.*4 steps"):
        train(model, 1)
    assert len(model.optimizer.privacy_statement().also_trained) == 2


@pytest.mark.once
def test_one_optimizer_may_be_compiled_again() -> None:
    model = anew(small_run.model())
    train(model, 2)
    model.compile(model.optimizer, loss="mse")
    train(model, 2)
    assert model.optimizer.privacy_statement().also_trained == ()


@pytest.mark.parametrize("how", ["config", "checkpoint", "numbers", "less"])
def test_who_loads_the_state_knows(how: str, tmp_path: pathlib.Path) -> None:
    model = anew(small_run.model())
    train(model, 2)
    before = model.optimizer
    if how == "config":
        config = before.get_config()
        model.compile(tsdp.DPSparseOptimizer.from_config(config), loss="mse")
    else:
        path = str(tmp_path / "state")
        tf.train.Checkpoint(optimizer=before).write(path)
        values = [variable.numpy() for variable in before.variables]
        if how == "less":  # What came after it was saved is missing.
            train(model, 1)
        anew(model)
        model.optimizer.build(model.trainable_variables)
        if how == "numbers":
            model.optimizer.set_weights(values)
        else:
            checkpoint = tf.train.Checkpoint(optimizer=model.optimizer)
            checkpoint.read(path)
    if how == "less":
        with pytest.warns(tsdp.PrivacyWarning, match=WORDS):
            train(model, 1)
    else:
        train(model, 1)
        assert model.optimizer.privacy_statement().also_trained == ()
    assert model.optimizer.compositions_spent == 3


def test_loaded_models_are_known_without_a_step(tmp_path) -> None:
    model = anew(small_run.model())
    train(model, 2)
    small_run.save(model, "keras", tmp_path)
    loaded = small_run.load("keras", tmp_path)
    train(loaded, 1)
    assert loaded.optimizer.privacy_statement().also_trained == ()
    again = anew(small_run.load("keras", tmp_path))
    with pytest.warns(tsdp.PrivacyWarning, match="2 steps"):
        train(again, 1)


@pytest.mark.once
@pytest.mark.parametrize("kind", ["filter", "child", "capped", "ledger"])
def test_a_shared_budget_covers_both(kind: str, tmp_path) -> None:
    def budget() -> tsdp.RenyiFilter:
        return tsdp.RenyiFilter(epsilon=8.0, delta=1e-3)

    parent = budget()

    def made(name: str) -> tsdp.DPSparseOptimizer:
        if kind == "ledger":
            return optimizer(ledger=str(tmp_path / "ledger"))
        account: Any = parent
        if kind != "filter":
            cap = budget() if kind == "capped" else None
            account = parent.child(name, cap=cap)
        return optimizer(
            account, sampling=small_run.poisson(), noise_multiplier=5.0
        )

    model = small_run.model()
    pays = [tsdp.PrivacyBudget()]
    model.compile(made("one"), loss="mse")
    train(model, 2, callbacks=pays)
    model.compile(made("two"), loss="mse")
    if kind == "capped":  # Each claims what it released itself.
        with pytest.warns(tsdp.PrivacyWarning, match=WORDS):
            train(model, 1, callbacks=pays)
    else:
        train(model, 1, callbacks=pays)
        assert model.optimizer.privacy_statement().also_trained == ()


@pytest.mark.once
def test_tables_of_lazy_embeddings_are_known_too() -> None:
    table = tsdp.layers.LazyEmbedding(50, 2)
    model = keras.Sequential([keras.Input((), dtype="int32"), table])
    sampling = small_run.poisson()
    ids = (small_run.FEATURES[:, 0] > 0).astype("int32")
    data = sampling.dataset((ids, small_run.FEATURES[:, :2]))
    anew(model).fit(data, steps_per_epoch=1, verbose=0, shuffle=False)
    with pytest.warns(tsdp.PrivacyWarning, match=WORDS):
        anew(model).fit(data, steps_per_epoch=1, verbose=0, shuffle=False)


@pytest.mark.once
def test_models_are_not_kept() -> None:
    gc.collect()
    known = len(trained_before._TRAINED)
    model = anew(small_run.model())
    train(model, 1)
    assert len(trained_before._TRAINED) > known
    gone = [weakref.ref(model), *map(weakref.ref, model.trainable_variables)]
    del model
    keras.backend.clear_session()
    gc.collect()
    assert [reference() for reference in gone] == [None] * len(gone)
    assert len(trained_before._TRAINED) <= known
