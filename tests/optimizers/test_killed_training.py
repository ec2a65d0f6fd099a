"""Whenever a training is killed, what it published was charged before.

`pytest --kill-points 50` kills more trainings than the default. No claim is
about chance, but that noise which is not the same differs: four numbers of it
agree to a thousandth one time in 10^13.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.optimizers import killed_training

# Files and processes, which are the same on both Kerases.
pytestmark = pytest.mark.once

SEED = 5


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> list[dict[str, Any]]:
    """What came of each kill, the last being of a training that pays late."""
    points = pytestconfig.getoption("--kill-points")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.optimizers.killed_training",
            str(tmp_path_factory.mktemp("killed")),
            str(points),
            str(SEED),
        ],
        cwd=pathlib.Path(__file__).parents[2],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    size, *kills = map(json.loads, done.stdout.splitlines())
    assert len(kills) == points + 1
    assert size["lines"] >= killed_training.STEPS / killed_training.BLOCK
    return kills


def test_nothing_is_published_that_was_not_charged(
    found: list[dict[str, Any]],
) -> None:
    kills = found[:-1]
    for kill in kills:
        print(kill)
    assert not any(kill["problems"] for kill in kills)
    # One may end before it is killed, and some die before the first step.
    assert sum(kill["killed"] for kill in kills) > len(kills) / 2
    assert any(kill["released"] for kill in kills)
    # No more is lost than a block.
    for kill in kills:
        lost = kill["charged"] - kill["released"]
        assert 0 <= lost <= 2 * killed_training.BLOCK


def test_paying_late_is_found_out(found: list[dict[str, Any]]) -> None:
    late = found[-1]
    assert late["kind"] == "late" and late["killed"]
    assert late["charged"] < late["released"]
    assert any("published" in problem for problem in late["problems"])
