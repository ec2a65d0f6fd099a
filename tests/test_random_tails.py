"""Standard normal numbers are standard normal, far out as well."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.noise_claims import (
    distribution_refuted,
    independence_refuted,
    stddev_refuted,
    tail_refuted,
)
from tf_sparse_dp.random_tails import normal

pytestmark = pytest.mark.once

KEY = np.array([11, 12], np.int64)
MANY = 4_000_000


def draw(shape: list[int], jit_compile: bool) -> np.ndarray:
    function = tf.function(lambda key: normal(shape, key))
    if jit_compile:
        function = tf.function(function, jit_compile=True)
    return function(tf.constant(KEY)).numpy()


@pytest.fixture(scope="module", params=[False, True], ids=["graph", "xla"])
def sample(request: pytest.FixtureRequest) -> np.ndarray:
    return draw([MANY], request.param)


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


def _from_bits(
    monkeypatch: pytest.MonkeyPatch, high: int, low: int, turn: int
) -> np.ndarray:
    """What `normal` makes of given random bits."""
    bits = tf.constant([[high], [low], [turn]], tf.uint32)
    monkeypatch.setattr(
        tf.random, "stateless_uniform", lambda *args, **options: bits
    )
    return normal([2], tf.constant(KEY)).numpy()


TOP = 2**32 - 1


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
        (2**31, 3),
    ],
)
def test_the_reach(
    monkeypatch: pytest.MonkeyPatch, high: int, low: int
) -> None:
    """Radius r is exceeded with probability exp(-r²/2), at all 64 bits."""
    found = _from_bits(monkeypatch, high, low, turn=0)
    probability = (high * 2.0**32 + low + 0.5) * 2.0**-64
    # Five roundings of float32, each within 2⁻²⁴, and a logarithm within four.
    np.testing.assert_allclose(
        np.exp(-(found[0].astype(np.float64) ** 2) / 2),
        probability,
        rtol=9 * 2.0**-24 * max(1.0, -2 * np.log(probability)),
    )
    assert found[1] == 0


def test_the_reach_is_past_that_of_tensorflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _from_bits(monkeypatch, 0, 0, turn=0)[0] > 9.4
    assert _from_bits(monkeypatch, 0, 0, turn=2**31)[0] < -9.4
    assert _from_bits(monkeypatch, 0, 0, turn=2**30)[1] > 9.4


def test_the_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.abs(_from_bits(monkeypatch, TOP, TOP, turn=TOP)).max() == 0
