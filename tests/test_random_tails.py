"""Random numbers have the distributions they claim, far out as well.

Claims that are true are refuted by bad luck one time in a million each, as in
`noise_claims`; there are about 60 of them here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

from tests.noise_claims import (
    FALSE_ALARM,
    distribution_refuted,
    independence_refuted,
    stddev_refuted,
    tail_refuted,
)
from tf_sparse_dp import random_tails
from tf_sparse_dp.compiled.normals import with_normals
from tf_sparse_dp.random_tails import (
    chi_excess,
    cut_exponential,
    exponential,
    laplace,
    normal,
    signs,
)

pytestmark = pytest.mark.once

KEY = np.array([11, 12], np.int64)
MANY = 2**22


def draw(shape: list[int], jit_compile: bool) -> np.ndarray:
    function = tf.function(lambda key: normal(shape, key))
    if jit_compile:
        function = tf.function(function, jit_compile=True)
    return function(tf.constant(KEY)).numpy()


def drawn_by_kernels() -> np.ndarray:
    def numbers(key: tf.Tensor) -> tf.Tensor:
        return with_normals(lambda _, drawn: drawn, tf.zeros([MANY]), key)

    function = tf.function(numbers, autograph=False)
    drawn = function(tf.constant(KEY)).numpy()
    # The numbers of a pair stand side by side; elsewhere, in halves.
    return np.concatenate([drawn[::2], drawn[1::2]])


@pytest.fixture(scope="module", params=["graph", "xla", "kernels"])
def sample(request: pytest.FixtureRequest) -> np.ndarray:
    if request.param == "kernels":
        return drawn_by_kernels()
    return draw([MANY], request.param == "xla")


def test_the_distribution(sample: np.ndarray) -> None:
    part = sample[::8]
    assert not distribution_refuted(part)
    assert distribution_refuted(1.02 * part)
    assert distribution_refuted(part + 0.02)
    assert not stddev_refuted(sample, 1.0)
    assert stddev_refuted(sample, 1.01)


@pytest.mark.parametrize("beyond", [3.0, 4.0])
def test_the_tails(sample: np.ndarray, beyond: float) -> None:
    assert not tail_refuted(sample, beyond)
    assert tail_refuted(0.9 * sample, beyond)
    assert tail_refuted(1.1 * sample, beyond)
    assert not tail_refuted(np.abs(sample[sample > 0]), beyond)  # Both sides.
    assert not tail_refuted(np.abs(sample[sample < 0]), beyond)


def test_the_far_tail(sample: np.ndarray) -> None:
    """27 numbers are expected; none is seen one time in 10¹¹."""
    assert not tail_refuted(sample, 4.5)
    assert tail_refuted(np.clip(sample, -4.5, 4.5), 4.5)


def test_nothing_is_infinite(sample: np.ndarray) -> None:
    assert np.isfinite(sample).all()


def _halves(sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two numbers of each pair of Box and Muller's."""
    return sample[: MANY // 2], sample[MANY // 2 :]


def test_numbers_of_a_pair_are_independent(sample: np.ndarray) -> None:
    left, right = _halves(sample)
    assert not independence_refuted(left, right, 1.0)
    assert independence_refuted(left, right + 0.01 * left, 1.0)


def _agreement_refuted(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether numbers are large together more or less often than a coin says.

    The mean of n fair coins lies within 4.9 of its standard deviations,
    0.5 / √n, but for one time in a million.
    """
    median = 0.6744897501960817  # Of the size of a standard normal number.
    agree = (np.abs(left) > median) == (np.abs(right) > median)
    return bool(abs(agree.mean() - 0.5) > 4.9 * 0.5 / np.sqrt(agree.size))


def test_sizes_of_a_pair_are_independent(sample: np.ndarray) -> None:
    left, right = _halves(sample)
    assert not _agreement_refuted(left, right)
    radius = np.hypot(left, right)  # Points on a circle are uncorrelated too.
    assert _agreement_refuted(left / radius, right / radius)


def test_neighbours_are_independent(sample: np.ndarray) -> None:
    assert not independence_refuted(sample[:-1:2], sample[1::2], 1.0)
    assert independence_refuted(sample[:-1:2], sample[:-1:2], 1.0)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "shape", [[], [0], [3, 0], [1], [2], [7], [2, 3, 5]], ids=str
)
def test_every_shape(shape: list[int], jit_compile: bool) -> None:
    numbers = draw(shape, jit_compile)
    assert numbers.shape == tuple(shape)
    assert numbers.dtype == np.float32
    assert np.isfinite(numbers).all()
    assert len(np.unique(numbers)) == numbers.size


def _set_words(monkeypatch: pytest.MonkeyPatch, *words: int) -> None:
    """Gives the generator words instead of chance."""
    bits = tf.constant([[word] for word in words], tf.uint32)
    monkeypatch.setattr(random_tails, "random_bits", lambda *args: bits)


def _from_bits(
    monkeypatch: pytest.MonkeyPatch, coin: int, high: int, low: int, turn: int
) -> np.ndarray:
    """What `normal` makes of given random bits."""
    _set_words(monkeypatch, 2 * high + coin, low, turn)
    return normal([2], tf.constant(KEY)).numpy()


TOP, HALF = 2**32 - 1, 2**31 - 1


@pytest.mark.parametrize(
    "high, low",
    [
        (0, 0),
        (0, 1),
        (0, 12345),
        (0, TOP),
        (1, 0),
        (1, TOP),
        (77, 5),
        (HALF, 3),
        (HALF, TOP),
    ],
)
@pytest.mark.parametrize("coin", [0, 1], ids=["centre", "tail"])
def test_radii(
    monkeypatch: pytest.MonkeyPatch, coin: int, high: int, low: int
) -> None:
    """r is exceeded with probability exp(-r²/2); right to all digits.

    In the tail that probability is what the 63 bits say, near the centre one
    less it.
    """
    found = _from_bits(monkeypatch, coin, high, low, turn=0)
    bits = (high * 2.0**32 + low + 0.5) * 2.0**-64
    radius = np.sqrt(-2 * (np.log(bits) if coin else np.log1p(-bits)))
    # Five roundings of float32, each within 2⁻²⁴, and a logarithm within four.
    np.testing.assert_allclose(found[0], radius, rtol=9 * 2.0**-24)
    assert abs(found[1]) < 1e-6


def test_the_reach_is_past_that_of_tensorflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _from_bits(monkeypatch, 1, 0, 0, turn=0)[0] > 9.4
    assert _from_bits(monkeypatch, 1, 0, 0, turn=2**31)[0] < -9.4
    assert _from_bits(monkeypatch, 1, 0, 0, turn=2**30)[1] > 9.4


def _between_centre_points(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Where small radii lie in a grid of 2⁻²⁴ of the probability below them."""
    squares = np.square(left.astype(float)) + np.square(right.astype(float))
    probability = -np.expm1(-squares / 2)
    return np.mod(probability[probability < 2.0**-13] * 2.0**24, 1.0)


def test_the_centre_has_no_hole(sample: np.ndarray) -> None:
    """As a float32 number u near 1 would leave: its logarithm has steps.

    In the midst of noise a hole would tell what the noise was added to.
    """
    left, right = _halves(sample)
    inside = _between_centre_points(left, right)
    assert inside.size > 150
    assert not uniformity_refuted(inside)
    uniform = np.random.RandomState(0).rand(MANY // 2).astype(np.float32)
    radius = np.sqrt(-2 * np.log(np.maximum(uniform, np.float32(1e-9))))
    steps = _between_centre_points(radius, np.zeros_like(radius))
    assert uniformity_refuted(steps)


def test_a_size_that_is_known_late() -> None:
    spec = tf.TensorSpec([None], tf.float32)
    function = tf.function(
        lambda rows: normal([tf.shape(rows)[0], 3], KEY),
        input_signature=[spec],
    )
    for size in (0, 1, 7):
        np.testing.assert_array_equal(
            function(np.zeros(size, "float32")), normal([size, 3], KEY)
        )


def uniformity_refuted(sample: np.ndarray) -> bool:
    return bool(stats.kstest(sample.ravel(), "uniform").pvalue < FALSE_ALARM)


def _between_grid_points(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Where radii that one pair in 8192 exceeds lie in a grid of 2⁻²³.

    Of the probability that a radius is exceeded, in parts of the grid; a
    radius itself is known to a few hundredths of such a part.
    """
    squares = np.square(left.astype(float)) + np.square(right.astype(float))
    probability = np.exp(-squares / 2)
    return np.mod(probability[probability < 2.0**-13] * 2.0**23, 1.0)


def test_the_tail_has_no_gaps(sample: np.ndarray) -> None:
    """TensorFlow's normal has: its radius comes from 23 random bits."""
    assert not uniformity_refuted(_between_grid_points(*_halves(sample)))
    theirs = tf.random.stateless_normal([MANY], KEY, alg="philox").numpy()
    assert not distribution_refuted(theirs[::8])  # Nothing wrong near 0.
    gaps = _between_grid_points(theirs[::2], theirs[1::2])
    assert gaps.size > 150
    assert uniformity_refuted(gaps)


def _drawn(function: Callable[[tf.Tensor], tf.Tensor], jit: bool) -> np.ndarray:
    way = tf.function(function, jit_compile=jit, autograph=False)
    return way(tf.constant(KEY)).numpy().astype(np.float64)


JITS = pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])


@JITS
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=["32", "64"])
def test_exponential_numbers(dtype: tf.DType, jit: bool) -> None:
    found = _drawn(lambda key: exponential([500_000], key, dtype), jit)
    assert not uniformity_refuted(np.exp(-found))
    assert uniformity_refuted(np.exp(-1.01 * found))
    small = found[found < 1e-3]  # About 500: relative accuracy near 0.
    assert not uniformity_refuted(-np.expm1(-small) / -np.expm1(-1e-3))
    assert len(np.unique(small)) == small.size


WORDS = [0, 1, 2, 3, 77, 2**31, 2**31 + 1, TOP - 1, TOP]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=["32", "64"])
def test_exponential_numbers_of_extreme_bits(
    monkeypatch: pytest.MonkeyPatch, dtype: tf.DType
) -> None:
    """The lowest bit says which half; the others how far from its end."""
    for first in WORDS:
        for last in (0, 5, TOP):
            words = [first, *[last] * (2 if dtype == tf.float64 else 1)]
            _set_words(monkeypatch, *words)
            (found,) = exponential([1], KEY, dtype).numpy()
            small = 0.5  # At most 53 digits count.
            for word in reversed([first >> 1, *words[1:]]):
                small = (word + small) / 2**32
            exact = -math.log(small) if first & 1 else -math.log1p(-small)
            digits = 22 if dtype == tf.float32 else 50
            assert found == pytest.approx(exact, rel=2.0**-digits, abs=0)
            assert 0 < found < math.inf


def test_the_reach_of_exponential_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _set_words(monkeypatch, 1, 0)
    assert exponential([1], KEY).numpy() == pytest.approx(65 * math.log(2))
    _set_words(monkeypatch, 1, 0, 0)
    assert exponential([1], KEY, tf.float64).numpy() == pytest.approx(
        97 * math.log(2)
    )
    _set_words(monkeypatch, 1, 0, 0)
    assert laplace([1], KEY).numpy() == pytest.approx(-65 * math.log(2))


@JITS
def test_laplace_numbers(jit: bool) -> None:
    found = _drawn(lambda key: laplace([500_000], key), jit)
    assert not uniformity_refuted(stats.laplace.cdf(found))
    assert uniformity_refuted(stats.laplace.cdf(found + 0.01))
    far = np.abs(found[np.abs(found) > 7]) - 7  # About 450.
    assert not uniformity_refuted(np.exp(-far))


@JITS
def test_signs(jit: bool) -> None:
    found = _drawn(lambda key: signs([100_000], key), jit)
    assert set(found) == {-1.0, 1.0}
    heads = int((found > 0).sum())
    assert stats.binomtest(heads, found.size).pvalue > FALSE_ALARM


def chi_refuted(
    excess: np.ndarray, width: int, low: float, high: float = math.inf
) -> bool:
    """That low + excess are norms of normal vectors between low and high."""
    below, above = (
        lambda x, f=f: f(width / 2, np.square(x) / 2)
        for f in (special.gammainc, special.gammaincc)
    )
    if above(high) > 0.5:  # The side that has the digits.
        parts = [below(x) for x in (low, low + excess, high)]
    else:
        parts = [-above(x) for x in (low, low + excess, high)]
    return uniformity_refuted((parts[1] - parts[0]) / (parts[2] - parts[0]))


DRAWS = 50_000
# XLA compiles one program for width 1, and one for all others; numbers that
# these are given differ.
TAILS = [
    (1, 0.0, False),
    (1, 4.0, False),
    (1, 9.0, True),
    (2, 6.5, False),
    (3, 1.0, True),
    (3, 6.0, False),
    (16, 3.0, False),
    (16, 9.0, False),
    (32, 10.5, True),
    (64, 8.5, False),
    (64, 14.0, False),
    (1024, 36.0, True),
]


@pytest.mark.parametrize("width, low, jit", TAILS)
def test_how_far_norms_exceed(width: int, low: float, jit: bool) -> None:
    def function(key: tf.Tensor) -> tf.Tensor:
        return chi_excess([DRAWS], key, width=width, low=low)

    found = _drawn(function, False)
    assert found.min() >= 0
    assert not chi_refuted(found, width, low)
    assert chi_refuted(found + 0.05, width, low)  # Drawn from too far out.
    assert chi_refuted(found * 1.05, width, low)
    if jit:  # The same bits, but for how logarithms are rounded.
        np.testing.assert_allclose(_drawn(function, True), found, 1e-4, 1e-6)


BANDS = [
    (1, 0.0, 0.5),
    (1, 5.0, 9.0),
    (2, 0.99, 1.0),
    (16, 0.0, 1.0),
    (16, 2.0, 5.0),
    (64, 7.0, 9.0),
    (64, 5.0, 5.5),
    (64, 10.0, 10.001),
]


@pytest.mark.parametrize("width, low, high", BANDS)
def test_norms_between(width: int, low: float, high: float) -> None:
    def function(key: tf.Tensor, *limits: Any) -> tf.Tensor:
        low, high = limits
        return chi_excess([DRAWS], key, width=width, low=low, high=high)

    found = _drawn(lambda key: function(key, low, high), False)
    assert 0 <= found.min() < found.max() <= high - low + 1e-6
    assert not chi_refuted(found, width, low, high)
    assert chi_refuted(found * 0.95, width, low, high)
    tensors = [tf.constant(x, tf.float64) for x in (low, high)]
    np.testing.assert_allclose(function(KEY, *tensors), found, 1e-4, 1e-6)


def test_a_tail_cut_where_tensorflow_cuts_it_is_refuted() -> None:
    """Half of what exceeds 5.6 is beyond 5.7; all of it should be found."""
    found = chi_excess([DRAWS], KEY, width=1, low=5.6).numpy().astype(float)
    assert not chi_refuted(found, 1, 5.6)
    assert chi_refuted(found[found <= 0.07], 1, 5.6)
    assert chi_refuted(np.minimum(found, 0.07), 1, 5.6)


@pytest.mark.parametrize("high", [0.01, 1.5, 20.0])
def test_exponential_numbers_below(high: float) -> None:
    found = cut_exponential([DRAWS], KEY, high).numpy().astype(float)
    assert 0 <= found.min() < found.max() <= high
    assert not uniformity_refuted(np.expm1(-found) / np.expm1(-high))
    assert uniformity_refuted(np.expm1(-0.95 * found) / np.expm1(-high))


@pytest.mark.parametrize(
    "low, high", [(-1.0, 2.0), (3.0, 3.0), (4.0, 3.0), (math.nan, 3.0)]
)
def test_norms_that_cannot_be(low: float, high: float) -> None:
    """They would be looked for without end."""
    with pytest.raises(ValueError, match="expected 0 <= low < high"):
        chi_excess([1], KEY, width=2, low=low, high=high)
