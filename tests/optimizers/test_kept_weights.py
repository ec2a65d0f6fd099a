"""What a layer keeps of examples must not leave with the saved model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers.refusals import FEATURES, TARGETS, private

keras = tf.keras
layers = keras.layers


class RunningMean(layers.Layer):
    """Keeps a mean of what it sees, and hands its inputs on.

    Args:
      value: What is averaged, from the inputs.
      function: Whether it is updated in a function of its own.
    """

    def __init__(self, value: Any, function: bool = False):
        super().__init__()
        self.value = value
        self.function = function

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            name="mean", shape=(), initializer="zeros", trainable=False
        )

    def update(self, inputs: Any) -> None:
        self.mean.assign(0.9 * self.mean + 0.1 * self.value(inputs))

    def call(self, inputs: Any) -> Any:
        update = tf.function(self.update) if self.function else self.update
        update(inputs)
        return inputs


def model_with(layer: Any, **options: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), layer, layers.Dense(1)])
    model.compile(optimizer=private(), loss="mse", **options)
    return model


def fit(model: Any, *callbacks: Any) -> Any:
    return model.fit(
        FEATURES, TARGETS, batch_size=8, verbose=0, callbacks=[*callbacks]
    )


@pytest.mark.parametrize("function", [False, True])
def test_a_running_mean_of_examples_is_refused(function: bool) -> None:
    model = model_with(RunningMean(tf.reduce_mean, function))
    before = model.get_weights()
    with pytest.raises(tsdp.NotSeparableError) as error:
        fit(model, tsdp.PrivacyBudget())
    for text in (
        "into a variable '",
        "running_mean",
        "(operation '",
        "leaves with the saved model",
        "Nothing was trained",
        "compute them from public data",
    ):
        assert text in str(error.value)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.optimizer.compositions_spent == 0


def test_a_running_mean_is_not_seen_without_the_model() -> None:
    """The optimizer alone does not know what is saved; the docs say so."""
    model = model_with(RunningMean(tf.reduce_mean))
    fit(model)
    assert model.optimizer.compositions_spent == 1
    with pytest.raises(tsdp.NotSeparableError, match="leaves with the saved"):
        fit(model, tsdp.PrivacyBudget())
    assert model.optimizer.compositions_spent == 1


def test_a_model_that_is_built_while_it_is_traced() -> None:
    model = keras.Sequential([RunningMean(tf.reduce_mean), layers.Dense(1)])
    model.compile(optimizer=private(), loss="mse")
    with pytest.raises(tsdp.NotSeparableError, match="leaves with the saved"):
        fit(model, tsdp.PrivacyBudget())


class Aside(keras.Model):
    """Normalises the batch beside what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.score = layers.Dense(1)
        self.statistics = layers.BatchNormalization()

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.statistics(inputs, training=training)
        return self.score(inputs)


def test_moving_averages_of_batch_normalisation_are_refused() -> None:
    model = Aside()
    model.compile(optimizer=private(), loss="mse")
    with pytest.raises(tsdp.NotSeparableError, match="moving_mean"):
        fit(model, tsdp.PrivacyBudget())


def test_explain_says_so() -> None:
    model = model_with(RunningMean(tf.reduce_mean))
    explanation = tsdp.explain(model, (FEATURES, TARGETS))
    assert not explanation.separable
    (refusal,) = explanation.refusals
    assert "leaves with the saved model" in refusal.reason


class Counting(keras.Model):
    """Keeps metrics of its own, and a count of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(3)
        self.dropout = layers.Dropout(0.5)
        self.score = layers.Dense(1)
        self.seen = keras.metrics.Mean("seen")
        self.steps = self.add_weight(
            name="steps", shape=(), initializer="zeros", trainable=False
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.seen.update_state(tf.reduce_mean(inputs))
            self.steps.assign(self.steps + 1.0)
        return self.score(self.dropout(self.hidden(inputs), training=training))


def test_metrics_seeds_and_counts_are_taken() -> None:
    model = Counting()
    model.compile(optimizer=private(), loss="mse", metrics=["mae"])
    fit(model, tsdp.PrivacyBudget())
    assert model.optimizer.compositions_spent == 1
    np.testing.assert_array_equal(model.steps, 1.0)


def test_averages_of_private_weights_are_taken() -> None:
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=1),
        noise_multiplier=1.0,
        expected_batch_size=8,
    )
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    fit(model, tsdp.PrivacyBudget())
    assert optimizer.compositions_spent == 1
