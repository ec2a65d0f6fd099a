"""Attack: look at the last bits and at the far tails of what is released.

A row that the batch touched is a sum plus noise; one that it did not touch is
noise alone, drawn in another way. Neither the bits in which numbers end nor
how large they can become may tell which is which. `tests/mechanisms` has this
for each mechanism's grid; here are touched and untouched rows of one release,
and tables whose noise comes later.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.layers import owed_noise
from tests.mechanisms.contract import KEY, MECHANISMS, Batch, Case
from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp import random_keys, random_tails
from tf_sparse_dp.mechanisms import grid

pytestmark = pytest.mark.once

ROWS, WIDTH = 4000, 8
# Where TensorFlow's own normal ends, in standard deviations.
END = 5.67


def _touched() -> Batch:
    """Every other row, by sums whose last bits are all in use."""
    batch = Batch.random(500, (ROWS, WIDTH), lookups=4, size=1.0)
    batch.ids[:] = 2 * np.arange(2000).reshape(500, 4)
    batch.values[:] = np.float32(1 / 3) * (1 + batch.values / 100)
    return batch


def _released(case: Case) -> np.ndarray:
    batch = _touched()
    facts = batch.facts(expected_batch_size=500.0)
    sums = case.mechanism.clipped(batch.terms(*batch.inputs), KEY, facts)
    found = case.mechanism.release(sums, KEY, facts)[0]
    return np.array(tf.convert_to_tensor(found), np.float64)


def _last_bits(values: np.ndarray, unit: float) -> np.ndarray:
    """How many of the last 24 binary digits are zeros, up to a step of 2."""
    points = np.abs(values[values != 0]) / unit
    digits = np.round(points * 2.0**24).astype(np.int64)
    return np.log2((digits & -digits).astype(float)).clip(max=26)


def _told_apart(values: np.ndarray, unit: float) -> bool:
    """Whether last bits of touched rows are distributed as of the others."""
    touched, untouched = (
        _last_bits(values[start::2], unit) for start in (0, 1)
    )
    if min(touched.size, untouched.size) < 100:
        return False
    bins = np.arange(-0.5, 27)
    counts = [np.histogram(x, bins)[0] for x in (touched, untouched)]
    table = np.array(counts)[:, np.sum(counts, 0) >= 20]
    if table.shape[1] < 2:
        return False
    return bool(stats.chi2_contingency(table).pvalue < FALSE_ALARM)


DENSE = [case for case in MECHANISMS if not case.recovers]


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.name)
def test_last_bits_do_not_tell_touched_rows(case: Case) -> None:
    scale = case.noise(_touched().facts()).kwds["scale"]
    unit = 2.0 ** (math.floor(math.log2(scale)) - 12)
    assert not _told_apart(_released(case), unit)


def test_without_the_grid_they_would(monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian = next(case for case in MECHANISMS if case.name == "gaussian")
    monkeypatch.setattr(grid, "rounded", lambda values, stddev: values)
    unit = 2.0 ** (math.floor(math.log2(0.5)) - 12)
    assert _told_apart(_released(gaussian), unit)


def _lazy_rows(update: np.ndarray) -> tuple[np.ndarray, float]:
    layer = owed_noise.LazyEmbedding(
        ROWS, WIDTH, embeddings_initializer="zeros"
    )
    layer.build((None,))
    table = owed_noise.table_of(layer)
    ids = tf.range(0, ROWS, 2)
    table.add(tf.IndexedSlices(tf.constant(update), ids), 0.75)
    return table.numpy().astype(np.float64), 2.0**-1 * 2.0**-12


def test_last_bits_of_lazy_tables_do_not_tell_touched_rows() -> None:
    update = np.random.default_rng(0).normal(size=[ROWS // 2, WIDTH]) / 3
    values, unit = _lazy_rows(update.astype("float32"))
    points = values / unit
    np.testing.assert_array_equal(points, np.round(points))
    assert not _told_apart(values, unit)
    noise = np.random.default_rng(1).normal(size=values.shape).astype("f4")
    noise[::2] += update.astype("f4")
    noise[::2] += np.float32(64)  # Bits that a larger sum swallows.
    assert _told_apart(noise.astype(float), unit)


def _largest_bits(shape: Any, key: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """What a generator may give, one time in 2^64: a coin, and zeros."""
    places = tf.reshape(tf.range(shape[0]), [-1] + [1] * (len(shape) - 1))
    return tf.cast(tf.broadcast_to(places == 0, shape), dtype)


@pytest.mark.parametrize("touched", [True, False])
def test_noise_reaches_as_far_for_all_rows(
    touched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of lazy tables, which draw one number for many steps."""
    monkeypatch.setattr(random_tails, "random_bits", _largest_bits)
    layer = owed_noise.LazyEmbedding(
        ROWS, WIDTH, embeddings_initializer="zeros"
    )
    layer.build((None,))
    table = owed_noise.table_of(layer)
    size = 1.0 if touched else 0.0
    table.add(tf.IndexedSlices(size * tf.ones([1, WIDTH]), [3]), 1.0)
    assert np.abs(table.numpy()[3] - size).max() > END


def test_rare_noise_is_as_likely_for_untouched_rows() -> None:
    """Norms beyond a threshold above 5.67 have their law, and no end there.

    False alarm: 1e-6. Of 20,000 norms beyond 5.6, all but 1e-4 of a share
    would have to lie below 5.67 to be missed.
    """
    excess = random_tails.chi_excess([20_000], KEY, width=1, low=END)
    sizes = END + excess.numpy().astype(float)
    tail = stats.norm.sf(sizes) / stats.norm.sf(END)
    assert stats.kstest(tail, "uniform").pvalue > FALSE_ALARM
    cut = tail[sizes < END + 0.1]
    assert stats.kstest(cut, "uniform").pvalue < FALSE_ALARM
    assert random_keys.random_bits([1], KEY, tf.int64).shape == [1]
