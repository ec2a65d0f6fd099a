"""How much of the privacy the selection of rows should get.

    python benchmarks/selection_share.py

The error of one release by `PartitionSelection`, for shares from 0.01 to 0.8.
Units reach rows that follow a power law; what they add at a row agrees in part
(a cosine of 0.7 with the row's own direction). Drawn by the definition, with
noise on all rows, in NumPy. Fixed seeds; the mean over three draws.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

SHARES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8)
EXPECTED_UNTOUCHED = 10
DRAWS = 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """Units, what they look up, and the noise."""

    units: int
    rows: int
    width: int
    lookups: int
    noise_multiplier: float

    def batch(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Sums of units of norm 1, and their counts."""
        frequency = np.arange(1, self.rows + 1) ** -1.1
        ids = rng.choice(
            self.rows,
            size=(self.units, self.lookups),
            p=frequency / frequency.sum(),
        )
        # Each row of a unit once.
        pairs = np.unique(ids + self.rows * np.arange(self.units)[:, None])
        units, ids = np.divmod(pairs, self.rows)
        share = 1 / np.sqrt(np.bincount(units)[units])
        own, noise = (
            _unit(rng.standard_normal((count, self.width)))
            for count in (self.rows, len(ids))
        )
        values = _unit(0.7 * own[ids] + math.sqrt(0.51) * noise)
        sums = np.zeros([self.rows, self.width])
        np.add.at(sums, ids, share[:, None] * values)
        return sums, np.bincount(ids, share, minlength=self.rows)

    def error(self, share: float, seed: int) -> float:
        """Distance of what is released from the sums, over their norm."""
        rng = np.random.default_rng(seed)
        sums, counts = self.batch(rng)
        noise = self.noise_multiplier
        count_stddev = noise / math.sqrt(share)
        stddev = noise / math.sqrt(1 - share)
        quantile = -special.ndtri(EXPECTED_UNTOUCHED / self.rows)
        noisy = counts + count_stddev * rng.standard_normal(self.rows)
        selected = noisy > count_stddev * quantile
        released = sums + stddev * rng.standard_normal(sums.shape)
        released[~selected] = 0
        return float(np.linalg.norm(released - sums) / np.linalg.norm(sums))


SETTINGS = (
    Setting(1024, 200_000, 16, 1, 1.0),
    Setting(4096, 200_000, 16, 1, 1.0),
    Setting(4096, 10_000, 9, 1, 3.0),
    Setting(4096, 200_000, 32, 8, 1.0),
)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    """Prints one line for each setting."""
    print("units rows width lookups noise |", *map(str, SHARES))
    for setting in SETTINGS:
        errors = [
            np.mean([setting.error(share, seed) for seed in range(DRAWS)])
            for share in SHARES
        ]
        print(*dataclasses.astuple(setting), "|", *(f"{e:.3f}" for e in errors))


if __name__ == "__main__":
    main()
