"""Solvers find what they minimise, and never anything that is not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize

from benchmarks import compressed_sensing as benchmark
from tests.mechanisms.test_measurements import EVERY, KEY, entries
from tf_sparse_dp.mechanisms.measurements import Hadamard
from tf_sparse_dp.mechanisms.recovery import SOLVERS, recover

pytestmark = pytest.mark.once

SOLVER = pytest.mark.parametrize("solver", SOLVERS)


def solved(solver: str, measurement: Any, sketch: Any, **options: Any) -> Any:
    """What is recovered, by a graph: loops in Python are slow."""
    return tf.function(
        lambda sketch: recover(solver, measurement, sketch, **options)
    )(tf.constant(sketch, tf.float32)).numpy()


def sparse_table(rows: int, count: int, width: int = 1) -> np.ndarray:
    rng = np.random.default_rng(rows + count)
    table = np.zeros([rows, width])
    ids = rng.permutation(rows)[:count]
    table[ids] = 3 * rng.standard_normal((count, width))
    return table


def noisy(matrix: np.ndarray, table: np.ndarray, stddev: float) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(
        (len(matrix), table.shape[1])
    )
    sketch = matrix[:, : len(table)] @ table + stddev * noise
    return sketch.astype("float32")


@EVERY
def test_basis_pursuit_agrees_with_linear_programming(
    kind: Callable[..., Any],
) -> None:
    rows, count = 300, 60
    measurement = kind(rows, count, KEY)
    matrix = entries(measurement)[:, :rows]
    sketch = noisy(matrix, sparse_table(rows, 8), 0.1)
    # x = u - v with u, v ≥ 0; least Σ u + v.
    program = optimize.linprog(
        np.ones(2 * rows),
        A_eq=np.hstack([matrix, -matrix]),
        b_eq=sketch[:, 0],
        method="highs",
    )
    expected = program.x[:rows] - program.x[rows:]
    found = solved("basis_pursuit", measurement, sketch, iterations=3000)[:, 0]
    np.testing.assert_allclose(matrix @ found, sketch[:, 0], atol=2e-3)
    assert np.abs(found).sum() == pytest.approx(program.fun, rel=1e-3)
    distance = np.linalg.norm(found - expected)
    assert distance < 0.01 * np.linalg.norm(expected)


def test_basis_pursuit_by_rows_agrees_with_a_general_solver() -> None:
    rows, width = 14, 2
    measurement = Hadamard(rows, 6, KEY)
    matrix = entries(measurement)[:, :rows]
    sketch = noisy(matrix, sparse_table(rows, 2, width), 0.1)

    def length(flat: np.ndarray) -> float:
        squares = np.square(flat.reshape(rows, width)).sum(1)
        return np.sqrt(squares + 1e-10).sum()

    program = optimize.minimize(
        length,
        (matrix.T @ sketch).ravel(),
        method="SLSQP",
        constraints={
            "type": "eq",
            "fun": lambda flat: (
                matrix @ flat.reshape(rows, width) - sketch
            ).ravel(),
        },
        options={"maxiter": 1000, "ftol": 1e-10},
    )
    found = solved("basis_pursuit", measurement, sketch, iterations=3000)
    np.testing.assert_allclose(matrix @ found, sketch, atol=2e-3)
    assert length(found) == pytest.approx(program.fun, rel=2e-3)


@pytest.mark.parametrize("width", [1, 3])
def test_the_lasso_is_at_its_minimum(width: int) -> None:
    """Rows r of A'(b - Ax) are λ x_r/|x_r|; where x_r = 0, within λ."""
    rows = 300
    measurement = Hadamard(rows, 80, KEY)
    matrix = entries(measurement)[:, :rows]
    sketch = noisy(matrix, sparse_table(rows, 8, width), 0.1)
    found = solved("lasso", measurement, sketch, stddev=0.1, iterations=3000)
    slopes = matrix.T @ (sketch - matrix @ found)
    sizes = np.linalg.norm(slopes, axis=1)
    norms = np.linalg.norm(found, axis=1)
    active = norms > 0.01 * norms.max()
    assert 8 <= active.sum() < 60
    weight = sizes[active].mean()
    assert 0.1 < weight < 1
    assert sizes.max() < 1.01 * weight
    directions = found[active] / norms[active, None]
    np.testing.assert_allclose(
        slopes[active], weight * directions, atol=0.02 * weight
    )


@SOLVER
@pytest.mark.parametrize("width", [1, 4])
def test_without_noise_sparse_tables_are_found(solver: str, width: int) -> None:
    table = sparse_table(1500, 10, width)
    measurement = Hadamard(1500, 150, KEY)
    sketch = noisy(entries(measurement), table, 0.0)
    found = solved(solver, measurement, sketch, stddev=1e-3)
    error = np.linalg.norm(found - table) / np.linalg.norm(table)
    assert error < 0.03


def test_a_mean_of_a_million_coordinates() -> None:
    """The error is what thresholding noise on all coordinates leaves, or so.

    A prototype in float64 found 0.100 from as many measurements.
    """
    size = 10**6
    rng = np.random.default_rng(0)
    mean, count = benchmark.sparse_mean(rng, size), benchmark.measurements(size)
    assert count == 9792
    stddev = benchmark.stddev()
    key = tf.constant([0, 1], tf.int64)

    @tf.function
    def found(mean: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        measurement = Hadamard(size, count, key)
        sketch = measurement.sketch(mean[:, tf.newaxis], tf.range(size))
        return recover("amp", measurement, sketch + noise)

    noise = stddev * rng.standard_normal((count, 1))
    error = np.linalg.norm(found(mean, noise).numpy()[:, 0] - mean)
    assert error < 0.105
    everywhere = mean + stddev * rng.standard_normal(size)
    best = benchmark.best_threshold(everywhere, mean, stddev)
    assert 0.9 * best < error < 1.1 * best


BAD = {
    "zero": np.zeros([20, 3]),
    "nan": np.full([20, 3], np.nan),
    "inf": np.where(np.eye(20, 3), -np.inf, 1.0),
    "large": np.eye(20, 3) * 1e38,
    "small": np.eye(20, 3) * 1e-38,
    "noise": np.random.default_rng(0).standard_normal((20, 3)),
    "equal": 1e30 * np.ones([20, 3]),
}


@SOLVER
@pytest.mark.parametrize("rows", [21, 500])
def test_nothing_is_found_that_is_not_finite(solver: str, rows: int) -> None:
    measurement = Hadamard(rows, 20, KEY)
    recovered = tf.function(
        lambda sketch: recover(
            solver, measurement, sketch, stddev=1.0, iterations=30
        )
    )
    for name, sketch in BAD.items():
        found = recovered(tf.constant(sketch, tf.float32)).numpy()
        assert found.shape == (rows, 3)
        assert np.isfinite(found).all(), name
        if name in ("zero", "nan", "inf"):
            assert not found.any(), name


@SOLVER
def test_one_measurement_of_two_rows(solver: str) -> None:
    sketch = tf.constant([[2.0]])
    found = solved(solver, Hadamard(2, 1, KEY), sketch, stddev=0.1)
    assert np.isfinite(found).all()


@SOLVER
def test_eager_graph_and_xla_agree(solver: str) -> None:
    table = sparse_table(1000, 5, 2)
    sketch = noisy(entries(Hadamard(1000, 100, KEY)), table, 0.05)

    def found(key: tf.Tensor, sketch: tf.Tensor) -> tf.Tensor:
        return recover(
            solver,
            Hadamard(1000, 100, key),
            sketch,
            stddev=0.05,
            iterations=None if solver == "amp" else 100,
        )

    eager = found(KEY, sketch).numpy()
    assert np.linalg.norm(eager - table) < 0.5 * np.linalg.norm(table)
    for options in ({}, {"jit_compile": True}):
        other = tf.function(found, **options)(KEY, tf.constant(sketch))
        np.testing.assert_allclose(other, eager, atol=0.01)


def test_the_lasso_needs_the_noise() -> None:
    with pytest.raises(ValueError, match="give its stddev"):
        recover("lasso", Hadamard(20, 5, KEY), np.ones([5, 1], "float32"))
