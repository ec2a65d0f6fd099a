"""A small recommender: embeddings, their interactions, and an MLP."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

keras = tf.keras


def build(
    sizes: dict[str, int],
    widths: dict[str, int],
    *,
    dimension: int = 8,
    hidden: int = 32,
    seed: int = 0,
) -> Any:
    """An ordinary Keras model; nothing in it knows about privacy.

    Args:
      sizes: Feature name to the number of its ids.
      widths: Feature name to the number of ids per example, of the multi-hot
        features only; their embeddings are averaged.
      dimension: Length of an embedding.
      hidden: Units of the MLP's layer.
      seed: Of the initial weights, so that twins start equal.
    """
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    inputs, embeddings = {}, []
    for name, size in sizes.items():
        shape = (widths[name],) if name in widths else ()
        inputs[name] = keras.Input(shape, dtype="int32", name=name)
        table = layers.Embedding(
            size,
            dimension,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=0.3),
            name=f"{name}_table",
        )
        looked_up = table(inputs[name])
        if name in widths:
            looked_up = layers.GlobalAveragePooling1D()(looked_up)
        embeddings.append(looked_up)
    everything = list(embeddings)
    if len(embeddings) > 1:
        # All pairwise products at once: ((sum e)^2 - sum e^2) / 2.
        total = layers.Add()(embeddings)
        squares = [layers.Multiply()([e, e]) for e in embeddings]
        pairs = layers.Subtract()(
            [layers.Multiply()([total, total]), layers.Add()(squares)]
        )
        everything.append(pairs)
    features = layers.Concatenate()(everything)
    features = layers.Dense(hidden, activation="relu")(features)
    output = layers.Dense(1, activation="sigmoid", name="click")(features)
    return keras.Model(inputs, output)
