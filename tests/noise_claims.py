"""Claims about noise, and whether a sample refutes them.

A claim that is true is refuted with probability at most `FALSE_ALARM` per
call. Seeds are fixed, so a test that passed once passes until the generator
changes; then about 300 calls fail by bad luck with probability below 3e-4.
Where noise has no seed, every run is another one: there it is `UNSEEDED`.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6
UNSEEDED = 1e-9

# A sample of this size refutes a standard deviation that is wrong by a tenth.
# The sum of n squares has relative standard deviation √(2/n) = 1.6 %, and the
# interval below is 4.9 of those wide on either side: ±7.7 %. Variances of
# 0.81 and 1.21 lie 19 % and 21 % away, and are missed with probability below
# 1e-12; below 1e-9 where it is wider because of `UNSEEDED`.
ENOUGH = 8192


def stddev_refuted(
    sample: np.ndarray, stddev: float, false_alarm: float = FALSE_ALARM
) -> bool:
    """Independent, normal, mean 0 and `stddev`: then Σx²/stddev² is χ²(n)."""
    squares = np.square(sample.astype(np.float64) / stddev).sum()
    low, high = stats.chi2.ppf(
        [false_alarm / 2, 1 - false_alarm / 2], sample.size
    )
    return not low <= squares <= high


def assert_stddev(
    sample: np.ndarray, stddev: float, false_alarm: float = FALSE_ALARM
) -> None:
    """Accepts the right standard deviation, and no other near it."""
    assert sample.size >= ENOUGH
    assert not stddev_refuted(sample, stddev, false_alarm)
    assert stddev_refuted(sample, 0.9 * stddev, false_alarm)
    assert stddev_refuted(sample, 1.1 * stddev, false_alarm)


def independence_refuted(
    left: np.ndarray,
    right: np.ndarray,
    stddev: float,
    false_alarm: float = FALSE_ALARM,
) -> bool:
    """Given `left`, left·right / (|left| stddev) is exactly standard normal.

    Provided that `right` is independent of it, and normal with mean 0.
    """
    left = left.astype(np.float64).ravel()
    right = right.astype(np.float64).ravel()
    score = left @ right / (np.linalg.norm(left) * stddev)
    return abs(score) > -stats.norm.ppf(false_alarm / 2)


def distribution_refuted(sample: np.ndarray) -> bool:
    """Independent standard normal: by Kolmogorov and Smirnov's distance."""
    return stats.kstest(sample.ravel(), "norm").pvalue < FALSE_ALARM


def tail_refuted(sample: np.ndarray, beyond: float) -> bool:
    """Standard normal: then the number beyond ±`beyond` is binomial."""
    probability = 2 * stats.norm.sf(beyond)
    count = int((np.abs(sample) > beyond).sum())
    test = stats.binomtest(count, sample.size, probability)
    return test.pvalue < FALSE_ALARM
