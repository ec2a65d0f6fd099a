"""Initial values that are computed again from a key."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.layers.initial_rows import InitialRows, _fractions

initializers = tf.keras.initializers
KEY = np.array([123456789, -987654321], np.int32)
IDS = tf.range(50_000)


def rows(initializer: object, ids: tf.Tensor = IDS) -> np.ndarray:
    law = InitialRows.of(initializer, 8)
    assert law is not None
    return np.broadcast_to(law.rows(ids, tf.constant(KEY)), [len(ids), 8])


@pytest.mark.parametrize(
    ("initializer", "mean", "stddev"),
    [
        (initializers.get("uniform"), 0.0, 0.1 / np.sqrt(12)),
        (initializers.RandomUniform(2.0, 3.0), 2.5, 1 / np.sqrt(12)),
        (initializers.RandomNormal(1.0, 0.1), 1.0, 0.1),
        (initializers.Zeros(), 0.0, 0.0),
        (initializers.Ones(), 1.0, 0.0),
        (initializers.Constant(4.0), 4.0, 0.0),
    ],
    ids=["uniform", "moved", "normal", "zeros", "ones", "constant"],
)
def test_laws(initializer: object, mean: float, stddev: float) -> None:
    found = rows(initializer)
    error = 5 * stddev / np.sqrt(found.size)
    np.testing.assert_allclose(found.mean(), mean, rtol=0, atol=error + 1e-6)
    np.testing.assert_allclose(found.std(), stddev, rtol=0.01)


def test_entries_are_uncorrelated() -> None:
    found = rows(initializers.get("uniform"))
    pairs = np.concatenate([found[:-1], found[1:]], 1)
    correlations = np.corrcoef(pairs.T) - np.eye(16)
    assert np.abs(correlations).max() < 6 / np.sqrt(len(found))


def test_bits_are_fair_in_every_column() -> None:
    found = rows(initializers.RandomUniform(0.0, 1.0))
    for digit in range(1, 12):
        share = np.mean(np.floor(found * 2**digit) % 2, 0)
        np.testing.assert_allclose(share, 0.5, atol=3 / np.sqrt(len(found)))


def test_rows_do_not_depend_on_who_else_is_asked_for() -> None:
    some = tf.constant([[7, 3], [3, 49_999]])
    law = InitialRows.of(initializers.get("uniform"), 8)
    found = law.rows(some, tf.constant(KEY))
    np.testing.assert_array_equal(
        found, rows(initializers.get("uniform"))[some.numpy()]
    )


def test_another_key_gives_other_rows() -> None:
    uniform = initializers.get("uniform")
    found = [InitialRows.of(uniform, 8)([50_000, 8]) for _ in range(2)]
    assert abs(np.corrcoef(*map(np.ravel, found))[0, 1]) < 0.01


def test_a_table_is_all_its_rows() -> None:
    law = InitialRows.of(initializers.RandomNormal(), 8)
    np.testing.assert_array_equal(
        law([70_000, 8])[69_000:],
        law.rows(tf.range(69_000, 70_000), tf.constant(law.key)),
    )


def test_other_laws_are_left_to_a_copy() -> None:
    assert InitialRows.of(initializers.GlorotUniform(), 8) is None
    assert InitialRows.of(initializers.Constant(np.ones([3, 8])), 8) is None
    assert InitialRows.of(lambda shape, dtype=None: tf.ones(shape), 8) is None


def test_numbers_never_reach_the_ends() -> None:
    """A normal number would be infinite there."""
    ends = _fractions(tf.constant([0, 2**32 - 1], tf.uint32)).numpy()
    assert 0 < ends[0] < ends[1] < 1
    assert np.all(np.isfinite(tf.math.erfinv(2 * ends - 1)))
