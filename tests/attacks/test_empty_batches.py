"""Attack: see in what is released that nobody was drawn.

A step without examples has to be a step: charged, with all of its noise, in
the form of any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.noise_claims import UNSEEDED, assert_stddev, stddev_refuted

keras = tf.keras

STEPS = 20
N, WIDTH = 50, 480
X = np.random.RandomState(0).randn(N, 20).astype("float32")
Y = np.ones([N, WIDTH], "float32")
SAMPLING = tsdp.PoissonSampling(
    num_examples=N, batch_size=5, steps=STEPS, max_batch_size=40
)
# Sums are divided by 5; noise has the size of the clip norm.
STDDEV = 1.0 / 5


class Batches(keras.callbacks.Callback):
    """By how much each step moves the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[np.ndarray] = []
        self.counts: list[int] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.before = self._weights()

    def _weights(self) -> np.ndarray:
        return self.model.get_weights()[0].copy()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = self._weights()
        self.moves.append(now - self.before)
        self.counts.append(self.model.optimizer.compositions_spent)
        self.before = now


def trained(drawn: Any) -> Batches:
    """Trains on batches of which only some rows were drawn."""
    layer = keras.layers.Dense(WIDTH, use_bias=False)
    model = keras.Sequential([keras.Input((20,)), layer])
    plan = tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-2, sampling=SAMPLING)
    model.compile(
        tsdp.DPSparseOptimizer(keras.optimizers.SGD(1.0), plan), "mse"
    )
    data = SAMPLING.dataset((X, Y)).map(drawn)
    batches = Batches()
    model.fit(data, verbose=0, callbacks=[batches])
    assert model.optimizer.compositions_spent == STEPS
    return batches


@pytest.fixture(scope="module")
def empty() -> Batches:
    """As if every coin had said no: zeros in place of everybody."""
    return trained(lambda x, y, valid: (0.0 * x, 0.0 * y, tf.zeros_like(valid)))


def test_a_step_without_examples_is_a_step(empty: Batches) -> None:
    """False alarm: 2e-8 for all 20 steps together."""
    assert empty.counts == list(range(1, STEPS + 1))
    for move in empty.moves:
        assert np.isfinite(move).all()
        assert_stddev(move, STDDEV, UNSEEDED)


def test_what_is_released_over_steps_adds_up(empty: Batches) -> None:
    assert_stddev(sum(empty.moves), STDDEV * STEPS**0.5, UNSEEDED)


def test_all_steps_have_the_same_grid(empty: Batches) -> None:
    """Low-order bits would tell a batch of nobody from one of somebody."""
    full = trained(lambda x, y, valid: (x, y, valid))
    grid = 2.0**-12 / 5

    def off_grid(moves: list[np.ndarray]) -> float:
        points = np.concatenate([np.ravel(m) for m in moves]) / grid
        return float(np.abs(points - np.round(points)).max())

    # Weights have rounding errors of their own, near 1e-7.
    assert off_grid(empty.moves[:2]) < 0.02
    assert off_grid(full.moves[:2]) < 0.02
    assert full.counts == empty.counts


def test_a_step_that_is_left_out_would_be_seen(empty: Batches) -> None:
    left_out = [np.zeros_like(empty.moves[0]), *empty.moves[1:]]
    assert stddev_refuted(left_out[0], STDDEV, UNSEEDED)
    fewer = sum(left_out[: STEPS // 2])
    assert stddev_refuted(fewer, STDDEV * STEPS**0.5, UNSEEDED)
