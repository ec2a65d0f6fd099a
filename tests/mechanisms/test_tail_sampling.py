"""Exceedances of untouched rows are those that noise on all rows would have.

Claims that are true are refuted by bad luck one time in a million each, as in
`noise_claims`; there are about 40 of them here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp.mechanisms import tail_sampling
from tf_sparse_dp.mechanisms.noise_norms import (
    GaussianNorms,
    LaplaceNorms,
    Norms,
)
from tf_sparse_dp.mechanisms.tail_sampling import (
    directions,
    exceedances,
    exceedances_between,
    expected_hits,
    hit_capacity,
    touched_rows,
    untouched_hits,
)
from tf_sparse_dp.random_keys import fold_in

pytestmark = pytest.mark.once

KEY = tf.constant([21, 22], tf.int64)
NOTHING = tf.zeros([0], tf.int64)
RARELY = 2.0**-100
ROWS = 1_000_000


def ways(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Eagerly, as a graph, as a graph of unknown sizes, and compiled."""
    return [
        function,
        tf.function(function, autograph=False),
        tf.function(function, autograph=False, reduce_retracing=True),
        tf.function(function, autograph=False, jit_compile=True),
    ]


def uniformity_refuted(sample: np.ndarray) -> bool:
    return bool(stats.kstest(sample, "uniform").pvalue < FALSE_ALARM)


def count_refuted(count: int, trials: int, probability: float) -> bool:
    test = stats.binomtest(count, trials, probability)
    return bool(test.pvalue < FALSE_ALARM)


# Touched rows.

IDS = [5, -1, 3, 5, 99, 0, 3, 10]


def slices(ids: Any, values: Any, rows: int = 10) -> tf.IndexedSlices:
    shape = tf.constant([rows, *values.shape[1:]], tf.int64)
    return tf.IndexedSlices(values, ids, shape)


@pytest.mark.lane
def test_touched_rows_are_summed_up() -> None:
    values = tf.constant(np.arange(16.0).reshape(8, 2), tf.float32)
    for way in ways(lambda ids, values: touched_rows(slices(ids, values))):
        for ids in (tf.constant(IDS, tf.int32), tf.constant(IDS, tf.int64)):
            found = way(ids, values)
            assert found.ids.dtype == tf.int64
            assert found.ids.numpy().tolist() == [0, 3, 5] + [10] * 5
            assert found.live.numpy().tolist() == [True] * 3 + [False] * 5
            exact = np.zeros([8, 2])
            exact[:3] = [[10, 11], [16, 18], [6, 8]]
            np.testing.assert_array_equal(found.values, exact)
        nothing = way(tf.zeros([0], tf.int32), tf.zeros([0, 2]))
        assert nothing.ids.shape == (0,)
        assert nothing.values.shape == (0, 2)


def test_rows_of_no_table_do_no_harm() -> None:
    """Not even if what they hold is no number."""
    values = tf.constant([[math.nan], [2.0], [math.inf]])
    found = touched_rows(slices(tf.constant([-7, 4, 10]), values))
    assert found.ids.numpy().tolist() == [4, 10, 10]
    assert found.values.numpy().tolist() == [[2.0], [0.0], [0.0]]


def test_rows_with_more_axes_and_other_types() -> None:
    values = tf.reshape(tf.range(12, dtype=tf.float64), [2, 2, 3])
    found = touched_rows(slices(tf.constant([7, 2]), values))
    assert found.values.dtype == tf.float32
    np.testing.assert_array_equal(
        found.values, np.arange(12).reshape(2, 6)[::-1]
    )
    scalars = touched_rows(slices(tf.constant([1, 1]), tf.constant([2.0, 3.0])))
    assert scalars.values.numpy().tolist() == [[5.0], [0.0]]


def test_a_table_of_unknown_size() -> None:
    @tf.function
    def function(shape: tf.Tensor) -> tf.Tensor:
        unknown = tf.IndexedSlices(tf.zeros([1, 1]), tf.zeros([1]), shape)
        return touched_rows(unknown).ids

    with pytest.raises(ValueError, match="known only when it runs"):
        function(tf.constant([3, 1], tf.int64))


# Which rows are hit.


@pytest.mark.parametrize(
    "probability, failure",
    [
        (0.0, RARELY),
        (1e-9, RARELY),
        (0.05, RARELY),
        (0.05, 0.5),
        (1.0, RARELY),
        (0.0, 0.0),
        (0.05, 0.0),
        (1.0, 0.0),
    ],
)
def test_hits_in_every_way(probability: float, failure: float) -> None:
    """The same rows from the same key; never a touched one."""
    touched = tf.constant([2, 3, 40, 198, 200, 200], tf.int64)
    functions = ways(
        lambda key, touched: untouched_hits(
            200, probability, touched, key, failure
        )
    )
    found = []
    for way in functions if failure > 0 else functions[:-1]:
        for given in (touched, NOTHING):
            ids, live = (x.numpy() for x in way(KEY, given))
            assert (ids < 200).all()
            assert not ids[~live].any()  # Not even a touched row's id.
            kept = ids[live]
            assert (np.diff(kept) > 0).all()
            assert not set(kept) & set(given.numpy())
            if probability in (0.0, 1.0):
                everything = 200 - np.sum(given.numpy() < 200)
                assert kept.size == probability * everything
        found.append(kept.tolist())
    assert found == found[:1] * len(found)


def test_hits_of_a_table_that_was_touched_all_over() -> None:
    hits = untouched_hits(50, 0.5, tf.range(50, dtype=tf.int64), KEY, RARELY)
    assert not hits.live.numpy().any()


@pytest.mark.parametrize("failure", [RARELY, 0.0], ids=["fixed", "growing"])
@pytest.mark.parametrize(
    "rows, probability",
    [(ROWS, 2e-3), (2_000_000_000, 1e-6), (3000, 0.6)],
    ids=str,
)
def test_hits_of_one_large_table(
    rows: int, probability: float, failure: float
) -> None:
    """Number, places, and distances are those of independent rows."""
    ids, live = untouched_hits(rows, probability, NOTHING, KEY, failure)
    found = ids.numpy()[live]
    assert not count_refuted(found.size, rows, probability)
    assert count_refuted(found.size, rows, 0.75 * probability)
    assert not uniformity_refuted((found + 0.5) / rows)
    if probability < 0.1:
        skipped = np.diff(found) - 1  # Geometric, made continuous by dice.
        dice = np.random.default_rng(0).random(skipped.size)
        below = -np.expm1(skipped * math.log1p(-probability))
        share = below + dice * probability * (1 - below)
        assert not uniformity_refuted(share)
        assert uniformity_refuted(1 - (1 - share) ** 1.25)
        low_digits = found[1:] % 100
        assert not uniformity_refuted((low_digits + dice) / 100)


@pytest.mark.parametrize("failure", [RARELY, 0.0], ids=["fixed", "growing"])
def test_every_row_is_hit_as_often(
    monkeypatch: pytest.MonkeyPatch, failure: float
) -> None:
    """At the end of the table too, and where a block of hits meets the next."""
    monkeypatch.setattr(
        tail_sampling, "_block_size", lambda *_: tf.constant(2, tf.int64)
    )
    touched = tf.constant([0, 7, 12], tf.int64)
    tables, rows, probability = 2500, 30, 0.3

    def hit(key: tf.Tensor) -> tf.Tensor:
        ids, live = untouched_hits(rows, probability, touched, key, failure)
        return tf.scatter_nd(
            ids[:, tf.newaxis], tf.cast(live, tf.int32), [rows]
        )

    keys = tf.stack([tf.range(tables, dtype=tf.int64)] * 2, 1)
    spec = tf.TensorSpec([rows], tf.int32)
    found = tf.function(
        lambda: tf.map_fn(hit, keys, fn_output_signature=spec), autograph=False
    )().numpy()
    assert found.max() == 1
    expected = np.where(np.isin(np.arange(rows), touched), 0, probability)
    for row, often in enumerate(found.sum(0)):
        assert not count_refuted(often, tables, expected[row])
    # Rows are independent: then the number of hits in a table is binomial.
    counts = np.bincount(found.sum(1), minlength=rows)
    exact = tables * stats.binom.pmf(np.arange(rows), rows - 3, probability)
    usual = exact > 5
    exact = exact[usual] * counts[usual].sum() / exact[usual].sum()
    assert stats.chisquare(counts[usual], exact).pvalue > FALSE_ALARM


@pytest.mark.parametrize("rows", [10, 1000, 10**6, 2 * 10**9])
@pytest.mark.parametrize("probability", [1e-12, 1e-6, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("failure", [1e-2, 1e-9, RARELY])
def test_the_capacity(rows: int, probability: float, failure: float) -> None:
    mean = rows * probability
    capacity = hit_capacity(rows, probability, failure)
    assert capacity <= rows
    assert stats.binom.sf(capacity, rows, probability) <= failure
    if capacity < rows:
        assert stats.poisson.sf(capacity, mean) <= failure
    # It is no larger than it has to be: two more standard deviations.
    fewer = capacity - 2 - 2 * math.sqrt(mean)
    if capacity < rows and fewer > mean:
        assert stats.poisson.sf(fewer * 0.9, mean) > failure
    assert hit_capacity(rows, probability, 0.0) == rows


def test_too_small_a_capacity_loses_the_last_hits_only() -> None:
    ids, live = untouched_hits(ROWS, 1e-3, NOTHING, KEY, 0.999)
    assert ids.shape[0] < 1100
    found = ids.numpy()[live]
    assert (np.diff(found) > 0).all()


def test_no_hits_no_capacity() -> None:
    assert hit_capacity(ROWS, 0.0, RARELY) == 0
    assert hit_capacity(ROWS, 0.0, 0.0) == 0
    found = exceedances(
        GaussianNorms(1.0, 4), ROWS, 100.0, NOTHING, KEY, RARELY
    )
    assert found.excess.shape == (0,)


# How far rows exceed.

CASES = [
    (GaussianNorms(1.0, 1), 3.5),
    (GaussianNorms(0.3, 1), 0.3 * 6.5),
    (GaussianNorms(2.0, 2), 2 * 4.0),
    (GaussianNorms(2.5, 3), 2.5 * 7.0),
    (GaussianNorms(1.0, 16), 6.5),
    (GaussianNorms(0.1, 32), 0.1 * 11.0),
    (GaussianNorms(1.0, 64), 10.5),
    (LaplaceNorms(0.7), 0.7 * 7.0),
    (LaplaceNorms(3.0), 3.0 * 20.0),
]


def shares(norms: Norms, threshold: float, excess: np.ndarray) -> np.ndarray:
    """Uniform if, and only if, the excess has its law."""
    norm = threshold + excess.astype(np.float64)
    return norms.survival(norm) / norms.survival(threshold)


def test_most_cases_are_beyond_six_standard_deviations() -> None:
    deep = stats.norm.sf(6) * 2
    assert sum(norms.survival(t) < deep for norms, t in CASES) >= 3


@pytest.mark.parametrize("norms, threshold", CASES, ids=str)
def test_exceedances(norms: Norms, threshold: float) -> None:
    """Tables as large as it takes for 3000 of them: up to 10¹³ rows."""
    rows = int(3000 / norms.survival(threshold))
    assert expected_hits(norms, rows, threshold) == pytest.approx(3000, 1e-3)

    drawn = exceedances(norms, rows, threshold, NOTHING, KEY, RARELY)
    ids, live, excess = (x.numpy() for x in drawn)
    assert (excess[~live] == 0).all()
    found = excess[live]
    assert found.min() >= 0
    probability = float(norms.survival(threshold))
    assert not count_refuted(found.size, rows, probability)
    assert not uniformity_refuted((ids[live] + 0.5) / rows)
    assert not uniformity_refuted(shares(norms, threshold, found))
    # Drawn above a threshold that is too high; too far; cut off.
    typical = np.median(found)
    for wrong in (
        found + 0.1 * typical,
        1.2 * found,
        found[found < 3 * typical],
    ):
        assert uniformity_refuted(shares(norms, threshold, wrong))


@pytest.mark.parametrize("failure", [RARELY, 0.0], ids=["fixed", "growing"])
@pytest.mark.lane
def test_exceedances_in_every_way(failure: float) -> None:
    """The same rows from the same key, and the same excess."""
    norms, touched = GaussianNorms(2.0, 8), tf.range(0, 5000, 2, tf.int64)
    functions = ways(
        lambda key, touched: exceedances(
            norms, 5000, 8.0, touched, key, failure
        )
    )
    results = [
        [x.numpy() for x in way(KEY, touched)]
        for way in (functions if failure > 0 else functions[:-1])
    ]
    for ids, live, excess in results:
        np.testing.assert_array_equal(ids, results[0][0])
        np.testing.assert_array_equal(live, results[0][1])
        np.testing.assert_allclose(excess, results[0][2], 1e-4, 1e-6)
        assert (ids[live] % 2 == 1).all()
        assert not count_refuted(live.sum(), 2500, norms.survival(8.0))


@pytest.mark.parametrize("threshold", [-1.0, math.inf, math.nan])
def test_thresholds_that_are_none(threshold: float) -> None:
    with pytest.raises(ValueError, match="No norm can be compared"):
        exceedances(LaplaceNorms(1.0), 10, threshold, NOTHING, KEY, RARELY)


def test_against_noise_on_all_rows() -> None:
    """The definition itself: dense noise, then a threshold."""
    norms, threshold, rows = GaussianNorms(1.5, 4), 4.0, 200_000
    dense = 1.5 * np.random.default_rng(3).standard_normal([rows, 4])
    size = np.linalg.norm(dense, axis=1)
    over = size[size > threshold] - threshold
    ids, live, excess = exceedances(
        norms, rows, threshold, NOTHING, KEY, RARELY
    )
    found = excess.numpy()[live]
    vectors = found[:, np.newaxis] * directions(KEY, found.size, 4)
    shrunk = dense * np.maximum(1 - threshold / size, 0)[:, np.newaxis]
    shrunk = shrunk[size > threshold]
    for ours, theirs in [
        (found, over),
        (vectors[:, 0], shrunk[:, 0]),
        (ids.numpy()[live], np.flatnonzero(size > threshold)),
    ]:
        assert stats.ks_2samp(ours, theirs).pvalue > FALSE_ALARM
    # Two binomial numbers; their difference is nearly normal.
    difference = abs(found.size - over.size)
    assert difference < 4.9 * math.sqrt(2 * over.size)
    assert stats.ks_2samp(found + 0.05, over).pvalue < FALSE_ALARM


# A threshold that is lowered.

LOWERED = [
    (GaussianNorms(2.0, 1), 2 * 3.0, 2 * 2.0),
    (GaussianNorms(0.5, 16), 0.5 * 6.0, 0.5 * 5.5),
    (GaussianNorms(1.0, 64), 10.0, 9.5),
    (GaussianNorms(1.0, 3), 2.0, 0.0),
    (LaplaceNorms(2.0), 2 * 5.0, 2 * 3.0),
    (LaplaceNorms(1.0), 3.0, 2.9),
]


@pytest.mark.parametrize("norms, high, low", LOWERED, ids=str)
def test_a_lowered_threshold_is_as_good_as_a_low_one(
    norms: Norms, high: float, low: float
) -> None:
    rows = int(4000 / norms.survival(low))
    touched = tf.range(0, rows, 10, tf.int64)

    @tf.function(autograph=False)
    def lowered(*limits: tf.Tensor) -> Any:
        first = exceedances(norms, rows, high, touched, KEY, RARELY)
        found = tf.where(first.live, first.ids, rows)
        second = exceedances_between(
            norms,
            rows,
            *limits,
            tf.concat([found, touched], 0),
            fold_in(KEY, 9),
        )
        return first, second

    first, second = lowered(*(tf.constant(x, tf.float64) for x in (low, high)))
    assert second.live.numpy().all()
    above, between = first.excess.numpy()[first.live], second.excess.numpy()
    assert between.min() >= 0
    assert between.max() <= (high - low) * (1 + 1e-6)
    ids = np.concatenate([first.ids.numpy()[first.live], second.ids])
    assert len(set(ids)) == ids.size
    assert (ids % 10 != 0).all()
    untouched = rows - touched.shape[0]
    probability = float(norms.survival(low))
    assert not count_refuted(ids.size, untouched, probability)
    excess = np.concatenate([above + (high - low), between])
    assert not uniformity_refuted(shares(norms, low, excess))
    # Without the first, or without the second, something is missing.
    assert uniformity_refuted(shares(norms, low, between))
    assert uniformity_refuted(shares(norms, low, above + (high - low)))


@pytest.mark.parametrize(
    "low, high", [(3.0, 3.0), (4.0, 3.0), (math.nan, 3.0), (2.0, math.nan)]
)
@pytest.mark.parametrize("norms", [GaussianNorms(1.0, 3), LaplaceNorms(1.0)])
def test_nothing_between(norms: Norms, low: float, high: float) -> None:
    """Nothing is found, and nothing is looked for without end."""
    found = exceedances_between(norms, 1000, low, high, NOTHING, KEY)
    assert found.ids.shape == (0,)


# Directions.


@pytest.mark.parametrize("width", [2, 3, 32])
def test_directions(width: int) -> None:
    found = directions(KEY, 20_000, width).numpy().astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    square = stats.beta(0.5, (width - 1) / 2)  # Of one entry of a unit vector.
    for entry in (0, width - 1):
        assert not uniformity_refuted(square.cdf(found[:, entry] ** 2))
        positive = int((found[:, entry] > 0).sum())
        assert not count_refuted(positive, 20_000, 0.5)
    both = int((found[:, 0] * found[:, -1] > 0).sum())
    assert not count_refuted(both, 20_000, 0.5)


def test_directions_of_single_numbers() -> None:
    found = directions(KEY, tf.constant(10_000), 1).numpy()
    assert found.shape == (10_000, 1)
    assert set(found.ravel()) == {-1.0, 1.0}
    assert not count_refuted(int((found > 0).sum()), 10_000, 0.5)


def test_directions_tell_nothing_about_the_excess() -> None:
    """Though they come of one key."""
    norms = GaussianNorms(1.0, 2)
    _, live, excess = exceedances(norms, 50_000, 2.0, NOTHING, KEY, RARELY)
    vectors = directions(KEY, excess.shape[0], 2)
    found = stats.spearmanr(excess[live], tf.abs(vectors[:, 0])[live])
    assert found.pvalue > FALSE_ALARM
