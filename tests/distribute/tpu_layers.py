"""Models with the layers that use embedding hardware of TPUs, where it is.

TPUEmbedding of TensorFlow Recommenders on tf-keras, DistributedEmbedding of
Keras Recommenders on Keras 3.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import tf_sparse_dp as tsdp

KERAS_3 = tsdp.DPSparseOptimizer.__module__.endswith("keras3")
BATCH, ROWS, WIDTH = 16, 1000, 8
keras = tf.keras
config = tf.tpu.experimental.embedding


def layer(hardware: bool) -> Any:
    """One table and one feature, on embedding hardware where there is any."""
    if KERAS_3:
        return _distributed(hardware)
    import tensorflow_recommenders as tfrs

    without = tf.tpu.experimental.HardwareFeature.EmbeddingFeature.UNSUPPORTED
    return tfrs.layers.embedding.TPUEmbedding(
        _for_hardware(),
        optimizer=_sgd(),
        embedding_feature=None if hardware else without,
    )


def _distributed(hardware: bool) -> Any:
    import keras_rs

    strategy = tf.distribute.get_strategy()
    if hardware and isinstance(strategy, tf.distribute.TPUStrategy):
        return keras_rs.layers.DistributedEmbedding(
            _for_hardware(), optimizer=_sgd()
        )
    table = keras_rs.layers.TableConfig(
        name="items",
        vocabulary_size=ROWS,
        embedding_dim=WIDTH,
        combiner="sum",
        placement="auto" if hardware else "default_device",
    )
    feature = keras_rs.layers.FeatureConfig(
        name="ids",
        table=table,
        input_shape=(None, 1),
        output_shape=(None, WIDTH),
    )
    return keras_rs.layers.DistributedEmbedding({"ids": feature})


def _for_hardware() -> Any:
    table = config.TableConfig(ROWS, WIDTH, name="items", combiner="sum")
    return {"ids": config.FeatureConfig(table, output_shape=[BATCH])}


def _sgd() -> Any:
    # A number, because protocol buffers of today take no boolean for one.
    return config.SGD(0.1, low_dimensional_packing_status=0)


class Model(keras.Model):
    """A table and dense features.

    Args:
      hardware: Whether the table may be on embedding hardware.
      apart: Whether the two have losses of their own, so that no gradient of
        a dense weight sees the table.
    """

    def __init__(self, *, hardware: bool = True, apart: bool = False):
        super().__init__()
        self.embedding = layer(hardware)
        self.score = keras.layers.Dense(1)
        self.apart = apart

    def call(self, inputs: Any, training: bool = False) -> Any:
        rows = self.embedding({"ids": inputs["ids"]})["ids"]
        rows = tf.reshape(rows, [-1, WIDTH])
        if self.apart:
            self.add_loss(tf.reduce_mean(tf.reduce_sum(rows, -1) ** 2))
            return self.score(inputs["x"])
        return self.score(tf.concat([rows, inputs["x"]], 1))


def compiled(model: Any, **options: Any) -> Any:
    """A model that trains privately."""
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0), seed=5, **options
    )
    model.compile(optimizer, loss="mse")
    return model
