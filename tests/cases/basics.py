"""Tables, dense layers, activations, and ways of compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.cases.case import (
    FEATURES,
    FEW_IDS,
    IDS,
    MANY_IDS,
    MASKED_IDS,
    MIXED,
    REAL,
    SEQUENCES,
    WEIGHTS,
    Case,
    dense_model,
    embedding,
    functional,
    keras,
    layers,
    sequence,
)


class Subclassed(keras.Model):
    """Two tables, or one for two features; sum pooling."""

    def __init__(self, shared: bool):
        super().__init__()
        self.shared = shared
        self.first = embedding(6 if shared else 30)
        self.second = self.first if shared else embedding(6)
        self.hidden = layers.Dense(7, activation="tanh")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        one, several, dense = inputs
        one = one % 6 if self.shared else one
        pooled = tf.reduce_sum(self.second(several), 1)
        x = tf.concat([self.first(one), pooled, dense], -1)
        return self.score(self.hidden(x))


class TimeMajor(keras.Model):
    """Moves the example axis, and folds it into another one and back."""

    def __init__(self, fold: bool):
        super().__init__()
        self.fold = fold
        self.hidden = layers.Dense(3)
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = tf.transpose(inputs, [1, 0, 2])
        if self.fold:
            x = tf.reshape(x, [-1, 4])
        x = self.hidden(x)
        if self.fold:
            x = tf.reshape(x, [5, -1, 3])
        return self.score(tf.reduce_mean(tf.transpose(x, [1, 0, 2]), 1))


class Towers(keras.Model):
    """User and item tower with a dot product, joined along the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.users = embedding(30)
        self.items = embedding(6)
        self.tower = layers.Dense(4)

    def call(self, inputs: Any, training: bool = False) -> Any:
        user, items, _ = inputs
        user = self.tower(self.users(user))
        item = self.tower(self.items(items[:, 0]))
        return tf.reduce_sum(user * item, -1, keepdims=True)


class Gated(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(4)
        self.gate = layers.Dense(4, activation="sigmoid")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = self.hidden(inputs) * self.gate(inputs)
        x = tf.where(x > 0, x, 0.1 * x)
        x = tf.concat([x[:, :2], x[:, 2:] ** 2, x[..., :1]], -1)
        return self.score(tf.stack([x, -x], 1)[:, 0])


def _pooled_many() -> Any:
    ids = keras.Input((70,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(embedding(9)(ids))
    return keras.Model(ids, layers.Dense(1)(x))


def _dot_interaction() -> Any:
    ids = keras.Input((5,), dtype="int32")
    x = embedding()(ids)
    x = layers.Dot(axes=2)([x, x])
    return keras.Model(ids, layers.Dense(1)(layers.Flatten()(x)))


def _two_inputs_dot() -> Any:
    users = keras.Input((), dtype="int32", name="user")
    items = keras.Input((), dtype="int32", name="item")
    score = layers.Dot(axes=1)([embedding()(users), embedding(6)(items)])
    return keras.Model({"user": users, "item": items}, score)


def _tied() -> Any:
    inputs = keras.Input((4,))
    layer = layers.Dense(4, activation="tanh")
    return keras.Model(inputs, layers.Dense(1)(layer(layer(inputs))))


def _regularised() -> Any:
    one = keras.Input((), dtype="int32")
    x = embedding(embeddings_regularizer=keras.regularizers.L2(0.02))(one)
    x = layers.Dense(
        5,
        kernel_regularizer=keras.regularizers.L2(0.01),
        bias_regularizer=keras.regularizers.L1(0.01),
    )(x)
    return keras.Model(one, layers.Dense(1)(x))


def _activation(name: str) -> Callable[[], Any]:
    return lambda: layers.Dense(5, activation=name)


_ACTIVATIONS = (
    "relu sigmoid tanh softplus softsign elu selu gelu swish exponential "
    "softmax"
).split()
_OF_KERAS_3 = ("relu6", "leaky_relu")


def _many_tables() -> Any:
    ids = keras.Input((5,), dtype="int32")
    parts = [embedding(6)(ids[:, i % 5]) for i in range(18)]
    return keras.Model(ids, layers.Dense(1)(layers.Concatenate()(parts)))


CASES = [
    Case("18 tables in one concatenation", _many_tables, FEW_IDS, REAL),
    Case("dense", dense_model, FEATURES, REAL),
    Case("embeddings", functional, MIXED, REAL, lane=True),
    Case("subclassed", lambda: Subclassed(False), MIXED, REAL),
    Case("shared table", lambda: Subclassed(True), MIXED, REAL, lane=True),
    Case("towers, shared dense", Towers, MIXED, REAL),
    Case(
        "dict inputs, dot",
        _two_inputs_dot,
        {"user": IDS, "item": FEW_IDS[:, 0]},
        REAL,
    ),
    Case("dot interaction", _dot_interaction, MASKED_IDS, REAL),
    Case("gates, slices, stack", Gated, FEATURES, REAL),
    Case("same dense twice", _tied, FEATURES, REAL),
    Case(
        "masked mean pooling",
        lambda: sequence(mask=True),
        MASKED_IDS,
        REAL,
        lane=True,
    ),
    Case(
        "dense on sequences",
        lambda: sequence(lambda: layers.Dense(6, "relu"), _activation("tanh")),
        MASKED_IDS,
        REAL,
        lane=True,
    ),
    Case(
        "layer norm on sequences",
        lambda: sequence(layers.LayerNormalization),
        MASKED_IDS,
        REAL,
        lane=True,
    ),
    Case("70 lookups of 9 rows", _pooled_many, MANY_IDS, REAL),
    Case("time major", lambda: TimeMajor(False), SEQUENCES, REAL),
    Case("time major, folded", lambda: TimeMajor(True), SEQUENCES, REAL),
    Case(
        "layer norm",
        lambda: functional(layers.LayerNormalization),
        MIXED,
        REAL,
    ),
    Case(
        "dropout of rate 0",
        lambda: functional(lambda: layers.Dropout(0.0)),
        MIXED,
        REAL,
    ),
    Case(
        "frozen batch norm",
        lambda: functional(lambda: layers.BatchNormalization(trainable=False)),
        MIXED,
        REAL,
    ),
    Case(
        "prelu",
        lambda: functional(lambda: layers.PReLU("ones")),
        MIXED,
        REAL,
    ),
    Case("regularisers", _regularised, IDS, REAL, lane=True),
    Case(
        "two regularisers",
        lambda: functional(
            lambda: layers.Dense(
                3, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02)
            ),
        ),
        MIXED,
        REAL,
    ),
    Case(
        "sample weights",
        functional,
        MIXED,
        REAL,
        sample_weight=WEIGHTS,
        lane=True,
    ),
    Case(
        "sum of losses",
        functional,
        MIXED,
        REAL,
        loss=lambda: keras.losses.MeanSquaredError(reduction="sum"),
        reduction="sum",
    ),
    Case("jit", functional, MIXED, REAL, compile={"jit_compile": True}),
    Case(
        "several steps per execution",
        functional,
        MIXED,
        REAL,
        compile={"steps_per_execution": 2},
    ),
    *(
        Case(
            f"activation {name}",
            lambda name=name: functional(_activation(name)),
            MIXED,
            REAL,
            only="Keras 3" if name in _OF_KERAS_3 else "",
        )
        for name in (*_ACTIVATIONS, *_OF_KERAS_3)
    ),
]
