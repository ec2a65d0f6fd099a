import pytest

from benchmarks.accuracy.report import in_short, rows, table

pytestmark = pytest.mark.once

CASE = {"data": "books", "unit": "example", "contender": "dense noise"}


def run(epsilon, rate, seed, auc, test=None, **other):
    return {
        **CASE,
        "epsilon": epsilon,
        "rate": rate,
        "seed": seed,
        "valid_auc": auc,
        "auc": test or auc,
        "entries": 90,
        "written": 30.0,
        **other,
    }


def test_only_runs_at_the_tuned_rate_are_reported():
    runs = [
        run(2.0, 10.0, 0, 0.60, test=0.99),  # Better, but not for tuning.
        run(2.0, 30.0, 0, 0.70),
        run(2.0, 30.0, 1, 0.72),
        run(8.0, 60.0, 0, 0.80),
        run(8.0, 30.0, 0, 0.90),  # Not the rate that the rule gives.
    ]
    asked = [{**CASE, "epsilon": epsilon} for epsilon in (0.5, 2.0, 8.0)]
    found, missing = rows(runs, asked)
    assert missing == [asked[0]]
    assert in_short(missing) == {"books by example": "dense noise at 0.5"}
    two, eight = found
    assert two["mean"] == pytest.approx(0.71)
    assert two["standard error"] == pytest.approx(0.01)
    assert (two["seeds"], two["rate"], two["reduction"]) == (2, 30.0, 3.0)
    assert (eight["mean"], eight["rate"]) == (0.80, 60.0)
    assert eight["standard error"] is None
    printed = table(found)
    assert "| dense noise | .7100 ± .0100 | .8000 | 30 | 3 |" in printed


def test_runs_of_another_setting_are_not_mixed_in():
    asked = [{**CASE, "epsilon": 2.0, "steps": 200}]
    runs = [run(2.0, 30.0, 0, 0.7, steps=100)]
    found, missing = rows(runs, asked)
    assert found == [] and len(missing) == 1
