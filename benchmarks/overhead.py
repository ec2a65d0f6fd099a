"""What a private step costs over the ordinary step: CPU time and memory.

    make bench-overhead
    make bench-overhead ARGS="--rows 100000"
    make bench-overhead ARGS="--rows 100000 --multi-hot 8"
    make bench-overhead ARGS="--rows 100000 --model attention --batch-size 128"
    make bench-overhead ARGS="--json overhead.json"

Two models: `dlrm` has categorical tables, dense features and an MLP;
`attention` has one table of items, a history of 50 items under self-attention,
and a score.

Time. The variants take turns within one process, so that whatever else the
machine does meets all of them. A ratio is the median over the turns of a
variant's CPU time over the ordinary step's in the same turn, with a 95 %
confidence interval for that median. CPU time is summed over threads: it says
what a step costs, not how long it takes.

Memory. Every variant runs in a process of its own. What TensorFlow's allocator
gives out is counted, so the figure is the tensors' and no other's; on a CPU it
counts only where oneDNN is in use (x86).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks import record

keras = tf.keras

INNER = {
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.01),
    "adam": lambda: keras.optimizers.Adam(0.01),
}
ORDINARY = "ordinary step"
# Noise multiplier and mechanism; `clipping` has no noise.
PRIVATE = {
    "clipping": (0.0, tsdp.Gaussian()),
    "gaussian": (1.0, tsdp.Gaussian()),
    "projection": (1.0, tsdp.Projection()),
    "threshold": (1.0, tsdp.Threshold()),
    "selection": (1.0, tsdp.PartitionSelection()),
}


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=sorted(MODELS), default="dlrm")
    parser.add_argument("--rows", type=int, default=10_000, help="per table")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--tables", type=int, default=26, help="dlrm")
    parser.add_argument("--dimension", type=int, default=16, help="dlrm")
    parser.add_argument(
        "--hidden", type=int, nargs="+", default=[512, 256, 128], help="dlrm"
    )
    parser.add_argument(
        "--multi-hot", type=int, default=1, help="dlrm: ids per table"
    )
    parser.add_argument("--history", type=int, default=50, help="attention")
    parser.add_argument("--width", type=int, default=64, help="attention")
    parser.add_argument("--optimizer", choices=sorted(INNER), default="sgd")
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="in a turn")
    parser.add_argument("--pairs", type=int, default=15, help="turns")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=list(PRIVATE),
        default=list(PRIVATE),
        help="what is measured beside the ordinary step",
    )
    parser.add_argument(
        "--no-memory", action="store_true", help="leave out peak memory"
    )
    parser.add_argument("--json", type=pathlib.Path, help="keep the figures")
    return parser.parse_args()


def dlrm(options: argparse.Namespace) -> keras.Model:
    """A model of the usual size for click prediction."""
    layers = keras.layers
    shape = (options.multi_hot,) if options.multi_hot > 1 else ()
    inputs, features = [], []
    for index in range(options.tables):
        ids = keras.Input(shape, dtype="int32", name=f"ids_{index}")
        looked_up = layers.Embedding(options.rows, options.dimension)(ids)
        if options.multi_hot > 1:
            looked_up = layers.GlobalAveragePooling1D()(looked_up)
        inputs.append(ids)
        features.append(looked_up)
    inputs.append(keras.Input((13,), name="numbers"))
    hidden = layers.Concatenate()([*features, inputs[-1]])
    for units in options.hidden:
        hidden = layers.Dense(units, activation="relu")(hidden)
    return keras.Model(inputs, layers.Dense(1)(hidden))


def attention(options: argparse.Namespace) -> keras.Model:
    """Scores a history of items after one block of a transformer."""
    layers, width = keras.layers, options.width
    ids = keras.Input((options.history,), dtype="int32", name="history")
    items = layers.Embedding(options.rows, width)(ids)
    seen = layers.MultiHeadAttention(4, width // 4)(items, items)
    items = layers.LayerNormalization()(items + seen)
    hidden = layers.Dense(4 * width, activation="relu")(items)
    hidden = layers.Dense(width)(hidden)
    items = layers.LayerNormalization()(items + hidden)
    pooled = layers.GlobalAveragePooling1D()(items)
    return keras.Model(ids, layers.Dense(1)(pooled))


MODELS: dict[str, Callable[[argparse.Namespace], keras.Model]] = {
    "dlrm": dlrm,
    "attention": attention,
}


def batches(options: argparse.Namespace) -> tf.data.Dataset:
    """One batch for ever: the pipeline must not show in the figures."""
    rng = np.random.default_rng(0)

    def ids(*shape: int) -> np.ndarray:
        shape = (options.batch_size, *shape)
        return ((rng.zipf(1.2, shape) - 1) % options.rows).astype(np.int32)

    if options.model == "attention":
        x = ids(options.history)
    else:
        lookups = [options.multi_hot] if options.multi_hot > 1 else []
        numbers = rng.standard_normal((options.batch_size, 13))
        x = (
            *(ids(*lookups) for _ in range(options.tables)),
            numbers.astype(np.float32),
        )
    y = rng.integers(2, size=(options.batch_size, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensors((x, y)).cache().repeat()


def compiled(options: argparse.Namespace, variant: str) -> keras.Model:
    """The model with a variant's optimizer.

    Without a plan: the cost is measured, nothing is promised.
    """
    keras.utils.set_random_seed(0)
    optimizer = INNER[options.optimizer]()
    if variant in PRIVATE:
        noise_multiplier, mechanism = PRIVATE[variant]
        optimizer = tsdp.DPSparseOptimizer(
            optimizer,
            clip_norm=1.0,
            mechanism=mechanism,
            noise_multiplier=noise_multiplier,
            expected_batch_size=options.batch_size,
        )
    model = MODELS[options.model](options)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=options.jit,
    )
    return model


def set_threads(options: argparse.Namespace) -> None:
    """As many threads within an operation as operations at a time."""
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)


def measure_time(
    options: argparse.Namespace, variants: list[str]
) -> dict[str, dict[str, Any]]:
    """Prints CPU milliseconds and ratios, and returns them by variant."""
    set_threads(options)
    data = batches(options)
    models, first = {}, {}
    for name in variants:
        models[name] = compiled(options, name)
        begin = time.perf_counter()
        models[name].fit(data, steps_per_epoch=2, verbose=0)
        first[name] = time.perf_counter() - begin

    spent: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(options.pairs):
        for name, model in models.items():
            begin = time.process_time()
            model.fit(data, steps_per_epoch=options.steps, verbose=0)
            elapsed = time.process_time() - begin
            spent[name].append(1e3 * elapsed / options.steps)

    print(
        f"{'':20}{'CPU ms a step':>14}{'ratio':>8}{'95 % interval':>16}"
        f"{'set-up s':>10}"
    )
    ordinary = np.array(spent[ORDINARY])
    found = {}
    for name, times in spent.items():
        ratios = np.array(times) / ordinary
        low, high = record.median_interval(list(ratios))
        found[name] = {
            "cpu_ms": float(np.median(times)),
            "cpu_ratio": float(np.median(ratios)),
            "cpu_low": low,
            "cpu_high": high,
            "set_up_s": first[name],
        }
        print(
            f"{name:20}{np.median(times):14.1f}{np.median(ratios):8.3f}"
            f"{f'{low:.3f}-{high:.3f}':>16}{first[name]:10.1f}"
        )
    return found


def peak_memory(
    options: argparse.Namespace, variant: str
) -> tuple[float, float]:
    """Most memory of all tensors during a step, and between steps; megabytes.

    Between steps there are weights, slots and the batch.
    """
    set_threads(options)
    data = batches(options)
    model = compiled(options, variant)
    model.fit(data, steps_per_epoch=3, verbose=0)
    kept = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, steps_per_epoch=20, verbose=0)
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    return peak / 1e6, kept / 1e6


def measure_memory(
    options: argparse.Namespace, variants: list[str]
) -> dict[str, dict[str, Any]]:
    """Prints megabytes and ratios, and returns them by variant."""
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for name in variants:
        with context.Pool(1) as process:
            peaks[name] = process.apply(peak_memory, (options, name))
    print(
        f"{'':20}{'peak MB':>14}{'ratio':>8}{'between steps':>16}"
        f"{'step alone':>13}{'ratio':>8}"
    )
    whole, ordinary = peaks[ORDINARY]
    found = {}
    for name, (peak, kept) in peaks.items():
        alone = peak - kept
        found[name] = {
            "peak_mb": peak,
            "peak_ratio": peak / whole,
            "between_steps_mb": kept,
        }
        print(
            f"{name:20}{peak:14.0f}{peak / whole:8.3f}{kept:16.0f}{alone:13.1f}"
            f"{alone / (whole - ordinary):8.3f}"
        )
    return found


def main() -> None:
    """Prints what was measured, and keeps it if asked to."""
    options = arguments()
    variants = [ORDINARY, *options.variants]
    if options.model == "dlrm":
        size = (
            f"{options.tables} tables of {options.rows:,} x "
            f"{options.dimension}, {options.multi_hot} lookups each, "
            f"MLP {'-'.join(map(str, options.hidden))}"
        )
    else:
        size = (
            f"table of {options.rows:,} x {options.width}, self-attention "
            f"over {options.history} items"
        )
    print(
        f"{options.model}: {size}, batch {options.batch_size}, "
        f"{options.optimizer}{', XLA' if options.jit else ''}; TensorFlow "
        f"{tf.__version__}, Keras {keras.__version__}"
    )
    found = measure_time(options, variants)
    if not options.no_memory:
        for name, figures in measure_memory(options, variants).items():
            found[name] |= figures
    if options.json is not None:
        kept = record.record(
            "What does a private step cost over an ordinary one?",
            [{"variant": name, **figures} for name, figures in found.items()],
            command="make bench-overhead",
            settings=record.typed(options),
        )
        record.write(kept, options.json)


if __name__ == "__main__":
    with warnings.catch_warnings():
        # Without a plan there is no guarantee, and none is claimed here.
        warnings.simplefilter("ignore", tsdp.PrivacyWarning)
        main()
