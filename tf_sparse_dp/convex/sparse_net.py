r"""A net of sparse vectors in the unit ball, counted before it is made.

**Covering.** Let x have k entries that are not zero at most and norm 1 at most.
Rounding its entries to multiples of $h = 2τ/\sqrt k$ moves it by $\sqrt k h/2 =
τ$ at most, so to a vector of norm $1 + τ$ at most. Pulling that back into the
ball moves no point of the ball away from it (projections do not expand), so
some point of the net is within τ of x.
"""

from __future__ import annotations

import itertools
import math

import numpy as np


def grid_size(d: int, k: int, tau: float) -> int:
    """How many grid points with k entries that are not zero there are.

    As many as the net has, or a few more: grid points beyond the ball may be
    pulled to the same point of it.
    """
    squares = _square_budget(k, tau)
    total = 1
    if k:
        total += 2 * d * math.isqrt(squares)
    if k < 2:
        return total
    # ways[q]: vectors of j whole numbers above 0 whose squares sum to q.
    ways = np.zeros(squares + 1)
    ways[np.arange(1, math.isqrt(squares) + 1) ** 2] = 1
    for j in range(2, k + 1):
        longer = np.zeros(squares + 1)
        for a in range(1, math.isqrt(squares) + 1):
            longer[a * a :] += ways[: squares + 1 - a * a]
        ways = longer
        total += math.comb(d, j) * 2**j * int(ways.sum())
    return total


def log_least_size(d: int, k: int, tau: float) -> float:
    """Logarithm of what `grid_size` is at least; quick whatever it is.

    Counts points with j entries, each up to the j-th part of what is allowed.
    """
    squares = _square_budget(k, tau)
    return max(
        (
            _log_binomial(d, j) + j * math.log(2 * math.isqrt(squares // j))
            for j in {1, min(2, k), k} - {0}
            if squares >= j
        ),
        default=0.0,
    )


def sparse_net(d: int, k: int, tau: float) -> np.ndarray:
    """The net, [m, d], without repetitions; zero comes first."""
    squares = _square_budget(k, tau)
    spacing = 2 * tau / math.sqrt(k) if k else 1.0
    parts = [np.zeros((1, d), np.int64)]
    for j in range(1, k + 1):
        values = _signed(j, squares)
        for support in itertools.combinations(range(d), j):
            part = np.zeros((len(values), d), np.int64)
            part[:, support] = values
            parts.append(part)
    grid = np.concatenate(parts)
    points = grid * spacing
    norms = np.linalg.norm(points, axis=1)
    outside = norms > 1 - 1e-9  # On the sphere, too: rays begin there.
    # Those on one ray are pulled to the same point: keep one of them.
    steps = grid // np.gcd.reduce(grid, axis=1, keepdims=True).clip(min=1)
    _, first = np.unique(steps[outside], axis=0, return_index=True)
    pulled = points[outside][np.sort(first)]
    pulled = pulled / np.linalg.norm(pulled, axis=1, keepdims=True)
    return np.concatenate([points[~outside], pulled])


def _log_binomial(d: int, j: int) -> float:
    return math.lgamma(d + 1) - math.lgamma(j + 1) - math.lgamma(d - j + 1)


def _square_budget(k: int, tau: float) -> int:
    """Largest squared norm of a grid point, in units of the spacing."""
    if k == 0:
        return 0
    # Rounding must not lose a point, so the bound is a little generous.
    return math.floor(k * ((1 + tau) / (2 * tau)) ** 2 + 1e-9)


def _signed(j: int, squares: int) -> np.ndarray:
    """Vectors of j whole numbers other than 0, squares summing to so much."""
    largest = math.isqrt(max(0, squares - (j - 1)))
    choices = [a for a in range(-largest, largest + 1) if a]
    rows: list[tuple[int, ...]] = [()]
    for done in range(j):
        rest = j - done - 1
        rows = [
            (*row, a)
            for row in rows
            for a in choices
            if sum(x * x for x in row) + a * a + rest <= squares
        ]
    return np.array(rows, np.int64).reshape(-1, j)
