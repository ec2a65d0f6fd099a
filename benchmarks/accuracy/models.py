"""Models whose only weights are tables of rows, and one bias for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks.accuracy.data import Data, Examples

keras = tf.keras


class Start(keras.initializers.Initializer):
    """Zero for the bias of a row, small normal numbers for its factors."""

    def __call__(self, shape: Any, dtype: Any = None, **_: Any) -> Any:
        rows, width = shape
        factors = keras.initializers.RandomNormal(stddev=0.1)(
            (rows, width - 1), dtype
        )
        return tf.concat([tf.zeros([rows, 1], factors.dtype), factors], 1)


class Score(keras.layers.Layer):
    """Log-odds from rows of a bias and factors each.

    With a user and some items, for each item: both biases and the product of
    the factors. With all ids of an example, a factorisation machine: all
    biases, and the products of all pairs.
    """

    def build(self, _: Any) -> None:
        self.offset = self.add_weight(
            shape=(), initializer="zeros", name="offset"
        )

    def call(self, rows: dict[str, Any]) -> Any:
        if "ids" in rows:
            bias, factors = rows["ids"][..., 0], rows["ids"][..., 1:]
            total = tf.reduce_sum(factors, 1)
            pairs = tf.square(total) - tf.reduce_sum(tf.square(factors), 1)
            score = tf.reduce_sum(bias, 1) + tf.reduce_sum(pairs, 1) / 2
            return self.offset + score[:, None]
        user, items = rows["users"], rows["items"]
        product = tf.einsum("bk,bpk->bp", user[:, 1:], items[..., 1:])
        return self.offset + user[:, :1] + items[..., 0] + product


class SGD(keras.optimizers.SGD):
    """Plain SGD, easy on what every example has a gradient of.

    It also counts the rows that it writes: those released that are not zero.
    """

    def __init__(self, rate: float, written: tf.Variable):
        super().__init__(rate)
        # Hidden from Keras, which would take it for a part of the optimizer.
        vars(self)["written"] = written

    def update_step(self, gradient: Any, variable: Any, rate: Any) -> None:
        if variable.shape == ():
            rate = tf.minimum(rate, 1.0)
        else:
            sparse = isinstance(gradient, tf.IndexedSlices)
            rows = gradient.values if sparse else gradient
            row = tf.reduce_any(rows != 0, 1)
            self.written.assign_add(tf.reduce_sum(tf.cast(row, tf.int64)))
        super().update_step(gradient, variable, rate)


def table_name(ids: str) -> str:
    """The name of the layer that looks ids up."""
    return f"{ids}_table"


def model_of(data: Data, lazy: bool = False, denoise: bool = False) -> Any:
    """Lookups of all ids in the tables of their names, and a score."""
    inputs, rows = {}, {}
    for name, size in data.tables.items():
        shape = data.train.ids[name].shape[1:]
        ids = keras.Input(shape, dtype="int32", name=name)
        given = {"embeddings_initializer": Start(), "name": table_name(name)}
        if lazy:
            table = tsdp.layers.LazyEmbedding(
                size, data.width, denoise=denoise, **given
            )
        else:
            table = keras.layers.Embedding(size, data.width, **given)
        inputs[name], rows[name] = ids, table(ids)
    return keras.Model(inputs, Score()(rows))


def loss(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Logistic loss of each example, over all its items."""
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, scores)
    return tf.reduce_sum(losses, -1)


def scores(model: Any, examples: Examples) -> np.ndarray:
    """Of examples, by the model as it is."""
    return model(dict(examples.ids)).numpy()


def ranking_scores(model: Any, users: np.ndarray, items: int) -> np.ndarray:
    """Of all items, for each of some users, up to a number of the user's."""
    user = model.get_layer(table_name("users"))(users).numpy()
    item = model.get_layer(table_name("items"))(np.arange(items)).numpy()
    return user[:, 1:] @ item[:, 1:].T + item[:, 0]
