"""Threshold releases what noise on all rows and a threshold would give.

Keys are fixed. With others, a true claim would be refuted with probability 1e-6
at most per statistic, and fewer than 150 statistics are compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.mechanisms import dense_definitions
from tests.mechanisms.dense_definitions import Table
from tests.mechanisms.public_facts import facts
from tests.mechanisms.repeated_release import (
    Release,
    dense,
    keys,
    refuted,
    sample,
    slices,
)
from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp.mechanisms import Threshold, noisy_tables, tail_sampling
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.mechanisms.noisy_tables import Layout
from tf_sparse_dp.mechanisms.threshold import sure_range, sure_shift

pytestmark = pytest.mark.once

MANY = 150
STDDEV = 2.0
KEY = tf.constant([5, 6], tf.int64)
CALIBRATED, SURE = Threshold(), Threshold(choice="sure")
WEAK, STRONG = 1.0, 5.0


def table(rows: int, width: int, touched: int, size: float) -> Table:
    rng = np.random.default_rng(3)
    values = rng.standard_normal([touched, width])
    values *= size * STDDEV / np.linalg.norm(values, axis=1, keepdims=True)
    ids = rng.choice(rows, touched, replace=False)
    return Table(rows, ids, values.astype("float32"))


def small(size: float) -> Table:
    return table(2500, 4, 60, size)


def public(rows: int, width: int, failure_probability: float) -> PublicFacts:
    shape = (rows, width)
    return PublicFacts(
        variables=(Variable(shape=shape, sparse=True),),
        clip_norm=1.0,
        noise_multiplier=STDDEV,
        expected_batch_size=1.0,
        failure_probability=failure_probability,
    )


def traced(
    mechanism: Threshold,
    given: Table,
    failure_probability: float = 2.0**-100,
    jit: bool = False,
) -> Callable[..., Any]:
    known = public(given.rows, given.width, failure_probability)

    def run(ids: tf.Tensor, values: tf.Tensor, key: tf.Tensor) -> Any:
        shape = tf.constant([given.rows, given.width], tf.int64)
        total = tf.IndexedSlices(values, ids, shape)
        return mechanism.release([total], key, known)[0]

    return tf.function(run, jit_compile=jit)


def drawn(
    function: Callable[..., Any], given: Table, count: int = MANY
) -> np.ndarray:
    arguments = slices(given)
    return sample(
        [given],
        lambda key: ([dense(function(*arguments, key))], []),
        keys(count),
    )


def candidates(rows: int, width: int) -> np.ndarray:
    probabilities = [min(1e-2, 2e3 / rows), 1 / rows]
    return np.linspace(
        *(
            dense_definitions.row_threshold(p, STDDEV, width)
            for p in probabilities
        ),
        200,
    )


def by_definition(
    mechanism: Threshold, given: Table, rng: np.random.Generator
) -> Release:
    noisy = given.dense() + rng.normal(0, STDDEV, [given.rows, given.width])
    if mechanism.choice == "calibrated":
        threshold = dense_definitions.row_threshold(
            mechanism.untouched_rows / given.rows, STDDEV, given.width
        )
    else:
        threshold = dense_definitions.sure_threshold(
            np.linalg.norm(noisy, axis=1),
            STDDEV,
            given.width,
            candidates(given.rows, given.width),
        )
    return [dense_definitions.shrunk(noisy, threshold, "rows", STDDEV)], []


@functools.cache
def defined(mechanism: Threshold, size: float) -> np.ndarray:
    return defined_for(mechanism, small(size), MANY)


def defined_for(mechanism: Threshold, given: Table, count: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    return sample(
        [given], lambda _: by_definition(mechanism, given, rng), range(count)
    )


@pytest.mark.parametrize("way", ["graph", "xla", "nothing may fail"])
@pytest.mark.parametrize("mechanism", [CALIBRATED, SURE], ids=["", "sure"])
def test_the_distribution_is_that_of_the_definition(
    mechanism: Threshold, way: str
) -> None:
    failure_probability = 0.0 if way == "nothing may fail" else 2.0**-100
    function = traced(
        mechanism, small(WEAK), failure_probability, jit=way == "xla"
    )
    for size in (WEAK, STRONG):
        assert not refuted(
            drawn(function, small(size)), defined(mechanism, size)
        )


def test_other_thresholds_are_refuted() -> None:
    lower = Threshold(untouched_rows=13)
    found = drawn(traced(lower, small(WEAK)), small(WEAK))
    assert not refuted(found, defined(lower, WEAK))
    assert refuted(found, defined(CALIBRATED, WEAK))
    assert refuted(found, defined(SURE, WEAK))


@pytest.mark.parametrize("mechanism", [CALIBRATED, SURE], ids=["", "sure"])
def test_the_distribution_at_a_million_coordinates(
    mechanism: Threshold,
) -> None:
    given = table(125_000, 8, 500, STRONG)
    few = 20
    assert not refuted(
        drawn(traced(mechanism, given), given, few),
        defined_for(mechanism, given, few),
    )


@pytest.mark.parametrize("failure_probability", [2.0**-100, 0.0])
@pytest.mark.parametrize("mechanism", [CALIBRATED, SURE], ids=["", "sure"])
def test_eagerly_it_is_the_same(
    mechanism: Threshold, failure_probability: float
) -> None:
    given = small(STRONG)
    function = traced(mechanism, given, failure_probability)
    graph, eager = (
        dense(way(*slices(given), KEY))
        for way in (function, function.python_function)
    )
    np.testing.assert_allclose(graph, eager, atol=1e-2)


# Far tails. A table of a billion numbers, of which the largest are released.

FAR = Threshold(untouched_rows=40.0)
BILLION = 10**9


def far_norms(count: int) -> np.ndarray:
    """Norms of untouched numbers, in standard deviations."""
    nothing = Table(BILLION, np.zeros([0], int), np.zeros([0, 1], "float32"))
    function = traced(FAR, nothing)
    threshold = dense_definitions.row_threshold(40.0 / BILLION, 1.0, 1)
    found = []
    for key in keys(count):
        values = function(*slices(nothing), key).values.numpy()
        found.append(np.abs(values[values != 0]) / STDDEV + threshold)
    return np.concatenate(found)


def tail_refuted(sample: np.ndarray) -> bool:
    """Half normal, given that it is above what 40 of 1e9 are above."""
    uniform = 2 * stats.norm.sf(sample) / (40.0 / BILLION)
    return stats.kstest(uniform, "uniform").pvalue < FALSE_ALARM


def test_far_tails() -> None:
    found = far_norms(60)
    # A Poisson number of mean 2400; 5 standard deviations are one in 1e6.
    assert abs(len(found) - 2400) < 5 * np.sqrt(2400)
    assert found.max() > 6.3  # Misses one time in 1e8.
    assert not tail_refuted(found)
    assert tail_refuted(np.minimum(found, 5.67))


def test_tails_that_are_cut_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 5.67 standard deviations, as TensorFlow's own normal numbers are."""
    chi_excess = tail_sampling.chi_excess

    def cut(shape, key, *, width, low, high):
        return chi_excess(shape, key, width=width, low=low, high=5.67)

    monkeypatch.setattr(tail_sampling, "chi_excess", cut)
    assert tail_refuted(far_norms(60))


def touched_share(count: int) -> float:
    """Probability of what is released of touched rows that carry nothing."""
    rows, touched = 1_000_000, 200_000
    given = Table(rows, np.arange(touched), np.zeros([touched, 1], "float32"))
    function = traced(Threshold(untouched_rows=100.0), given)
    released = [function(*slices(given), key) for key in keys(count)]
    here = sum(np.count_nonzero(dense(total)[:touched]) for total in released)
    return stats.binomtest(here, touched * count, 1e-4).pvalue


def test_touched_rows_that_carry_nothing_are_released_as_others() -> None:
    assert touched_share(10) > FALSE_ALARM


def test_touched_rows_without_tails_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    normal = noisy_tables.normal
    monkeypatch.setattr(
        noisy_tables,
        "normal",
        lambda shape, key: (
            tf.clip_by_value(normal(shape, key), -4.0, 4.0)
            * tf.cast(tf.abs(normal(shape, key)) < 4.0, tf.float32)
        ),
    )
    assert touched_share(10) < FALSE_ALARM


# What is public.


@pytest.mark.parametrize("rows", [20_000, 3_000_000])
def test_sure_is_the_minimum_of_the_risk(rows: int) -> None:
    layout = Layout((rows, 6), "rows", "gaussian", STDDEV)
    lowest, highest = sure_range(layout)
    expected = candidates(rows, 6)
    np.testing.assert_allclose([lowest, highest], expected[[0, -1]])
    rng = np.random.default_rng(2)
    probability = min(1e-2, 2e3 / rows)
    uniform = rng.uniform(0, probability, round(rows * probability))
    noise = dense_definitions.row_threshold(uniform, STDDEV, 6)
    chosen = []
    for strong in (0, len(noise) // 20, len(noise)):
        signal = rng.uniform(highest, 1.5 * highest, strong)
        sizes = np.r_[noise, signal].astype("float32")
        excess = np.maximum(sizes - np.float32(lowest), 0)
        found = lowest + float(
            sure_shift(tf.constant(excess), lowest, highest, layout)
        )
        best = dense_definitions.sure_threshold(sizes, STDDEV, 6, expected)
        assert found == pytest.approx(best, rel=1e-6)
        chosen.append(round(found, 6))
    assert len(set(chosen)) > 1


def test_small_tables_have_noise_and_no_threshold() -> None:
    total = tf.IndexedSlices(
        tf.ones([2, 3]), tf.constant([1, 1]), tf.constant([999, 3], tf.int64)
    )
    for mechanism in (CALIBRATED, SURE):
        (found,) = mechanism.release([total], KEY, facts([total], 1.0))
        assert np.count_nonzero(found) == 999 * 3


def test_as_many_untouched_rows_as_there_are() -> None:
    """Then the threshold is 0, and everything is released."""
    total = tf.IndexedSlices(
        tf.ones([2, 3]), tf.constant([1, 1]), tf.constant([1200, 3], tf.int64)
    )
    (found,) = Threshold(untouched_rows=1e9).release(
        [total], KEY, facts([total], 1.0)
    )
    rows = np.linalg.norm(dense(found), axis=1)
    assert np.count_nonzero(rows) == 1200


@pytest.mark.parametrize(
    "options",
    [
        {"choice": "best"},
        {"untouched_rows": 0},
        {"untouched_rows": -1.0},
        {"untouched_rows": float("nan")},
        {"untouched_rows": float("inf")},
        {"untouched_rows": True},
        {"untouched_rows": "10"},
        {"untouched_rows": 1000, "choice": "sure"},
    ],
    ids=str,
)
def test_bad_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Threshold(**options)


def test_a_table_without_rows() -> None:
    with pytest.raises(ValueError, match="0 rows"):
        Threshold().check(public(0, 4, 0.0))


@pytest.mark.parametrize("failure_probability", [2.0**-100, 0.0])
@pytest.mark.parametrize(
    "shape", [(2000,), (2000, 1), (2000, 2, 3), (1500, 4)], ids=str
)
def test_edges(shape: tuple[int, ...], failure_probability: float) -> None:
    rows, *tail = shape
    for ids in ([], [3, 3, 7], list(range(rows))):
        for dtype in (tf.float32, tf.bfloat16):
            total = tf.IndexedSlices(
                tf.ones([len(ids), *tail], dtype),
                tf.constant(ids, tf.int32),
                tf.constant(shape, tf.int64),
            )
            known = facts(
                [total], 1e-3, failure_probability=failure_probability
            )
            for mechanism in (CALIBRATED, SURE):
                (found,) = mechanism.release([total], KEY, known)
                assert found.dtype == dtype
                # What is shrunk is about 5 standard deviations.
                np.testing.assert_allclose(
                    dense(found).astype("float32"),
                    tf.cast(tf.convert_to_tensor(total), tf.float32),
                    atol=2e-2,
                )
