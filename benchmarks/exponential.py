"""Where the sparse exponential mechanism loses, to whom, and what it costs.

Logistic regression with pure privacy on the unit ball: excess empirical risk of
the exponential mechanism (its expectation, from the exact law), of output
perturbation with its weights moved into the ball (mean of 50 draws, λ of the
theorem and of the bound), and of publishing zero. Rows of norm 1 have two
entries, and labels follow a planted model but for a tenth of them.

Run: python benchmarks/exponential.py [--epsilon 1]
"""

from __future__ import annotations

import argparse
import math
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from scipy import optimize

import tf_sparse_dp as tsdp

SHAPES = (
    (2, 30),
    (2, 100),
    (2, 300),
    (2, 1000),
    (2, 3000),
    (4, 30),
    (4, 100),
    (4, 300),
    (8, 30),
    (8, 100),
    (16, 10),
    (16, 30),
    (16, 100),
    (100, 10),
    (100, 30),
)
DRAWS = 50


def problem(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and labels that follow a planted model but for a tenth of them."""
    random = np.random.default_rng([n, d])
    planted = random.normal(size=d)
    rows = np.zeros((n, d))
    for row in rows:
        row[random.choice(d, 2, replace=False)] = math.sqrt(0.5)
    rows *= random.choice([-1.0, 1.0], size=rows.shape)
    labels = np.where(rows @ planted > 0, 1.0, -1.0)
    return rows, np.where(random.random(n) < 0.1, -labels, labels)


def losses(points: np.ndarray, example: tuple[np.ndarray, float]) -> np.ndarray:
    """Of all points, on one example."""
    row, label = example
    return np.logaddexp(0, -label * (points @ row))


def risk(weights: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> float:
    """The mean loss."""
    return float(np.mean(np.logaddexp(0, -labels * (rows @ weights))))


def least_risk(rows: np.ndarray, labels: np.ndarray) -> float:
    """Of the unit ball, to six digits."""
    found = optimize.minimize(
        risk,
        np.zeros(rows.shape[1]),
        (rows, labels),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: 1 - x @ x},
        options={"ftol": 1e-10, "maxiter": 500},
    )
    return float(found.fun)


def perturbed(
    rows: np.ndarray, labels: np.ndarray, epsilon: float, choice: str
) -> float:
    """Mean risk of output perturbation, moved into the ball."""
    settings = tsdp.convex.OutputPerturbation(
        epsilon=epsilon, delta=0.0, sparsity=2, regularization=choice
    )
    ball = tsdp.convex.Ball(1.0)
    origin = np.zeros(rows.shape[1])
    return float(
        np.mean(
            [
                risk(
                    ball.nearest_in_every_entry(
                        settings.release(rows, labels).weights, origin
                    ),
                    rows,
                    labels,
                )
                for _ in range(DRAWS)
            ]
        )
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0)
    epsilon = parser.parse_args().epsilon
    # Margins are within 1 on the ball: losses vary by ln(1+e) - ln(1+1/e) = 1.
    mechanism = tsdp.convex.SparseExponentialMechanism(
        epsilon=epsilon, loss_range=1.0, lipschitz=1.0, sparsity=2
    )
    print(f"excess risk on the unit ball, epsilon {epsilon:g}, pure")
    print(
        "     d     n   points  seconds  exponential  theorem    bound     zero"
    )
    for d, n in SHAPES:
        rows, labels = problem(n, d)
        data = list(zip(rows, labels, strict=True))
        best = least_risk(rows, labels)
        others = [
            perturbed(rows, labels, epsilon, choice) - best
            for choice in ("theorem", "bound")
        ]
        zero = math.log(2) - best
        begin = time.process_time()
        try:
            points = mechanism.net(n, d)
        except ValueError as refusal:
            size = str(refusal).split("net of ")[1].split(" points")[0]
            told = f"{'refused, ' + size:>31}"
        else:
            mechanism.minimise(losses, data, dimension=d)
            seconds = time.process_time() - begin
            chances = np.exp(
                mechanism.log_probabilities(
                    mechanism.steps(losses, data, points)
                )
            )
            risks = np.zeros(len(points))
            for example in data:
                risks += losses(points, example) / n
            error = float(chances @ risks) - best
            told = f"{len(points):>9,}{seconds:9.2f}{error:13.4f}"
        print(
            f"{d:6}{n:6}{told}{others[0]:9.4f}{others[1]:9.4f}{zero:9.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
