"""Layers and losses that nobody wrote a rule against, and that mix examples.

They are found because nothing proves them separable: the message names the
operation, the layer it is in, and what to do instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.refusals import (
    FEATURES,
    TARGETS,
    Through,
    compiled,
    dense_model,
    refused,
)

keras = tf.keras
layers = keras.layers


class Whitened(layers.Layer):
    """Turns the features by the batch's second moments."""

    def call(self, inputs: Any) -> Any:
        moments = tf.matmul(inputs, inputs, transpose_a=True)
        return tf.matmul(inputs, moments)


class Standardised(layers.Layer):
    """Batch normalisation, written by hand."""

    def call(self, inputs: Any) -> Any:
        mean, variance = tf.nn.moments(inputs, [0])
        return (inputs - mean) * tf.math.rsqrt(variance + 0.1)


class Ranked(layers.Layer):
    """Replaces each feature by its rank in the batch."""

    def call(self, inputs: Any) -> Any:
        order = tf.argsort(tf.argsort(inputs, axis=0), axis=0)
        return inputs * tf.cast(order, inputs.dtype)


class Sorted(layers.Layer):
    """Hands every example the features of another one."""

    def call(self, inputs: Any) -> Any:
        return inputs + tf.sort(inputs, axis=0)


class Attending(layers.Layer):
    """Takes the batch for a sequence."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(1, 4)

    def call(self, inputs: Any) -> Any:
        sequence = inputs[tf.newaxis]
        return inputs + self.attention(sequence, sequence)[0]


class Remembering(layers.Layer):
    """Keeps a running mean and subtracts it, in a function of its own."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            name="mean", shape=(4,), initializer="zeros", trainable=False
        )

    @tf.function
    def update(self, inputs: Any) -> None:
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))

    def call(self, inputs: Any) -> Any:
        centred = inputs - self.mean
        self.update(inputs)
        return centred


class PerValid(keras.losses.Loss):
    """The mean over what the labels say is valid."""

    def __call__(self, y: Any, p: Any, sample_weight: Any = None) -> Any:
        y = tf.cast(y, p.dtype)
        valid = tf.cast(y > 0, p.dtype)
        return tf.reduce_sum(valid * (y - p) ** 2) / tf.reduce_sum(valid)


# A layer, the operation that is named, and a word of the remedy.
MIXING = [
    (Whitened, "MatMul combines a sum over examples", "LayerNormalization"),
    (Standardised, "combines a sum over examples", "LayerNormalization"),
    (Ranked, "TopKV2 over the example axis", "axes within an example"),
    (Sorted, "TopKV2 over the example axis", "axes within an example"),
    (Attending, "pairs different examples", "public catalogue"),
]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("layer", "met", "remedy"), MIXING, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_layer_of_ones_own(
    layer: Any, met: str, remedy: str, static: bool
) -> None:
    model = compiled(Through(layer(name="my_layer")))
    data = tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS))
    data = data.batch(4, drop_remainder=static)
    with refused(
        model, met, "(operation '", "my_layer", "Nothing was trained", remedy
    ):
        model.fit(data, verbose=0)


def test_a_running_mean() -> None:
    model = compiled(Through(Remembering(name="my_layer")))
    with refused(
        model,
        "writes example data into a variable",
        "AssignVariableOp",
        "my_layer",
        "compute them from public data",
    ):
        model.fit(FEATURES, TARGETS, batch_size=4, verbose=0)


def test_a_loss_over_the_valid_count() -> None:
    targets = np.abs(TARGETS)
    model = compiled(dense_model(), loss=PerValid())
    with refused(
        model,
        "RealDiv is not linear in a sum over examples",
        "(operation '",
        "a total of the batch",
    ):
        model.fit(FEATURES, targets, batch_size=4, verbose=0)
