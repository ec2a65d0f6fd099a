"""A small private training, also as a program of its own.

Run as a program it trains and saves, or loads and trains on, in a fresh
process: `python small_run.py save|load FORMAT FOLDER`. It prints what the
optimizer counted, as JSON, in its last line.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras
KERAS_3 = tsdp.DPSparseOptimizer.__module__.endswith("keras3")

EXAMPLES = 64
FEATURES = np.random.RandomState(0).randn(EXAMPLES, 4).astype("float32")
LABELS = FEATURES[:, :1].copy()
STEPS = 10
FILES = {
    "keras": "model.keras",
    "weights": "model.weights.h5",
    "checkpoint": "checkpoint",
    "tf weights": "weights",
    "h5": "model.h5",
    "h5 weights": "weights.h5",
    "saved model": "saved",
}
WHOLE_MODELS = ("keras", "h5", "saved model")


def poisson(steps: int = STEPS) -> tsdp.PoissonSampling:
    return tsdp.PoissonSampling(
        num_examples=EXAMPLES, batch_size=8, steps=steps, max_batch_size=40
    )


def plan(sampling: Any = None) -> tsdp.PrivacyPlan:
    return tsdp.PrivacyPlan(
        noise_multiplier=1.0, delta=1e-3, sampling=sampling or poisson()
    )


def model(
    a_plan: tsdp.PrivacyPlan | None = None, inner: Any = None, **compile: Any
) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    result = keras.Sequential(layers)
    optimizer = tsdp.DPSparseOptimizer(
        inner or keras.optimizers.Adam(0.1), a_plan or plan()
    )
    result.compile(optimizer=optimizer, loss="mse", **compile)
    return result


def dataset(sampling: Any = None) -> tf.data.Dataset:
    return (sampling or poisson()).dataset((FEATURES, LABELS))


def train(a_model: Any, steps: int, **options: Any) -> Any:
    options = {"verbose": 0, **options}
    return a_model.fit(dataset(), steps_per_epoch=steps, **options)


def weights(a_model: Any) -> list[np.ndarray]:
    return [v.numpy().copy() for v in a_model.trainable_variables]


def save(a_model: Any, form: str, folder: pathlib.Path) -> None:
    path = str(folder / FILES[form])
    if form in WHOLE_MODELS:
        a_model.save(path)
    elif form == "checkpoint":
        tf.train.Checkpoint(model=a_model, optimizer=a_model.optimizer).write(
            path
        )
    else:
        a_model.save_weights(path)


def load(form: str, folder: pathlib.Path, into: Any = None) -> Any:
    path = str(folder / FILES[form])
    if form in WHOLE_MODELS and into is None:
        return keras.models.load_model(path)
    into = into or model()
    if form == "checkpoint":
        tf.train.Checkpoint(model=into, optimizer=into.optimizer).read(path)
    else:
        into.load_weights(path)
    return into


class KilledAfter(keras.callbacks.Callback):
    """Kills the process, as a machine that fails would."""

    def __init__(self, epochs: int):
        super().__init__()
        self.epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epochs:
            os.kill(os.getpid(), signal.SIGKILL)


def _main(mode: str, form: str, folder: pathlib.Path) -> None:
    if form == "backup":
        trained = model()
        callbacks = [keras.callbacks.BackupAndRestore(str(folder / "backup"))]
        if mode == "save":
            callbacks.append(KilledAfter(2))
        trained.fit(
            dataset(),
            epochs=3,
            steps_per_epoch=2,
            verbose=0,
            callbacks=callbacks,
        )
        found = {"spent": trained.optimizer.compositions_spent}
    elif mode == "save":
        trained = model()
        train(trained, 4)
        save(trained, form, folder)
        found = {"spent": trained.optimizer.compositions_spent}
    else:
        trained = load(form, folder)
        found = {"loaded": trained.optimizer.compositions_spent}
        train(trained, 1)
        found["spent"] = trained.optimizer.compositions_spent
        found["iterations"] = int(trained.optimizer.iterations.numpy())
        try:
            train(trained, STEPS)
        except tsdp.BudgetExhausted:
            found["end"] = trained.optimizer.compositions_spent
    found["weights"] = [w.tolist() for w in weights(trained)]
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]))
