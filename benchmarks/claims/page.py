"""docs/results.md, made of the records, the claims and the notes."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.claims.claim import Claim, Finding, filled
from benchmarks.claims.layouts import LAYOUTS, ORDER
from benchmarks.claims.tables import NOTHING, as_markdown, markdown, shown

_NEEDED = ("question", "command", "date", "machine", "versions", "rows")
_ABOUT = re.compile(r"\A<!-- about the record of (\S+) -->\n")
_HEAD = """\
# Results

What README.md claims, and what it rests on. `make bench-page` makes this page
of the records in [benchmarks/results](../benchmarks/results) and the notes in
[benchmarks/notes](../benchmarks/notes); only the notes are written by hand.
`make bench-check`, which takes seconds, fails if a claim does not hold on its
record, or if this page or README.md say anything else than the records. To
measure again, run a record's command and then `make bench-page`;
[benchmarks/README.md](../benchmarks/README.md) has all of them, and how long
they take.

"""


@dataclasses.dataclass(frozen=True)
class Tree:
    """A clone: where its records, notes and pages are."""

    root: pathlib.Path

    @property
    def readme(self) -> str:
        return (self.root / "README.md").read_text()

    def write_readme(self, text: str) -> None:
        (self.root / "README.md").write_text(text)

    @property
    def page(self) -> pathlib.Path:
        return self.root / "docs" / "results.md"

    @property
    def results(self) -> pathlib.Path:
        return self.root / "benchmarks" / "results"

    @property
    def makefile(self) -> str:
        return (self.root / "Makefile").read_text()

    def records(self) -> dict[str, dict[str, Any]]:
        """Those that can be read and have all that they need."""
        found = {}
        for path in sorted(self.results.glob("*.json")):
            text = path.read_text()
            if not lacks(text):
                found[path.stem] = json.loads(text)
        return found

    def notes(self) -> dict[str, str]:
        folder = self.root / "benchmarks" / "notes"
        return {
            path.stem: path.read_text() for path in sorted(folder.glob("*.md"))
        }


def lacks(text: str) -> str:
    """What keeps a file from being a record; nothing, if it is one."""
    try:
        found = json.loads(text)
    except ValueError as error:
        return f"is no JSON: {error}"
    if not isinstance(found, dict):
        return "is no record"
    if missing := [key for key in _NEEDED if not found.get(key)]:
        return f"lacks {', '.join(missing)}"
    try:
        datetime.date.fromisoformat(found["date"])
    except (TypeError, ValueError):
        return f"has no date: {found['date']!r}"
    if not all(isinstance(row, dict) for row in found["rows"]):
        return "has rows that are no dictionaries"
    return ""


def findings(
    claims: Sequence[Claim], records: Mapping[str, Mapping[str, Any]]
) -> dict[Claim, Finding | str]:
    """What the records say of each claim, or why they say nothing."""
    found: dict[Claim, Finding | str] = {}
    for claim in claims:
        if claim.record not in records:
            found[claim] = "no record"
            continue
        try:
            found[claim] = claim.find(records[claim.record]["rows"])
            claim.filled(found[claim])
        except ValueError as error:
            found[claim] = str(error)
    return found


def about(note: str) -> str:
    """The date of the record that a note was written for."""
    match = _ABOUT.match(note)
    return match[1] if match else ""


def made(tree: Tree, claims: Sequence[Claim]) -> str:
    """The whole page."""
    records, notes = tree.records(), tree.notes()
    found = findings(claims, records)
    lines = [
        _line(claim, found[claim], records.get(claim.record))
        for claim in claims
    ]
    head = ["claim", "measured", "condition", "holds", "command", "date"]
    parts = [_HEAD + markdown(head, lines)]
    names = {*records, *notes, *(claim.record for claim in claims)}
    for name in sorted(names, key=_place):
        parts.append(_section(name, records.get(name), notes.get(name, "")))
    return "\n".join(parts)


def _place(name: str) -> tuple[int, str]:
    return ORDER.index(name) if name in ORDER else len(ORDER), name


def _line(
    claim: Claim, found: Finding | str, record: Mapping[str, Any] | None
) -> list[str]:
    if isinstance(found, str):
        words, measured, holds = claim.open, NOTHING, f"**no**: {found}"
    else:
        words = claim.filled(found)
        measured = filled(claim.measured, found.figures)
        holds = f"**no**: {'; '.join(found.broken)}" if found.broken else "yes"
    known = record or {"command": f"make bench-{claim.record}", "date": NOTHING}
    return [
        *(words, measured, claim.condition, holds),
        *(f"`{known['command']}`", known["date"]),
    ]


def _section(name: str, record: Mapping[str, Any] | None, note: str) -> str:
    note = _ABOUT.sub("", note)
    title = record["question"] if record else name.capitalize()
    if match := re.match(r"# (.*)\n+", note):
        title, note = match[1], note[match.end() :]
    before, _, after = note.partition("{table}")
    if record is None:
        table = (
            f"There is no record yet; `make bench-{name}` measures "
            "and keeps one.\n"
        )
    else:
        table = "\n".join(
            [
                _origin(
                    name, record, with_question=title != record["question"]
                ),
                as_markdown(record["rows"], LAYOUTS.get(name, ())),
            ]
        )
    parts = [f"## {title}\n", before.strip(), table.strip(), after.strip()]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _origin(name: str, record: Mapping[str, Any], with_question: bool) -> str:
    """Where the figures come from."""
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    lines = [record["question"]] if with_question else []
    lines.append(
        f"[{name}.json](../benchmarks/results/{name}.json): {record['date']}, "
        f"`{record['command']}`, {record['machine']}; {versions}."
    )
    if settings := record.get("settings"):
        pairs = (f"{key}: {shown(value)}" for key, value in settings.items())
        lines.append(f"Settings: {'; '.join(pairs)}.")
    return "\n".join(lines) + "\n"
