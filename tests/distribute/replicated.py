"""Models and runs on logical devices, for the checks in this folder.

Logical devices can only be made before TensorFlow starts: what imports this
module runs in a process of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp

ROWS, LOOKUPS, BATCH = 2000, 3, 16
_RANDOM = np.random.default_rng(7)
IDS = _RANDOM.integers(0, 40, [5 * BATCH, LOOKUPS])
TARGETS = _RANDOM.normal(size=5 * BATCH).astype("float32")


def make_devices(number: int) -> None:
    """Splits the CPU."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * number
    )


def mirrored(replicas: int) -> tf.distribute.Strategy:
    """A strategy on the first logical devices."""
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def scope(strategy: tf.distribute.Strategy | None) -> Any:
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def model_with(
    optimizer: Callable[[], Any],
    strategy: tf.distribute.Strategy | None,
    rows: int = ROWS,
    width: int = 4,
    **compiling: Any,
) -> Any:
    """An embedding, a regularised dense layer, and a constraint."""
    keras = tf.keras
    with scope(strategy):
        initial = keras.initializers.RandomUniform
        model = keras.Sequential(
            [
                keras.Input((LOOKUPS,), dtype="int64"),
                keras.layers.Embedding(
                    rows, width, embeddings_initializer=initial(seed=1)
                ),
                keras.layers.Flatten(),
                keras.layers.Dense(
                    1,
                    kernel_initializer=initial(-0.5, 0.5, seed=2),
                    kernel_regularizer=keras.regularizers.L2(0.01),
                    bias_constraint=keras.constraints.MaxNorm(0.3),
                ),
            ]
        )
        model.compile(optimizer(), **{"loss": "mse", **compiling})
    return model


def private(**arguments: Any) -> Any:
    """A private Adagrad without a plan; its noise is seeded."""
    given: dict[str, Any] = {
        "clip_norm": 0.5,
        "noise_multiplier": 0.0,
        "expected_batch_size": BATCH,
        "seed": 3,
    }
    inner = arguments.pop("inner", None) or tf.keras.optimizers.Adagrad(0.5)
    return tsdp.DPSparseOptimizer(inner, **{**given, **arguments})


def batches(data: Any = (IDS, TARGETS)) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data).batch(
        BATCH, drop_remainder=True
    )


def copies(variable: Any) -> list[np.ndarray]:
    """Values of a variable on all devices."""
    native = variable
    if not isinstance(native, tf.Variable):
        native = variable.value
    values = getattr(native, "values", None)
    if values is None:
        return [native.numpy()]
    return [value.numpy() for value in values]


def check_close(got: list[Any], expected: list[Any], tolerance: float) -> None:
    """Within a relative tolerance, of each variable's largest entry."""
    for one, other in zip(got, expected, strict=True):
        error = np.abs(one - other).max()
        assert error <= tolerance * np.abs(other).max(), error
