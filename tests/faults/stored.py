"""Families of broken files: bits that flipped, ends that are missing.

What was spent before must be known after whatever is loaded, or loading, or
the first step after it, has to fail.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import resource
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.faults.seen import CLEAR, Seen
from tests.optimizers import small_run
from tf_sparse_dp.accounting.ledger_file import LedgerFile
from tf_sparse_dp.accounting.ledger_header import LedgerHeader

keras = tf.keras
Random = np.random.Generator

FORMS = ("weights", "checkpoint", "keras")
SPENT = 3
EVENT = dp_accounting.GaussianDpEvent(1.0)
HEADER = LedgerHeader(
    account={"class_name": "PrivacyPlan", "config": {"delta": 1e-3}},
    neighbouring_relation="add_or_remove_one",
)


@functools.cache
def saved() -> pathlib.Path:
    """A folder with one training of 3 steps, in all formats."""
    folder = pathlib.Path(tempfile.mkdtemp())
    model = small_run.model()
    small_run.train(model, SPENT)
    for form in FORMS:
        small_run.save(model, form, folder)
    return folder


@functools.cache
def _loading() -> Any:
    """Compiling takes long, building does not."""
    return small_run.plan()


def outcome(work: Any, needed: int) -> Seen:
    """What came of loading: an error, or all that was spent, or less.

    Args:
      work: Loads, and gives what counts as spent.
      needed: How much that has to be.
    """
    try:
        spent = work()
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:300]}"
        clear = isinstance(error, CLEAR) and bool(str(error).strip())
        return Seen(error=text, clear=clear)
    # One more on both sides, for loading what nothing was spent of.
    return Seen(changed=True, steps=needed + 1, spent=spent + 1)


def _damage(random: Random, data: bytes) -> bytes:
    if random.random() < 0.3:
        return data[: random.integers(0, len(data))]
    damaged = bytearray(data)
    full = np.flatnonzero(np.frombuffer(data, np.uint8))
    for _ in range(random.choice([1, 3, 30])):
        place = random.choice(full) if random.random() < 0.7 else None
        place = random.integers(len(data)) if place is None else place
        damaged[place] ^= 1 << random.integers(8)
    return bytes(damaged)


@contextlib.contextmanager
def _copied() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "copy"
        shutil.copytree(saved(), copy)
        yield copy


def _count(form: str, folder: pathlib.Path) -> int:
    into = None if form == "keras" else small_run.model(_loading())
    model = small_run.load(form, folder, into)
    model.optimizer.privacy_statement()  # Which refuses what does not fit.
    return int(model.optimizer.compositions_spent)


def states(random: Random) -> Seen:
    """Files of models, weights and checkpoints of which bytes are wrong."""
    form = str(random.choice(FORMS))
    with _copied() as folder:
        name = small_run.FILES[form]
        files = sorted(folder.glob(f"{name}*"))
        path = files[random.integers(len(files))]
        path.write_bytes(_damage(random, path.read_bytes()))
        return outcome(lambda: _count(form, folder), SPENT)


def ledgers(random: Random) -> Seen:
    """Ledger files; lines that are missing at the end cannot be seen."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ledger.jsonl"
        file = LedgerFile(path, HEADER)
        sizes = []
        for count in random.integers(1, 5, 4):
            file.reserve(EVENT, int(count))
            sizes.append((path.stat().st_size, file.num_events))
        data = path.read_bytes()
        damaged = _damage(random, data)
        path.write_bytes(damaged)
        if data.startswith(damaged):
            whole = [number for size, number in sizes if size <= len(damaged)]
            needed = max(whole, default=0)
        else:
            needed = sizes[-1][1]
        return outcome(lambda: LedgerFile(path, HEADER).num_events, needed)


def _table_model(rows: int) -> Any:
    ids = keras.Input((2,), dtype="int32")
    table = keras.layers.Embedding(rows, 3, name="table")(ids)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(table))
    model = keras.Model(ids, outputs)
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.Adam(0.1), noise_multiplier=1.0, expected_batch_size=8
    )
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    return model


@functools.cache
def _resizable() -> pathlib.Path:
    folder = pathlib.Path(tempfile.mkdtemp())
    model = _table_model(20)
    data = np.zeros([8, 2], "int32"), np.zeros([8, 1], "float32")
    for _ in range(SPENT):
        model.train_on_batch(*data)
    for form in ("weights", "checkpoint"):
        small_run.save(model, form, folder)
    return folder


def resized(random: Random) -> Seen:
    """Tables that have more or fewer rows when they are loaded."""
    form = str(random.choice(["weights", "checkpoint"]))
    model = _table_model(int(random.integers(1, 60)))

    def load() -> int:
        small_run.load(form, _resizable(), model)
        model.optimizer.privacy_statement()
        return int(model.optimizer.compositions_spent)

    return outcome(load, SPENT)


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file becomes larger than this."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@functools.cache
def _saving() -> Any:
    model = small_run.model()
    small_run.train(model, SPENT)
    return model


def disks(random: Random) -> Seen:
    """Disks that are full while something is saved.

    Not by HDF5 alone (`.weights.h5`), which may end the process then.
    """
    form = str(random.choice(["checkpoint", "keras"]))
    model = _saving()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def save() -> int:
            with full_disk(int(random.integers(0, 20_000))):
                small_run.save(model, form, folder)
            return _count(form, folder)

        found = outcome(save, SPENT)
        if model.optimizer.compositions_spent < SPENT:
            return Seen(changed=True, steps=SPENT)
        if not found.error:
            return found
        again = outcome(lambda: _count(form, folder), SPENT)
        return found if again.error else again


FAMILIES = {
    "damaged states": states,
    "damaged ledgers": ledgers,
    "resized tables": resized,
    "full disks": disks,
}
