"""The two lemmas of docs/mechanisms.md hold on all kinds of sums and noise.

Sums of few and of many rows, of equal and of unequal norms, and noise that is
random, that points against the sums, or has one large row. One row with the
right noise attains each bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytestmark = pytest.mark.once

ROWS = 60


def sums_and_noise() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    for width in (1, 3):
        for touched in (1, 7, ROWS):
            for decay in (0.0, 1.0):
                sums = np.zeros([ROWS, width])
                sizes = np.arange(1, touched + 1)[:, None] ** -decay
                sums[:touched] = sizes * rng.standard_normal([touched, width])
                for size in (0.01, 0.1, 1.0, 10.0):
                    noise = size * rng.standard_normal([ROWS, width])
                    against = -size * np.sign(sums)
                    spike = np.zeros_like(sums)
                    spike[0] = -size * np.sign(sums[0])
                    yield from ((sums, x) for x in (noise, against, spike))


def row_norms(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=1)


def shrunk(rows: np.ndarray, threshold: float) -> np.ndarray:
    """Rows made shorter by the threshold."""
    norms = np.maximum(row_norms(rows), 1e-300)
    return np.maximum(1 - threshold / norms, 0)[:, None] * rows


def projected(rows: np.ndarray, radius: float) -> np.ndarray:
    """The nearest rows whose norms add up to the radius at most."""
    low, high = 0.0, row_norms(rows).max()
    if row_norms(rows).sum() <= radius:
        return rows
    for _ in range(100):
        middle = (low + high) / 2
        if row_norms(shrunk(rows, middle)).sum() > radius:
            low = middle
        else:
            high = middle
    return shrunk(rows, high)


def test_threshold_lemma() -> None:
    tightest = 0.0
    row = np.eye(ROWS, 1)
    for sums, noise in (*sums_and_noise(), (2 * row, -row)):
        largest = row_norms(noise).max()
        for threshold in (0.3 * largest, largest, 2 * largest):
            error = row_norms(shrunk(sums + noise, threshold) - sums)
            excess = np.maximum(row_norms(noise) - threshold, 0)
            bound = np.minimum(row_norms(sums), 2 * threshold) + excess
            assert (error <= bound + 1e-9).all()
            whole = np.sqrt(2 * threshold * row_norms(sums).sum())
            whole += np.linalg.norm(excess)
            assert np.linalg.norm(error) <= whole + 1e-9
            tightest = max(tightest, np.linalg.norm(error) / whole)
    assert tightest == pytest.approx(1), "no smaller constant would do"


def test_group_lemma() -> None:
    tightest = 0.0
    row = np.eye(ROWS, 1)
    for sums, noise in (*sums_and_noise(), (row, -2 * row)):
        inside = row_norms(sums).sum()
        for radius in (inside, 1.5 * inside):
            error = np.linalg.norm(projected(sums + noise, radius) - sums)
            bound = np.sqrt(2 * radius * row_norms(noise).max())
            assert error <= min(bound, np.linalg.norm(noise)) + 1e-9
            tightest = max(tightest, error / bound)
    assert tightest == pytest.approx(1), "no smaller constant would do"
