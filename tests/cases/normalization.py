"""Normalisation within an example, and of a kind that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.cases.case import (
    FEATURES,
    MASKED_IDS,
    MIXED,
    REAL,
    SEQUENCES,
    Case,
    Through,
    functional,
    keras,
    layers,
    sequence,
)
from tests.cases.convolutions import IMAGES


class Inference(layers.Layer):
    """Batch normalisation that is always called with training=False."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = layers.BatchNormalization(
            beta_initializer="normal", moving_mean_initializer="normal"
        )

    def call(self, inputs: Any) -> Any:
        return self.norm(inputs, training=False)


def _on_images(layer: Callable[[], Any]) -> Callable[[], Any]:
    def build() -> Any:
        inputs = keras.Input((6, 5, 4))
        x = layer()(layers.Dense(4)(inputs))
        return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))

    return build


def _public_normalization() -> Any:
    layer = layers.Normalization(mean=[0.1] * 4, variance=[2.0] * 4)
    return keras.Sequential(
        [keras.Input((4,)), layer, layers.Dense(3, "relu"), layers.Dense(1)]
    )


class RunningMean(layers.Layer):
    """Subtracts a mean that the step itself updates."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            name="mean", shape=(4,), initializer="zeros", trainable=False
        )

    def call(self, inputs: Any) -> Any:
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))
        return inputs - self.mean


class Whitened(layers.Layer):
    """Statistics of the batch in a layer of one's own."""

    def call(self, inputs: Any) -> Any:
        mean, variance = tf.nn.moments(inputs, [0])
        return (inputs - mean) * tf.math.rsqrt(variance + 1e-3)


_TRAINING = "(Sub|SquaredDifference|FusedBatchNormV3|Mul).*LayerNormalization"

CASES = [
    Case(
        "RMS norm",
        lambda: functional(lambda: layers.RMSNormalization()),
        MIXED,
        REAL,
        only="Keras 3",
        needs="RMSNormalization",
    ),
    Case(
        "RMS norm on sequences",
        lambda: sequence(lambda: layers.RMSNormalization()),
        MASKED_IDS,
        REAL,
        only="Keras 3",
        needs="RMSNormalization",
    ),
    Case(
        "group norm",
        lambda: functional(
            lambda: layers.Dense(6), lambda: layers.GroupNormalization(3)
        ),
        MIXED,
        REAL,
    ),
    Case(
        "group norm on images",
        _on_images(lambda: layers.GroupNormalization(2)),
        IMAGES,
        REAL,
    ),
    Case(
        "unit norm",
        lambda: functional(layers.UnitNormalization),
        MIXED,
        REAL,
    ),
    Case(
        "layer norm on images, two axes",
        _on_images(lambda: layers.LayerNormalization(axis=[2, 3])),
        IMAGES,
        REAL,
    ),
    Case(
        "batch norm called with training=False",
        lambda: functional(Inference),
        MIXED,
        REAL,
    ),
    Case(
        "batch norm called with training=False, images",
        _on_images(Inference),
        IMAGES,
        REAL,
    ),
    Case(
        "frozen batch norm on images",
        _on_images(lambda: layers.BatchNormalization(trainable=False)),
        IMAGES,
        REAL,
    ),
    Case("normalization by constants", _public_normalization, FEATURES, REAL),
    Case(
        "batch norm",
        lambda: functional(layers.BatchNormalization),
        MIXED,
        REAL,
        refused=_TRAINING,
        why="statistics of the batch",
    ),
    Case(
        "batch norm on images",
        _on_images(layers.BatchNormalization),
        IMAGES,
        REAL,
        refused=_TRAINING,
        why="statistics of the batch",
    ),
    Case(
        "whitening by the batch",
        lambda: Through(Whitened()),
        FEATURES,
        REAL,
        refused="(Sub|SquaredDifference) .*LayerNormalization",
        why="statistics of the batch",
    ),
    Case(
        "running mean in a variable",
        lambda: Through(RunningMean()),
        FEATURES,
        REAL,
        refused="writes example data into a variable.*AssignVariableOp.*public",
        why="a later step sees the examples of this one",
    ),
    Case(
        "layer norm over the batch axis",
        lambda: Through(layers.Dense(4), _over_batch),
        SEQUENCES[:, 0],
        REAL,
        refused="(over the example axis|combines a sum over examples)",
        why="statistics of the batch",
    ),
]


def _over_batch(x: Any) -> Any:
    x = tf.transpose(x)
    mean = tf.reduce_mean(x, -1, keepdims=True)
    return tf.transpose(x - mean)
