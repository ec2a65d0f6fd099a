"""Trainings that are killed somewhere, and what is found afterwards.

`python -m tests.optimizers.killed_training FOLDER POINTS SEED` kills as many
trainings and goes on from what each of them saved. It prints, as one line of
JSON for each, where it was killed, what it had published, and what is wrong,
if anything is. The last line is of a training that pays late, which is wrong.

Importing TensorFlow takes longer than all of that, so one process imports it
and starts others by forking. It must not use TensorFlow itself, whose threads
do not survive a fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.accounting.ledger_file import LedgerFile
from tf_sparse_dp.accounting.reservations import Reservation
from tf_sparse_dp.optimizers.payments import BlockPayment

keras = tf.keras

LIMIT = 60  # Of the plan.
STEPS = 20  # Of the training that is killed.
BLOCK = 4
EVERY = 2  # Steps from one saved state to the next.
FORMATS = ("keras", "weights", "checkpoint")
KINDS = ("time", "reserving", "saving", "torn line")
WEIGHTS = 12

SAMPLING = tsdp.PoissonSampling(
    num_examples=32, batch_size=4, steps=LIMIT, max_batch_size=24
)
FEATURES = np.ones([32, 2], "float32")


# What is trained.


def plan() -> tsdp.PrivacyPlan:
    return tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-3, sampling=SAMPLING)


def compiled(folder: pathlib.Path) -> Any:
    """A model that nothing but noise moves: its gradients are zero."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0), plan(), ledger=folder / "ledger.jsonl"
    )
    model.compile(optimizer=optimizer, loss=nothing)
    optimizer.build(model.trainable_variables)
    return model


@keras.utils.register_keras_serializable("killed_training")
def nothing(targets: Any, outputs: Any) -> Any:
    return 0.0 * outputs[:, 0]


def flat_weights(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


def fit(model: Any, steps: int, *callbacks: Any) -> None:
    data = SAMPLING.dataset((FEATURES, FEATURES))
    model.fit(
        data,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[tsdp.PrivacyBudget(reserve=BLOCK), *callbacks],
    )


class Publishing(keras.callbacks.Callback):
    """Lets weights out after every step, and saves them every few steps."""

    def __init__(self, folder: pathlib.Path, saving: Any):
        super().__init__()
        self.folder, self.saving = folder, saving
        self.published = os.open(
            folder / "published", os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        record = np.append(step, flat_weights(self.model)).astype("float64")
        os.write(self.published, record.tobytes())
        if step % EVERY == 0:
            form = FORMATS[step // EVERY % len(FORMATS)]
            with self.saving():
                save(self.model, form, self.folder / f"{step}")
            (self.folder / f"{step}.{form}.done").touch()


def save(model: Any, form: str, path: pathlib.Path) -> None:
    if form == "keras":
        model.save(f"{path}.keras")
    elif form == "weights":
        model.save_weights(f"{path}.weights.h5")
    else:
        checkpoint(model).write(f"{path}.checkpoint")


def load(
    form: str, path: pathlib.Path, folder: pathlib.Path
) -> tuple[Any, tsdp.Ledger]:
    """A model that goes on with the file, and the ledger of what is loaded."""
    if form == "keras":
        model = keras.models.load_model(f"{path}.keras")
    else:
        model = compiled(folder)
    if form == "weights":
        model.load_weights(f"{path}.weights.h5")
    elif form == "checkpoint":
        checkpoint(model).read(f"{path}.checkpoint").expect_partial()
    # What was saved: with the file, `ledger` has all that is in that too.
    return model, model.optimizer._record.ledger()


def checkpoint(model: Any) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


# Where it is killed.


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Calls:
    """Counts calls, of Python and of C, in some part of the program.

    Args:
      last: Before which of them to die; None counts only.
    """

    def __init__(self, last: int | None = None):
        self.last = last
        self.count = 0

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.count += 1
            if self.count == self.last:
                die()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)


def count_calls(function: Any, calls: Calls) -> Callable[..., Any]:
    def counting(*arguments: Any, **options: Any) -> Any:
        with calls.counted():
            return function(*arguments, **options)

    return counting


def tear_lines(last: int, length: float) -> None:
    """Dies with so much of a line on the disk."""
    write, lines = os.write, 0

    def torn(file: int, data: bytes) -> int:
        nonlocal lines
        if data[:1] != b"[":
            return write(file, data)
        lines += 1
        if lines < last:
            return write(file, data)
        write(file, data[: int(length * len(data))])
        die()
        raise AssertionError

    os.write = torn  # type: ignore[assignment]


def pay_late() -> None:
    """Writes blocks down when they are used up: what must not be done."""
    reserve = LedgerFile.reserve

    def settle(self: LedgerFile, late: Reservation, used: int) -> None:
        if used:
            reserve(self, late.event, used)

    LedgerFile.reserve = (  # type: ignore[assignment,method-assign]
        lambda self, event, count=1, **_: Reservation(event, count)
    )
    LedgerFile.settle = settle  # type: ignore[method-assign]


def train(folder: pathlib.Path, kind: str, where: float, size: Any) -> None:
    """The training that is killed, or whose size is found out."""
    calls = {"reserving": Calls(), "saving": Calls()}
    if kind in calls:
        calls[kind].last = 1 + int(where * size[kind])
    elif kind == "torn line":
        tear_lines(1 + int(where * size["lines"]), where * 7 % 1)
    elif kind == "late":
        pay_late()
    for name in ("reserve", "settle"):
        function = getattr(BlockPayment, name)
        setattr(BlockPayment, name, count_calls(function, calls["reserving"]))
    model = compiled(folder)
    publishing = Publishing(folder, calls["saving"].counted)
    if kind == "late":  # In the second block.
        dying = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: batch == BLOCK and die()
        )
        fit(model, STEPS, publishing, dying)
    fit(model, STEPS, publishing)
    found = {name: counter.count for name, counter in calls.items()}
    found["lines"] = len(lines_of(folder)) - 1  # But for the header.
    (folder / "size").write_text(json.dumps(found))


# What is found.


def lines_of(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The ledger's whole lines, read without the library."""
    *whole, tail = (folder / "ledger.jsonl").read_text().split("\n")
    with contextlib.suppress(ValueError):
        whole.append(json.dumps(json.loads(tail)))
    return [json.loads(line)[1] for line in whole if line]


def charged(folder: pathlib.Path) -> int:
    """Events that the file says are spent."""
    counts = {}
    for line in lines_of(folder):
        if line["kind"] in ("reserve", "spend"):
            counts[line["id"]] = line["count"]
        elif line["kind"] == "settle":
            counts[line["id"]] = line["used"]
    return sum(counts.values())


def published(folder: pathlib.Path) -> np.ndarray:
    """A row for each step that was let out: its number, and the weights."""
    numbers = np.fromfile(folder / "published")
    whole = numbers[: len(numbers) // (1 + WEIGHTS) * (1 + WEIGHTS)]
    return whole.reshape(-1, 1 + WEIGHTS)


def states(folder: pathlib.Path) -> Iterator[tuple[int, str, bool]]:
    """Of each format the last two that were begun, and whether they ended."""
    steps = range(EVERY, STEPS + 1, EVERY)
    begun = [
        (step, FORMATS[step // EVERY % len(FORMATS)])
        for step in steps
        if list(folder.glob(f"{step}.*"))
    ]
    for step, form in begun[-2 * len(FORMATS) :]:
        yield step, form, (folder / f"{step}.{form}.done").exists()


def go_on(folder: pathlib.Path, choice: float) -> None:
    """Loads whatever was saved, and trains on from some of it."""
    before = charged(folder)
    seen = published(folder)
    released = int(seen[-1, 0]) if len(seen) else 0
    problems = []
    if before < released:
        problems.append(f"{released} steps published, {before} charged")
    models: list[tuple[str, Any]] = [("nothing", compiled(folder))]
    for step, form, ended in states(folder):
        try:
            model, ledger = load(form, folder / f"{step}", folder)
        except Exception as error:
            if ended:
                problems.append(f"{form} of step {step}: {error!r}")
            continue
        if ledger.num_events != step:
            problems.append(f"{ledger.num_events} events in {form} of {step}")
        models.append((f"{form} of step {step}", model))
    needed = max(before, released)
    for name, model in models:
        problems += unsafe(name, model, needed)
    if charged(folder) != before:
        problems.append(f"loading made {charged(folder)} of {before}")
    name, model = models[int(choice * len(models))]
    problems += trained_on(name, model, folder, seen[:, 1:])
    found = {"released": released, "charged": before, "problems": problems}
    (folder / "found").write_text(json.dumps(found))


def unsafe(name: str, model: Any, needed: int) -> list[str]:
    """What a model that was loaded promises too much of."""
    optimizer = model.optimizer
    statement = optimizer.privacy_statement()
    found = {
        "spent": optimizer.compositions_spent,
        "stated": statement.compositions,
        "not left": LIMIT - optimizer.compositions_left,
        "not stated as left": LIMIT - statement.compositions_left,
    }
    problems = [
        f"{name}: {count} {what} instead of {needed}"
        for what, count in found.items()
        if count < needed
    ]
    if statement.epsilon_spent < plan().epsilon_spent(needed):
        problems.append(f"{name}: epsilon is that of fewer steps")
    return problems


def trained_on(
    name: str, model: Any, folder: pathlib.Path, seen: np.ndarray
) -> list[str]:
    """What is wrong when it goes on; all of its moves are noise."""
    before, spent = charged(folder), model.optimizer.compositions_spent
    start = flat_weights(model)
    fit(model, 1)
    problems = []
    if model.optimizer.compositions_spent != spent + 1:
        problems.append(f"{name} does not go on")
    if charged(folder) != before + 1:
        problems.append(f"{name}: {charged(folder)} charged after {before}")
    move = flat_weights(model) - start
    moves = np.diff(np.vstack([np.zeros([1, WEIGHTS]), seen]), axis=0)
    # The first move of the killed training starts from weights nobody saw.
    same = np.isclose(moves[1:], move, rtol=1e-3, atol=1e-5)
    kernel, bias = same[:, :8].all(1), same[:, 8:].all(1)
    if not move.any() or kernel.any() or bias.any():
        problems.append(f"{name}: noise is not fresh")
    return problems


# One process after the other.


def in_a_process(task: Callable[..., None], *arguments: Any) -> int:
    """Forks, and gives the process id of what does the task."""
    process = os.fork()
    if process:
        return process
    try:
        with open(arguments[0] / "output", "a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        warnings.simplefilter("ignore")
        task(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def until_published(folder: pathlib.Path, steps: int) -> None:
    """Waits for a step, but not for ever."""
    for _ in range(120_000):
        time.sleep(0.001)
        if (folder / "published").exists() and len(published(folder)) >= steps:
            return
    raise RuntimeError((folder / "output").read_text()[-2000:])


def measured(folder: pathlib.Path) -> dict[str, Any]:
    """How long a training takes that nobody kills, and how many calls."""
    process = in_a_process(train, folder, "", 0.0, None)
    until_published(folder, 1)
    start = time.monotonic()
    if ended(process):
        raise RuntimeError((folder / "output").read_text()[-2000:])
    size = json.loads((folder / "size").read_text())
    return {**size, "time": time.monotonic() - start}


def killed(
    folder: pathlib.Path, kind: str, where: float, choice: float, size: Any
) -> dict[str, Any]:
    """What is found after a training was killed."""
    process = in_a_process(train, folder, kind, where, size)
    if kind == "time":
        # Some time after some step, however busy the machine is.
        steps = where * (STEPS - 1)
        until_published(folder, 1 + int(steps))
        time.sleep(steps % 1 * size["time"] / STEPS)
        os.kill(process, signal.SIGKILL)
    status = ended(process)
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError((folder / "output").read_text()[-2000:])
    if ended(in_a_process(go_on, folder, choice)):
        raise RuntimeError((folder / "output").read_text()[-2000:])
    found = json.loads((folder / "found").read_text())
    return {"kind": kind, "where": where, "killed": status != 0, **found}


def main(folder: pathlib.Path, points: int, seed: int) -> None:
    numbers = random.Random(seed)

    def empty(name: str) -> pathlib.Path:
        (folder / name).mkdir()
        return folder / name

    size = measured(empty("measured"))
    print(json.dumps(size), flush=True)
    for point in range(points):
        kind = KINDS[point % len(KINDS)]
        found = killed(
            empty(str(point)), kind, numbers.random(), numbers.random(), size
        )
        print(json.dumps(found), flush=True)
    print(json.dumps(killed(empty("late"), "late", 1.0, 0.0, size)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
