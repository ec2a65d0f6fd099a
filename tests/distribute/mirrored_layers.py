"""Layers for embedding hardware, on replicas that have none.

Run as `python -m tests.distribute.mirrored_layers`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.distribute.replicated import (
    check_close,
    copies,
    make_devices,
    mirrored,
    scope,
)
from tests.distribute.tpu_layers import BATCH, Model, compiled

_RANDOM = np.random.default_rng(1)
DATA = {
    "ids": _RANDOM.integers(0, 10, [2 * BATCH, 1]).astype("int32"),
    "x": _RANDOM.normal(size=[2 * BATCH, 3]).astype("float32"),
}
TARGETS = _RANDOM.normal(size=[2 * BATCH, 1]).astype("float32")


def trained(strategy: tf.distribute.Strategy | None, initial: Any) -> Any:
    """A model after two steps; and what it started from."""
    with scope(strategy):
        model = compiled(
            Model(),
            clip_norm=0.5,
            noise_multiplier=0.1,
            expected_batch_size=BATCH,
        )
        model({key: value[:BATCH] for key, value in DATA.items()})
        if initial is not None:
            model.set_weights(initial)
    before = model.get_weights()
    data = tf.data.Dataset.from_tensor_slices((DATA, TARGETS))
    model.fit(data.batch(BATCH, drop_remainder=True), verbose=0)
    assert model.optimizer.compositions_spent == 2
    return model, before


def main() -> None:
    """The same key gives the same noise, and the same weights."""
    make_devices(2)
    tf.keras.utils.set_random_seed(1)
    alone, initial = trained(None, None)
    together, _ = trained(mirrored(2), initial)
    check_close(together.get_weights(), alone.get_weights(), 1e-5)
    for variable in together.trainable_variables:
        first, second = copies(variable)
        np.testing.assert_array_equal(first, second)
    print("done")


if __name__ == "__main__":
    main()
