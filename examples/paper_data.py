"""Data on which private algorithms err most: families, and their worst member.

A lower bound speaks of one random data set, an upper bound of every one. The
worst data depend on n: too few coordinates are easily found under the noise,
and too many hardly matter. So vectors are spread evenly over m coordinates for
many m, and the m with the largest error counts, beside the data sets of the
lower bounds (`tf_sparse_dp.theory.hard_instances`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import sparse

from tf_sparse_dp.theory import hard_instances

EPSILON, DELTA = 1.0, 1e-8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """n examples, d coordinates, s of which an example has."""

    n: int
    d: int
    s: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Examples, and those that count for the error.

    Attributes:
      rows: [n, d], norms of 1 at most: what an algorithm sees.
      population: [k, d], all alike: what its answer is for. For empirical
        risk a data set with the same mean loss as `rows`.
      distinct: How many different rows other than 0 the population has; they
        are orthogonal where `spread_data` or pure `block_data` made them.
    """

    rows: sparse.csr_matrix
    population: sparse.csr_matrix
    distinct: int

    @functools.cached_property
    def mean(self) -> tuple[np.ndarray, np.ndarray]:
        """Columns and values of the population's mean that are not 0."""
        columns, places = np.unique(
            self.population.indices, return_inverse=True
        )
        sums = np.bincount(places, self.population.data, len(columns))
        return columns, sums / self.population.shape[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The error on the worst data that were tried.

    Attributes:
      error: Mean over trials.
      standard_error: Of that mean.
      worst: Which data.
    """

    error: float
    standard_error: float
    worst: str

    @classmethod
    def of(cls, errors: np.ndarray, worst: str) -> Outcome:
        """The mean of these; its own error is not known from one alone."""
        spread = math.nan
        if len(errors) > 1:
            spread = float(errors.std(ddof=1)) / math.sqrt(len(errors))
        return cls(
            error=float(errors.mean()), standard_error=spread, worst=worst
        )


def spreads(setting: Setting, factor: int) -> list[int]:
    """Numbers m of coordinates, from s on, times `factor` each."""
    most = min(setting.d, setting.n * setting.s)
    count = int(math.log(most / setting.s, factor) + 1e-9) + 1
    return [setting.s * factor**power for power in range(count)]


def spread_data(
    setting: Setting, m: int, random: np.random.Generator | None = None
) -> Data:
    """m/s orthogonal vectors of s equal entries, equally many of each.

    Or, with `random`, as many as chance has it: a sample of a population.
    """
    kinds = m // setting.s
    population = _rows(np.arange(m).reshape(kinds, setting.s), setting.d)
    chosen = np.arange(setting.n) % kinds
    if random is not None:
        chosen = random.integers(kinds, size=setting.n)
    return Data(rows=population[chosen], population=population, distinct=kinds)


@functools.lru_cache(maxsize=2)
def block_data(setting: Setting, delta: float, seed: int) -> tuple[Data, float]:
    """The data of the lower bounds, and the error that they prove or 0."""
    hard = hard_instances.block_data(
        setting.n, setting.d, setting.s, EPSILON, delta, seed=seed
    )
    data = Data(rows=hard.rows, population=hard.rows, distinct=hard.blocks)
    return data, hard.error if hard.proven else 0.0


def worst(
    candidates: Mapping[str, Callable[[int], float]],
    trials: int,
    pilots: int = 2,
) -> Outcome:
    """Tries all, and the one with the largest error again.

    The first tries only choose; were they counted, luck would be counted as
    error.

    Args:
      candidates: By name, functions from the number of a trial to an error.
      trials: How many to take the mean of.
      pilots: How many to choose by.
    """
    pilot = {
        name: sum(run(trial) for trial in range(pilots))
        for name, run in candidates.items()
    }
    name = max(pilot, key=lambda key: pilot[key])
    errors = np.array([candidates[name](pilots + t) for t in range(trials)])
    return Outcome.of(errors, name)


def _rows(columns: np.ndarray, d: int) -> sparse.csr_matrix:
    count, s = columns.shape
    # Norms are 1 at most, also after rounding.
    values = np.full(count * s, np.nextafter(1 / math.sqrt(s), 0))
    starts = np.arange(0, count * s + 1, s)
    return sparse.csr_matrix(
        (values, columns.ravel(), starts), shape=(count, d)
    )
