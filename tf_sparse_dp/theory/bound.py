"""A rate as a minimum of terms, and the arguments that rates are made of."""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
from collections.abc import Mapping

CONSTANT, SPARSE, DENSE = "constant", "sparse", "dense"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """A rate, up to an absolute constant.

    Attributes:
      value: The rate: the smallest of `terms`, with `additional`.
      terms: The terms of the minimum: "constant" (publish a fixed point),
        "sparse" (nearly free of d) and "dense" (polynomial in d).
      additional: What comes on top of all but the constant: the statistical
        error of stochastic optimization, else 0.
      source: The table or theorem.
      unmet: Conditions of the theorem that these arguments do not meet; then
        the value is a formula and nothing more.

    Example:
      >>> from tf_sparse_dp import theory
      >>> bound = theory.rates.mean_upper(
      ...     n=10_000, d=10**6, s=4, epsilon=1.0, delta=1e-6
      ... )
      >>> bound.regime, round(bound.value, 3)
      ('sparse', 0.051)
    """

    terms: Mapping[str, float]
    source: str
    additional: float = 0.0
    unmet: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        frozen = types.MappingProxyType(dict(self.terms))
        object.__setattr__(self, "terms", frozen)

    @property
    def value(self) -> float:
        return self._total(self.regime)

    @property
    def regime(self) -> str:
        """The name of the smallest term; of equal ones the first."""
        return min(self.terms, key=self._total)

    def _total(self, name: str) -> float:
        return self.terms[name] + (self.additional if name != CONSTANT else 0)

    def __float__(self) -> float:
        return self.value


def log(x: float) -> float:
    """Natural, and at least 1."""
    return max(1.0, math.log(x))


def quarter(inside: float, size: float) -> float:
    """The shape of rates with a delta: a fourth root over a square root."""
    return inside**0.25 / math.sqrt(size)


def scaled(terms: Mapping[str, float], factor: float) -> dict[str, float]:
    """All terms times a factor."""
    return {name: factor * term for name, term in terms.items()}


def kind(delta: float) -> str:
    """The name of a row of the tables."""
    return "pure" if delta == 0 else "approximate"


def unmet(conditions: Mapping[str, bool]) -> tuple[str, ...]:
    """The names of the conditions that do not hold."""
    return tuple(name for name, holds in conditions.items() if not holds)


def check(n: int, d: int, s: int, epsilon: float, delta: float) -> None:
    """Refuses what is no problem with so much privacy."""
    check_whole("n", n)
    check_whole("d", d)
    check_whole("s", s)
    if s > d:
        raise ValueError(
            f"s={s!r} and d={d!r} were given; expected s of at most d: how "
            "many of d coordinates of one example are not zero."
        )
    check_positive(epsilon=epsilon)
    if not _is_real(delta) or not 0 <= delta < 1:
        raise ValueError(
            f"delta={delta!r} was given; expected a number of at least 0 "
            "(pure differential privacy) and below 1."
        )


def check_approximate(delta: float) -> None:
    """Refuses delta = 0."""
    if delta == 0:
        raise ValueError(
            "delta=0 was given; expected delta above 0: this algorithm has "
            "Gaussian noise and no rate for pure differential privacy."
        )


def check_beta(beta: float) -> None:
    """Refuses what is no probability of failure."""
    if not _is_real(beta) or not 0 < beta < 1:
        raise ValueError(
            f"beta={beta!r} was given; expected a probability of failure "
            "between 0 and 1."
        )


def check_whole(name: str, value: object) -> None:
    """Refuses what is no count."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < 1:  # type: ignore[operator]
        raise ValueError(
            f"{name}={value!r} was given; expected a whole number of at least "
            "1."
        )


def check_positive(**values: float) -> None:
    """Refuses what is not a finite number above 0."""
    for name, value in values.items():
        if not _is_real(value) or not value > 0:
            raise ValueError(
                f"{name}={value!r} was given; expected a finite number above 0."
            )


def _is_real(value: object) -> bool:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(value)  # type: ignore[arg-type]
