"""Stand-ins for samplings, and exact answers to compare with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import mpmath
import pytest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """Only the facts that accounting asks for."""

    num_units: int = 1_000_000
    examples_per_unit: int = 1
    sampling_probability: float | None = 0.01
    num_compositions: int = 1000
    composition_unit: str = "step"
    neighbouring_relation: str = "add_or_remove_one"
    overflow_probability: float = 0.0
    unit: str = "example"
    description: str = "Each example joins each batch by its own coin."

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@pytest.fixture
def poisson() -> Callable[..., Batches]:
    return Batches


@pytest.fixture
def passes() -> Callable[[int], Batches]:
    def make(num_compositions: int) -> Batches:
        return Batches(
            sampling_probability=None,
            num_compositions=num_compositions,
            composition_unit="pass",
            neighbouring_relation="zero_out",
            description="The user's own batches, every example once a pass.",
        )

    return make


@pytest.fixture
def exact_epsilon() -> Callable[..., float]:
    """Epsilon of k Gaussians to 40 digits, by the closed form.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
    with mu = sqrt(k)/z (Balle and Wang, 2018, Theorem 5).
    """

    def epsilon(noise_multiplier: float, k: int, delta: float) -> float:
        with mpmath.workdps(40):
            mu = mpmath.sqrt(k) / mpmath.mpf(noise_multiplier)

            def excess(eps: mpmath.mpf) -> mpmath.mpf:
                upper = mpmath.ncdf(mu / 2 - eps / mu)
                lower = mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)
                return upper - lower - mpmath.mpf(delta)

            low, high = mpmath.mpf(0), mu**2 / 2 + 60 * mu
            if excess(low) <= 0:
                return 0.0
            for _ in range(90):
                middle = (low + high) / 2
                if excess(middle) > 0:
                    low = middle
                else:
                    high = middle
            return float(high)

    return epsilon
