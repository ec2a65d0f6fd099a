"""Random small Keras models of the running Keras, layers picked at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.gradients.random_graphs.examination import Subject

keras = tf.keras
layers = keras.layers

TOKENS, LENGTH, FEATURES = 7, 4, 3


class Centred(layers.Layer):
    """Subtracts the batch's mean."""

    def call(self, inputs: Any) -> Any:
        return inputs - tf.reduce_mean(inputs, 0, keepdims=True)


class Neighbour(layers.Layer):
    """Adds the example before."""

    def call(self, inputs: Any) -> Any:
        return inputs + tf.roll(inputs, 1, 0)


def _attention(r: random.Random, x: Any) -> Any:
    return layers.MultiHeadAttention(r.choice([1, 2]), 2)(x, x)


# Layers on [B, length, width], and on [B, width].
ON_SEQUENCES: list[Callable[[random.Random, Any], Any]] = [
    lambda r, x: layers.Dense(r.choice([2, 4]), activation="tanh")(x),
    lambda r, x: layers.LayerNormalization()(x),
    lambda r, x: layers.Conv1D(r.choice([2, 3]), 2, padding="same")(x),
    lambda r, x: (
        layers.SeparableConv1D(2, 2, padding="same")(x)
        if r.random() < 0.5
        else layers.DepthwiseConv1D(2)(x)
    ),
    lambda r, x: layers.Dropout(0.4, seed=1)(x),
    lambda r, x: layers.EinsumDense("abc,cd->abd", (None, 3))(x),
    lambda r, x: layers.Permute((2, 1))(x),
    lambda r, x: layers.Add()([x, layers.Activation("gelu")(x)]),
    lambda r, x: layers.MaxPooling1D(2)(x) if x.shape[1] > 1 else x,
    lambda r, x: layers.AveragePooling1D(1)(x),
    lambda r, x: layers.TimeDistributed(layers.Dense(3))(x),
    lambda r, x: layers.Softmax(axis=r.choice([1, -1]))(x),
    lambda r, x: layers.BatchNormalization()(x),
    lambda r, x: layers.PReLU()(x),
    _attention,
]
TO_VECTORS: list[Callable[[random.Random, Any], Any]] = [
    lambda r, x: layers.Flatten()(x),
    lambda r, x: layers.GlobalAveragePooling1D()(x),
    lambda r, x: layers.GlobalMaxPooling1D()(x),
    lambda r, x: layers.SimpleRNN(3, unroll=True)(x),
    lambda r, x: layers.LSTM(2, unroll=True)(x),
    lambda r, x: layers.GRU(2, unroll=True)(x),
]
ON_VECTORS: list[Callable[[random.Random, Any], Any]] = [
    lambda r, x: layers.Dense(r.choice([2, 3, 4]), activation="relu")(x),
    lambda r, x: layers.Dense(3, use_bias=False)(x),
    lambda r, x: layers.LayerNormalization()(x),
    lambda r, x: layers.UnitNormalization()(x),
    lambda r, x: layers.BatchNormalization()(x),
    lambda r, x: layers.Multiply()(
        [x, layers.Dense(x.shape[-1], activation="sigmoid")(x)]
    ),
    lambda r, x: layers.Concatenate()([x, layers.Dense(2)(x)]),
    lambda r, x: Centred()(x),
    lambda r, x: Neighbour()(x),
    lambda r, x: layers.Dropout(0.3, seed=2)(x),
    lambda r, x: layers.GaussianNoise(0.1, seed=3)(x),
]
LOSSES: list[Callable[[Any, Any], Any]] = [
    lambda y, p: tf.reduce_mean(tf.square(y - p)),
    lambda y, p: tf.reduce_sum(tf.abs(y - p)),
    lambda y, p: tf.reduce_mean(
        keras.losses.binary_crossentropy(tf.sigmoid(y), p, from_logits=True)
    ),
    lambda y, p: keras.losses.Huber()(y, p),
    lambda y, p: (
        tf.reduce_sum(tf.square(y - p)) / tf.reduce_sum(1.0 + tf.nn.relu(y))
    ),
]


def subject(seed: int) -> tuple[Subject, str]:
    """A random model with a loss, and its layers in words."""
    r = random.Random(seed)
    keras.utils.set_random_seed(seed)
    tokens = keras.Input((LENGTH,), dtype="int32")
    features = keras.Input((FEATURES,))
    x = layers.Embedding(TOKENS, r.choice([2, LENGTH]))(tokens)
    for _ in range(r.randint(0, 2)):
        x = r.choice(ON_SEQUENCES)(r, x)
    x = r.choice(TO_VECTORS)(r, x)
    if r.random() < 0.6:
        x = layers.Concatenate()([x, features])
    for _ in range(r.randint(0, 2)):
        x = r.choice(ON_VECTORS)(r, x)
    model = keras.Model([tokens, features], layers.Dense(1)(x))
    loss, training = r.choice(LOSSES), r.random() < 0.7
    rows = r.choice([2, 3, 4])
    static = r.random() < 0.5
    noisy = training and any(
        type(layer).__name__ in ("Dropout", "GaussianNoise")
        for layer in model.layers
    )
    if noisy:  # A noise that is drawn anew has no gradient to compare with.
        training = False

    def value(tokens: Any, features: Any, y: Any) -> Any:
        return loss(y, model([tokens, features], training=training))

    def draw(numbers: np.random.RandomState, rows: int) -> list[np.ndarray]:
        return [
            numbers.randint(0, TOKENS, (rows, LENGTH)).astype("int32"),
            numbers.randn(rows, FEATURES).astype("float32"),
            numbers.randn(rows, 1).astype("float32"),
        ]

    size = rows if static else None
    specs = [
        tf.TensorSpec([size, LENGTH], tf.int32),
        tf.TensorSpec([size, FEATURES]),
        tf.TensorSpec([size, 1]),
    ]
    # Keras 3 wraps TensorFlow's variables.
    variables = [
        v if isinstance(v, tf.Variable) else v.value
        for v in model.trainable_variables
    ]
    names = " ".join(type(layer).__name__ for layer in model.layers)
    text = f"model {seed}: {rows} rows, training={training}, {names}"
    return Subject(value, variables, specs, draw, rows, precise=False), text
