"""What it costs to update the released rows of a table.

    python benchmarks/row_updates.py
    TF_USE_LEGACY_KERAS=1 python benchmarks/row_updates.py --rows 100000

Three ways to apply the same gradient of a table: a bare scatter of SGD's steps
into the table, the optimizer as Keras has it, and the optimizer by rows. They
take turns within one process, so that whatever else the machine does meets all
of them; a figure is the median over the turns of the CPU time of one update,
summed over threads.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from tf_sparse_dp.optimizers.row_updates import ROW_WISE, by_rows

keras = tf.keras
WAYS = ("scatter", "keras", "by rows")


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--released", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--optimizers", nargs="+", default=sorted(ROW_WISE))
    return parser.parse_args()


def inner(name: str, table: tf.Variable) -> keras.optimizers.Optimizer:
    """The optimizer, without decay of all rows."""
    optimizer = getattr(keras.optimizers, name)(0.1)
    optimizer.exclude_from_weight_decay(var_list=[table])
    optimizer.build([table])
    return optimizer


def updates(
    name: str, shape: tuple[int, int]
) -> dict[str, Callable[[tf.Tensor, tf.Tensor], None]]:
    """The three ways, each with a table of its own."""
    bare, by_keras, row_wise = (tf.Variable(tf.ones(shape)) for _ in WAYS)
    whole, rows = inner(name, by_keras), inner(name, row_wise)

    def gradient(ids: tf.Tensor, values: tf.Tensor) -> tf.IndexedSlices:
        return tf.IndexedSlices(values, ids, tf.constant(shape, tf.int64))

    def scatter(ids: tf.Tensor, values: tf.Tensor) -> None:
        bare.scatter_sub(tf.IndexedSlices(0.1 * values, ids))

    def apply(ids: tf.Tensor, values: tf.Tensor) -> None:
        whole.apply_gradients([(gradient(ids, values), by_keras)])

    def apply_by_rows(ids: tf.Tensor, values: tf.Tensor) -> None:
        with by_rows(rows):
            rows.apply_gradients([(gradient(ids, values), row_wise)])

    return dict(
        zip(
            WAYS, map(tf.function, (scatter, apply, apply_by_rows)), strict=True
        )
    )


def cpu_time(
    update: Callable[[tf.Tensor, tf.Tensor], None],
    released: tuple[tf.Tensor, tf.Tensor],
) -> float:
    """Seconds of one update, over as many as take a while."""
    count, start = 0, time.process_time()
    while count < 2 or time.process_time() - start < 0.05:
        update(*released)
        count += 1
    return (time.process_time() - start) / count


def main() -> None:
    """Prints a table."""
    options = arguments()
    rng = np.random.default_rng(0)
    ids = np.sort(rng.choice(options.rows, options.released, replace=False))
    values = rng.normal(size=[options.released, options.width])
    released = tf.constant(ids), tf.constant(values, tf.float32)
    shape = (options.rows, options.width)
    kind = keras.optimizers.Optimizer.__module__.split(".")[0]
    print(f"{kind}, {shape}, {options.released} released")
    print(
        "| optimizer | scatter, ms | Keras, ms | by rows, ms | Keras : rows |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name in options.optimizers:
        ways = updates(name, shape)
        for update in ways.values():
            update(*released)
        turns = [
            [cpu_time(update, released) for update in ways.values()]
            for _ in range(options.turns)
        ]
        scatter, whole, rows = 1e3 * np.median(turns, axis=0)
        print(
            f"| {name} | {scatter:.2f} | {whole:.1f} | {rows:.2f} | "
            f"{whole / rows:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
