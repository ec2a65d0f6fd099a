"""One unit moves the sums by at most the clip norm, in L1."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.gradients import test_unit_clipping as units
from tests.gradients.test_unit_clipping import KINDS, UNITS, Arrays
from tf_sparse_dp.gradients.clipping import clip_and_sum, terms_of_units
from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    RowFactor,
    absolute_sums,
)

pytestmark = pytest.mark.once

CLIP_NORM = 0.8
# What the guarantee allows for rounding.
SLACK = 1e-5
# Parts of different sign meet, and their norms are added all the same.
BOUNDED = (
    "repeated rows",
    "many repeated rows",
    "ragged rows",
    "rows that all share",
    "products at rows that all share",
    "kernel on sequences",
    "everything",
)


@functools.cache
class Sums:
    """Clipped sums of a kind, traced once; all variables in one vector.

    Once for all tests, too.
    """

    def __init__(self, kind: str, size: int, jit_compile: bool):
        if jit_compile and kind == "ragged rows":
            pytest.skip("XLA needs to know the number of lookups")
        self._factors = KINDS[kind][1]
        self._size = size
        self._traced = tf.function(
            self._clipped, jit_compile=jit_compile, reduce_retracing=True
        )

    def _clipped(self, arrays: list[tf.Tensor], valid: tf.Tensor) -> Any:
        terms, valid = terms_of_units(self._factors(*arrays), valid, self._size)
        clipped = clip_and_sum(
            terms, clip_norm=CLIP_NORM, valid=valid, norm="l1"
        )
        sums = [
            (total.values, total.indices)
            if isinstance(total, tf.IndexedSlices)
            else total
            for total in clipped.sums
        ]
        return sums, clipped.norms

    def __call__(self, arrays: Arrays, valid: np.ndarray) -> np.ndarray:
        sums, _ = self._traced(_tensors(arrays), tf.constant(valid))
        parts = []
        for total in sums:
            if isinstance(total, tuple):
                values, ids = total
                dense = np.zeros((units.TABLE, values.shape[1]))
                np.add.at(dense, ids.numpy(), values.numpy().astype("f8"))
                total = dense
            parts.append(np.asarray(total, np.float64).ravel())
        return np.concatenate(parts)

    def norms(self, arrays: Arrays) -> np.ndarray:
        valid = np.ones(len(arrays[0]), bool)
        norms: np.ndarray = self._traced(_tensors(arrays), valid)[1].numpy()
        return norms


def _tensors(arrays: Arrays, floating: tf.DType = tf.float32) -> list[Any]:
    return [
        tf.constant(a, tf.int32 if a.dtype.kind == "i" else floating)
        for a in arrays
    ]


def _true_norms(kind: str, arrays: Arrays, size: int) -> np.ndarray:
    """L1 norms of units' terms, in float64 and written out."""
    # What float32 holds is what is clipped.
    tensors = [
        tf.cast(t, tf.float64) if t.dtype.is_floating else t
        for t in _tensors(arrays)
    ]
    terms = [f.per_example().numpy() for f in KINDS[kind][1](*tensors)]
    sums = [t.reshape(UNITS, size, -1).sum(1) for t in terms]
    norms: np.ndarray = np.abs(np.concatenate(sums, 1)).sum(1)
    return norms


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_not_too_small(kind: str, size: int) -> None:
    sums = Sums(kind, size, False)
    for seed in range(10):
        batch = units._batch(kind, size, seed)
        true, found = _true_norms(kind, batch, size), sums.norms(batch)
        assert (found >= true).all()
        if size == 1 and "cancel" not in kind and kind not in BOUNDED:
            # 1e-3 of √n L2 norms where terms are sums of parts.
            rtol = 2e-2 if kind == "bias on sequences" else 1e-5
            np.testing.assert_allclose(found, true, rtol=rtol)


@pytest.mark.parametrize(("size", "jit_compile"), [(5, False), (2, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_close(kind: str, size: int, jit_compile: bool) -> None:
    sums = Sums(kind, size, jit_compile)
    everybody = np.ones(UNITS * size, bool)
    largest = 0.0
    for seed in range(4):
        batch = units._batch(kind, size, seed)
        members = np.arange(UNITS * size) // size == seed % UNITS
        with_it = sums(batch, everybody)
        for without in (
            sums(units._zeroed(batch, members), everybody),
            sums(batch, ~members),
        ):
            distance = np.abs(with_it - without).sum()
            assert distance <= CLIP_NORM * (1 + SLACK)
            largest = max(largest, distance)
        alone = np.abs(sums(batch, members)).sum()
        assert alone <= CLIP_NORM * (1 + SLACK)
    if "cancel" not in kind:
        assert largest > (0.2 if kind in BOUNDED else 0.99) * CLIP_NORM


@pytest.mark.parametrize("kind", KINDS)
def test_bad_units_and_padding_have_no_influence(kind: str) -> None:
    """1e30 is finite, but a weight that undoes it would lose digits."""
    batch = units._batch(kind, 2)
    sums = Sums(kind, 2, False)
    everybody = np.ones(UNITS * 2, bool)
    expected = sums(units._zeroed(batch, slice(2, 4)), everybody)
    assert np.abs(expected).sum() > 0
    for bad in (np.nan, np.inf, -np.inf, 1e30):
        for place, array in enumerate(batch):
            if array.dtype.kind != "f":
                continue
            broken = [a.copy() for a in batch]
            broken[place][3].flat[0] = bad
            np.testing.assert_array_equal(sums(broken, everybody), expected)
            broken[place][2:4] = bad
            padding = np.arange(UNITS * 2) // 2 != 1
            np.testing.assert_array_equal(sums(broken, padding), expected)


@pytest.mark.parametrize("rows", [0, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_gives_zero(kind: str, rows: int) -> None:
    batch = [a[:rows] for a in units._batch(kind, 5)]
    assert not Sums(kind, 5, False)(batch, np.zeros(rows, bool)).any()


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("size", [1, 4096, 4097, 1_000_003])
def test_long_sums_are_not_too_small(size: int, jit_compile: bool) -> None:
    """Equal numbers whose sum, taken one by one, would always round down."""
    value = np.float32(1 + 2.0**-23)
    values = tf.constant(np.full([2, size], [[value], [-value]]))
    summed = tf.function(absolute_sums, jit_compile=jit_compile)
    exact = size * np.float64(value)
    found = np.asarray(summed(values), np.float64)
    assert (found >= exact).all()
    # Twice as many roundoffs as there are in either of two stages, or in one.
    assert (found <= exact * (1 + 5e-4)).all()


def test_small_times_large_is_not_nothing() -> None:
    """Features that are flushed to zero, and large upstream gradients."""
    left = tf.fill([1, 1, 10_000], 1e-38)
    right = tf.fill([1, 1, 1], 1e19)
    exact = 10_000 * np.float64(np.float32(1e-38)) * 1e19
    assert OuterFactor(left, right).absolute_norms().numpy() >= exact


def test_adversarial_cancellation_does_not_hide_a_row() -> None:
    """Parts of 1e6 that leave 1e-3 behind: the unit is within the norm."""
    large = np.float32(1e6)
    values = tf.constant([[[large], [-large], [1e-3]]])
    factor = RowFactor(values, tf.constant([[2, 2, 2]]), (4, 1))
    assert factor.absolute_norms().numpy() >= 2e6
    total = clip_and_sum([factor], clip_norm=1.0, norm="l1").sums[0]
    assert np.abs(tf.convert_to_tensor(total)).sum() <= 1e-6


def test_one_scale_for_all_variables() -> None:
    terms: list[Factor] = [
        DenseFactor(tf.constant([[3.0]])),
        DenseFactor(tf.constant([-5.0])),
    ]
    clipped = clip_and_sum(terms, clip_norm=2.0, norm="l1", scale=2.0)
    np.testing.assert_allclose(clipped.norms, [16.0], rtol=1e-5)
    sums = [total.numpy().item() for total in clipped.sums]
    np.testing.assert_allclose(sums, [0.75, -1.25], rtol=1e-5)


def test_other_norms_are_refused() -> None:
    terms = [DenseFactor(tf.constant([[3.0]]))]
    with pytest.raises(ValueError, match="norm='max' was given"):
        clip_and_sum(terms, clip_norm=1.0, norm="max")  # type: ignore[arg-type]
