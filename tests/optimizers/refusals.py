"""What it means that a step is refused, and small models to refuse.

Refused means: an error that says what was met, in which operation, and what to
do; every weight as it was, bit for bit; and nothing counted as spent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras
layers = keras.layers

_random = np.random.RandomState(0)
FEATURES = _random.randn(8, 4).astype("float32")
TARGETS = _random.randn(8, 1).astype("float32")
IDS = _random.randint(0, 9, (8, 5)).astype("int32")


def private(**options: Any) -> tsdp.DPSparseOptimizer:
    options = {
        "noise_multiplier": 1.0,  # A step that is taken moves all weights.
        "expected_batch_size": 8,
        **options,
    }
    return tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), **options)


def compiled(model: Any, inputs: Any = FEATURES, **options: Any) -> Any:
    """The model with weights and a private optimizer."""
    model(tf.constant(inputs))
    model.compile(**{"optimizer": private(), "loss": "mse", **options})
    return model


@contextlib.contextmanager
def refused(
    model: Any,
    *says: str,
    error: type[Exception] = tsdp.NotSeparableError,
    optimizer: Any = None,
) -> Iterator[None]:
    optimizer = model.optimizer if optimizer is None else optimizer
    before = [np.array(v) for v in model.weights]
    with pytest.raises(error) as caught:
        yield
    for text in says:
        assert text in str(caught.value)
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(np.array(variable), value)
    assert optimizer.compositions_spent == 0
    assert int(optimizer.iterations.numpy()) == 0


def dense_model() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])


class Through(keras.Model):
    """A model that hands its hidden layer to a function."""

    def __init__(self, function: Callable[[Any], Any]):
        super().__init__()
        self.hidden = layers.Dense(4)
        self.function = function
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.score(self.function(self.hidden(inputs)))


class OwnStep(keras.Model):
    """Changes the gradients before it applies them."""

    def __init__(self, change: Callable[[list[Any]], list[Any]]):
        super().__init__()
        self.table = layers.Embedding(9, 4)
        self.score = layers.Dense(1)
        self.change = change

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.score(tf.reduce_sum(self.table(inputs), 1))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        variables = self.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = self.change(tape.gradient(loss, variables))
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}
