"""What a private search of the learning rate is worth, against knowing it.

Logistic regression by DP-SGD in NumPy, many times over: held-out log loss of
one run with a known or a drawn learning rate and the whole budget, of private
selections, and of all rates tried with everything composed. Selections are made
with a clip of scores that hardly ever clips, and with one that does: then bold
models look better than they are.

Run: python benchmarks/selection.py [--repeats 100]
"""

from __future__ import annotations

import argparse
import math

import numpy as np

import tf_sparse_dp as tsdp

EPSILON, DELTA = 1.0, 1e-6
EXAMPLES, WIDTH, BATCH, STEPS = 10_000, 50, 500, 60
RATES = (0.01, 0.1, 1.0, 10.0, 100.0)
CLIP = 4.0


def losses(
    weights: np.ndarray, rows: np.ndarray, signs: np.ndarray
) -> np.ndarray:
    """Of every row."""
    return np.logaddexp(0, -signs * (rows @ weights))


class Problem:
    """Rows of norm 1 with labels that a random direction makes likely."""

    def __init__(self, seed: int):
        self.rng = rng = np.random.default_rng(seed)
        rows = rng.normal(size=(2 * EXAMPLES, WIDTH))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        true = rng.normal(size=WIDTH)
        chances = 1 / (1 + np.exp(-2 * rows @ true))
        signs = np.where(rng.random(2 * EXAMPLES) < chances, 1.0, -1.0)
        self.rows, self.held_rows = np.split(rows, 2)
        self.signs, self.held_signs = np.split(signs, 2)

    def train(self, rate: float, noise_multiplier: float) -> np.ndarray:
        """Gradients have norms of 1 at most: rows have."""
        weights = np.zeros(WIDTH)
        for _ in range(STEPS):
            drawn = self.rng.random(EXAMPLES) < BATCH / EXAMPLES
            rows, signs = self.rows[drawn], self.signs[drawn]
            slopes = -signs / (1 + np.exp(signs * (rows @ weights)))
            noise = noise_multiplier * self.rng.normal(size=WIDTH)
            weights = weights - rate * (rows.T @ slopes + noise) / BATCH
        return weights

    def scores(self, weights: np.ndarray) -> np.ndarray:
        return math.log(2) - losses(weights, self.rows, self.signs)

    def held_out(self, weights: np.ndarray) -> float:
        return float(np.mean(losses(weights, self.held_rows, self.held_signs)))


def select(
    problem: Problem, plan: tsdp.SelectionPlan, noise: float, clip: float
) -> float:
    """The held-out loss of the best of a random number of runs."""
    weights = tsdp.private_selection(
        lambda run: problem.train(run.choice(RATES), noise),
        problem.scores,
        plan,
        score_clip=clip,
    ).value
    return problem.held_out(weights)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    sampling = tsdp.PoissonSampling(
        num_examples=EXAMPLES, batch_size=BATCH, steps=STEPS
    )
    problem = Problem(0)
    whole = tsdp.PrivacyPlan(epsilon=EPSILON, delta=DELTA, sampling=sampling)
    found: dict[str, tuple[float, list[float]]] = {}
    noise = whole.noise_multiplier
    for rate in RATES:
        runs = [problem.train(rate, noise) for _ in range(repeats)]
        found[f"one run, rate {rate:g}"] = (
            noise,
            [problem.held_out(w) for w in runs],
        )
    drawn = [
        problem.train(problem.rng.choice(RATES), noise) for _ in range(repeats)
    ]
    found["one run, rate drawn"] = noise, list(map(problem.held_out, drawn))
    for mean, clip in ((2, CLIP), (5, CLIP), (10, CLIP), (30, CLIP), (30, 1.0)):
        plan = tsdp.selection_budget(
            epsilon=EPSILON, delta=DELTA, mean_runs=mean, sampling=sampling
        )
        noise = plan.run.noise_multiplier
        found[f"selection, {mean} runs, clip {clip:g}"] = (
            noise,
            [select(problem, plan, noise, clip) for _ in range(repeats)],
        )
    # All rates, one run each, with the noise that five runs need together.
    together = tsdp.PrivacyPlan(
        epsilon=0.95 * EPSILON,
        delta=0.95 * DELTA,
        sampling=tsdp.PoissonSampling(
            num_examples=EXAMPLES, batch_size=BATCH, steps=5 * STEPS
        ),
    )
    noise = together.noise_multiplier
    scale = CLIP / (0.05 * EPSILON / len(RATES))  # Of Laplace noise on a sum.
    best = []
    for _ in range(repeats):
        runs = [problem.train(rate, noise) for rate in RATES]
        scores = [
            np.sum(np.clip(problem.scores(w), -CLIP, CLIP))
            + problem.rng.laplace(scale=scale)
            for w in runs
        ]
        best.append(problem.held_out(runs[int(np.argmax(scores))]))
    found["all five rates, composed"] = noise, best
    print("way                          noise   loss   worst tenth")
    for name, (noise, values) in found.items():
        print(
            f"{name:28} {noise:5.2f}  {np.mean(values):.4f}  "
            f"{np.quantile(values, 0.9):.4f}"
        )


if __name__ == "__main__":
    main()
