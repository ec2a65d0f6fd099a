"""Ways to take the noise out of a noisy sum of gradients.

Each looks at rows of S, whose noise in every coordinate has variance V, and
says how to shrink any row of S. They know S and V alone, so what they give is
as private as S; which rows had gradients is not theirs to know.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

WIDTH = 9

Array = np.ndarray
Shrink = Callable[[Array, float], Array]
"""Rows of S and their variance, to the same rows without their noise."""
Fit = Callable[[Array, float], Shrink]
"""All rows of S (or a sample) and their variance, to what shrinks any row."""


def dense(total: Array, variance: float) -> Shrink:
    """S itself: DP-SGD."""
    return lambda rows, variance: rows


def signal(square: Array, variance: float) -> Array:
    """The share of a mean square that is not noise."""
    return np.maximum(0, 1 - variance / np.maximum(square, 1e-30))


def column(total: Array, variance: float) -> Shrink:
    """Each column by 1 - V / mean S^2, or zero."""
    factor = signal((total**2).mean(0), variance)
    return lambda rows, variance: rows * factor


def cautious_column(total: Array, variance: float) -> Shrink:
    """As `column`, with V larger by a standard error of the mean square.

    So that a column without signal, looked at in few rows, is let through less.
    """
    return column(total, variance * (1 + np.sqrt(2 / len(total))))


def column_less(total: Array, variance: float) -> Shrink:
    """Each column by 1 - V / (2 mean S^2): half the noise is let stand."""
    return column(total, variance / 2)


def column_more(total: Array, variance: float) -> Shrink:
    """Each column by 1 - 2 V / mean S^2, or zero."""
    return column(total, variance * 2)


def column_root(total: Array, variance: float) -> Shrink:
    """Each column to the size of its signal: sqrt(1 - V / mean S^2)."""
    factor = np.sqrt(signal((total**2).mean(0), variance))
    return lambda rows, variance: rows * factor


def centred_column(total: Array, variance: float) -> Shrink:
    """Each column towards its mean by 1 - V / var S."""
    mean = total.mean(0)
    factor = signal(total.var(0), variance)
    return lambda rows, variance: mean + (rows - mean) * factor


def axes(total: Array, variance: float) -> tuple[Array, Array]:
    """Principal axes of S, and the variance of the signal along each."""
    moment = total.T @ total / len(total)
    values, vectors = np.linalg.eigh(moment.astype(np.float64))
    values = np.maximum(values - variance, 0)
    return values.astype(np.float32), vectors.astype(np.float32)


def wiener(total: Array, variance: float) -> Shrink:
    """All columns together: by 1 - V / eigenvalue along the axes of S."""
    values, vectors = axes(total, variance)
    factor = values / (values + variance)
    matrix = (vectors * factor) @ vectors.T
    return lambda rows, variance: rows @ matrix


def row(total: Array, variance: float) -> Shrink:
    """Each row by 1 - (k - 2) V / |S_r|^2, or zero (James and Stein, 1961)."""
    return lambda rows, variance: (
        rows * signal((rows**2).sum(-1, keepdims=True), variance * (WIDTH - 2))
    )


def row_and_column(total: Array, variance: float) -> Shrink:
    """Both factors."""
    by_row, by_column = row(total, variance), column(total, variance)
    return lambda rows, variance: by_row(by_column(rows, variance), variance)


def shorten(rows: Array, cut: float) -> Array:
    """Every row's norm less the cut."""
    norm = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows * np.maximum(0, 1 - cut / np.maximum(norm, 1e-30))


def soft_row(total: Array, variance: float) -> Shrink:
    """Each row's norm less the largest norm of as many rows of noise."""
    level = float(np.sqrt(stats.chi2.isf(1 / len(total), WIDTH)))
    return lambda rows, variance: shorten(rows, level * np.sqrt(variance))


def soft_row_sure(total: Array, variance: float) -> Shrink:
    """Each row's norm less the cut of least estimated risk (Stein, 1981)."""
    norm = np.linalg.norm(total, axis=1) / np.sqrt(variance)
    grid = np.linspace(0, 8, 41)
    risk = [
        np.where(
            norm > cut,
            cut**2 + WIDTH - 2 * (WIDTH - 1) * cut / np.maximum(norm, 1e-30),
            norm**2 - WIDTH,
        ).mean()
        for cut in grid
    ]
    level = grid[int(np.argmin(risk))]
    return lambda rows, variance: shorten(rows, level * np.sqrt(variance))


def soften(rows: Array, cut: Array | float) -> Array:
    """Every coordinate moved towards zero by the cut."""
    return np.sign(rows) * np.maximum(np.abs(rows) - cut, 0)


def soft(total: Array, variance: float) -> Shrink:
    """Each coordinate less sqrt(2 V log rows) (Donoho and Johnstone, 1994)."""
    level = float(np.sqrt(2 * np.log(len(total))))
    return lambda rows, variance: soften(rows, level * np.sqrt(variance))


def soft_sure(total: Array, variance: float) -> Shrink:
    """Each coordinate less its column's cut of least estimated risk."""
    size = np.abs(total) / np.sqrt(variance)
    grid = np.linspace(0, 5, 26, dtype=np.float32)
    risk = np.stack(
        [
            (np.minimum(size, cut) ** 2).mean(0) - 2 * (size <= cut).mean(0)
            for cut in grid
        ]
    )
    best = grid[risk.argmin(0)]
    return lambda rows, variance: soften(rows, best * np.sqrt(variance))


def weights_by_em(likelihood: Array, steps: int = 30) -> Array:
    """The shares of components that make rows likely."""
    share = np.full(likelihood.shape[1], 1 / likelihood.shape[1], np.float32)
    for _ in range(steps):
        joint = likelihood * share
        share = (joint / joint.sum(1, keepdims=True)).mean(0)
    return share


def relative(log_density: Array) -> Array:
    """Densities up to a factor for each row, which no posterior sees."""
    return np.exp(log_density - log_density.max(-1, keepdims=True))


SCALES = np.array([0, 0.3, 1, 3, 10, 30], np.float32)


def mixture(
    total: Array,
    variance: float,
    prior: Array,
    vectors: Array,
    scales: Array = SCALES,
) -> Shrink:
    """Posterior mean when a row's signal has its own scale.

    Along the axis j of `vectors` the signal of a row is Gaussian with variance
    scale * prior[j]; how frequent each scale is follows from S by EM.
    """

    def densities(rows: Array, variance: float) -> tuple[Array, Array, Array]:
        along = rows @ vectors
        spread = scales[:, None] * prior + variance  # scales x axes
        log_density = -0.5 * (
            (along**2) @ (1 / spread).T + np.log(spread).sum(1)
        )
        return along, relative(log_density), spread

    share = weights_by_em(densities(total, variance)[1])

    def shrink(rows: Array, variance: float) -> Array:
        flat = rows.reshape(-1, rows.shape[-1])
        along, likelihood, spread = densities(flat, variance)
        posterior = likelihood * share
        posterior /= posterior.sum(1, keepdims=True)
        factor = posterior @ (1 - variance / spread)
        return ((along * factor) @ vectors.T).reshape(rows.shape)

    return shrink


def row_mixture(total: Array, variance: float) -> Shrink:
    """Columns as they are, a scale for every row."""
    prior = np.maximum((total**2).mean(0) - variance, 0)
    return mixture(total, variance, prior, np.eye(WIDTH, dtype=np.float32))


def wiener_mixture(total: Array, variance: float) -> Shrink:
    """Principal axes, a scale for every row."""
    return mixture(total, variance, *axes(total, variance))


def spike_and_slab(total: Array, variance: float) -> Shrink:
    """Principal axes; a row has signal, or none."""
    values, vectors = axes(total, variance)
    scales = np.array([0, 3], np.float32)
    return mixture(total, variance, values, vectors, scales)


def column_mixture(total: Array, variance: float) -> Shrink:
    """Every coordinate has a scale of its own (Stephens, 2017)."""
    prior = np.maximum((total**2).mean(0) - variance, 1e-9 * variance)
    shares = []
    for j in range(WIDTH):
        spread = SCALES * prior[j] + variance
        density = -0.5 * (total[:, j : j + 1] ** 2 / spread + np.log(spread))
        shares.append(weights_by_em(relative(density)))
    share = np.stack(shares)

    def shrink(rows: Array, variance: float) -> Array:
        spread = prior[:, None] * SCALES + variance  # columns x scales
        density = -0.5 * (rows[..., None] ** 2 / spread + np.log(spread))
        posterior = relative(density) * share
        posterior /= posterior.sum(-1, keepdims=True)
        return rows * (posterior * (1 - variance / spread)).sum(-1)

    return shrink
