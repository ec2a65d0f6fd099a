"""Layers for embedding hardware of TPUs: private without it, refused with it.

TPUEmbedding of TensorFlow Recommenders on tf-keras, DistributedEmbedding of
Keras Recommenders on Keras 3. Steps for TPUs are traced by TPUStrategy on a
machine without TPUs.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.distribute.tpu_layers import (
    BATCH,
    KERAS_3,
    ROWS,
    WIDTH,
    Model,
    compiled,
)
from tools.tpu_check.strategy import tpu_strategy_of
from tools.tpu_check.traced import TracedStep

ROOT = pathlib.Path(__file__).parents[2]
pytest.importorskip(
    "keras_rs" if KERAS_3 else "tensorflow_recommenders",
    reason="version lanes do without recommenders",
)


@pytest.fixture
def _full_precision() -> Iterator[None]:
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(True)


def _uninitialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what a layer asks of the hardware itself before tracing."""
    from tensorflow.python.tpu import tpu_embedding_v2

    monkeypatch.setattr(
        tpu_embedding_v2.tpu_ops, "is_tpu_embedding_initialized", bool
    )
    for owner, name in (
        (tpu_embedding_v2.tpu, "initialize_system_for_tpu_embedding"),
        (tpu_embedding_v2, "_load_variables_impl"),
    ):
        monkeypatch.setattr(owner, name, lambda *_: None)


def traced(strategy: tf.distribute.Strategy, **options: Any) -> tuple[Any, Any]:
    """A model, and the concrete function of its step on a TPU."""
    with strategy.scope():
        model = compiled(
            Model(**options), noise_multiplier=1.0, expected_batch_size=BATCH
        )

    @tf.function(autograph=False)
    def step(ids: Any, x: Any, y: Any) -> None:
        strategy.run(
            lambda ids, x, y: model.train_step(({"ids": ids, "x": x}, y)),
            args=(ids, x, y),
        )

    function = step.get_concrete_function(
        tf.TensorSpec([BATCH, 1], tf.int32),
        tf.TensorSpec([BATCH, 3]),
        tf.TensorSpec([BATCH, 1]),
    )
    return model, function


@pytest.mark.usefixtures("_full_precision")
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("hardware", ["V1", "V2"])
def test_tables_on_embedding_hardware_are_refused(
    hardware: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apart, all gradients separate, and the table trains without noise."""
    _uninitialised(monkeypatch)
    with pytest.raises(
        tsdp.NotSeparableError, match="uses embedding hardware of a TPU"
    ):
        traced(tpu_strategy_of(1, hardware), apart=apart)


@pytest.mark.usefixtures("_full_precision")
def test_on_a_tpu_without_its_embedding_hardware() -> None:
    """What the refusal recommends: the table is the optimizer's to train."""
    model, function = traced(tpu_strategy_of(1, "V2"), hardware=False)
    assert [tuple(v.shape) for v in model.trainable_variables] == [
        (ROWS, WIDTH),
        (WIDTH + 3, 1),
        (1,),
    ]
    TracedStep(function, [], [], [], [], 0).check_bridge()


def test_without_a_tpu_all_rows_get_noise() -> None:
    """Rows that nobody looked up, too: they must not tell who was there.

    7,920 numbers: their deviation is off by 5 % once in 3e9 runs.
    """
    random = np.random.default_rng(0)
    data = {
        "ids": random.integers(0, 10, [60, 1]).astype("int32"),
        "x": random.normal(size=[60, 3]).astype("float32"),
    }
    targets = random.normal(size=[60, 1]).astype("float32")
    sampling = tsdp.PoissonSampling(
        num_examples=60, batch_size=4, steps=3, max_batch_size=BATCH
    )
    plan = tsdp.PrivacyPlan(epsilon=8.0, delta=1e-2, sampling=sampling)
    model = compiled(
        Model(), plan=plan, clip_norm=1.0, mechanism=tsdp.Gaussian()
    )
    model({"ids": data["ids"][:BATCH], "x": data["x"][:BATCH]})
    (table,) = (v for v in model.trainable_variables if v.shape[0] == ROWS)
    before = table.numpy()
    model.fit(
        sampling.dataset((data, targets)),
        verbose=0,
        callbacks=[tsdp.PrivacyBudget()],
    )
    assert model.optimizer.compositions_spent == 3
    noise = (table.numpy() - before)[10:]
    expected = plan.noise_multiplier / 4 * np.sqrt(3)
    assert 0.95 < noise.std() / expected < 1.05


def test_on_two_replicas() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.distribute.mirrored_layers"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "done" in done.stdout
