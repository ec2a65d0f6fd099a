"""Ranking losses within an example's list, sampled losses, several outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.cases.case import (
    BINARY,
    CLASSES,
    EXAMPLES,
    FEATURES,
    FEW_IDS,
    IDS,
    KERAS_3,
    MASKED_IDS,
    MIXED,
    ONE_HOT,
    REAL,
    SEQUENCES,
    Case,
    dense_model,
    embedding,
    functional,
    keras,
    layers,
)

_random = np.random.RandomState(3)
RELEVANCE = (_random.rand(EXAMPLES, 5) > 0.6).astype("float32")
RELEVANCE[:, 0] = 1.0
SIGNS = 2 * BINARY - 1


class PerExample(keras.losses.Loss):
    """A loss of each example, averaged by Keras."""

    def __init__(self, function: Any):
        super().__init__()
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.function(y_true, y_pred)


class Ranker(keras.Model):
    """One score for each item in an example's list."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(3, activation="relu")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return tf.squeeze(self.score(self.hidden(inputs)), -1)


def _listwise(relevance: Any, scores: Any) -> Any:
    share = relevance / tf.reduce_sum(relevance, 1, keepdims=True)
    return -tf.reduce_sum(share * tf.nn.log_softmax(scores), 1)


def _pairwise(relevance: Any, scores: Any) -> Any:
    gaps = scores[:, :, tf.newaxis] - scores[:, tf.newaxis, :]
    wins = relevance[:, :, tf.newaxis] > relevance[:, tf.newaxis, :]
    loss = tf.where(wins, tf.math.softplus(-gaps), 0.0)
    return tf.reduce_sum(loss, [1, 2])


def _approximate_ndcg(relevance: Any, scores: Any) -> Any:
    gaps = scores[:, :, tf.newaxis] - scores[:, tf.newaxis, :]
    ranks = 0.5 + tf.reduce_sum(tf.sigmoid(-gaps), 2)
    gain = relevance / tf.math.log1p(ranks)
    ideal = tf.sort(relevance, direction="DESCENDING")
    ideal = ideal / tf.math.log1p(tf.range(1.0, 6.0))
    return -tf.reduce_sum(gain, 1) / tf.reduce_sum(ideal, 1)


def _focal(labels: Any, logits: Any) -> Any:
    labels, logits = labels[:, 0], logits[:, 0]
    loss = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    p = tf.sigmoid(logits)
    missed = labels * (1 - p) + (1 - labels) * p
    return 0.25 * missed**2.0 * loss


def _hinge(signs: Any, scores: Any) -> Any:
    return tf.reduce_mean(tf.maximum(1.0 - signs * scores, 0.0), -1)


class Personalised(keras.Model):
    """A positive against negatives that the example brings along (BPR)."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = embedding(30), embedding(30)

    def call(self, inputs: Any, training: bool = False) -> Any:
        user, items = inputs
        items = self.items(items)
        scores = tf.einsum("be,bte->bt", self.users(user), items)
        return scores[:, :1] - scores[:, 1:]


def _bpr(_: Any, gaps: Any) -> Any:
    return tf.reduce_mean(-tf.math.log_sigmoid(gaps), 1)


class Catalogue(keras.Model):
    """A user scores the whole public catalogue, or public candidates."""

    def __init__(self, candidates: str):
        super().__init__()
        self.candidates = candidates
        self.users = embedding(30)
        self.items = embedding(6)

    def build(self, shape: Any) -> None:
        self.users.build((None,))
        self.items.build((None,))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        user, items = inputs
        user, positive = self.users(user), self.items(items[:, 0])
        if self.candidates == "all":
            others = self.items(tf.range(6))
        elif self.candidates == "fixed":
            others = self.items(tf.constant([1, 3, 3, 5]))
        else:
            others = self.items(tf.random.uniform([4], 0, 6, tf.int32))
        first = tf.reduce_sum(user * positive, -1, keepdims=True)
        rest = tf.matmul(user, others, transpose_b=True)
        return tf.concat([first, rest], 1)


def _first(_: Any, scores: Any) -> Any:
    return -tf.nn.log_softmax(scores)[:, 0]


class Sampled(keras.Model):
    """TensorFlow's own sampled losses, as a loss of the model."""

    def __init__(self, loss: Any, **options: Any):
        super().__init__()
        self.sampled, self.options = loss, options
        self.hidden = layers.Dense(4)

    def build(self, shape: Any) -> None:
        self.hidden.build((None, 4))
        self.kernel = self.add_weight(name="kernel", shape=(9, 4))
        self.bias = self.add_weight(name="bias", shape=(9,))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        features, labels = inputs
        kernel, bias = self.kernel, self.bias
        if KERAS_3:
            kernel, bias = kernel.value, bias.value
        return self.sampled(
            kernel,
            bias,
            tf.cast(labels[:, tf.newaxis], tf.int64),
            self.hidden(features),
            num_sampled=3,
            num_classes=9,
            **self.options,
        )


def _itself(_: Any, loss: Any) -> Any:
    return loss


def _two_heads() -> Any:
    inputs = keras.Input((4,))
    x = layers.Dense(5, activation="relu")(inputs)
    outputs = {
        "rating": layers.Dense(1, name="rating")(x),
        "click": layers.Dense(1, activation="sigmoid", name="click")(x),
    }
    return keras.Model(inputs, outputs)


def _two_losses(model: Any, inputs: Any, targets: Any) -> Any:
    outputs = model(inputs, training=True)
    return 0.5 * keras.losses.MeanSquaredError()(
        targets["rating"], outputs["rating"]
    ) + 2.0 * keras.losses.BinaryCrossentropy()(
        targets["click"], outputs["click"]
    )


class Adding(layers.Layer):
    """Adds a loss of its own: a mean over examples."""

    def __init__(self, squared: bool):
        super().__init__()
        self.squared = squared

    def call(self, inputs: Any) -> Any:
        if self.squared:
            self.add_loss(tf.reduce_mean(tf.square(inputs)))
        else:
            self.add_loss(tf.square(tf.reduce_mean(inputs)))
        return inputs


def _adding(squared: bool) -> Any:
    inputs = keras.Input((4,))
    x = Adding(squared)(layers.Dense(5, activation="relu")(inputs))
    return keras.Model(inputs, layers.Dense(1)(x))


def _with_added(model: Any, inputs: Any, targets: Any) -> Any:
    outputs = model(inputs, training=True)
    loss = keras.losses.MeanSquaredError()(targets, outputs)
    return loss + sum(model.losses)


def _in_bfloat16() -> Any:
    policy = {"dtype": "mixed_bfloat16"}
    ids = keras.Input((5,), dtype="int32")
    x = embedding(**policy)(ids)
    x = layers.Dense(6, activation="relu", **policy)(x)
    x = layers.LayerNormalization(**policy)(x)
    x = layers.GlobalAveragePooling1D(**policy)(x)
    return keras.Model(ids, layers.Dense(1, dtype="float32")(x))


CASES = [
    Case(
        "listwise softmax",
        Ranker,
        SEQUENCES,
        RELEVANCE,
        loss=lambda: PerExample(_listwise),
    ),
    Case(
        "pairwise within a list",
        Ranker,
        SEQUENCES,
        RELEVANCE,
        loss=lambda: PerExample(_pairwise),
    ),
    Case(
        "approximate NDCG",
        Ranker,
        SEQUENCES,
        RELEVANCE,
        loss=lambda: PerExample(_approximate_ndcg),
    ),
    Case(
        "Bayesian personalised ranking",
        Personalised,
        (IDS, MASKED_IDS),
        REAL,
        loss=lambda: PerExample(_bpr),
    ),
    Case(
        "softmax over the catalogue",
        lambda: Catalogue("all"),
        (IDS, FEW_IDS),
        REAL,
        loss=lambda: PerExample(_first),
    ),
    Case(
        "softmax over public candidates",
        lambda: Catalogue("fixed"),
        (IDS, FEW_IDS),
        REAL,
        loss=lambda: PerExample(_first),
    ),
    Case(
        "softmax over drawn candidates",
        lambda: Catalogue("drawn"),
        (IDS, FEW_IDS),
        REAL,
        loss=lambda: PerExample(_first),
        random=True,
    ),
    Case(
        "tf.nn.sampled_softmax_loss",
        lambda: Sampled(tf.nn.sampled_softmax_loss),
        (FEATURES, CLASSES),
        REAL,
        loss=lambda: PerExample(_itself),
        refused="ConcatV2 joins examples and constants.*two lookups",
        why="labels and negatives are looked up together",
    ),
    Case(
        "tf.nn.nce_loss",
        lambda: Sampled(tf.nn.nce_loss),
        (FEATURES, CLASSES),
        REAL,
        loss=lambda: PerExample(_itself),
        refused="ConcatV2 joins examples and constants.*two lookups",
        why="labels and negatives are looked up together",
    ),
    Case(
        "label smoothing",
        lambda: dense_model(3, "softmax"),
        FEATURES,
        ONE_HOT,
        loss=lambda: keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    ),
    Case(
        "focal loss by hand",
        functional,
        MIXED,
        BINARY,
        loss=lambda: PerExample(_focal),
    ),
    Case(
        "focal loss of Keras",
        lambda: dense_model(activation="sigmoid"),
        FEATURES,
        BINARY,
        loss=lambda: keras.losses.BinaryFocalCrossentropy(),
    ),
    Case(
        "hinge loss by hand",
        functional,
        MIXED,
        SIGNS,
        loss=lambda: PerExample(_hinge),
    ),
    *(
        Case(
            f"loss {name}",
            dense_model,
            FEATURES,
            SIGNS,
            loss=lambda name=name: getattr(keras.losses, name)(),
            refused="All over the example axis",
            why="Keras looks at all labels to tell 0/1 from -1/1",
        )
        for name in ("Hinge", "SquaredHinge")
    ),
    Case(
        "loss CategoricalHinge",
        lambda: dense_model(3),
        FEATURES,
        ONE_HOT,
        loss=lambda: keras.losses.CategoricalHinge(),
    ),
    Case(
        "two outputs, weighted losses",
        _two_heads,
        FEATURES,
        {"rating": REAL, "click": BINARY},
        loss=lambda: {
            "rating": keras.losses.MeanSquaredError(),
            "click": keras.losses.BinaryCrossentropy(),
        },
        compile={"loss_weights": {"rating": 0.5, "click": 2.0}},
        example_loss=_two_losses,
    ),
    Case(
        "add_loss per example",
        lambda: _adding(True),
        FEATURES,
        REAL,
        example_loss=_with_added,
    ),
    Case(
        "add_loss of a batch statistic",
        lambda: _adding(False),
        FEATURES,
        REAL,
        refused="spreads a batch sum over examples.*average per example",
        why="the square of a mean is no mean",
    ),
    Case(
        "mixed precision, bfloat16 (within 3e-2)",
        _in_bfloat16,
        MASKED_IDS,
        REAL,
        tolerance=3e-2,  # Eight units of bfloat16's 2⁻⁸ at weights near 1.
    ),
]
