"""Rows of a record as tables in Markdown, whatever their columns are."""

from __future__ import annotations

import dataclasses
import math
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.claims.claim import Row

NOTHING = "–"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Some of the rows, one line each.

    Attributes:
      columns: What a cell has, by heading: "{ratio:.2f} ({low:.2f})".
      where: Values of the rows that it takes; all rows by default.
      title: A line above it.
    """

    columns: Mapping[str, str]
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    title: str = ""

    def keys(self) -> set[str]:
        """What rows have to have."""
        return {
            *self.where,
            *(key for cell in self.columns.values() for key in fields(cell)),
        }

    def takes(self, row: Row) -> bool:
        return all(row.get(key) == value for key, value in self.where.items())

    def lines(self, rows: Sequence[Row]) -> str:
        return markdown(
            list(self.columns),
            [
                [cell(text, row) for text in self.columns.values()]
                for row in rows
            ],
            self.title,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pivot:
    """Rows by `index`, a column for each value of `across`.

    Attributes:
      by: Keys of whose values each combination has a table of its own.
      cell: What a cell has of each of its rows.
      where: Values of the rows that it takes; all rows by default.
    """

    by: tuple[str, ...]
    index: tuple[str, ...]
    across: str
    cell: str
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def keys(self) -> set[str]:
        own = {*self.by, *self.index, self.across, *self.where}
        return own | set(fields(self.cell))

    def takes(self, row: Row) -> bool:
        return all(row.get(key) == value for key, value in self.where.items())

    def lines(self, rows: Sequence[Row]) -> str:
        tables = []
        for group in _distinct(rows, self.by):
            own = [row for row in rows if _values(row, self.by) == group]
            heads = [value for (value,) in _distinct(own, (self.across,))]
            cells: dict[tuple, list[str]] = {}
            for row in own:
                at = *_values(row, self.index), row[self.across]
                cells.setdefault(at, []).append(cell(self.cell, row))
            found = []
            for line in _distinct(own, self.index):
                inside = [cells.get((*line, head), [NOTHING]) for head in heads]
                found.append([*map(shown, line), *map("; ".join, inside)])
            names = [
                NOTHING if head is None else f"{self.across} {shown(head)}"
                for head in heads
            ]
            title = ", ".join(map(shown, group))
            tables.append(markdown([*self.index, *names], found, title))
        return "\n".join(tables)


def as_markdown(rows: Sequence[Row], layout: Sequence[Table | Pivot]) -> str:
    """All rows: as the layout says, or all columns of those it leaves out.

    A layout that asks for what the rows do not have is passed over.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    parts, left, used = [], list(rows), set()
    for table in layout:
        taken = [row for row in left if table.takes(row)]
        if taken and table.keys() <= keys.keys():
            parts.append(table.lines(taken))
            used |= table.keys()
            left = [row for row in left if not table.takes(row)]
    if left:
        every = Table(columns={key: "{" + key + "}" for key in keys})
        parts.append(every.lines(left))
        used |= keys.keys()
    if besides := [key for key in keys if key not in used]:
        names = ", ".join(f"`{key}`" for key in besides)
        parts.append(f"Besides, the file has {names}.\n")
    return "\n".join(parts)


def cell(template: str, row: Row) -> str:
    """A template filled in, without what is not known.

    A dash if nothing of it is known; parentheses of which nothing is known are
    left out.
    """
    known = _PARENTHESES.sub(
        lambda part: "" if _unknown(part[0], row) else part[0], template
    )
    return NOTHING if _unknown(known, row) else known.format_map(_Cells(row))


_PARENTHESES = re.compile(r" \([^)]*\)")


def _unknown(template: str, row: Row) -> bool:
    names = fields(template)
    return bool(names) and all(row.get(name) is None for name in names)


class _Cells(dict):
    def __init__(self, row: Row):
        super().__init__({key: _Cell(value) for key, value in row.items()})

    def __missing__(self, key: str) -> _Cell:
        return _Cell(None)


class _Cell:
    def __init__(self, value: Any):
        self.value = value

    def __format__(self, spec: str) -> str:
        number = isinstance(self.value, (int, float))
        if spec and number and math.isfinite(self.value):
            return format(self.value, spec)
        return shown(self.value)


def fields(template: str) -> list[str]:
    """The keys that a template names."""
    return [
        name
        for _, name, _, _ in string.Formatter().parse(template)
        if name is not None
    ]


def shown(value: Any) -> str:
    """A value with no more digits than one wants to read."""
    if value is None or value != value:  # Or not a number.
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(one)}" for key, one in value.items())
    if not isinstance(value, (int, float)):
        return str(value).replace("|", "\\|").replace("\n", " ")
    if math.isinf(value) or isinstance(value, int):
        return f"{value:,}"
    if value and not 1e-3 <= abs(value) < 1e15:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(
    head: Sequence[str], lines: Sequence[Sequence[str]], title: str = ""
) -> str:
    """A table."""
    rows = [head, ["---"] * len(head), *lines]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{title}\n\n{table}" if title else table


def _values(row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[key] for key in keys)


def _distinct(rows: Sequence[Row], keys: Sequence[str]) -> list[tuple]:
    return list(dict.fromkeys(_values(row, keys) for row in rows))
