"""How well, and how fast, compressed sensing recovers a sparse mean.

The mean of 2000 vectors of a million coordinates, each with 32 entries at
places of Zipf's law and of length about 1, at epsilon 1 and delta 1e-6: from
9792 noisy measurements by each solver, and from noise on every coordinate by
the best soft threshold and by projection. One line each: L2 error, seconds.
Then a table of 200,000 rows of width 16, of which 1024 units look up 16 each:
the whole mechanism, clipping included, beside the best threshold for rows.

    python benchmarks/compressed_sensing.py
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.factors import RowFactor
from tf_sparse_dp.mechanisms.compressed_sensing import MATRICES
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.mechanisms.recovery import recover

EXAMPLES, ENTRIES, EXPONENT = 2000, 32, 1.1
EPSILON, DELTA = 1.0, 1e-6


def sparse_mean(rng: np.random.Generator, size: int) -> np.ndarray:
    """The mean of sparse vectors whose entries share signs by coordinate."""
    weights = np.cumsum(np.arange(1, size + 1) ** -EXPONENT)
    places = np.searchsorted(
        weights / weights[-1], rng.random((EXAMPLES, ENTRIES))
    )
    signs = rng.choice([-1.0, 1.0], size)
    values = signs[places] * (1 + 0.3 * rng.standard_normal(places.shape))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    found = np.bincount(places.ravel(), values.ravel(), size) / EXAMPLES
    return found[rng.permutation(size)]


def measurements(size: int) -> int:
    """The paper's number."""
    ratio = ENTRIES * math.log(size / ENTRIES) / math.log(1 / DELTA)
    return int(EXAMPLES * EPSILON * math.sqrt(ratio))


def stddev() -> float:
    """Noise on the mean of vectors of length 1, each of them there or not."""
    return math.sqrt(2 * math.log(1.25 / DELTA)) / (EXAMPLES * EPSILON)


def best_threshold(noisy: np.ndarray, mean: np.ndarray, stddev: float) -> float:
    """The least error of all soft thresholds: nobody knows which that is."""
    return min(
        np.linalg.norm(_soft(noisy, multiple * stddev) - mean)
        for multiple in np.linspace(1, 6, 101)
    )


def projected(noisy: np.ndarray, radius: float) -> np.ndarray:
    """On the ball of the 1-norm."""
    sizes = np.sort(np.abs(noisy))[::-1]
    levels = (np.cumsum(sizes) - radius) / np.arange(1, sizes.size + 1)
    return _soft(noisy, levels[np.nonzero(sizes > levels)[0][-1]])


def table(rng: np.random.Generator, seed: int) -> None:
    """Prints the errors of means of rows."""
    rows, width, units, lookups, multiplier = 200_000, 16, 1024, 16, 10.6
    weights = np.cumsum(np.arange(1, rows + 1) ** -EXPONENT)
    ids = np.searchsorted(weights / weights[-1], rng.random((units, lookups)))
    directions = rng.standard_normal((rows, width))
    values = directions[ids] + rng.standard_normal((*ids.shape, width))
    values /= np.linalg.norm(values, axis=(1, 2), keepdims=True)
    terms = RowFactor(
        tf.constant(values, tf.float32), tf.constant(ids), (rows, width)
    )
    facts = PublicFacts(
        variables=(Variable.of(terms),),
        clip_norm=1.0,
        noise_multiplier=multiplier,
        expected_batch_size=float(units),
        failure_probability=2.0**-100,
    )
    print(f"\n{rows} rows of width {width}, noise {multiplier / units:.5f}")
    (total,) = tsdp.Gaussian().clipped([terms], tf.zeros([2], tf.int64), facts)
    mean = tf.convert_to_tensor(total).numpy() / units
    print(f"{'zero':32s} {np.linalg.norm(mean):.4f}")
    noisy = mean + multiplier / units * rng.standard_normal(mean.shape)
    print(f"{'noise':32s} {np.linalg.norm(noisy - mean):.4f}")
    norms = np.linalg.norm(noisy, axis=1, keepdims=True)
    best = min(
        np.linalg.norm(noisy * np.maximum(1 - level / norms, 0) - mean)
        for level in np.quantile(norms, np.linspace(0.9, 0.99999, 200))
    )
    print(f"{'best threshold for rows':32s} {best:.4f}")
    for geometry in ("rows", "coordinates"):
        mechanism = tsdp.CompressedSensing(geometry=geometry)

        @tf.function
        def step(key, mechanism=mechanism):  # type: ignore[no-untyped-def]
            sums = mechanism.clipped([terms], key, facts)
            return sums[0], mechanism.release(sums, key, facts)[0]

        key = tf.constant([seed, 2], tf.int64)
        step(key)
        start = time.perf_counter()
        sketch, found = step(key)
        seconds = time.perf_counter() - start
        error = np.linalg.norm(found.numpy() / units - mean)
        numbers = math.prod(sketch.shape)
        way = f"{geometry}, {numbers} numbers"
        print(f"{way:32s} {error:.4f}  {seconds:6.1f} s", flush=True)


def _soft(vector: np.ndarray, threshold: float) -> np.ndarray:
    return np.sign(vector) * np.maximum(np.abs(vector) - threshold, 0)


def solver(
    name: str, matrix: str, size: int, count: int, stddev: float, compiled: bool
) -> tuple[Callable[..., tf.Tensor], Callable[..., tf.Tensor]]:
    """What measures, and what recovers."""

    @tf.function(jit_compile=compiled)
    def measure(key: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        measurement = MATRICES[matrix](size, count, key)
        return measurement.sketch(mean[:, tf.newaxis], tf.range(size))

    @tf.function(jit_compile=compiled)
    def solve(key: tf.Tensor, sketch: tf.Tensor) -> tf.Tensor:
        measurement = MATRICES[matrix](size, count, key)
        return recover(name, measurement, sketch, stddev=stddev)

    return measure, solve


def main() -> None:
    """Prints one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10**6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    size, rng = options.size, np.random.default_rng(options.seed)
    mean, count = sparse_mean(rng, size), measurements(options.size)
    sigma = stddev()
    print(f"{size} coordinates, {count} measurements, noise {sigma:.5f}")
    print(f"{'zero':32s} {np.linalg.norm(mean):.4f}")
    noisy = mean + sigma * rng.standard_normal(size)
    print(f"{'noise':32s} {np.linalg.norm(noisy - mean):.4f}")
    print(f"{'best threshold':32s} {best_threshold(noisy, mean, sigma):.4f}")
    error = np.linalg.norm(projected(noisy, math.sqrt(ENTRIES)) - mean)
    print(f"{'projection':32s} {error:.4f}")
    key = tf.constant([options.seed, 1], tf.int64)
    noise = sigma * rng.standard_normal((count, 1))
    tf.get_logger().setLevel("ERROR")  # Every way is traced once, on purpose.
    for name, matrix, compiled in (
        ("amp", "hadamard", False),
        ("amp", "hadamard", True),
        ("amp", "cosine", False),
        ("lasso", "hadamard", False),
        ("basis_pursuit", "hadamard", False),
    ):
        measure, solve = solver(name, matrix, size, count, sigma, compiled)
        sketch = measure(key, tf.constant(mean)) + noise
        solve(key, sketch)
        start = time.perf_counter()
        found = solve(key, sketch).numpy()[:, 0]
        seconds = time.perf_counter() - start
        way = f"{name}, {matrix}{', XLA' if compiled else ''}"
        error = np.linalg.norm(found - mean)
        print(f"{way:32s} {error:.4f}  {seconds:6.1f} s", flush=True)
    table(rng, options.seed)


if __name__ == "__main__":
    main()
