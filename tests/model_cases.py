"""Models that the optimizer must train exactly as a loop over examples would.

A case is a model, 20 examples for it, and a loss. The reference below takes
one example at a time and knows nothing of the library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras
layers = tf.keras.layers
KERAS_3 = tsdp.DPSparseOptimizer.__module__.endswith("keras3")

BATCHES = (8, 8, 4)
EXAMPLES = sum(BATCHES)
LEARNING_RATE = 0.5


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], Any]
    inputs: Any
    targets: np.ndarray
    loss: Callable[[], Any] = lambda: keras.losses.MeanSquaredError()
    reduction: str = "mean"
    sample_weight: np.ndarray | None = None
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)


_random = np.random.RandomState(0)
IDS = _random.randint(0, 30, (EXAMPLES,)).astype("int32")
FEW_IDS = _random.randint(0, 6, (EXAMPLES, 5)).astype("int32")
MASKED_IDS = _random.randint(0, 30, (EXAMPLES, 5)).astype("int32")
MASKED_IDS[:, 3:] *= _random.rand(EXAMPLES, 2) > 0.5
MANY_IDS = _random.randint(0, 9, (EXAMPLES, 70)).astype("int32")
FEATURES = _random.randn(EXAMPLES, 4).astype("float32")
SEQUENCES = _random.randn(EXAMPLES, 5, 4).astype("float32")
REAL = _random.randn(EXAMPLES, 1).astype("float32")
BINARY = (_random.rand(EXAMPLES, 1) > 0.5).astype("float32")
CLASSES = _random.randint(0, 3, (EXAMPLES,)).astype("int32")
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
WEIGHTS = _random.rand(EXAMPLES).astype("float32") + 0.1
MIXED = (IDS, FEW_IDS, FEATURES)


def _embedding(rows: int = 30, width: int = 4, **options: Any) -> Any:
    return layers.Embedding(
        rows, width, embeddings_initializer="normal", **options
    )


def _dense_model(outputs: int = 1, activation: str | None = None) -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, activation="relu"),
            layers.Dense(outputs, activation=activation),
        ]
    )


def _functional(*tail: Callable[[], Any], outputs: int = 1) -> Any:
    one = keras.Input((), dtype="int32")
    several = keras.Input((5,), dtype="int32")
    dense = keras.Input((4,))
    pooled = layers.GlobalAveragePooling1D()(_embedding(6)(several))
    x = layers.Concatenate()([_embedding()(one), pooled, dense])
    x = layers.Dense(7, activation="relu")(x)
    for layer in tail:
        x = layer()(x)
    return keras.Model([one, several, dense], layers.Dense(outputs)(x))


class Subclassed(keras.Model):
    """Two tables, or one for two features; sum pooling."""

    def __init__(self, shared: bool):
        super().__init__()
        self.shared = shared
        self.first = _embedding(6 if shared else 30)
        self.second = self.first if shared else _embedding(6)
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
        self.users = _embedding(30)
        self.items = _embedding(6)
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


def _sequence(*middle: Callable[[], Any], mask: bool = False) -> Any:
    ids = keras.Input((5,), dtype="int32")
    x = _embedding(width=8, mask_zero=mask)(ids)
    for layer in middle:
        x = layer()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Dense(1)(layers.Dense(6, "relu")(x)))


def _pooled_many() -> Any:
    ids = keras.Input((70,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(_embedding(9)(ids))
    return keras.Model(ids, layers.Dense(1)(x))


def _dot_interaction() -> Any:
    ids = keras.Input((5,), dtype="int32")
    x = _embedding()(ids)
    x = layers.Dot(axes=2)([x, x])
    return keras.Model(ids, layers.Dense(1)(layers.Flatten()(x)))


def _two_inputs_dot() -> Any:
    users = keras.Input((), dtype="int32", name="user")
    items = keras.Input((), dtype="int32", name="item")
    score = layers.Dot(axes=1)([_embedding()(users), _embedding(6)(items)])
    return keras.Model({"user": users, "item": items}, score)


def _tied() -> Any:
    inputs = keras.Input((4,))
    layer = layers.Dense(4, activation="tanh")
    return keras.Model(inputs, layers.Dense(1)(layer(layer(inputs))))


def _regularised() -> Any:
    one = keras.Input((), dtype="int32")
    x = _embedding(embeddings_regularizer=keras.regularizers.L2(0.02))(one)
    x = layers.Dense(
        5,
        kernel_regularizer=keras.regularizers.L2(0.01),
        bias_regularizer=keras.regularizers.L1(0.01),
    )(x)
    return keras.Model(one, layers.Dense(1)(x))


def _logits(loss: str) -> Callable[[], Any]:
    return lambda: getattr(keras.losses, loss)(from_logits=True)


def _plain(loss: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(keras.losses, loss)(**options)


def _activation(name: str) -> Callable[[], Any]:
    return lambda: layers.Dense(5, activation=name)


_ACTIVATIONS = (
    "relu sigmoid tanh softplus softsign elu selu gelu swish exponential "
    "softmax relu6 leaky_relu"
).split()

CASES = [
    Case("dense", _dense_model, FEATURES, REAL),
    Case("embeddings", _functional, MIXED, REAL),
    Case("subclassed", lambda: Subclassed(False), MIXED, REAL),
    Case("shared table", lambda: Subclassed(True), MIXED, REAL),
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
    Case("masked mean pooling", lambda: _sequence(mask=True), MASKED_IDS, REAL),
    Case(
        "dense on sequences",
        lambda: _sequence(lambda: layers.Dense(6, "relu"), _activation("tanh")),
        MASKED_IDS,
        REAL,
    ),
    Case(
        "layer norm on sequences",
        lambda: _sequence(layers.LayerNormalization),
        MASKED_IDS,
        REAL,
    ),
    Case("70 lookups of 9 rows", _pooled_many, MANY_IDS, REAL),
    Case("time major", lambda: TimeMajor(False), SEQUENCES, REAL),
    Case("time major, folded", lambda: TimeMajor(True), SEQUENCES, REAL),
    Case(
        "layer norm",
        lambda: _functional(layers.LayerNormalization),
        MIXED,
        REAL,
    ),
    Case(
        "dropout of rate 0",
        lambda: _functional(lambda: layers.Dropout(0.0)),
        MIXED,
        REAL,
    ),
    Case(
        "frozen batch norm",
        lambda: _functional(lambda: layers.BatchNormalization(trainable=False)),
        MIXED,
        REAL,
    ),
    Case(
        "prelu",
        lambda: _functional(lambda: layers.PReLU("ones")),
        MIXED,
        REAL,
    ),
    Case("regularisers", _regularised, IDS, REAL),
    Case(
        "two regularisers",
        lambda: _functional(
            lambda: layers.Dense(
                3, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02)
            ),
        ),
        MIXED,
        REAL,
    ),
    Case("sample weights", _functional, MIXED, REAL, sample_weight=WEIGHTS),
    Case(
        "sum of losses",
        _functional,
        MIXED,
        REAL,
        loss=_plain("MeanSquaredError", reduction="sum"),
        reduction="sum",
    ),
    Case("jit", _functional, MIXED, REAL, compile={"jit_compile": True}),
    Case(
        "several steps per execution",
        _functional,
        MIXED,
        REAL,
        compile={"steps_per_execution": 2},
    ),
    *(
        Case(
            f"activation {name}",
            lambda name=name: _functional(_activation(name)),
            MIXED,
            REAL,
        )
        for name in _ACTIVATIONS
        if hasattr(keras.activations, name)
    ),
    Case(
        "binary cross-entropy of logits",
        _functional,
        MIXED,
        BINARY,
        loss=_logits("BinaryCrossentropy"),
    ),
    Case(
        "binary cross-entropy",
        lambda: _dense_model(activation="sigmoid"),
        FEATURES,
        BINARY,
        loss=_plain("BinaryCrossentropy"),
    ),
    Case(
        "sparse cross-entropy of logits",
        lambda: _dense_model(3),
        FEATURES,
        CLASSES,
        loss=_logits("SparseCategoricalCrossentropy"),
    ),
    Case(
        "sparse cross-entropy",
        lambda: _dense_model(3, "softmax"),
        FEATURES,
        CLASSES,
        loss=_plain("SparseCategoricalCrossentropy"),
    ),
    Case(
        "cross-entropy",
        lambda: _dense_model(3, "softmax"),
        FEATURES,
        ONE_HOT,
        loss=_plain("CategoricalCrossentropy"),
    ),
    Case(
        "several outputs",
        lambda: _dense_model(3),
        FEATURES,
        ONE_HOT,
    ),
    *(
        Case(f"loss {name}", _dense_model, FEATURES, REAL, loss=_plain(name))
        for name in (
            "MeanAbsoluteError",
            "Huber",
            "LogCosh",
            "MeanAbsolutePercentageError",
        )
    ),
    Case(
        "loss Poisson",
        lambda: _dense_model(activation="softplus"),
        FEATURES,
        BINARY,
        loss=_plain("Poisson"),
    ),
    Case(
        "loss KLDivergence",
        lambda: _dense_model(3, "softmax"),
        FEATURES,
        ONE_HOT,
        loss=_plain("KLDivergence"),
    ),
    Case(
        "loss CosineSimilarity",
        lambda: _dense_model(3),
        FEATURES,
        ONE_HOT,
        loss=_plain("CosineSimilarity"),
    ),
]


def rows(structure: Any, start: int, stop: int) -> Any:
    """Some examples of nested arrays."""
    return tf.nest.map_structure(lambda a: a[start:stop], structure)


def built(case: Case) -> Any:
    """The case's model with its variables, from a fixed seed."""
    keras.utils.set_random_seed(1)
    model = case.build()
    model(tf.nest.map_structure(tf.constant, rows(case.inputs, 0, 2)))
    return model


def example_gradients(case: Case, model: Any, example: int) -> list[np.ndarray]:
    """Gradients of one example's own loss, without regularisers."""
    inputs = rows(case.inputs, example, example + 1)
    inputs = tf.nest.map_structure(tf.constant, inputs)
    weight = None
    if case.sample_weight is not None:
        weight = case.sample_weight[example : example + 1]
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True)
        targets = case.targets[example : example + 1]
        loss = case.loss()(targets, outputs, sample_weight=weight)
    return _arrays(tape, loss, model)


def _arrays(tape: Any, loss: Any, model: Any) -> list[np.ndarray]:
    variables = model.trainable_variables
    gradients = tape.gradient(
        loss,
        [getattr(v, "value", v) for v in variables] if KERAS_3 else variables,
    )
    return [
        np.zeros(v.shape)
        if g is None
        else tf.convert_to_tensor(g).numpy().astype("float64")
        for g, v in zip(gradients, variables, strict=True)
    ]


def norm(gradients: list[np.ndarray]) -> float:
    return float(np.sqrt(sum((g**2).sum() for g in gradients)))


def median_norm(case: Case, model: Any) -> float:
    norms = [norm(example_gradients(case, model, i)) for i in range(EXAMPLES)]
    return float(np.median(norms))


def loop_weights(
    case: Case, model: Any, clip_norm: float, expected_batch_size: float
) -> list[np.ndarray]:
    """Weights after three batches, one example at a time; resets the model."""
    initial = [v.numpy().copy() for v in model.trainable_variables]
    start = 0
    for size in BATCHES:
        total = [np.zeros(v.shape) for v in model.trainable_variables]
        for example in range(start, start + size):
            gradients = example_gradients(case, model, example)
            shrink = min(1.0, clip_norm / max(norm(gradients), 1e-30))
            for t, g in zip(total, gradients, strict=True):
                t += shrink * g
        extra = [0.0] * len(total)
        if model.losses:
            with tf.GradientTape() as tape:
                regulariser = tf.add_n(model.losses)
            extra = _arrays(tape, regulariser, model)
        for v, t, e in zip(
            model.trainable_variables, total, extra, strict=True
        ):
            step = LEARNING_RATE * (t / expected_batch_size + e)
            v.assign(v.numpy() - step)
        start += size
    final = [v.numpy().copy() for v in model.trainable_variables]
    for v, value in zip(model.trainable_variables, initial, strict=True):
        v.assign(value)
    return final


def dataset(case: Case) -> tf.data.Dataset:
    """The case's examples in batches of 8, 8 and 4."""
    parts = (case.inputs, case.targets)
    if case.sample_weight is not None:
        parts += (case.sample_weight,)
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCHES[0])
