"""Bias and second moment of the bias-reduced estimate, as the lemma has them.

`benchmarks/bias_reduction.py estimator` does the same on a larger grid.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bias_reduction_moments import Point, of_plain, of_reduced
from tf_sparse_dp.mechanisms import Gaussian, Projection
from tf_sparse_dp.sampling import TruncatedGeometric

pytestmark = pytest.mark.once

DRAWS = 120
GRID = [Point(16, 256, 4, 1.0), Point(32, 256, 4, 2.0)]
INNER = Projection()


def largest(point: Point) -> int:
    return 2 ** (point.sampling.largest + 1)


@pytest.fixture(scope="module")
def found():
    """Of each point: bias of the full batch, and moments of the estimate.

    Draws and keys are fixed; the tests below cannot fail by chance.
    """
    return [
        (
            of_plain(p, INNER, largest(p), 4 * DRAWS).bias(p.mean),
            of_reduced(p, INNER, DRAWS),
        )
        for p in GRID
    ]


def test_the_bias_is_that_of_the_full_batch(found):
    for point, (full, reduced) in zip(GRID, found, strict=True):
        assert 1 / 1.3 < reduced.bias(point.mean) / full < 1.3


def test_a_small_batch_has_more_bias(found):
    """So that the test above tells the estimate from what it is made of."""
    for point, (full, _) in zip(GRID, found, strict=True):
        small = of_plain(point, INNER, 2, DRAWS)
        assert small.bias(point.mean) > 1.5 * full


def test_weights_of_another_law_are_rejected(found, monkeypatch):
    point, (full, _) = GRID[0], found[0]
    scale = TruncatedGeometric.scale
    monkeypatch.setattr(
        TruncatedGeometric,
        "scale",
        property(lambda law: 2 * scale.fget(law)),  # Half of the weight.
    )
    wrong = of_reduced(point, INNER, DRAWS).bias(point.mean)
    assert not 1 / 1.3 < wrong / full < 1.3


def test_the_second_moment_is_of_the_lemmas_form(found):
    ratios = [
        reduced.square / point.second_moment
        for point, (_, reduced) in zip(GRID, found, strict=True)
    ]
    assert max(ratios) < 2 * min(ratios)
    # Dense noise, which the lemma does not speak of, has far more.
    dense = of_reduced(GRID[0], Gaussian(), 20)
    assert dense.square / GRID[0].second_moment > 4 * ratios[0]


def test_what_has_no_bias_is_found_to_have_none():
    """Dense noise, of small size: the measurement itself is unbiased."""
    point = Point(8, 64, 4, 0.05)
    moments = of_reduced(point, Gaussian(), DRAWS)
    assert moments.bias(point.mean) < 0.1 * np.linalg.norm(point.mean)
