"""The pipelines feed `fit` of whichever Keras is running."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.sampling import EpochSampling, PoissonSampling, RandomAccess

# Keras 3.15 warns of its own default whenever it is given a data set.
pytestmark = [
    pytest.mark.lane,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

keras = tf.keras

N = 200
USERS = np.arange(N) % 7
ITEMS = np.arange(N) % 5
FEATURES = {"user": USERS, "item": ITEMS}
SAMPLING = PoissonSampling(num_examples=N, batch_size=20, steps=42)


def _model(**compile_options):
    user = keras.Input([], dtype="int64", name="user")
    item = keras.Input([], dtype="int64", name="item")
    vectors = [
        keras.layers.Embedding(7, 4)(user),
        keras.layers.Embedding(5, 4)(item),
    ]
    merged = keras.layers.Concatenate()(vectors)
    model = keras.Model(
        {"user": user, "item": item}, keras.layers.Dense(1)(merged)
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05),
        loss="mse",
        weighted_metrics=["mae"],
        **compile_options,
    )
    return model


@pytest.mark.parametrize(
    "compile_options",
    [
        {"jit_compile": False},
        {"jit_compile": True},
        {"jit_compile": False, "steps_per_execution": 7},
    ],
)
def test_fit_takes_the_steps_of_the_plan(compile_options):
    model = _model(**compile_options)
    labels = np.ones([N, 1], np.float32)
    history = model.fit(SAMPLING.dataset((FEATURES, labels)), verbose=0)
    assert int(model.optimizer.iterations.numpy()) == SAMPLING.num_steps
    assert np.isfinite(history.history["loss"]).all()


def test_fit_in_parts_goes_on_where_it_was():
    model = _model()
    dataset = SAMPLING.dataset((FEATURES, np.ones([N, 1], np.float32)))
    history = model.fit(dataset, epochs=3, steps_per_epoch=14, verbose=0)
    assert len(history.history["loss"]) == 3
    assert int(model.optimizer.iterations.numpy()) == SAMPLING.num_steps


def _read(index):
    return {"user": USERS[index], "item": ITEMS[index]}, np.float32([1.0])


def test_fit_from_random_access():
    model = _model()
    dataset = SAMPLING.dataset(RandomAccess(_read, num_examples=N))
    model.fit(dataset, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == SAMPLING.num_steps


def _bias_after_fit(data, sampling=SAMPLING) -> float:
    """What a model that is only a bias learns: the mean of weighted labels."""
    model = keras.Sequential(
        [keras.Input([1]), keras.layers.Dense(1, kernel_initializer="zeros")]
    )
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
    model.fit(sampling.dataset(data), verbose=0)
    return float(model.layers[-1].bias.numpy()[0])


def test_padding_does_not_train():
    """Padding has label 0; examples have label 1, and only they count."""
    x, y = np.zeros([N, 1], np.float32), np.ones([N, 1], np.float32)
    long = PoissonSampling(num_examples=N, batch_size=20, steps=60)
    assert _bias_after_fit((x, y), long) == pytest.approx(1.0, abs=1e-3)


def test_examples_of_weight_zero_do_not_train():
    x = np.zeros([N, 1], np.float32)
    y = np.where(np.arange(N) % 2, 3.0, -50.0).astype(np.float32)[:, None]
    weight = np.where(np.arange(N) % 2, 2.0, 0.0)
    long = PoissonSampling(num_examples=N, batch_size=20, steps=60)
    bias = _bias_after_fit((x, y, weight), long)
    assert bias == pytest.approx(3.0, abs=1e-2)


class SelfSupervised(keras.Model):
    """Computes its loss itself, from features alone."""

    def __init__(self):
        super().__init__()
        self.score = keras.layers.Dense(1)

    def call(self, inputs):
        return self.score(inputs)

    def train_step(self, data):
        x, y, weight = data
        if y is not None:
            raise AssertionError("there are no labels")
        with tf.GradientTape() as tape:
            squares = tf.square(self(x, training=True)[:, 0] - 1.0)
            loss = tf.reduce_mean(squares * tf.cast(weight, tf.float32))
        gradients = tape.gradient(loss, self.trainable_variables)
        pairs = zip(gradients, self.trainable_variables, strict=True)
        self.optimizer.apply_gradients(pairs)
        return {"loss": loss}


@pytest.mark.parametrize("steps_per_execution", [1, 7])
def test_fit_without_labels(steps_per_execution):
    model = SelfSupervised()
    model.compile(
        optimizer=keras.optimizers.SGD(0.01),
        steps_per_execution=steps_per_execution,
    )
    dataset = SAMPLING.dataset((np.ones([N, 3], np.float32),))
    model.fit(dataset, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == SAMPLING.num_steps


def test_epoch_sampling_fits():
    sampling = EpochSampling(num_examples=N, batch_size=30, epochs=3)
    model = _model()
    labels = np.ones([N, 1], np.float32)
    dataset = sampling.dataset((FEATURES, labels))
    model.fit(dataset, epochs=sampling.epochs, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == sampling.num_steps
