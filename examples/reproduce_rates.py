"""How the error of a private mean falls with the number of examples.

    python examples/reproduce_rates.py
    python examples/reproduce_rates.py --smoke

The projection mechanism estimates the mean of n vectors of d coordinates, of
which s are not zero, with an error that falls as n^(-1/2) while d is large
(whatever d is, up to logarithms), and as n^(-1) once n is large beside d; both
for pure privacy (Laplace noise) and with a delta (Gaussian noise). Theorems 3.2
and 3.3 of Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially Private
Optimization with Sparse Gradients" (2024), say so of the worst data; this
program measures it, fits the slopes and draws them.

The worst data depend on n: too few coordinates are easily found under the
noise, and too many hardly matter. So the sums are spread evenly over m
coordinates, and of all m = 1, 2, 4, ... the largest error counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import matplotlib
import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable

matplotlib.use("Agg")
from matplotlib import pyplot

EPSILON, DELTA = 1.0, 1e-6
SPARSITY = 4
CLIP_NORM = 1.0
HIGH, LOW = -0.5, -1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regime:
    """One line of the picture.

    Attributes:
      noise: "laplace" (pure) or "gaussian".
      dimension: Number of coordinates.
      examples: The numbers of examples.
      slope: What the theorem says.
    """

    noise: str
    dimension: int
    examples: tuple[int, ...]
    slope: float

    @property
    def name(self) -> str:
        privacy = "pure" if self.noise == "laplace" else "approximate"
        return f"{privacy}, d = {self.dimension:,}"


def regimes(smoke: bool) -> list[Regime]:
    """High and low dimension, pure and approximate."""
    dimension = 10**7 if smoke else 10**9
    few = (2**10, 2**14) if smoke else tuple(4**p for p in range(5, 10))
    many = (2**15, 2**19) if smoke else tuple(2 * 4**p for p in range(7, 11))
    return [
        Regime(noise=noise, dimension=d, examples=examples, slope=slope)
        for noise in ("laplace", "gaussian")
        for d, examples, slope in ((dimension, few, HIGH), (64, many, LOW))
    ]


@functools.cache
def noise_multiplier(noise: str) -> float:
    """Noise over sensitivity, for one release of everything."""
    if noise == "laplace":
        return 1 / EPSILON
    sampling = tsdp.EpochSampling(num_examples=1, batch_size=1, epochs=1)
    plan = tsdp.PrivacyPlan(epsilon=EPSILON, delta=DELTA, sampling=sampling)
    return plan.noise_multiplier


def releaser(regime: Regime, multiplier: float, examples: int) -> Callable:
    """A traced function from ids, values and a key to the private sums."""
    shape = (regime.dimension, 1)
    facts = PublicFacts(
        variables=(Variable(shape=shape, sparse=True, lookups=SPARSITY),),
        clip_norm=CLIP_NORM,
        noise_multiplier=multiplier,
        expected_batch_size=float(examples),
        # With Laplace noise no failure is allowed: there is no delta.
        failure_probability=RELEASE_FAILURE if regime.noise != "laplace" else 0,
    )
    mechanism = tsdp.Projection(geometry="coordinates", noise=regime.noise)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None, 1], tf.float32),
            tf.TensorSpec([2], tf.int64),
        ]
    )
    def release(ids: tf.Tensor, values: tf.Tensor, key: tf.Tensor) -> list:
        sums = tf.IndexedSlices(values, ids, tf.constant(shape, tf.int64))
        return mechanism.release([sums], key, facts)

    return release


def squared_error(
    release: Callable, examples: int, spread: int, trial: int
) -> float:
    """Of one private mean, where all examples together fill `spread` places."""
    # n vectors of norm C with s coordinates have an L1 norm of n C sqrt(s)
    # together, here in equal parts.
    total = examples * CLIP_NORM * math.sqrt(SPARSITY) / spread
    (private,) = release(
        tf.range(spread),
        tf.fill([spread, 1], tf.constant(total, tf.float32)),
        tf.constant([examples * 64 + trial, spread], tf.int64),
    )
    if isinstance(private, tf.IndexedSlices):
        ids = private.indices.numpy()
        values = private.values.numpy().astype(np.float64).ravel()
        released = np.zeros(spread)
        np.add.at(released, ids[ids < spread], values[ids < spread])
        elsewhere = np.square(values[ids >= spread]).sum()
    else:
        values = private.numpy().astype(np.float64).ravel()
        released, elsewhere = values[:spread], np.square(values[spread:]).sum()
    return (np.square(released - total).sum() + elsewhere) / examples**2


def worst_error(
    regime: Regime, multiplier: float, examples: int, trials: int
) -> float:
    """The largest error over spreads, root mean square over trials."""
    most = min(regime.dimension, examples * SPARSITY)
    release = releaser(regime, multiplier, examples)
    errors = [
        np.mean(
            [
                squared_error(release, examples, 2**power, trial)
                for trial in range(trials)
            ]
        )
        for power in range(int(math.log2(most)) + 1)
    ]
    return math.sqrt(max(errors))


def slope(examples: tuple[int, ...], errors: list[float]) -> float:
    """Of the line that fits best, in logarithms."""
    return float(np.polyfit(np.log(examples), np.log(errors), 1)[0])


def draw(found: list[tuple[Regime, list[float]]], path: pathlib.Path) -> None:
    """Errors over numbers of examples, one panel for each kind of privacy."""
    figure, panels = pyplot.subplots(
        1, 2, figsize=(8, 3.6), sharey=True, layout="constrained"
    )
    titles = {
        "laplace": f"pure, ε = {EPSILON:g} (Laplace)",
        "gaussian": f"ε = {EPSILON:g}, δ = {DELTA:g} (Gaussian)",
    }
    for axes, (noise, title) in zip(panels, titles.items(), strict=True):
        for regime, errors in found:
            if regime.noise != noise:
                continue
            color = "#1b6ca8" if regime.slope == HIGH else "#c8553d"
            n = np.array(regime.examples)
            fitted = slope(regime.examples, errors)
            axes.loglog(
                n,
                errors,
                "o",
                color=color,
                label=f"d = {regime.dimension:,}: slope {fitted:.2f}",
            )
            middle = np.exp(np.mean(np.log(errors)))
            line = middle * (n / np.exp(np.mean(np.log(n)))) ** regime.slope
            axes.loglog(n, line, "--", color=color, linewidth=1)
        axes.set(title=title, xlabel="examples n")
        axes.legend(frameon=False)
    panels[0].set_ylabel("L2 error of the mean, worst spread")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main() -> None:
    """Prints errors and slopes, and draws them."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--smoke", action="store_true", help="smaller, faster")
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("rates.png")
    )
    options = parser.parse_args()
    trials = 1 if options.smoke else 5
    found = []
    for regime in regimes(options.smoke):
        multiplier = noise_multiplier(regime.noise)
        errors = [
            worst_error(regime, multiplier, examples, trials)
            for examples in regime.examples
        ]
        found.append((regime, errors))
        print(
            f"{regime.name}: slope {slope(regime.examples, errors):.3f}, "
            f"expected {regime.slope:g} up to logarithms"
        )
        for examples, error in zip(regime.examples, errors, strict=True):
            print(f"  n = {examples:>9,}  error {error:.5f}", flush=True)
    draw(found, options.output)
    print(f"Drawn to {options.output}")


if __name__ == "__main__":
    main()
