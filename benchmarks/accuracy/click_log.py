"""A click log that is made up: many features, most of whose ids are rare."""

from __future__ import annotations

import numpy as np

from benchmarks.accuracy.data import Data, Examples

NAME = "click log"
FEATURES = 26
EXAMPLES = 1_000_000
HELD_OUT = 50_000  # For tuning, and as many for testing.
POWER = 1.1
SMALLEST = 10  # Ids of the feature that has fewest.


def feature_sizes(rows: int) -> np.ndarray:
    """How many ids each feature has, evenly spaced in their logarithm.

    Args:
      rows: How many there are in all, about.
    """
    low, high = 1.0, float(rows)
    for _ in range(60):  # The sum grows with the ratio of neighbours.
        middle = (low * high) ** 0.5
        sizes = SMALLEST * middle ** np.arange(FEATURES)
        low, high = (middle, high) if sizes.sum() < rows else (low, middle)
    return np.floor(SMALLEST * low ** np.arange(FEATURES)).astype(np.int64)


def power_law(rng: np.random.Generator, number: int, size: int) -> np.ndarray:
    """Ids of probability about (1 + id)^-POWER, by inversion."""
    exponent = 1 - POWER
    top = (size + 1.0) ** exponent
    drawn = (1 + rng.random(number) * (top - 1)) ** (1 / exponent)
    return np.minimum(drawn.astype(np.int64), size) - 1


def made_up(rows: int, width: int = 4, seed: int = 1) -> Data:
    """Clicks of a logistic model, in which every id has an effect of its own.

    Features share one table, in which the ids of each have a range. Effects
    are normal, with a standard deviation of 1.5 over the root of the number of
    features: the log-odds of examples have one of 1.5 then. A quarter of all
    examples, about, are clicks.

    Args:
      rows: How many rows the table has, about.
      width: Of its rows.
      seed: The same one makes the same data.
    """
    rng = np.random.default_rng(seed)
    sizes = feature_sizes(rows)
    starts = np.cumsum(sizes) - sizes
    number = EXAMPLES + 2 * HELD_OUT
    ids = np.stack(
        [
            start + power_law(rng, number, int(size))
            for start, size in zip(starts, sizes, strict=True)
        ],
        1,
    ).astype(np.int32)
    effect = rng.normal(0, 1.5 / FEATURES**0.5, int(sizes.sum()))
    # Which few ids are frequent would otherwise decide how many clicks.
    logit = effect[ids].sum(1)
    logit += -1.5 - np.median(logit)
    label = rng.random(number) < 1 / (1 + np.exp(-logit))
    log = Examples({"ids": ids}, label.astype(np.float32)[:, None])
    return Data(
        NAME,
        train=log[2 * HELD_OUT :],
        valid=log[HELD_OUT : 2 * HELD_OUT],
        test=log[:HELD_OUT],
        tables={"ids": int(sizes.sum())},
        width=width,
    )
