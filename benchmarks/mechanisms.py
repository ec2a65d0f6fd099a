"""What a release of a large table costs: time and memory, sparse and dense.

    make bench-mechanisms
    make bench-mechanisms ARGS="--only speed --json speed.json"

Speed. One table of 10 million rows of 32 numbers, of which a batch touched
26,624 (1,024 examples with 26 lookups each). The mechanisms take turns within
one process, so that whatever else the machine does meets all of them; a ratio
is the median over the turns of the dense time over the sparse time, by the
clock and in CPU time, summed over threads, which a busy machine disturbs less.

Growth. 1,000 touched rows, and tables of 10^5 to 10^9 numbers in rows of 32;
CPU time.

Memory. The same tables. Every figure is the peak of a process of its own
(`resource.getrusage`), so it includes Python and TensorFlow. What a process
takes without any release is measured in the same way.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import pathlib
import platform
import resource
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks import record
from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable

WIDTH = 32
LOOKUPS = 26
DENSE = "dense noise"
MECHANISMS: dict[str, Callable[[], Any]] = {
    DENSE: tsdp.Gaussian,
    "threshold": tsdp.Threshold,
    "threshold by SURE": lambda: tsdp.Threshold(choice="sure"),
    "projection of rows": tsdp.Projection,
    "projection of coordinates": lambda: tsdp.Projection(
        geometry="coordinates"
    ),
    "partition selection": tsdp.PartitionSelection,
}
WAYS = {"graph": False, "XLA": True}
SPEED_ROWS, SPEED_TOUCHED = 10_000_000, 26_624
NUMBERS = [10**5, 10**6, 10**7, 10**8, 10**9]
GROWTH_TOUCHED = 1_000
# Dense noise holds some random bits and temporaries for each number.
DENSE_BYTES = 20


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=["speed", "growth", "memory"])
    parser.add_argument(
        "--mechanisms",
        nargs="+",
        choices=[name for name in MECHANISMS if name != DENSE],
        default=[name for name in MECHANISMS if name != DENSE],
        help="besides dense noise",
    )
    parser.add_argument("--rows", type=int, default=SPEED_ROWS)
    parser.add_argument("--touched", type=int, default=SPEED_TOUCHED)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path, help="keep the figures")
    return parser.parse_args()


def set_threads(threads: int) -> None:
    """As many threads within an operation as operations at a time."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def releaser(
    name: str, *, rows: int, touched: int, jit: bool
) -> Callable[[int], None]:
    """A function of the step that releases one sum; traced and run once.

    Noise multiplier 1, clip norm 1, examples of 26 lookups.
    """
    mechanism = MECHANISMS[name]()
    facts = PublicFacts(
        variables=(
            Variable(shape=(rows, WIDTH), sparse=True, lookups=LOOKUPS),
        ),
        clip_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=touched / LOOKUPS,
        failure_probability=RELEASE_FAILURE,
    )
    rng = np.random.default_rng(0)
    ids = rng.choice(rows, min(touched, rows), replace=False).astype(np.int32)
    values = rng.standard_normal((len(ids), WIDTH)).astype(np.float32)
    values *= 1 / np.sqrt(LOOKUPS * WIDTH)

    @tf.function(jit_compile=jit)
    def release(key: Any, ids: Any, values: Any) -> Any:
        total = tf.IndexedSlices(
            values, ids, tf.constant([rows, WIDTH], tf.int64)
        )
        sums = [total]
        if isinstance(mechanism, tsdp.PartitionSelection):
            shares = tf.fill([len(values), 1], tf.constant(0.2, tf.float64))
            sums.append(tf.IndexedSlices(shares, tf.cast(ids, tf.int64)))
        (private,) = mechanism.release(sums, key, facts)
        if isinstance(private, tf.IndexedSlices):
            return private.values, private.indices
        return private

    data = tf.constant(ids), tf.constant(values)

    def run(step: int) -> None:
        tf.nest.map_structure(
            lambda tensor: tensor[:1].numpy(),
            release(tf.constant([step, 1], tf.int64), *data),
        )

    run(0)
    return run


def timed(run: Callable[[int], None], step: int) -> np.ndarray:
    """Milliseconds of one release: by the clock, and of all processors."""
    begin = np.array([time.perf_counter(), time.process_time()])
    run(step)
    end = np.array([time.perf_counter(), time.process_time()])
    return 1e3 * (end - begin)


def dense_rows(options: argparse.Namespace) -> int:
    """As many rows as dense noise has memory for, at most all."""
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    affordable = int(0.8 * pages) // (DENSE_BYTES * WIDTH)
    return min(options.rows, affordable)


def measure_speed(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints milliseconds and how many times faster than dense noise."""
    rows_for_dense = dense_rows(options)
    scale = options.rows / rows_for_dense
    print(
        f"Speed: {options.rows:,} x {WIDTH}, {options.touched:,} rows touched"
    )
    if scale > 1:
        print(
            f"Dense noise is measured on {rows_for_dense:,} rows, for want of "
            "memory, and multiplied up."
        )
    runs = {}
    for name in [DENSE, *options.mechanisms]:
        for way, jit in WAYS.items():
            rows = rows_for_dense if name == DENSE else options.rows
            runs[name, way] = releaser(
                name, rows=rows, touched=options.touched, jit=jit
            )
    spent: dict[Any, list[np.ndarray]] = {variant: [] for variant in runs}
    for turn in range(options.turns):
        for variant, run in runs.items():
            factor = scale if variant[0] == DENSE else 1.0
            spent[variant].append(factor * timed(run, turn + 1))

    print(
        f"{'':34}{'ms':>10}{'CPU ms':>10}{'dense is slower by':>20}{'CPU':>8}"
    )
    figures = []
    for (name, way), turns in spent.items():
        times = np.array(turns)
        ratios = np.array(spent[DENSE, way]) / times
        clock, cpu = ratios.T
        low, high = record.median_interval(list(clock))
        cpu_low, cpu_high = record.median_interval(list(cpu))
        figures.append(
            {
                "mechanism": name,
                "way": way,
                "rows": options.rows,
                "measured_rows": (
                    rows_for_dense if name == DENSE else options.rows
                ),
                "touched": options.touched,
                "ms": float(np.median(times[:, 0])),
                "cpu_ms": float(np.median(times[:, 1])),
                "dense_ratio": float(np.median(clock)),
                "dense_low": low,
                "dense_high": high,
                "dense_cpu_ratio": float(np.median(cpu)),
                "dense_cpu_low": cpu_low,
                "dense_cpu_high": cpu_high,
            }
        )
        print(
            f"{name + ', ' + way:34}"
            + "".join(f"{ms:10.1f}" for ms in np.median(times, 0))
            + "{:20.0f}{:8.0f}".format(*np.median(ratios, 0))
        )
    return figures


def measure_growth(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints CPU milliseconds by the size of the table."""
    print(
        f"Growth: {GROWTH_TOUCHED:,} rows touched, CPU milliseconds by numbers"
    )
    print(f"{'':34}" + "".join(f"{n:10.0e}" for n in NUMBERS) + f"{'ratio':>8}")
    figures = []
    for name in options.mechanisms:
        for way, jit in WAYS.items():
            runs = [
                releaser(
                    name,
                    rows=numbers // WIDTH,
                    touched=GROWTH_TOUCHED,
                    jit=jit,
                )
                for numbers in NUMBERS
            ]
            turns = np.array(
                [
                    [timed(run, turn + 1)[1] for run in runs]
                    for turn in range(4 * options.turns)
                ]
            )
            medians = np.median(turns, 0).tolist()
            ratio = float(np.median(turns[:, -1] / turns[:, 0]))
            figures += [
                {
                    "mechanism": name,
                    "way": way,
                    "rows": numbers // WIDTH,
                    "touched": GROWTH_TOUCHED,
                    "cpu_ms": ms,
                }
                for numbers, ms in zip(NUMBERS, medians, strict=True)
            ]
            print(
                f"{name + ', ' + way:34}"
                + "".join(f"{ms:10.1f}" for ms in medians)
                + f"{ratio:8.2f}"
            )
    return figures


def peak_megabytes(name: str | None, rows: int, jit: bool, threads: int) -> Any:
    """Peak memory of this process after three releases; megabytes."""
    set_threads(threads)
    tf.zeros([]).numpy()
    if name is not None:
        run = releaser(name, rows=rows, touched=GROWTH_TOUCHED, jit=jit)
        run(1)
        run(2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(function: Callable[..., Any], *values: Any) -> Any:
    """The result of a function in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(function, values)


def measure_memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints peak megabytes by the size of the table."""
    print(f"Memory: {GROWTH_TOUCHED:,} rows touched, peak megabytes by numbers")
    bare = in_process(peak_megabytes, None, 0, False, options.threads)
    print(f"{'no release':34}{bare:10.0f}")
    numbers = NUMBERS[::2]
    print(f"{'':34}" + "".join(f"{n:10.0e}" for n in numbers))
    figures: list[dict[str, Any]] = [
        {"mechanism": "no release", "peak_mb": bare}
    ]
    for name in [*options.mechanisms, DENSE]:
        for way, jit in WAYS.items():
            peaks = [
                in_process(
                    peak_megabytes, name, n // WIDTH, jit, options.threads
                )
                for n in numbers
                # What dense noise on large tables takes is known by then.
                if name != DENSE or n <= 10**7
            ]
            figures += [
                {
                    "mechanism": name,
                    "way": way,
                    "rows": n // WIDTH,
                    "touched": GROWTH_TOUCHED,
                    "peak_mb": peak,
                }
                for n, peak in zip(numbers, peaks, strict=False)
            ]
            print(
                f"{name + ', ' + way:34}"
                + "".join(f"{peak:10.0f}" for peak in peaks)
            )
    return figures


# What rows have, whether it was measured or not.
COLUMNS = (
    *("mechanism", "way", "rows", "measured_rows", "touched", "ms", "cpu_ms"),
    *("dense_ratio", "dense_low", "dense_high"),
    *("dense_cpu_ratio", "dense_cpu_low", "dense_cpu_high", "peak_mb"),
)
MEASURES = {
    "speed": measure_speed,
    "growth": measure_growth,
    "memory": measure_memory,
}


def main() -> None:
    """Prints what was measured, and keeps it if asked to."""
    options = arguments()
    set_threads(options.threads)
    print(
        f"{datetime.date.today()}, {os.cpu_count()} cores of "
        f"{platform.machine()}, {options.threads} threads, TensorFlow "
        f"{tf.__version__}"
    )
    rows = []
    for name, measure in MEASURES.items():
        if options.only in (None, name):
            print()
            rows += [
                {"measure": name, **dict.fromkeys(COLUMNS), **figures}
                for figures in measure(options)
            ]
    if options.json is not None:
        kept = record.record(
            "What does a release of a large table cost, sparse and dense?",
            rows,
            command="make bench-mechanisms",
            settings=record.typed(options),
        )
        record.write(kept, options.json)


if __name__ == "__main__":
    main()
