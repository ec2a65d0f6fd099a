"""A small private training, also as a program of its own.

Run as a program it trains and saves, or loads and trains on, in a fresh
process: `python small_run.py save|load FOLDER FORMAT...`. It prints what the
optimizer counted, as a line of JSON for each format. Saving ends with a
training that is killed, and loading with one that goes on from its backup.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
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
    a_plan: tsdp.PrivacyPlan | None = None,
    inner: Any = None,
    built: bool = True,
    **compile: Any,
) -> Any:
    """A compiled model; unless it is built, the first step is traced twice."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    result = keras.Sequential(layers)
    optimizer = tsdp.DPSparseOptimizer(
        inner or keras.optimizers.Adam(0.1), a_plan or plan()
    )
    result.compile(optimizer=optimizer, loss="mse", **compile)
    if built:
        optimizer.build(result.trainable_variables)
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
    into = into or model(built=False)
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


def _saved(folder: pathlib.Path, forms: Sequence[str]) -> None:
    """One training, saved in all formats."""
    trained = model(built=False)
    train(trained, 4)
    for form in forms:
        save(trained, form, folder)
        _tell(form, spent=trained.optimizer.compositions_spent)


def _loaded(folder: pathlib.Path, form: str) -> None:
    trained = load(form, folder)
    loaded = trained.optimizer.compositions_spent
    train(trained, 1)
    spent = trained.optimizer.compositions_spent
    end = None
    try:
        train(trained, STEPS)
    except tsdp.BudgetExhausted:
        end = trained.optimizer.compositions_spent
    found = [w.tolist() for w in weights(trained)]
    _tell(form, loaded=loaded, spent=spent, end=end, weights=found)


def _with_backup(folder: pathlib.Path, *others: Any) -> None:
    trained = model(built=False)
    backup = keras.callbacks.BackupAndRestore(str(folder / "backup"))
    trained.fit(
        dataset(),
        epochs=3,
        steps_per_epoch=2,
        verbose=0,
        callbacks=[backup, *others],
    )
    _tell("backup", spent=trained.optimizer.compositions_spent)


def _tell(form: str, **found: Any) -> None:
    print(json.dumps({"form": form, **found}), flush=True)


def _main(mode: str, folder: pathlib.Path, *forms: str) -> None:
    if mode == "save":
        _saved(folder, forms)
        _with_backup(folder, KilledAfter(2))
    else:
        for form in forms:
            _loaded(folder, form)
        _with_backup(folder)


if __name__ == "__main__":
    _main(sys.argv[1], pathlib.Path(sys.argv[2]), *sys.argv[3:])
