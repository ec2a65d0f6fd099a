"""One unit of several examples moves the sums by at most the clip norm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.gradients.clipping import clip_and_sum, terms_of_units
from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    RowFactor,
    summed_parts,
)
from tf_sparse_dp.gradients.placed import PlacedFactor
from tf_sparse_dp.gradients.ragged_rows import RaggedRowFactor

pytestmark = pytest.mark.once

UNITS = 4
TABLE = 4
CLIP_NORM = 0.8
# What the guarantee allows for rounding.
SLACK = 1e-5
SIZES = (1, 2, 5)

# A batch is a list of arrays with one row per example; a kind says how to draw
# one for B examples, and how to make factors of it.
Arrays = list[np.ndarray]
Draw = Callable[[np.random.RandomState, int], Arrays]


def _magnitudes(random: np.random.RandomState, b: int) -> np.ndarray:
    """From far below the clip norm to far above it."""
    return 10.0 ** random.uniform(-6, 6, [b, 1, 1])


def _rows(lookups: int) -> Draw:
    """Few rows: they repeat within an example, and in others of its unit."""

    def draw(random: np.random.RandomState, b: int) -> Arrays:
        values = _magnitudes(random, b) * random.randn(b, lookups, 3)
        return [values, random.randint(0, TABLE, (b, lookups))]

    return draw


def _rows_that_add_up(random: np.random.RandomState, b: int) -> Arrays:
    """All examples look up one row with one gradient: nothing hides it.

    Were the m squared norms added instead of the m gradients, a unit would be
    found too small by a factor of √m.
    """
    return [np.ones([b, 1, 3]), np.ones((b, 1), int)]


def _rows_that_cancel(random: np.random.RandomState, b: int) -> Arrays:
    """Large gradients of neighbouring examples, opposite but for a rest."""
    large = 10.0 ** random.uniform(0, 6) * random.randn(1, 1, 3)
    signs = np.where(np.arange(b) % 2, -1.0 - 1e-6, 1.0)[:, None, None]
    rest = 10.0 ** random.uniform(-8, 0, [b, 1, 1]) * random.randn(b, 1, 3)
    return [signs * large + rest, np.ones((b, 1), int)]


def _ragged_rows(random: np.random.RandomState, b: int) -> Arrays:
    """The last array says how many of six lookups an example has."""
    lookups = random.randint(0, 7, b)
    lookups[3] = 6
    return [*_rows(6)(random, b), lookups]


def _placed(random: np.random.RandomState, b: int) -> Arrays:
    """Values at the same rows for all, and at rows of one's own."""
    shared = _magnitudes(random, b) * random.randn(b, 5, 3)
    return [shared, *_rows(3)(random, b)]


def _placed_products(random: np.random.RandomState, b: int) -> Arrays:
    left = _magnitudes(random, b) * random.randn(b, 2, 5)
    return [left, random.randn(b, 2, 3), *_rows(3)(random, b)]


def _sequence(steps: int) -> Draw:
    def draw(random: np.random.RandomState, b: int) -> Arrays:
        left = _magnitudes(random, b) * random.randn(b, steps, 5)
        return [left, random.randn(b, steps, 4)]

    return draw


def _kernels_that_cancel(random: np.random.RandomState, b: int) -> Arrays:
    large = 10.0 ** random.uniform(0, 6) * random.randn(1, 1, 5)
    signs = np.where(np.arange(b) % 2, -1.0 - 1e-6, 1.0)[:, None, None]
    return [large + np.zeros([b, 1, 1]), signs * np.ones([b, 1, 4])]


def _dense(random: np.random.RandomState, b: int) -> Arrays:
    return [_magnitudes(random, b)[:, 0] * random.randn(b, 7)]


def _dense_that_cancels(random: np.random.RandomState, b: int) -> Arrays:
    large, _ = _rows_that_cancel(random, b)
    return [large[:, 0]]


def _parts(random: np.random.RandomState, b: int) -> Arrays:
    return [_magnitudes(random, b) * random.randn(b, 3, 2)]


def _everything(random: np.random.RandomState, b: int) -> Arrays:
    return [
        *_rows(5)(random, b),
        *_sequence(3)(random, b),
        *_dense(random, b),
        *_sequence(1)(random, b),
    ]


def _row_factor(values: tf.Tensor, ids: tf.Tensor) -> list[Factor]:
    return [RowFactor(values, ids, (TABLE, values.shape[2]))]


def _ragged_factor(
    values: tf.Tensor, ids: tf.Tensor, lookups: tf.Tensor
) -> list[Factor]:
    there = tf.sequence_mask(lookups, 6)
    examples = tf.where(there)[:, 0]
    return [
        RaggedRowFactor(
            tf.boolean_mask(values, there),
            tf.boolean_mask(ids, there),
            examples,
            tf.shape(ids, tf.int64)[0],
            (TABLE, 3),
        )
    ]


_SHARED_ROWS = tf.constant([2, 0, 3, 2, 2])


def _placed_factor(
    shared: tf.Tensor, values: tf.Tensor, ids: tf.Tensor
) -> list[Factor]:
    (rows,) = _row_factor(values, ids)
    shape = (TABLE, 3)
    return [PlacedFactor(DenseFactor(shared), _SHARED_ROWS, shape, rows=rows)]


def _placed_outer_factor(
    left: tf.Tensor, right: tf.Tensor, values: tf.Tensor, ids: tf.Tensor
) -> list[Factor]:
    (rows,) = _row_factor(values, ids)
    block = OuterFactor(left, right)
    return [PlacedFactor(block, _SHARED_ROWS, (TABLE, 3), rows=rows)]


def _outer_factor(left: tf.Tensor, right: tf.Tensor) -> list[Factor]:
    return [OuterFactor(left, right)]


def _dense_factor(values: tf.Tensor) -> list[Factor]:
    return [DenseFactor(values)]


def _summed_factor(parts: tf.Tensor) -> list[Factor]:
    """Dense terms that are sums themselves, and so have slack already."""
    return [summed_parts(parts, [1], 3)]


def _all_factors(*tensors: tf.Tensor) -> list[Factor]:
    return [
        *_row_factor(*tensors[:2]),
        *_outer_factor(*tensors[2:4]),
        *_dense_factor(tensors[4]),
        *_outer_factor(*tensors[5:]),
    ]


KINDS: dict[str, tuple[Draw, Callable[..., list[Factor]]]] = {
    "one lookup": (_rows(1), _row_factor),
    "repeated rows": (_rows(7), _row_factor),
    "many repeated rows": (_rows(40), _row_factor),
    "rows that add up": (_rows_that_add_up, _row_factor),
    "rows that cancel": (_rows_that_cancel, _row_factor),
    "ragged rows": (_ragged_rows, _ragged_factor),
    "rows that all share": (_placed, _placed_factor),
    "products at rows that all share": (
        _placed_products,
        _placed_outer_factor,
    ),
    "kernel": (_sequence(1), _outer_factor),
    "kernel on sequences": (_sequence(3), _outer_factor),
    "kernels that cancel": (_kernels_that_cancel, _outer_factor),
    "bias": (_dense, _dense_factor),
    "biases that cancel": (_dense_that_cancels, _dense_factor),
    "bias on sequences": (_parts, _summed_factor),
    "everything": (_everything, _all_factors),
}


# How many lookups there are is known only when the step runs.
_NOT_COMPILED = ("ragged rows",)


@functools.cache
class Sums:
    """Clipped sums of a kind, traced once; all variables in one vector.

    Once for all tests, too.
    """

    def __init__(self, kind: str, size: int, jit_compile: bool):
        if jit_compile and kind in _NOT_COMPILED:
            pytest.skip("XLA needs to know the number of lookups")
        self._factors = KINDS[kind][1]
        self._size = size
        self._traced = tf.function(
            self._sums, jit_compile=jit_compile, reduce_retracing=True
        )

    def _sums(self, arrays: list[tf.Tensor], valid: tf.Tensor) -> Any:
        terms, valid = terms_of_units(self._factors(*arrays), valid, self._size)
        clipped = clip_and_sum(terms, clip_norm=CLIP_NORM, valid=valid)
        return [
            (total.values, total.indices)
            if isinstance(total, tf.IndexedSlices)
            else total
            for total in clipped.sums
        ]

    def __call__(self, arrays: Arrays, valid: np.ndarray) -> np.ndarray:
        tensors = [
            tf.constant(a, tf.int32 if a.dtype.kind == "i" else tf.float32)
            for a in arrays
        ]
        parts = []
        for total in self._traced(tensors, tf.constant(valid)):
            if isinstance(total, tuple):
                values, ids = total
                dense = np.zeros((TABLE, values.shape[1]))
                np.add.at(dense, ids.numpy(), values.numpy().astype("f8"))
                total = dense
            parts.append(np.asarray(total, np.float64).ravel())
        return np.concatenate(parts)


def _reference(kind: str, arrays: Arrays, size: int) -> np.ndarray:
    """Unit by unit in float64, knowing nothing of factors."""
    tensors = [
        tf.constant(a, tf.int32 if a.dtype.kind == "i" else tf.float64)
        for a in arrays
    ]
    terms = np.concatenate(
        [
            f.per_example().numpy().reshape(len(arrays[0]), -1)
            for f in KINDS[kind][1](*tensors)
        ],
        axis=1,
    )
    total = np.zeros(terms.shape[1])
    for start in range(0, len(terms), size):
        term = terms[start : start + size].sum(0)
        total += term * min(1.0, CLIP_NORM / max(np.linalg.norm(term), 1e-30))
    return total


def _zeroed(arrays: Arrays, rows: Any) -> Arrays:
    arrays = [a.copy() for a in arrays]
    for a in arrays:
        if a.dtype.kind == "f":
            a[rows] = 0
    return arrays


def _batch(kind: str, size: int, seed: int = 0) -> Arrays:
    return KINDS[kind][0](np.random.RandomState(seed), UNITS * size)


def _all(size: int) -> np.ndarray:
    return np.ones(UNITS * size, bool)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_close(kind: str, size: int) -> None:
    sums = Sums(kind, size, False)
    largest = 0.0
    for seed in range(20):
        batch = _batch(kind, size, seed)
        unit = seed % UNITS
        members = np.arange(UNITS * size) // size == unit
        with_it = sums(batch, _all(size))
        for without in (
            sums([a[~members] for a in batch], _all(size)[size:]),
            sums(_zeroed(batch, members), _all(size)),
            sums(batch, ~members),
        ):
            distance = np.linalg.norm(with_it - without)
            assert distance <= CLIP_NORM * (1 + SLACK)
            largest = max(largest, distance)
        alone = sums(batch, members)
        assert np.linalg.norm(alone) <= CLIP_NORM * (1 + SLACK)
    if "cancel" not in kind:  # Some unit does use what it may.
        assert largest > 0.99 * CLIP_NORM


@pytest.mark.parametrize(
    ("size", "jit_compile"), [(1, False), (2, False), (5, False), (5, True)]
)
@pytest.mark.parametrize("kind", [k for k in KINDS if "cancel" not in k])
def test_sums_are_those_of_a_loop_over_units(
    kind: str, size: int, jit_compile: bool
) -> None:
    sums = Sums(kind, size, jit_compile)
    batch = _batch(kind, size)
    np.testing.assert_allclose(
        sums(batch, _all(size)),
        _reference(kind, batch, size),
        rtol=0,
        # Slack for 200 parts may shrink a unit by 1e-4 of its norm.
        atol=UNITS * 2e-4 * CLIP_NORM,
    )


def test_gradients_are_added_before_the_norm_is_taken() -> None:
    """Five times (1, 1, 1) at one row has norm 5√3, whatever the clipping."""
    batch = _batch("rows that add up", 5)
    factor = RowFactor(
        tf.constant(batch[0], tf.float32), tf.constant(batch[1]), (TABLE, 3)
    )
    terms, _ = terms_of_units([factor], examples_per_unit=5)
    clipped = clip_and_sum(terms, clip_norm=100.0)
    np.testing.assert_allclose(
        clipped.norms, np.full(UNITS, 5 * 3**0.5), rtol=1e-6
    )


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_within_a_unit_has_no_influence(
    kind: str, jit_compile: bool
) -> None:
    sums = Sums(kind, 5, jit_compile)
    valid = np.random.RandomState(0).rand(UNITS * 5) < 0.5
    valid[:5] = False  # A unit of padding alone.
    batch = _batch(kind, 5)
    expected = sums(_zeroed(batch, ~valid), _all(5))
    assert np.linalg.norm(expected) > 0
    for padding in (0.0, 1.0, 1e30, np.inf, np.nan):
        for a in batch:
            if a.dtype.kind == "f":
                a[~valid] = padding
        np.testing.assert_array_equal(sums(batch, valid), expected)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_without_a_norm_counts_as_zero(
    kind: str, jit_compile: bool
) -> None:
    """One bad example takes its unit with it, and nobody else's."""
    batch = _batch(kind, 2)
    sums = Sums(kind, 2, jit_compile)
    expected = sums(_zeroed(batch, slice(2, 4)), _all(2))
    for place, array in enumerate(batch):
        if array.dtype.kind != "f":
            continue
        for bad in (np.nan, np.inf, -np.inf, 1e30):
            broken = [a.copy() for a in batch]
            broken[place][3].flat[0] = bad
            np.testing.assert_array_equal(sums(broken, _all(2)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_over_has_no_influence(kind: str) -> None:
    batch = _batch(kind, 2)
    sums = Sums(kind, 2, False)
    expected = sums([a[:6] for a in batch], _all(2)[:6])
    found = sums([a[:7] for a in batch], _all(2)[:7])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rows", [0, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_gives_zero(kind: str, rows: int) -> None:
    batch = [a[:rows] for a in _batch(kind, 5)]
    assert not Sums(kind, 5, False)(batch, np.zeros(rows, bool)).any()
