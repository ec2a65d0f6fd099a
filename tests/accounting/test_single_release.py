"""Closed forms for one release, against 50 digits."""

from __future__ import annotations

import fractions
import math

import mpmath
import pytest

from tf_sparse_dp.accounting.single_release import (
    gaussian_delta,
    gaussian_noise_multiplier,
    laplace_noise_multiplier,
)

pytestmark = pytest.mark.once


def exact_delta(epsilon, noise_multiplier):
    with mpmath.workdps(400):
        epsilon, z = mpmath.mpf(epsilon), mpmath.mpf(noise_multiplier)
        above = mpmath.ncdf(1 / (2 * z) - epsilon * z)
        return above - mpmath.exp(epsilon) * mpmath.ncdf(
            -1 / (2 * z) - epsilon * z
        )


@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-6, 1e-12, 1e-30, 1e-200])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.1, 1.0, 5.0, 50.0, 400.0])
def test_gaussian_noise_is_enough_and_hardly_less_would_be(epsilon, delta):
    z = gaussian_noise_multiplier(epsilon, delta)
    assert exact_delta(epsilon, z) <= delta
    # The last of 6 digits, and where delta is tiny what rounding allows.
    slack = 1e-5 if epsilon > 1e-5 or delta > 1e-20 else 1e-2
    assert exact_delta(epsilon, z * (1 - slack)) > delta


@pytest.mark.parametrize("z", [1e-3, 0.1, 1.0, 7.0, 1e4, 1e9])
def test_gaussian_delta_is_rounded_up(z):
    for epsilon in (0.0, 1e-9, 1e-3, 0.5 / z**2, 1.0, 30.0):
        exact = exact_delta(epsilon, z)
        found = gaussian_delta(epsilon, z)
        assert exact <= found
        assert found <= float(exact) * (1 + 1e-6) + 1e-12


def test_noise_that_rounding_cannot_tell_is_refused():
    with pytest.raises(ValueError, match="Raise one of them"):
        gaussian_noise_multiplier(1e-15, 1e-15)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 0.3, 0.7, 1.0, 3.0, 40.0])
def test_laplace_noise(epsilon):
    z = laplace_noise_multiplier(epsilon, 0.0)
    assert 1 / fractions.Fraction(z) <= fractions.Fraction(epsilon)
    assert z == pytest.approx(1 / epsilon, rel=1e-5)
    for delta in (1e-6, 0.3):
        z = laplace_noise_multiplier(epsilon, delta)
        assert -math.expm1((epsilon - 1 / z) / 2) <= delta * (1 + 1e-12)
        less = z * (1 - 2e-5)
        assert -math.expm1((epsilon - 1 / less) / 2) > delta
