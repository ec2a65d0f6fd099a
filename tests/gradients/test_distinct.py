"""Lookups of different rows: cheaper norms, recognised only where proven."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.gradients.distinct import has_distinct_columns
from tf_sparse_dp.gradients.factors import RowFactor

pytestmark = pytest.mark.once

B, L = 4, 3
HIGH, FIRST = np.array([2, 4, 0]), np.array([0, 3, 8])


def bounded(
    ids: tf.Tensor, low: object = 0, high: object = HIGH, first: object = FIRST
) -> tf.Tensor:
    return tf.maximum(tf.minimum(ids, high), low) + first


def counted_from_the_end(ids: tf.Tensor) -> tf.Tensor:
    return tf.where(ids < 0, ids + 12, ids)


def repeated_by_a_choice(ids: tf.Tensor) -> tf.Tensor:
    """A column for each entry, and it L times beside itself: [B L, L]."""
    column = tf.reshape(bounded(ids), [-1, 1])
    return tf.where(column < 0, tf.zeros([1, L], tf.int64), column)[:B]


def replaced(ids: tf.Tensor) -> tf.Tensor:
    return tf.where(ids < 1, ids * 0 + 3, ids)


PROVEN: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "columns of their own": bounded,
    "in another type": lambda ids: tf.cast(bounded(ids), tf.int32),
    "reshaped": lambda ids: tf.reshape(
        tf.reshape(tf.identity(bounded(ids)), [-1]), [B, L]
    ),
    "in another order": lambda ids: bounded(ids, first=[10, 5, 0]),
    "low above high": lambda ids: bounded(ids, low=[4, 4, 4]),
    "as Keras takes them": lambda ids: counted_from_the_end(bounded(ids)),
    "single rows": lambda ids: bounded(ids, 5, 5, [0, 1, 2]),
}
NOT_PROVEN: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "ids": lambda ids: ids,
    "no bounds": lambda ids: ids + FIRST,
    "no upper bound": lambda ids: tf.maximum(ids, 0) + FIRST,
    "no lower bound": lambda ids: tf.minimum(ids, HIGH) + FIRST,
    "bounds the other way": lambda ids: (
        tf.minimum(tf.maximum(ids, 0), HIGH) + FIRST
    ),
    "ranges that touch": lambda ids: bounded(ids, first=[0, 2, 8]),
    "low above the next": lambda ids: bounded(ids, low=[8, 0, 0]),
    "one start for all": lambda ids: bounded(ids, first=1),
    "bounds of the batch": lambda ids: bounded(ids, high=tf.reduce_max(ids, 0)),
    "added up later": lambda ids: bounded(ids) * 0,
    "columns of other groups": lambda ids: tf.reshape(
        bounded(tf.reshape(ids, [L, B]), 0, [1] * B, [0, 2, 4, 6]), [B, L]
    ),
    "rows of another length": lambda ids: tf.reshape(
        bounded(tf.reshape(ids, [2, 2 * L]), 0, [1] * 6, 2 * np.arange(6)),
        [B, L],
    )[::-1],
    "beyond the type": lambda ids: tf.cast(
        bounded(ids, first=FIRST + 2**32), tf.int32
    ),
    "negative ones counted from the end": lambda ids: counted_from_the_end(
        bounded(ids, first=[-12, 0, 8])
    ),
    "some replaced": lambda ids: tf.where(ids < 0, ids * 0, bounded(ids)),
    "small ones replaced": lambda ids: replaced(bounded(ids)),
    "rounded": lambda ids: tf.cast(
        tf.cast(bounded(ids, 0, 0, [2**24, 2**24 + 1, 0]), tf.float32), tf.int64
    ),
    "repeated by a choice": lambda ids: repeated_by_a_choice(ids),
    "of few bits": lambda ids: tf.cast(
        tf.cast(bounded(ids, 0, 0, [0, 2**16, 2**17]), tf.int16), tf.int64
    ),
    "repeated columns": lambda ids: tf.tile(bounded(ids)[:, :1], [1, L]),
    "one column for all": lambda ids: bounded(ids[:, :1], 0, 0, [0, 0, 0]),
}


def norms(make: Callable[[tf.Tensor], tf.Tensor]) -> tuple[bool, ...]:
    """Whether it is recognised, and whether norms are right."""
    known: list[bool] = []
    rng = np.random.RandomState(0)
    values = tf.constant(rng.randn(B, L, 2), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([B, L], tf.int64)])
    def factor(ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
        ids = tf.ensure_shape(make(ids), [B, L])
        known.append(has_distinct_columns(ids))
        terms = RowFactor(values, ids, (12, 2))
        slack = terms.squared_slack()
        return (
            terms.squared_norms(),
            tf.zeros([B]) if slack is None else slack,
            ids,
        )

    right = True
    for data in (rng.randint(-3, 9, (B, L)), np.ones((B, L), np.int64)):
        squares, _, ids = factor(tf.constant(data, tf.int64))
        dense = np.zeros((B, 40, 2))
        for b in range(B):
            for column, row in enumerate(ids[b].numpy() % 40):
                dense[b, row] += values[b, column]
        right &= np.allclose(squares, np.sum(dense**2, (1, 2)), 1e-5)
    return known[0], right


@pytest.mark.parametrize("name", PROVEN)
def test_recognised(name: str) -> None:
    assert norms(PROVEN[name]) == (True, True)


@pytest.mark.parametrize("name", NOT_PROVEN)
def test_not_recognised(name: str) -> None:
    assert norms(NOT_PROVEN[name]) == (False, True)


def test_choices_that_repeat_ids_are_not_passed_over() -> None:
    """The numbers of a square batch, each of them in a row of its own."""

    @tf.function(input_signature=[tf.TensorSpec([1, L], tf.int64)])
    def ids(given: tf.Tensor) -> tf.Tensor:
        column = tf.reshape(bounded(given), [-1, 1])
        chosen = tf.where(column < 0, tf.zeros([1, L], tf.int64), column)
        assert not has_distinct_columns(chosen)
        return chosen

    assert (ids(tf.ones([1, L], tf.int64)).numpy()[0] == 1).all()


def test_sums_that_wrap_around() -> None:
    """The first column is 5 and the second is 5, by way of -2⁶³ - 2⁶³ = 0."""

    @tf.function(input_signature=[tf.TensorSpec([B, 2], tf.int64)])
    def wrapped(ids: tf.Tensor) -> tf.Tensor:
        ids = bounded(ids, [-(2**63), 5], [0, 5], [-(2**63), 0])
        assert not has_distinct_columns(ids)
        return ids

    wrapped(tf.zeros([B, 2], tf.int64))


def test_no_ids() -> None:
    @tf.function(input_signature=[tf.TensorSpec([B, 0], tf.int64)])
    def known(ids: tf.Tensor) -> tf.Tensor:
        assert not has_distinct_columns(bounded(ids, 0, 0, 0))
        return ids

    known(tf.zeros([B, 0], tf.int64))


def test_units_of_several_examples_are_not() -> None:
    """Two examples of one user may look up the same row."""

    @tf.function(input_signature=[tf.TensorSpec([B, L], tf.int64)])
    def of_units(ids: tf.Tensor) -> tf.Tensor:
        terms = RowFactor(tf.ones([B, L, 2]), bounded(ids), (12, 2))
        assert terms._distinct
        units = terms.grouped(2)
        assert not units._distinct
        return units.squared_norms()

    # Each unit has three rows, each twice: (2, 2) in every one.
    found = of_units(tf.ones([B, L], tf.int64))
    np.testing.assert_allclose(found, [24.0, 24.0], 1e-5)
