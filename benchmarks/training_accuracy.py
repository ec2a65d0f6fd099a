"""What each mechanism does to the accuracy of training, at equal privacy.

    python benchmarks/training_accuracy.py --data goodbooks.npz
    python benchmarks/training_accuracy.py --steps 200 --rates 30

Ratings by matrix factorisation: a row of 9 numbers for every user and every
item, of which one is a bias; an example is one rating, good (at least 4) or
not. The file has arrays `user` and `book` (or `item`), counted from 1, and
`rating`; without one, ratings are made up. One in ten is held out.

Every run has the same epsilon, delta, batches and steps, plain SGD and one of
some learning rates: rates that suit one mechanism may not suit another. What is
done already is kept in the file for --results, a line for each run, and not
done again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf
from scipy import stats

import tf_sparse_dp as tsdp

keras = tf.keras

WIDTH = 9
NOT_PRIVATE = "not private"
MECHANISMS: dict[str, Callable[[], Any]] = {
    "dense noise": tsdp.Gaussian,
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
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[10.0, 30.0, 100.0]
    )
    parser.add_argument("--only", nargs="+", choices=[NOT_PRIVATE, *MECHANISMS])
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=pathlib.Path("training_accuracy.jsonl"),
    )
    return parser.parse_args()


def ratings(path: pathlib.Path | None) -> dict[str, np.ndarray]:
    """Users, items and labels, in a random order that is always the same."""
    rng = np.random.default_rng(1)
    if path is None:
        size, users, items = 400_000, 20_000, 5_000
        user = rng.zipf(1.2, size) % users
        item = rng.zipf(1.2, size) % items
        taste = rng.standard_normal((users, 4))
        kind = rng.standard_normal((items, 4))
        score = (taste[user] * kind[item]).sum(1) + kind[item, 0]
        label = score + rng.logistic(size=size) > 0
    else:
        with np.load(path) as file:
            user = file["user"] - 1
            item = file["book" if "book" in file else "item"] - 1
            label = file["rating"] >= 4
    order = rng.permutation(len(user))
    return {
        "user": user[order].astype(np.int32),
        "item": item[order].astype(np.int32),
        "label": label[order].astype(np.float32)[:, None],
    }


class Score(keras.layers.Layer):
    """Biases and a product, from a user's row and an item's."""

    def call(self, rows: Any) -> Any:
        user, item = rows
        product = tf.reduce_sum(user[:, 1:] * item[:, 1:], 1, keepdims=True)
        return user[:, :1] + item[:, :1] + product


def factorisation(users: int, items: int) -> Any:
    """The model."""
    keras.utils.set_random_seed(0)
    inputs, rows = [], []
    for size in (users, items):
        ids = keras.Input((), dtype="int32")
        table = keras.layers.Embedding(
            size,
            WIDTH,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1),
        )
        inputs.append(ids)
        rows.append(table(ids))
    return keras.Model(inputs, Score()(rows))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Probability that a good rating scores above a bad one."""
    good = labels.ravel() > 0
    ranks = stats.rankdata(scores.ravel())[good].sum()
    count = good.sum()
    pairs = count * (len(good) - count)
    return float((ranks - count * (count + 1) / 2) / pairs)


def trained_auc(
    options: argparse.Namespace,
    data: dict[str, np.ndarray],
    name: str,
    rate: float,
) -> float:
    """AUC on held-out ratings after training with one mechanism."""
    held_out = len(data["user"]) // 10
    train = {key: values[held_out:] for key, values in data.items()}
    test = {key: values[:held_out] for key, values in data.items()}
    sampling = tsdp.PoissonSampling(
        num_examples=len(train["user"]),
        batch_size=options.batch_size,
        steps=options.steps,
    )
    sizes = (int(data[table].max()) + 1 for table in ("user", "item"))
    model = factorisation(*sizes)
    optimizer: Any = keras.optimizers.SGD(rate)
    if name == NOT_PRIVATE:
        optimizer = tsdp.DPSparseOptimizer(
            optimizer,
            clip_norm=1e6,
            noise_multiplier=0.0,
            expected_batch_size=options.batch_size,
        )
    else:
        plan = tsdp.PrivacyPlan(
            epsilon=options.epsilon, delta=options.delta, sampling=sampling
        )
        optimizer = tsdp.DPSparseOptimizer(
            optimizer, plan, mechanism=MECHANISMS[name]()
        )
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    batches = sampling.dataset(((train["user"], train["item"]), train["label"]))
    model.fit(batches, steps_per_epoch=options.steps, verbose=0)
    scores = model.predict(
        (test["user"], test["item"]), batch_size=65_536, verbose=0
    )
    return auc(test["label"], scores)


def main() -> None:
    """Runs what is not done yet, and prints all of it."""
    options = arguments()
    data = ratings(options.data)
    setting = {
        "data": options.data.stem if options.data else "made up",
        "epsilon": options.epsilon,
        "delta": options.delta,
        "batch_size": options.batch_size,
        "steps": options.steps,
    }
    options.results.touch()
    lines = options.results.read_text().splitlines()
    done = [json.loads(line) for line in lines]
    print(", ".join(f"{key} {value}" for key, value in setting.items()))
    for name in options.only or [NOT_PRIVATE, *MECHANISMS]:
        for rate in options.rates:
            run = {**setting, "mechanism": name, "rate": rate}
            before = [d for d in done if run.items() <= d.items()]
            if before:
                run = before[0]
            else:
                begin = time.perf_counter()
                run["auc"] = trained_auc(options, data, name, rate)
                run["seconds"] = time.perf_counter() - begin
                with options.results.open("a") as file:
                    file.write(json.dumps(run) + "\n")
            print(
                f"{name:24} rate {rate:6g}  AUC {run['auc']:.4f}  "
                f"{run['seconds']:6.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
