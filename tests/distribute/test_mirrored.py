"""Private steps on the replicas of a MirroredStrategy, on logical devices."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from tf_sparse_dp.distribute.refusals import check_strategy

ROOT = pathlib.Path(__file__).parents[2]


def run(*cases: str) -> None:
    """Runs cases in a process that makes its own devices."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.distribute.mirrored_cases", *cases],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for case in cases:
        assert f"done {case}" in done.stdout


def test_weights_are_those_of_one_device() -> None:
    run("without_noise", "units", "saved")


def test_one_draw_and_one_charge() -> None:
    run(
        "poisson", "apart", "forms", "shared", "iterators", "refusals", "memory"
    )


@pytest.mark.once
def test_noise_is_that_of_one_device() -> None:
    run("variance", "with_noise", "reductions")


@pytest.mark.once
def test_what_replicas_send() -> None:
    run("wire")


@pytest.mark.once
def test_replicas_of_other_strategies() -> None:
    alone = tf.distribute.get_strategy()
    check_strategy(alone)
    central = tf.distribute.experimental.CentralStorageStrategy()
    with central.scope(), pytest.raises(ValueError, match="1 replica of Cent"):
        check_strategy(central)


@pytest.mark.skipif(
    "tf_keras" in tf.keras.Model.__module__,
    reason="tf-keras gives replicas their shares in all versions",
)
def test_a_keras_that_does_not_share_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tf_sparse_dp.optimizers import keras3

    keras3._check_shares()
    monkeypatch.delattr(
        keras3.losses, "scale_loss_for_distribution", raising=False
    )
    keras3._check_shares()  # One device has all of the mean.
    monkeypatch.setattr(keras3.replicas, "count", lambda: 2)
    with pytest.raises(ValueError, match="does not divide losses"):
        keras3._check_shares()
