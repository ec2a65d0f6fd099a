"""What each mechanism does to the accuracy of training, at equal privacy.

    python benchmarks/training_accuracy.py --data goodbooks.npz
    python benchmarks/training_accuracy.py --steps 200 --rates 30
    python benchmarks/training_accuracy.py --data *.npz --epsilons 1 3 8 \
        --seeds 0 1 2 --tune-at 3 --only "lazy noise" "denoised sums"
    python benchmarks/training_accuracy.py --report accuracy.png

Matrix factorisation: a bias and 8 factors for every user and item; what is to
be guessed is whether an item was liked. `recommendations.read` says what the
files hold; without one, ratings are made up.

Every run has the same delta, batches and steps, plain SGD and one of some
learning rates: rates that suit one mechanism may not suit another. With
--tune-at, rates are tried on the first seed, and more of them while the best is
the largest or the smallest; all seeds have the best of the nearest epsilon that
was tuned at. What is done already is kept in the file for --results, a line for
each run, and not done again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import accuracy_report
import recommendations
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras

FACTORS = 8
ESTIMATE_EVERY = 10
NOT_PRIVATE = "not private"
LAZY = {"lazy noise": False, "denoised sums": True}
MECHANISMS: dict[str, Callable[[], Any]] = {
    "dense noise": tsdp.Gaussian,
    **dict.fromkeys(LAZY, tsdp.Gaussian),
    "projection": tsdp.Projection,
    "threshold": tsdp.Threshold,
    "threshold, 1000 rows": lambda: tsdp.Threshold(untouched_rows=1000),
    "threshold by SURE": lambda: tsdp.Threshold(choice="sure"),
    "partition selection": tsdp.PartitionSelection,
    "selection above 1": lambda: tsdp.PartitionSelection(
        selection_share=0.5, threshold=1.0
    ),
}


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=pathlib.Path, nargs="+", default=[None])
    parser.add_argument(
        "--epsilons", "--epsilon", type=float, nargs="+", default=[3.0]
    )
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[10.0, 30.0, 100.0]
    )
    parser.add_argument("--tune-at", type=float, nargs="+", metavar="EPSILON")
    parser.add_argument("--only", nargs="+", choices=[NOT_PRIVATE, *MECHANISMS])
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=pathlib.Path("training_accuracy.jsonl"),
    )
    parser.add_argument("--report", type=pathlib.Path, metavar="PNG")
    return parser.parse_args()


class Score(keras.layers.Layer):
    """A bias for all, two biases and a product."""

    def build(self, shapes: Any) -> None:
        self.offset = self.add_weight(
            shape=(), initializer="zeros", name="offset"
        )

    def call(self, rows: Any) -> Any:
        user_bias, user, item_bias, item = rows
        product = tf.einsum("bk,bpk->bp", user, item)
        return self.offset + user_bias + item_bias[..., 0] + product


class SGD(keras.optimizers.SGD):
    """Plain SGD that goes easy on what every example has a gradient of."""

    def update_step(self, gradient: Any, variable: Any, rate: Any) -> None:
        if variable.shape == ():
            rate = tf.minimum(rate, 1.0)
        super().update_step(gradient, variable, rate)


def factorisation(data: recommendations.Data, name: str) -> Any:
    """The model."""
    normal = keras.initializers.RandomNormal(stddev=0.1)
    inputs, rows = [], []
    for size, shape in (
        (data.users, ()),
        (data.items, data.train.item[0].shape),
    ):
        ids = keras.Input(shape, dtype="int32")
        inputs.append(ids)
        for width, law in ((1, "zeros"), (FACTORS, normal)):
            table = keras.layers.Embedding(
                size, width, embeddings_initializer=law
            )
            if name in LAZY:
                table = tsdp.layers.LazyEmbedding(
                    size,
                    width,
                    embeddings_initializer=law,
                    denoise=LAZY[name],
                )
            rows.append(table(ids))
    return keras.Model(inputs, Score()(rows))


def loss(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    """Logistic loss of each example, over all its items."""
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, scores)
    return tf.reduce_sum(losses, -1)


def private(
    options: argparse.Namespace, plan: Any, name: str, rate: float
) -> Any:
    """The optimizer."""
    if name == NOT_PRIVATE:
        return tsdp.DPSparseOptimizer(
            SGD(rate),
            clip_norm=1e6,
            noise_multiplier=0.0,
            expected_batch_size=options.batch_size,
        )
    tables: Any = None
    if name in LAZY:
        tables = keras.optimizers.SGD(rate)
        if LAZY[name]:
            tables = tsdp.DualAveraging(rate, estimate_every=ESTIMATE_EVERY)
    return tsdp.DPSparseOptimizer(
        SGD(rate), plan, mechanism=MECHANISMS[name](), tables=tables
    )


def trained_auc(
    options: argparse.Namespace, data: recommendations.Data, run: dict[str, Any]
) -> float:
    """AUC on held-out examples after training with one mechanism."""
    keras.utils.set_random_seed(run["seed"])
    train, test = data.train, data.test
    sampling = tsdp.PoissonSampling(
        num_examples=len(train.user),
        batch_size=options.batch_size,
        steps=options.steps,
    )
    plan = tsdp.PrivacyPlan(
        epsilon=run["epsilon"], delta=options.delta, sampling=sampling
    )
    model = factorisation(data, run["mechanism"])
    model.compile(
        optimizer=private(options, plan, run["mechanism"], run["rate"]),
        loss=loss,
        jit_compile=False,
        steps_per_execution=math.gcd(options.steps, 50),
    )
    batches = sampling.dataset(((train.user, train.item), train.label))
    model.fit(batches, steps_per_epoch=options.steps, verbose=0)
    scores = model.predict((test.user, test.item), batch_size=65_536, verbose=0)
    return recommendations.auc(test.label, scores)


class Runs:
    """Runs of one data set: those that were done, and those to be done.

    Args:
      options: What was typed.
      path: The data set's file, None for made-up data.
    """

    def __init__(self, options: argparse.Namespace, path: pathlib.Path | None):
        self._options = options
        self._data = recommendations.read(path)
        self._setting = {
            "data": path.stem if path else "made up",
            "delta": options.delta,
            "batch_size": options.batch_size,
            "steps": options.steps,
        }
        self._done = accuracy_report.read(options.results)

    def auc(self, name: str, epsilon: float, rate: float, seed: int) -> float:
        """The AUC of a run, from the file if it was done before."""
        run: dict[str, Any] = {
            **self._setting,
            "mechanism": name,
            "epsilon": epsilon,
            "rate": rate,
            "seed": seed,
        }
        before = [d for d in self._done if run.items() <= d.items()]
        if before:
            run = before[0]
        else:
            begin = time.perf_counter()
            run["auc"] = trained_auc(self._options, self._data, run)
            run["seconds"] = time.perf_counter() - begin
            self._done.append(run)
            with self._options.results.open("a") as file:
                file.write(json.dumps(run) + "\n")
        print(
            f"{run['data']:16} {name:24} epsilon {epsilon:4g}  seed {seed}  "
            f"rate {rate:6g}  AUC {run['auc']:.4f}  {run['seconds']:6.0f} s",
            flush=True,
        )
        return float(run["auc"])

    def best_rate(self, name: str, epsilon: float) -> float:
        """The best rate on the first seed, smaller and larger ones tried."""
        seed = self._options.seeds[0]
        tried = {
            rate: self.auc(name, epsilon, rate, seed)
            for rate in self._options.rates
        }
        while True:
            best = max(tried, key=tried.__getitem__)
            if min(tried) < best < max(tried):
                return best
            further = neighbour(best, 1 if best == max(tried) else -1)
            tried[further] = self.auc(name, epsilon, further, seed)


def neighbour(rate: float, step: int) -> float:
    """The next of 1, 3, 10, 30 and so on, up or down."""
    place = round(2 * math.log10(rate)) + step
    return float(f"{10 ** (place / 2):.0e}")


def main() -> None:
    """Runs what is not done yet, and prints all of it."""
    options = arguments()
    if options.report:
        accuracy_report.report(options.results, options.report)
        return
    for path in options.data:
        runs = Runs(options, path)
        for epsilon in options.epsilons:
            for name in options.only or [NOT_PRIVATE, *MECHANISMS]:
                rates = options.rates
                if options.tune_at:
                    near = min(options.tune_at, key=lambda e: abs(e - epsilon))
                    rates = [runs.best_rate(name, near)]
                for rate in rates:
                    for seed in options.seeds:
                        runs.auc(name, epsilon, rate, seed)


if __name__ == "__main__":
    main()
