"""Traces and lowers every step, in an environment with tensorflow-tpu.

    python -m tools.tpu_check.lower FOLDER [--all] [CASE...]

Leaves in the folder, for every case, programs for a TPU as StableHLO: small
ones to be run, with their arguments, and others to be compiled, of which
`--all` has more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import pathlib
import re
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.distribute import tpu
from tools.tpu_check.cases import (
    CASES,
    CLIP_NORM,
    RATE,
    SMALL,
    TOPOLOGIES,
    Case,
    Size,
    mean_stddev,
)
from tools.tpu_check.strategy import tpu_strategy_of
from tools.tpu_check.traced import TracedStep, traced
from tools.tpu_check.wire import bytes_sent

# Also: what the library demands of users. See docs/tpu.md.
tf.config.experimental.enable_tensor_float_32_execution(False)

_CONTROL = "gaussian"  # The case whose replicas get noise of their own.
_PRODUCT = re.compile(r"stablehlo\.(dot_general|convolution)\b")
_IN_BFLOAT16 = re.compile(r"precision DEFAULT|\[DEFAULT, DEFAULT\]")


def main(folder: pathlib.Path, names: list[str], everything: bool) -> int:
    """Gives the number of cases that failed."""
    check_that_it_fails()
    failures = 0
    for name in names or list(CASES):
        start = time.monotonic()
        own = folder / name.replace(" ", "_")
        try:
            told = lower_case(CASES[name], own, everything)
            if name == _CONTROL:
                lower_control(CASES[name], own)
        except Exception:
            failures += 1
            traceback.print_exc(limit=-3)
            print(f"FAILED  {name}")
        else:
            seconds = time.monotonic() - start
            print(f"lowered {name}: {told} ({seconds:.0f} s)", flush=True)
    return failures


def check_that_it_fails() -> None:
    """An operation that TPUs lack is found, by both the bridge and XLA.

    Raises:
      RuntimeError: If it is not, and the rest would say nothing.
    """

    def count(data: Any) -> tf.Tensor:
        found = tf.unique_with_counts(data[0][:, 0]).count
        total.assign(tf.reduce_sum(found))
        return total

    case = CASES["gaussian"]
    strategy = tpu_strategy_of(case.replicas)
    with strategy.scope():
        total = tf.Variable(0, name="total")
    broken = traced(strategy, case, SMALL, 1.0, also=count, variables=[total])
    for check in (broken.check_bridge, broken.lowered):
        try:
            check()
        except Exception as error:
            if "UniqueWithCounts" in str(error):
                continue
            raise RuntimeError(
                f"{check.__name__} did not name tf.unique_with_counts."
            ) from error
        raise RuntimeError(
            f"{check.__name__} took a step with tf.unique_with_counts."
        )
    print("self-check: a step with tf.unique_with_counts is refused by name")


def lower_case(case: Case, folder: pathlib.Path, everything: bool) -> str:
    """Writes the programs of a case; says what replicas send."""
    folder.mkdir(parents=True, exist_ok=True)
    stddev = mean_stddev(case, SMALL)
    facts = {
        "replicas": case.replicas,
        "temporaries": case.temporaries,
        "topologies": {
            "noise": TOPOLOGIES,
            "large": TOPOLOGIES if everything else TOPOLOGIES[:1],
        },
        "stddev": None if stddev is None else RATE * stddev,
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    noises = [case.noise] if case.drawn else [case.noise, 0.0]
    for noise in noises:
        write(
            step_of(case, SMALL, noise), folder, "noise" if noise else "exact"
        )
    size = case.large(everything)
    if size is not None:
        text = program(step_of(case, size, case.noise))
        (folder / "large.mlir").write_text(text)
    if case.replicas == 1:
        return "1 replica, as more are refused"
    return f"{case.replicas} replicas, {_told_of_wire(case)}"


def step_of(case: Case, size: Size, noise: float) -> TracedStep:
    """A step that the bridge takes."""
    step = traced(tpu_strategy_of(case.replicas), case, size, noise)
    step.check_bridge()
    return step


def _told_of_wire(case: Case) -> str:
    """What replicas send, of tables of two sizes.

    Raises:
      RuntimeError: If it grows with the table.
    """
    sent = []
    for rows in (10_000, 10_000_000):
        size = dataclasses.replace(SMALL, rows=rows, width=4)
        sent.append(bytes_sent(program(step_of(case, size, case.noise))))
    if sent[0] != sent[1] or not sent[0]:
        raise RuntimeError(
            f"A replica sends {sent[0]} bytes for a table of 10⁴ rows, and "
            f"{sent[1]} for one of 10⁷ rows."
        )
    return f"which send {sent[0]:,} bytes each for 10⁴ and for 10⁷ rows"


def lower_control(case: Case, folder: pathlib.Path) -> None:
    """A program in which each replica adds the noise, as it must not."""
    with _own_noise(case.noise * CLIP_NORM):
        write(step_of(case, SMALL, 0.0), folder, "own_noise")


@contextlib.contextmanager
def _own_noise(stddev: float) -> Iterator[None]:
    """While it lasts, replicas add noise to what they add up."""
    added, numbers = tpu.added, itertools.count()

    def noisy(value: tf.Tensor) -> tf.Tensor:
        context: Any = tf.distribute.get_replica_context()
        seed = tf.stack([next(numbers), context.replica_id_in_sync_group])
        noise = tf.random.stateless_normal(
            value.shape, seed, stddev=stddev, alg="philox"
        )
        return added(value + noise)

    tpu.added = noisy
    try:
        yield
    finally:
        tpu.added = added


def write(step: TracedStep, folder: pathlib.Path, name: str) -> None:
    """Writes a program that is to be run, and its arguments."""
    (folder / f"{name}.mlir").write_text(program(step))
    arrays = {
        f"value{replica}_{i}": x
        for replica, values in enumerate(step.values)
        for i, x in enumerate(values)
    }
    arrays |= {f"variable{i}": x for i, x in enumerate(step.variables)}
    arrays |= {
        "replicas": np.array(len(step.values)),
        "trained": np.array(step.trained),
        "equal": np.array(step.equal),
        "root": np.array(step.root),
    }
    np.savez(folder / f"{name}.npz", **arrays)


def program(step: TracedStep) -> str:
    """The lowered step.

    Raises:
      RuntimeError: If it multiplies matrices in bfloat16.
    """
    text = step.lowered()
    for line in text.splitlines():
        if _PRODUCT.search(line) and _IN_BFLOAT16.search(line):
            raise RuntimeError(f"A product is rounded to bfloat16: {line}")
    return text


if __name__ == "__main__":
    chosen = [name for name in sys.argv[2:] if name != "--all"]
    everything = "--all" in sys.argv[2:]
    sys.exit(main(pathlib.Path(sys.argv[1]), chosen, everything))
