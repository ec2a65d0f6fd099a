"""Pooled lookups: cheaper norms, and the same as in general."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.gradients.factors import RowFactor
from tf_sparse_dp.gradients.repeats import repeats_rows

pytestmark = pytest.mark.once

B, L, WIDTH = 5, 4, 3


def _gradient(pool: Callable[[tf.Tensor], tf.Tensor]) -> Callable[..., Any]:
    """Values of the slices that a table's gradient has, as a factor sees them.

    And whether they are known to repeat.
    """
    table = tf.Variable(
        np.random.RandomState(0).randn(7, WIDTH), dtype="float32"
    )
    known = []

    @tf.function(input_signature=[tf.TensorSpec([B, L], tf.int32)])
    def gradient(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            pooled = pool(tf.gather(table, ids))
            loss = tf.reduce_sum(pooled**3)
        values = tf.reshape(tape.gradient(loss, table).values, [B, L, WIDTH])
        factor = RowFactor(values, ids, (7, WIDTH))
        known.append(repeats_rows(values))
        return values, factor.squared_norms(), factor.per_example()

    return lambda ids: (*gradient(ids), known[0])


IDS = np.random.RandomState(1).randint(0, 3, (B, L))
WEIGHTS = np.random.RandomState(2).rand(B, L, 1).astype("float32")
POOLINGS: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], bool]] = {
    "sum": (lambda rows: tf.reduce_sum(rows, 1), True),
    "mean": (lambda rows: tf.reduce_mean(rows, 1), True),
    "mean, axis kept": (lambda rows: tf.reduce_mean(rows, 1, True), True),
    "scaled sum": (lambda rows: -2.0 * tf.reduce_sum(rows, 1), True),
    "mean over the width": (lambda rows: tf.reduce_mean(rows, 2), False),
    "mean over both": (lambda rows: tf.reduce_mean(rows, [1, 2]), True),
    "weighted sum": (lambda rows: tf.reduce_sum(WEIGHTS * rows, 1), False),
    "maximum": (lambda rows: tf.reduce_max(rows, 1), False),
    "no pooling": (lambda rows: rows, False),
    # The batch axis in place of the lookups: rows differ within an example.
    "sum over examples": (lambda rows: tf.reduce_sum(rows, 0), False),
    "pooled in other groups": (
        lambda rows: tf.reduce_sum(tf.reshape(rows, [L, B, WIDTH]), 1),
        False,
    ),
}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_norms_of_pooled_lookups(pooling: str) -> None:
    pool, expected = POOLINGS[pooling]
    values, squares, terms, known = _gradient(pool)(tf.constant(IDS, tf.int32))
    if known:
        np.testing.assert_array_equal(values, values[:, :1] + 0 * values)
    # Not to recognise what repeats is allowed, but would make this untested.
    assert known == expected
    want = np.square(terms.numpy()).sum((1, 2))
    np.testing.assert_allclose(squares, want, rtol=1e-5)


def test_other_values_are_looked_at_again() -> None:
    @tf.function
    def known(row: tf.Tensor, other: tf.Tensor) -> None:
        values = tf.tile(row, [1, L, 1])
        assert repeats_rows(values)
        assert repeats_rows(tf.cast(values, tf.float64) / 2.0)
        assert not repeats_rows(values + other)
        assert not repeats_rows(values * other)
        factor = RowFactor(values, tf.zeros([B, L], tf.int32), (7, WIDTH))
        assert not repeats_rows(factor.grouped(2).values)
        assert not repeats_rows(tf.transpose(values, [0, 2, 1]))
        shuffled = tf.reshape(tf.tile(row, [1, 2, 2]), [B, 4, WIDTH])
        assert not repeats_rows(shuffled)

    known(tf.ones([B, 1, WIDTH]), tf.ones([B, L, WIDTH]))
    assert not repeats_rows(tf.ones([B, L, WIDTH]))
