"""Releases of the same sums with many keys, and what they look like.

`refuted` compares two samples of releases, statistic by statistic. A claim that
they have one distribution is refuted with probability at most `FALSE_ALARM` per
statistic if it is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import stats

from tests.mechanisms.dense_definitions import Table, norms
from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp.mechanisms.interface import Sum

Release = tuple[list[np.ndarray], Sequence[float]]


def slices(table: Table) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids and values of a table, as arguments of a traced function."""
    return (
        tf.constant(table.ids, tf.int32),
        tf.constant(table.values, tf.float32),
    )


def keys(count: int, seed: int = 1) -> Iterable[tf.Tensor]:
    return (tf.constant([seed, i], tf.int64) for i in range(count))


def dense(total: Sum) -> np.ndarray:
    """A released table, all rows; those that are not zero come in order."""
    if not isinstance(total, tf.IndexedSlices):
        return total.numpy()
    ids, values = total.indices.numpy(), total.values.numpy()
    full = values.any(tuple(range(1, values.ndim)))
    assert (np.diff(ids[full]) > 0).all()
    assert not ids[~full].any()
    result = np.zeros(tf.get_static_value(total.dense_shape), values.dtype)
    result[ids[full]] = values[full]
    return result


def described(
    tables: Sequence[Table], release: Release, geometry: str
) -> np.ndarray:
    """Statistics of one release."""
    found, thresholds = release
    statistics = list(thresholds)
    for table, values in zip(tables, found, strict=True):
        sizes = norms(values, geometry)
        touched = np.zeros(table.rows, bool)
        touched[table.ids] = True
        here, there = sizes[touched], sizes[~touched]
        places, _ = np.nonzero(there)
        kept = there[there > 0]
        statistics += [
            kept.size,
            _coarse(kept.sum()),
            kept.max(initial=0),
            (kept**3).sum(),
            places.mean() if places.size else 0,
            np.square(places).sum(),
            values[~touched][:, 0].sum(),
            np.square(values[~touched][:, -1]).sum(),
            np.count_nonzero(here),
            _coarse(here.sum()),
            here.max(initial=0),
            sizes[table.ids[:4]].sum(),
        ]
    return np.array(statistics, float)


def _coarse(total: float) -> float:
    # The radius if there is nothing else, up to the grid of released values.
    return np.round(total, 1)


def sample(
    tables: Sequence[Table],
    release: Callable[[Any], Release],
    randomness: Iterable[Any],
    geometry: str = "rows",
) -> np.ndarray:
    """Statistics of many releases: one row for each."""
    return np.array(
        [described(tables, release(r), geometry) for r in randomness]
    )


def refuted(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two samples differ in some statistic: Kolmogorov and Smirnov.

    Equal values, as among counts, make it refute less.
    """
    return any(
        stats.ks_2samp(left, right, method="asymp").pvalue < FALSE_ALARM
        for left, right in zip(one.T, other.T, strict=True)
    )
