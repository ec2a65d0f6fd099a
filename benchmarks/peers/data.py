"""Models and batches that are the same for all frameworks: sizes and numpy.

Nothing here needs a framework: every environment reads it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

POOL = 64  # Different batches.
POWER = 1.2
NUMBERS = 13
RATE, CLIP_NORM, NOISE_MULTIPLIER = 0.01, 1.0, 1.0
THREADS = 2
# One seed for data and initial values.
SEED = 0


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model and the number of rows of each of its tables."""

    model: str
    rows: int

    @property
    def tables(self) -> int:
        return {"dlrm": 26, "two-tower": 2, "transformer": 1}[self.model]

    @property
    def width(self) -> int:
        return {"dlrm": 16, "two-tower": 32, "transformer": 64}[self.model]

    @property
    def batch_size(self) -> int:
        return 128 if self.model == "transformer" else 1024

    @property
    def history(self) -> int:
        """Lookups of an example in each table; 0 is one without an axis."""
        return 50 if self.model == "transformer" else 0

    @property
    def numbers(self) -> int:
        return NUMBERS if self.model == "dlrm" else 0


# Units of dense layers, for all frameworks.
DLRM_HIDDEN = (512, 256, 128)
TOWER_HIDDEN, TOWER_OUTPUT = 64, 32
HEADS, FEED_FORWARD = 4, 256

SETTINGS = (
    Setting("dlrm", 10**4),
    Setting("dlrm", 10**5),
    Setting("dlrm", 10**6),
    Setting("two-tower", 10**6),
    Setting("transformer", 10**5),
)


def batches(setting: Setting) -> tuple[list[np.ndarray], np.ndarray]:
    """Features, the ids of each table first, and labels; batches stacked.

    Few rows are looked up often, and they stand anywhere in the table.
    """
    rng = np.random.default_rng(SEED)
    shape = (POOL, setting.batch_size)
    lookups = (*shape, setting.history) if setting.history else shape
    features = []
    for _ in range(setting.tables):
        often = (rng.zipf(POWER, lookups) - 1) % setting.rows
        features.append((often * 982_451_653 % setting.rows).astype(np.int32))
    if setting.numbers:
        features.append(
            rng.standard_normal((*shape, setting.numbers), np.float32)
        )
    labels = rng.integers(2, size=(*shape, 1)).astype(np.float32)
    return features, labels


def not_looked_up(setting: Setting, steps: int, most: int = 5000) -> np.ndarray:
    """Rows of the first table that the first batches leave alone."""
    features, _ = batches(setting)
    rows = np.setdiff1d(np.arange(setting.rows), features[0][:steps])
    return rows[:: max(1, len(rows) // most)][:most].astype(np.int32)
