"""The check of README.md's claims finds every way in which one can be wrong."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.claims import check, page, readme
from benchmarks.claims.claim import Claim, Finding, having, significant
from benchmarks.claims.listed import CLAIMS
from benchmarks.claims.page import Tree

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
README = """# A library

A step takes 1/90 of the
time on a table, on Python 3.11.

    make demo  # takes 5 minutes

With `batch_size=4096` nothing else is claimed.
"""
RECORD = {
    "question": "What does a step cost?",
    "command": "make bench-speed",
    "date": "2026-11-18",
    "machine": "2 cores",
    "versions": {"python": "3.11.7"},
    "settings": {"threads": 2},
    "rows": [
        {"mechanism": "dense", "ratio": 1.0, "note": None},
        {"mechanism": "sparse", "ratio": 89.7, "note": "a | b"},
    ],
}


def faster(rows: Any) -> Finding:
    ratio = having(rows, mechanism="sparse")[0]["ratio"]
    return Finding(
        figures={"ratio": ratio},
        broken=[] if ratio > 50 else [f"{ratio:g} is not above 50"],
    )


CLAIM = Claim(
    words="takes 1/{ratio:2s} of the time on a table",
    record="speed",
    measure=faster,
    measured="1/{ratio:.1f}",
    condition="below 1/50",
)


@pytest.fixture
def tree(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A clone in which all is well."""
    monkeypatch.setattr(readme, "EXEMPT", ("Python 3.11",))
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "Makefile").write_text("bench-speed:\n\techo 1\n")
    for folder in ("docs", "benchmarks/results", "benchmarks/notes"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "benchmarks/notes/speed.md").write_text(
        "<!-- about the record of 2026-11-18 -->\n# Speed\n\nBefore.\n\n"
        "{table}\n\nA busy machine.\n"
    )
    made = Tree(tmp_path)
    (made.results / "speed.json").write_text(json.dumps(RECORD))
    made.page.write_text(page.made(made, [CLAIM]))
    return made


def problems(tree: Tree, claims: Any = (CLAIM,)) -> list[str]:
    return check.problems(tree, claims)


def change_record(tree: Tree, **values: Any) -> None:
    """Another record, and the page that belongs to it."""
    path = tree.results / "speed.json"
    path.write_text(json.dumps(RECORD | values))
    tree.page.write_text(page.made(tree, [CLAIM]))


def change_readme(tree: Tree, old: str, new: str) -> None:
    path = tree.root / "README.md"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_all_is_well(tree: Tree) -> None:
    assert problems(tree) == []
    text = tree.page.read_text()
    assert "| takes 1/90 of the time on a table | 1/89.7 | below 1/50" in text
    assert "| yes | `make bench-speed` | 2026-11-18 |" in text
    assert text.index("Before.") < text.index("| sparse | 89.7 | a \\| b |")
    assert text.index("| sparse |") < text.index("A busy machine.")
    assert "threads: 2" in text and "python 3.11.7" in text


def ratio_rows(ratio: Any) -> list[dict[str, Any]]:
    return [{"mechanism": "sparse", "ratio": ratio, "note": None}]


def without_record(tree: Tree) -> None:
    (tree.results / "speed.json").unlink()
    tree.page.write_text(page.made(tree, [CLAIM]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda t: change_readme(t, "takes 1/90 of the\ntime", "is fast"),
            "README.md does not say “takes 1/90 of the time on a table”",
        ),
        (
            lambda t: change_readme(t, "1/90", "1/150"),
            "README.md says “takes 1/150 of the time on a table”; by "
            "speed.json it should be “takes 1/90 of the time on a table”",
        ),
        (
            lambda t: change_record(t, rows=ratio_rows(84.0)),
            "README.md says “takes 1/90 of the time on a table”; by "
            "speed.json it should be “takes 1/84 of the time on a table”",
        ),
        (
            lambda t: change_record(t, rows=ratio_rows(40.0)),
            "does not hold on speed.json: 40 is not above 50",
        ),
        (
            lambda t: change_record(t, rows=ratio_rows(None)),
            "says nothing of “takes 1/… of the time on a table”: rows have no",
        ),
        (
            lambda t: change_record(t, rows=[{"mechanism": "sparse"}]),
            "rows lack 'ratio'",
        ),
        (
            lambda t: change_record(t, rows=RECORD["rows"][:1]),
            "no row has {'mechanism': 'sparse'}",
        ),
        (without_record, "benchmarks/results/speed.json is missing"),
        (lambda t: change_record(t, date=""), "speed.json lacks date"),
        (lambda t: change_record(t, date="lately"), "has no date: 'lately'"),
        (lambda t: change_record(t, command=""), "speed.json lacks command"),
        (lambda t: change_record(t, versions={}), "speed.json lacks versions"),
        (lambda t: change_record(t, rows=[]), "speed.json lacks rows"),
        (
            lambda t: (t.results / "speed.json").write_text("{"),
            "speed.json is no JSON",
        ),
        (
            lambda t: (t.results / "old.json").write_text('{"found": []}'),
            "old.json lacks question",
        ),
        (
            lambda t: change_record(t, command="make bench-rest"),
            "cannot be made by its `make bench-rest`",
        ),
        (
            lambda t: change_record(t, command="python -m benchmarks.gone"),
            "cannot be made by its `python -m benchmarks.gone`",
        ),
        (
            lambda t: t.page.write_text(t.page.read_text() + "And more.\n"),
            "docs/results.md is not what `make bench-page` makes",
        ),
        (
            lambda t: change_readme(t, "nothing else", "7 % more"),
            "no claim covers: “… takes 5 minutes With `batch_size=4096` 7 %",
        ),
        (
            lambda t: change_readme(t, "nothing else", "twice as much"),
            "a figure that no claim covers",
        ),
        (
            lambda t: change_readme(t, ", on Python 3.11", ""),
            "does not have “Python 3.11” any more",
        ),
        (
            lambda t: change_record(t, date="2026-11-19"),
            "notes/speed.md is about the record of 2026-11-18, not 2026-11-19",
        ),
    ],
)
def test_what_is_wrong_is_found(
    tree: Tree, spoil: Callable[[Tree], Any], message: str
) -> None:
    spoil(tree)
    assert any(message in problem for problem in problems(tree)), problems(tree)


def test_words_that_should_be_there_are_proposed(tree: Tree) -> None:
    assert check.proposed(tree, [CLAIM]) == []
    change_record(tree, rows=ratio_rows(84.0))
    words = "takes 1/84 of the time on a table"
    assert check.proposed(tree, [CLAIM]) == [words]
    change_record(tree, rows=ratio_rows(40.0))  # Does not hold.
    assert check.proposed(tree, [CLAIM]) == []


def test_rows_and_records_that_no_layout_knows_are_shown(tree: Tree) -> None:
    other = RECORD | {
        "question": "What else?",
        "rows": [{"kind": "x", "n": 1234567, "small": 1.25e-7, "yes": True}],
    }
    (tree.results / "other.json").write_text(json.dumps(other))
    assert "| x | 1,234,567 | 1.25e-7 | yes |" in page.made(tree, [CLAIM])


def test_digits() -> None:
    assert significant(148.2, 2) == "150"
    assert significant(89.7, 2) == "90"
    assert significant(0.0912, 2) == "0.091"
    assert significant(1234.5, 3) == "1,230"


def test_claims_that_stand_twice_have_one_owner() -> None:
    assert len({claim.words for claim in CLAIMS}) == len(CLAIMS)


def test_the_check_needs_no_tensorflow() -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import pathlib, benchmarks.claims.__main__ as program\n"
        "from benchmarks.claims import check, page\n"
        "tree = page.Tree(pathlib.Path('.'))\n"
        "check.problems(tree, program.CLAIMS)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
