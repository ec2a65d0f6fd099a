"""Counts, crosses, diagonals and samplers: per example, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

ROWS = 4
IDS = np.random.RandomState(0).randint(0, 4, (ROWS, 4)).astype("int32")
W = tf.Variable(np.random.RandomState(1).randn(4, 2).astype("float32"))


def terms(
    forward: Callable[[Any], Any], ids: np.ndarray, static: bool
) -> np.ndarray:
    """Every example's term of the gradient of mean(sin(forward(ids) @ W))."""

    @tf.function(
        input_signature=[tf.TensorSpec([ROWS if static else None, 4], tf.int32)]
    )
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            features = tf.cast(forward(batch), tf.float32)
            loss = tf.reduce_mean(tf.sin(features @ W))
        separation = Separation(tape.gradient(loss, [W]), ["W"], [W.shape])
        return separation.parts[0].terms.per_example()

    return step(tf.constant(ids)).numpy()


def _counts(ids: Any) -> Any:
    return tf.math.bincount(ids, minlength=4, maxlength=4, axis=-1)


def _weighted_counts(ids: Any) -> Any:
    weights = 0.1 * tf.cast(ids, tf.float32)
    return tf.math.bincount(
        ids, weights, minlength=4, maxlength=4, dtype=tf.float32, axis=-1
    )


def _crosses(ids: Any) -> Any:
    pairs = tf.sparse.cross_hashed([ids[:, :2], ids[:, 2:]], 7)
    return tf.ensure_shape(tf.sparse.to_dense(pairs), [None, 4])


def _diagonals(ids: Any) -> Any:
    x = tf.cast(ids, tf.float32)
    square = tf.linalg.set_diag(x[:, :, None] * x[:, None, :], x)
    return tf.linalg.diag_part(square + tf.linalg.diag(x))


def _odds(ids: Any) -> Any:
    labels = tf.cast(ids, tf.int64)
    draw = tf.random.log_uniform_candidate_sampler
    return draw(labels, 4, 3, True, 9, seed=1).true_expected_count


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "forward",
    [_counts, _weighted_counts, _crosses, _diagonals, _odds],
    ids=lambda f: f.__name__[1:],
)
def test_an_example_sees_itself(
    forward: Callable[[Any], Any], static: bool
) -> None:
    tf.random.set_seed(1)
    before = terms(forward, IDS, static)
    changed = IDS.copy()
    changed[2] = (IDS[2] + [1, 0, 1, 2]) % 4
    tf.random.set_seed(1)
    after = terms(forward, changed, static)
    others = [0, 1, 3]
    if forward is not _odds:  # These draw anew each time.
        np.testing.assert_array_equal(before[others], after[others])
    assert np.abs(before[2] - after[2]).max() > 1e-4


def _counts_of_the_batch(ids: Any) -> Any:
    counts = tf.math.bincount(ids[:, 0], minlength=4, maxlength=4)
    return ids * counts


def _counts_of_columns(ids: Any) -> Any:
    counts = tf.math.bincount(
        tf.transpose(ids), minlength=4, maxlength=4, axis=-1
    )
    return ids * counts[:1]


def _as_many_as_the_largest(ids: Any) -> Any:
    counts = tf.math.bincount(ids, maxlength=4, axis=-1)
    return tf.ensure_shape(counts, [None, 4])


def _least_below_most(ids: Any) -> Any:
    counts = tf.math.bincount(ids, minlength=3, maxlength=4, axis=-1)
    return tf.ensure_shape(counts, [None, 4])


def _weights_of_others(ids: Any) -> Any:
    weights = tf.reverse(tf.cast(ids, tf.float32), [0])
    return tf.math.bincount(
        ids, weights, minlength=4, maxlength=4, dtype=tf.float32, axis=-1
    )


def _sparse_crosses(ids: Any) -> Any:
    some = tf.sparse.from_dense(ids[:, :2])
    pairs = tf.sparse.cross_hashed([some, ids[:, 2:]], 7)
    return tf.ensure_shape(tf.sparse.to_dense(pairs), [None, 4])


def _put_where_data_say(ids: Any) -> Any:
    size = tf.cast(tf.shape(ids)[0], tf.int64)
    where = tf.stack([tf.cast(ids[:, 0], tf.int64), tf.range(size) % 4], axis=1)
    return tf.raw_ops.SparseToDense(
        sparse_indices=where,
        output_shape=tf.stack([size, 4]),
        sparse_values=ids[:, 1],
        default_value=0,
        validate_indices=False,
    )


def _diagonal_of_the_batch(ids: Any) -> Any:
    return ids * tf.linalg.diag_part(ids)


def _examples_on_a_diagonal(ids: Any) -> Any:
    return tf.reduce_sum(tf.linalg.diag(tf.transpose(ids)), 0)[:, :4]


def _learned_odds(ids: Any) -> Any:
    labels = tf.cast(ids, tf.int64)
    draw = tf.random.learned_unigram_candidate_sampler
    return draw(labels, 4, 3, True, 9).true_expected_count


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "forward",
    [
        _counts_of_the_batch,
        _counts_of_columns,
        _as_many_as_the_largest,
        _least_below_most,
        _weights_of_others,
        _sparse_crosses,
        _put_where_data_say,
        _diagonal_of_the_batch,
        _examples_on_a_diagonal,
        _learned_odds,
    ],
    ids=lambda f: f.__name__[1:],
)
def test_what_sees_others_is_refused(
    forward: Callable[[Any], Any], static: bool
) -> None:
    with pytest.raises(tsdp.NotSeparableError, match="Nothing was trained"):
        terms(forward, IDS, static)
