"""How many units look up each row of a table, counted privately and once."""

from __future__ import annotations

import math
import numbers
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_sparse_dp.accounting.single_release import gaussian_noise_multiplier

# Counts are multiples of this: float64 then adds them up without rounding.
_GRAIN = 2.0**-24


def noisy_counts(
    lookups: Mapping[str, Sequence[Any]],
    *,
    table_rows: Mapping[str, int],
    epsilon: float,
    delta: float,
) -> dict[str, np.ndarray]:
    """Clipped counts of all rows with Gaussian noise: (epsilon, delta)-DP.

    Arguments and guarantee: as those of `FrequencySelection.private`.
    """
    _check("epsilon", epsilon, math.inf)
    _check("delta", delta, 1.0)
    stddev = gaussian_noise_multiplier(epsilon, delta)
    counts = unit_counts(lookups, table_rows)
    generator = np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
    return {
        name: vector + stddev * generator.standard_normal(len(vector))
        for name, vector in counts.items()
    }


def unit_counts(
    lookups: Mapping[str, Sequence[Any]], table_rows: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Counts to which every unit adds a vector of L2 norm 1 at most."""
    if not lookups or set(lookups) != set(table_rows):
        raise ValueError(
            f"lookups are of the tables {sorted(lookups)}, table_rows of "
            f"{sorted(table_rows)}; expected the same ones, at least one."
        )
    if len({len(entries) for entries in lookups.values()}) > 1:
        raise ValueError(
            "lookups have different numbers of entries for different tables; "
            "expected one entry for each unit in every table, empty if it "
            "looks up none."
        )
    pairs = {
        name: _distinct(entries, name, table_rows[name])
        for name, entries in lookups.items()
    }
    count = len(next(iter(lookups.values())))
    reached = np.zeros(count, np.int64)
    for units, _ in pairs.values():
        reached += np.bincount(units, minlength=count)
    share = _GRAIN * np.floor(1 / (_GRAIN * np.sqrt(np.maximum(reached, 1))))
    return {
        name: np.bincount(ids, share[units], minlength=table_rows[name])
        for name, (units, ids) in pairs.items()
    }


def _check(name: str, value: Any, limit: float) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 < value < limit:
        raise ValueError(
            f"{name}={value!r} was given; expected a number above 0 and below "
            f"{limit:g}."
        )


def _distinct(
    entries: Sequence[Any], name: str, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of unit and row, each once, of the rows that the table has."""
    if isinstance(entries, np.ndarray) and entries.dtype != object:
        ids = entries.reshape(len(entries), math.prod(entries.shape[1:]))
        lengths = np.full(len(ids), ids.shape[1])
    else:
        parts = [np.atleast_1d(np.asarray(entry)) for entry in entries]
        lengths = np.array([part.size for part in parts], np.int64)
        ids = np.concatenate([p for p in parts if p.size] or [np.zeros(0, int)])
    ids = ids.ravel()
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"lookups of {name!r} are of type {ids.dtype}; expected integers, "
            "the ids of rows."
        )
    units = np.repeat(np.arange(len(entries)), lengths)
    there = (ids >= 0) & (ids < rows)
    pairs = np.unique(units[there] * rows + ids[there].astype(np.int64))
    return pairs // rows, pairs % rows
