"""PartitionSelection releases what its dense definition does, in law.

The definition is known in closed form: a row with count c is selected with
probability sf((threshold - c) / count noise), on its own; selected rows have
their sum plus normal noise. So samples are held against these laws, with a
false alarm of `FALSE_ALARM` for each claim.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.noise_claims import (
    FALSE_ALARM,
    assert_stddev,
    distribution_refuted,
)
from tf_sparse_dp.gradients.factors import DenseFactor, Factor, RowFactor
from tf_sparse_dp.gradients.placed import PlacedFactor
from tf_sparse_dp.mechanisms import (
    PartitionSelection,
    gaussian,
    partition_selection,
)
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable

pytestmark = pytest.mark.once

KEY = tf.constant([1, 2], tf.int64)
ROWS, WIDTH, RUNS = 1000, 3, 500
SHARE, NOISE, CLIP_NORM = 0.4, 0.8, 0.5
COUNT_STDDEV = NOISE / math.sqrt(SHARE)
STDDEV = CLIP_NORM * NOISE / math.sqrt(1 - SHARE)
# Units 0 to 5 look up row 5 twice and row 17; units 6 to 8 row 17 and row 900;
# unit 9 looks up row 33 without a gradient; the last one is padding.
IDS = np.array([[5, 5, 17]] * 6 + [[17, 900, 17]] * 3 + [[33] * 3, [44] * 3])
VALUES = np.full([11, 3, WIDTH], 0.05, "float32")
VALUES[9] = 0
VALID = np.arange(11) < 10
COUNTS = np.zeros(ROWS)
COUNTS[[5, 17, 900]] = 6 / math.sqrt(2), 9 / math.sqrt(2), 3 / math.sqrt(2)
SUMS = np.zeros([ROWS, WIDTH])
SUMS[[5, 17, 900]] = np.array([[6 * 0.1], [6 * 0.05 + 3 * 0.1], [3 * 0.05]])
TOUCHED = [5, 17, 33, 44, 900]


def facts(terms: list[Factor], **changes: Any) -> PublicFacts:
    arguments: dict[str, Any] = {
        "variables": tuple(map(Variable.of, terms)),
        "clip_norm": CLIP_NORM,
        "noise_multiplier": NOISE,
        "expected_batch_size": 10.0,
        "failure_probability": 2.0**-100,
    }
    return PublicFacts(**arguments | changes)


def terms(ids: tf.Tensor, values: tf.Tensor) -> list[Factor]:
    return [RowFactor(values, ids, (ROWS, WIDTH))]


def releases(
    mechanism: PartitionSelection, way: str, runs: int = RUNS
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows were selected [runs, ROWS], and values [runs, ROWS, WIDTH]."""

    def run(
        key: tf.Tensor, ids: tf.Tensor, values: tf.Tensor, valid: tf.Tensor
    ) -> tf.IndexedSlices:
        public = facts(terms(ids, values))
        sums = mechanism.clipped(terms(ids, values), key, public, valid=valid)
        return mechanism.release(sums, key, public)[0]

    signature = [
        tf.TensorSpec([2], tf.int64),
        # In graphs the number of units is not known while tracing.
        tf.TensorSpec([None if way == "graph" else 11, 3], tf.int64),
        tf.TensorSpec([None if way == "graph" else 11, 3, WIDTH]),
        tf.TensorSpec([None if way == "graph" else 11], tf.bool),
    ]
    traced = tf.function(
        run, input_signature=signature, jit_compile=way == "xla"
    )
    given = tuple(map(tf.constant, (IDS, VALUES, VALID)))
    selected = np.zeros([runs, ROWS], bool)
    values = np.zeros([runs, ROWS, WIDTH])
    for number in range(runs):
        key = tf.constant([number, 7], tf.int64)
        found = traced(key, *given)
        ids, rows = found.indices.numpy(), found.values.numpy()
        filled = ~rows.any(1)
        assert not ids[filled].any()
        selected[number, ids[~filled]] = True
        np.add.at(values[number], ids, rows)
    return selected, values


def selection_refuted(selected: np.ndarray, threshold: float) -> list[int]:
    """Rows, or -1 for all untouched ones, that the definition rules out."""
    probability = stats.norm.sf((threshold - COUNTS) / COUNT_STDDEV)
    refuted = [
        row
        for row in TOUCHED
        if stats.binomtest(
            int(selected[:, row].sum()), len(selected), probability[row]
        ).pvalue
        < FALSE_ALARM
    ]
    untouched = np.delete(selected, TOUCHED, axis=1)
    test = stats.binomtest(int(untouched.sum()), untouched.size, probability[0])
    return refuted + [-1] * (test.pvalue < FALSE_ALARM)


def uniformity_refuted(counts: np.ndarray) -> bool:
    return stats.chisquare(counts).pvalue < FALSE_ALARM


SPARSE = PartitionSelection(selection_share=SHARE, threshold=2.0)
CASES = {
    "sparse": (SPARSE, 2.0),
    # Half of all rows are selected by noise alone.
    "dense": (PartitionSelection(selection_share=SHARE, threshold=0.1), 0.1),
    "expected": (
        PartitionSelection(selection_share=SHARE, expected_untouched=30),
        COUNT_STDDEV * stats.norm.isf(30 / ROWS),
    ),
}


@functools.cache
def sample(name: str, way: str) -> tuple[np.ndarray, np.ndarray]:
    runs = RUNS if name == "sparse" else RUNS // 2
    return releases(CASES[name][0], way, runs)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("sparse", "graph"),
        ("sparse", "xla"),
        ("dense", "graph"),
        ("dense", "xla"),
        ("expected", "graph"),
    ],
)
def test_rows_are_selected_as_defined(name: str, way: str) -> None:
    selected, values = sample(name, way)
    threshold = CASES[name][1]
    assert not selection_refuted(selected, threshold)
    # Another threshold, or counts that a unit adds to twice, would be seen.
    assert selection_refuted(selected, threshold + 0.5)
    # Noise selects one row as often as another,
    untouched = np.delete(np.arange(ROWS), TOUCHED)[:990]
    per_row = selected[:, untouched].sum(0)
    assert not uniformity_refuted(per_row.reshape(30, 33).sum(1))
    # and each on its own: their number is binomial.
    probability = stats.norm.sf(threshold / COUNT_STDDEV)
    law = stats.binom(990, probability)
    numbers = selected[:, untouched].sum(1)
    bins = np.unique(law.ppf(np.linspace(0, 1, 9)[1:-1]))
    mass = np.diff([0, *law.cdf(bins), 1])
    found = np.bincount(np.searchsorted(bins, numbers), minlength=len(bins) + 1)
    assert stats.chisquare(found, len(numbers) * mass).pvalue > FALSE_ALARM

    noise = (values - SUMS)[selected] / STDDEV
    assert_stddev(noise, 1.0)
    # The grid is 4096 times finer than the noise.
    assert not distribution_refuted(noise[:20_000])
    # The noise that selects a row is not that of its values.
    for row in (5, 17, 900):
        mine = (values - SUMS)[:, row][selected[:, row]] / STDDEV
        assert not distribution_refuted(mine)
    assert not values[~selected].any()


@pytest.mark.parametrize("way", ["graph", "xla"])
def test_values_do_not_tell_who_was_touched(way: str) -> None:
    selected, values = sample("sparse", way)
    padding = values[:, [33, 44]][selected[:, [33, 44]]]
    others = np.delete(values, TOUCHED, axis=1)
    others = others[np.delete(selected, TOUCHED, axis=1)]
    assert len(padding) > 20
    assert stats.ks_2samp(padding.ravel(), others.ravel()).pvalue > FALSE_ALARM
    step = 2.0 ** (math.floor(math.log2(STDDEV)) - 12)
    for rows in (padding, others):
        np.testing.assert_array_equal(rows / step, np.round(rows / step))


def test_counts_that_units_add_to_twice_would_be_seen() -> None:
    """Row 5, which six units look up twice each, would be selected oftener."""
    selected, _ = sample("sparse", "graph")
    twice = stats.norm.sf((2.0 - 2 * COUNTS[5]) / COUNT_STDDEV)
    test = stats.binomtest(int(selected[:, 5].sum()), len(selected), twice)
    assert test.pvalue < FALSE_ALARM


def test_no_key_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that the caller may use: noises would depend on each other."""
    keys = [tuple(KEY.numpy())]

    def recorded(function: Any, place: int) -> Any:
        def record(*arguments: Any) -> Any:
            keys.append(tuple(arguments[place].numpy()))
            return function(*arguments)

        return record

    for module, name, place in (
        (partition_selection, "normal", 1),
        (partition_selection, "untouched_hits", 3),
        (gaussian, "normal", 1),
    ):
        function = recorded(getattr(module, name), place)
        monkeypatch.setattr(module, name, function)
    ids, values = tf.constant(IDS), tf.constant(VALUES)
    given = [
        RowFactor(values, ids, (ROWS, WIDTH)),
        DenseFactor(tf.zeros([11, 4])),
        RowFactor(values[..., :1], ids, (ROWS, 1)),
        RowFactor(values, ids % 5, (5, WIDTH)),
    ]
    public = facts(given)
    mechanism = PartitionSelection()
    mechanism.release(mechanism.clipped(given, KEY, public), KEY, public)
    assert len(set(keys)) == len(keys) == 1 + 4 + 1 + 4 + 1


def test_shared_rows_are_always_selected() -> None:
    """Also if nobody is there: which rows these are is public."""
    mechanism = PartitionSelection(threshold=1e6)
    shared = PlacedFactor(
        DenseFactor(tf.zeros([2, 3, WIDTH])),
        tf.constant([8, 2, 8]),
        (ROWS, WIDTH),
        rows=RowFactor(
            tf.ones([2, 1, WIDTH]), tf.constant([[8], [50]]), (ROWS, WIDTH)
        ),
    )
    public = facts([shared])
    for valid in ([True, True], [False, False]):
        sums = mechanism.clipped(
            [shared], KEY, public, valid=tf.constant(valid)
        )
        (found,) = mechanism.release(sums, KEY, public)
        full = found.values.numpy().any(1)
        assert sorted(found.indices.numpy()[full]) == [2, 8]


def test_small_tables_are_released_as_a_whole() -> None:
    mechanism = PartitionSelection(expected_untouched=10)
    given: list[Factor] = [
        RowFactor(tf.ones([1, 1, 2]), tf.constant([[3]]), (rows, 2))
        for rows in (10, 11)
    ]
    public = facts(given)
    sums = mechanism.clipped(given, KEY, public)
    assert len(sums) == 3
    # The one row of the one table that is selected from has the whole count.
    np.testing.assert_array_equal(sums[2].values, [[1.0]])
    small, large = mechanism.release(sums, KEY, public)
    assert small.shape == (10, 2) and small.numpy().all()
    assert isinstance(large, tf.IndexedSlices)


def test_the_size_of_what_is_released_is_public() -> None:
    """As many rows for padding as for units, of whatever count."""
    public = facts(terms(tf.constant(IDS), tf.constant(VALUES)))
    sizes = set()
    for valid in (VALID, ~VALID, np.zeros(11, bool)):
        given = terms(tf.constant(IDS), tf.constant(VALUES))
        sums = SPARSE.clipped(given, KEY, public, valid=tf.constant(valid))
        sizes.add(SPARSE.release(sums, KEY, public)[0].indices.shape[0])
    assert len(sizes) == 1


def test_sums_without_counts_are_refused() -> None:
    given = terms(tf.constant(IDS), tf.constant(VALUES))
    public = facts(given)
    sums = SPARSE.clipped(given, KEY, public)
    with pytest.raises(ValueError, match="expected those of clipped"):
        SPARSE.release(sums[:1], KEY, public)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_two_noises_cost_what_one_does(share: float) -> None:
    event = PartitionSelection(selection_share=share).event(1.3)
    counts, sums = event.events
    assert counts.noise_multiplier == pytest.approx(1.3 / math.sqrt(share))
    assert sums.noise_multiplier == pytest.approx(1.3 / math.sqrt(1 - share))
    together, one, less = (
        dp_accounting.rdp.RdpAccountant().compose(each, 100).get_epsilon(1e-6)
        for each in (
            event,
            dp_accounting.GaussianDpEvent(1.3),
            dp_accounting.GaussianDpEvent(1.301),
        )
    )
    assert together == pytest.approx(one)
    assert together != pytest.approx(less)


@pytest.mark.parametrize(
    "arguments",
    [
        {"selection_share": 0.0},
        {"selection_share": 1.0},
        {"selection_share": 1e-80},
        {"selection_share": 0.99e-6},
        {"selection_share": 1 - 0.99e-6},
        {"selection_share": math.nan},
        {"selection_share": True},
        {"selection_share": "0.1"},
        {"threshold": -0.1},
        {"threshold": math.inf},
        {"expected_untouched": 0.0},
        {"expected_untouched": math.inf},
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name}=.*expected a finite number"):
        PartitionSelection(**arguments)


def test_the_largest_and_the_smallest_thresholds() -> None:
    given = terms(tf.constant(IDS), tf.constant(VALUES))
    public = facts(given)
    for threshold, count in ((0.0, None), (1e9, 0)):
        mechanism = PartitionSelection(threshold=threshold)
        sums = mechanism.clipped(given, KEY, public, valid=tf.constant(VALID))
        (found,) = mechanism.release(sums, KEY, public)
        full = found.values.numpy().any(1).sum()
        assert full == count if count is not None else 400 < full < 600
