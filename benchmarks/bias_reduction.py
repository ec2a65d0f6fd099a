"""What the bias-reduced estimate is, and what training with it is worth.

    python benchmarks/bias_reduction.py estimator
    python benchmarks/bias_reduction.py training

`estimator`: bias and second moment on a grid of problems, from the releases of
`BiasReduction` (see `bias_reduction_moments`). Fails if the bias is not that of
the inner mechanism on the largest batch within a factor of 1.3, or the second
moment not the lemma's form, fitted at the first point, within a factor of 2.

`training`: a logistic regression with sparse rows, by bias-reduced SGD and by
simpler methods at the same epsilon and delta, for examples that are replaced.
All return the mean of their iterates. The learning rate is the best of four for
each (by the training loss, which costs privacy that is not counted, for all);
the figures are means over runs of their own with that rate.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import dp_accounting
import numpy as np
import tensorflow as tf
from bias_reduction_moments import Point, of_plain, of_reduced
from scipy import optimize, special, stats

import tf_sparse_dp as tsdp

GRID = [
    Point(n, d, s, z)
    for n, (d, s), z in itertools.product(
        (32, 128), ((512, 4), (4096, 16)), (1.0, 4.0)
    )
]
SMALL = 8  # A batch that is not the full one.
MOST_BIAS, MOST_SQUARE = 1.3, 2.0

EXAMPLES, ROWS, LOOKUPS, DELTA = 1024, 4096, 8, 1e-6
RATES = (0.03, 0.3, 3.0, 30.0)
STEPS, BATCH = 100, 128
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def estimator(draws: int) -> bool:
    """Prints the grid; whether all of it is as it should be."""
    print("n d s z | gradient | bias: batch of 8, full, reduced | E|G|^2, fit")
    constant, good = 0.0, True
    for place, point in enumerate(GRID):
        inner = tsdp.Projection()
        largest = 2 ** (point.sampling.largest + 1)
        truth = point.mean
        small = of_plain(point, inner, SMALL, draws).bias(truth)
        full = of_plain(point, inner, largest, 2 * draws).bias(truth)
        reduced = of_reduced(point, inner, draws)
        bias = reduced.bias(truth)
        if place == 0:
            constant = reduced.square / point.second_moment
        fit = constant * point.second_moment
        print(
            f"{point.n} {point.d} {point.s} {point.z:g} | "
            f"{np.linalg.norm(truth):.3f} | {small:.3f} {full:.3f} {bias:.3f} "
            f"| {reduced.square:.1f} {fit:.1f}",
            flush=True,
        )
        good &= max(bias / full, full / bias) < MOST_BIAS
        good &= max(reduced.square / fit, fit / reduced.square) < MOST_SQUARE
    return good


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Ids and labels of a planted model; popular rows come more often."""
    rng = np.random.default_rng(0)
    popularity = np.arange(1.0, ROWS + 1) ** -1.1
    popularity /= popularity.sum()
    ids = np.stack(
        [
            rng.choice(ROWS, LOOKUPS, replace=False, p=popularity)
            for _ in range(EXAMPLES)
        ]
    )
    margin = rng.normal(size=ROWS)[ids].sum(1)
    labels = rng.random(EXAMPLES) < special.expit(margin)
    return ids.astype("int32"), labels.astype("float32")[:, None]


IDS, LABELS = problem()


def compiled(optimizer: Any) -> Any:
    """A linear model of the sum of the rows that an example looks up."""
    model = tf.keras.Sequential(
        [
            tf.keras.Input((LOOKUPS,), dtype="int32"),
            tf.keras.layers.Embedding(ROWS, 1, embeddings_initializer="zeros"),
            tf.keras.layers.Lambda(lambda x: tf.reduce_sum(x, 1)),
        ]
    )
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def loss_of(model: Any) -> float:
    """On all training examples."""
    margins = model.get_weights()[0][IDS, 0].sum(1)
    signs = 2 * LABELS[:, 0] - 1
    return float(np.mean(np.logaddexp(0, -signs * margins)))


def bias_reduced(epsilon: float, rate: float, accounting: Any) -> float:
    """The loss after a run that its filter has ended."""
    budget = tsdp.BiasReducedBudget(
        num_examples=EXAMPLES,
        epsilon=epsilon,
        delta=DELTA,
        accounting=accounting,
    )
    sampling = tsdp.BiasReducedSampling(num_examples=EXAMPLES, steps=2000)
    optimizer = tsdp.DPSparseOptimizer(
        tf.keras.optimizers.SGD(rate),
        budget.filter,
        sampling=sampling,
        noise_multiplier=budget.noise_multiplier,
        mechanism=tsdp.BiasReduction(tsdp.Projection()),
    )
    model = compiled(optimizer)
    model.fit(
        sampling.dataset((IDS, LABELS)),
        verbose=0,
        callbacks=[tsdp.PrivacyBudget(), tsdp.AverageIterate()],
    )
    return loss_of(model)


def full_batch_noise(epsilon: float) -> float:
    """Of STEPS sums over all examples, of which one is replaced: exact."""

    def excess(z: float) -> float:
        mu = 2 * math.sqrt(STEPS) / z
        low = stats.norm.cdf(mu / 2 - epsilon / mu)
        high = stats.norm.cdf(-mu / 2 - epsilon / mu)
        return float(low - math.exp(epsilon) * high) - DELTA

    return float(optimize.brentq(excess, 1.0, 1e5))


def sampled_noise(epsilon: float) -> float:
    """Of STEPS batches of BATCH examples without replacement."""

    def affords(z: float) -> bool:
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            EXAMPLES, BATCH, dp_accounting.GaussianDpEvent(z)
        )
        try:
            budget = tsdp.RenyiFilter.suited_to(
                event,
                epsilon=epsilon,
                delta=DELTA,
                neighboring_relation=REPLACE_ONE,
            )
        except ValueError:  # Not even one.
            return False
        return budget.affordable(event, STEPS) >= STEPS

    low, high = 0.5, 0.5
    while not affords(high):
        high *= 2
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (low, middle) if affords(middle) else (middle, high)
    return high


def fixed_batches(
    noise: float, batch: int, mechanism: Any
) -> Callable[[float], float]:
    """Training with batches of one size; what it costs is worked out above."""

    def trained(rate: float) -> float:
        optimizer = tsdp.DPSparseOptimizer(
            tf.keras.optimizers.SGD(rate),
            noise_multiplier=noise,
            expected_batch_size=float(batch),
            mechanism=mechanism,
        )
        model = compiled(optimizer)
        rng = np.random.default_rng()
        chosen = np.concatenate(
            [rng.permutation(EXAMPLES)[:batch] for _ in range(STEPS)]
        )
        data = tf.data.Dataset.from_tensor_slices((IDS[chosen], LABELS[chosen]))
        model.fit(
            data.batch(batch, drop_remainder=True),
            verbose=0,
            callbacks=[tsdp.AverageIterate()],
        )
        return loss_of(model)

    return trained


def training(runs: int, epsilons: list[float]) -> None:
    """Prints the loss of each method."""
    print(f"no training at all: {math.log(2):.3f}")
    for epsilon in epsilons:
        whole, part = full_batch_noise(epsilon), sampled_noise(epsilon)
        methods: dict[str, Callable[[float], float]] = {
            "DP-GD, dense noise": fixed_batches(
                whole, EXAMPLES, tsdp.Gaussian()
            ),
            "DP-GD, projection": fixed_batches(
                whole, EXAMPLES, tsdp.Projection()
            ),
            "DP-SGD, dense noise": fixed_batches(part, BATCH, tsdp.Gaussian()),
            "bias-reduced, tight": lambda rate, e=epsilon: bias_reduced(  # type: ignore[misc]
                e, rate, "tight"
            ),
            "bias-reduced, paper": lambda rate, e=epsilon: bias_reduced(  # type: ignore[misc]
                e, rate, "paper"
            ),
        }
        print(f"noise: DP-GD {whole:.2f}, DP-SGD {part:.2f}", flush=True)
        for name, method in methods.items():
            rates = RATES
            if name.startswith("bias"):  # Its steps are many times as long.
                rates = tuple(rate / 100 for rate in RATES)
            best = min(rates, key=method)
            losses = [method(best) for _ in range(runs)]
            error = np.std(losses, ddof=1) / math.sqrt(runs)
            print(
                f"epsilon {epsilon:g} {name}: rate {best:g}, loss "
                f"{np.mean(losses):.3f} ± {error:.3f}",
                flush=True,
            )


def main() -> int:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["estimator", "training"])
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1, 4])
    options = parser.parse_args()
    if options.what == "training":
        training(options.runs, options.epsilon)
        return 0
    good = estimator(options.draws)
    print("as it should be" if good else "NOT as it should be")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
