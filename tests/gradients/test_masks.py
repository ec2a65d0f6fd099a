"""Masks that hold no data, at every size at which tf.ones_like differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

WIDTH = 3
W = tf.Variable(np.random.RandomState(0).randn(WIDTH, WIDTH).astype("float32"))
_band = tf.linalg.band_part


def _below(ones: Any) -> Any:
    return ones - _band(ones, 0, -1)


def _positive(ones: Any) -> Any:
    return _band(ones, -1, 0) - _band(ones, 0, 0) > 0


def _cast(ones: Any) -> Any:
    return tf.cast(_band(ones, -1, 0) - _band(ones, 0, 0), tf.bool)


def terms(
    mask: Callable[[Any], Any], x: np.ndarray, static: bool
) -> tuple[np.ndarray, set[str]]:
    """Every example's term of a loss of chosen products of its fields."""
    batch = len(x) if static else None
    made: set[str] = set()

    @tf.function(input_signature=[tf.TensorSpec([batch, *x.shape[1:]])])
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            fields = x @ W
            products = tf.matmul(fields, fields, transpose_b=True)
            ones = tf.ones_like(products)
            made.add(ones.op.type)
            chosen = tf.boolean_mask(products, mask(ones))
            loss = tf.reduce_sum(tf.square(chosen))
        gradients = tape.gradient(loss, [W])
        separation = Separation(gradients, ["W"], [W.shape])
        return separation.parts[0].terms.per_example()

    return step(tf.constant(x)).numpy(), made


@pytest.mark.parametrize("mask", [_below, _positive, _cast])
@pytest.mark.parametrize(
    "batch, fields, static, made",
    [
        (4, 8, False, "OnesLike"),
        (4, 8, True, "Const"),
        (16, 8, True, "Fill"),
        (64, 27, True, "Fill"),
    ],
)
def test_each_example_keeps_the_same_entries(
    mask: Callable[[Any], Any], batch: int, fields: int, static: bool, made: str
) -> None:
    x = np.random.RandomState(1).randn(batch, fields, WIDTH).astype("float32")
    found, types = terms(mask, x, static)
    assert types == {made}
    for i in (0, 1, batch - 1):
        alone, _ = terms(mask, x[i : i + 1], static)
        np.testing.assert_allclose(found[i], alone[0], rtol=1e-4, atol=1e-3)


REFUSED = {
    "infinite": lambda ones: _band(tf.fill(ones.shape, np.inf), -1, 0),
    "tiny": lambda ones: _band(tf.fill(ones.shape, 1e-40), -1, 0),
    "above a tiny bound": lambda ones: _band(ones, -1, 0) > -1e-40,
    "wraps around": lambda ones: (
        tf.zeros(ones.shape, tf.uint8) - tf.ones(ones.shape, tf.uint8) > 0
    ),
    "differs by example": lambda ones: _band(
        tf.transpose(_band(tf.transpose(ones, [1, 2, 0]), -1, 0), [2, 0, 1]),
        -1,
        0,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_masks_are_refused(name: str) -> None:
    x = np.random.RandomState(1).randn(16, 8, WIDTH).astype("float32")
    with pytest.raises(tsdp.NotSeparableError, match="gathers across"):
        terms(REFUSED[name], x, static=True)
