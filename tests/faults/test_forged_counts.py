"""A count that is lowered in a saved file is refused, or is not believed.

Bits that flip by chance hardly ever hit the count; here it is looked for.
"""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest

import tf_sparse_dp as tsdp
from tests.optimizers import small_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SPENT = 3


def _lower(path: pathlib.Path) -> int:
    """Sets all whole numbers that are the count to one less."""
    lowered = 0

    def visit(name: str, node: Any) -> None:
        nonlocal lowered
        if (
            isinstance(node, h5py.Dataset)
            and node.shape == ()
            and np.issubdtype(node.dtype, np.integer)
            and int(node[()]) == SPENT
        ):
            node[()] = SPENT - 1
            lowered += 1

    with h5py.File(path, "r+") as file:
        file.visititems(visit)
    return lowered


@pytest.mark.skipif(
    not small_run.KERAS_3, reason="tf-keras keeps numbers under other names"
)
def test_a_count_that_was_lowered_is_not_believed(
    tmp_path: pathlib.Path,
) -> None:
    model = small_run.model()
    small_run.train(model, SPENT)
    small_run.save(model, "weights", tmp_path)
    path = tmp_path / small_run.FILES["weights"]
    kept = path.read_bytes()
    assert small_run.load("weights", tmp_path, small_run.model())
    assert _lower(path) >= 1
    assert path.read_bytes() != kept
    other = small_run.model()
    try:
        small_run.load("weights", tmp_path, other)
        spent = other.optimizer.compositions_spent
        other.optimizer.privacy_statement()
    except (tsdp.PrivacyStateError, ValueError) as error:
        assert str(error)
    else:
        assert spent >= SPENT


def test_a_count_in_memory_is_not_lowered_by_any_file(
    tmp_path: pathlib.Path,
) -> None:
    model = small_run.model()
    small_run.save(model, "checkpoint", tmp_path)
    small_run.train(model, 2)
    small_run.load("checkpoint", tmp_path, model)
    assert model.optimizer.compositions_spent == 2
