"""All released values are points of one public grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.mechanisms.grid import noisy, rounded
from tf_sparse_dp.mechanisms.interface import Sum
from tf_sparse_dp.random_tails import normal

pytestmark = pytest.mark.once

KEY = tf.constant([5, 6], tf.int64)


@pytest.mark.parametrize("stddev", [0.3, 1.0, 17.0, 1e-8, 1e-20, 1e20], ids=str)
@pytest.mark.parametrize("jit", [False, True])
def test_the_grid(stddev: float, jit: bool) -> None:
    values = stddev * normal([1000], KEY)
    found = tf.function(lambda x: rounded(x, stddev), jit_compile=jit)(values)
    step = 2.0 ** (math.floor(math.log2(stddev)) - 12)
    assert stddev * 2.0**-13 < step <= stddev * 2.0**-12
    points = found.numpy().astype(float) / step
    np.testing.assert_array_equal(points, np.round(points))
    assert np.abs(found - values).max() <= step / 2
    np.testing.assert_array_equal(rounded(found, stddev), found)


def test_low_order_bits_do_not_tell_the_formula() -> None:
    """The same real numbers by two formulas: other bits, same grid points.

    Two results that differ by less than 2⁻²⁰ round to two points of a grid of
    2⁻¹² one time in 256 at most.
    """
    vectors = normal([20_000, 4], KEY)
    norms = tf.norm(vectors, axis=1, keepdims=True)
    one = vectors * (1.0 - 1.25 / norms)
    other = (vectors / norms) * (norms - 1.25)
    assert np.mean(one.numpy() != other.numpy()) > 0.2
    same = rounded(one, 1.0).numpy() == rounded(other, 1.0).numpy()
    assert np.mean(same) > 1 - 1 / 256


@pytest.mark.parametrize("form", ["dense", "table"])
@pytest.mark.parametrize(
    "dtype", [tf.float64, tf.float32, tf.bfloat16, tf.float16]
)
def test_noise_is_added_before_anything_is_cast(
    dtype: tf.DType, form: str
) -> None:
    values = tf.cast(tf.fill([500, 2], 1.0), dtype)
    noise = 1.3 * normal([500, 2], KEY)
    total: Sum = values
    if form == "table":  # Every row in two parts.
        total = tf.IndexedSlices(
            tf.concat([values / 4, values * 3 / 4], 0),
            tf.tile(tf.range(500), [2]),
            tf.constant([500, 2], tf.int64),
        )
    found = noisy(total, noise, 1.3)
    assert found.dtype == dtype
    np.testing.assert_array_equal(
        found, tf.cast(rounded(1 + noise, 1.3), dtype)
    )


@pytest.mark.parametrize("rounds", [True, False])
def test_a_single_number_does_not_tell_the_sum(rounds: bool) -> None:
    """A sum of 1 plus noise is a multiple of 2⁻²⁴ near 0; noise is not."""
    for total in (0.0, 1.0):
        noise = normal([100_000], KEY)
        values = noisy(tf.fill([100_000], total), noise, 1.0)
        if not rounds:
            values = total + noise
        fine = values.numpy()[np.abs(values) < 0.25].astype(float) * 2.0**24
        share = np.mean(fine != np.round(fine))
        assert (share > 0.5) == (total == 0.0 and not rounds)


@pytest.mark.parametrize("jit", [False, True])
def test_there_is_one_zero(jit: bool) -> None:
    values = tf.constant([-1e-6, 1e-6, -0.0, 0.0])
    found = tf.function(lambda x: rounded(x, 1.0), jit_compile=jit)(values)
    assert not found.numpy().any() and not np.signbit(found).any()


def test_far_beyond_the_noise_nothing_changes() -> None:
    values = tf.constant([1e5, -3.2e8, 2.0**100])
    np.testing.assert_array_equal(rounded(values, 1.0), values)


@pytest.mark.parametrize("stddev", [0.0, -1.0, 1e-40, 1e31, math.inf, math.nan])
def test_no_grid(stddev: float) -> None:
    with pytest.raises(ValueError, match="from 1e-30 to 1e30"):
        rounded(tf.zeros([1]), stddev)
