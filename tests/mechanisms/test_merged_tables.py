"""Tables that are treated as one come apart again as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.mechanisms import contract
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.mechanisms.merged_tables import MergedTables
from tf_sparse_dp.mechanisms.tail_sampling import touched_rows

pytestmark = pytest.mark.once

FAILURE = 2.0**-100
SHAPES = [(1000, 2, 3), (1500, 6), (40, 6), (7,), (3000, 6), (2000, 1)]
MERGED = [(5500, 6), (40, 6), (7,), (2000, 1)]
LOOKUPS = [2, 3, 1, None, 5, 1]


def facts(failure_probability: float = FAILURE) -> PublicFacts:
    return PublicFacts(
        variables=tuple(
            Variable(shape=shape, sparse=len(shape) > 1, lookups=lookups)
            for shape, lookups in zip(SHAPES, LOOKUPS, strict=True)
        ),
        clip_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=10.0,
        failure_probability=failure_probability,
    )


def sums(touched: int = 50) -> list[Any]:
    rng = np.random.default_rng(0)
    found: list[Any] = []
    for shape in SHAPES:
        values = rng.standard_normal((touched, *shape[1:]))
        ids = rng.integers(shape[0], size=touched)
        found.append(
            tf.IndexedSlices(
                tf.constant(values, tf.float32),
                tf.constant(ids, tf.int32),
                tf.constant(shape, tf.int64),
            )
            if len(shape) > 1
            else tf.zeros(shape)
        )
    return found


def released(total: Any, filler: int = 20) -> Any:
    """Rows in ascending order, after rows of zeros."""
    if not isinstance(total, tf.IndexedSlices):
        return total
    ids, values, live = touched_rows(total)
    order = tf.argsort(tf.where(live, ids, -1))
    ids = tf.where(live, ids, 0)
    return tf.IndexedSlices(
        tf.pad(tf.gather(values, order), [[filler, 0], [0, 0]]),
        tf.pad(tf.gather(ids, order), [[filler, 0]]),
        total.dense_shape,
    )


def roundtrip(
    given: list[Any], public: PublicFacts, release: Callable[[Any], Any]
) -> list[Any]:
    tables = MergedTables(given, public)
    return tables.apart([release(t) for t in tables.together(given)])


def test_what_is_public_about_merged_tables() -> None:
    merged = MergedTables(sums(), facts()).facts
    assert [v.shape for v in merged.variables] == MERGED
    assert [v.lookups for v in merged.variables] == [10, 1, None, 1]
    assert merged.failure_probability == FAILURE / 2


@pytest.mark.parametrize("failure_probability", [0.0, FAILURE])
@pytest.mark.parametrize("touched", [0, 1, 50, 4000])
def test_come_apart_as_they_were(
    touched: int, failure_probability: float
) -> None:
    given = sums(touched)
    apart = roundtrip(given, facts(failure_probability), released)
    for before, after, shape in zip(given, apart, SHAPES, strict=True):
        np.testing.assert_allclose(
            contract.dense(after), contract.dense(before), atol=1e-4
        )
        if shape[0] >= 1000 and shape[-1] != 1:
            assert not contract.ill_formed(after, shape, private=True)
            assert after.indices.dtype == before.indices.dtype


@pytest.mark.parametrize("jit_compile", [False, True])
def test_traced(jit_compile: bool) -> None:
    given = sums()
    expected = roundtrip(given, facts(), released)

    def run(ids: list[Any], values: list[Any]) -> Any:
        remade = [
            tf.IndexedSlices(v, i, tf.constant(shape, tf.int64))
            if len(shape) > 1
            else v
            for i, v, shape in zip(ids, values, SHAPES, strict=True)
        ]
        return roundtrip(remade, facts(), released)

    found = tf.function(run, jit_compile=jit_compile)(
        [getattr(t, "indices", t) for t in given],
        [getattr(t, "values", t) for t in given],
    )
    for one, two in zip(expected, found, strict=True):
        np.testing.assert_allclose(contract.dense(one), contract.dense(two))


def test_dense_releases_come_apart_too() -> None:
    given = sums()

    def densely(total: Any) -> Any:
        if not isinstance(total, tf.IndexedSlices):
            return total
        return tf.convert_to_tensor(released(total))

    for before, after in zip(
        given, roundtrip(given, facts(), densely), strict=True
    ):
        np.testing.assert_allclose(
            contract.dense(after), contract.dense(before), atol=1e-4
        )


@pytest.mark.parametrize("bad", [-1, 1000, 1499, 2**31 - 1])
def test_ids_of_no_row_do_not_become_the_next_tables(bad: int) -> None:
    given = sums(1)
    first = given[0]
    given[0] = tf.IndexedSlices(
        first.values, tf.constant([bad]), first.dense_shape
    )
    apart = roundtrip(given, facts(), released)
    assert not contract.dense(apart[0]).any()
    for before, after in zip(given[1:], apart[1:], strict=True):
        np.testing.assert_allclose(
            contract.dense(after), contract.dense(before), atol=1e-4
        )


def test_sizes_hold_all_hits_of_a_table() -> None:
    """By the binomial distribution itself, for hits on 600 of 5500 rows."""
    given, hits = sums(), 600
    apart = roundtrip(given, facts(), lambda total: released(total, hits))
    for place in (0, 1, 4):
        rows = SHAPES[place][0]
        room = apart[place].indices.shape[0] - 50
        # There are fewer hits on average than places for them.
        missing = stats.binom.sf(room, rows, hits / 5500)
        assert missing <= FAILURE / 2 / len(SHAPES) or room >= rows - 50
        assert room < hits
