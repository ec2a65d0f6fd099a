"""Sums of rows by compiled kernels are those that numpy finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.noise_paths import without_noise
from tf_sparse_dp.compiled.row_sums import can_add_up, row_sums
from tf_sparse_dp.layers.lazy_variable import LazyVariable
from tf_sparse_dp.layers.pending_noise import PendingNoise

pytestmark = [pytest.mark.once, pytest.mark.lane]

COUNT, WIDTH, TABLE = 5000, 16, 3000


def drawn(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of small whole numbers, which add up exactly, and their ids."""
    rng = np.random.default_rng(0)
    rows = rng.integers(-9, 9, (COUNT, WIDTH)).astype(np.float32)
    ids = {
        "all alike": np.full(COUNT, TABLE - 1),
        "all different": rng.permutation(COUNT),
        "some": rng.zipf(1.3, COUNT) % TABLE,
    }[kind]
    return rows, ids.astype(np.int64)


@pytest.mark.parametrize("kind", ["all alike", "all different", "some"])
def test_each_id_has_its_sum(kind: str) -> None:
    rows, ids = drawn(kind)

    @tf.function(autograph=False)
    def added_up(rows: tf.Tensor, ids: tf.Tensor) -> Any:
        assert can_add_up(rows)
        return row_sums(rows, ids)

    found, sums = added_up(tf.constant(rows), tf.constant(ids))
    expected = np.zeros([max(ids) + 1, WIDTH], np.float32)
    np.add.at(expected, ids, rows)
    assert sorted(found.numpy()) == sorted(set(ids))
    np.testing.assert_array_equal(sums, expected[found.numpy()])


def test_tables_get_their_rows_and_owe_their_noise() -> None:
    table = LazyVariable(tf.ones([TABLE, WIDTH]))
    table.noise = PendingNoise(table)
    rows, ids = drawn("some")

    @tf.function(autograph=False)
    def add(rows: tf.Tensor, ids: tf.Tensor) -> None:
        table.add(tf.IndexedSlices(rows, ids), 0.5)

    add(tf.constant(rows), tf.constant(ids))
    expected = np.ones([TABLE, WIDTH], np.float32)
    np.add.at(expected, ids, rows)
    np.testing.assert_array_equal(without_noise(table), expected)
    assert table.noise.variance.numpy() == 0.25
    ids[7] = TABLE
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        add(tf.constant(rows), tf.constant(ids))
    assert table.noise.variance.numpy() == 0.5  # Owed, whatever came of it.


def test_small_ones_are_not_compiled() -> None:
    asked = []

    def ask(rows: tf.Tensor) -> None:
        unknown = rows[: tf.cast(rows[0, 0], tf.int32)]
        asked.extend(map(can_add_up, (rows, rows[:9], unknown)))

    rows = tf.zeros([COUNT, WIDTH])
    ask(rows)  # Eager.
    tf.function(ask, autograph=False)(rows)
    assert asked == [False, False, False, True, False, False]
