"""What of README.md, the records and docs/results.md does not fit together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.claims import comparison, page, readme
from benchmarks.claims.claim import Claim, Finding
from benchmarks.claims.page import Tree


def problems(tree: Tree, claims: Sequence[Claim]) -> list[str]:
    """All that is wrong, one sentence each; nothing, if all claims hold."""
    records = tree.records()
    found = page.findings(claims, records)
    said = [_said(claim, found[claim], tree) for claim in claims]
    return [
        *_unreadable(tree),
        *(_missing(claims, records, tree)),
        *(p for claim in claims for p in _failing(claim, found[claim])),
        *(p for problem, _ in said for p in problem),
        *_comparison(tree, records),
        *_numbers(tree, [words for _, words in said if words]),
        *_commands(tree, records),
        *_old_notes(tree, records),
        *_page(tree, claims),
    ]


def proposed(tree: Tree, claims: Sequence[Claim]) -> list[str]:
    """Words of claims that hold, and do not stand in README.md like that."""
    found = page.findings(claims, tree.records())
    text = readme.flat(tree.readme)
    return [
        claim.filled(finding)
        for claim, finding in found.items()
        if isinstance(finding, Finding)
        and not finding.broken
        and claim.filled(finding) not in text
    ]


def _unreadable(tree: Tree) -> list[str]:
    return [
        f"benchmarks/results/{path.name} {what}"
        for path in sorted(tree.results.glob("*.json"))
        if (what := page.lacks(path.read_text()))
    ]


def _missing(
    claims: Sequence[Claim], records: Mapping[str, Any], tree: Tree
) -> list[str]:
    names = dict.fromkeys(claim.record for claim in claims)
    return [
        f"benchmarks/results/{name}.json is missing, and claims rest on it; "
        f"`make bench-{name}` makes it"
        for name in names
        if not (tree.results / f"{name}.json").exists()
    ]


def _failing(claim: Claim, found: Finding | str) -> list[str]:
    if found == "no record":
        return []
    if isinstance(found, str):
        return [f"{claim.record}.json says nothing of “{claim.open}”: {found}"]
    return [
        f"“{claim.filled(found)}” does not hold on {claim.record}.json: {what} "
        f"(it should: {claim.condition})"
        for what in found.broken
    ]


def _said(
    claim: Claim, found: Finding | str, tree: Tree
) -> tuple[list[str], str]:
    """What is wrong with a claim's words, and how they stand in README.md."""
    text = readme.flat(tree.readme)
    figures = found.figures if isinstance(found, Finding) else {}
    if isinstance(found, Finding) and claim.filled(found) in text:
        return [], claim.filled(found)
    if match := claim.pattern(figures).search(text):
        if not isinstance(found, Finding):
            return [], match[0]
        return [
            f"README.md says “{match[0]}”; by {claim.record}.json it should "
            f"be “{claim.filled(found)}”"
        ], match[0]
    if isinstance(found, str):
        return [f"README.md does not say “{claim.open}”"], ""
    return [f"README.md does not say “{claim.filled(found)}”"], ""


def _comparison(tree: Tree, records: Mapping[str, Any]) -> list[str]:
    """Whether README.md has the table of the record, if there is one."""
    if "peers" not in records:
        shown = comparison.BEGIN in tree.readme
        return ["README.md compares without peers.json"] if shown else []
    try:
        right = comparison.inserted(
            tree.readme, comparison.table(records["peers"])
        )
    except ValueError as error:
        return [str(error)]
    if right == tree.readme:
        return []
    return ["README.md's comparison is not what `make bench-page` makes"]


def _numbers(tree: Tree, words: Sequence[str]) -> list[str]:
    table = readme.flat(comparison.between(tree.readme))
    return [
        *(
            f"README.md has a figure that no claim covers: “…{around}…”"
            for around in readme.uncovered(tree.readme, [*words, table])
        ),
        *(
            f"README.md does not have “{phrase}” any more; take it out of "
            "readme.EXEMPT"
            for phrase in readme.unused(tree.readme)
        ),
    ]


def _commands(
    tree: Tree, records: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Commands of records that name no target of the Makefile, or no file."""
    wrong = []
    for name, record in records.items():
        command = record["command"]
        target = re.match(r"make ([\w-]+)", command)
        module = re.match(r"python (?:-m ([\w.]+)|(\S+\.py))", command)
        if target:
            there = re.search(rf"^{target[1]}:", tree.makefile, re.M)
        elif module:
            path = module[2] or module[1].replace(".", "/")
            there = any(
                (tree.root / (path + end)).is_file()
                for end in ("", ".py", "/__main__.py")
            )
        else:
            there = False
        if not there:
            wrong.append(f"{name}.json cannot be made by its `{command}`")
    return wrong


def _old_notes(
    tree: Tree, records: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Notes that may speak of another record; those without figures do not."""
    return [
        f"benchmarks/notes/{name}.md is about the record of "
        f"{page.about(note) or 'no date'}, not {records[name]['date']}: read "
        "it again, and say so in its first line"
        for name, note in tree.notes().items()
        if name in records
        and page.about(note) != records[name]["date"]
        and re.search(r"\d", note)
    ]


def _page(tree: Tree, claims: Sequence[Claim]) -> list[str]:
    there = tree.page.read_text() if tree.page.exists() else ""
    if there == page.made(tree, claims):
        return []
    return ["docs/results.md is not what `make bench-page` makes"]
