"""How large noise is: the laws of norms of rows of pure noise.

Public constants, in float64. `survival` is the probability that a norm exceeds
a threshold; the mean excess is that of max(norm - threshold, 0) over all rows,
those below the threshold included.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class GaussianNorms:
    r"""The norm of a row of independent Gaussian numbers.

    $\|\xi\|$ for $\xi \sim N(0, \sigma^2 I_k)$, with $\sigma$ = stddev and
    $k$ = width. With $a = k/2$ and $y = t^2 / 2\sigma^2$:
    $P(\|\xi\| > t) = Q(a, y)$, the regularised upper incomplete gamma function.

    Args:
      stddev: Standard deviation of one number.
      width: Length of a row.

    Example:
      >>> norms = GaussianNorms(2.0, 1)
      >>> round(float(norms.survival(2 * 1.96)), 3)
      0.05
    """

    stddev: float
    width: int

    def __post_init__(self) -> None:
        _check_positive("stddev", self.stddev)
        if self.width < 1:
            raise ValueError(
                f"A row of width {self.width} has no norm: width is the number "
                "of entries of one row, at least 1."
            )

    def survival(self, threshold: ArrayLike) -> Floats:
        """P(norm > threshold)."""
        return special.gammaincc(self.width / 2, self._half_square(threshold))

    def inverse_survival(self, probability: ArrayLike) -> Floats:
        """The threshold that is exceeded with this probability."""
        y = special.gammainccinv(self.width / 2, probability)
        return self.stddev * np.sqrt(2 * y)

    def mean_excess(self, threshold: ArrayLike) -> Floats:
        """E max(norm - threshold, 0)."""
        return self.stddev * self._excess(threshold)[0]

    def mean_squared_excess(self, threshold: ArrayLike) -> Floats:
        """E max(norm - threshold, 0)²."""
        return self.stddev**2 * self._excess(threshold)[1]

    def _half_square(self, threshold: ArrayLike) -> Floats:
        scaled = np.maximum(np.asarray(threshold, np.float64), 0) / self.stddev
        return scaled**2 / 2

    def _excess(self, threshold: ArrayLike) -> tuple[Floats, Floats]:
        """For stddev 1: parts of the moments above t, put together.

        Far out the parts cancel, but slowly: at survival 1e-30 and width 1024,
        ten digits of the first moment are left, and seven of the second.
        """
        a = self.width / 2
        y = self._half_square(threshold)
        t = np.sqrt(2 * y)
        above = special.gammaincc(a, y)
        root = math.sqrt(2) * special.poch(a, 0.5)  # The mean norm.
        first = root * special.gammaincc(a + 0.5, y)
        second = self.width * special.gammaincc(a + 1, y)
        return (
            np.maximum(first - t * above, 0),
            np.maximum(second - 2 * t * first + t**2 * above, 0),
        )


@dataclasses.dataclass(frozen=True)
class LaplaceNorms:
    r"""The size of one Laplace number: exponential, $P(|\xi| > t) = e^{-t/b}$.

    Args:
      scale: Mean size $b$ of a number.

    Example:
      >>> round(float(LaplaceNorms(2.0).inverse_survival(0.5)), 4)
      1.3863
    """

    scale: float

    def __post_init__(self) -> None:
        _check_positive("scale", self.scale)

    @property
    def width(self) -> int:
        """One coordinate at a time."""
        return 1

    def survival(self, threshold: ArrayLike) -> Floats:
        """P(size > threshold)."""
        return np.exp(-np.maximum(threshold, 0) / self.scale)

    def inverse_survival(self, probability: ArrayLike) -> Floats:
        """The threshold that is exceeded with this probability."""
        return -self.scale * np.log(probability)

    def mean_excess(self, threshold: ArrayLike) -> Floats:
        """E max(size - threshold, 0)."""
        return self.scale * self.survival(threshold)

    def mean_squared_excess(self, threshold: ArrayLike) -> Floats:
        """E max(size - threshold, 0)²."""
        return 2 * self.scale**2 * self.survival(threshold)


Norms = GaussianNorms | LaplaceNorms


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"{name} {value} leaves no noise to describe: give a positive, "
            "finite number, or leave the noise away altogether."
        )
