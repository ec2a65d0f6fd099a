"""The noise of single releases. Seeds are fixed: no random failures."""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy import stats

from tf_sparse_dp.convex import noise

pytestmark = [pytest.mark.once]


@pytest.mark.parametrize(
    ("draw", "law"),
    [(noise.normal, stats.norm), (noise.laplace, stats.laplace)],
)
def test_the_law(draw, law) -> None:
    numbers = draw(200_001, noise.source(3))
    assert numbers.shape == (200_001,)
    assert stats.kstest(numbers, law.cdf).pvalue > 1e-3
    # And what is a little wrong is noticed.
    assert stats.kstest(numbers * 1.02, law.cdf).pvalue < 1e-3
    assert stats.kstest(numbers + 0.02, law.cdf).pvalue < 1e-3
    pairs = numbers[:-1].reshape(-1, 2)
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.01
    assert abs(np.corrcoef(np.abs(pairs).T)[0, 1]) < 0.01


def test_far_tails() -> None:
    """Bytes of zero are the farthest numbers there are."""
    assert np.max(np.abs(noise.normal(2, bytes))) > 13.3
    assert np.max(np.abs(noise.laplace(1, bytes))) > 88

    def ones(size: int) -> bytes:
        return b"\xff" * size

    assert np.all(np.isfinite(noise.normal(3, ones)))
    assert np.all(np.isfinite(noise.laplace(3, ones)))


def test_noise_is_the_operating_systems() -> None:
    assert noise.source(None) is os.urandom


def test_sums_on_the_grid_are_exact() -> None:
    step = noise.grid_step(1e-9, 1000.0)
    assert step <= 1e-9
    values = np.random.default_rng(0).uniform(-500, 500, 1000)
    first, second = noise.steps(values, step), noise.steps(values[::-1], step)
    total = step * (first + second)
    again = total / step
    assert np.array_equal(again, np.rint(again))
    assert np.array_equal(again - first, second)
    # Too fine a grid would not be exact: it is made coarser.
    assert noise.grid_step(1e-30, 1.0) == 2.0**-51


@pytest.mark.parametrize(
    ("law", "exact"), [("normal", stats.norm), ("laplace", stats.laplace)]
)
@pytest.mark.parametrize("step", [2.0**-40, 2.0**-12, 0.05, 1.0])
def test_the_law_on_a_grid(law, exact, step: float) -> None:
    """Chi-squared at 1 in 1,000 each, with fixed seeds."""
    found = noise.whole(law, 100_000, step, noise.source(4))
    assert np.array_equal(found, np.rint(found))
    edges = np.unique(np.floor(np.linspace(-4, 4, 65) / step) * step)
    counts = np.histogram(found * step, [-np.inf, *edges, np.inf])[0]
    chances = np.diff(exact.cdf([-np.inf, *edges, np.inf]))
    assert stats.chisquare(counts, 100_000 * chances).pvalue > 1e-3
    # And what is a little wrong is noticed.
    wrong = np.diff(exact.cdf(np.array([-np.inf, *edges, np.inf]) * 1.03))
    assert stats.chisquare(counts, 100_000 * wrong).pvalue < 1e-3


@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_no_grain_of_floating_point_shows(law) -> None:
    """On a grid as fine as float64 allows, even and odd are alike.

    40,000 coins within 4.5 standard errors: 1 in 100,000 would fail. The
    logarithm of a float64 that is rounded to the grid does fail.
    """
    step = 2.0**-53
    odd = noise.whole(law, 40_000, step, noise.source(5))
    odd = odd[np.abs(odd) < 2.0**53] % 2
    error = 4.5 * np.sqrt(len(odd)) / 2
    assert abs(odd.sum() - len(odd) / 2) < error
    if law == "laplace":
        odd = np.floor(np.abs(noise.laplace(40_000, noise.source(5))) / step)
        odd = odd[odd < 2.0**53] % 2
        assert abs(odd.sum() - len(odd) / 2) > error


def test_places_within_a_cell() -> None:
    """The density falls within a cell as it should: to 1 in 1,000."""
    begin = np.full(100_000, 8.0)  # Cells of a quarter: from 2 on.
    for law in ("laplace", "normal"):
        places = noise._places(law, begin, 3, 2.0**-5, noise.source(6))
        counts = np.bincount(places.astype(int), minlength=8)
        middles = 2 + (np.arange(8) + 0.5) / 32
        density = stats.norm.pdf if law == "normal" else stats.laplace.pdf
        chances = density(middles) / density(middles).sum()
        assert stats.chisquare(counts, 100_000 * chances).pvalue > 1e-3
        flat = np.full(8, 12_500.0)
        assert stats.chisquare(counts, flat).pvalue < 1e-9
