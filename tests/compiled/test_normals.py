"""Normal numbers by compiled kernels: exact bits, and when they are used.

That the numbers have the law they claim is in `test_random_tails`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.noise_claims import assert_stddev
from tf_sparse_dp.compiled import kernels, normals
from tf_sparse_dp.mechanisms.gaussian import with_noise
from tf_sparse_dp.random_keys import random_bits

pytestmark = [pytest.mark.once, pytest.mark.lane]

KEY = np.array([5, -7], np.int64)
COUNT = 2**16 + 3


def traced(function: Any, **options: Any) -> Any:
    return tf.function(function, autograph=False, **options)(tf.constant(KEY))


def test_words_are_those_of_philox() -> None:
    """Bit for bit what TensorFlow's own kernel gives."""
    words = traced(lambda key: normals._words(2**20, key)).numpy()
    expected = random_bits([2**20], tf.constant(KEY), tf.uint32).numpy()
    np.testing.assert_array_equal(words, expected)
    # Also where two words together are no number, of either kind.
    doubles = expected.view(np.float64)
    assert 100 < np.isnan(doubles).sum() < len(doubles)


def test_radius_and_angle_are_what_the_bits_say() -> None:
    words = np.random.RandomState(0).randint(0, 2**32, (3, 4096), np.uint64)
    words[:, :4] = [[1, 2**32 - 1, 0, 2], [0, 2**32 - 1, 1, 3], [0, 0, 1, 2]]
    # Where quarters of a turn begin and end.
    words[2, 4:12] = [k * 2**30 - d for k in range(1, 5) for d in (1, 0)]
    words %= 2**32
    high, low, turn = words.astype(np.float64)
    small = (high // 2) * 2.0**-32 + low * 2.0**-64 + 2.0**-65
    expected = np.where(high % 2 == 1, -np.log(small), -np.log1p(-small))
    radius, sine, cosine = tf.function(
        normals._polar, jit_compile=True, autograph=False
    )(tf.constant(words, tf.uint32))
    # A dozen roundings of 6e-8 at most, halved by the root; and for the angle
    # one of a quarter of a turn, of which the sine's polynomial adds 6e-8.
    np.testing.assert_allclose(radius, np.sqrt(2 * expected), 1e-6)
    angle = 2 * np.pi * turn * 2.0**-32
    np.testing.assert_allclose(sine, np.sin(angle), 0, 3e-7)
    np.testing.assert_allclose(cosine, np.cos(angle), 0, 3e-7)
    assert radius[0] > 9.4  # As far out as it goes, and as near to 0.
    assert 0 < radius[2] < 1e-9
    assert np.isfinite(radius).all()


@pytest.mark.parametrize("size", [COUNT, 2**17, 100_000])
def test_sums_get_noise_of_the_right_size(size: int) -> None:
    total = np.arange(size, dtype=np.float32) % 1000

    def noise(key: tf.Tensor) -> tf.Tensor:
        return with_noise(tf.constant(total), key, 3.0) - total

    drawn = traced(noise).numpy()
    assert drawn.shape == (size,)
    assert_stddev(drawn, 3.0)
    # No number stands in two places.
    assert len(np.unique(traced(lambda k: _normals(size, k)))) > 0.98 * size


def _normals(count: int, key: tf.Tensor, most: int | None = None) -> tf.Tensor:
    def of_size(size: int) -> tf.Tensor:
        zeros = tf.zeros([size + size % 2])
        return normals.with_normals(lambda _, x: x, zeros, key)[:count]

    return kernels.with_room(
        tf.constant(count), count if most is None else most, of_size
    )


def test_each_row_gets_what_is_its_own() -> None:
    rows = np.arange(2**12, dtype=np.float32)[:, np.newaxis]
    drawn = traced(
        lambda key: normals.with_normals(
            lambda values, numbers, size: values + size * numbers,
            tf.constant(np.tile(rows, 16)),
            key,
            tf.constant(rows),
        )
    ).numpy()
    assert not drawn[0].any()
    assert_stddev((drawn[1:] - rows[1:]) / rows[1:], 1.0)


@pytest.mark.parametrize("count", [0, 1, COUNT // 4, COUNT // 2, COUNT])
def test_as_many_as_turn_out_to_be_needed(count: int) -> None:
    drawn = traced(lambda key: _normals(count, key, COUNT)).numpy()
    assert drawn.shape == (count,)
    if count > 10_000:
        assert_stddev(drawn, 1.0)


def test_when_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(key: tf.Tensor) -> tf.Tensor:
        asked.append([kernels.can_do(n) for n in (COUNT, 9)])
        return key

    ask(tf.constant(KEY))  # Eager.
    traced(ask)
    traced(ask, jit_compile=True)
    monkeypatch.setattr(kernels, "_compiles", lambda: False)
    traced(ask)
    assert [one[0] for one in asked] == [False, True, False, False]
    assert not any(one[1] for one in asked)


def test_without_a_compiler_noise_is_drawn_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any) -> Any:
        raise tf.errors.InvalidArgumentError(None, None, "no compiler here")

    monkeypatch.setattr(kernels, "kernel", lambda function: refuse)
    kernels._compiles.cache_clear()
    try:
        drawn = traced(lambda key: with_noise(tf.zeros([COUNT]), key, 1.0))
    finally:
        kernels._compiles.cache_clear()
    assert_stddev(drawn.numpy(), 1.0)
