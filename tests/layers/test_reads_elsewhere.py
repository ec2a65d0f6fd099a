"""Rows that are read by others than the training step, and by other threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.layers.lazy_variable import LazyVariable, lazy_variable

keras = tf.keras


def table(layer: Any) -> LazyVariable:
    found = lazy_variable(layer.embeddings)
    assert found is not None
    return found


def test_pipelines_do_not_draw() -> None:
    """Two of their threads would draw twice for one row."""
    layer = tsdp.layers.LazyEmbedding(6, 2)
    layer(tf.range(6))
    data = tf.data.Dataset.range(6).batch(2)
    data = data.map(layer, num_parallel_calls=2)
    assert len(list(data)) == 3
    table(layer).add(tf.zeros([6, 2]), 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="draw_noise"):
        list(data)
    layer.draw_noise()
    rows = np.concatenate(list(data))
    np.testing.assert_array_equal(rows, layer(tf.range(6)))


def test_validation_finds_all_noise_drawn() -> None:
    ids = keras.Input((), dtype="int32")
    layer = tsdp.layers.LazyEmbedding(50, 2)
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=1.0,
            expected_batch_size=4,
        ),
        loss="mse",
    )
    pending = []

    class Watching(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            pending.append(bool(table(layer).noise.exists))

    data = tf.data.Dataset.from_tensors((tf.range(4), tf.ones([4, 1])))
    for callbacks in ([Watching()], [tsdp.PrivacyBudget(), Watching()]):
        model.fit(data, validation_data=data, callbacks=callbacks, verbose=0)
    assert pending == [True, False]
