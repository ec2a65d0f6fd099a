"""With real noise, 200 small runs cannot tell lazy from dense.

A table of 200 blocks of rows holds 200 runs: every example looks up rows of
its own block alone and has its own clipping, so that what happens in one block
is independent of the others, and has the same law.

Two-sample tests are Kolmogorov and Smirnov's, on numbers that sum up a run.
For independent runs of one law their p-values are right whatever that law is
(ties, which the grid makes possible, only make them larger). A comparison
refutes if one of m p-values is below 1e-7/m: if both laws are the same, with
probability at most 1e-7 by the union bound.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tf_sparse_dp as tsdp
from tests.layers.noise_paths import without_noise
from tf_sparse_dp.layers.lazy_variable import LazyVariable, lazy_variable
from tf_sparse_dp.layers.pending_noise import PendingNoise

pytestmark = pytest.mark.once

keras = tf.keras

RUNS, STEPS, WIDTH = 200, 20, 24
ROWS = 6  # Of a block. The last one is never looked up.
FALSE_ALARM = 1e-7
CLIP_NORM = 8.0
RATE, STDDEV = 0.8, 0.1
# What was drawn before, in units of a step: too much for float32.
BEFORE = 1e10 * (RATE * STDDEV) ** 2


def lookups(step: int) -> np.ndarray:
    """The same in all blocks: some rows twice at every step, some rarely."""
    rows = [0, 0, 1, 2 if step % 2 else 1]
    rows.append(3 if step % 7 == 3 else 0)
    rows.append(4 if step in (2, 9) else 1)
    return np.array(rows)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    ids = ROWS * np.arange(RUNS)[:, np.newaxis] + lookups(step)
    return ids, np.ones([RUNS, WIDTH], "float32")


def runs(lazy: bool, raw: bool = False) -> np.ndarray:
    """Final tables [runs, rows, width]."""
    if lazy:
        table = tsdp.layers.LazyEmbedding(ROWS * RUNS, WIDTH, "zeros")
    else:
        table = keras.layers.Embedding(ROWS * RUNS, WIDTH, "zeros")
    ids = keras.Input([lookups(0).size], dtype="int64")
    pooled = keras.layers.GlobalAveragePooling1D()(table(ids))
    model = keras.Model(ids, pooled)
    variable = lazy_variable(table.embeddings)
    if lazy:
        sums = variable.noise._sums
        sums.assign(tf.fill(sums.shape, tf.constant(BEFORE, tf.float64)))
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(RATE),
        clip_norm=CLIP_NORM,
        noise_multiplier=STDDEV / CLIP_NORM,
        expected_batch_size=1,
        mechanism=tsdp.Gaussian(),
        # The same sample for all comparisons with it, some of which would
        # otherwise not be refuted one time in thousands.
        seed=None if lazy else 1,
    )
    model.compile(
        optimizer=optimizer,
        loss=lambda y, found: 2.0 * tf.reduce_sum(tf.square(found - y), -1),
        jit_compile=False,
    )
    optimizer.build(model.trainable_variables)
    for step in range(STEPS):
        model.train_on_batch(*batch(step))
    final = without_noise(variable) if raw else table.get_weights()[0]
    return final.reshape([RUNS, ROWS, WIDTH]).astype("float64")


def summaries(tables: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers of each run: sizes, positions, and how rows vary together."""
    found = {}
    for row in range(ROWS):
        around = tables[:, row] - tables[:, row].mean(-1, keepdims=True)
        found[f"mean of row {row}"] = tables[:, row].mean(-1)
        found[f"entry of row {row}"] = tables[:, row, 0]
        found[f"spread of row {row}"] = np.square(around).sum(-1)
        for other in range(row):
            found[f"rows {other} and {row}"] = (around * tables[:, other]).sum(
                -1
            )
    found["neighbouring columns"] = (tables[:, :, 1:] * tables[:, :, :-1]).sum(
        (1, 2)
    )
    found["pooled"] = np.square(
        tables[:, lookups(STEPS - 1)].mean(1) - 1.0
    ).sum(-1)
    return found


def refuted_by(some: np.ndarray, others: np.ndarray) -> list[str]:
    """The summaries that tell two samples of runs apart."""
    left, right = summaries(some), summaries(others)
    return [
        name
        for name in left
        if stats.ks_2samp(left[name], right[name]).pvalue
        < FALSE_ALARM / len(left)
    ]


@pytest.fixture(scope="module")
def dense() -> np.ndarray:
    return runs(lazy=False)


def test_lazy_noise_has_the_law_of_dense_noise(dense: np.ndarray) -> None:
    assert not refuted_by(dense, runs(lazy=True))


def test_the_last_draw_must_not_be_skipped(dense: np.ndarray) -> None:
    refuting = refuted_by(dense, runs(lazy=True, raw=True))
    assert {"spread of row 4", "spread of row 5"} <= set(refuting)


def test_lookups_must_not_miss_noise(
    monkeypatch: pytest.MonkeyPatch, dense: np.ndarray
) -> None:
    right = LazyVariable._drawn
    monkeypatch.setattr(
        LazyVariable,
        "_drawn",
        lambda self, ids=None: [] if ids is not None else right(self),
    )
    assert "pooled" in refuted_by(dense, runs(lazy=True))


def test_sums_of_variances_must_not_be_short(
    monkeypatch: pytest.MonkeyPatch, dense: np.ndarray
) -> None:
    right = PendingNoise._sum
    monkeypatch.setattr(
        PendingNoise,
        "_sum",
        lambda self, step: tf.cast(
            tf.cast(right(self, step), tf.float32), tf.float64
        ),
    )
    assert "spread of row 5" in refuted_by(dense, runs(lazy=True))


def simulated(rng: np.random.Generator, several: bool) -> np.ndarray:
    """The same training in numpy.

    Args:
      rng: Of its noise.
      several: Whether every lookup draws for itself, and the table keeps what
        the last one of a row drew.
    """
    table = np.zeros([RUNS, ROWS, WIDTH])
    until = np.zeros(ROWS)

    def drawn(step: int, rows: np.ndarray) -> np.ndarray:
        size = RATE * STDDEV * np.sqrt(step - until[rows])[:, np.newaxis]
        noise = rng.normal(size=[RUNS, ROWS, WIDTH])[:, rows]
        if several:
            noise = rng.normal(size=[RUNS, rows.size, WIDTH])
        until[rows] = step
        return table[:, rows] + size * noise

    for step in range(STEPS):
        rows = lookups(step)
        seen = drawn(step, rows)
        table[:, rows] = seen
        counts = np.bincount(rows, minlength=ROWS)[:, np.newaxis]
        error = 4.0 * (seen.mean(1, keepdims=True) - 1.0)
        gradient = error * counts / rows.size
        norm = np.sqrt(np.square(gradient).sum((1, 2), keepdims=True))
        table -= RATE * gradient * np.minimum(1.0, CLIP_NORM / norm)
    return drawn(STEPS, np.arange(ROWS))


def test_a_row_must_not_have_several_values_in_a_batch(
    dense: np.ndarray,
) -> None:
    rng = np.random.default_rng(0)
    assert not refuted_by(dense, simulated(rng, several=False))
    assert "pooled" in refuted_by(dense, simulated(rng, several=True))
