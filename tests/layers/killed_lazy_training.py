"""Trainings with lazy noise that are killed, and what is found afterwards.

`python -m tests.layers.killed_lazy_training FOLDER POINTS SEED` kills as many
trainings, while they train, draw the noise of all rows, or save, and goes on
from what each of them saved. It prints, as one line of JSON for each, where it
was killed and what is wrong, if anything is. The last lines are of a training
that saves without the noise, and of one whose noise comes back.

The noise of one table is replaced by whole numbers, as many units for a row as
there were steps, and every step moves the same rows by the same: a state tells
exactly which steps are in it. Another table has noise as it is.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers.killed_training import (
    Calls,
    charged,
    die,
    ended,
    in_a_process,
)
from tf_sparse_dp.layers import pending_noise
from tf_sparse_dp.layers.lazy_variable import LazyVariable, lazy_variable
from tf_sparse_dp.layers.pending_noise import PendingNoise

keras = tf.keras

LIMIT = 60  # Of the plan.
STEPS = 12  # Of the training that is killed.
BLOCK = 6
EVERY = 3  # Steps from one saved state to the next.
FORMATS = ("keras", "weights", "checkpoint")
KINDS = ("committing", "time", "saving")
WRONG = ("without noise", "seeded")
ROWS, WIDTH, TOUCHED = 32, 4, 8
CHUNK = 2  # Rows whose noise is drawn at a time.
UNIT = 16.0  # Of the noise that is replaced.

# Everybody is in every batch.
SAMPLING = tsdp.PoissonSampling(
    num_examples=TOUCHED, batch_size=TOUCHED, steps=LIMIT
)
STDDEV = 1.0 / TOUCHED  # Of a step's noise: a rate of 1, and noise of 1.
# Clipped to a norm of 1 all entries of a gradient are the same.
STEP = 1.0 / (np.sqrt(WIDTH) * TOUCHED)
IDS = np.arange(TOUCHED, dtype=np.int32)[:, np.newaxis]


# What is trained.


def compiled(folder: pathlib.Path) -> Any:
    ids = keras.Input((1,), dtype="int32")
    outputs = [
        tsdp.layers.LazyEmbedding(
            ROWS, WIDTH, embeddings_initializer="zeros", name=name
        )(ids)
        for name in ("counted", "random")
    ]
    model = keras.Model(ids, keras.layers.Concatenate()(outputs))
    plan = tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-3, sampling=SAMPLING)
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0),
        plan,
        mechanism=tsdp.Gaussian(),
        ledger=folder / "ledger.jsonl",
    )
    model.compile(optimizer=optimizer, loss=first_table, jit_compile=False)
    optimizer.build(model.trainable_variables)
    return prepared(model)


@keras.utils.register_keras_serializable("killed_lazy_training")
def first_table(targets: Any, outputs: Any) -> Any:
    """Its gradient is far larger than 1, and that of the other table 0."""
    weights = [100.0] * WIDTH + [0.0] * WIDTH
    return tf.reduce_sum(outputs * tf.constant(weights), [1, 2])


def table(model: Any, name: str) -> LazyVariable:
    found = lazy_variable(model.get_layer(name).embeddings)
    assert found is not None
    return found


def prepared(model: Any) -> Any:
    """With noise that can be counted in one table."""
    pending_noise._CHUNK = CHUNK * WIDTH  # So that drawing takes a while.
    noise = table(model, "counted").noise

    def units(
        ids: tf.Tensor, places: Any, most: int | None, step: tf.Tensor
    ) -> tf.Tensor:
        rows, start, stop = noise._lacking(ids, step)
        steps = tf.cast((stop - start) / STDDEV**2, tf.float32)
        each = UNIT * tf.cast(ids + 1, tf.float32)
        return rows + (steps * each)[:, tf.newaxis]

    noise._noisy = units
    return model


def expected(steps: int) -> np.ndarray:
    rows = np.arange(ROWS)[:, np.newaxis]
    each = UNIT * (rows + 1) - STEP * (rows < TOUCHED)
    return np.repeat(steps * each, WIDTH, 1)


def fit(model: Any, steps: int, *callbacks: Any) -> None:
    model.fit(
        SAMPLING.dataset((IDS, IDS)),
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[tsdp.PrivacyBudget(reserve=BLOCK), *callbacks],
    )


class Saving(keras.callbacks.Callback):
    """Saves every few steps, and says which steps were taken."""

    def __init__(self, folder: pathlib.Path, calls: Calls):
        super().__init__()
        self.folder, self.calls = folder, calls

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        with open(self.folder / "steps", "a") as file:
            file.write(f"{step}\n")
        if step % EVERY:
            return
        form = FORMATS[step // EVERY % len(FORMATS)]
        with self.calls.counted():
            save(self.model, form, self.folder / f"{step}")
        (self.folder / f"{step}.{form}.done").touch()


def save(model: Any, form: str, path: pathlib.Path) -> None:
    if form == "keras":
        model.save(f"{path}.keras")
    elif form == "weights":
        model.save_weights(f"{path}.weights.h5")
    else:
        checkpoint(model).write(f"{path}.checkpoint")


def load(form: str, path: pathlib.Path, folder: pathlib.Path) -> Any:
    if form == "keras":
        return prepared(keras.models.load_model(f"{path}.keras"))
    model = compiled(folder)
    if form == "weights":
        model.load_weights(f"{path}.weights.h5")
    else:
        checkpoint(model).read(f"{path}.checkpoint").expect_partial()
    return model


def checkpoint(model: Any) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


# What is killed.


def die_committing(where: float) -> None:
    """Dies soon after so much of the noise of all rows was drawn."""
    saved = STEPS // EVERY
    last = where * saved * 2 * math.ceil(ROWS / CHUNK)
    tell, chunks = pending_noise._Ready.tell, 0

    def told(self: Any, row: int) -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 1 + int(last):
            threading.Timer(last % 1 * 0.002, die).start()
        tell(self, row)

    pending_noise._Ready.tell = told  # type: ignore[method-assign]


def train(folder: pathlib.Path, kind: str, where: float, size: int) -> None:
    """The training that is killed, or whose size is found out."""
    saving = Calls(1 + int(where * size) if kind == "saving" else None)
    if kind == "committing":
        die_committing(where)
    elif kind == "without noise":
        LazyVariable._drawn = lambda *_: []  # type: ignore[method-assign]
    elif kind == "seeded":
        seed_noise()
    model = compiled(folder)
    callbacks = [Saving(folder, saving)]
    if kind in WRONG:
        dying = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: batch == EVERY and die()
        )
        callbacks.append(dying)
    fit(model, STEPS, *callbacks)
    (folder / "size").write_text(str(saving.count))


def seed_noise() -> None:
    """Noise that a new process draws again: what must not be done."""
    start = PendingNoise.__init__

    def seeded(self: Any, table: Any, **options: Any) -> None:
        start(self, table, **{**options, "seed": 5})

    PendingNoise.__init__ = seeded  # type: ignore[method-assign]


# What is found.


def steps_taken(folder: pathlib.Path) -> int:
    path = folder / "steps"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return int(lines[-1]) if lines else 0


def states(folder: pathlib.Path) -> Iterator[tuple[int, str, bool]]:
    """The last states whose saving began, and whether it ended."""
    begun = [
        (step, FORMATS[step // EVERY % len(FORMATS)])
        for step in range(EVERY, STEPS + 1, EVERY)
        if list(folder.glob(f"{step}.*"))
    ]
    for step, form in begun[-2:]:
        yield step, form, (folder / f"{step}.{form}.done").exists()


def go_on(folder: pathlib.Path, kind: str, choice: float) -> None:
    """Loads whatever was saved, and trains on from some of it."""
    if kind == "seeded":
        seed_noise()
    taken, before = steps_taken(folder), charged(folder)
    problems = []
    if before < taken:
        problems.append(f"{taken} steps taken, {before} charged")
    models, torn, noises = [], 0, []
    last, at = np.zeros([ROWS, WIDTH]), 0
    for step, form, complete in states(folder):
        name = f"{form} of step {step}"
        try:
            model = load(form, folder / f"{step}", folder)
        except Exception as error:
            torn += 1
            if complete:
                problems.append(f"{name}: {error!r}")
            continue
        counted = table(model, "counted").numpy()
        if not np.allclose(counted, expected(step), rtol=0.0, atol=1e-3):
            off = np.abs(counted - expected(step)).max(1)
            problems.append(f"{name}: rows are off by {off.tolist()}")
        found = int(model.optimizer.iterations.numpy())
        events = model.optimizer._record.ledger().num_events
        if not found == events == step:
            problems.append(f"{name} has {found} steps, {events} events")
        values = table(model, "random").numpy()
        noises.append((values - last) / STDDEV / np.sqrt(step - at))
        last, at = values, step
        models.append((name, step, model))
    if models:
        problems += trained_on(*models[int(choice * len(models))], noises)
    found = {"taken": taken, "charged": before, "states": len(models)}
    text = json.dumps({**found, "torn": torn, "problems": problems})
    (folder / "found").write_text(text)


def trained_on(
    name: str, step: int, model: Any, noises: list[np.ndarray]
) -> list[str]:
    """What is wrong when it goes on."""
    problems = []
    before = table(model, "random").numpy()
    fit(model, EVERY)
    steps = step + EVERY
    counted = table(model, "counted").numpy()
    if not np.allclose(counted, expected(steps), rtol=0.0, atol=1e-3):
        problems.append(f"{name} does not go on")
    noise = (table(model, "random").numpy() - before) / STDDEV / np.sqrt(EVERY)
    for other in noises:
        # 4 numbers on a grid of 2^-12: the same one time in 10^12.
        if np.any(np.all(np.abs(noise - other) < 2e-3, 1)):
            problems.append(f"{name}: noise is not fresh")
            break
    if not 0.5 < np.std(noise) < 1.5:
        problems.append(f"{name}: noise of size {np.std(noise)}")
    return problems


def until_taken(folder: pathlib.Path, steps: int) -> None:
    for _ in range(120_000):
        time.sleep(0.001)
        if steps_taken(folder) >= steps:
            return
    raise RuntimeError((folder / "output").read_text()[-2000:])


def measured(folder: pathlib.Path) -> int:
    """How many calls saving makes in a training that nobody kills."""
    if ended(in_a_process(train, folder, "", 0.0, 0)):
        raise RuntimeError((folder / "output").read_text()[-2000:])
    return int((folder / "size").read_text())


def killed(
    folder: pathlib.Path, kind: str, where: float, choice: float, size: int
) -> dict[str, Any]:
    """What is found after a training was killed."""
    process = in_a_process(train, folder, kind, where, size)
    if kind == "time":
        steps = where * (STEPS - 1)
        until_taken(folder, 1 + int(steps))
        time.sleep(steps % 1 * 0.05)
        os.kill(process, signal.SIGKILL)
    status = ended(process)
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError((folder / "output").read_text()[-2000:])
    if ended(in_a_process(go_on, folder, kind, choice)):
        raise RuntimeError((folder / "output").read_text()[-2000:])
    found = json.loads((folder / "found").read_text())
    return {"kind": kind, "where": where, "killed": status != 0, **found}


def main(folder: pathlib.Path, points: int, seed: int) -> None:
    numbers = random.Random(seed)

    def empty(name: str) -> pathlib.Path:
        (folder / name).mkdir()
        return folder / name

    size = measured(empty("measured"))
    for point in range(points + len(WRONG)):
        kind = (
            KINDS[point % len(KINDS)]
            if point < points
            else WRONG[point - points]
        )
        found = killed(
            empty(str(point)), kind, numbers.random(), numbers.random(), size
        )
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
