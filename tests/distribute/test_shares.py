"""What an optimizer does that is one of several processes', and what not."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.optimizers import wrapper
from tf_sparse_dp.sampling.workers import Share
from tf_sparse_dp.selected_models import check_trained

keras = tf.keras
SAMPLING = tsdp.PoissonSampling(num_examples=100, batch_size=10, steps=5)
PLAN = tsdp.PrivacyPlan(epsilon=3.0, delta=1e-5, sampling=SAMPLING)


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Share:
    """Optimizers that are made are those of the second of two workers."""
    share = Share(1, 2)
    monkeypatch.setattr(wrapper, "current_share", lambda: share)
    return share


def test_only_the_first_worker_has_a_ledger(
    second: Share, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), PLAN, ledger=path
    )
    assert not path.exists()
    assert optimizer.workers == 2
    monkeypatch.setattr(wrapper, "current_share", Share)
    first = tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), PLAN, ledger=path)
    config = first.get_config()
    path.rename(tmp_path / "on the first machine")
    with pytest.raises(tsdp.PrivacyStateError, match="not there"):
        type(first).from_config(config).privacy_statement()
    monkeypatch.setattr(wrapper, "current_share", lambda: second)
    other = type(first).from_config(config)
    assert "The network between workers" in str(other.privacy_statement())


def test_an_optimizer_of_other_workers_takes_no_step(second: Share) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), PLAN)
    model.compile(optimizer, "mse")
    with pytest.raises(ValueError, match="made as worker 1 of 2, and takes"):
        model.fit(tf.ones([8, 2]), tf.ones([8]), batch_size=8, verbose=0)


@pytest.mark.once
def test_a_selection_refuses_models_of_several_workers(second: Share) -> None:
    optimizer = tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), PLAN)
    model: Any = types.SimpleNamespace(optimizer=optimizer)
    plan = tsdp.SelectionPlan(run=PLAN, mean_runs=3.0, delta=1e-4)
    with pytest.raises(ValueError, match="2 processes trained together"):
        check_trained(model, plan, set(), set())


@pytest.mark.once
def test_batch_sizes_are_asked_for_one_worker() -> None:
    sampling = tsdp.PoissonSampling(
        num_examples=100, batch_size=10, steps=5, workers=2
    )
    with pytest.raises(ValueError, match="Ask for workers=1"):
        tsdp.batch_size_for_budget(
            sampling, noise_multiplier=2.0, epsilon=3.0, delta=1e-5
        )
