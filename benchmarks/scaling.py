"""What a private step costs as a table grows, from 10^5 to 10^8 rows.

    make bench-scaling
    make bench-scaling ARGS="--quick"
    make bench-scaling ARGS="--json scaling.json --plot scaling.png"

A recommender: a user's row out of a table of so many rows, an item's row out of
one of 100,000, 13 numbers, an MLP. Contenders:

- `not private`: rows are gathered and updated by Keras' SGD, nothing else. That
  is the cheapest step on such a model. Keras 3 offers it only to a layer that
  asks TensorFlow for rows (`tf.nn.embedding_lookup`), as the one here does;
  `keras.layers.Embedding` copies the whole table at every step, and is
  measured beside it as `keras Embedding`. Of tf-keras' optimizers only the
  legacy SGD leaves the other rows alone.
- `lazy noise`: `tf_sparse_dp.layers.LazyEmbedding` for both tables, trained by
  `DPSparseOptimizer`: clipping, noise on all rows and on the MLP.
- `dense noise`: DP-SGD, on `keras.layers.Embedding`, up to `--dense-rows`.

Time. A process for each number of rows. Within it contenders take turns, a few
steps each, in changing order, so that whatever else the machine does meets all
of them; every step has a new batch, of rows that are drawn evenly (every row is
as likely, the worst for caches) or by a power law (few rows are looked up
often). `not private` and `lazy noise` work on one and the same table in memory,
by turns, so that 10^8 rows fit; initial values are zero. A step is one call of
what `fit` calls for each batch. A ratio is the median over the turns of a
contender's time over `not private`'s in the same turn, with a 95 % confidence
interval for that median; by the clock, and in CPU time summed over threads,
which a busy machine disturbs less.

Memory. Peak resident memory during the steps of `lazy noise`, less what the
process had before the table was made, over the size of the table (SGD has no
slots). For small tables that says what TensorFlow takes for anything.

`--draw-rows`: up to this many rows, also how long it takes to draw all noise
that is pending at the end of `fit`, once.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import multiprocessing
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks import record
from benchmarks.this_process import forget_peak, resident, timed
from tf_sparse_dp.layers.lazy_variable import lazy_variable

keras = tf.keras
KERAS_NAME = (
    "tf-keras" if keras.Model.__module__.startswith("tf_keras") else "keras"
)

ITEMS = 100_000
NUMBERS = 13
POOL = 256  # Different batches: more rows than caches hold.
POWER = 1.2
BASE, LAZY, DENSE, KERAS = (
    "not private",
    "lazy noise",
    "dense noise",
    "keras Embedding",
)
LAWS = ("even", "power law")


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows",
        type=lambda text: int(float(text)),
        nargs="+",
        default=[10**5, 10**6, 10**7, 10**8],
    )
    parser.add_argument(
        "--dense-rows",
        type=lambda text: int(float(text)),
        default=10**7,
        help="most rows for contenders that touch all of them",
    )
    parser.add_argument(
        "--draw-rows",
        type=lambda text: int(float(text)),
        default=10**7,
        help="most rows for drawing all pending noise at the end",
    )
    parser.add_argument("--dimension", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument(
        "--hidden", type=int, nargs="+", default=[512, 256, 128]
    )
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="in a turn")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument(
        "--slow-turns", type=int, default=3, help="for what touches all rows"
    )
    parser.add_argument(
        "--quick", action="store_true", help="up to 10^6 rows, fewer turns"
    )
    parser.add_argument("--json", type=pathlib.Path, help="keep the figures")
    parser.add_argument("--plot", type=pathlib.Path, help="draw them")
    options = parser.parse_args()
    if options.quick:
        options.rows = [n for n in options.rows if n <= 10**6] or [10**5]
        options.turns, options.slow_turns = 12, 2
    return options


class GatheredRows(keras.layers.Layer):
    """Looks up rows of another layer's table, and adds no noise to them."""

    def __init__(self, layer: Any):
        super().__init__()
        self.embeddings = layer.embeddings

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        table = lazy_variable(self.embeddings)
        return super(type(table), table).sparse_read(ids)


def table(rows: int, options: argparse.Namespace, lazy: bool) -> Any:
    """A layer with a table of zeros."""
    made = tsdp.layers.LazyEmbedding if lazy else keras.layers.Embedding
    layer = made(rows, options.dimension, embeddings_initializer="zeros")
    layer.build(())
    return layer


def recommender(
    users: Any, items: Any, optimizer: Any, options: argparse.Namespace
) -> keras.Model:
    """The model, the same for all."""
    layers = keras.layers
    user = keras.Input((), dtype="int32", name="user")
    item = keras.Input((), dtype="int32", name="item")
    numbers = keras.Input((NUMBERS,), name="numbers")
    hidden = layers.Concatenate()([users(user), items(item), numbers])
    for units in options.hidden:
        hidden = layers.Dense(units, activation="relu")(hidden)
    model = keras.Model([user, item, numbers], layers.Dense(1)(hidden))
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def sgd() -> Any:
    """Plain SGD, the one that updates only the rows of a batch."""
    if KERAS_NAME == "tf-keras":
        return keras.optimizers.legacy.SGD(0.01)
    return keras.optimizers.SGD(0.01)


def private(options: argparse.Namespace, lazy: bool) -> Any:
    """Without a plan: the cost is measured, nothing is promised."""
    tables = {"tables": keras.optimizers.SGD(0.01)} if lazy else {}
    return tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.01),
        clip_norm=1.0,
        mechanism=tsdp.Gaussian(),
        noise_multiplier=1.0,
        expected_batch_size=options.batch_size,
        **tables,
    )


def batches(
    rows: int, law: str, options: argparse.Namespace
) -> tf.data.Dataset:
    """Different batches, again and again."""
    rng = np.random.default_rng(0)
    shape = (POOL, options.batch_size)

    def ids(count: int) -> np.ndarray:
        if law == "even":
            return rng.integers(count, size=shape, dtype=np.int32)
        # What is looked up often stands anywhere in the table.
        often = (rng.zipf(POWER, shape) - 1) % count
        return (often * 982_451_653 % count).astype(np.int32)

    numbers = rng.standard_normal((*shape, NUMBERS), np.float32)
    clicks = rng.integers(2, size=(*shape, 1)).astype(np.float32)
    x = (ids(rows), ids(ITEMS), numbers)
    data = tf.data.Dataset.from_tensor_slices((x, clicks))
    return data.repeat().prefetch(2)


def steps_of(model: keras.Model, data: tf.data.Dataset) -> Callable[[], Any]:
    """One step of training, as `fit` takes it."""
    model.make_train_function()
    batch: Iterator[Any] = iter(data)
    return lambda: model.train_function(batch)


def measure(rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """All figures for one number of rows; in a process of its own."""
    warnings.simplefilter("ignore", tsdp.PrivacyWarning)
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    data = {law: batches(rows, law, options) for law in options.laws}
    items = table(ITEMS, options, lazy=True)
    before = resident()
    users = table(rows, options, lazy=True)
    models = {
        BASE: recommender(
            GatheredRows(users), GatheredRows(items), sgd(), options
        ),
        LAZY: recommender(users, items, private(options, True), options),
    }
    setup: dict[str, float] = {}
    steps: dict[tuple[str, str], Callable[[], Any]] = {}

    def set_up(name: str, model: keras.Model) -> None:
        begin = time.perf_counter()
        for law in options.laws:
            steps[law, name] = steps_of(model, data[law])
            steps[law, name]()
        setup[name] = time.perf_counter() - begin
        say(rows, f"{name} is set up after {setup[name]:.0f} s")

    for name, model in models.items():
        set_up(name, model)
    found: dict[str, Any] = {"rows": rows, "setup": setup, "laws": {}}
    step = steps[options.laws[0], LAZY]
    gc.collect()
    timed(step, 5)
    kept = resident()
    forget_peak()
    timed(step, 30)
    found["memory"] = {
        "table": 4 * rows * options.dimension,
        "before": before,
        "between_steps": kept,
        "peak": resident(peak=True),
    }
    if rows <= options.dense_rows:
        for name, optimizer in (
            (KERAS, sgd()),
            (DENSE, private(options, False)),
        ):
            models[name] = recommender(
                table(rows, options, lazy=False),
                table(ITEMS, options, lazy=False),
                optimizer,
                options,
            )
            set_up(name, models[name])
    for law in options.laws:
        found["laws"][law] = {name: {"clock": [], "cpu": []} for name in models}
        for turn in range(options.turns):
            names = list(models if turn < options.slow_turns else [BASE, LAZY])
            if turn % 2:
                names.reverse()
            for name in names:
                count = options.steps
                if name in (DENSE, KERAS):
                    count = 1
                else:  # What others left in the caches is not its own.
                    timed(steps[law, name], 1)
                clock, cpu = timed(steps[law, name], count)
                found["laws"][law][name]["clock"].append(clock)
                found["laws"][law][name]["cpu"].append(cpu)
        say(rows, f"{law} is done")
    if rows <= options.draw_rows:
        begin = time.perf_counter()
        lazy_variable(users.embeddings).draw_all()
        found["draw_all"] = time.perf_counter() - begin
    return found


def say(rows: int, what: str) -> None:
    """Tells how far it is."""
    print(f"  {rows:,} rows: {what}", flush=True)


def ratios(times: dict[str, Any], name: str, kind: str) -> np.ndarray:
    """A contender's times over those of the ordinary step, turn by turn."""
    own = np.array(times[name][kind])
    return own / np.array(times[BASE][kind][: len(own)])


def report(found: list[dict[str, Any]]) -> None:
    """Prints tables."""
    for law in found[0]["laws"]:
        print(f"\nrows that are drawn: {law}")
        print(
            f"{'rows':>12}  {'':16}{'ms a step':>10}{'ratio':>8}"
            f"{'95 % interval':>16}{'least':>8}{'CPU ms':>9}{'ratio':>8}"
            f"{'95 % interval':>16}{'least':>8}"
        )
        for one in found:
            times = one["laws"][law]
            for name in times:
                line = f"{one['rows']:12,}  {name:16}"
                for kind, width in (("clock", 10), ("cpu", 9)):
                    each = ratios(times, name, kind)
                    low, high = record.median_interval(list(each))
                    least = min(times[name][kind]) / min(times[BASE][kind])
                    line += (
                        f"{np.median(times[name][kind]):{width}.1f}"
                        f"{np.median(each):8.3f}{f'{low:.3f}-{high:.3f}':>16}"
                        f"{least:8.3f}"
                    )
                print(line)
        for kind in ("clock", "cpu"):
            medians = [
                np.median(ratios(one["laws"][law], LAZY, kind)) for one in found
            ]
            print(
                f"{LAZY}, by {kind}: largest ratio {max(medians):.3f}, that "
                f"over the smallest table's {max(medians) / medians[0]:.3f}"
            )
    print(
        f"\n{'rows':>12}{'table MB':>10}{'grown MB':>10}{'ratio':>8}"
        f"{'peak MB':>10}{'ratio':>8}{'all noise s':>13}{'set-up s':>10}"
    )
    for one in found:
        memory = one["memory"]
        size = memory["table"]
        line = f"{one['rows']:12,}{size / 1e6:10.0f}"
        for moment in ("between_steps", "peak"):
            grown = memory[moment] - memory["before"]
            line += f"{grown / 1e6:10.0f}{grown / size:8.3f}"
        drawn = one.get("draw_all")
        line += f"{'' if drawn is None else f'{drawn:.1f}':>13}"
        print(f"{line}{one['setup'][LAZY]:10.1f}")


def rows_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures of each table, law and contender; memory is lazy noise's."""
    rows = []
    for one in found:
        for law, times in one["laws"].items():
            for name in times:
                row = {"rows": one["rows"], "law": law, "contender": name}
                for kind, start in (("clock", ""), ("cpu", "cpu_")):
                    each = ratios(times, name, kind)
                    low, high = record.median_interval(list(each))
                    row |= {
                        f"{start}ms": float(np.median(times[name][kind])),
                        f"{start}ratio": float(np.median(each)),
                        f"{start}low": low,
                        f"{start}high": high,
                    }
                row |= {"turns": len(times[name]["clock"])}
                row |= {"set_up_s": one["setup"][name]}
                memory = one["memory"]
                grown = memory["peak"] - memory["before"]
                lazy = name == LAZY
                row |= {
                    "table_mb": memory["table"] / 1e6,
                    "grown_to_peak_mb": grown / 1e6 if lazy else None,
                    "all_noise_s": one.get("draw_all") if lazy else None,
                }
                rows.append(row)
    return rows


def plot(found: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Times over rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    laws = list(found[0]["laws"])
    figure, panels = pyplot.subplots(
        1, len(laws), figsize=(5 * len(laws), 4), sharey=True, squeeze=False
    )
    for panel, law in zip(panels[0], laws, strict=True):
        for name in (BASE, LAZY, KERAS, DENSE):
            points = [
                (one["rows"], np.median(one["laws"][law][name]["cpu"]))
                for one in found
                if name in one["laws"][law]
            ]
            if points:
                panel.loglog(*zip(*points, strict=True), "o-", label=name)
        panel.set_title(f"rows drawn: {law}")
        panel.set_xlabel("rows of the table")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("CPU milliseconds a step")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Measures, and prints what was measured."""
    options = arguments()
    print(
        f"table of users x {options.dimension}, {ITEMS:,} items, MLP "
        f"{'-'.join(map(str, options.hidden))}, batch {options.batch_size}, "
        f"{options.threads} threads; TensorFlow {tf.__version__}, "
        f"{KERAS_NAME} {version(KERAS_NAME)}, {datetime.date.today()}",
        flush=True,
    )
    context = multiprocessing.get_context("spawn")
    found = []
    for rows in options.rows:
        with context.Pool(1) as process:
            found.append(process.apply(measure, (rows, options)))
    report(found)
    if options.json is not None:
        kept = record.record(
            "What does a private step cost as a table grows?",
            rows_of(found),
            command="make bench-scaling",
            settings=record.typed(options),
        )
        record.write(kept, options.json)
    if options.plot is not None:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
