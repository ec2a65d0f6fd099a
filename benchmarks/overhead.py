"""What a private step costs, in CPU time over the ordinary step.

    make bench
    make bench ARGS="--rows 100000 --pairs 30"

The model is DLRM-like: categorical tables, dense features, an MLP. The variants
take turns within one process, so that whatever else the machine does meets all
of them, and the ratio is the median over the turns. CPU time is summed over
threads: it says what a step costs, not how long it takes.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras

INNER = {
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.01),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=10_000, help="per table")
    parser.add_argument("--dimension", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--hidden", type=int, nargs="+", default=[512, 256, 128]
    )
    parser.add_argument(
        "--multi-hot", type=int, default=1, help="ids per table and example"
    )
    parser.add_argument("--optimizer", choices=sorted(INNER), default="sgd")
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="in a turn")
    parser.add_argument("--pairs", type=int, default=8, help="turns")
    return parser.parse_args()


def build(options: argparse.Namespace) -> keras.Model:
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


def batches(options: argparse.Namespace) -> tf.data.Dataset:
    """One batch for ever: the pipeline must not show in the figures."""
    rng = np.random.default_rng(0)
    shape = [options.batch_size]
    if options.multi_hot > 1:
        shape.append(options.multi_hot)
    x = [
        ((rng.zipf(1.2, shape) - 1) % options.rows).astype(np.int32)
        for _ in range(options.tables)
    ]
    x.append(rng.standard_normal((options.batch_size, 13)).astype(np.float32))
    y = rng.integers(2, size=(options.batch_size, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensors((tuple(x), y)).cache().repeat()


def private(
    options: argparse.Namespace, noise: float
) -> keras.optimizers.Optimizer:
    """Without a plan: the cost is measured, nothing is promised."""
    return tsdp.DPSparseOptimizer(
        INNER[options.optimizer](),
        clip_norm=1.0,
        noise_multiplier=noise,
        expected_batch_size=options.batch_size,
    )


def main() -> None:
    """Prints milliseconds and ratios."""
    options = arguments()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    data = batches(options)
    variants = {
        "ordinary step": INNER[options.optimizer](),
        "clipped, no noise": private(options, 0.0),
        "Gaussian noise": private(options, 1.0),
    }
    models, first = {}, {}
    for name, optimizer in variants.items():
        keras.utils.set_random_seed(0)
        models[name] = build(options)
        models[name].compile(
            optimizer=optimizer,
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            jit_compile=options.jit,
        )
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
        f"{options.tables} tables of {options.rows:,} x {options.dimension}, "
        f"MLP {'-'.join(map(str, options.hidden))}, "
        f"batch {options.batch_size}, {options.optimizer}, "
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
        f"{', XLA' if options.jit else ''}"
    )
    print(f"{'':20}{'CPU ms a step':>14}{'ratio':>8}{'set-up s':>10}")
    ordinary = np.array(spent["ordinary step"])
    for name, times in spent.items():
        ratio = np.median(np.array(times) / ordinary)
        print(
            f"{name:20}{np.median(times):14.1f}{ratio:8.2f}{first[name]:10.1f}"
        )


if __name__ == "__main__":
    with warnings.catch_warnings():
        # Without a plan there is no guarantee, and none is claimed here.
        warnings.simplefilter("ignore", tsdp.PrivacyWarning)
        main()
