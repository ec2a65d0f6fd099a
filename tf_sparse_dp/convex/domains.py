"""Where weights may lie, seen from the initial point.

All vectors here are differences u = x - x⁰ from the initial point.
"""

from __future__ import annotations

import abc
import dataclasses
import math

import numpy as np

from tf_sparse_dp.convex.losses import Array


def norm(vector: Array) -> float:
    """L2 norm with a relative error below 2⁻⁴⁶, however long the vector is.

    numpy adds squares in pairs of blocks of 128 entries; BLAS does not say.
    """
    return math.sqrt(float(np.sum(vector * vector)))


class Domain(abc.ABC):
    """A closed convex set."""

    @abc.abstractmethod
    def nearest(self, point: Array, initial: Array) -> Array:
        """The point of the set at the least L2 distance."""

    @abc.abstractmethod
    def nearest_in_every_entry(self, point: Array, initial: Array) -> Array:
        r"""A point of the set at the least L∞ distance: the paper's last step.

        $\hat x \in \arg\min_{x \in X} \|x - \tilde x\|_\infty$.
        """

    @abc.abstractmethod
    def largest_margin(
        self, initial_norm: float, row_norm: float, sparsity: int
    ) -> float:
        r"""$\sup |a^\top x|$ over the set and over clipped rows; or infinity.

        Args:
          initial_norm: $\|x^0\|_2$.
          row_norm: $\|a\|_2$ at most.
          sparsity: Entries of $a$ that are not zero at most.
        """


@dataclasses.dataclass(frozen=True)
class Unconstrained(Domain):
    """All of $R^d$."""

    def nearest(self, point: Array, initial: Array) -> Array:
        return point

    def nearest_in_every_entry(self, point: Array, initial: Array) -> Array:
        return point

    def largest_margin(
        self, initial_norm: float, row_norm: float, sparsity: int
    ) -> float:
        return math.inf


@dataclasses.dataclass(frozen=True)
class Ball(Domain):
    r"""All points within an L2 distance of the initial point.

    Args:
      radius: The distance, above 0.

    Example:
      >>> Ball(1.0)
      Ball(radius=1.0)
    """

    radius: float

    def __post_init__(self) -> None:
        _check(0 < self.radius < math.inf, self, "a finite radius above 0")

    def nearest(self, point: Array, initial: Array) -> Array:
        length = norm(point)
        if length <= self.radius:
            return point
        return point * (self.radius / length)

    def nearest_in_every_entry(self, point: Array, initial: Array) -> Array:
        r"""Soft thresholding, by the least threshold that reaches the ball.

        Among all points within $t$ of `point` in every entry, the one that
        has each entry moved by $t$ towards 0, and not beyond, has the least
        norm. So the least distance is the least $t$ for which that one lies
        in the ball. With the $k$ largest sizes above $t$, of sum $S_1$ and
        sum of squares $S_2$, its squared norm is $S_2 - 2tS_1 + kt^2$.
        """
        if norm(point) <= self.radius:
            return point
        sizes = np.abs(point)
        falling = np.sort(sizes)[::-1]
        counts = np.arange(1, len(falling) + 1)
        # About their mean, or squares of large sums would cancel.
        means = np.cumsum(falling) / counts
        spreads = np.cumsum(falling * falling) / counts - means * means
        # The squared norm when t is the next size: how many entries stay.
        following = np.append(falling[1:], 0.0)
        lengths = counts * (np.maximum(spreads, 0) + (means - following) ** 2)
        last = int(np.searchsorted(lengths, self.radius**2))
        last = min(last, len(falling) - 1)
        room = self.radius**2 / counts[last] - max(spreads[last], 0.0)
        threshold = means[last] - math.sqrt(max(room, 0.0))
        shrunk = np.sign(point) * np.maximum(sizes - threshold, 0.0)
        return self.nearest(shrunk, initial)  # What rounding left outside.

    def largest_margin(
        self, initial_norm: float, row_norm: float, sparsity: int
    ) -> float:
        return row_norm * (initial_norm + self.radius)


@dataclasses.dataclass(frozen=True)
class Box(Domain):
    """All points with every weight between two numbers.

    Args:
      low: The least weight.
      high: The largest weight.

    Example:
      >>> Box(-1.0, 1.0)
      Box(low=-1.0, high=1.0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check(
            -math.inf < self.low < self.high < math.inf,
            self,
            "finite low below high",
        )

    def nearest(self, point: Array, initial: Array) -> Array:
        return np.clip(point, self.low - initial, self.high - initial)

    def nearest_in_every_entry(self, point: Array, initial: Array) -> Array:
        return self.nearest(point, initial)  # Nearest in each entry at once.

    def largest_margin(
        self, initial_norm: float, row_norm: float, sparsity: int
    ) -> float:
        largest = max(abs(self.low), abs(self.high))
        return row_norm * math.sqrt(sparsity) * largest


def _check(good: bool, given: Domain, expected: str) -> None:
    if not good:
        raise ValueError(f"{given!r} was given; expected {expected}.")
