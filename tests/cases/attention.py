"""Attention within an example: items look at items of the same example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.cases.case import (
    FEATURES,
    FEW_IDS,
    IDS,
    MASKED_IDS,
    REAL,
    SEQUENCES,
    Case,
    embedding,
    keras,
    layers,
    sequence,
)


def _attended(layer: Callable[[], Any], **call: Any) -> Callable[[], Any]:
    """Items that attend to each other; padding is masked."""

    def build() -> Any:
        ids = keras.Input((5,), dtype="int32")
        x = embedding(width=8, mask_zero=True)(ids)
        x = layers.Add()([x, layer()(x, x, **call)])
        x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
        return keras.Model(ids, layers.Dense(1)(x))

    return build


def _cross_attention() -> Any:
    """A target item attends to the history."""
    target = keras.Input((), dtype="int32")
    history = keras.Input((5,), dtype="int32")
    x = layers.Reshape((1, 8))(embedding(30, 8)(target))
    items = embedding(6, 8)(history)
    x = layers.MultiHeadAttention(2, 4)(x, items)
    return keras.Model([target, history], layers.Dense(1)(layers.Flatten()(x)))


def _encoder_block() -> Any:
    """A transformer block with learned positions, as in SASRec."""
    ids = keras.Input((5,), dtype="int32")
    x = embedding(width=8)(ids) + embedding(5, 8)(tf.range(5)[tf.newaxis])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)
    x = layers.Add()([x, y])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.Dense(8)(layers.Dense(16, activation="gelu")(y))
    x = layers.Add()([x, y])
    return keras.Model(ids, layers.Dense(1)(x[:, -1]))


class TargetAttention(keras.Model):
    """Scores of history items by a small network, as in DIN."""

    def __init__(self) -> None:
        super().__init__()
        self.items = embedding(30, 4)
        self.hidden = layers.Dense(6, activation="sigmoid")
        self.weight = layers.Dense(1)
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        target, history = inputs
        mask = history > 0
        target = self.items(target)[:, tf.newaxis]
        history = self.items(history)
        tiled = tf.tile(target, [1, 5, 1])
        x = tf.concat(
            [tiled, history, tiled - history, tiled * history], axis=-1
        )
        weight = tf.squeeze(self.weight(self.hidden(x)), -1)
        weight = tf.nn.softmax(tf.where(mask, weight, -1e9))
        pooled = tf.einsum("bt,bte->be", weight, history)
        return self.score(tf.concat([pooled, target[:, 0]], -1))


class HandMade(keras.Model):
    """Scaled dot products under a causal mask made by band_part."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.score = (
            layers.Dense(n, use_bias=False) for n in (4, 4, 4, 1)
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        scores = tf.matmul(
            self.query(inputs), self.key(inputs), transpose_b=True
        )
        causal = tf.linalg.band_part(tf.ones([5, 5]), -1, 0)
        scores = tf.where(causal > 0, scores / 2.0, -1e9)
        x = tf.matmul(tf.nn.softmax(scores), self.value(inputs))
        return self.score(tf.reduce_mean(x, 1))


class AcrossTheBatch(keras.Model):
    """Examples that look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 4)
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = inputs[tf.newaxis]
        return self.score(self.attention(x, x)[0])


CASES = [
    Case(
        "self-attention",
        _attended(lambda: layers.MultiHeadAttention(2, 4)),
        MASKED_IDS,
        REAL,
        lane=True,
    ),
    Case(
        "self-attention, causal",
        _attended(
            lambda: layers.MultiHeadAttention(2, 4), use_causal_mask=True
        ),
        MASKED_IDS,
        REAL,
    ),
    Case("cross-attention", _cross_attention, (IDS, FEW_IDS), REAL),
    Case(
        "grouped-query attention",
        _attended(lambda: layers.GroupQueryAttention(4, 4, 2)),
        MASKED_IDS,
        REAL,
        only="Keras 3",
        needs="GroupQueryAttention",
    ),
    Case(
        "attention with dot products",
        lambda: sequence(lambda: SelfAttend(layers.Attention(use_scale=True))),
        MASKED_IDS,
        REAL,
    ),
    Case(
        "additive attention",
        lambda: sequence(lambda: SelfAttend(layers.AdditiveAttention())),
        MASKED_IDS,
        REAL,
    ),
    Case("transformer block", _encoder_block, MASKED_IDS, REAL),
    Case("target attention", TargetAttention, (IDS, MASKED_IDS), REAL),
    Case("attention by hand, band_part", HandMade, SEQUENCES, REAL),
    Case(
        "attention across the batch",
        AcrossTheBatch,
        FEATURES,
        REAL,
        refused="(Einsum|MatMul).* pairs different examples.*public catalogue",
        why="examples attend to each other",
    ),
]


class SelfAttend(layers.Layer):
    """One argument for the layers that want query and value."""

    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer

    def call(self, inputs: Any) -> Any:
        return self.layer([inputs, inputs])
