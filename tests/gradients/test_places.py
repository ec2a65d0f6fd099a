"""Ids within an example stay within it, or the gradient is refused."""

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
X = np.random.RandomState(0).randn(ROWS, 5, 3).astype("float32")
W = tf.Variable(np.random.RandomState(1).randn(3, 3).astype("float32"))


def _gradient(forward: Callable[[Any, Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(forward(tf.einsum("bti,ij->btj", x, W), x)))
    return tape.gradient(loss, [W])


def terms(forward: Callable[[Any, Any], Any], static: bool) -> np.ndarray:
    @tf.function(
        input_signature=[tf.TensorSpec([ROWS if static else None, 5, 3])]
    )
    def step(x: Any) -> Any:
        gradients = _gradient(forward, x)
        separation = Separation(gradients, ["W"], [W.shape])
        return separation.parts[0].terms.per_example()

    return step(tf.constant(X)).numpy()


def _numbers(x: Any) -> Any:
    return tf.cast(tf.math.round(3.0 * x[:, :2, 0]), tf.int32)


def _top(y: Any, x: Any) -> Any:
    return tf.math.top_k(y, 2)[0]


def _sorted(y: Any, x: Any) -> Any:
    return tf.range(5.0)[:, None] * tf.sort(y, axis=1)


def _best(y: Any, x: Any) -> Any:
    return tf.gather(y, tf.argmax(y[..., 0], 1), batch_dims=1)


def _clipped(y: Any, x: Any) -> Any:
    ids = tf.clip_by_value(_numbers(x), 0, 4)
    return tf.gather(y, ids, batch_dims=1)


def _wrapped(y: Any, x: Any) -> Any:
    return tf.gather(y, _numbers(x) % 5, batch_dims=1)


WITHIN = [_top, _sorted, _best, _clipped, _wrapped]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("forward", WITHIN, ids=lambda f: f.__name__[1:])
def test_places_with_a_known_range(
    forward: Callable[[Any, Any], Any], static: bool
) -> None:
    found = terms(forward, static)
    for example in range(ROWS):
        (want,) = _gradient(forward, tf.constant(X[example : example + 1]))
        np.testing.assert_allclose(found[example], want, rtol=1e-4, atol=1e-5)
        assert np.abs(want).max() > 0.01


def _unclipped(y: Any, x: Any) -> Any:
    return tf.gather(y, _numbers(x), batch_dims=1)


def _clipped_from_below(y: Any, x: Any) -> Any:
    return tf.gather(y, tf.maximum(_numbers(x), 0), batch_dims=1)


def _clipped_too_far(y: Any, x: Any) -> Any:
    return tf.gather(y, tf.clip_by_value(_numbers(x), 0, 5), batch_dims=1)


def _wrapped_too_far(y: Any, x: Any) -> Any:
    return tf.gather(y, _numbers(x) % 6, batch_dims=1)


def _into_the_next(y: Any, x: Any) -> Any:
    """What the gradient of a gather does, one example further."""
    size = tf.shape(x)[0]
    ids = _numbers(x) % 5 + 5 * (1 + tf.range(size)[:, None])
    flat = tf.reshape(tf.reduce_sum(y[:, :2], 2), [-1])
    total = tf.math.unsorted_segment_sum(flat, tf.reshape(ids, [-1]), 5 * size)
    return y * tf.reshape(total, [-1, 5, 1])


def _other_strides(y: Any, x: Any) -> Any:
    size = tf.shape(x)[0]
    ids = _numbers(x) % 5 + 3 * tf.range(size)[:, None]
    flat = tf.reshape(tf.reduce_sum(y[:, :2], 2), [-1])
    total = tf.math.unsorted_segment_sum(flat, tf.reshape(ids, [-1]), 5 * size)
    return y * tf.reshape(total, [-1, 5, 1])


def _across(y: Any, x: Any) -> Any:
    return tf.gather_nd(y, tf.clip_by_value(_numbers(x), 0, 3))


def _top_of_the_batch(y: Any, x: Any) -> Any:
    return tf.math.top_k(tf.transpose(y, [1, 2, 0]), 2)[0]


REACHING = [
    _unclipped,
    _clipped_from_below,
    _clipped_too_far,
    _wrapped_too_far,
    _into_the_next,
    _other_strides,
    _across,
    _top_of_the_batch,
]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("forward", REACHING, ids=lambda f: f.__name__[1:])
def test_places_that_may_be_those_of_others_are_refused(
    forward: Callable[[Any, Any], Any], static: bool
) -> None:
    with pytest.raises(tsdp.NotSeparableError, match="Nothing was trained"):
        terms(forward, static)
