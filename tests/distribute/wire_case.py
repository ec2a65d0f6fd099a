"""What a replica gives to collective operations, read off the traced step.

Run by `test_wire_formula` as one worker of a cluster.
"""

from __future__ import annotations

import math
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks.scale_constants import parameters
from benchmarks.scale_costs import MECHANISMS, Setup
from tf_sparse_dp.distribute import processes

WIDTH, LOOKUPS, BATCH, HIDDEN = 2, 3, 16, 5
DENSE = parameters(LOOKUPS * WIDTH, (HIDDEN,))
GIVEN: dict[str, Any] = {
    "Gaussian": tsdp.Gaussian(),
    "Laplace": tsdp.Laplace(),
    "Threshold": tsdp.Threshold(),
    "Projection": tsdp.Projection(),
    "PartitionSelection": tsdp.PartitionSelection(),
    "FrequencySelection": tsdp.FrequencySelection(rows={"items": range(100)}),
    "CompressedSensing": tsdp.CompressedSensing(),
}


def traced(strategy: Any, mechanism: Any, rows: int) -> tuple[int, int]:
    """Bytes that are put one after another, and that are added up."""
    keras = tf.keras
    with strategy.scope():
        layers = [
            keras.Input((LOOKUPS,), dtype="int64"),
            keras.layers.Embedding(rows, WIDTH, name="items"),
            keras.layers.Flatten(),
            keras.layers.Dense(HIDDEN),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        optimizer = tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            clip_norm=1.0,
            mechanism=mechanism,
            noise_multiplier=1.0,
            expected_batch_size=BATCH,
            seed=3,
        )
        model.compile(optimizer, loss="mse")
    ids = np.zeros([BATCH, LOOKUPS], "int64")
    data = tf.data.Dataset.from_tensors((ids, np.zeros(BATCH, "float32")))
    (batch,) = strategy.experimental_distribute_dataset(data)
    sent = {"joined": 0, "added": 0}
    real = {name: getattr(processes, name) for name in sent}

    def seen(name: str) -> Any:
        def exchange(tensors: Any) -> Any:
            sent[name] += sum(
                math.prod(t.shape) * t.dtype.size for t in tensors
            )
            return real[name](tensors)

        return exchange

    for name in sent:
        setattr(processes, name, seen(name))
    try:
        step = tf.function(
            lambda batch: strategy.run(model.train_step, args=(batch,)),
            autograph=False,
        )
        step.get_concrete_function(batch)
    finally:
        for name, function in real.items():
            setattr(processes, name, function)
    return sent["joined"], sent["added"]


def main(folder: pathlib.Path) -> None:
    """Leaves what was found and what the formulas say."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found, expected = {}, {}
    for rows in (10**4, 10**7):
        setup = Setup(
            rows=rows, width=WIDTH, batch=BATCH, lookups=LOOKUPS, dense=DENSE
        )
        for name, mechanism in GIVEN.items():
            found[f"{name} {rows}"] = traced(strategy, mechanism, rows)
            expected[f"{name} {rows}"] = MECHANISMS[name](setup).sent
    np.savez(folder / "found.npz", **found)
    np.savez(folder / "expected.npz", **expected)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
