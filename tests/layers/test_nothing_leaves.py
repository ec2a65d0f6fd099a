"""A table that lacks noise leaves by no way of saving, copying or exporting."""

from __future__ import annotations

import copy
import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.layers import owed_noise
from tests.layers.owed_noise import (
    IDS,
    ROWS,
    STDDEV,
    TARGETS,
    WIDTH,
    check,
    check_files,
    owing,
    table_of,
)
from tf_sparse_dp.gradients import internals

keras = tf.keras
KERAS_3 = hasattr(keras, "__version__")
SIGNATURE = [tf.TensorSpec([None, 2], tf.int32)]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def model() -> Any:
    return owed_noise.model()


def in_checkpoint(path: str) -> np.ndarray:
    """The table in a checkpoint, read without the library."""
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    first, *others = [
        reader.get_tensor(key)
        for key, shape in shapes.items()
        if shape == [ROWS, WIDTH]
    ]
    for other in others:  # Keras exports variables twice.
        np.testing.assert_array_equal(first, other)
    return first


def in_saved_model(path: str) -> np.ndarray:
    return in_checkpoint(f"{path}/variables/variables")


def loaded(path: str) -> np.ndarray:
    return keras.models.load_model(path, compile=False).get_weights()[0]


def weights_in(path: str) -> np.ndarray:
    fresh = owed_noise.model()
    fresh.load_weights(path)
    return fresh.get_weights()[0]


def save(model: Any, path: str) -> np.ndarray:
    model.save(f"{path}.keras")
    return loaded(f"{path}.keras")


def save_h5(model: Any, path: str) -> np.ndarray:
    model.save(f"{path}.h5")
    return loaded(f"{path}.h5")


def save_weights(model: Any, path: str) -> np.ndarray:
    model.save_weights(f"{path}.weights.h5")
    return weights_in(f"{path}.weights.h5")


def save_folder(model: Any, path: str) -> np.ndarray:
    model.save(path)
    np.testing.assert_array_equal(loaded(path), in_saved_model(path))
    return in_saved_model(path)


def save_tf_weights(model: Any, path: str) -> np.ndarray:
    model.save_weights(path)
    return in_checkpoint(path)


def checkpoint(model: Any, path: str) -> np.ndarray:
    written = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    return in_checkpoint(written.write(path))


def checkpoint_of_variable(model: Any, path: str) -> np.ndarray:
    return in_checkpoint(tf.train.Checkpoint(v=table_of(model)).write(path))


def managed(model: Any, path: str) -> np.ndarray:
    written = tf.train.Checkpoint(model=model)
    return in_checkpoint(tf.train.CheckpointManager(written, path, 1).save())


def asynchronous(model: Any, path: str) -> np.ndarray:
    written = tf.train.Checkpoint(v=table_of(model))
    options = tf.train.CheckpointOptions(
        experimental_enable_async_checkpoint=True
    )
    saved = written.save(path, options=options)
    written.sync()
    return in_checkpoint(saved)


def saver(model: Any, path: str) -> np.ndarray:
    old = tf.compat.v1.train.Saver([table_of(model)])
    return in_checkpoint(old.save(None, path))


def export(model: Any, path: str) -> np.ndarray:
    model.export(path)
    served = tf.saved_model.load(path)
    np.testing.assert_allclose(served.serve(IDS), model(IDS), rtol=1e-5)
    return in_saved_model(path)


def endpoint(model: Any, path: str) -> np.ndarray:
    archive = keras.export.ExportArchive()
    archive.track(model)
    layer = model.get_layer("table")
    archive.add_endpoint(
        "rows", lambda ids: layer(ids), [tf.TensorSpec([None], tf.int32)]
    )
    archive.write_out(path)
    served = tf.saved_model.load(path)
    return served.rows(tf.range(ROWS))


def signature(model: Any, path: str) -> np.ndarray:
    """A function that has been called before, and draws noise by itself."""
    function = tf.function(lambda ids: model(ids), input_signature=SIGNATURE)
    function(IDS)
    owing(table_of(model))
    tf.saved_model.save(model, path, signatures=function)
    served = tf.saved_model.load(path)
    served.signatures["serving_default"](tf.constant(IDS))
    return in_saved_model(path)


def module(model: Any, path: str) -> np.ndarray:
    holder = tf.Module()
    holder.table = table_of(model)
    holder.rows = tf.function(
        lambda ids: tf.gather(holder.table, ids),
        input_signature=[tf.TensorSpec([None], tf.int32)],
    )
    tf.saved_model.save(holder, path)
    served = tf.saved_model.load(path)
    return served.rows(tf.range(ROWS))


def data_set(model: Any, path: str) -> np.ndarray:
    tf.data.Dataset.from_tensors(table_of(model)).save(path)
    return next(iter(tf.data.Dataset.load(path)))


def pickled(model: Any, path: str) -> np.ndarray:
    data = pickle.dumps(model)
    pathlib.Path(path).write_bytes(data)
    return pickle.loads(data).get_weights()[0]


def lite(model: Any, path: str) -> np.ndarray:
    """Looks the rows up in the converted model."""
    rows = keras.Model(model.input, model.get_layer("table").output)
    data = tf.lite.TFLiteConverter.from_keras_model(rows).convert()
    pathlib.Path(path).write_bytes(data)
    place = data.find(table_of(rows).numpy().tobytes())
    assert place > 0
    return np.frombuffer(data, np.float32, ROWS * WIDTH, place).reshape(
        ROWS, WIDTH
    )


Way = Callable[[Any, str], Any]
WAYS: dict[str, Way] = {
    "archive": save,
    "h5": save_h5,
    "weights": save_weights,
    "checkpoint": checkpoint,
    "checkpoint of the variable": checkpoint_of_variable,
    "checkpoint manager": managed,
    "asynchronous checkpoint": asynchronous,
    "saver": saver,
    "export": export,
    "endpoint": endpoint,
    "signature": signature,
    "module": module,
    "data set": data_set,
    "pickle": pickled,
    "lite": lite,
    "get_weights": lambda model, path: model.get_weights()[0],
    "weights of the layer": lambda model, path: model.get_layer(
        "table"
    ).get_weights()[0],
    "copy of the layer": lambda model, path: copy.deepcopy(
        model.get_layer("table")
    ).get_weights()[0],
    "copy of the model": lambda model, path: copy.deepcopy(model).get_weights()[
        0
    ],
}
TF_KERAS_WAYS: dict[str, Way] = {
    "folder": save_folder,
    "tf weights": save_tf_weights,
}
if not KERAS_3:
    WAYS |= TF_KERAS_WAYS
SHORT = ("archive", "weights", "checkpoint", "export", "pickle")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.lane if name in SHORT else ())
        for name in WAYS
    ],
)
def test_what_leaves_has_noise(
    name: str, model: Any, tmp_path: pathlib.Path
) -> None:
    table = table_of(model)
    hidden = owing(table)
    left = WAYS[name](model, str(tmp_path / "saved"))
    check(left, table, hidden)
    check_files(tmp_path, model, hidden)


def test_saving_without_noise_is_found_out(
    model: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(model)
    hidden = owing(table)
    monkeypatch.setattr(type(table), "_drawn", lambda *_: [])
    left = save_weights(model, str(tmp_path / "saved"))
    with pytest.raises(AssertionError):
        check(left, table, hidden)
    with pytest.raises(AssertionError):
        check_files(tmp_path, model, hidden)


class Leaving(keras.callbacks.Callback):
    """Saves in the middle of training."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self.path, self.saved = path, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        table = table_of(self.model)
        assert table.noise.exists
        hidden = owed_noise.without_noise(table)
        way = (save_weights, checkpoint)[batch % 2]
        path = self.path / f"{batch}"
        path.mkdir()
        check(way(self.model, str(path / "saved")), table, hidden)
        check_files(path, self.model, hidden)
        self.saved += 1


def test_what_leaves_during_training_has_noise(tmp_path: pathlib.Path) -> None:
    made = owed_noise.model()
    leaving = Leaving(tmp_path)
    made.fit(
        np.repeat(IDS, 2, 0),
        np.repeat(TARGETS, 2, 0),
        batch_size=4,
        verbose=0,
        callbacks=[leaving],
    )
    assert leaving.saved == 2


def test_callbacks_of_keras_save_with_noise(tmp_path: pathlib.Path) -> None:
    made = owed_noise.model()
    seen = []

    class Looking(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch:
                saved = weights_in(str(tmp_path / "kept.weights.h5"))
                seen.append(saved)
                np.testing.assert_array_equal(saved, table_of(made).numpy())

    made.fit(
        np.repeat(IDS, 2, 0),
        np.repeat(TARGETS, 2, 0),
        batch_size=4,
        verbose=0,
        callbacks=[
            Looking(),
            keras.callbacks.ModelCheckpoint(
                str(tmp_path / "kept.weights.h5"),
                save_freq=1,
                save_weights_only=True,
            ),
            keras.callbacks.BackupAndRestore(
                str(tmp_path / "backup"), save_freq=1
            ),
        ],
    )
    assert len(seen) == 1
    # Untouched rows begin within 0.05 of 0.
    assert np.all(np.max(np.abs(seen[0]), 1) > STDDEV / 1000)


@pytest.mark.once
@pytest.mark.parametrize("compiled", [False, True])
def test_exported_functions_read_no_row_that_lacks_noise(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that Keras has traced for a file, and that are then called."""
    layer = owed_noise.LazyEmbedding(ROWS, WIDTH)
    layer.build((None,))
    table = table_of(layer)
    ways = [
        lambda ids: layer(ids),
        lambda ids: tf.gather(tf.convert_to_tensor(table), ids),
        lambda ids: tf.gather_nd(table, ids[:, tf.newaxis]),
    ]
    for way in ways[: 1 if compiled else 3]:
        function = tf.function(way, jit_compile=compiled)
        with monkeypatch.context() as patched:
            patched.setattr(
                "tf_sparse_dp.layers.lazy_variable.is_run_elsewhere",
                lambda: True,
            )
            traced = function.get_concrete_function(tf.range(ROWS))
        rows = traced(tf.range(ROWS))
        np.testing.assert_array_equal(rows, table.numpy())
        hidden = owing(table)
        if compiled:
            assert np.all(np.isnan(traced(tf.range(ROWS))))
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match="export"):
                traced(tf.range(ROWS))
        check(table, table, hidden)


def test_exporting_is_noticed(tmp_path: pathlib.Path) -> None:
    made = owed_noise.model()
    noticed = []

    class Noticing(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            if not tf.executing_eagerly():
                noticed.append(
                    internals.is_run_elsewhere() or internals.is_saved_only()
                )
            return inputs

    outer = keras.Sequential([keras.Input((2,)), Noticing()])
    noticed.clear()
    outer.export(str(tmp_path / "exported"))
    assert noticed and all(noticed)
    tf.function(outer)(tf.zeros([1, 2]))
    assert not noticed[-1]
    del made


@pytest.mark.lane
def test_what_is_loaded_replaces_what_lacked_noise(
    model: Any, tmp_path: pathlib.Path
) -> None:
    table = table_of(model)
    values = np.arange(ROWS * WIDTH, dtype="float32").reshape(ROWS, WIDTH)
    table.assign(values)
    others = model.get_weights()[1:]
    save_weights(model, str(tmp_path / "saved"))
    written = tf.train.Checkpoint(model=model)
    path = written.write(str(tmp_path / "checkpoint"))
    for load in (
        lambda: model.set_weights([values, *others]),
        lambda: model.load_weights(str(tmp_path / "saved.weights.h5")),
        lambda: written.read(path).assert_consumed(),
    ):
        owing(table)
        load()
        assert not table.noise.exists
        np.testing.assert_array_equal(table.numpy(), values)


def test_checkpoints_may_be_read_before_the_table_is_there(
    model: Any, tmp_path: pathlib.Path
) -> None:
    layer = owed_noise.LazyEmbedding(ROWS, WIDTH)
    path = tf.train.Checkpoint(layer=model.get_layer("table")).write(
        str(tmp_path / "checkpoint")
    )
    tf.train.Checkpoint(layer=layer).read(path)
    layer(tf.constant([1]))
    np.testing.assert_array_equal(
        layer.get_weights()[0], model.get_weights()[0]
    )
    check(layer.get_weights()[0], table_of(model), np.zeros([ROWS, WIDTH]))
