"""A disk that is full takes nothing back of what was spent.

`tests/accounting/test_ledger_file.py` fills the disk under a ledger alone; here
a training pays by it, and states are saved over older ones.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.faults.stored import full_disk
from tests.optimizers import small_run

keras = tf.keras

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _with_ledger(path: pathlib.Path) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), small_run.plan(), ledger=path
    )
    model.compile(optimizer, "mse")
    return model


def _fit(model: Any, steps: int) -> None:
    small_run.train(model, steps, callbacks=[tsdp.PrivacyBudget(reserve=1)])


def test_what_cannot_be_paid_is_not_trained(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "privacy.jsonl"
    model = _with_ledger(path)
    _fit(model, 2)
    before, written = model.get_weights(), path.read_bytes()
    with (
        pytest.raises(tsdp.PrivacyStateError, match="File too large"),
        full_disk(len(written) + 20),
    ):
        _fit(model, 2)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert path.read_bytes() == written
    # With room again it goes on, and nothing was given back.
    _fit(model, 1)
    assert model.optimizer.compositions_spent == 3
    assert _with_ledger(path).optimizer.compositions_spent == 3


# Not .weights.h5: HDF5 may end the process where it cannot write.
FORMS = ["keras", "checkpoint"]


@pytest.fixture(scope="module")
def trained() -> Any:
    model = small_run.model()
    small_run.train(model, 2)
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("room", [0, 500, 9000])
def test_a_state_that_was_not_saved_refunds_nothing(
    form: str, room: int, trained: Any, tmp_path: pathlib.Path
) -> None:
    """The old file may be gone: whatever is there is refused, or counts."""
    small_run.save(trained, form, tmp_path)
    sizes = [p.stat().st_size for p in tmp_path.iterdir() if p.is_file()]
    assert max(sizes) > 500
    room = min(room, max(sizes) - 1)
    errors = (OSError, RuntimeError, tf.errors.OpError)
    with pytest.raises(errors), full_disk(room):
        small_run.save(trained, form, tmp_path)
    assert trained.optimizer.compositions_spent == 2
    into = None if form == "keras" else small_run.model()
    try:
        loaded = small_run.load(form, tmp_path, into)
        loaded.optimizer.privacy_statement()
    except Exception as error:
        assert str(error)
    else:
        assert loaded.optimizer.compositions_spent == 2


def test_older_checkpoints_of_a_manager_stay_readable(
    trained: Any, tmp_path: pathlib.Path
) -> None:
    written = tf.train.Checkpoint(model=trained, optimizer=trained.optimizer)
    manager = tf.train.CheckpointManager(written, str(tmp_path), 2)
    first = manager.save()
    with pytest.raises((OSError, tf.errors.OpError)), full_disk(100):
        manager.save()
    other = small_run.model()
    again = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
    assert tf.train.latest_checkpoint(str(tmp_path)) == first
    again.restore(first)
    assert other.optimizer.compositions_spent == 2
    for left, right in zip(
        trained.get_weights(), other.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(left, right)
