"""The laws of norms of noise, against quadrature of their densities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from tf_sparse_dp.mechanisms.noise_norms import GaussianNorms, LaplaceNorms

pytestmark = pytest.mark.once


def quadrature(width: int, threshold: float, power: int) -> float:
    """log E max(x - t, 0)^power for the norm x of a normal vector.

    Gauss and Legendre's rule on many short pieces of the density, written
    relative to its value at t: nothing cancels, nothing underflows.
    """
    slope = max(threshold - (width - 1) / threshold, 1.0)
    edges = np.linspace(0, 60 / slope, 81)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = np.diff(edges)[:, np.newaxis] / 2
    excess = edges[:-1, np.newaxis] + half * (1 + nodes)
    log_density = (width - 1) * np.log1p(excess / threshold)
    log_density -= threshold * excess + excess**2 / 2
    total = (half * weights * excess**power * np.exp(log_density)).sum()
    at_threshold = (width - 1) * math.log(threshold) - threshold**2 / 2
    constant = (width / 2 - 1) * math.log(2) + special.gammaln(width / 2)
    return math.log(total) + at_threshold - float(constant)


@pytest.mark.parametrize("width", [1, 2, 3, 16, 32, 64, 1024])
@pytest.mark.parametrize(
    "probability", [0.9, 0.3, 1e-3, 1e-8, 1e-15, 1e-30], ids=str
)
def test_gaussian_rows(width: int, probability: float) -> None:
    norms = GaussianNorms(2.5, width)
    threshold = float(norms.inverse_survival(probability))
    exact = [quadrature(width, threshold / 2.5, power) for power in range(3)]
    assert norms.survival(threshold) == pytest.approx(probability, rel=1e-11)
    assert norms.survival(threshold) == pytest.approx(math.exp(exact[0]))
    assert norms.mean_excess(threshold) == pytest.approx(
        2.5 * math.exp(exact[1]), rel=1e-9, abs=0
    )
    assert norms.mean_squared_excess(threshold) == pytest.approx(
        2.5**2 * math.exp(exact[2]), rel=1e-6, abs=0
    )


def test_a_single_gaussian_number() -> None:
    """Textbook formulas for the size of a normal number."""
    norms, t = GaussianNorms(2.0, 1), 3.0
    tail, density = stats.norm.sf(t / 2), stats.norm.pdf(t / 2)
    assert norms.survival(t) == pytest.approx(2 * tail)
    assert norms.mean_excess(t) == pytest.approx(2 * (2 * density - t * tail))


@pytest.mark.parametrize("probability", [0.9, 1e-3, 1e-30], ids=str)
def test_laplace_numbers(probability: float) -> None:
    norms = LaplaceNorms(1.7)
    threshold = float(norms.inverse_survival(probability))
    assert stats.laplace(scale=1.7).sf(threshold) * 2 == pytest.approx(
        probability, rel=1e-10, abs=0
    )
    grid = np.linspace(0, 1.7 * 60, 200_001)
    density = np.exp(-(threshold + grid) / 1.7) / 1.7
    for power, found in [
        (0, norms.survival(threshold)),
        (1, norms.mean_excess(threshold)),
        (2, norms.mean_squared_excess(threshold)),
    ]:
        exact = integrate.trapezoid(grid**power * density, grid)
        assert found == pytest.approx(exact, rel=1e-6, abs=0)
    assert norms.width == 1


@pytest.mark.parametrize("norms", [GaussianNorms(2.0, 4), LaplaceNorms(2.0)])
def test_no_threshold_at_all(norms: GaussianNorms | LaplaceNorms) -> None:
    for none in (0.0, -1.0):
        assert norms.survival(none) == 1
    assert norms.inverse_survival(1.0) == 0
    assert norms.mean_squared_excess(0.0) == pytest.approx(
        2.0**2 * (4 if isinstance(norms, GaussianNorms) else 2)
    )


def test_many_thresholds_at_once() -> None:
    norms = GaussianNorms(1.0, 8)
    thresholds = np.array([0.0, 2.0, 5.0, 40.0, 100.0])
    for function in (
        norms.survival,
        norms.mean_excess,
        norms.mean_squared_excess,
    ):
        found = function(thresholds)
        assert found.shape == (5,)
        assert np.all(np.diff(found) <= 0) and found[-1] == 0


@pytest.mark.parametrize("size", [0.0, -1.0, math.inf, math.nan])
def test_no_noise(size: float) -> None:
    with pytest.raises(ValueError, match="leaves no noise"):
        GaussianNorms(size, 2)
    with pytest.raises(ValueError, match="leaves no noise"):
        LaplaceNorms(size)


def test_no_width() -> None:
    with pytest.raises(ValueError, match="width 0 has no norm"):
        GaussianNorms(1.0, 0)
