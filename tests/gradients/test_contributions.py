"""Counts of the units that reach a row are right, and bounded for each unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.gradients import contributions
from tf_sparse_dp.gradients.clipping import terms_of_units
from tf_sparse_dp.gradients.contributions import contribution_counts
from tf_sparse_dp.gradients.factors import DenseFactor, Factor, RowFactor
from tf_sparse_dp.gradients.placed import PlacedFactor
from tf_sparse_dp.gradients.ragged_rows import RaggedRowFactor, as_ragged

pytestmark = pytest.mark.once

ROWS, UNITS = 30, 12


def fixed(lookups: int, seed: int = 0, rows: int = ROWS) -> RowFactor:
    """Rows that repeat within a unit, zeros, and ids that are out of range."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(-3, rows + 3, size=(UNITS, lookups))
    ids[3] = ids[3, 0]
    values = rng.integers(-1, 2, size=(UNITS, lookups, 2)).astype("float32")
    values[4] = 0
    return RowFactor(tf.constant(values), tf.constant(ids), (rows, 2))


def with_shared(lookups: int) -> PlacedFactor:
    block = np.random.default_rng(1).standard_normal((UNITS, 3, 2))
    return PlacedFactor(
        DenseFactor(tf.constant(block, tf.float32)),
        tf.constant([2, 9, 2]),
        (ROWS, 2),
        rows=fixed(lookups) if lookups else None,
    )


def reached(table: Factor, unit: int) -> set[int]:
    """By definition, in plain Python."""
    if isinstance(table, PlacedFactor):
        return set() if table.rows is None else reached(table.rows, unit)
    if isinstance(table, RaggedRowFactor):
        mine = table.examples.numpy() == unit
        ids, values = table.ids.numpy()[mine], table.values.numpy()[mine]
    else:
        ids, values = table.ids.numpy()[unit], table.values.numpy()[unit]
    return {
        int(i)
        for i, v in zip(ids, values, strict=True)
        if 0 <= i < table.shape[0] and v.any()
    }


def definition(tables: Sequence[Factor], valid: np.ndarray) -> list[np.ndarray]:
    counts = [np.zeros(table.shape[0]) for table in tables]
    for table, vector in zip(tables, counts, strict=True):
        if isinstance(table, PlacedFactor):
            vector[table.ids.numpy()] = math.inf
    for unit in np.flatnonzero(valid):
        sets = [reached(table, unit) for table in tables]
        total = sum(map(len, sets))
        for ids, vector in zip(sets, counts, strict=True):
            vector[sorted(ids)] += 1 / math.sqrt(max(total, 1))
    return counts


def dense(counts: tf.IndexedSlices) -> np.ndarray:
    """As arrays; ids that are out of range count for nothing."""
    ids, values = counts.indices.numpy(), counts.values.numpy()[:, 0]
    rows = int(counts.dense_shape[0])
    there = (ids >= 0) & (ids < rows)
    assert not values[~there].any()
    result = np.zeros(rows)
    np.add.at(result, ids[there], values[there])
    return result


TABLES: dict[str, Callable[[], list[Factor]]] = {
    "one lookup": lambda: [fixed(1)],
    "pairs": lambda: [fixed(5)],
    "sorted": lambda: [fixed(90)],
    "two tables": lambda: [fixed(5), fixed(3, seed=2, rows=7)],
    "shared rows": lambda: [with_shared(4), fixed(3, seed=2)],
    "shared rows only": lambda: [with_shared(0)],
    "ragged": lambda: [as_ragged(fixed(5)), fixed(3, seed=2)],
    "ragged and sorted": lambda: [as_ragged(fixed(5)), fixed(70, seed=2)],
}
EVERY = pytest.mark.parametrize("name", TABLES)
VALID = np.arange(UNITS) % 5 != 1


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for name in TABLES
        for way in ("eager", "graph", "xla")
        # How many ragged lookups there are is not known to XLA.
        if not ("ragged" in name and way == "xla")
    ],
)
def test_counts_are_those_of_the_definition(name: str, way: str) -> None:
    tables = TABLES[name]()

    def run(valid: tf.Tensor) -> list[tf.IndexedSlices]:
        return contribution_counts(tables, valid)

    traced: Any = tf.function(run, jit_compile=way == "xla")
    found = (run if way == "eager" else traced)(tf.constant(VALID))
    for counts, expected in zip(found, definition(tables, VALID), strict=True):
        np.testing.assert_allclose(dense(counts), expected, atol=1e-6)


@EVERY
def test_rows_are_those_of_the_clipped_sums(name: str) -> None:
    tables = TABLES[name]()
    for table, counts in zip(tables, contribution_counts(tables), strict=True):
        total = table.weighted_sum(tf.ones([UNITS]))
        np.testing.assert_array_equal(total.indices, counts.indices)


def influences(tables: Sequence[Factor]) -> list[float]:
    """How far each unit moves the counts of rows that are not public."""

    def counts(valid: np.ndarray) -> np.ndarray:
        found = contribution_counts(tables, tf.constant(valid))
        return np.concatenate([dense(vector) for vector in found])

    everybody = np.ones(UNITS, bool)
    whole = counts(everybody)
    secret = np.isfinite(whole)
    found = []
    for unit in range(UNITS):
        without = counts(everybody & (np.arange(UNITS) != unit))
        assert (np.isfinite(without) == secret).all()
        difference = whole[secret] - without[secret]
        found.append(float(np.sqrt(np.square(difference).sum())))
    return found


@EVERY
def test_one_unit_counts_for_at_most_1(name: str) -> None:
    tables = TABLES[name]()
    found = influences(tables)
    assert max(found) <= 1  # No rounding: shares are multiples of one number.
    if name != "shared rows only":
        assert max(found) > 1 - 1e-6


@pytest.mark.parametrize("name", ["pairs", "sorted", "ragged"])
def test_repeated_rows_would_count_for_more(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is that of rows, each once; lookups would break it."""
    monkeypatch.setattr(contributions, "_firsts", contributions._there)
    assert max(influences(TABLES[name]())) > 1.5


def test_units_may_come_in_any_order() -> None:
    """Sums are exact, so that a unit cannot show in the rounding of others."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, size=(5000, 7))
    values = tf.ones([5000, 7, 1])

    def counts(order: np.ndarray) -> np.ndarray:
        factor = RowFactor(values, tf.constant(ids[order]), (5, 1))
        return dense(contribution_counts([factor])[0])

    np.testing.assert_array_equal(
        counts(np.arange(5000)), counts(rng.permutation(5000))
    )


def test_what_is_not_finite_stays_within_the_bound() -> None:
    factor = fixed(5)
    bad = np.where(factor.values > 0, np.nan, np.inf).astype("float32")
    factor = RowFactor(tf.constant(bad), factor.ids, factor.table_shape)
    assert max(influences([factor])) <= 1


@pytest.mark.parametrize("name", ["pairs", "two tables", "ragged"])
def test_padding_within_a_unit_reaches_no_row(name: str) -> None:
    """Units of 3 examples: what an example that is padding holds is ignored."""
    tables = TABLES[name]()
    grouped, valid = terms_of_units(tables, tf.constant(VALID), 3)
    assert valid is None
    sets = [
        [
            set().union(
                *(reached(t, u) for u in range(3 * g, 3 * g + 3) if VALID[u])
            )
            for t in tables
        ]
        for g in range(UNITS // 3)
    ]
    expected = [np.zeros(table.shape[0]) for table in tables]
    for unit in sets:
        for ids, vector in zip(unit, expected, strict=True):
            vector[sorted(ids)] += sum(map(len, unit)) ** -0.5
    found = contribution_counts(grouped)
    for counts, vector in zip(found, expected, strict=True):
        np.testing.assert_allclose(dense(counts), vector, atol=1e-6)


def test_no_units_and_no_tables() -> None:
    nobody = RowFactor(tf.zeros([0, 3, 2]), tf.zeros([0, 3], tf.int32), (5, 2))
    (counts,) = contribution_counts([nobody])
    assert counts.values.shape == (0, 1)
    assert contribution_counts([]) == []


def test_other_terms_are_refused() -> None:
    with pytest.raises(TypeError, match="DenseFactor"):
        contribution_counts([DenseFactor(tf.zeros([2, 3, 4]))])
