"""The Gaussian mechanism adds noise of the right size to every entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.mechanisms.public_facts import facts
from tests.noise_claims import (
    ENOUGH,
    assert_stddev,
    distribution_refuted,
    independence_refuted,
)
from tf_sparse_dp.mechanisms import Gaussian
from tf_sparse_dp.mechanisms.interface import Sum
from tf_sparse_dp.random_keys import fold_in

pytestmark = pytest.mark.once

KEY = tf.constant([5, 6], tf.int64)
STDDEV = 3.5
ROWS, WIDTH = 2 * ENOUGH // 16, 16
TOUCHED = ROWS // 2  # Rows 0, 2, 4, ...


def dense_sum() -> np.ndarray:
    return np.linspace(-5, 5, ENOUGH, dtype="float32").reshape(-1, 32)


def table_sum() -> tf.IndexedSlices:
    """Every touched row twice."""
    ids = np.tile(2 * np.arange(TOUCHED), 2)
    values = np.linspace(-5, 5, 2 * TOUCHED * WIDTH, dtype="float32")
    return tf.IndexedSlices(
        tf.constant(values.reshape(-1, WIDTH)),
        tf.constant(ids, tf.int32),
        tf.constant([ROWS, WIDTH], tf.int64),
    )


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _graph(function: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(function)


def _xla(function: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(function, jit_compile=True)


WAYS = [_plain, _graph, _xla]


def release(
    way: Callable[..., Any],
    sums: Sequence[Sum],
    key: tf.Tensor = KEY,
    stddev: float = STDDEV,
) -> list[np.ndarray]:
    """What is released, as dense arrays."""
    function = way(
        lambda key: [
            tf.convert_to_tensor(released)
            for released in Gaussian().release(sums, key, facts(sums, stddev))
        ]
    )
    return [released.numpy() for released in function(key)]


def noise(way: Callable[..., Any], *sums: Sum, **options: Any) -> list[Any]:
    exact = [tf.convert_to_tensor(total).numpy() for total in sums]
    released = release(way, sums, **options)
    return [r - e for r, e in zip(released, exact, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_a_dense_variable(way: Callable[..., Any]) -> None:
    (found,) = noise(way, tf.constant(dense_sum()))
    assert_stddev(found, STDDEV)
    assert not distribution_refuted(found / STDDEV)


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_were_touched_and_rows_that_were_not(
    way: Callable[..., Any],
) -> None:
    (found,) = noise(way, table_sum())
    assert_stddev(found[::2], STDDEV)
    assert_stddev(found[1::2], STDDEV)
    assert not independence_refuted(found[::2], found[1::2], STDDEV)


@pytest.mark.parametrize("way", [_graph, _xla])
def test_scalar_variables(way: Callable[..., Any]) -> None:
    def together(key: tf.Tensor) -> tf.Tensor:
        sums = [tf.constant(2.0)] * 8
        released = Gaussian().release(sums, key, facts(sums, STDDEV))
        return tf.stack(released) - 2.0

    keys = tf.constant([[i, 1] for i in range(ENOUGH // 8)], tf.int64)
    function = way(
        lambda keys: tf.map_fn(together, keys, fn_output_signature=tf.float32)
    )
    assert_stddev(function(keys).numpy(), STDDEV)


def test_variables_have_noise_of_their_own() -> None:
    zeros = tf.zeros([ENOUGH // 32, 32])
    one, two, three = noise(_graph, zeros, tf.transpose(zeros), zeros)
    assert not independence_refuted(one, two, STDDEV)
    assert not independence_refuted(one, three, STDDEV)
    assert independence_refuted(one, one, STDDEV)


def test_keys_have_noise_of_their_own() -> None:
    zeros = tf.zeros([ENOUGH])
    (one,) = noise(_graph, zeros)
    (two,) = noise(_graph, zeros, key=fold_in(KEY, 1))
    assert not independence_refuted(one, two, STDDEV)
    (again,) = noise(_graph, zeros)
    np.testing.assert_array_equal(one, again)


@pytest.mark.parametrize("stddev", [1e-3, 1.0, 1e3])
def test_the_size_is_that_which_was_asked_for(stddev: float) -> None:
    (found,) = noise(_graph, tf.zeros([ENOUGH]), stddev=stddev)
    assert_stddev(found, stddev)


@pytest.mark.parametrize("way", WAYS)
def test_noise_does_not_tell_which_rows_were_touched(
    way: Callable[..., Any],
) -> None:
    table = table_sum()
    shape = table.dense_shape
    touched = tf.zeros_like(table.values), table.indices
    nothing = tf.zeros([0, WIDTH]), tf.zeros([0], tf.int32)
    one, other = (
        release(way, [tf.IndexedSlices(*rows, shape)])
        for rows in (touched, nothing)
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("way", WAYS[:2])
def test_without_noise_sums_stay_as_they_are(way: Callable[..., Any]) -> None:
    given = [tf.constant(dense_sum()), table_sum()]
    public = facts(given, 0.0)
    function = way(lambda sums: Gaussian().release(sums, KEY, public))
    dense, table = function(given)
    np.testing.assert_array_equal(dense, dense_sum())
    assert isinstance(table, tf.IndexedSlices)
    ids = table.indices.numpy()
    assert sorted(ids) == list(range(0, ROWS, 2))  # Each touched row once.
    np.testing.assert_array_equal(
        tf.convert_to_tensor(table), tf.convert_to_tensor(table_sum())
    )


def test_without_noise_nothing_touched_is_nothing_released() -> None:
    nothing = tf.IndexedSlices(
        tf.zeros([0, WIDTH]),
        tf.zeros([0], tf.int32),
        tf.constant([ROWS, WIDTH], tf.int64),
    )
    (released,) = Gaussian().release([nothing], KEY, facts([nothing], 0.0))
    assert released.values.shape == (0, WIDTH)


def test_config_round_trip() -> None:
    mechanism = Gaussian()
    assert Gaussian(**mechanism.get_config()) == mechanism


def test_description_is_a_phrase_for_the_statement() -> None:
    assert "Gaussian noise" in Gaussian().description


@pytest.mark.parametrize("stddev", [1e-8, 1e12])
def test_very_little_noise_and_very_much(stddev: float) -> None:
    (noise,) = release(_plain, [tf.zeros([ENOUGH])], stddev=stddev)
    assert_stddev(noise, stddev)
