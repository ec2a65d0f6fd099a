"""One example moves the clipped sums by at most the clip norm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.gradients import factors
from tf_sparse_dp.gradients.clipping import clip_and_sum
from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    RowFactor,
)

pytestmark = pytest.mark.once

B = 6
# A root, rounded, and its square, rounded as well: three roundoffs at most.
ROOT = 3 * 2.0**-24
CLIP_NORM = 0.8
WIDE = 4096
# What the guarantee allows for rounding.
SLACK = 1e-5

# A batch is a list of arrays with one row per example; a kind says how to draw
# one, and how to make factors of it.
Arrays = list[np.ndarray]


def _magnitudes(random: np.random.RandomState) -> np.ndarray:
    """From far below the clip norm to far above it."""
    return 10.0 ** random.uniform(-6, 6, [B, 1, 1])


def _rows(lookups: int) -> Callable[[np.random.RandomState], Arrays]:
    """Values of table rows and their ids, many of them repeated."""

    def draw(random: np.random.RandomState) -> Arrays:
        values = _magnitudes(random) * random.randn(B, lookups, 3)
        return [values, random.randint(0, 4, (B, lookups))]

    return draw


def _cancelling_rows(random: np.random.RandomState) -> Arrays:
    """Large lookups of the same row that nearly cancel."""
    large = 10.0 ** random.uniform(0, 6, [B, 1, 1]) * random.randn(B, 3, 3)
    rest = 10.0 ** random.uniform(-8, 0, [B, 1, 1]) * random.randn(B, 3, 3)
    values = np.concatenate([large, -large * (1 + 1e-6) + rest], 1)
    return [values, np.tile(np.arange(3), (B, 2))]


def _sequence(
    steps: int, rows: int, columns: int
) -> Callable[[np.random.RandomState], Arrays]:
    def draw(random: np.random.RandomState) -> Arrays:
        left = _magnitudes(random) * random.randn(B, steps, rows)
        return [left, random.randn(B, steps, columns)]

    return draw


def _cancelling_sequence(
    columns: int,
) -> Callable[[np.random.RandomState], Arrays]:
    def draw(random: np.random.RandomState) -> Arrays:
        large = 10.0 ** random.uniform(0, 6, [B, 1, 1])
        left = np.tile(large * random.randn(B, 1, 5), (1, 2, 1))
        right = random.randn(B, 1, columns)
        rest = 10.0 ** random.uniform(-8, -4) * random.randn(B, 1, columns)
        return [left, np.concatenate([right, -right + rest], 1)]

    return draw


def _nearly_cancelling(random: np.random.RandomState) -> np.ndarray:
    """Long constant vectors, so that rounding errors all go one way."""
    first = random.uniform(1, 2, [B, 1, 1]) * 1e3
    second = -first * (1 + 10.0 ** random.uniform(-3.5, -1.5, [B, 1, 1]))
    return np.repeat(np.concatenate([first, second], 1), WIDE, axis=2)


def _wide_rows(random: np.random.RandomState) -> Arrays:
    return [_nearly_cancelling(random), np.ones((B, 2), int)]


def _wide_sequence(random: np.random.RandomState) -> Arrays:
    return [_nearly_cancelling(random), np.ones((B, 2, 8))]


def _dense(random: np.random.RandomState) -> Arrays:
    return [_magnitudes(random)[:, 0] * random.randn(B, 7)]


def _everything(random: np.random.RandomState) -> Arrays:
    return [
        *_rows(5)(random),
        *_sequence(3, 4, 5)(random),
        *_dense(random),
        *_sequence(1, 4, 5)(random),
    ]


def _row_factor(values: tf.Tensor, ids: tf.Tensor) -> list[Factor]:
    return [RowFactor(values, ids, (4, values.shape[2]))]


def _outer_factor(left: tf.Tensor, right: tf.Tensor) -> list[Factor]:
    return [OuterFactor(left, right)]


def _dense_factor(values: tf.Tensor) -> list[Factor]:
    return [DenseFactor(values)]


def _all_factors(*tensors: tf.Tensor) -> list[Factor]:
    return [
        *_row_factor(*tensors[:2]),
        *_outer_factor(*tensors[2:4]),
        *_dense_factor(tensors[4]),
        *_outer_factor(*tensors[5:]),
    ]


KINDS: dict[str, tuple[Callable[..., Arrays], Callable[..., list[Factor]]]] = {
    "one lookup": (_rows(1), _row_factor),
    "repeated rows": (_rows(7), _row_factor),
    "many repeated rows": (_rows(70), _row_factor),
    "rows that cancel": (_cancelling_rows, _row_factor),
    "kernel": (_sequence(1, 5, 4), _outer_factor),
    "kernel on short sequences": (_sequence(3, 5, 4), _outer_factor),
    "kernel on long sequences": (_sequence(9, 5, 4), _outer_factor),
    "narrow sequences that cancel": (_cancelling_sequence(1), _outer_factor),
    "wide sequences that cancel": (_cancelling_sequence(6), _outer_factor),
    "wide rows that nearly cancel": (_wide_rows, _row_factor),
    "wide sequences that nearly cancel": (_wide_sequence, _outer_factor),
    "bias": (_dense, _dense_factor),
    "everything": (_everything, _all_factors),
}


@functools.cache
class Sums:
    """Clipped sums of a kind, traced once; all variables in one vector.

    Once for all tests, too.
    """

    def __init__(
        self, kind: str, jit_compile: bool, clip_norm: float = CLIP_NORM
    ):
        self._factors = KINDS[kind][1]
        self._clip_norm = clip_norm
        self._traced = tf.function(self._sums, jit_compile=jit_compile)

    def _sums(self, arrays: list[tf.Tensor], valid: tf.Tensor) -> Any:
        clipped = clip_and_sum(
            self._factors(*arrays), clip_norm=self._clip_norm, valid=valid
        )
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
                dense = np.zeros((4, values.shape[1]))
                np.add.at(dense, ids.numpy(), values.numpy().astype("f8"))
                total = dense
            parts.append(np.asarray(total, np.float64).ravel())
        return np.concatenate(parts)


ALL = np.ones(B, bool)


def _zeroed(arrays: Arrays, example: int) -> Arrays:
    arrays = [a.copy() for a in arrays]
    for a in arrays:
        if a.dtype.kind == "f":
            a[example] = 0
    return arrays


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_close(kind: str, jit_compile: bool) -> None:
    sums = Sums(kind, jit_compile)
    largest = 0.0
    for seed in range(20):
        random = np.random.RandomState(seed)
        batch = KINDS[kind][0](random)
        example = random.randint(B)
        with_it = sums(batch, ALL)
        without = {
            "removed": sums([np.delete(a, example, 0) for a in batch], ALL[1:]),
            "zeroed": sums(_zeroed(batch, example), ALL),
            "masked": sums(batch, np.arange(B) != example),
        }
        for other in without.values():
            distance = np.linalg.norm(with_it - other)
            assert distance <= CLIP_NORM * (1 + SLACK)
            largest = max(largest, distance)
    if "cancel" not in kind:  # Some example does use what it may.
        assert largest > 0.99 * CLIP_NORM


@pytest.mark.parametrize("kind", KINDS)
def test_one_example_is_within_the_clip_norm(kind: str) -> None:
    sums = Sums(kind, False)
    for seed in range(20):
        batch = KINDS[kind][0](np.random.RandomState(seed))
        for example in range(B):
            alone = sums(batch, np.arange(B) == example)
            assert np.linalg.norm(alone) <= CLIP_NORM * (1 + SLACK)


@pytest.mark.parametrize("steps", [1, 3])
def test_small_times_large_is_not_nothing(steps: int) -> None:
    """Features of 1e-20 and upstream gradients of 1e19: a term of norm 10."""
    left = np.full([1, steps, 10_000], 1e-20)
    right = np.full([1, steps, 1], 1e19)
    total = Sums("kernel", False)([left, right], ALL[:1])
    assert np.linalg.norm(total) <= CLIP_NORM * (1 + SLACK)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_without_a_norm_counts_as_zero(
    kind: str, bad: float, jit_compile: bool
) -> None:
    """1e30 is finite, but its square is not in float32."""
    batch = KINDS[kind][0](np.random.RandomState(0))
    sums = Sums(kind, jit_compile)
    expected = sums(_zeroed(batch, 2), ALL)
    for place, array in enumerate(batch):
        if array.dtype.kind != "f":
            continue
        broken = [a.copy() for a in batch]
        broken[place][2].flat[-1] = bad
        found = sums(broken, ALL)
        if kind == "everything":
            # Variables that are not broken vanish together with the others.
            assert np.isfinite(found).all()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_influence(kind: str, jit_compile: bool) -> None:
    sums = Sums(kind, jit_compile)
    valid = np.array([True, False, True, True, False, True])
    batch = KINDS[kind][0](np.random.RandomState(0))
    expected = sums(_zeroed(_zeroed(batch, 1), 4), valid)
    for padding in (0.0, 1.0, 1e30, np.inf, np.nan):
        for a in batch:
            if a.dtype.kind == "f":
                a[~valid] = padding
        np.testing.assert_array_equal(sums(batch, valid), expected)
    assert np.linalg.norm(expected) > 0


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_all_padding_gives_zero(kind: str, jit_compile: bool) -> None:
    batch = KINDS[kind][0](np.random.RandomState(0))
    assert not Sums(kind, jit_compile)(batch, ~ALL).any()


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gives_zero(kind: str) -> None:
    batch = [a[:0] for a in KINDS[kind][0](np.random.RandomState(0))]
    assert not Sums(kind, False)(batch, ALL[:0]).any()


def _integers(lookups: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums of small integers are exact in float32, and so are squares."""
    random = np.random.RandomState(lookups)
    values = random.randint(-3, 4, (B, lookups, 3)).astype("float32")
    return tf.constant(values), tf.constant(random.randint(0, 4, (B, lookups)))


@pytest.mark.parametrize("lookups", [2, 5, 64, 65, 90])
def test_sorting_and_pairing_agree(
    lookups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, ids = _integers(lookups)
    factor = RowFactor(values, ids, (4, 3))
    exact = np.square(factor.per_example().numpy()).sum((1, 2))
    monkeypatch.setattr(factors, "_PAIRWISE_ROWS", 1)
    np.testing.assert_allclose(factor.squared_norms(), exact, rtol=ROOT)
    monkeypatch.setattr(factors, "_PAIRWISE_ROWS", 1000)
    # A sum of shares, one per lookup, each of them rounded, and so is each
    # addition.
    np.testing.assert_allclose(
        factor.squared_norms(), exact, rtol=(lookups + 1) * 2.0**-24
    )


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_norms_of_a_kernel_are_exact_either_way(steps: int) -> None:
    """Gram matrices for short sequences, the terms themselves for long ones."""
    random = np.random.RandomState(steps)
    left, right = (
        tf.constant(random.randint(-3, 4, (B, steps, n)).astype("float32"))
        for n in (5, 4)
    )
    factor = OuterFactor(left, right)
    exact = np.square(factor.per_example().numpy()).sum((1, 2))
    rtol = 2 * ROOT if steps == 1 else ROOT  # Two norms, or one.
    np.testing.assert_allclose(factor.squared_norms(), exact, rtol=rtol)


def test_one_scale_for_all_variables() -> None:
    """An example of norm 5 over two variables keeps its direction."""
    terms = [DenseFactor(tf.constant([[3.0]])), DenseFactor(tf.constant([4.0]))]
    clipped = clip_and_sum(terms, clip_norm=2.5)
    assert clipped.norms.numpy() == 5.0
    assert [total.numpy().item() for total in clipped.sums] == [1.5, 2.0]
    kept = clip_and_sum(terms, clip_norm=5.0)
    assert [total.numpy().item() for total in kept.sums] == [3.0, 4.0]


def test_the_scale_undoes_a_mean() -> None:
    terms = tf.constant([[3.0, 4.0], [0.0, 1.0]])
    whole = clip_and_sum([DenseFactor(terms)], clip_norm=2.5)
    mean = clip_and_sum([DenseFactor(terms / 2)], clip_norm=2.5, scale=2.0)
    np.testing.assert_array_equal(mean.sums[0], whole.sums[0])
    np.testing.assert_array_equal(mean.sums[0], [1.5, 3.0])
    np.testing.assert_array_equal(mean.norms, [5.0, 1.0])
