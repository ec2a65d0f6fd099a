"""How many units look up each row of a table, counted privately and once."""

from __future__ import annotations

import math
import numbers
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

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
    _check("epsilon", epsilon, math.inf, "a finite number above 0")
    _check("delta", delta, 1.0, "a number above 0 and below 1")
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
    if not isinstance(lookups, Mapping):
        raise TypeError(
            f"lookups are of type {type(lookups).__name__}; expected a mapping "
            "from names of tables, such as {'items': [[0, 3], [3]]}."
        )
    if not lookups or set(lookups) != set(table_rows):
        raise ValueError(
            f"lookups are of the tables {sorted(lookups)}, table_rows of "
            f"{sorted(table_rows)}; expected the same ones, at least one."
        )
    lookups = {n: _listed(n, entries) for n, entries in lookups.items()}
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


def checked_rows(name: str, rows: Any) -> int:
    """The number of a table's rows."""
    whole = isinstance(rows, numbers.Integral) and not isinstance(rows, bool)
    if not whole or rows < 1:
        raise ValueError(
            f"table_rows[{name!r}] is {rows!r}; expected a whole number of at "
            "least 1: how many rows the table has."
        )
    return int(rows)


def _check(name: str, value: Any, limit: float, expected: str) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 < value < limit:
        raise ValueError(f"{name}={value!r} was given; expected {expected}.")


def _listed(name: str, entries: Any) -> Any:
    """The entries of units, as something that has a length."""
    if isinstance(entries, tf.RaggedTensor):
        if entries.shape.rank > 2:
            entries = entries.merge_dims(1, -1)
        return entries.to_list()
    if isinstance(entries, tf.Tensor):
        entries = entries.numpy()
    # Not sets and mappings: units have places.
    ordered = all(hasattr(entries, n) for n in ("__len__", "__getitem__"))
    unfit = isinstance(entries, (str, Mapping)) or (
        isinstance(entries, np.ndarray) and entries.ndim == 0
    )
    if unfit or not ordered:
        raise TypeError(
            f"lookups of {name!r} are of type {type(entries).__name__}; "
            "expected one entry for each unit: an array [units] or [units, n], "
            "a sequence of sequences of ids, or a tf.RaggedTensor with a row "
            "for each unit."
        )
    return entries


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
