"""What a mechanism cost before training is part of every claim."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers.small_run import weights

keras = tf.keras
ROWS, EXAMPLES, STEPS = 60, 100, 4
IDS = np.random.default_rng(0).integers(20, size=(EXAMPLES, 2)).astype("int32")
LABELS = np.ones([EXAMPLES, 1], "float32")
SAMPLING = tsdp.PoissonSampling(
    num_examples=EXAMPLES, batch_size=10, steps=STEPS, max_batch_size=50
)


def chosen() -> tsdp.FrequencySelection:
    return tsdp.FrequencySelection.private(
        {"items": IDS},
        table_rows={"items": ROWS},
        top=15,
        epsilon=0.5,
        delta=1e-4,
    )


def model(mechanism: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((2,), dtype="int32"),
        keras.layers.Embedding(ROWS, 3, name="items"),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
    result = keras.Sequential(layers)
    plan = tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-3, sampling=SAMPLING)
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), plan, mechanism=mechanism
    )
    result.compile(optimizer=optimizer, loss="mse")
    return result


def test_statement_and_progress(tmp_path: pathlib.Path) -> None:
    mechanism = chosen()
    trained = model(mechanism)
    optimizer = trained.optimizer
    assert optimizer.privacy_statement().epsilon_spent == 0.5
    before = weights(trained)[0]
    history = trained.fit(
        SAMPLING.dataset((IDS, LABELS)),
        steps_per_epoch=2,
        callbacks=[tsdp.PrivacyBudget()],
        verbose=0,
    )
    moved = (weights(trained)[0] != before).any(1)
    np.testing.assert_array_equal(
        np.flatnonzero(moved), mechanism.rows["items"]
    )

    statement = optimizer.privacy_statement()
    plan = optimizer.plan
    assert statement.private
    assert statement.epsilon == 0.5 + plan.epsilon
    assert statement.epsilon_spent == 0.5 + plan.epsilon_spent(2)
    assert statement.delta == 1e-3 + 1e-4
    assert statement.spent_before == (0.5, 1e-4)
    assert history.history["epsilon"] == [statement.epsilon_spent]
    text = " ".join(str(statement).split())
    assert "epsilon = 0.5 at delta = 0.0001 was spent on the mechanism" in text
    assert mechanism.assumptions[0] in text

    trained.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert again.privacy_statement() == statement


def test_a_table_without_rows_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match=r"items/embeddings.* has 0 entries"):
        model(tsdp.FrequencySelection(rows={"users": [1]})).fit(
            SAMPLING.dataset((IDS, LABELS)), steps_per_epoch=1, verbose=0
        )
