"""Random matrices: what they are, and norms of sketches of many units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from tests.noise_claims import distribution_refuted
from tf_sparse_dp.mechanisms import measurements
from tf_sparse_dp.mechanisms.measurements import (
    Cosine,
    GaussianColumns,
    Hadamard,
    Measurement,
    walsh_hadamard,
)

pytestmark = pytest.mark.once

KEY = tf.constant([3, 4], tf.int64)
ROWS, COUNT, WIDTH = 300, 100, 3
EVERY = pytest.mark.parametrize(
    "kind", [Hadamard, Cosine, GaussianColumns], ids=lambda kind: kind.__name__
)


def entries(measurement: Measurement) -> np.ndarray:
    """The matrix, by measuring unit vectors: [m, domain]."""
    return measurement.measure(
        tf.eye(measurement.domain, dtype=tf.float64)
    ).numpy()


def units() -> tuple[np.ndarray, np.ndarray]:
    """Units with repeated rows, and with rows that there are not."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((7, 5, WIDTH)).astype("float32")
    ids = rng.integers(ROWS, size=(7, 5))
    ids[0], ids[1, 2:], ids[2, :2] = 4, 8, [-1, ROWS]
    return values, ids


def unit_sketches(measurement: Measurement) -> np.ndarray:
    """By definition, [7, m, width]."""
    values, ids = units()
    tables = np.zeros([7, ROWS, WIDTH])
    for table, rows, places in zip(tables, values, ids, strict=True):
        there = (places >= 0) & (places < ROWS)
        np.add.at(table, places[there], rows[there])
    return entries(measurement)[:, :ROWS] @ tables


def test_the_fast_transform_is_the_matrix() -> None:
    for bits in (0, 1, 7, 9):
        table = np.random.default_rng(bits).standard_normal((2**bits, 2))
        expected = scipy.linalg.hadamard(2**bits) @ table
        np.testing.assert_allclose(
            walsh_hadamard(tf.constant(table)), expected, atol=1e-12
        )
        single = walsh_hadamard(tf.constant(table[:, :1]))
        np.testing.assert_allclose(single, expected[:, :1], atol=1e-12)


@EVERY
def test_the_adjoint_is_the_transpose(kind: Callable[..., Any]) -> None:
    measurement = kind(ROWS, COUNT, KEY)
    rng = np.random.default_rng(1)
    table = rng.standard_normal((measurement.domain, WIDTH))
    sketch = rng.standard_normal((COUNT, WIDTH))
    measured = np.sum(measurement.measure(tf.constant(table)) * sketch)
    back = np.sum(measurement.adjoint(tf.constant(sketch)) * table)
    assert measured == pytest.approx(back, rel=1e-9)


@EVERY
def test_columns_singular_values_and_inverse(kind: Callable[..., Any]) -> None:
    measurement = kind(ROWS, COUNT, KEY)
    matrix = entries(measurement)
    norms = np.linalg.norm(matrix, axis=0)
    if kind is Hadamard:
        np.testing.assert_allclose(norms, 1, rtol=1e-12)
    assert np.mean(norms[:ROWS]) == pytest.approx(1, abs=0.02)
    assert np.linalg.norm(matrix, 2) ** 2 <= measurement.squared_norm * 1.0001
    sketch = np.random.default_rng(2).standard_normal((COUNT, WIDTH))
    np.testing.assert_allclose(
        measurement.inverse()(tf.constant(sketch)),
        np.linalg.solve(matrix @ matrix.T, sketch),
        atol=1e-4,
    )


@EVERY
def test_sketches_of_few_rows(kind: Callable[..., Any]) -> None:
    measurement = kind(ROWS, COUNT, KEY)
    values, ids = units()
    expected = unit_sketches(measurement)
    for unit in range(len(ids)):
        found = measurement.sketch(values[unit], tf.constant(ids[unit]))
        assert found.dtype == tf.float64
        np.testing.assert_allclose(found, expected[unit], atol=1e-6)
    nothing = measurement.sketch(
        tf.zeros([0, WIDTH]), tf.zeros([0], tf.int32)
    ).numpy()
    assert nothing.shape == (COUNT, WIDTH) and not nothing.any()


@EVERY
@pytest.mark.parametrize("chunk", [2**22, 60])  # 60: two units at a time.
def test_norms_of_unit_sketches(
    kind: Callable[..., Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "_CHUNK", chunk)
    measurement = kind(ROWS, COUNT, KEY)
    values, ids = map(tf.constant, units())
    squares, mass = tf.function(
        measurement.unit_squares,
        input_signature=[
            tf.TensorSpec([None, 5, WIDTH]),
            tf.TensorSpec([None, 5], tf.int64),
        ],
    )(values, ids)
    sketches = unit_sketches(measurement)
    expected = np.square(sketches).sum((1, 2))
    np.testing.assert_allclose(squares, expected, rtol=1e-6)
    assert (mass >= squares * (1 - 1e-9)).numpy().all()


@EVERY
def test_eager_graph_and_xla_have_the_same_matrix(
    kind: Callable[..., Any],
) -> None:
    values, ids = units()

    def sketch(key: tf.Tensor) -> tf.Tensor:
        measurement = kind(ROWS, COUNT, key)
        return measurement.sketch(values[3], tf.constant(ids[3]))

    eager = sketch(KEY).numpy()
    ways = {"graph": {}, "xla": {"jit_compile": True}}
    for options in ways.values():
        found = tf.function(sketch, **options)(KEY)
        np.testing.assert_allclose(found, eager, atol=1e-6)
    assert not np.allclose(sketch(KEY + 1), eager, atol=0.1)


def test_gaussian_columns_are_gaussian_and_their_own() -> None:
    measurement = GaussianColumns(10**9, 501, KEY)
    ids = tf.constant([0, 1, 2, 17, 10**9 - 1] * 4, tf.int64)
    columns = measurement.columns(ids).numpy()
    np.testing.assert_array_equal(columns[:5], columns[5:10])
    sample = measurement.columns(tf.range(400)).numpy() * np.sqrt(501)
    assert not distribution_refuted(sample)
    assert distribution_refuted(1.05 * sample)
    # No column resembles another: 80,000 products, each about N(0, 1/501).
    gram = sample @ sample.T / 501
    others = gram[~np.eye(400, dtype=bool)]
    assert np.abs(others).max() < 6 / np.sqrt(501)


def test_a_matrix_that_is_held_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measurement = GaussianColumns(ROWS, COUNT, KEY)
    held = measurement.held()
    assert held is not measurement
    table = tf.eye(ROWS, dtype=tf.float64)
    np.testing.assert_allclose(
        held.measure(table), measurement.measure(table), atol=1e-6
    )
    sketch = tf.eye(COUNT, dtype=tf.float64)
    np.testing.assert_allclose(
        held.adjoint(sketch), measurement.adjoint(sketch), atol=1e-6
    )
    monkeypatch.setattr(measurements, "_HELD", ROWS * COUNT - 1)
    assert measurement.held() is measurement


def test_more_measurements_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 to 8"):
        Hadamard(5, 9, KEY)
