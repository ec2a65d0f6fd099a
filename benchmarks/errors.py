"""How far private sums are from the exact ones: the error of each mechanism.

    make bench-errors  # kept for docs/results.md
    python -m benchmarks.errors --seed 1 --repetitions 10

One table of 200,000 rows of width 16. Each of 1024 examples has a gradient of
norm 1 on 26 rows, which are drawn by popularity (Zipf, exponent 1.1); examples
that share a row share a direction there, up to individual noise. The error is
the L2 distance of the private mean to the exact mean, at epsilon 1 and delta
1e-6 for examples that are replaced, by the classical calibration of Gaussian
noise. Data and keys are fixed by --seed.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks import record
from tf_sparse_dp.mechanisms import Gaussian, Mechanism, Projection, Threshold
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.random_keys import fold_in

ROWS, WIDTH, EXAMPLES, LOOKUPS = 200_000, 16, 1024, 26
EPSILON, DELTA, EXPONENT = 1.0, 1e-6, 1.1
# Twice the sensitivity 1 of adding or removing.
NOISE_MULTIPLIER = 2 * math.sqrt(2 * math.log(1.25 / DELTA)) / EPSILON

MECHANISMS: dict[str, Mechanism] = {
    "dense noise": Gaussian(),
    "coordinate projection": Projection(geometry="coordinates"),
    "row projection": Projection(),
    "row threshold": Threshold(),
    "row threshold by SURE": Threshold(choice="sure"),
}


def popular_rows(rng: np.random.Generator) -> tf.IndexedSlices:
    """The sum of all examples' gradients."""
    popularity = np.cumsum(np.arange(1.0, ROWS + 1) ** -EXPONENT)
    draws = rng.random([EXAMPLES, LOOKUPS]) * popularity[-1]
    ids = np.searchsorted(popularity, draws)
    shared, places = np.unique(ids, return_inverse=True)
    places = places.reshape(ids.shape)
    gradients = rng.standard_normal([len(shared), WIDTH])[places]
    gradients += 0.7 * rng.standard_normal(gradients.shape)
    gradients /= np.sqrt(np.square(gradients).sum((1, 2), keepdims=True))
    return tf.IndexedSlices(
        tf.constant(gradients.reshape(-1, WIDTH), tf.float32),
        tf.constant(ids.reshape(-1)),
        tf.constant([ROWS, WIDTH], tf.int64),
    )


def error(
    mechanism: Mechanism, total: tf.IndexedSlices, key: tf.Tensor
) -> float:
    """Distance of the private mean to the exact mean."""
    table = Variable(shape=(ROWS, WIDTH), sparse=True, lookups=LOOKUPS)
    facts = PublicFacts(
        variables=(table,),
        clip_norm=1.0,
        noise_multiplier=NOISE_MULTIPLIER,
        expected_batch_size=float(EXAMPLES),
        failure_probability=2.0**-100,
    )
    (private,) = mechanism.release([total], key, facts)
    difference = tf.convert_to_tensor(private) - tf.convert_to_tensor(total)
    return float(tf.norm(difference)) / EXAMPLES


def samples(seed: int, repetitions: int) -> dict[str, list[float]]:
    """Errors of every mechanism, with new data and keys each time."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {name: [] for name in MECHANISMS}
    for repetition in range(repetitions):
        total = popular_rows(rng)
        key = fold_in(tf.constant([seed, 0], tf.int64), repetition)
        for name, mechanism in MECHANISMS.items():
            found[name].append(error(mechanism, total, key))
    return found


def errors(seed: int, repetitions: int) -> dict[str, float]:
    """Mean error of every mechanism."""
    found = samples(seed, repetitions)
    return {name: float(np.mean(values)) for name, values in found.items()}


def kept(
    found: dict[str, list[float]], seed: int, seconds: float
) -> dict[str, Any]:
    """All of it, in the form of a record."""
    return record.record(
        "How far is a private mean from the exact one, in a single release?",
        [
            {
                "mechanism": name,
                "error": float(np.mean(values)),
                "least": min(values),
                "most": max(values),
                "repetitions": len(values),
            }
            for name, values in found.items()
        ],
        command="make bench-errors",
        settings={
            "rows": ROWS,
            "width": WIDTH,
            "examples": EXAMPLES,
            "lookups": LOOKUPS,
            "epsilon": EPSILON,
            "delta": DELTA,
            "popularity": f"Zipf, exponent {EXPONENT}",
            "noise multiplier": round(NOISE_MULTIPLIER, 3),
            "seed": seed,
            "seconds": round(seconds),
        },
    )


def main() -> None:
    """Prints the table, and keeps it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="keep the figures")
    arguments = parser.parse_args()
    start = time.perf_counter()
    found = samples(arguments.seed, arguments.repetitions)
    for name, values in found.items():
        print(f"{name:24s} {np.mean(values):7.4f}")
    seconds = time.perf_counter() - start
    print(f"({seconds:.0f} s)")
    if arguments.json is not None:
        record.write(kept(found, arguments.seed, seconds), arguments.json)


if __name__ == "__main__":
    main()
