"""The last step of the algorithm: nearest in L∞ norm."""

from __future__ import annotations

import numpy as np
import pytest

from tf_sparse_dp.convex import Ball, Box, Unconstrained
from tf_sparse_dp.convex.domains import norm

pytestmark = [pytest.mark.once]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("domain", [Ball(0.7), Box(-0.4, 0.5)], ids=str)
def test_no_point_of_the_domain_is_nearer(seed: int, domain: object) -> None:
    """Nearer in every entry means inside a cube; all of it is outside."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 30))
    initial = rng.normal(size=size) * 0.1
    point = rng.normal(size=size) * rng.choice([0.1, 1.0, 50.0])
    found = domain.nearest_in_every_entry(point, initial)
    np.testing.assert_allclose(
        domain.nearest(found, initial), found, rtol=0, atol=1e-12
    )
    distance = np.max(np.abs(found - point))
    inside = np.array_equal(domain.nearest(point, initial), point)
    assert (distance == 0) == inside
    if inside:
        return
    if isinstance(domain, Ball):
        # The point of a slightly smaller cube with the least norm.
        closer = distance * (1 - 1e-6)
        least = np.sign(point) * np.maximum(np.abs(point) - closer, 0)
        assert norm(least) > domain.radius
    else:
        clip = np.clip(point, domain.low - initial, domain.high - initial)
        assert distance == pytest.approx(np.max(np.abs(clip - point)))


def test_projecting_in_l2_norm_would_not_do() -> None:
    point, initial = np.array([3.0, 0.1, 0.1]), np.zeros(3)
    good = Ball(1.0).nearest_in_every_entry(point, initial)
    scaled = Ball(1.0).nearest(point, initial)
    np.testing.assert_allclose(good, [1.0, 0.0, 0.0])
    assert np.max(np.abs(good - point)) < np.max(np.abs(scaled - point))


def test_ties_and_long_vectors() -> None:
    same = Ball(1.0).nearest_in_every_entry(np.full(100, -2.0), np.zeros(100))
    np.testing.assert_allclose(same, np.full(100, -0.1))
    long = np.random.default_rng(0).normal(size=1_000_001)
    found = Ball(2.0).nearest_in_every_entry(long, np.zeros_like(long))
    assert norm(found) == pytest.approx(2.0, rel=1e-9)
    free = Unconstrained().nearest_in_every_entry(long, np.zeros_like(long))
    assert free is long


@pytest.mark.parametrize(
    "make", [lambda: Ball(0.0), lambda: Box(1.0, 1.0), lambda: Ball(np.nan)]
)
def test_no_domain(make) -> None:
    with pytest.raises(ValueError, match="was given; expected"):
        make()
