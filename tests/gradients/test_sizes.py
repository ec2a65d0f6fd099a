"""Where symbolic sizes and the graph's integers could part, they do not.

Rules trust the sizes, so a size that is believed and not true would let
examples meet unseen. Each graph here computes an axis, a bound or a shape in
such a way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

ROWS, WIDTH = 3, 4
X = np.random.RandomState(0).randn(ROWS, 3).astype("float32")
IDS = np.array([0, 1, 0], "int32")
W = tf.Variable(np.random.RandomState(1).randn(3, WIDTH).astype("float32"))


def terms(
    loss: Callable[[Any, Any], Any], x: np.ndarray, ids: Any, static: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Every example's term of the gradient of a loss by W, and the gradient."""
    rows = ROWS if static else None

    @tf.function(
        input_signature=[
            tf.TensorSpec([rows, 3]),
            tf.TensorSpec([rows], tf.int32),
        ],
        autograph=False,
    )
    def step(x: Any, ids: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(x, ids)
        gradient = tape.gradient(value, W)
        separation = Separation([gradient], ["W"], [W.shape])
        part = separation.parts[0]
        free = 0.0 if part.free is None else part.free
        return part.terms.per_example(), gradient - free

    found, gradient = step(x, ids)
    return found.numpy(), gradient.numpy()


def _weighted(h: Any, weights: Any) -> Any:
    """A loss that shows `weights` in the gradient of h."""
    return tf.reduce_sum(h * tf.stop_gradient(weights))


def _axis_that_overflows(x: Any, ids: Any) -> Any:
    # 2^16 · 2^16 is 2^32, or 0 in 32 bits: axis 1, or 0.
    axis = (tf.constant(2**16) * tf.constant(2**16)) % 3
    h = x @ W
    return _weighted(h, tf.cumsum(h, axis))


def _axis_from_a_byte(x: Any, ids: Any) -> Any:
    axis = tf.cast(tf.cast(tf.constant(257), tf.int8), tf.int32)
    h = x @ W
    return _weighted(h, tf.transpose(tf.cumsum(tf.transpose(h), axis)))


def _maximum_of_a_negative_multiple(x: Any, ids: Any) -> Any:
    rows = tf.shape(x)[0]
    zero = -1 * tf.maximum(-1 * rows, 0)  # Not B.
    h = tf.tanh(x @ W)
    inner = tf.reshape(tf.tile(h[:, None], [1, 2, 1]), [-1, WIDTH])
    outer = tf.reshape(tf.tile(h[None], [2, 1, 1]), [-1, WIDTH])
    both = tf.concat([inner, outer], 0)
    first = tf.slice(both, tf.stack([2 * zero, 0]), tf.stack([2 * rows, WIDTH]))
    second = tf.slice(
        both, tf.stack([2 * rows, 0]), tf.stack([2 * rows, WIDTH])
    )
    return _weighted(second, first)


def _product_over_no_axes(x: Any, ids: Any) -> Any:
    nothing = tf.constant([], tf.int32)
    axes = tf.reduce_prod(tf.constant([0, 1]), nothing)  # [0, 1], not 0.
    h = x @ W
    return _weighted(h, tf.reduce_max(h, axes[1:] - 1, keepdims=True))


def _stitched_with_a_gap(x: Any, ids: Any) -> Any:
    axes = tf.dynamic_stitch([[0], [2]], [[1], [0]])
    h = x @ W
    return _weighted(h, tf.cumsum(h, axes[-1]))


def _bounds_from_a_total(x: Any, ids: Any) -> Any:
    shift = tf.reduce_sum(ids)
    taken = tf.strided_slice(
        x @ W,
        tf.stack([0, shift]),
        tf.stack([0, shift + 2]),
        begin_mask=1,
        end_mask=1,
    )
    taken.set_shape([ROWS, 2])
    return tf.reduce_sum(taken * x[:, :2])


def _negative_batch_dims(x: Any, ids: Any) -> Any:
    # -1 counts from the end of the indices: 0 here.
    h = tf.tile(x[None], [2, 1, 1])
    taken = tf.raw_ops.GatherV2(
        params=h, indices=tf.constant([0, 1]), axis=0, batch_dims=-1
    )
    scores = tf.nn.softmax(tf.transpose(taken, [0, 2, 1]))
    return _weighted(x @ W, scores[0] @ tf.ones([ROWS, WIDTH]))


DECEIVING = [
    _axis_that_overflows,
    _axis_from_a_byte,
    _maximum_of_a_negative_multiple,
    _product_over_no_axes,
    _stitched_with_a_gap,
    _bounds_from_a_total,
    _negative_batch_dims,
]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("loss", DECEIVING, ids=lambda f: f.__name__[1:])
def test_no_size_deceives(
    loss: Callable[[Any, Any], Any], static: bool
) -> None:
    """Refused, or taken apart rightly."""
    try:
        before, gradient = terms(loss, X, IDS, static)
    except tsdp.NotSeparableError:
        return
    np.testing.assert_allclose(before.sum(0), gradient, rtol=1e-4, atol=1e-5)
    changed, ids = X.copy(), IDS.copy()
    changed[1], ids[1] = 7.0, 0
    after, _ = terms(loss, changed, ids, static)
    np.testing.assert_allclose(before[[0, 2]], after[[0, 2]], rtol=1e-5)


def _first_rows(x: Any, rows: Any) -> Any:
    h = x @ W
    both = tf.concat([h, tf.sin(h)], 0)
    return _weighted(h, tf.slice(both, [0, 0], tf.stack([rows, WIDTH])))


def test_a_batch_size_in_a_byte_is_refused() -> None:
    """It is the batch size up to 127 rows only."""

    def loss(x: Any, ids: Any) -> Any:
        rows = tf.cast(tf.cast(tf.shape(x)[0], tf.int8), tf.int32)
        return _first_rows(x, rows)

    with pytest.raises(tsdp.NotSeparableError, match="Slice"):
        terms(loss, X, IDS, static=False)


@pytest.mark.parametrize(("rows", "consistent"), [(3, True), (4, False)])
def test_a_batch_whose_multiples_overflow_is_not_consistent(
    rows: int, consistent: bool
) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            size = (tf.shape(x)[0] * 2**29) // 2**29
            loss = _first_rows(x, tf.maximum(size, 0))
        gradient = tape.gradient(loss, W)
        return Separation([gradient], ["W"], [W.shape]).consistent

    x = np.ones((rows, 3), "float32")
    assert bool(step(x).numpy()) is consistent


def test_a_free_part_is_spread_before_it_is_reduced() -> None:
    """A regulariser that is added to a gradient by broadcasting."""

    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ W))
        gradient = tape.gradient(loss, W) + tf.reduce_mean(W, 0)
        gradient = tf.reduce_sum(gradient, 0)
        part = Separation([gradient], ["W"], [gradient.shape]).parts[0]
        return gradient, tf.reduce_sum(part.terms.per_example(), 0) + part.free

    gradient, found = step(X)
    np.testing.assert_allclose(gradient, found, rtol=1e-5)
