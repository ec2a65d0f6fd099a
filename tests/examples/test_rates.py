"""The program that measures the paper's rates, on fewer examples."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
LINE = re.compile(r"slope (-[\d.]+), expected (-[\d.]+)")


@pytest.mark.once
def test_slopes_are_those_of_the_theorems(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "reproduce_rates.py"), "--smoke"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    slopes = [tuple(map(float, pair)) for pair in LINE.findall(done.stdout)]
    assert sorted(expected for _, expected in slopes) == [-1, -1, -0.5, -0.5]
    for found, expected in slopes:
        # Logarithms of d/n make the smaller slope a little steeper.
        assert expected - 0.12 < found < expected + 0.05
    assert (tmp_path / "rates.png").stat().st_size > 1000
