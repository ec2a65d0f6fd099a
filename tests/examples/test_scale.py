"""The tables in docs/scale.md are what `make bench-scale` prints."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks.scale import FIGURES, sized, tables, temporaries
from benchmarks.scale_costs import MECHANISMS, Setup, received

pytestmark = pytest.mark.once

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "scale.md"


def test_tables_are_those_of_the_script() -> None:
    text = DOCUMENT.read_text()
    for name, table in tables(json.loads(FIGURES.read_text())).items():
        assert f"\n{table}\n" in text, f"{name} should be\n{table}"


def test_compiler_agrees_with_the_formula() -> None:
    """Within a quarter, from 33 to 131,073 examples."""
    for program in json.loads(FIGURES.read_text())["compiler"]:
        setup = Setup(**program["setup"])
        formula = temporaries(MECHANISMS[program["mechanism"]](setup))
        assert 0.75 < formula / 1e6 / program["megabytes"] < 1.25, program


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_grows(name: str) -> None:
    """Wires with chips and never with rows; sharded steps with neither."""
    cost = MECHANISMS[name]

    def wire(parameters: int, chips: int, sharded: bool = False) -> float:
        setup = sized(parameters, chips, sharded)
        return received(cost(setup), setup)

    if name != "CompressedSensing":  # Its sketch grows with the logarithm.
        assert wire(10**12, 8) == wire(10**6, 8)
        assert wire(10**12, 512, True) < 1.01 * wire(10**12, 128, True)
    assert wire(10**12, 512) > 3 * wire(10**12, 128)


@pytest.mark.parametrize("name", MECHANISMS)
def test_memory_is_that_of_its_parts(name: str) -> None:
    cost, shard = MECHANISMS[name](sized(10**8)), sized(10**8, 8, True)
    assert cost.memory["table"] >= 4 * 10**8
    assert min(cost.memory.values()) >= 0
    assert MECHANISMS[name](shard).memory["table"] < cost.memory["table"] / 7
