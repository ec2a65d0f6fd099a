"""The whole way of a step, short enough for every version lane."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp

pytestmark = [pytest.mark.lane]

keras = tf.keras
N = 400


def build() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    inputs = {
        "user": keras.Input((), dtype="int32", name="user"),
        "tags": keras.Input((3,), dtype="int32", name="tags"),
    }
    user = layers.Embedding(20, 4)(inputs["user"])
    tags = layers.Embedding(9, 4)(inputs["tags"])
    tags = layers.GlobalAveragePooling1D()(tags)
    both = layers.Concatenate()([user, tags, layers.Multiply()([user, tags])])
    hidden = layers.Dense(8, activation="relu")(both)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))


@pytest.fixture
def data(seeded: np.random.Generator):
    features = {
        "user": seeded.integers(20, size=N).astype("int32"),
        "tags": seeded.integers(9, size=(N, 3)).astype("int32"),
    }
    return features, (features["user"] % 2).astype("float32")


def compiled(sampling, data, **options) -> keras.Model:
    plan = tsdp.PrivacyPlan(epsilon=6.0, delta=1e-4, sampling=sampling)
    model = build()
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.Adagrad(0.1), plan, clip_norm=1.0
        ),
        loss="binary_crossentropy",
        **options,
    )
    return model


@pytest.mark.parametrize("jit", [False, True])
def test_poisson_run_spends_its_plan_and_no_more(data, jit: bool) -> None:
    sampling = tsdp.PoissonSampling(num_examples=N, batch_size=40, steps=6)
    model = compiled(sampling, data, jit_compile=jit)
    history = model.fit(
        sampling.dataset(data), callbacks=[tsdp.PrivacyBudget()], verbose=0
    )
    assert history.history["epsilon"][-1] == pytest.approx(6.0, rel=0.02)
    assert history.history["epsilon"][-1] <= 6.0
    statement = str(model.optimizer.privacy_statement())
    assert "6" in statement
    spent = model.get_weights()
    with pytest.raises(tsdp.BudgetExhausted):
        model.fit(sampling.dataset(data), verbose=0)
    for before, after in zip(spent, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_own_batches_are_charged_by_the_pass(data) -> None:
    sampling = tsdp.EpochSampling(num_examples=N, batch_size=64, epochs=2)
    model = compiled(sampling, data)
    history = model.fit(
        *data,
        batch_size=64,
        epochs=2,
        callbacks=[tsdp.PrivacyBudget()],
        verbose=0,
    )
    first, second = history.history["epsilon"]
    assert 0 < first < second <= 6.0


def test_a_plain_data_set_is_refused_under_a_poisson_plan(data) -> None:
    sampling = tsdp.PoissonSampling(num_examples=N, batch_size=40, steps=6)
    model = compiled(sampling, data)
    with pytest.raises(tsdp.NotSeparableError, match="validity"):
        model.fit(*data, batch_size=40, verbose=0)


def test_batch_normalisation_is_refused(data) -> None:
    sampling = tsdp.PoissonSampling(num_examples=N, batch_size=40, steps=6)
    plan = tsdp.PrivacyPlan(epsilon=6.0, delta=1e-4, sampling=sampling)
    inputs = keras.Input((3,))
    hidden = keras.layers.BatchNormalization()(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    optimizer = tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), plan)
    model.compile(optimizer=optimizer, loss="mse")
    x = data[0]["tags"].astype("float32")
    with pytest.raises(tsdp.NotSeparableError):
        model.fit(sampling.dataset((x, data[1])), verbose=0)
