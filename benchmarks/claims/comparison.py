"""The table of README.md that sets steps of several libraries side by side.

It stands between two marks, and `make bench-page` writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.claims.claim import significant
from benchmarks.claims.costs import BASE, NOT_PRIVATE, OURS
from benchmarks.claims.tables import NOTHING, markdown

BEGIN = "<!-- comparison: `make bench-page` writes it -->\n"
END = "<!-- end of comparison -->\n"
# What is shown of peers.json: model, rows, and what the column is called.
COLUMNS = (
    ("dlrm", 10**4, "26 tables of 10,000 rows"),
    ("dlrm", 10**5, "of 100,000 rows"),
    ("dlrm", 10**6, "of 1,000,000 rows"),
    ("two-tower", 10**6, "two towers, 1,000,000 rows each"),
    ("transformer", 10**5, "attention over 50 items of 100,000"),
)
_PACKAGES = {
    "TF-Privacy": "tensorflow-privacy",
    "Opacus": "opacus",
    "jax_privacy": "jax-privacy",
}

Row = Mapping[str, Any]


def table(record: Mapping[str, Any]) -> str:
    """The best private step of each library, over its own without privacy.

    Args:
      record: peers.json. Raises ValueError if it lacks a library or a model.
    """
    rows: Sequence[Row] = record["rows"]
    names = list(dict.fromkeys(row["framework"] for row in rows))
    lines = [
        [
            _title(name, record),
            *(_cell(rows, name, model, size) for model, size, _ in COLUMNS),
        ]
        for name in names
    ]
    return markdown(["", *(title for *_, title in COLUMNS)], lines)


def _title(name: str, record: Mapping[str, Any]) -> str:
    if name == OURS:
        return f"**{name}**, lazy noise"
    versions = record["settings"]["environments"][name]
    return f"{name} {versions[_PACKAGES[name]]}"


def _cell(rows: Sequence[Row], name: str, model: str, size: int) -> str:
    own = [
        row
        for row in rows
        if (row["framework"], row["model"], row["rows"]) == (name, model, size)
        and row["base"] == BASE
        and row["contender"] not in NOT_PRIVATE
    ]
    if name == OURS:
        own = [row for row in own if row["contender"] == "lazy noise"]
    if not own:
        raise ValueError(f"peers.json has no {model}, {size:,} rows, of {name}")
    ratios = [row["ratio"] for row in own if not row["failed"]]
    return significant(min(ratios), 3) if ratios else NOTHING


def inserted(text: str, table: str) -> str:
    """README.md with this table between the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md has no place for it: {BEGIN}{END}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def between(text: str) -> str:
    """What stands between the marks."""
    return text.partition(BEGIN)[2].partition(END)[0]
