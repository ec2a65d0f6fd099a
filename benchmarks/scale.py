"""What a private step takes from 10^6 to 10^12 parameters, on paper.

    make bench-scale
    make bench-scale ARGS="--measure"

Prints the tables of docs/scale.md, by the formulas of `scale_costs` and the
figures in scale.json: what operations cost, which `--measure` measures anew on
this machine (see `scale_constants`), and what the TPU's compiler said, which
`make tpu-check` asks it.

The step is that of a recommender: 1,024 examples on each chip, with 26 lookups
each in a table of rows of 64 numbers; an MLP 1677-512-256-128-1; SGD, noise
multiplier 1.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.scale_costs import (
    MECHANISMS,
    Cost,
    Setup,
    ordinary,
    ratio,
    received,
)

FIGURES = pathlib.Path(__file__).with_name("scale.json")
WIDTH = 64
PARAMETERS = [10**n for n in range(6, 13)]
BY_CHIPS = 10**8  # Parameters, where the number of chips varies.
CHIPS = [1, 8, 64, 512, 4096]
SHARDED = [(10**9, 8), (10**10, 64), (10**12, 4096)]
GIGABYTE, MEGABYTE = 1e9, 1e6
# Assumptions, from the data sheets: cloud.google.com/tpu/docs/v5e and v4.
V5E, V4 = 16 * GIGABYTE, 32 * 2**30
LINKS = 200e9  # Bytes a second into a v5e chip: half of 400 both ways.
HBM = 819e9
PRODUCTS = 197e12 / 2  # Multiplications and additions a second, in bfloat16.


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--measure", action="store_true", help="constants, into scale.json"
    )
    parser.add_argument("--turns", type=int, default=15)
    return parser.parse_args()


def sized(parameters: int, chips: int = 1, sharded: bool = False) -> Setup:
    """The recommender with a table of so many parameters."""
    return Setup(
        rows=parameters // WIDTH, width=WIDTH, chips=chips, sharded=sharded
    )


def tables(figures: dict[str, Any]) -> dict[str, str]:
    """All tables of docs/scale.md, by name."""
    ratios = figures["measured"]["ratios"]

    def memory(cost: Cost, setup: Setup) -> str:
        shown = number(cost.bytes / GIGABYTE)
        return f"**{shown}**" if cost.bytes <= V5E else shown

    def wire(cost: Cost, setup: Setup) -> str:
        return number(received(cost, setup) / MEGABYTE)

    def work(cost: Cost, setup: Setup) -> str:
        return number(ratio(cost, setup, ratios))

    one = {power(n): sized(n) for n in PARAMETERS}
    many = {chips(n): sized(BY_CHIPS, n) for n in CHIPS}
    many |= {
        f"sharded: {power(n)}, {chips(count)}": sized(n, count, sharded=True)
        for n, count in SHARDED
    }
    return {
        "constants": _constants(ratios),
        "memory by parameters": _by_mechanism("GB", one, memory, most=True),
        "memory by chips": _by_mechanism("GB", many, memory),
        "wire by chips": _by_mechanism("MB", many, wire),
        "work by parameters": _by_mechanism("ratio", one, work),
        "work by chips": _by_mechanism("ratio", many, work)
        + _ordinary(many, ratios),
        "floors": _floors(),
        "compiler": _compiler(figures["compiler"]),
        "steps": _steps(figures["steps"], ratios),
    }


def _by_mechanism(
    unit: str,
    setups: dict[str, Setup],
    show: Callable[[Cost, Setup], str],
    most: bool = False,
) -> str:
    """Figures for each size; mechanisms with the same ones share a line."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, mechanism in MECHANISMS.items():
        cells = []
        for setup in setups.values():
            cost = mechanism(setup)
            shown = show(cost, setup)
            cells.append(f"({shown})" if cost.refused else shown)
        if most:
            cells += [number(largest(mechanism, room)) for room in (V5E, V4)]
        names.setdefault(tuple(cells), []).append(f"`{name}`")
    head = [unit, *setups, *(["most, v5e", "most, v4"] if most else [])]
    return markdown(
        head, [[", ".join(group), *cells] for cells, group in names.items()]
    )


def largest(mechanism: Callable[[Setup], Cost], room: float) -> float:
    """The most parameters on one chip that fit."""
    low, high = 10**4, 10**13
    while high - low > low / 1000:
        middle = (low + high) // 2
        fits = mechanism(sized(middle)).bytes <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def _ordinary(setups: dict[str, Setup], ratios: dict[str, float]) -> str:
    """A line with the step without privacy, over that of one chip."""
    known = {**ratios, "update": 1 - ratios["gather"]}
    works = [
        sum(known[name] * units for name, units in ordinary(setup).items())
        for setup in setups.values()
    ]
    cells = [number(work / works[0]) for work in works]
    return row(["not private, over one chip", *cells])


def _constants(ratios: dict[str, float]) -> str:
    lines = [[name, number(ratios[name])] for name in ratios]
    return markdown(["operation", "ratio"], lines)


def _floors() -> str:
    """Milliseconds that no program can undercut at the rates assumed."""
    setup = sized(BY_CHIPS)
    lines = [
        [
            "products of the MLP, in bfloat16",
            number(1e3 * 3 * setup.batch * setup.dense / PRODUCTS),
        ]
    ]
    for n in (10**8, 10**9):
        lines.append(
            [
                f"reading and writing a table of {power(n)} once, as dense "
                "noise does at least",
                number(1e3 * 8 * n / HBM),
            ]
        )
    for count in CHIPS[1:]:
        own = sized(BY_CHIPS, count)
        cost = MECHANISMS["Threshold"](own)
        lines.append(
            [
                f"ids and rows of {chips(count)}, over the links of one",
                number(1e3 * received(cost, own) / LINKS),
            ]
        )
    for n, count in SHARDED[-1:]:
        own = sized(n, count, True)
        cost = MECHANISMS["Threshold"](own)
        lines.append(
            [
                f"the same of {chips(count)}, sharded (not built)",
                number(1e3 * received(cost, own) / LINKS),
            ]
        )
    return markdown(["", "ms"], lines)


def _compiler(programs: Iterable[dict[str, Any]]) -> str:
    """What the compiler said of temporaries, beside the formula."""
    lines = []
    for program in programs:
        setup = Setup(**program["setup"])
        cost = MECHANISMS[program["mechanism"]](setup)
        formula = temporaries(cost) / MEGABYTE
        said = program["megabytes"]
        lines.append(
            [
                f"`{program['mechanism']}`",
                f"{setup.rows:,} x {setup.width:,}",
                f"{setup.chips} x {setup.batch:,}",
                number(said),
                number(formula),
                f"{formula / said:.2f}",
            ]
        )
    head = [
        "",
        "table",
        "cores x batch",
        "compiler, MB",
        "formula, MB",
        "ratio",
    ]
    return markdown(head, lines)


def temporaries(cost: Cost) -> float:
    """Bytes that a step takes besides its arguments."""
    return max(cost.passing.values())


def _steps(steps: Iterable[dict[str, Any]], ratios: dict[str, float]) -> str:
    """Ratios of whole steps that were measured elsewhere, and by formula."""
    lines = []
    for step in steps:
        setup = Setup(**step["setup"])
        cost = MECHANISMS[step["mechanism"]](setup)
        lines.append(
            [
                f"`{step['mechanism']}`",
                f"{setup.rows:,} x {setup.width:,}",
                step["measured"],
                number(ratio(cost, setup, ratios)),
            ]
        )
    return markdown(["", "tables", "measured", "formula"], lines)


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """A table, figures to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(map(row, [head, rule, *lines]))


def row(cells: list[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |\n"


def power(count: int) -> str:
    """A power of ten."""
    return "10" + str(len(str(count)) - 1).translate(
        str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    )


def chips(count: int) -> str:
    """So many chips."""
    return f"{count:,} chip{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """About three digits."""
    if value >= 1e7:
        digits, exponent = f"{value:.1e}".split("e+")
        return f"{digits}·{power(10 ** int(exponent))}"
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def main() -> None:
    """Prints the tables, with new constants if asked to."""
    options = arguments()
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    if options.measure:
        from benchmarks.scale_constants import measured

        figures["measured"] = measured(options.turns)
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    for name, table in tables(figures).items():
        print(f"\n{name}\n\n{table}", end="")


if __name__ == "__main__":
    main()
