"""Attack: count the rows that a sparse mechanism releases.

Which rows come out, and how many, depends on whose rows went in. For two
batches that differ by one example the counts must not differ by more than
(epsilon, delta) allows: over many releases of both, no set of counts is found
that is likelier with the example than e^epsilon times as likely without it,
plus delta, nor the reverse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.mechanisms.contract import gaussian_delta
from tests.mechanisms.public_facts import facts
from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp import mechanisms
from tf_sparse_dp.gradients.factors import RowFactor

pytestmark = pytest.mark.once

ROWS, WIDTH = 5000, 2
RELEASES = 1500
NOISE = 0.7
EPSILONS = (0.1, 0.5, 1.0, 2.0)
# Of whom the attack wants to know, and who is in the batch anyway.
TARGET = [17]
OTHERS = np.arange(100, 160)

MECHANISMS = {
    "threshold": mechanisms.Threshold(),
    "threshold-sure": mechanisms.Threshold(choice="sure"),
    "projection": mechanisms.Projection(lookups=1),
    "partition selection": mechanisms.PartitionSelection(selection_share=0.3),
}


def _sum(present: bool) -> tf.IndexedSlices:
    """Sums of examples that look up one row each, of norm 1.

    The first row is the target's, who may be absent: then its id is none, so
    that all shapes are the same.
    """
    ids = [TARGET[0] if present else -1, *OTHERS]
    values = np.zeros([len(ids), WIDTH], "float32")
    values[:, 0] = 1.0
    values[0] *= present
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(ids), tf.constant([ROWS, WIDTH])
    )


Release = Callable[[tf.IndexedSlices, tf.Tensor], Any]


def _counts(release: Release, present: bool, seed: int) -> np.ndarray:
    """Rows in all, and rows of the target, of many releases."""
    total = _sum(present)

    def count(number: tf.Tensor) -> tf.Tensor:
        key = tf.stack([tf.constant(seed, tf.int64), number])
        found = release(total, key)
        if isinstance(found, tf.IndexedSlices):
            full = tf.reduce_any(found.values != 0, 1)
            own = full & (found.indices == TARGET[0])
        else:
            full = tf.reduce_any(found != 0, 1)
            own = full & (tf.range(ROWS) == TARGET[0])
        return tf.stack(
            [tf.math.count_nonzero(full), tf.math.count_nonzero(own)]
        )

    run = tf.function(
        lambda: tf.map_fn(count, tf.range(RELEASES, dtype=tf.int64)),
        autograph=False,
    )
    return run().numpy()


def _refuted(one: np.ndarray, other: np.ndarray, claimed: float) -> bool:
    """Whether counts tell more than noise of the claimed size allows.

    Both shares are bounded by Clopper and Pearson. Some hundreds of bounds at
    most are looked at, each wrong with probability `FALSE_ALARM` / 1000.
    """
    level = FALSE_ALARM / 1000
    for left, right in ((one, other), (other, one)):
        cuts = np.unique(np.quantile(left, np.linspace(0, 1, 20)))
        for cut in cuts:
            for inside in (np.greater_equal, np.less):
                hits = int(inside(left, cut).sum())
                others = int(inside(right, cut).sum())
                low = stats.beta.ppf(level, hits, len(left) - hits + 1)
                high = stats.beta.ppf(
                    1 - level, others + 1, len(right) - others
                )
                low = 0.0 if hits == 0 else low
                high = 1.0 if others == len(right) else high
                for epsilon in EPSILONS:
                    allowed = gaussian_delta(epsilon, claimed)
                    if low > np.exp(epsilon) * high + allowed:
                        return True
    return False


def _by(mechanism: Any, noise: float) -> Release:
    def release(total: tf.IndexedSlices, key: tf.Tensor) -> Any:
        public = facts([total], noise, lookups=1)
        terms = RowFactor(
            total.values[:, tf.newaxis],
            total.indices[:, tf.newaxis],
            (ROWS, WIDTH),
        )
        valid = total.indices >= 0
        sums = mechanism.clipped([terms], key, public, valid=valid)
        (found,) = mechanism.release(sums, key, public)
        return found

    return release


def _leaking(total: tf.IndexedSlices, key: tf.Tensor) -> tf.IndexedSlices:
    """Noise on what the batch touched, and nowhere else."""
    noise = tf.random.stateless_normal([len(OTHERS) + 1, WIDTH], key)
    values = tf.where(total.indices[:, tf.newaxis] >= 0, noise, 0.0)
    return tf.IndexedSlices(
        total.values + NOISE * values, total.indices, total.dense_shape
    )


@functools.cache
def _both(name: str) -> tuple[np.ndarray, np.ndarray]:
    release = _by(MECHANISMS[name], NOISE)
    return _counts(release, True, 1), _counts(release, False, 2)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("statistic", ["rows in all", "rows of the target"])
def test_counts_tell_no_more_than_the_guarantee(
    name: str, statistic: str
) -> None:
    column = ["rows in all", "rows of the target"].index(statistic)
    present, absent = (counts[:, column] for counts in _both(name))
    if column == 0:
        assert present.max() > 0, "something is released"
    assert not _refuted(present, absent, NOISE)


def test_noise_on_touched_rows_alone_is_found_out() -> None:
    present, absent = (_counts(_leaking, x, 3) for x in (True, False))
    for column in (0, 1):
        assert _refuted(present[:, column], absent[:, column], NOISE)


def test_less_noise_than_claimed_is_found_out() -> None:
    release = _by(mechanisms.Threshold(), NOISE / 8)
    present, absent = (_counts(release, x, 4) for x in (True, False))
    assert _refuted(present[:, 1], absent[:, 1], NOISE)
