"""The models in layers of Keras, for Keras 2 and 3 alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from benchmarks.peers import data
from benchmarks.peers.turns import Contender

keras = tf.keras
layers = keras.layers


def graph(
    setting: data.Setting, looked_up: Callable[[list[Any]], list[Any]]
) -> tuple[list[Any], Any]:
    """Inputs and logits.

    Args:
      setting: Which model.
      looked_up: Gives the rows of each table's ids.
    """
    shape = (setting.history,) if setting.history else ()
    inputs = [
        keras.Input(shape, dtype="int32", name=f"ids_{index}")
        for index in range(setting.tables)
    ]
    rows = looked_up(inputs)
    if setting.model == "dlrm":
        inputs.append(keras.Input((setting.numbers,), name="numbers"))
        hidden = layers.Concatenate()([*rows, inputs[-1]])
        for units in data.DLRM_HIDDEN:
            hidden = layers.Dense(units, activation="relu")(hidden)
        return inputs, layers.Dense(1)(hidden)
    if setting.model == "two-tower":
        towers = []
        for row in rows:
            hidden = layers.Dense(data.TOWER_HIDDEN, activation="relu")(row)
            towers.append(layers.Dense(data.TOWER_OUTPUT)(hidden))
        return inputs, layers.Dot(axes=1)(towers)
    (items,) = rows
    width = setting.width
    attention = layers.MultiHeadAttention(data.HEADS, width // data.HEADS)
    items = layers.Add()([items, attention(items, items)])
    items = layers.LayerNormalization()(items)
    hidden = layers.Dense(data.FEED_FORWARD, activation="relu")(items)
    hidden = layers.Add()([items, layers.Dense(width)(hidden)])
    items = layers.LayerNormalization()(hidden)
    pooled = layers.GlobalAveragePooling1D()(items)
    return inputs, layers.Dense(1)(pooled)


def set_threads() -> None:
    """As many threads within an operation as operations at a time."""
    tf.config.threading.set_intra_op_parallelism_threads(data.THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(data.THREADS)


def dataset(setting: data.Setting) -> tf.data.Dataset:
    """The pool, again and again."""
    features, labels = data.batches(setting)
    x = tuple(features) if len(features) > 1 else features[0]
    batches = tf.data.Dataset.from_tensor_slices((x, labels))
    return batches.repeat().prefetch(2)


def contender(
    model: Any, setting: data.Setting, rows: Callable[[Any], Any]
) -> Contender:
    """A compiled model; a step is what `fit` calls for each batch."""
    model.make_train_function()
    batch: Iterator[Any] = iter(dataset(setting))
    return Contender(
        step=lambda: model.train_function(batch),
        loss=lambda logs: float(logs["loss"]),
        rows=lambda ids: rows(tf.constant(ids)).numpy(),
    )
