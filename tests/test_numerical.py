"""The experiment tells contributions that stay from those that do not.

The gradients here are made by hand, so that each way of being wrong is there
alone, and no smaller than it has to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.numerical import Experiment, Run

pytestmark = pytest.mark.once

ROWS = 12
TERMS = np.random.RandomState(0).randn(ROWS, 3)
FREE = np.array([5.0, -7.0, 1.0])  # What a regulariser would add.


def experiment(
    change: Callable[[np.ndarray, tuple[int, ...]], np.ndarray] = (
        lambda terms, rows: terms
    ),
    reduction: str = "mean",
    said: str = "mean",
    terms_also: Callable[[np.ndarray], np.ndarray] = lambda terms: terms,
    norms_too: float = 1.0,
) -> Experiment:
    """Gradients of examples whose terms are `TERMS`, but for a change."""

    def run(rows: tuple[int, ...], counted: tuple[bool, ...]) -> Run:
        scale = 1.0 / len(rows) if reduction == "mean" else 1.0
        changed = change(TERMS[list(rows)], rows)
        gradient = scale * changed.sum(0) + FREE
        given = scale * terms_also(changed)
        slices = tf.IndexedSlices(
            tf.constant(scale * changed), tf.constant(rows)
        )
        weights = np.array(counted, float)[:, None]
        rows_of_table = scale * changed * weights
        sums = {
            0: tf.constant((given * weights).sum(0)),
            1: tf.IndexedSlices(tf.constant(rows_of_table), tf.constant(rows)),
        }
        both = np.concatenate([given, scale * changed], 1)
        norms = norms_too * np.linalg.norm(both, axis=1)
        return Run([tf.constant(gradient), slices, None], sums, norms)

    return Experiment(run, ROWS, ["dense", "table", "none"], said, 1e-3)


def outcome(tested: Experiment) -> list[bool]:
    tests = tested.gradient_tests() + tested.term_tests()
    return [finding.passed for finding in tests]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_sum_over_examples_passes(reduction: str) -> None:
    good = experiment(reduction=reduction, said=reduction)
    assert outcome(good) == [True] * 5
    assert good.influence() > 1.0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_wrong_reduction_is_named(reduction: str) -> None:
    other = {"mean": "sum", "sum": "mean"}[reduction]
    found = experiment(reduction=reduction, said=other).gradient_tests()
    assert [finding.passed for finding in found] == [True, False]
    assert f"loss_reduction={reduction!r}" in found[1].remedy


@pytest.mark.parametrize("first, second", [(0, 1), (2, 5), (3, 4), (0, 4)])
def test_any_two_examples_that_meet_are_found(first: int, second: int) -> None:
    def pair(terms: np.ndarray, rows: tuple[int, ...]) -> np.ndarray:
        terms = terms.copy()
        terms[first] += 0.02 * terms[first] * terms[second]
        return terms

    (found, *_) = experiment(pair).gradient_tests()
    assert not found.passed
    assert 1e-3 < found.deviation < 0.1


def test_a_size_that_matters_is_found() -> None:
    def thinned(terms: np.ndarray, rows: tuple[int, ...]) -> np.ndarray:
        return terms / np.sqrt(len(rows))

    found = experiment(thinned).gradient_tests()
    assert [finding.passed for finding in found] == [True, False]
    assert "depends on the batch size" in found[1].remedy


def test_terms_that_see_others_are_found_although_the_sum_is_right() -> None:
    found = outcome(experiment(terms_also=lambda terms: np.roll(terms, 1, 0)))
    assert found == [True, True, False, True, True]


def test_terms_that_do_not_add_up_are_found() -> None:
    found = outcome(experiment(terms_also=lambda terms: 0.99 * terms))
    assert found == [True, True, True, False, True]


def test_norms_that_are_too_small_are_found() -> None:
    found = outcome(experiment(norms_too=0.99))
    assert found == [True, True, True, True, False]


def test_what_is_not_a_number_does_not_pass() -> None:
    def broken(terms: np.ndarray, rows: tuple[int, ...]) -> np.ndarray:
        return np.where(terms > 1.5, np.nan, terms)

    assert not experiment(broken).gradient_tests()[0].passed


def test_randomness_is_seen() -> None:
    random = np.random.RandomState(1)

    def run(scale: float) -> Callable[[Any, Any], Run]:
        return lambda rows, counted: Run(
            [tf.constant(TERMS[0] + scale * random.rand(3)), None]
        )

    tested = experiment()
    assert tested.randomness(run(0.0)) == 0.0
    assert tested.randomness(run(1.0)) > 0.1


def test_a_finding_is_told_in_one_line() -> None:
    good, bad = experiment(said="sum").gradient_tests()
    assert str(good).startswith("ok")
    assert "FAILED" in str(bad) and "(most: " in str(bad)
    assert "\n" not in str(bad)
    assert _is_plain(bad)


def _is_plain(finding: Any) -> bool:
    return isinstance(finding.deviation, float) and finding.passed in (0, 1)
