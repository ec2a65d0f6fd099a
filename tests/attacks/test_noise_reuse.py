"""Attack: go on twice from one state, and subtract.

If both drew the same noise, what is left is the difference of the gradients,
without any. States that are saved, copied and forked are tried; that keys are
in no file is shown by `tests/optimizers/test_key_secrecy.py`.
"""

from __future__ import annotations

import copy
import itertools
import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.layers import owed_noise
from tests.model_cases import KERAS_3
from tests.noise_claims import UNSEEDED, independence_refuted, stddev_refuted
from tests.optimizers import test_key_secrecy
from tf_sparse_dp import random_keys

keras = tf.keras
layers = keras.layers

WIDTH = 100
IDS = np.array([[1, 2], [3, 4], [1, 5], [2, 7]], np.int32)
# Examples of which all gradients are 0: weights move by noise alone.
LABELS = np.zeros([4, WIDTH], "float32")
WEIGHTS = np.zeros([4], "float32")
STDDEV = 0.25


def model() -> Any:
    ids = keras.Input((2,), dtype="int32")
    rows = tsdp.layers.LazyEmbedding(WIDTH, 8)(ids)
    made = keras.Model(ids, layers.Dense(WIDTH)(layers.Flatten()(rows)))
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0),
        noise_multiplier=4 * STDDEV,
        expected_batch_size=4,
    )
    made.compile(optimizer=optimizer, loss="mse")
    optimizer.build(made.trainable_variables)
    return made


def weights(a_model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(w) for w in a_model.get_weights()])


def noise_of_a_step(a_model: Any) -> np.ndarray:
    before = weights(a_model)
    a_model.fit(IDS, LABELS, sample_weight=WEIGHTS, batch_size=4, verbose=0)
    return weights(a_model) - before


def cancels(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two noises have something in common.

    The difference of independent ones has √2 of their size, and neither
    tells anything about the other.
    """
    return stddev_refuted(
        one - other, 2**0.5 * STDDEV, UNSEEDED
    ) or independence_refuted(one, other, STDDEV, UNSEEDED)


def _loaded(a_model: Any, path: str) -> Any:
    a_model.save(f"{path}.keras")
    return keras.models.load_model(f"{path}.keras")


def _weights(a_model: Any, path: str) -> Any:
    a_model.save_weights(f"{path}.weights.h5")
    other = model()
    other.load_weights(f"{path}.weights.h5")
    return other


def _checkpoint(a_model: Any, path: str) -> Any:
    written = tf.train.Checkpoint(model=a_model, optimizer=a_model.optimizer)
    other = model()
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(
        written.write(path)
    )
    return other


def _copied(a_model: Any, path: str) -> Any:
    other = model()
    other.set_weights(a_model.get_weights())
    other.compile(copy.deepcopy(a_model.optimizer), "mse")
    return other


STATES: dict[str, Callable[[Any, str], Any]] = {
    "archive": _loaded,
    "weights": _weights,
    "checkpoint": _checkpoint,
}
if KERAS_3:  # No optimizer of tf-keras can be copied.
    STATES["deepcopy"] = _copied


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_continuations_of_one_state_do_not_cancel(
    tmp_path: pathlib.Path,
) -> None:
    """False alarm: below 1e-7 for all pairs together."""
    first = model()
    noise_of_a_step(first)
    others = {
        name: state(first, str(tmp_path / name.replace(" ", "_")))
        for name, state in STATES.items()
    }
    kept = str(tmp_path / "kept.weights.h5")
    first.save_weights(kept)
    noises = {"itself": noise_of_a_step(first)}
    first.load_weights(kept)
    noises["itself again"] = noise_of_a_step(first)
    for name, other in others.items():
        assert other.optimizer.compositions_spent == 1, name
        noises[name] = noise_of_a_step(other)
    for (one, left), (two, right) in itertools.combinations(noises.items(), 2):
        assert not cancels(left, right), (one, two)
    # The attack finds it if a key comes twice, for all weights or for some.
    assert cancels(noises["itself"], noises["itself"])
    half = noises["itself again"].copy()
    half[: WIDTH * 4] = noises["itself"][: WIDTH * 4]
    assert cancels(noises["itself"], half)


def _compiled_step(a_model: Any) -> Callable[[], np.ndarray]:
    """A step that works in a forked process, which has no other threads."""

    @tf.function(jit_compile=True)
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(a_model(x) * y, 1))
        variables = a_model.trainable_variables
        gradients = tape.gradient(loss, variables)
        a_model.optimizer.apply_gradients(
            zip(gradients, variables, strict=True)
        )

    data = tf.constant(test_key_secrecy.X), tf.constant(test_key_secrecy.Y)
    step(*data)
    before = weights(a_model)

    def run() -> np.ndarray:
        step(*data)
        return weights(a_model) - before

    return run


def _in_a_fork(work: Callable[[], np.ndarray]) -> np.ndarray:
    """What a forked process finds; it is killed where it hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(30)
            os.write(writing, work().astype("float32").tobytes())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        data = told.read()
    os.waitpid(child, 0)
    assert data, "the forked process died"
    return np.frombuffer(data, "float32")


@pytest.fixture(scope="module")
def step() -> Callable[[], np.ndarray]:
    return _compiled_step(test_key_secrecy.quiet_model())


@pytest.mark.once
def test_forked_processes_do_not_cancel(step: Callable[..., Any]) -> None:
    """One of 8 numbers comes twice with probability 1e-3, all never."""
    one, other = _in_a_fork(step), _in_a_fork(step)
    assert np.abs(one).min() > 0
    assert np.isclose(one, other, rtol=1e-6).mean() < 0.5
    assert np.isclose(one, step(), rtol=1e-6).mean() < 0.5


@pytest.mark.once
def test_forked_processes_with_keys_of_their_parent_do(
    step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_keys, "_FORKED", {})
    np.testing.assert_array_equal(_in_a_fork(step), _in_a_fork(step))


@pytest.mark.once
def test_forked_processes_read_lazy_tables_with_noise_of_their_own() -> None:
    """Both go on from the same table, which lacks noise in memory."""
    table = owed_noise.table_of(_built(owed_noise.LazyEmbedding(200, 8)))
    compiled = tf.function(lambda: table + 0.0, jit_compile=True)
    compiled()
    table.add(tf.IndexedSlices(tf.zeros([1, 8]), [0]), STDDEV)
    before = owed_noise.without_noise(table)

    def run() -> np.ndarray:
        return np.ravel(compiled().numpy() - before)

    assert not cancels(_in_a_fork(run), _in_a_fork(run))


def _built(layer: Any) -> Any:
    layer.build((None,))
    return layer
