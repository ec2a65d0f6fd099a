"""The root of the noise leaves the process in no file, graph or copy.

Whoever has the root can subtract the noise.
"""

from __future__ import annotations

import copy
import io
import pathlib
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.model_cases import KERAS_3

keras = tf.keras
layers = keras.layers

X = np.ones([4, 3], "float32")
Y = np.zeros([4, 2], "float32")
# Steps of the grid that noise of size 1 is rounded to, as weights move by it.
GRID = 0.1 / 4 * 2.0**-12


def quiet_model(seed: int | None = None) -> Any:
    """Every gradient is 0: only noise moves the weights."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=1.0,
            expected_batch_size=4,
            seed=seed,
        ),
        loss=lambda y, p: y * p,
    )
    return model


def all_weights(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


def noise_of_a_step(model: Any) -> np.ndarray:
    """In whole steps of the grid, wherever the weights were before."""
    before = all_weights(model)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert model.optimizer.compositions_spent > 0
    steps = (all_weights(model) - before) / GRID
    noise = np.rint(steps)
    assert np.abs(steps - noise).max() < 0.2 < np.abs(noise).max()
    return noise


def root(optimizer: Any) -> np.ndarray:
    return optimizer._private.keys._root.numpy()


def traces(number: Any) -> list[bytes]:
    """How a number may lie in a file: as it is, reversed, or in decimals."""
    there = number.tobytes()
    return [there, there[::-1], str(number).encode()]


def contents(path: pathlib.Path) -> bytes:
    """Everything in a file or folder, archives unpacked."""
    if path.is_dir():
        return b"".join(contents(inside) for inside in path.iterdir())
    data = path.read_bytes()
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(path) as archive:
            return b"".join(archive.read(name) for name in archive.namelist())
    return data


def _checkpoint(model: Any, path: pathlib.Path) -> None:
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(
        str(path / "checkpoint")
    )


FORMATS = {
    "archive": lambda model, path: model.save(path / "model.keras"),
    "weights": lambda model, path: model.save_weights(path / "m.weights.h5"),
    "checkpoint": _checkpoint,
    "saved model": lambda model, path: tf.saved_model.save(
        model, str(path / "saved")
    ),
    "exported": lambda model, path: model.export(str(path / "exported")),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_file_holds_the_root(name: str, tmp_path: pathlib.Path) -> None:
    model = quiet_model()
    noise_of_a_step(model)
    FORMATS[name](model, tmp_path)
    data = contents(tmp_path)
    kernel = model.get_weights()[0]
    assert kernel.tobytes() in data  # The search would find it.
    for half in root(model.optimizer):
        for trace in traces(half):
            assert trace not in data


def test_no_graph_holds_the_root() -> None:
    model = quiet_model()
    known = np.float32(1.2345678)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.float32),
            tf.TensorSpec([None, 2], tf.float32),
        ]
    )
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = known * tf.reduce_mean(tf.reduce_sum(model(x) * y, 1))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    graph = step.get_concrete_function().graph.as_graph_def()
    data = graph.SerializeToString(deterministic=True)
    assert known.tobytes() in data  # The search would find it.
    for half in root(model.optimizer):
        for trace in traces(half):
            assert trace not in data


def test_no_configuration_holds_the_root_or_the_seed() -> None:
    optimizer = quiet_model(seed=987654321).optimizer
    assert "987654321" not in str(optimizer.get_config())
    optimizer = quiet_model().optimizer
    for half in root(optimizer):
        assert str(half) not in str(optimizer.get_config())


def _from_config(optimizer: Any) -> Any:
    return type(optimizer).from_config(optimizer.get_config())


def _serialized(optimizer: Any) -> Any:
    serialized = keras.optimizers.serialize(optimizer)
    return keras.optimizers.deserialize(serialized)


COPIES = {"from_config": _from_config, "serialize": _serialized}
if KERAS_3:  # No optimizer of tf-keras can be copied or pickled.
    COPIES["copy"] = copy.copy
    COPIES["deepcopy"] = copy.deepcopy
    COPIES["pickle"] = lambda optimizer: pickle.loads(pickle.dumps(optimizer))


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_has_a_root_of_its_own(name: str) -> None:
    model = quiet_model()
    noise_of_a_step(model)
    other = COPIES[name](model.optimizer)
    assert not set(root(other)) & set(root(model.optimizer))
    assert other.compositions_spent == 1  # A copy refunds nothing.


def test_a_clone_of_a_model_draws_its_own_noise(tmp_path: Any) -> None:
    model = quiet_model()
    first = noise_of_a_step(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    loaded.compile(
        optimizer=_from_config(model.optimizer), loss=lambda y, p: y * p
    )
    # Any two of the 64 pairs are equal with probability 7e-5, and half of the
    # 8 numbers are found again with probability 2e-11.
    assert np.isin(noise_of_a_step(loaded), first).mean() < 0.5


def test_going_back_does_not_bring_back_noise(tmp_path: Any) -> None:
    """Even with a fixed seed, a restored state goes on with fresh noise."""
    model = quiet_model(seed=5)
    noise_of_a_step(model)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.write(str(tmp_path / "checkpoint"))
    start = model.get_weights()
    first = noise_of_a_step(model)
    checkpoint.read(path)
    np.testing.assert_array_equal(model.get_weights()[0], start[0])
    assert np.isin(noise_of_a_step(model), first).mean() < 0.5
