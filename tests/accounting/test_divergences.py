"""Divergences against integrals, exact sums, and `dp_accounting`."""

from __future__ import annotations

from collections.abc import Callable

import dp_accounting
import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import integrate

from tf_sparse_dp.accounting import divergences as dv

pytestmark = [pytest.mark.once]

ORDERS = (2, 3, 5, 8, 20, 64, 256)


def gaussian(z: float) -> Callable[[float], Callable[[float], float]]:
    return lambda mean: lambda x: -0.5 * ((x - mean) / z) ** 2


def laplace(z: float) -> Callable[[float], Callable[[float], float]]:
    return lambda mean: lambda x: -abs(x - mean) / z


def integrated(
    noise: Callable[[float], Callable[[float], float]],
    q: float,
    alpha: int,
    reverse: bool,
) -> float:
    """D_α of (1-q) noise at 0 + q noise at 1 from noise at 0, or reversed."""
    base, moved = noise(0.0), noise(1.0)
    scale = integrate.quad(lambda x: np.exp(base(x)), -400, 400, points=[0])[0]

    def density(x: float) -> float:
        mixture = np.logaddexp(np.log1p(-q) + base(x), np.log(q) + moved(x))
        upper, lower = (base(x), mixture) if reverse else (mixture, base(x))
        return float(np.exp(alpha * upper + (1 - alpha) * lower))

    moment, _ = integrate.quad(
        density, -400, 400, points=[0, 1, alpha], limit=500
    )
    return float(np.log(moment / scale) / (alpha - 1))


@pytest.mark.parametrize("noise", [gaussian, laplace])
@pytest.mark.parametrize("alpha", [2, 5])
@pytest.mark.parametrize(("q", "z"), [(0.01, 1.0), (0.2, 2.0), (0.7, 1.5)])
def test_the_formula_is_the_integral(noise, q, z, alpha) -> None:
    excess = dv.gaussian_excess if noise is gaussian else dv.laplace_excess
    found = dv.divergence(excess(q, z, [alpha]), [alpha])[0]
    assert found == pytest.approx(
        integrated(noise(z), q, alpha, False), rel=1e-6
    )
    assert integrated(noise(z), q, alpha, True) <= found


def exact_gaussian(q: float, z: float, alpha: int) -> mpf:
    q, z = mpf(q), mpf(z)
    moment = mpmath.fsum(
        mpmath.binomial(alpha, k)
        * q**k
        * (1 - q) ** (alpha - k)
        * mpmath.exp(k * (k - 1) / (2 * z**2))
        for k in range(alpha + 1)
    )
    return mpmath.log(moment) / (alpha - 1)


def exact_laplace(q: float, z: float, alpha: int) -> mpf:
    q, z = mpf(q), mpf(z)
    moment = mpmath.fsum(
        mpmath.binomial(alpha, k)
        * q**k
        * (1 - q) ** (alpha - k)
        * (k * mpmath.exp((k - 1) / z) + (k - 1) * mpmath.exp(-k / z))
        / (2 * k - 1)
        for k in range(alpha + 1)
    )
    return mpmath.log(moment) / (alpha - 1)


@pytest.mark.parametrize(
    ("excess", "exact"),
    [
        (dv.gaussian_excess, exact_gaussian),
        (dv.laplace_excess, exact_laplace),
    ],
)
def test_rounding_is_upwards_and_small(excess, exact) -> None:
    rng = np.random.default_rng(5)
    with mpmath.workdps(60):
        for number in range(25):
            q = float(10 ** rng.uniform(-8, 0)) if number else 1.0
            z = float(10 ** rng.uniform(-1, 3))
            found = dv.divergence(excess(q, z, ORDERS), ORDERS)
            for value, alpha in zip(found, ORDERS, strict=True):
                truth = exact(q, z, alpha)
                assert truth <= mpf(value) <= truth * (1 + mpf(1e-10))


@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 0.5, 3.0, 100.0])
def test_randomised_response(epsilon: float) -> None:
    found = dv.divergence(dv.pure_excess(epsilon, ORDERS), ORDERS)
    with mpmath.workdps(60):
        for value, alpha in zip(found, ORDERS, strict=True):
            e = mpmath.exp(mpf(epsilon))
            truth = mpmath.log((e**alpha + e ** (1 - alpha)) / (1 + e))
            truth /= alpha - 1
            assert truth <= mpf(value) <= truth * (1 + mpf(1e-12))
            assert value <= min(epsilon, alpha * epsilon**2 / 2) * (1 + 1e-12)


def test_mixture_is_rounded_up() -> None:
    weights = np.array([0.7, 0.29999, 0.00001])
    parts = np.array([[1e-9, 3e-9], [1e-4, 2e-3], [2.0, 7.0]])
    found = dv.divergence(dv.mixed_excess(weights, parts, [2, 9]), [2, 9])
    with mpmath.workdps(60):
        for place, alpha in enumerate((2, 9)):
            terms = [
                mpf(w) * mpmath.exp((alpha - 1) * mpf(p))
                for w, p in zip(weights, parts[:, place], strict=True)
            ]
            truth = mpmath.log(1 + mpmath.fsum(terms) - mpmath.fsum(weights))
            truth /= alpha - 1
            assert truth <= mpf(found[place]) <= truth * (1 + mpf(1e-12))


def test_agrees_with_dp_accounting() -> None:
    for q, z in ((0.01, 1.0), (0.3, 3.0), (1.0, 0.8)):
        accountant = dp_accounting.rdp.RdpAccountant(ORDERS)
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(
                q, dp_accounting.GaussianDpEvent(z)
            )
        )
        found = dv.poisson_gaussian_divergence(q, z, ORDERS)
        np.testing.assert_allclose(found, accountant.rdp, rtol=1e-9)


def test_the_ends_of_the_range() -> None:
    orders = [2, 7]
    for excess in (dv.gaussian_excess, dv.laplace_excess):
        for q, z in ((0.0, 1.0), (0.5, np.inf), (0.0, 0.0)):
            assert not dv.divergence(excess(q, z, orders), orders).any()
        for q in (1e-300, 0.5, 1.0):
            huge = dv.divergence(excess(q, 0.0, orders), orders)
            assert np.all(huge > 1e290)
    found = dv.poisson_gaussian_divergence(1.0, 2.0, orders)
    np.testing.assert_allclose(found, [0.25, 0.875], rtol=1e-14)
