"""Every mechanism trains a model, through `fit`, and is saved with it."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.mechanisms.contract import MECHANISMS, Case
from tests.optimizers.small_run import weights

pytestmark = pytest.mark.lane

keras = tf.keras

ROWS, EXAMPLES, STEPS = 3000, 200, 4
# One form of each class, for each family of noise.
FORMS = {
    (type(case.mechanism), case.mechanism.noise_family): case
    for case in reversed(MECHANISMS)
}
# What Keras does with a mechanism is the same for all: it keeps its config.
ON_BOTH = ("gaussian", "projection", "partition selection")
EVERY = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            marks=[] if case.name in ON_BOTH else [pytest.mark.once],
        )
        for case in FORMS.values()
    ],
)
SAMPLING = tsdp.PoissonSampling(
    num_examples=EXAMPLES, batch_size=20, steps=STEPS, max_batch_size=64
)


def data() -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    ids = rng.integers(ROWS, size=(EXAMPLES, 3)).astype("int32")
    labels = rng.integers(2, size=(EXAMPLES, 1)).astype("float32")
    return SAMPLING.dataset((ids, labels))


def model(case: Case, **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((3,), dtype="int32"),
        keras.layers.Embedding(ROWS, 4, name="embedding"),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
    result = keras.Sequential(layers)
    plan = tsdp.PrivacyPlan(
        noise_multiplier=1.0,
        delta=1e-3,
        sampling=SAMPLING,
        noise=case.mechanism.noise_family,
    )
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.Adam(0.1), plan, mechanism=case.mechanism
    )
    result.compile(optimizer=optimizer, loss="mse", **options)
    # Else the step is traced twice, the first time for variables alone.
    optimizer.build(result.trainable_variables)
    return result


@EVERY
def test_fit_save_and_load(case: Case, tmp_path: pathlib.Path) -> None:
    trained = model(case)
    before = weights(trained)
    trained.fit(data(), steps_per_epoch=STEPS - 1, verbose=0)
    for old, new in zip(before, weights(trained), strict=True):
        assert np.isfinite(new).all()
        assert not np.array_equal(old, new)
    statement = trained.optimizer.privacy_statement()
    assert statement.private
    released_by = trained.optimizer.private_step.released_by
    assert released_by in " ".join(str(statement).split())

    trained.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = loaded.optimizer
    assert again.private_step.mechanism == case.mechanism
    assert again.private_step.released_by == released_by
    assert again.compositions_spent == STEPS - 1
    restored = weights(loaded)
    for new, same in zip(weights(trained), restored, strict=True):
        np.testing.assert_array_equal(new, same)
    if case.name != "projection":  # Tracing the step again takes its time.
        return
    loaded.fit(data(), steps_per_epoch=1, verbose=0)
    assert again.compositions_left == 0
    assert not np.array_equal(restored[0], weights(loaded)[0])


PURE = tsdp.Projection(geometry="coordinates", noise="laplace")


def pure_model(mechanism: Any, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((3,), dtype="int32"),
        keras.layers.Embedding(ROWS, 4, name="embedding"),
        keras.layers.GlobalAveragePooling1D(),
    ]
    sampling = tsdp.EpochSampling(num_examples=40, batch_size=20, epochs=2)
    plan = tsdp.PrivacyPlan(
        epsilon=2.0, delta=0.0, sampling=sampling, noise="laplace"
    )
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), plan, mechanism=mechanism
    )
    result = keras.Sequential(layers)
    result.compile(optimizer=optimizer, loss="mse", **options)
    ids = np.arange(120, dtype="int32").reshape(40, 3)
    return result, (ids, np.ones([40, 4], "float32"))


def test_pure_privacy() -> None:
    trained, arrays = pure_model("auto")
    budget = tsdp.PrivacyBudget()
    trained.fit(*arrays, batch_size=20, epochs=2, verbose=0, callbacks=[budget])
    statement = trained.optimizer.privacy_statement()
    assert statement.private
    assert (statement.epsilon_spent, statement.delta) == (2.0, 0.0)
    assert statement.mechanism == PURE.description
    assert statement.failure_charge == 0.0
    assert "pure differential privacy" in " ".join(str(statement).split())


def test_pure_privacy_has_no_sizes_for_xla() -> None:
    trained, (ids, targets) = pure_model(PURE, jit_compile=True)
    budget = tsdp.PrivacyBudget()
    with pytest.raises(ValueError, match="pass jit_compile=False"):
        trained.fit(ids, targets, batch_size=20, verbose=0, callbacks=[budget])
