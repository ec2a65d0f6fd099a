"""Trains a two-tower retrieval model with and without privacy.

    python examples/retrieval.py
    python examples/retrieval.py --data visits.npz --epsilon 8

The file for --data holds arrays of equal length, `user` and `item`, and
perhaps `timestamp`; see visits.load. Without it, data are generated.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import visits

import tf_sparse_dp as tsdp
from tf_sparse_dp.integrations.recommenders import Retrieval

keras = tf.keras


class TwoTowers(keras.Model):
    """The last few items, pooled, find the next one.

    Args:
      num_items: Number of ids; 0 stands for nothing.
      width: Length of an embedding.
      num_negatives: As that of `Retrieval`; None for the whole catalogue.
    """

    def __init__(self, num_items: int, width: int, num_negatives: int | None):
        super().__init__()
        self.items = keras.layers.Embedding(num_items, width)
        self.query = keras.layers.Dense(width)
        self.task = Retrieval(
            np.arange(1, num_items, dtype="int32"),
            self.items,
            num_negatives=num_negatives,
        )

    def call(self, history: tf.Tensor) -> tf.Tensor:
        known = tf.cast(history != visits.NOTHING, tf.float32)[:, :, None]
        total = tf.reduce_sum(self.items(history) * known, 1)
        return self.query(total / tf.maximum(tf.reduce_sum(known, 1), 1.0))

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        history, item = data[0]["history"], data[0]["item"]
        with tf.GradientTape() as tape:
            loss = self.task(
                self(history), self.items(item), candidate_ids=item
            )
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}

    def recall(self, log: visits.Visits, k: int) -> float:
        """How often the next item is among the best k."""
        found = []
        for start in range(0, len(log), 1024):
            rows = log.rows(np.arange(start, min(start + 1024, len(log))))
            _, best = self.task.top_k(self(tf.constant(rows.history)), k)
            found.append((best.numpy() == rows.item[:, None]).any(1))
        return float(np.concatenate(found).mean())


def train(
    log: visits.Visits,
    *,
    epsilon: float | None,
    batch_size: int,
    epochs: float,
    width: int = 16,
    num_negatives: int | None = None,
    learning_rate: float = 0.01,
    clip_norm: float = 0.3,
) -> TwoTowers:
    """Trains with a budget, or without privacy if `epsilon` is None."""
    keras.utils.set_random_seed(0)
    sampling = tsdp.PoissonSampling(
        num_examples=len(log), batch_size=batch_size, epochs=epochs
    )
    model = TwoTowers(log.num_items, width, num_negatives)
    model(tf.constant(log.history[:1]))  # Makes the variables.
    inner = keras.optimizers.Adam(learning_rate)
    features = {"history": log.history, "item": log.item}
    data = sampling.dataset((features, np.zeros(len(log), "float32")))
    callbacks = []
    if epsilon is None:
        optimizer = inner
    else:
        plan = tsdp.PrivacyPlan(
            epsilon=epsilon, delta=0.1 / len(log), sampling=sampling
        )
        optimizer = tsdp.DPSparseOptimizer(inner, plan, clip_norm=clip_norm)
        callbacks = [tsdp.PrivacyBudget()]
    model.compile(optimizer=optimizer)
    model.fit(data, callbacks=callbacks, verbose=0)
    return model


def popular(log: visits.Visits, held_out: visits.Visits, k: int) -> float:
    """Recall of the k items that were visited most. Not private."""
    counts = np.bincount(log.item, minlength=log.num_items)
    best = np.argsort(-counts)[:k]
    return float(np.isin(held_out.item, best).mean())


def main() -> None:
    """Trains both models and prints what they find."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--negatives", type=int, default=0, help="0: all")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--clip-norm", type=float, default=0.3)
    parser.add_argument("--k", type=int, default=20)
    options = parser.parse_args()
    log, held_out = (
        visits.load(options.data) if options.data else visits.generate()
    )
    print(
        f"{len(log):,} visits to train on, {len(held_out):,} held out, "
        f"{log.num_items - 1:,} items"
    )
    print(f"recall@{options.k} on held-out visits:")
    print(f"  any {options.k} items  {options.k / (log.num_items - 1):.4f}")
    print(f"  most visited  {popular(log, held_out, options.k):.4f}")
    for name, epsilon in (("ordinary", None), ("private", options.epsilon)):
        start = time.perf_counter()
        model = train(
            log,
            epsilon=epsilon,
            batch_size=options.batch_size,
            epochs=options.epochs,
            width=options.width,
            num_negatives=options.negatives or None,
            learning_rate=options.learning_rate,
            clip_norm=options.clip_norm,
        )
        seconds = time.perf_counter() - start
        found = model.recall(held_out, options.k)
        print(f"  {name:12}  {found:.4f}   ({seconds:.0f} s)", flush=True)
    print(model.optimizer.privacy_statement())


if __name__ == "__main__":
    main()
