"""Noise that is a function of row, column and variance, for exact comparisons.

What is drawn for a row from one variance to the next is the difference of the
function at both: however often rows are read, the parts add up to the same, and
whatever is drawn twice, forgotten or given to another row shows. Where nothing
is rounded it shows to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.layers import pending_noise
from tf_sparse_dp.layers.lazy_variable import LazyVariable
from tf_sparse_dp.layers.pending_noise import PendingNoise

_OCTAVES = np.arange(-3.0, 6.0)


def rough(unit: float) -> Any:
    """Sums of waves: over a variance of v, it moves by about √v.

    As rough as Brownian motion, whose increments noise is; with phases of its
    own for every entry.

    Args:
      unit: A variance, about that of a step.
    """

    def path(ids: Any, width: int, variance: Any) -> tf.Tensor:
        ids = tf.cast(ids, tf.float64)[:, tf.newaxis, tf.newaxis]
        column = tf.range(width, dtype=tf.float64)[:, tf.newaxis]
        time = tf.cast(variance, tf.float64)[..., tf.newaxis, tf.newaxis] / unit
        phase = 1e3 * tf.sin(12.9 * ids + 78.2 * column + 37.7 * _OCTAVES)
        waves = tf.sin(2.0**_OCTAVES * time + phase) * 2.0 ** (-_OCTAVES / 2)
        return unit**0.5 * tf.reduce_sum(waves, -1)

    return path


def whole(ids: Any, width: int, variance: Any) -> tf.Tensor:
    """Whole numbers that look drawn, for variances that are quarters."""
    ids = tf.cast(ids, tf.int64)[:, tf.newaxis]
    column = tf.range(width, dtype=tf.int64)
    time = tf.cast(tf.round(4 * variance), tf.int64)[..., tf.newaxis]
    mixed = (ids * 7919 + column * 104729 + 31) * (time * 1299709 + 17)
    return tf.cast(mixed % 2003, tf.float64)


def freeze(monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    """Lets all tables' noise follow a path in place of being drawn."""

    def noisy(
        self: PendingNoise,
        ids: tf.Tensor,
        places: tf.Tensor | None,
        most: int | None,
        step: tf.Tensor,
    ) -> tf.Tensor:
        rows, start, stop = self._lacking(ids, step)
        noise = path(ids, self._width, stop) - path(ids, self._width, start)
        grid = tf.identity(self._grid)
        return pending_noise._with_noise(
            rows, tf.cast(noise, tf.float32), tf.ones([]), grid
        )

    monkeypatch.setattr(PendingNoise, "_noisy", noisy)


def without_noise(table: LazyVariable) -> np.ndarray:
    """What the table holds, whatever noise it lacks."""
    value = tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=tf.float32)
    return np.array(value)
