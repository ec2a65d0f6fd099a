"""Convolutions, pooling, and layers that move entries within an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cases.case import (
    EXAMPLES,
    REAL,
    Case,
    keras,
    layers,
)

_random = np.random.RandomState(1)
SIGNALS = _random.randn(EXAMPLES, 8, 4).astype("float32")
IMAGES = _random.randn(EXAMPLES, 6, 5, 4).astype("float32")


def _stack(shape: tuple[int, ...], *steps: Callable[[], Any]) -> Any:
    inputs = keras.Input(shape)
    x = inputs
    for step in steps:
        x = step()(x)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))


def _case(name: str, shape: Any, *steps: Callable[[], Any], **more: Any) -> Any:
    inputs = SIGNALS if len(shape) == 2 else IMAGES
    return Case(name, lambda: _stack(shape, *steps), inputs, REAL, **more)


def _one(name: str, *steps: Callable[[], Any], **more: Any) -> Case:
    return _case(name, (8, 4), *steps, **more)


def _two(name: str, *steps: Callable[[], Any], **more: Any) -> Case:
    return _case(name, (6, 5, 4), *steps, **more)


class AlongTheBatch(keras.Model):
    """Windows over neighbouring examples."""

    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = tf.transpose(inputs, [1, 0, 2])
        x = tf.transpose(self.layer(x), [1, 0, 2])
        return self.score(tf.reduce_mean(x, 1))


CASES = [
    _one("conv1d", lambda: layers.Conv1D(3, 3, activation="relu"), lane=True),
    _one("conv1d, same", lambda: layers.Conv1D(3, 2, padding="same")),
    _one("conv1d, causal", lambda: layers.Conv1D(3, 3, padding="causal")),
    _one("conv1d, strides", lambda: layers.Conv1D(3, 3, strides=2)),
    _one(
        "conv1d, dilation",
        lambda: layers.Conv1D(3, 2, dilation_rate=2, padding="same"),
    ),
    _one(
        "conv1d, causal and dilated",
        lambda: layers.Conv1D(3, 2, dilation_rate=2, padding="causal"),
        lambda: layers.Conv1D(3, 2, dilation_rate=3, padding="causal"),
    ),
    _one(
        "conv1d twice",
        lambda: layers.Conv1D(5, 3, activation="relu", padding="same"),
        lambda: layers.Conv1D(2, 1),
    ),
    _one(
        "conv1d, groups",
        lambda: layers.Conv1D(4, 3, groups=2),
        refused="Conv2D convolves in groups.*Split the channels",
        why="TensorFlow has no gradient of it on a CPU",
    ),
    _two("conv2d", lambda: layers.Conv2D(3, (3, 2), activation="relu")),
    _two(
        "conv2d, same and strides",
        lambda: layers.Conv2D(3, 3, strides=(2, 1), padding="same"),
    ),
    _two(
        "conv2d, dilation",
        lambda: layers.Conv2D(2, 2, dilation_rate=(2, 2)),
    ),
    _two(
        "conv2d, dilation and same",
        lambda: layers.Conv2D(2, (3, 2), dilation_rate=2, padding="same"),
    ),
    _two(
        "conv2d twice, no bias",
        lambda: layers.Conv2D(3, 2, use_bias=False, activation="tanh"),
        lambda: layers.Conv2D(2, 2, use_bias=False),
    ),
    _one("separable conv1d", lambda: layers.SeparableConv1D(3, 3)),
    _two(
        "separable conv2d",
        lambda: layers.SeparableConv2D(3, 2, padding="same"),
    ),
    _one("depthwise conv1d", lambda: layers.DepthwiseConv1D(3)),
    _two(
        "depthwise conv2d",
        lambda: layers.DepthwiseConv2D((3, 2), depth_multiplier=2),
    ),
    _two(
        "depthwise conv2d, strides",
        lambda: layers.DepthwiseConv2D(3, strides=2, padding="same"),
    ),
    _two(
        "depthwise conv2d, dilation",
        lambda: layers.DepthwiseConv2D(2, dilation_rate=2),
    ),
    _one("conv1d transposed", lambda: layers.Conv1DTranspose(3, 3, strides=2)),
    _two(
        "conv2d transposed",
        lambda: layers.Conv2DTranspose(3, 2, strides=2, padding="same"),
    ),
    *(
        _one(
            f"{kind} pooling 1d",
            lambda: layers.Conv1D(3, 2),
            lambda kind=kind: getattr(layers, f"{kind}Pooling1D")(3, 2),
        )
        for kind in ("Max", "Average")
    ),
    *(
        _two(
            f"{kind} pooling 2d",
            lambda: layers.Conv2D(3, 2, padding="same"),
            lambda kind=kind: getattr(layers, f"{kind}Pooling2D")(
                (3, 2), padding="same"
            ),
        )
        for kind in ("Max", "Average")
    ),
    *(
        _one(
            f"{kind} pooling 1d",
            lambda: layers.Conv1D(3, 2),
            lambda kind=kind: getattr(layers, f"{kind}Pooling1D")(),
        )
        for kind in ("GlobalMax", "GlobalAverage")
    ),
    *(
        _two(
            f"{kind} pooling 2d",
            lambda: layers.Conv2D(3, 2),
            lambda kind=kind: getattr(layers, f"{kind}Pooling2D")(),
        )
        for kind in ("GlobalMax", "GlobalAverage")
    ),
    _one(
        "upsampling, cropping, padding 1d",
        lambda: layers.Dense(3),
        lambda: layers.UpSampling1D(2),
        lambda: layers.Cropping1D((1, 2)),
        lambda: layers.ZeroPadding1D((2, 0)),
    ),
    _two(
        "upsampling, cropping, padding 2d",
        lambda: layers.Dense(3),
        lambda: layers.UpSampling2D(2),
        lambda: layers.Cropping2D(((1, 2), (0, 1))),
        lambda: layers.ZeroPadding2D((2, 1)),
    ),
    _two(
        "upsampling, bilinear",
        lambda: layers.Dense(3),
        lambda: layers.UpSampling2D((2, 3), interpolation="bilinear"),
    ),
    _two(
        "permute, reshape, flatten, repeat",
        lambda: layers.Permute((3, 1, 2)),
        lambda: layers.Dense(2),
        lambda: layers.Reshape((-1, 8)),
        lambda: layers.Flatten(),
        lambda: layers.Dense(3),
        lambda: layers.RepeatVector(2),
        lambda: layers.Dense(2),
    ),
    _two("dense on rank 4", lambda: layers.Dense(3, activation="relu")),
    Case(
        "conv1d over the batch",
        lambda: AlongTheBatch(layers.Conv1D(4, 3, padding="same")),
        SIGNALS,
        REAL,
        refused="Conv2D .*the example axis.*Keep the examples",
        why="windows over neighbouring examples",
    ),
    Case(
        "pooling over the batch",
        lambda: AlongTheBatch(
            layers.AveragePooling1D(3, strides=1, padding="same")
        ),
        SIGNALS,
        REAL,
        refused="AvgPool .*the example axis.*Keep the examples",
        why="windows over neighbouring examples",
    ),
]
