"""Convex losses of one margin and one label, with public bounds."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, TypeAlias

import numpy as np
from scipy import special

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss(abc.ABC):
    r"""A function $\varphi(m, y)$, convex in the margin $m = a^\top x$.

    Attributes:
      steepness: $\sup |\varphi'|$ over all margins and labels that can occur.
      curvature: $\sup \varphi''$, so that $\varphi'$ is Lipschitz.
    """

    steepness: float
    curvature: float

    @abc.abstractmethod
    def values(self, margins: Array, labels: Array) -> Array:
        """The loss of every row."""

    @abc.abstractmethod
    def slopes(self, margins: Array, labels: Array) -> Array:
        """Its derivative with respect to the margin."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logistic(Loss):
    r"""$\ln(1 + e^{-ym})$ for labels of -1 and 1."""

    steepness: float = 1.0
    curvature: float = 0.25

    def values(self, margins: Array, labels: Array) -> Array:
        return np.logaddexp(0.0, -labels * margins)

    def slopes(self, margins: Array, labels: Array) -> Array:
        return -labels * special.expit(-labels * margins)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hinge(Loss):
    r"""$\max(0, 1 - ym)$ with its corner rounded, for labels of -1 and 1.

    With $t = 1 - ym$ and $\mu$ = `smoothing`, $t^2/2\mu$ for $0 < t < \mu$ and
    $t - \mu/2$ beyond: convex, no steeper than the hinge, and below it by at
    most $\mu/2$. The sensitivity is that of this loss, exactly; rounding the
    corner costs accuracy, at most $\mu/2$ of excess risk, and no privacy.
    """

    smoothing: float

    @classmethod
    def rounded(cls, smoothing: float) -> Hinge:
        return cls(
            smoothing=smoothing, steepness=1.0, curvature=1.0 / smoothing
        )

    def values(self, margins: Array, labels: Array) -> Array:
        short = np.maximum(1.0 - labels * margins, 0.0)
        near = np.minimum(short, self.smoothing)
        return near * near / (2 * self.smoothing) + (short - near)

    def slopes(self, margins: Array, labels: Array) -> Array:
        short = 1.0 - labels * margins
        return -labels * np.clip(short / self.smoothing, 0.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Huber(Loss):
    r"""$r^2/2$ for a residual $|r| \le k$, then a line; $k$ = steepness."""

    curvature: float = 1.0

    def values(self, margins: Array, labels: Array) -> Array:
        size = np.abs(margins - labels)
        near = np.minimum(size, self.steepness)
        return near * near / 2 + self.steepness * (size - near)

    def slopes(self, margins: Array, labels: Array) -> Array:
        return np.clip(margins - labels, -self.steepness, self.steepness)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squared(Loss):
    """$r^2/2$; as steep as the largest residual that the domain allows."""

    curvature: float = 1.0

    def values(self, margins: Array, labels: Array) -> Array:
        return np.square(margins - labels) / 2

    def slopes(self, margins: Array, labels: Array) -> Array:
        return margins - labels
