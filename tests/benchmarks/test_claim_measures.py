"""Claims hold on rows as they should be, and on no others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.claims import costs, guarantees
from benchmarks.claims.claim import Claim, Finding
from benchmarks.claims.listed import CLAIMS
from benchmarks.claims.tables import Pivot, Table, as_markdown
from benchmarks.record import RESULTS

pytestmark = pytest.mark.once


def claim(start: str) -> Claim:
    known = CLAIMS
    (found,) = [one for one in known if one.words.startswith(start)]
    return found


def step(**values: Any) -> dict[str, Any]:
    row = {"model": "dlrm", "rows": 10**6, "framework": "tf_sparse_dp"}
    row |= {"contender": "lazy noise", "base": "not private", "ms": 30.0}
    return row | {"ratio": 1.2, "extra_ms": 5.0, "failed": None} | values


SIZES = [step(rows=10**5, ratio=1.21), step(rows=10**6)]


def test_steps_keep_their_limits() -> None:
    own = claim("With lazy noise")
    found = own.find([*SIZES, step(model="transformer", ratio=1.4)])
    assert not found.broken
    assert own.filled(found) == (
        "With lazy noise a step takes at most 1.21 times as long as the same "
        "step without privacy (1.40 for a transformer), on tables of 100,000 "
        "to 1,000,000 rows"
    )
    found = own.find([*SIZES, step(ratio=1.6, extra_ms=2.5)])
    assert not found.broken
    assert ", or 2.5 ms longer, on" in own.filled(found)
    for wrong in (
        step(ratio=1.3),
        step(model="transformer", ratio=1.5),
        step(failed="out of memory", ratio=None),
    ):
        assert own.find([*SIZES, wrong]).broken
    assert own.find(SIZES[:1]).broken, "one size"
    with pytest.raises(ValueError, match="no row has"):
        own.find([step(framework="Opacus")])


def test_others_are_compared_by_their_best_at_the_same_size() -> None:
    own = claim("at least {factor:2s} times as large with Opacus")
    their = {"framework": "opacus", "contender": "ghost clipping"}
    found = own.find([*SIZES, step(**their, ratio=12.0)])
    assert not found.broken
    assert found.figures["factor"] == pytest.approx(10.0)
    best = step(**their, ratio=5.0)
    assert own.find([*SIZES, step(**their, ratio=12.0), best]).broken
    for other in ("clipping alone", "torch Embedding"):
        row = step(framework="opacus", contender=other, ratio=1.1)
        assert not own.find([*SIZES, step(**their, ratio=12.0), row]).broken
    small = step(**their, rows=10**4, ratio=1.0)
    assert not own.find([*SIZES, step(**their, ratio=12.0), small]).broken
    failed = step(**their, rows=10**5, ratio=None, failed="out of memory")
    found = own.find([*SIZES, step(**their, ratio=12.0), failed])
    assert own.filled(found).endswith(
        "Opacus (it did not finish: dlrm, 100,000 rows)"
    )
    assert own.find([*SIZES, failed]).broken, "nothing was compared"
    with pytest.raises(ValueError, match="no row of Opacus"):
        own.find(SIZES)
    with pytest.raises(ValueError, match="no row of Opacus"):
        own.find([*SIZES, step(**their, ratio=12.0, model="other")])


def audit(**values: Any) -> dict[str, Any]:
    row = {"mechanism": "Gaussian", "stated epsilon": 1.0, "delta": 1e-6}
    row |= {"lower bound": 0.6, "control": "as stated", "violation": False}
    return row | values


BOTH = [audit(), audit(**{"stated epsilon": 4.0, "lower bound": 3.0})]
CONTROLS = [
    audit(control="noise x 0.3", violation=True),
    audit(control="lazy read skipped", violation=True),
]


def test_audits() -> None:
    own = claim("Audits of")
    found = own.find([*BOTH, *CONTROLS])
    assert not found.broken
    assert "Audits of 1 mechanisms and settings" in own.filled(found)
    assert "above 75 %" in own.filled(found)
    assert own.find(BOTH[:1]).broken, "not at 4"
    assert own.find([*BOTH, audit(**{"lower bound": 1.1})]).broken
    assert own.find([*BOTH, audit(violation=True)]).broken
    with pytest.raises(ValueError, match="without a control"):
        own.find(CONTROLS)


def test_controls() -> None:
    own = claim("{found:.0f} of {controls")
    cut = [
        audit(mechanism=name, control="noise x 0.3", violation=True)
        for name in guarantees.MUST_BE_FOUND
    ]
    skipped = audit(control="lazy read skipped", violation=True)
    assert not own.find([*BOTH, *cut, skipped]).broken
    assert own.find([*BOTH, *cut]).broken
    assert own.find([*BOTH, *cut[:-1], skipped]).broken
    # In another setting it may be missed.
    missed = audit(mechanism="Threshold, 10 rows", control="noise x 0.3")
    found = own.find([*BOTH, *cut, skipped, missed])
    assert not found.broken
    assert (found.figures["found"], found.figures["controls"]) == (9, 10)
    weak = audit(mechanism="Sketch", control="noise x 0.3")
    assert own.find([*cut, skipped, weak]).figures["missed"] == "Sketch"


def test_faults() -> None:
    good = {"family": "ids", "cases": 1000, "refused before any step": 900}
    good |= {"taken and paid": 100, "crashed": 0}
    good |= {"unpaid steps": 0, "silent skips": 0}
    own = claim("Of {cases")
    found = own.find([good, good | {"family": "all"}])
    assert own.filled(found).startswith("Of 1,000 malformed inputs")
    assert not found.broken
    for key, value in (
        ("crashed", 1),
        ("unpaid steps", 1),
        ("silent skips", 1),
        ("refused before any step", 899),
        ("cases", 999),
    ):
        assert own.find([good | {key: value}]).broken, key


@pytest.mark.parametrize("name", ["audit", "faults", "agreement", "paper"])
def test_records_have_what_claims_need(name: str) -> None:
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    for one in CLAIMS:
        if one.record == name:
            assert not one.find(rows).broken, one.words


def test_accuracy() -> None:
    row = {"data": "goodbooks", "unit": "row", "metric": "auc", "epsilon": 3.0}
    private = row | {"contender": "dense noise", "mean": 0.71}
    ordinary = row | {"contender": "not private", "mean": 0.76}
    measure = guarantees.private_is_worse
    assert not measure([private, ordinary]).broken
    assert measure([private | {"mean": 0.77}, ordinary]).broken
    other = {"data": "click log", "mean": 0.9}
    assert not measure([private, ordinary, private | other]).broken
    with pytest.raises(ValueError, match="beside an ordinary one"):
        measure([private])


def test_growth() -> None:
    rows = [
        {"contender": "lazy noise", "law": "evenly", "rows": n, "ratio": r}
        for n, r in ((10**5, 1.2), (10**8, 1.25))
    ]
    assert not costs.lazy_growth(rows).broken
    assert costs.lazy_growth([rows[0], rows[1] | {"ratio": 1.5}]).broken
    assert costs.lazy_growth([rows[0], rows[1] | {"rows": 10**6}]).broken


def test_agreement_and_rates() -> None:
    rows = [
        {"answer": name, "ours": 1.0, "theirs": 1.0, "more": 0.001}
        for name in ("noise", "steps", "batch size")
    ]
    assert guarantees.agreement(rows).figures["percent"] == pytest.approx(0.1)
    assert not guarantees.agreement(rows).broken
    assert guarantees.agreement(rows[1:]).broken
    assert guarantees.agreement([*rows, rows[0] | {"more": -0.02}]).broken
    mean = {"measured": "mean, pure", "over": "n", "slope": -0.5}
    means = [mean | {"verdict": "follows"}] * 8
    assert guarantees.paper_means(means) == Finding(
        figures={"following": 8, "sweeps": 8}, broken=[]
    )
    assert guarantees.paper_means(
        [*means, mean | {"verdict": "flatter"}]
    ).broken
    assert guarantees.paper_means(means[1:]).broken


def test_tables_leave_nothing_out() -> None:
    rows = [
        {"data": "a", "by": "x", "eps": 1.0, "mean": 0.5, "low": None},
        {"data": "a", "by": "x", "eps": 3.0, "mean": 0.6, "low": 0.55},
        {"data": "a", "by": "y", "eps": 3.0, "mean": 0.7, "low": None},
        {"data": "a", "by": "y", "eps": 3.0, "mean": 0.8, "low": None},
        {"data": "b", "by": "z", "eps": None, "mean": 0.9, "low": None},
    ]
    pivot = Pivot(
        by=("data",), index=("by",), across="eps", cell="{mean:.2f} ({low})"
    )
    shown = as_markdown(rows, [pivot])
    assert "| by | eps 1 | eps 3 |" in shown
    assert "| x | 0.50 | 0.60 (0.55) |" in shown
    assert "| y | – | 0.70; 0.80 |" in shown
    assert "| z | 0.90 |" in shown
    some = Table(columns={"who": "{by}", "mean": "{mean}"}, where={"data": "a"})
    shown = as_markdown(rows, [some])
    assert "| x | 0.5 |" in shown
    assert "| b | z | – | 0.9 | – |" in shown, "what is left, with all columns"
    only = as_markdown(rows[:2], [Table(columns={"who": "{by}"})])
    assert "the file has `data`, `eps`, `mean`, `low`" in only
    unknown = Table(columns={"who": "{nobody}"})
    assert "| b | z |" in as_markdown(rows, [unknown])
