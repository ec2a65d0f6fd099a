import math

import pytest

from benchmarks.accuracy.runs import Done, best_rate, neighbour, rate_at

pytestmark = pytest.mark.once

FIRST = (10.0, 100.0, 1000.0)


def test_what_is_done_is_not_done_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    asked = {"contender": "dense noise", "epsilon": 2.0, "seed": 0}
    run = Done(path)(asked, lambda: {"auc": 0.7})
    again = Done(path)(asked, lambda: pytest.fail("It was done before."))
    assert again == run and again["auc"] == 0.7
    other = Done(path)({**asked, "seed": 1}, lambda: {"auc": 0.6})
    assert other["auc"] == 0.6
    assert [r["auc"] for r in Done(path).runs] == [0.7, 0.6]


def test_a_run_that_was_cut_off_is_done_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    Done(path)({"seed": 0}, lambda: {"auc": 0.7})
    Done(path)({"seed": 1}, lambda: {"auc": 0.6})
    path.write_text(path.read_text()[:-10])
    done = Done(path)
    assert [run["seed"] for run in done.runs] == [0]
    assert done({"seed": 1}, lambda: {"auc": 0.5})["auc"] == 0.5
    assert [run["auc"] for run in Done(path).runs] == [0.7, 0.5]


def test_a_run_that_failed_is_not_kept(tmp_path):
    path = tmp_path / "runs.jsonl"

    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Done(path)({"seed": 0}, fails)
    assert Done(path).runs == []


@pytest.mark.parametrize("best", [0.03, 3.0, 10.0, 100.0, 1000.0, 3e4])
def test_the_best_rate_is_between_two_that_were_tried(best):
    tried = []

    def score(rate):
        tried.append(rate)
        return -abs(math.log10(rate / best))

    found = best_rate(score, FIRST)
    assert found == best
    assert {neighbour(best, 1), neighbour(best, -1)} <= set(tried)
    assert len(tried) == len(set(tried))


def test_rates_at_which_training_diverges_lose():
    found = best_rate(lambda r: math.nan if r > 50 else r, FIRST)
    assert found == 30.0


def test_rates_grow_with_the_root_of_epsilon():
    assert rate_at(2.0, 30.0) == 30.0
    assert rate_at(8.0, 30.0) == 60.0
    assert rate_at(0.5, 100.0) == 50.0
    assert rate_at(None, 100.0) == 100.0
