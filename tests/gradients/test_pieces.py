"""Kernels that are cut, joined and multiplied before examples meet them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

ROWS = 3
_random = np.random.RandomState(0)
X = _random.randn(ROWS, 4).astype("float32")
W = tf.Variable(_random.randn(4, 6).astype("float32"))
V = tf.Variable(_random.randn(4, 6).astype("float32"))


def _outputs(kernel: Callable[[], Any], x: Any) -> Any:
    return tf.reduce_sum(tf.sin(x @ kernel()) + 0.1 * tf.square(x @ kernel()))


def _gradients(kernel: Callable[[], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        # What no example sees has to come out apart from the terms.
        loss = _outputs(kernel, x) + tf.reduce_sum(tf.square(kernel()))
    return tape.gradient(loss, [W, V])


def _sliced() -> Any:
    return W[1:, ::2] * V[tf.newaxis, :3, -1][0][:, tf.newaxis]


def _cut() -> Any:
    return tf.slice(W, [0, 1], [4, 3]) + tf.slice(V, [0, 3], [4, 3])


def _split() -> Any:
    a, b, c = tf.split(W, 3, axis=1)
    d, e = tf.split(V, [2, 4], axis=-1)
    return tf.concat([a * d, c, e, b], 1)


def _unpacked() -> Any:
    rows = tf.unstack(W, axis=0)
    columns = tf.unstack(V, axis=1)
    return tf.stack([rows[2], rows[0], rows[1] * 2.0, rows[3]]) + tf.stack(
        [columns[5], *columns[:5]], axis=1
    )


def _padded() -> Any:
    return tf.pad(W[:2, 1:], [[1, 1], [0, 1]]) - tf.pad(
        V[:, :4], [[0, 0], [2, 0]]
    )


def _multiplied() -> Any:
    square = tf.matmul(W, V, transpose_b=True)
    return tf.einsum("ij,kj->ki", square, square)


def _in_batches() -> Any:
    stacked = tf.stack([W, V])
    products = tf.matmul(stacked, stacked, transpose_b=True)
    return products[0] + products[1]


def _joined_with_constants() -> Any:
    return tf.concat([W[:, :2], tf.ones([4, 2]), V[:, 4:]], 1)


KERNELS = [
    _sliced,
    _cut,
    _split,
    _unpacked,
    _padded,
    _multiplied,
    _in_batches,
    _joined_with_constants,
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda f: f.__name__[1:])
def test_terms_and_the_free_part(kernel: Callable[[], Any]) -> None:
    width = kernel().shape[0]

    @tf.function(input_signature=[tf.TensorSpec([None, width])])
    def step(x: Any) -> Any:
        gradients = _gradients(kernel, x)
        parts = Separation(gradients, ["W", "V"], [W.shape, V.shape]).parts
        return [(part.terms.per_example(), part.free) for part in parts]

    found = step(tf.constant(X[:, :width]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(kernel()))
    for (_, free), want in zip(found, tape.gradient(loss, [W, V]), strict=True):
        np.testing.assert_allclose(free, want, rtol=1e-4, atol=1e-4)
    for example in range(ROWS):
        alone = tf.constant(X[example : example + 1, :width])
        with tf.GradientTape() as tape:
            loss = _outputs(kernel, alone)
        expected = tape.gradient(loss, [W, V])
        for (each, _), want in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                each[example], want, rtol=1e-4, atol=1e-4
            )
            assert np.abs(want).max() > 0.01


def _bounds_of_a_total(x: Any) -> Any:
    count = tf.cast(tf.reduce_sum(x) > 0, tf.int32)
    return tf.slice(tf.transpose(x) @ x, [0, count], [4, 3])


def _product_of_sums(x: Any) -> Any:
    total = tf.transpose(x) @ x
    return total @ total


def _sum_next_to_examples(x: Any) -> Any:
    total = tf.transpose(x) @ x
    return tf.concat([total[:1], x], 0)[:4]


@pytest.mark.parametrize(
    "total",
    [_bounds_of_a_total, _product_of_sums, _sum_next_to_examples],
    ids=lambda f: f.__name__[1:],
)
def test_sums_that_examples_change_otherwise_are_refused(
    total: Callable[[Any], Any],
) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                total(x) @ tf.transpose(W[:, : total(x).shape[1]])
            )
        return Separation(tape.gradient(loss, [W]), ["W"], [W.shape]).parts

    with pytest.raises(tsdp.NotSeparableError, match="Nothing was trained"):
        step(tf.constant(X))
