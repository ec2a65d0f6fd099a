"""The validity column: its form, and which weights it can carry."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.sampling.padding import (
    as_validity,
    is_validity_column,
    pad_rows,
)

pytestmark = [pytest.mark.once, pytest.mark.lane]


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ([8], tf.float16, True),
        ([None], tf.float16, True),
        ([8], tf.float32, False),
        ([8], tf.bfloat16, False),
        ([8, 1], tf.float16, False),
        ([], tf.float16, False),
        (None, tf.float16, False),
    ],
)
def test_form_of_the_validity_column(shape, dtype, expected):
    assert is_validity_column(tf.TensorSpec(shape, dtype)) is expected


def test_form_is_seen_while_tracing():
    seen = []

    @tf.function
    def step(weight, label):
        seen.extend([is_validity_column(weight), is_validity_column(label)])

    step(tf.ones([3], tf.float16), tf.ones([3]))
    assert seen == [True, False]


@pytest.mark.parametrize(
    "weights",
    [
        [0, 1, 2],
        [True, False],
        [0.5, 6.2e-5, 65504.0],
        np.array([0.1, 3], np.float32),
        np.array([0.1, 3], np.float16),
    ],
)
def test_weights_survive_rounding(weights):
    weights = np.asarray(weights)
    validity = as_validity(weights, "w")
    assert validity.dtype == np.float16
    np.testing.assert_allclose(validity, weights.astype(float), rtol=2**-11)
    np.testing.assert_array_equal(validity > 0, weights > 0)


@pytest.mark.parametrize(
    "bad", [-1.0, -1e-9, np.nan, np.inf, 65520.0, 1e30, 1e-5, 1e-30]
)
def test_weights_that_half_precision_would_distort(bad):
    with pytest.raises(ValueError, match=r"mine holds weights .* Rescale"):
        as_validity(np.array([1.0, bad]), "mine")


@pytest.mark.parametrize(
    "bad", [np.ones([3, 1]), np.array(["a", "b"]), np.ones(2, complex)]
)
def test_weights_of_the_wrong_form(bad):
    with pytest.raises(ValueError, match="one number for each example"):
        as_validity(bad, "w")


@pytest.mark.parametrize("dtype", [np.int32, np.float32, bool, "U3", "S3"])
def test_padding_keeps_type_and_rows(dtype):
    rows = np.array([[1, 0], [0, 1]]).astype(dtype)
    padded = pad_rows(rows, np.array([4, 1]), size=5)
    assert padded.dtype == rows.dtype
    np.testing.assert_array_equal(padded[[4, 1]], rows)
    np.testing.assert_array_equal(padded[[0, 2, 3]], np.zeros([3, 2], dtype))


def test_padding_of_nothing():
    padded = pad_rows(np.zeros([0, 2]), np.zeros(0, np.int64), size=3)
    np.testing.assert_array_equal(padded, np.zeros([3, 2]))
