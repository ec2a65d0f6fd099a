"""The threshold of the projection, and the public bound below it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.mechanisms.dense_definitions import projection_threshold
from tf_sparse_dp.mechanisms.ball_threshold import ball_shift, certain_threshold
from tf_sparse_dp.mechanisms.noise_norms import GaussianNorms, LaplaceNorms

pytestmark = pytest.mark.once

RNG = np.random.default_rng(0)
EXCESSES = {
    "many": (RNG.exponential(size=2_000_000), 1e5),
    "many, little left": (RNG.exponential(size=2_000_000), 1e-3),
    "one large": (np.r_[1e6, RNG.exponential(size=1000)], 10.0),
    "ties": (np.repeat([1.0, 2.0, 3.0], 100), 150.0),
    "all equal": (np.full(7, 0.1), 0.35),
    "zeros": (np.r_[np.zeros(50), 1.0, 2.0], 0.5),
    "inside": (np.array([1.0, 2.0]), 3.5),
    "on the border": (np.array([1.0, 2.0]), 3.0),
    "one": (np.array([5.0]), 2.0),
    "none": (np.array([]), 2.0),
}


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_shift(jit: bool) -> None:
    for excess, radius in EXCESSES.values():
        excess = excess.astype("float32")
        function = tf.function(ball_shift, jit_compile=jit)
        found = function(tf.constant(excess), radius).numpy()
        expected = projection_threshold(excess.astype("float64"), radius)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_the_bound_is_below_the_threshold_of_pure_noise() -> None:
    """In all of 200 draws; it is not if 6 standard deviations are left out."""
    rng = np.random.default_rng(1)
    norms, counts = [GaussianNorms(2.0, 1), LaplaceNorms(0.5)], [5000, 3000]
    radius = 60.0
    bound = certain_threshold(norms, counts, radius)
    thresholds = [
        projection_threshold(
            np.abs(np.r_[rng.normal(0, 2.0, 5000), rng.laplace(0, 0.5, 3000)]),
            radius,
        )
        for _ in range(200)
    ]
    assert bound < min(thresholds)
    assert bound > 0.8 * np.mean(thresholds), "and not much below"
    surplus = sum(
        n * f.mean_excess(np.mean(thresholds))
        for f, n in zip(norms, counts, strict=True)
    )
    assert surplus == pytest.approx(radius, rel=0.05)


def test_noise_that_lies_in_the_ball_has_no_bound() -> None:
    assert certain_threshold([GaussianNorms(1.0, 4)], [100], 1e3) == 0.0
