"""Noise for one release without TensorFlow, on a public grid of whole numbers.

Numbers come from the operating system's generator, which is made for secrets.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Literal

import numpy as np

from tf_sparse_dp.convex.losses import Array

_BLOCK = 1 << 20
# Noise is drawn to this part of its scale first: see `whole`.
_CELL = 0.25


def source(seed: int | None) -> Callable[[int], bytes]:
    """What gives random bytes; for tests only, always the same from a seed."""
    return os.urandom if seed is None else np.random.default_rng(seed).bytes


def normal(size: int, draw: Callable[[int], bytes]) -> Array:
    r"""Standard normal numbers, with tails out to 13.3.

    Box and Muller's transform with a radius $\sqrt{-2 \ln u}$ from 128 random
    bits, whose tail ends where a normal number lies with probability below
    $10^{-38}$.
    """
    pairs = (size + 1) // 2
    result = np.empty(2 * pairs)
    for start in range(0, pairs, _BLOCK):
        stop = min(start + _BLOCK, pairs)
        radius = np.sqrt(2 * _exponential(stop - start, draw))
        turn = 2 * math.pi * _uniform(stop - start, draw)
        result[2 * start : 2 * stop : 2] = radius * np.cos(turn)
        result[2 * start + 1 : 2 * stop : 2] = radius * np.sin(turn)
    return result[:size]


def laplace(size: int, draw: Callable[[int], bytes]) -> Array:
    """Laplace numbers of scale 1, with tails out to 89.

    Beyond lies a Laplace number with probability 2⁻¹²⁹.
    """
    result = np.empty(size)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        coins = np.frombuffer(draw(stop - start), np.uint8) & 1
        distances = _exponential(stop - start, draw)
        result[start:stop] = np.where(coins == 1, distances, -distances)
    return result


def whole(
    law: Literal["normal", "laplace"],
    size: int,
    step: float,
    draw: Callable[[int], bytes],
) -> Array:
    r"""Noise of scale 1, rounded down to whole numbers of a fine `step`.

    Floating-point noise has a grain of its own, which on fine grids shows: of
    neighbouring multiples of the step, one is hit more often than another. So
    the size of the noise is drawn in cells that are a quarter wide at most,
    and the place within a cell from random bits: all multiples of the step
    alike, accepted with probability $e^{g(c) - g(x)}$, where $e^{-g}$ is the
    density and c the cell's begin. Probabilities are those of real noise,
    rounded down, up to a relative $2^{-47}(1 + |z|)^2$ at z, whatever the step.

    Args:
      law: Standard normal, or Laplace of scale 1.
      size: How many.
      step: Of the grid.
      draw: What gives random bytes.
    """
    sample = normal if law == "normal" else laplace
    bits = max(0, math.floor(math.log2(_CELL / step)))
    result = np.empty(size)
    for start in range(0, size, _BLOCK):
        values = sample(min(_BLOCK, size - start), draw)
        cells = np.floor(np.abs(values) / (step * 2.0**bits))
        sizes = cells * 2.0**bits
        if bits:
            sizes += _places(law, cells, bits, step, draw)
        part = np.where(values < 0, -1.0 - sizes, sizes)
        result[start : start + len(part)] = part
    return result


def _places(
    law: str,
    cells: Array,
    bits: int,
    step: float,
    draw: Callable[[int], bytes],
) -> Array:
    """Whole numbers below 2^bits: how many steps beyond the cell's begin."""
    width = step * 2.0**bits
    result = np.empty(len(cells))
    left = np.arange(len(cells))
    while len(left):
        words = np.frombuffer(draw(8 * len(left)), np.uint64)
        beyond = (words.astype(np.float64) + 0.5) * (2.0**-64 * width)
        excess = beyond
        if law == "normal":
            excess = beyond * (width * cells[left] + beyond / 2)
        kept = _uniform(len(left), draw) < np.exp(-excess)
        result[left[kept]] = words[kept] >> np.uint64(64 - bits)
        left = left[~kept]
    return result


def steps(values: Array, step: float) -> Array:
    """How many steps of a grid each value is, rounded to whole numbers."""
    return np.rint(values / step)


def grid_step(wanted: float, largest: float) -> float:
    r"""A power of two of at most `wanted`, on which sums are exact in float64.

    Whole numbers up to $2^{53}$ are; `largest` is a value that is not exceeded.
    If `wanted` is too fine for that, the least step that is not.
    """
    fine = math.floor(math.log2(wanted))
    coarse = math.ceil(math.log2(largest)) - 51
    return 2.0 ** max(fine, coarse)


def _words(size: int, draw: Callable[[int], bytes]) -> Array:
    return np.frombuffer(draw(8 * size), np.uint64).astype(np.float64)


def _uniform(size: int, draw: Callable[[int], bytes]) -> Array:
    return (_words(size, draw) + 0.5) * 2.0**-64


def _exponential(size: int, draw: Callable[[int], bytes]) -> Array:
    """-ln u with u from 128 bits; the second 64 matter where u is small."""
    uniform = (_words(size, draw) + _uniform(size, draw)) * 2.0**-64
    return -np.log(np.minimum(uniform, 1.0))
