"""How output perturbation's error falls with n, and how it compares to DP-SGD.

    python benchmarks/output_perturbation.py rates
    python benchmarks/output_perturbation.py sgd
    python benchmarks/output_perturbation.py sgd --steep
    python benchmarks/output_perturbation.py size

`rates`: the slopes of errors in n, which fails if they are not within what the
theorems say. See `output_perturbation_rates`.

`sgd`: a logistic regression with a million columns, by output perturbation and
by DP-SGD with noise on every weight, each with the best of its settings (chosen
on test data, which costs privacy that is not counted, for both). DP-SGD has
Poisson batches and neighbours by adding or removing a row, which takes half of
the noise of replacing one. Columns are about as popular as 1/(rank + 9), or
with `--steep` as rank^-1.2: then some columns are in most rows, and gradients
are long in few directions.

`size`: one release with ten million columns, its time and the memory it takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from output_perturbation_rates import DELTA, rates, zipf_rows
from scipy import sparse, special

import tf_sparse_dp as tsdp


@dataclasses.dataclass
class Split:
    """Rows to learn from, and rows to test on."""

    rows: sparse.csr_matrix
    labels: np.ndarray
    test_rows: sparse.csr_matrix
    test_labels: np.ndarray

    def scores(self, weights: np.ndarray) -> tuple[float, float]:
        """AUC and accuracy on test rows."""
        margins = self.test_rows @ weights
        ranks = np.empty(len(margins))
        ranks[np.argsort(margins, kind="stable")] = np.arange(len(margins))
        up = self.test_labels > 0
        mean_rank = ranks[up].mean() - (up.sum() - 1) / 2
        area = mean_rank / (~up).sum()
        return float(area), float(np.mean((margins > 0) == up))


def large_problem(n: int, d: int, s: int, steep: bool) -> Split:
    """A planted logistic model; popular columns come more often."""
    random = np.random.default_rng(0)
    chance = np.arange(1, d + 1) ** -1.2 if steep else None
    rows = zipf_rows(random, n + 20_000, d, s, chance)
    planted = random.normal(size=d) * 6
    chance = special.expit(rows @ planted)
    labels = np.where(random.random(len(chance)) < chance, 1.0, -1.0)
    return Split(rows[:n], labels[:n], rows[n:], labels[n:])


def dp_sgd(
    split: Split, epsilon: float, batch: int, steps: int, rates: list[float]
) -> list[tuple[float, np.ndarray, float]]:
    """Weights per learning rate, and CPU seconds of one run."""
    n, d = split.rows.shape
    sampling = tsdp.PoissonSampling(
        num_examples=n, batch_size=batch, steps=steps
    )
    plan = tsdp.noise_for_budget(sampling, epsilon=epsilon, delta=DELTA)
    stddev = plan.noise_multiplier / batch  # Rows of norm 1: gradients too.
    random = np.random.default_rng(1)
    results = []
    for rate in rates:
        begin = time.process_time()
        weights = np.zeros(d)
        for _ in range(steps):
            chosen = np.flatnonzero(random.random(n) < batch / n)
            rows, labels = split.rows[chosen], split.labels[chosen]
            slopes = -labels * special.expit(-labels * (rows @ weights))
            step = rows.T @ slopes / batch
            step += random.normal(scale=stddev, size=d)
            weights -= rate * step
        results.append((rate, weights, time.process_time() - begin))
    return results


def compare(n: int, d: int, s: int, steep: bool) -> None:
    """Prints a line for each setting of both."""
    split = large_problem(n, d, s, steep)
    batches = [(n // 100, 200), (n // 10, 100), (n // 2, 20)]
    rates = [3.0, 10.0, 30.0, 100.0, 300.0]
    if steep:
        more = [(n // 10, 300), (n // 10, 1000)]
        batches, rates = [*batches[1:], *more], rates[:4]
    print(f"logistic regression, {n} rows, {d} columns, {s} entries a row")
    print(f"{'':<44}{'AUC':>7}{'accuracy':>10}{'CPU s':>9}")
    settings = tsdp.convex.OutputPerturbation(
        epsilon=1e6, delta=DELTA, sparsity=s, regularization=1e-4
    )
    _report(split, "without privacy (epsilon 1e6)", settings)
    for epsilon in (1.0, 3.0):
        for choice in ("theorem", "bound", 1e-3, 3e-4, 1e-4, 3e-5, 1e-5):
            settings = tsdp.convex.OutputPerturbation(
                epsilon=epsilon,
                delta=DELTA,
                sparsity=s,
                regularization=choice,
                distance=5.0,
            )
            name = f"eps {epsilon:g}: output perturbation, lambda {choice}"
            _report(split, name, settings)
        for batch, steps in batches:
            for rate, weights, seconds in dp_sgd(
                split, epsilon, batch, steps, rates
            ):
                _print(
                    split,
                    f"eps {epsilon:g}: DP-SGD, {steps} of {batch}, rate {rate}",
                    weights,
                    seconds,
                )


def _report(split: Split, name: str, settings) -> None:
    begin = time.process_time()
    weights = settings.release(split.rows, split.labels).weights
    _print(split, name, weights, time.process_time() - begin)


def _print(split: Split, name: str, weights, seconds: float) -> None:
    area, accuracy = split.scores(weights)
    print(f"{name:<44}{area:7.4f}{accuracy:10.4f}{seconds:9.2f}", flush=True)


def _peak() -> float:
    """Megabytes that the process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def size(n: int, d: int, s: int) -> None:
    """Prints what one release takes, data not counted."""
    rows = zipf_rows(np.random.default_rng(0), n, d, s)
    labels = np.where(np.arange(n) % 3 > 0, 1.0, -1.0)
    print(f"{n} rows, {d} columns, {s} entries a row")
    for delta in (DELTA, 0.0):
        for domain in (
            tsdp.convex.Unconstrained(),
            tsdp.convex.Ball(5.0),
            tsdp.convex.Box(-1.0, 1.0),
        ):
            if delta == 0 and domain != tsdp.convex.Unconstrained():
                continue
            settings = tsdp.convex.OutputPerturbation(
                epsilon=1.0, delta=delta, sparsity=s, domain=domain
            )
            before = _peak()
            begin, cpu = time.perf_counter(), time.process_time()
            settings.release(rows, labels)
            print(
                f"delta {delta:g}, {domain}:",
                f"{time.perf_counter() - begin:.1f} s,",
                f"CPU {time.process_time() - cpu:.1f} s, process",
                f"{before:.0f} MB before and {_peak():.0f} MB at most",
                flush=True,
            )


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("rates", "sgd", "size"))
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--powers", type=int, nargs=2, default=(10, 15))
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=20)
    parser.add_argument("--steep", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "rates":
        low, high = arguments.powers
        rates(arguments.draws, range(low, high + 1))
    elif arguments.what == "sgd":
        compare(
            arguments.rows,
            arguments.columns,
            arguments.entries,
            arguments.steep,
        )
    else:
        size(arguments.rows, 10 * arguments.columns, arguments.entries)


if __name__ == "__main__":
    main()
