"""Training adds the noise that the optimizer was told to add.

In the model below every label is 0 and the loss is prediction times label, so
that every gradient is 0 whatever the weights are: only noise moves them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.noise_claims import (
    ENOUGH,
    UNSEEDED,
    assert_stddev,
    independence_refuted,
)

keras = tf.keras
layers = keras.layers

NOISE_MULTIPLIER, CLIP_NORM, BATCH_SIZE, LEARNING_RATE = 1.5, 0.4, 20, 0.7
STDDEV = LEARNING_RATE * NOISE_MULTIPLIER * CLIP_NORM / BATCH_SIZE
EXAMPLES, LOOKUPS = 16, ENOUGH // 16
IDS = np.arange(ENOUGH).reshape(EXAMPLES, LOOKUPS).astype("int32")
LABELS = np.zeros([EXAMPLES, ENOUGH], "float32")


class Scale(layers.Layer):
    """One scalar weight."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return self.scale * inputs


def quiet_model(
    seed: int | None = 1, built: bool = True, **options: Any
) -> Any:
    """Unless it is built, the first step is traced twice."""
    ids = keras.Input((LOOKUPS,), dtype="int32")
    table = layers.Embedding(2 * ENOUGH, 1, embeddings_initializer="zeros")
    pooled = layers.GlobalAveragePooling1D()(table(ids))
    score = layers.Dense(ENOUGH, kernel_initializer="zeros")
    model = keras.Model(ids, score(Scale()(pooled)))
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(LEARNING_RATE),
            clip_norm=CLIP_NORM,
            noise_multiplier=NOISE_MULTIPLIER,
            expected_batch_size=BATCH_SIZE,
            seed=seed,
        ),
        loss=lambda label, prediction: label * prediction,
        **options,
    )
    if built:
        model.optimizer.build(model.trainable_variables)
    return model


def moved(model: Any, steps: int = 1) -> dict[str, np.ndarray]:
    """How far training moves every kind of weight, in one run of `fit`."""
    before = model.get_weights()
    data = tf.data.Dataset.from_tensors((IDS, LABELS)).repeat(steps)
    model.fit(data, verbose=0)
    table, scale, kernel, bias = (
        after - old
        for after, old in zip(model.get_weights(), before, strict=True)
    )
    return {
        "touched rows": table[:ENOUGH],
        "other rows": table[ENOUGH:],
        "kernel": kernel,
        "bias": bias,
        "scalar": scale,
    }


LARGE = ("touched rows", "other rows", "kernel", "bias")
MODES = {
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_one_step(mode: str) -> None:
    found = moved(quiet_model(built=False, **MODES[mode]))
    for kind in LARGE:
        assert_stddev(found[kind], STDDEV)
    # Beyond 4.9 standard deviations one time in a million, and a thousand
    # times closer to 0 than one about as rarely as one in a thousand.
    assert 1e-3 * STDDEV < abs(found["scalar"]) < 4.9 * STDDEV
    for kind in LARGE[1:]:
        assert not independence_refuted(found[LARGE[0]], found[kind], STDDEV)


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 4}])
def test_steps_are_independent(options: dict[str, Any]) -> None:
    """The variances of independent steps add up.

    Repeated noise would move the weights four times as far as one step does,
    twice what is found.
    """
    found = moved(quiet_model(**options), steps=4)
    for kind in LARGE:
        assert_stddev(found[kind], 2 * STDDEV)


def test_runs_are_independent() -> None:
    model = quiet_model()
    first, second = moved(model), moved(model)
    for kind in LARGE:
        assert not independence_refuted(first[kind], second[kind], STDDEV)


def test_the_same_seed_gives_the_same_noise() -> None:
    first, second = moved(quiet_model(seed=3)), moved(quiet_model(seed=3))
    other = moved(quiet_model(seed=4))
    for kind in LARGE:
        np.testing.assert_array_equal(first[kind], second[kind])
        assert not independence_refuted(first[kind], other[kind], STDDEV)


def test_without_a_seed_noise_differs() -> None:
    """Also when all of Keras' and TensorFlow's own seeds are fixed."""
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        found.append(moved(quiet_model(seed=None)))
    for kind in LARGE:
        one, two = found[0][kind], found[1][kind]
        assert_stddev(one, STDDEV, UNSEEDED)
        assert not independence_refuted(one, two, STDDEV, UNSEEDED)


def test_without_noise_weights_stay() -> None:
    model = quiet_model()
    model.optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(LEARNING_RATE),
        noise_multiplier=0.0,
        expected_batch_size=BATCH_SIZE,
    )
    for change in moved(model).values():
        assert not np.any(change)
