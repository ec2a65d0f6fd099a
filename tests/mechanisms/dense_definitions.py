"""What the sparse mechanisms are by definition: noise everywhere, then shrink.

In numpy and float64, on all rows: slow, short, and nothing shared with the
package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special


@dataclasses.dataclass(frozen=True)
class Table:
    """The exact sums of one table: rows that data touched, and their values."""

    rows: int
    ids: np.ndarray
    values: np.ndarray

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def dense(self) -> np.ndarray:
        everything = np.zeros([self.rows, self.width])
        np.add.at(everything, self.ids, self.values)
        return everything


Noise = Callable[[Sequence[int]], np.ndarray]


def norms(noisy: np.ndarray, geometry: str) -> np.ndarray:
    """Norms of rows, or sizes of coordinates as [rows, width]."""
    if geometry == "rows":
        return np.linalg.norm(noisy, axis=1, keepdims=True)
    return np.abs(noisy)


def shrunk(
    noisy: np.ndarray, threshold: float, geometry: str, size: float
) -> np.ndarray:
    """Soft threshold of rows or coordinates, on a grid for noise of a size."""
    sizes = norms(noisy, geometry)
    step = 2.0 ** (np.floor(np.log2(size)) - 12)
    kept = np.maximum(1 - threshold / np.maximum(sizes, 1e-300), 0)
    return step * np.round(noisy * kept / step)


def projection_threshold(sizes: np.ndarray, radius: float) -> float:
    """The τ with Σ(a - τ)+ = radius, by sorting; 0 inside the ball."""
    if sizes.sum() <= radius:
        return 0.0
    falling = np.sort(sizes)[::-1]
    candidates = (np.cumsum(falling) - radius) / np.arange(1, sizes.size + 1)
    return float(candidates[np.nonzero(falling > candidates)[0][-1]])


def projected(
    tables: Sequence[Table],
    noise: Noise,
    size: float,
    radius: float,
    geometry: str,
) -> tuple[list[np.ndarray], float]:
    """The tables after noise and one projection, and its threshold."""
    noisy = [t.dense() + noise([t.rows, t.width]) for t in tables]
    sizes = np.concatenate([norms(z, geometry).ravel() for z in noisy])
    threshold = projection_threshold(sizes, radius)
    return [shrunk(z, threshold, geometry, size) for z in noisy], threshold


def row_threshold(probability: float, stddev: float, width: int) -> float:
    """What the norm of a row of noise exceeds with that probability."""
    return stddev * np.sqrt(2 * special.gammainccinv(width / 2, probability))


def sure_threshold(
    sizes: np.ndarray, stddev: float, width: int, candidates: np.ndarray
) -> float:
    """The candidate with the least unbiased estimate of the squared error."""
    risks = []
    for threshold in candidates:
        above = sizes[sizes > threshold]
        risks.append(
            np.sum(
                threshold**2
                + 2 * stddev**2 * (width - (width - 1) * threshold / above)
                - above**2
            )
        )
    return float(candidates[np.argmin(risks)])
