"""What was spent survives, whatever happens between two steps."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers import small_run

FORMATS = ["keras", "weights", "checkpoint"]
if not small_run.KERAS_3:
    FORMATS += ["tf weights", "h5", "saved model"]


def run(mode: str, folder: pathlib.Path) -> dict[str, Any]:
    """Runs small_run in a new process; what it told of each format."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.optimizers.small_run",
            mode,
            folder,
            *FORMATS,
        ],
        cwd=pathlib.Path(__file__).parents[2],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = -signal.SIGKILL if mode == "save" else 0
    assert done.returncode == expected, done.stderr[-2000:]
    lines = [json.loads(x) for x in done.stdout.splitlines() if x[:1] == "{"]
    return {line["form"]: line for line in lines}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A process that saved and was killed, and two that went on."""
    folder = tmp_path_factory.mktemp("saved")
    saved = run("save", folder)
    found = [saved]
    for name in ("one", "another"):
        # Backups are used up: each process has one of its own.
        copied = folder.parent / name
        shutil.copytree(folder, copied)
        found.append(run("load", copied))
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_a_new_process_goes_on_where_the_old_one_stopped(
    form: str, runs: list[dict[str, Any]]
) -> None:
    saved, first, second = (told[form] for told in runs)
    assert saved["spent"] == 4
    for loaded in (first, second):
        assert loaded["loaded"] == 4
        assert loaded["spent"] == 5
        assert loaded["end"] == small_run.STEPS
    # Both start from the same weights; fresh noise leads them apart.
    a, b = (
        np.concatenate([np.ravel(w) for w in told["weights"]])
        for told in (first, second)
    )
    assert np.isclose(a, b).mean() < 0.5  # One may be close by chance.


def test_a_killed_process_is_restored_from_its_backup(
    runs: list[dict[str, Any]],
) -> None:
    killed, *restored = runs
    assert "backup" not in killed
    for told in restored:
        # Two epochs of two steps before the kill, one after.
        assert told["backup"]["spent"] == 6


@pytest.mark.parametrize("form", ["weights", "checkpoint"])
def test_going_back_in_process_refunds_nothing(
    form: str, tmp_path: pathlib.Path
) -> None:
    model = small_run.model()
    small_run.train(model, 2)
    small_run.save(model, form, tmp_path)
    then = small_run.weights(model)
    small_run.train(model, 3)
    small_run.load(form, tmp_path, into=model)
    for a, b in zip(then, small_run.weights(model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.optimizer.compositions_spent == 5
    small_run.train(model, 1)
    assert model.optimizer.compositions_spent == 6
    # What is saved after going back carries the higher count.
    small_run.save(model, form, tmp_path)
    fresh = small_run.load(form, tmp_path)
    assert fresh.optimizer.compositions_spent == 6


def test_going_back_in_process_repeats_no_noise(tmp_path: pathlib.Path) -> None:
    model = small_run.model()
    small_run.train(model, 1)
    small_run.save(model, "checkpoint", tmp_path)
    small_run.train(model, 1)
    first = small_run.weights(model)
    small_run.load("checkpoint", tmp_path, into=model)
    small_run.train(model, 1)
    a, b = (
        np.concatenate([np.ravel(w) for w in weights])
        for weights in (first, small_run.weights(model))
    )
    assert np.mean(a == b) < 0.5  # On a grid, one may be equal by chance.


@pytest.mark.parametrize("form", ["weights", "checkpoint"])
def test_an_older_state_after_a_newer_one_refunds_nothing(
    form: str, tmp_path: pathlib.Path
) -> None:
    model = small_run.model()
    folders = []
    for steps in (2, 5):
        small_run.train(model, steps)
        folders.append(tmp_path / str(steps))
        folders[-1].mkdir()
        small_run.save(model, form, folders[-1])
    fresh = small_run.load(form, folders[1])
    assert fresh.optimizer.compositions_spent == 7
    small_run.load(form, folders[0], into=fresh)
    assert fresh.optimizer.compositions_spent == 7


def test_writing_to_the_count_refunds_nothing(tmp_path: pathlib.Path) -> None:
    model = small_run.model()
    small_run.train(model, 3)
    model.optimizer.variables[0].assign(0)
    small_run.save(model, "weights", tmp_path)
    fresh = small_run.load("weights", tmp_path)
    assert fresh.optimizer.compositions_spent == 3


def test_restoring_before_the_first_step_is_kept(
    tmp_path: pathlib.Path,
) -> None:
    model = small_run.model()
    small_run.train(model, 3)
    small_run.save(model, "weights", tmp_path)
    fresh = small_run.load("weights", tmp_path)
    assert fresh.optimizer.compositions_spent == 3
    assert fresh.optimizer.compositions_left == small_run.STEPS - 3
    small_run.train(fresh, 1)
    assert fresh.optimizer.compositions_spent == 4
    assert (
        int(fresh.optimizer.iterations.numpy()) == 4
    )  # The inner state came along.


def test_state_of_another_optimizer_is_refused(tmp_path: pathlib.Path) -> None:
    model = small_run.model(inner=tf.keras.optimizers.Adam(0.1))
    small_run.train(model, 3)
    small_run.save(model, "weights", tmp_path)
    other = small_run.model(inner=tf.keras.optimizers.SGD(0.1))
    other.optimizer.build(other.trainable_variables)
    # Keras may turn the error into a warning; the step refuses all the same.
    with pytest.raises((tsdp.PrivacyStateError, ValueError)):
        other.load_weights(str(tmp_path / "model.weights.h5"))
        small_run.train(other, 1)
    with pytest.raises(tsdp.PrivacyStateError, match="does not fit"):
        other.optimizer.privacy_statement()


def test_set_weights_never_lowers_the_count() -> None:
    model = small_run.model()
    small_run.train(model, 3)
    values = [np.asarray(v) for v in model.optimizer.variables]
    values[0] = np.zeros_like(values[0])
    model.optimizer.set_weights(values)
    assert model.optimizer.compositions_spent == 3


def test_a_copy_keeps_the_count_and_draws_other_noise() -> None:
    optimizer = small_run.model().optimizer
    clone = type(optimizer).from_config(optimizer.get_config())
    assert clone.compositions_left == small_run.STEPS
    keys = copy.deepcopy(optimizer._private.keys)
    assert not np.array_equal(
        keys.next().numpy(), optimizer._private.keys.next().numpy()
    )


def test_a_used_configuration_carries_the_count() -> None:
    model = small_run.model()
    small_run.train(model, 3)
    clone = type(model.optimizer).from_config(model.optimizer.get_config())
    assert clone.compositions_spent == 3


@pytest.mark.skipif(
    small_run.KERAS_3, reason="only tf-keras writes weights without a count"
)
def test_weights_without_a_count_are_announced(tmp_path: pathlib.Path) -> None:
    model = small_run.model()
    small_run.train(model, 2, callbacks=[tsdp.PrivacyBudget()])
    with pytest.warns(tsdp.PrivacyWarning, match="carry no optimizer state"):
        model.save_weights(str(tmp_path / "weights.h5"))
    model.load_weights(str(tmp_path / "weights.h5"))
    assert model.optimizer.compositions_spent == 2


def test_configuration_round_trip() -> None:
    optimizer = small_run.model().optimizer
    config = json.loads(json.dumps(optimizer.get_config()))
    again = type(optimizer).from_config(config)
    assert again.get_config() == optimizer.get_config()
    assert again.plan == optimizer.plan
