"""What the weights have to be that a program gives; a failure raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Without noise, weights differ from those of the ordinary step by rounding; the
# changes are of the order of 0.01.
_ROUNDING = 1e-6
_LEAST_MOVE = 1e-3
# Of the standard deviation of noise, two-sided. It is estimated from at least
# 1,536 numbers, with a relative error of 1.8 %: 10 % are 5.5 standard errors,
# and too much or too little by a quarter is found as surely.
_NOISE_RATIO = 0.10


def check_copies(copies: Sequence[Sequence[np.ndarray]]) -> None:
    """Refuses replicas that do not have the same bits.

    Args:
      copies: For each variable, what each replica holds.

    Raises:
      ValueError: If replicas differ.
    """
    for place, replicas in enumerate(copies):
        if len({copy.tobytes() for copy in replicas}) > 1:
            raise ValueError(
                f"variable {place}, of shape {replicas[0].shape}, is not the "
                "same on all replicas"
            )


def check_weights(
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    before: Sequence[np.ndarray],
) -> None:
    """Refuses weights that are not those of the ordinary step.

    Raises:
      ValueError: If they differ, or nothing moved.
    """
    moved = 0.0
    for place, (weight, wanted, start) in enumerate(
        zip(found, expected, before, strict=True)
    ):
        moved = max(moved, float(np.abs(wanted - start).max()))
        gap = float(np.abs(weight - wanted).max())
        if not gap <= _ROUNDING * max(1.0, float(np.abs(wanted).max())):
            raise ValueError(
                f"trainable variable {place}, of shape {weight.shape}, differs "
                f"from the ordinary step's by {gap}"
            )
    if not moved > _LEAST_MOVE:
        raise ValueError(f"the step moves no weight: {moved}")


def check_noise(noise: Sequence[np.ndarray], stddev: float) -> float:
    """The size of noise, over what it should be.

    Args:
      noise: Weights with noise less those without.
      stddev: Its standard deviation as it should be.

    Raises:
      ValueError: If it is too large or too small.
    """
    every: Any = np.concatenate([part.ravel() for part in noise])
    ratio = float(every.std() / stddev)
    if not abs(ratio - 1) < _NOISE_RATIO:
        raise ValueError(
            f"noise of {every.size} weights is {ratio:.3f} of what it should be"
        )
    return ratio
