"""What the operations of a step cost on this machine, one against another.

`benchmarks/scale.py --measure` runs it. Operations take turns within one
process on one thread, so that whatever else the machine does meets all of them;
CPU time. A constant is the median over the turns of an operation's time for
one unit (a number of a row, a number of a table, an example times a dense
parameter) over that of the *lookup* in the same turn: gathering a number of a
row, and adding its gradient. Ratios are kept, and the median of the lookup's
own nanoseconds.

Releases are those of the library's mechanisms on sums of 1,024 examples with
26 lookups, rows of 64 numbers; clipped steps those of Keras with an MLP.
"""

from __future__ import annotations

import datetime
import itertools
import math
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE
from tf_sparse_dp.gradients.clipping import clip_and_sum
from tf_sparse_dp.gradients.factors import RowFactor
from tf_sparse_dp.layers.pending_noise import PendingNoise
from tf_sparse_dp.mechanisms.ball_threshold import certain_threshold
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.mechanisms.noise_norms import GaussianNorms
from tf_sparse_dp.mechanisms.tail_sampling import hit_capacity

keras = tf.keras

BATCH, LOOKUPS, WIDTH = 1024, 26, 64
ROWS = 10_000_000  # Of a table of which few rows are touched: it is not made.
HELD_ROWS = 200_000  # Of one that is.
NOISY_ROWS = 100_000  # Of one with noise on all rows.
SENSED_ROWS = 2**14
CHOSEN = 1000
MEASUREMENTS = 512
INPUTS, HIDDEN = 1024, (512, 256, 128)
REFERENCE = "lookup"

Run = Callable[[], Any]


def measured(turns: int) -> dict[str, Any]:
    """Ratios of all operations to the reference, and where they come from."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    warnings.simplefilter("ignore", tsdp.PrivacyWarning)
    operations = _operations()
    for run, _ in operations.values():
        run()
        run()
    spent: dict[str, list[float]] = {name: [] for name in operations}
    names = list(operations)
    for turn in range(turns):
        for name in names if turn % 2 else reversed(names):
            run, units = operations[name]
            spent[name].append(_nanoseconds(run) / units)
        print(f"  turn {turn + 1} of {turns}", flush=True)
    times = {name: np.array(values) for name, values in spent.items()}
    return {
        "date": str(datetime.date.today()),
        "tensorflow": tf.__version__,
        "turns": turns,
        "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        "nanoseconds": float(f"{np.median(times[REFERENCE]):.3g}"),
        "ratios": _ratios(times),
    }


def _ratios(times: dict[str, np.ndarray]) -> dict[str, float]:
    """Medians over turns; what is measured with others, without them."""
    own = dict(times)
    own["clipped product"] = times["private product"] - times["product"]
    extra = BATCH * LOOKUPS * (times["projection"] - times["threshold"])
    own["hit"] = extra / _projected_rows()
    del own["private product"], own["projection"]
    return {
        name: float(f"{np.median(values / times[REFERENCE]):.3g}")
        for name, values in own.items()
    }


def _nanoseconds(run: Run) -> float:
    """CPU time of a run, the mean of enough of them."""
    count, spent = 0, 0
    while spent < 50_000_000:
        begin = time.process_time_ns()
        run()
        spent += time.process_time_ns() - begin
        count += 1
    return spent / count


def _operations() -> dict[str, tuple[Run, float]]:
    """What is measured, and of how many units."""
    looked_up = BATCH * LOOKUPS * WIDTH
    table = NOISY_ROWS * WIDTH
    products = BATCH * parameters(INPUTS, HIDDEN)
    sensing = tsdp.CompressedSensing(measurements=MEASUREMENTS)
    chosen = tsdp.FrequencySelection(rows={"items": range(0, ROWS, 10_000)})
    return {
        REFERENCE: (_lookup(update=True), looked_up),
        "gather": (_lookup(update=False), looked_up),
        "product": (_step(private=False), products),
        "private product": (_step(private=True), products),
        "clipped lookup": (_clipped(), looked_up),
        "counted lookup": (_clipped(counted=True), looked_up),
        "gaussian": (_noise(tsdp.Gaussian()), table),
        "laplace": (_noise(tsdp.Laplace()), table),
        "threshold": (_release(tsdp.Threshold()), looked_up),
        "threshold, 4 chips": (
            _release(tsdp.Threshold(), batch=4 * BATCH),
            4 * looked_up,
        ),
        "projection": (_release(tsdp.Projection()), looked_up),
        "selection": (_release(tsdp.PartitionSelection()), looked_up),
        "chosen": (_release(chosen), looked_up),
        "sensed": (_sensed(sensing), SENSED_ROWS * WIDTH),
        "lazy": (_drawn(), looked_up),
    }


def parameters(inputs: int, hidden: tuple[int, ...]) -> int:
    """Weights of an MLP with one output, and its biases."""
    sizes = (inputs, *hidden, 1)
    return sum(
        (before + 1) * after for before, after in itertools.pairwise(sizes)
    )


def _ids(rows: int, count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(rows, size=count)


def _values(count: int) -> tf.Tensor:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((count, WIDTH)).astype(np.float32)
    return tf.constant(values / math.sqrt(LOOKUPS * WIDTH))


def _lookup(update: bool) -> Run:
    """Rows of a batch are read, and perhaps updated."""
    table = tf.Variable(tf.zeros([HELD_ROWS, WIDTH]))
    ids = tf.constant(_ids(HELD_ROWS, BATCH * LOOKUPS))
    values = _values(BATCH * LOOKUPS)

    @tf.function
    def run() -> tf.Tensor:
        rows = tf.gather(table, ids)
        with tf.control_dependencies([rows]):
            if update:
                table.scatter_sub(tf.IndexedSlices(values, ids))
            return rows[0, 0]

    return run


def _step(private: bool) -> Run:
    """A step of Keras on an MLP; clipped, but without noise."""
    layers = [keras.layers.Dense(n, activation="relu") for n in HIDDEN]
    model = keras.Sequential(
        [keras.Input((INPUTS,)), *layers, keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.SGD(0.01)
    if private:
        optimizer = tsdp.DPSparseOptimizer(
            optimizer,
            clip_norm=1.0,
            mechanism=tsdp.Gaussian(),
            noise_multiplier=0.0,
            expected_batch_size=BATCH,
        )
    model.compile(optimizer, loss="mse", jit_compile=False)
    model.make_train_function()
    rng = np.random.default_rng(2)
    batch = (
        rng.standard_normal((BATCH, INPUTS)).astype(np.float32),
        rng.standard_normal((BATCH, 1)).astype(np.float32),
    )
    data = iter(tf.data.Dataset.from_tensors(batch).repeat())
    return lambda: model.train_function(data)


def _clipped(counted: bool = False) -> Run:
    """Norms and the clipped sum of a table's terms, or the counts of rows."""
    values = tf.reshape(_values(BATCH * LOOKUPS), [BATCH, LOOKUPS, WIDTH])
    ids = tf.constant(_ids(ROWS, BATCH * LOOKUPS).reshape([BATCH, LOOKUPS]))
    mechanism = tsdp.PartitionSelection()

    @tf.function
    def run(values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        factor = RowFactor(values, ids, (ROWS, WIDTH))
        if counted:
            key = tf.constant([1, 2], tf.int64)
            facts = _facts(ROWS, BATCH)
            sums = mechanism.clipped([factor], key, facts)
        else:
            sums = clip_and_sum([factor], clip_norm=1.0).sums
        return [total.values[0] for total in sums]

    return lambda: run(values, ids)


def _facts(rows: int, batch: int) -> PublicFacts:
    table = Variable(
        shape=(rows, WIDTH), sparse=True, lookups=LOOKUPS, name="items"
    )
    return PublicFacts(
        variables=(table,),
        clip_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=batch,
        failure_probability=RELEASE_FAILURE,
    )


def _noise(mechanism: Any) -> Run:
    """Noise on all of a table, which is updated by it."""
    table = tf.Variable(tf.zeros([NOISY_ROWS, WIDTH]))
    ids = tf.constant(_ids(NOISY_ROWS, 1000))
    release = mechanism.release
    facts = _facts(NOISY_ROWS, BATCH)
    values = _values(1000)

    @tf.function
    def run(key: tf.Tensor) -> None:
        shape = tf.constant([NOISY_ROWS, WIDTH], tf.int64)
        total = tf.IndexedSlices(values, ids, shape)
        (private,) = release([total], key, facts)
        table.assign_sub(0.01 / BATCH * private)

    return lambda: run(tf.constant([1, 2], tf.int64))


def _release(mechanism: Any, batch: int = BATCH) -> Run:
    """The release of a table of which a batch touched few rows."""
    ids = tf.constant(_ids(ROWS, batch * LOOKUPS))
    values = _values(batch * LOOKUPS)
    facts = _facts(ROWS, batch)

    @tf.function
    def run(key: tf.Tensor, values: tf.Tensor, ids: tf.Tensor) -> Any:
        shape = tf.constant([ROWS, WIDTH], tf.int64)
        sums = [tf.IndexedSlices(values, ids, shape)]
        if isinstance(mechanism, tsdp.PartitionSelection):
            share = tf.constant(1 / math.sqrt(LOOKUPS), tf.float64)
            sums.append(tf.IndexedSlices(tf.fill([len(ids), 1], share), ids))
        (private,) = mechanism.release(sums, key, facts)
        return private.values[0], private.indices[0]

    return lambda: run(tf.constant([1, 2], tf.int64), values, ids)


def _projected_rows() -> int:
    """Places for untouched rows in the projection that is measured."""
    norms = GaussianNorms(1.0, WIDTH)
    threshold = certain_threshold([norms], [ROWS], BATCH * math.sqrt(LOOKUPS))
    # Half is left for taking tables apart, of which there is one here.
    share = float(norms.survival(threshold))
    return hit_capacity(ROWS, share, RELEASE_FAILURE / 2)


def _sensed(mechanism: Any) -> Run:
    """Sketching a table and recovering it."""
    values = tf.reshape(_values(BATCH * LOOKUPS), [BATCH, LOOKUPS, WIDTH])
    ids = _ids(SENSED_ROWS, BATCH * LOOKUPS).reshape([BATCH, LOOKUPS])
    facts = _facts(SENSED_ROWS, BATCH)

    @tf.function
    def run(key: tf.Tensor, values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        factor = RowFactor(values, ids, (SENSED_ROWS, WIDTH))
        sums = mechanism.clipped([factor], key, facts)
        (private,) = mechanism.release(sums, key, facts)
        return private[0]

    return lambda: run(tf.constant([1, 2], tf.int64), values, tf.constant(ids))


def _drawn() -> Run:
    """Noise that rows of a lazy table lack, drawn as they are read."""
    table = tf.Variable(tf.zeros([HELD_ROWS, WIDTH]))
    pending = PendingNoise(table)
    ids = tf.constant(_ids(HELD_ROWS, BATCH * LOOKUPS))

    @tf.function
    def run() -> tf.Tensor:
        with tf.control_dependencies(pending.owe(0.01)):
            return pending.draw(ids)

    return run
