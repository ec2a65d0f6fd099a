"""Tables that lack noise, and how to tell whether what left them had it."""

from __future__ import annotations

import io
import pathlib
import zipfile
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.layers.lazy_variable import LazyVariable, lazy_variable

keras = tf.keras
LazyEmbedding = tsdp.layers.LazyEmbedding

ROWS, WIDTH = 20, 8
IDS = np.array([[1, 2], [3, 4], [1, 5], [2, 7]], np.int32)
TARGETS = np.zeros([4, 1], "float32")
# Beside it, nothing else in a table is seen. All entries of a row are within
# a thousandth of it one time in 10^25.
STDDEV = 1000.0


def model(embedding: Any = LazyEmbedding) -> Any:
    """A model that is compiled; a step puts noise of size STDDEV on rows."""
    ids = keras.Input((2,), dtype="int32")
    rows = embedding(ROWS, WIDTH, name="table")(ids)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    made = keras.Model(ids, outputs)
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0),
        noise_multiplier=4 * STDDEV,
        expected_batch_size=4,
    )
    made.compile(optimizer=optimizer, loss=keras.losses.MeanSquaredError())
    optimizer.build(made.trainable_variables)
    return made


def table_of(made: Any) -> LazyVariable:
    layer = made if isinstance(made, LazyEmbedding) else made.get_layer("table")
    found = lazy_variable(layer.embeddings)
    assert found is not None
    return found


def without_noise(table: LazyVariable) -> np.ndarray:
    """What stands in the table: the one way to see it, for want of a lock."""
    read = tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=tf.float32)
    return read.numpy().copy()


def owing(table: LazyVariable) -> np.ndarray:
    """Lets every row lack noise; gives the rows that nobody may see."""
    table.add(tf.IndexedSlices(tf.ones([1, WIDTH]), [3]), STDDEV)
    assert table.noise.exists
    return without_noise(table)


def check(left: Any, table: LazyVariable, hidden: np.ndarray) -> None:
    """What left had its noise, and all who look see the same noise."""
    left = np.asarray(left)
    assert left.shape == hidden.shape
    assert np.all(np.max(np.abs(left - hidden), 1) > STDDEV / 1000)
    np.testing.assert_array_equal(left, table.numpy())


def contents(path: pathlib.Path) -> bytes:
    """Everything in a file or folder, archives unpacked."""
    if path.is_dir():
        return b"".join(map(contents, path.iterdir()))
    data = path.read_bytes()
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(path) as archive:
            return b"".join(archive.read(name) for name in archive.namelist())
    return data


def check_files(path: pathlib.Path, made: Any, hidden: np.ndarray) -> None:
    """No file holds a key, nor a row as it was without noise."""
    data = contents(path)
    keys = [table_of(made).noise._keys, made.optimizer._private.keys]
    for half in np.concatenate([key._root.numpy() for key in keys]):
        there = half.tobytes()
        for trace in (there, there[::-1], str(half).encode()):
            assert trace not in data
    for row in hidden:
        assert row.tobytes() not in data
