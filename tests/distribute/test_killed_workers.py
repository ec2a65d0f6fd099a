"""Workers that are killed: their job goes on, and nothing is refunded."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.distribute.cluster import ROOT
from tests.examples.test_jobs import charged, taken

# tf-keras in any case: Keras 3 has no `fit` for several workers.
pytestmark = pytest.mark.once

EVERY = 10
PATIENCE = 900.0  # Seconds.


def steps(folder: pathlib.Path, worker: int) -> list[str]:
    """What a worker wrote down of its steps, in all its lives."""
    path = folder / f"steps{worker}"
    return path.read_text().splitlines() if path.exists() else []


def kill_one(folder: pathlib.Path, chance: random.Random) -> None:
    """Kills a worker when some more steps were taken, or while it starts."""
    before = time.monotonic()
    pids = [folder / f"process{worker}" for worker in range(2)]
    old = [path.read_text() if path.exists() else "" for path in pids]
    starting = chance.random() < 0.25
    delay = chance.uniform(0.0, 6.0)
    goal = len(steps(folder, 0)) + chance.randint(1, 3 * EVERY)
    while time.monotonic() < before + PATIENCE:
        new = [path.read_text() if path.exists() else "" for path in pids]
        if all(x and x != y for x, y in zip(new, old, strict=True)):
            if starting:
                time.sleep(delay)
                break
            if len(steps(folder, 0)) >= goal:
                time.sleep(chance.uniform(0.0, 0.05))
                break
        time.sleep(0.01)
    else:
        raise AssertionError("no worker was there to be killed")
    os.kill(int(new[chance.randrange(2)]), signal.SIGKILL)
    # A step is written down when it was taken, and paid before.
    lines = steps(folder, 0)
    assert not lines or len(lines) <= charged(folder)


def test_killed_workers(
    tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    kills = request.config.getoption("--worker-kills")
    chance = random.Random(kills)
    budget = 2 * EVERY * (kills + 1) + 3 * EVERY * kills
    command = [
        *(sys.executable, str(ROOT / "tests/distribute/killed_workers.py")),
        *(f"--folder={tmp_path}", "--local-workers=2"),
        *(f"--restarts={kills}", f"--steps={budget}"),
        *(f"--checkpoint-every={EVERY}", "--examples=3000", "--batch-size=50"),
        *("--table-sizes", "user=200", "item=100"),
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for _ in range(kills):
            kill_one(tmp_path, chance)
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, output[-3000:]
    assert output.count("restarts left") == kills
    lines = steps(tmp_path, 0)
    assert len(lines) <= charged(tmp_path) <= budget
    assert taken(tmp_path) >= budget - kills * EVERY
    # A step that is taken again has other noise.
    assert len(set(lines)) == len(lines)
    numbers = [line.split()[0] for line in lines]
    assert len(set(numbers)) < len(numbers) or len(lines) == taken(tmp_path)
    # Both workers had the same weights after each step that both wrote down.
    both = set(lines) & set(steps(tmp_path, 1))
    assert len(both) >= taken(tmp_path) - kills
