"""README.md's comparison is what peers.json says."""

from __future__ import annotations

import copy
import json
import pathlib
from typing import Any

import pytest

from benchmarks.claims import check, comparison, overview
from benchmarks.claims.page import Tree

pytestmark = pytest.mark.once

README = f"# A library\n\n{comparison.BEGIN}{comparison.END}\nThat is all.\n"


def row(framework: str, contender: str, model: str, size: int, **more: Any):
    return {
        "framework": framework,
        "contender": contender,
        "model": model,
        "rows": size,
        "base": "not private",
        "ratio": 1.0,
        "failed": None,
        **more,
    }


def record() -> dict[str, Any]:
    rows = []
    for model, size, _ in comparison.COLUMNS:
        rows += [
            row("tf_sparse_dp", "not private", model, size),
            row("tf_sparse_dp", "lazy noise", model, size, ratio=1.2345),
            row("tf_sparse_dp", "threshold", model, size, ratio=1.1),
            row("Opacus", "clipping alone", model, size, ratio=1.5),
            row("Opacus", "ghost clipping", model, size, ratio=17.44),
            row("Opacus", "ghost clipping", model, size, base="x", ratio=2.0),
            row("Opacus", "slow way", model, size, ratio=170.0),
        ]
    rows[-2] |= {"ratio": None, "failed": "memory"}
    rows[-3] |= {"ratio": None, "failed": "no step in 60 s"}
    rows[-1] |= {"ratio": None, "failed": "no step in 60 s"}
    return {
        "question": "What does a step cost?",
        "command": "make bench-peers",
        "date": "2026-11-18",
        "machine": "2 cores",
        "versions": {"python": "3.11.7"},
        "settings": {"environments": {"Opacus": {"opacus": "1.6.0"}}},
        "rows": rows,
    }


@pytest.fixture
def tree(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(check.readme, "EXEMPT", ())
    (tmp_path / "Makefile").write_text("bench-peers:\n")
    for folder in ("docs", "benchmarks/results", "benchmarks/notes"):
        (tmp_path / folder).mkdir(parents=True)
    made = Tree(tmp_path)
    (made.results / "peers.json").write_text(json.dumps(record()))
    made.write_readme(comparison.inserted(README, comparison.table(record())))
    made.page.write_text(check.page.made(made, []))
    return made


def test_the_best_way_of_each_that_finished(tree: Tree) -> None:
    ours, theirs = comparison.table(record()).splitlines()[2:]
    assert ours == "| **tf_sparse_dp**, lazy noise" + 5 * " | 1.23" + " |"
    assert theirs == "| Opacus 1.6.0" + 4 * " | 17.4" + " | – |"
    assert check.problems(tree, []) == []


def test_another_figure_is_found(tree: Tree) -> None:
    tree.write_readme(tree.readme.replace("17.4", "19.4", 1))
    assert "not what `make bench-page` makes" in check.problems(tree, [])[0]


def test_a_table_that_is_not_there_is_found(tree: Tree) -> None:
    tree.write_readme("# A library\n")
    assert "no place for it" in check.problems(tree, [])[0]


def test_a_table_without_a_record_is_found(tree: Tree) -> None:
    (tree.results / "peers.json").unlink()
    assert "without peers.json" in check.problems(tree, [])[0]


def test_a_library_that_was_not_measured_is_found() -> None:
    short = copy.deepcopy(record())
    del short["rows"][-3:]
    with pytest.raises(ValueError, match="no transformer, 100,000 rows"):
        comparison.table(short)


def test_figures_elsewhere_still_need_a_claim(tree: Tree) -> None:
    tree.write_readme(tree.readme + "It is 3 times as fast.\n")
    assert "no claim covers" in check.problems(tree, [])[0]


def test_the_picture_is_drawn(tmp_path: pathlib.Path) -> None:
    accuracy = [
        {
            "data": overview.DATA,
            "unit": "example",
            "metric": "auc",
            "contender": name,
            "epsilon": epsilon,
            "mean": 0.7,
            "standard error": None,
        }
        for name in overview.SHOWN
        for epsilon in (1.0, 2.0)
    ]
    path = tmp_path / "overview.png"
    overview.draw(accuracy, record()["rows"], path)
    assert path.read_bytes()[1:4] == b"PNG"
