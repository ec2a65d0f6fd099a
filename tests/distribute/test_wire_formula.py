"""The bytes of `benchmarks/scale_costs.py` are those of the traced step."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tests.distribute import cluster

pytestmark = pytest.mark.once


def test_bytes_of_all_mechanisms(tmp_path: pathlib.Path) -> None:
    cluster.run(1, tmp_path, "tests.distribute.wire_case")
    found = dict(np.load(tmp_path / "found.npz"))
    expected = dict(np.load(tmp_path / "expected.npz"))
    assert found.keys() == expected.keys() and len(found) == 14
    for name, sent in found.items():
        np.testing.assert_array_equal(sent, expected[name], name)
        if name.endswith(" 10000") and not name.startswith("CompressedS"):
            np.testing.assert_array_equal(sent, found[f"{name}000"], name)
