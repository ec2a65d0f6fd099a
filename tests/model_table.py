"""docs/models.md: one row per case, one column per Keras."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

PATH = pathlib.Path(__file__).parents[1] / "docs" / "models.md"

_HEAD = """\
# Models that are tested

Made by `pytest tests/optimizers/test_against_loop.py --write-table`, once
per Keras; do not edit. Every model is trained for three batches without noise.

- *equal to the loop*: the weights are, within 1e-5, those of a loop that takes
  one example at a time, clips its gradient and adds up
- *accepted (random)*: the step draws random numbers, so there is no loop to
  compare with
- *refused*: `NotSeparableError`, and no weight changes
"""

Table = dict[str, dict[str, str]]


def text(table: Mapping[str, Mapping[str, str]], kerases: list[str]) -> str:
    """The document for outcomes by case and Keras."""
    lines = [_HEAD, "| model | " + " | ".join(kerases) + " |"]
    lines.append("| --- " * (1 + len(kerases)) + "|")
    for name, outcomes in table.items():
        cells = [name, *(outcomes.get(by, "") for by in kerases)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def read() -> Table:
    """The outcomes that the document has."""
    if not PATH.exists():
        return {}
    table: Table = {}
    kerases: list[str] = []
    for line in PATH.read_text().splitlines():
        if not line.startswith("| "):
            continue
        name, *cells = [c.strip() for c in line.strip("|").split(" | ")]
        if not kerases:
            kerases = cells
        elif not name.startswith("---"):
            table[name] = dict(zip(kerases, cells, strict=True))
    return table


def write(
    names: list[str], found: Mapping[str, str], by: str, kerases: list[str]
) -> None:
    """Puts one Keras' outcomes into the document, and keeps the other's."""
    old = read()
    table = {}
    for name in names:
        table[name] = {**old.get(name, {})}
        if name in found:
            table[name][by] = found[name]
    PATH.write_text(text(table, kerases))
