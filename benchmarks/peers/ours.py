"""Contenders on `tf_sparse_dp`, and Keras without privacy.

- `not private`: rows are gathered and updated by SGD, nothing else: the
  cheapest step. `keras Embedding`: Keras' own layer, which on Keras 3 copies
  the table at every step.
- `lazy noise`: `LazyEmbedding`, dense noise that is drawn when a row is read.
  Where there are 26 features, `JoinedIds` puts them into one table, as
  docs/training.md advises; `lazy noise, 26 tables` has a layer for each.
- `clipping alone`, `projection`, `threshold`, `selection`: on gathered rows.
- `dense noise`: on `keras.layers.Embedding`.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks.peers import data, keras_models
from benchmarks.peers.contenders import CLIPPING
from benchmarks.peers.turns import Contender, main

keras = tf.keras
LAZY, MANY_LAZY = "lazy noise", "lazy noise, 26 tables"
# Noise multiplier and mechanism.
PRIVATE = {
    LAZY: (data.NOISE_MULTIPLIER, tsdp.Gaussian),
    MANY_LAZY: (data.NOISE_MULTIPLIER, tsdp.Gaussian),
    CLIPPING: (0.0, tsdp.Gaussian),
    "projection": (data.NOISE_MULTIPLIER, tsdp.Projection),
    "threshold": (data.NOISE_MULTIPLIER, tsdp.Threshold),
    "selection": (data.NOISE_MULTIPLIER, tsdp.PartitionSelection),
    "dense noise": (data.NOISE_MULTIPLIER, tsdp.Gaussian),
}
ON_KERAS = ("keras Embedding", "dense noise")


class GatheredRows(keras.layers.Layer):
    """Asks TensorFlow for rows of its table, not Keras for the table."""

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.embeddings = self.add_weight(
            shape=(rows, width), initializer="uniform", name="embeddings"
        )

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        table = getattr(self.embeddings, "value", self.embeddings)
        return tf.nn.embedding_lookup(table, ids)


def optimizer(name: str, setting: data.Setting) -> Any:
    """Without a plan: the cost is measured, nothing is promised."""
    sgd = keras.optimizers.SGD(data.RATE)
    if name not in PRIVATE:
        return sgd
    noise_multiplier, mechanism = PRIVATE[name]
    tables = {"tables": keras.optimizers.SGD(data.RATE)}
    return tsdp.DPSparseOptimizer(
        sgd,
        clip_norm=data.CLIP_NORM,
        mechanism=mechanism(),
        noise_multiplier=noise_multiplier,
        expected_batch_size=setting.batch_size,
        **(tables if name in (LAZY, MANY_LAZY) else {}),
    )


def make(name: str, setting: data.Setting) -> Contender:
    """Sets up a contender."""
    warnings.simplefilter("ignore", tsdp.PrivacyWarning)
    keras.utils.set_random_seed(data.SEED)
    if name in (LAZY, MANY_LAZY):
        kind: Any = tsdp.layers.LazyEmbedding
    elif name in ON_KERAS:
        kind = keras.layers.Embedding
    else:
        kind = GatheredRows
    made: list[Any] = []

    def looked_up(ids: list[Any]) -> list[Any]:
        if name == LAZY and setting.model == "dlrm":
            joined = tsdp.layers.JoinedIds([setting.rows] * setting.tables)
            made.append(kind(joined.rows, setting.width))
            return [keras.layers.Flatten()(made[0](joined(ids)))]
        made.extend(kind(setting.rows, setting.width) for _ in ids)
        return [table(column) for table, column in zip(made, ids, strict=True)]

    model = keras.Model(*keras_models.graph(setting, looked_up))
    model.compile(
        optimizer=optimizer(name, setting),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return keras_models.contender(model, setting, made[0])


if __name__ == "__main__":
    keras_models.set_threads()
    main(make, "tf_sparse_dp")
