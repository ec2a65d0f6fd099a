"""Optimizers that spend one budget: as children, and by way of a file."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp

SAMPLING = tsdp.PoissonSampling(num_examples=400, batch_size=40, steps=9)
NOISE = 4.0


def train(budget, steps: int) -> tf.keras.Model:
    model = tf.keras.Sequential(
        [tf.keras.Input((3,)), tf.keras.layers.Dense(1)]
    )
    optimizer = tsdp.DPSparseOptimizer(
        tf.keras.optimizers.SGD(0.1),
        budget,
        sampling=SAMPLING,
        noise_multiplier=NOISE,
    )
    model.compile(optimizer, loss="mse")
    features = np.ones((400, 3), "float32")
    model.fit(
        SAMPLING.dataset((features, features[:, :1])),
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[tsdp.PrivacyBudget()],
    )
    return model


def charged(budget) -> int:
    return sum(count for _, count in budget.entries)


@pytest.mark.once
def test_children_add_up_and_each_keeps_its_own_ledger():
    budget = tsdp.RenyiFilter(epsilon=2.0, delta=1e-5)
    first = train(budget.child("first"), 5)
    second = train(budget.child("second"), 3)
    assert charged(budget) == 8
    assert first.optimizer.ledger().num_events == 5
    assert second.optimizer.ledger().num_events == 3
    ((event, _),) = budget.children["first"].entries
    assert first.optimizer.ledger().entries == [(event, 5)]


def test_a_loaded_run_is_not_charged_again(tmp_path):
    path = tmp_path / "budget.jsonl"
    budget = tsdp.SharedBudget(path, tsdp.RenyiFilter(epsilon=2.0, delta=1e-5))
    model = train(budget, 5)
    train(budget, 2)
    assert charged(budget) == 7
    model.save(tmp_path / "model.keras")
    again = tf.keras.models.load_model(tmp_path / "model.keras")
    assert charged(budget) == 7
    assert again.optimizer.ledger().num_events == 5
    # Without the file nobody knows what others spent.
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(tsdp.PrivacyStateError, match="is not there"):
        tf.keras.models.load_model(tmp_path / "model.keras")
    # An empty file holds less than the run had: it is charged there.
    other = tsdp.SharedBudget(path, tsdp.RenyiFilter(epsilon=2.0, delta=1e-5))
    tf.keras.models.load_model(tmp_path / "model.keras")
    tf.keras.models.load_model(tmp_path / "model.keras")
    assert charged(other) == 5
