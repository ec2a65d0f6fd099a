"""Whenever a training with lazy noise is killed, what it saved has its noise.

`pytest --kill-points 50` kills more trainings than the default. No claim is
about chance, but that noise which is not the same differs.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.layers import killed_lazy_training

# Files and processes, which are the same on both Kerases.
pytestmark = pytest.mark.once

SEED = 6


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> list[dict[str, Any]]:
    """What came of each kill, the last of which are of wrong trainings."""
    points = pytestconfig.getoption("--kill-points")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.layers.killed_lazy_training",
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
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kills) == points + len(killed_lazy_training.WRONG)
    return kills


def test_what_is_saved_has_all_updates_and_all_noise(
    found: list[dict[str, Any]],
) -> None:
    kills = found[: -len(killed_lazy_training.WRONG)]
    for kill in kills:
        print(kill)
    assert not any(kill["problems"] for kill in kills)
    # Some may end before they are killed, and some save nothing.
    assert sum(kill["killed"] for kill in kills) > len(kills) / 2
    assert any(kill["states"] for kill in kills)
    for kill in kills:
        # No more is lost than steps that were paid ahead.
        lost = kill["charged"] - kill["taken"]
        assert 0 <= lost <= 2 * killed_lazy_training.BLOCK
        assert kill["torn"] <= 1


def test_wrong_trainings_are_found_out(found: list[dict[str, Any]]) -> None:
    without, seeded = found[-len(killed_lazy_training.WRONG) :]
    assert without["killed"] and seeded["killed"]
    assert any("rows are off" in problem for problem in without["problems"])
    assert any("not fresh" in problem for problem in seeded["problems"])
