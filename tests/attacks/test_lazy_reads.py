"""Attack: get at rows of a lazy table before they have their noise.

`tests/layers/test_reading.py` reads the table in memory in every way that
TensorFlow has, and `tests/layers/test_nothing_leaves.py` saves it. Here are the
ways that remain to somebody who trains: callbacks in the midst of an epoch,
the optimizer's own variables, gradients and state trees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.layers import owed_noise
from tests.layers.owed_noise import (
    IDS,
    ROWS,
    STDDEV,
    TARGETS,
    WIDTH,
    check,
    table_of,
)

keras = tf.keras
KERAS_3 = hasattr(keras, "__version__")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Read = Callable[[Any], Any]


def _tape(model: Any) -> Any:
    """The table as the gradient of what it is multiplied with."""
    table = model.get_layer("table").embeddings
    factor = tf.Variable(tf.ones([ROWS, WIDTH]))
    with tf.GradientTape() as tape:
        product = tf.reduce_sum(factor * tf.convert_to_tensor(table))
    return tape.gradient(product, factor)


def _cloned(model: Any) -> Any:
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone.get_weights()[0]


def _own_variables(model: Any) -> Any:
    store: dict[str, Any] = {}
    model.get_layer("table").save_own_variables(store)
    return store["0"]


def _state_tree(model: Any) -> Any:
    found = model.get_state_tree(value_format="numpy_array")
    tables = [
        value
        for value in tf.nest.flatten(found)
        if np.shape(value) == (ROWS, WIDTH)
    ]
    return tables[0]


READS: dict[str, Read] = {
    "get_weights": lambda model: model.get_weights()[0],
    "trainable variables": lambda model: model.trainable_variables[0].numpy(),
    "predict": lambda model: keras.Model(
        model.input, model.get_layer("table").output
    ).predict(np.arange(ROWS).reshape(-1, 2), verbose=0),
    "tape": _tape,
    "clone": _cloned,
    "layer's own variables": _own_variables,
}
if hasattr(keras.Model, "get_state_tree"):
    READS["state tree"] = _state_tree


class Reading(keras.callbacks.Callback):
    """Reads after a step, when every row lacks noise."""

    def __init__(self, reads: dict[str, Read]):
        super().__init__()
        self.reads, self.done = reads, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        read = list(self.reads.values())[batch]
        table = table_of(self.model)
        assert table.noise.exists
        hidden = owed_noise.without_noise(table)
        found = np.reshape(read(self.model), [ROWS, WIDTH])
        check(found, table, hidden)
        self.done += 1


@pytest.fixture(scope="module")
def model() -> Any:
    return owed_noise.model()


def _data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    return np.tile(IDS, [steps, 1]), np.tile(TARGETS, [steps, 1])


def test_callbacks_read_with_noise(model: Any) -> None:
    reading = Reading(READS)
    model.fit(*_data(len(READS)), batch_size=4, verbose=0, callbacks=[reading])
    assert reading.done == len(READS)


def test_a_callback_that_reads_past_the_variable_is_found_out(
    model: Any,
) -> None:
    past = {"handle": lambda m: owed_noise.without_noise(table_of(m))}
    with pytest.raises(AssertionError):
        model.fit(*_data(1), batch_size=4, verbose=0, callbacks=[Reading(past)])


def _every_variable(optimizer: Any) -> list[np.ndarray]:
    found = [*optimizer.variables] if KERAS_3 else [*optimizer.variables()]
    inner = optimizer.inner_optimizer
    found += [*inner.variables] if KERAS_3 else [*inner.variables()]
    return [np.array(v) for v in found]


@pytest.mark.parametrize("rule", ["sgd", "dual averaging"])
def test_the_optimizer_has_no_table_without_noise(rule: str) -> None:
    """Nor a sum of gradients, which dual averaging keeps in the table."""
    ids = keras.Input((2,), dtype="int32")
    rows = owed_noise.LazyEmbedding(
        ROWS, WIDTH, name="table", denoise=rule != "sgd"
    )(ids)
    made = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.Adam(0.1),
        noise_multiplier=4 * STDDEV,
        expected_batch_size=4,
        tables=keras.optimizers.SGD(1.0)
        if rule == "sgd"
        else tsdp.DualAveraging(1.0),
    )
    made.compile(optimizer, "mse")
    made.train_on_batch(IDS, TARGETS)
    table = table_of(made)
    hidden = owed_noise.without_noise(table)
    entries = {row.tobytes() for row in hidden[np.unique(IDS)]}
    assert len(entries) > 1
    for value in _every_variable(optimizer):
        assert value.shape != (ROWS, WIDTH)
        for row in entries:
            assert row not in value.tobytes()
    if rule == "sgd":
        check(made.get_weights()[0], table, hidden)
    else:  # Which looks at all rows for the size of the noise, and drew it.
        check(table.numpy(), table, np.zeros([ROWS, WIDTH]))


def test_best_weights_have_noise() -> None:
    """What Keras' callbacks keep at the end of epochs."""
    made = owed_noise.model()
    hidden = []

    class Looking(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            hidden.append(owed_noise.without_noise(table_of(made)))

    best = keras.callbacks.EarlyStopping(
        "loss", patience=1, mode="min", restore_best_weights=True
    )
    made.fit(
        *_data(1),
        epochs=2,
        batch_size=4,
        verbose=0,
        callbacks=[
            Looking(),  # First: before anybody else reads.
            best,
        ],
    )
    kept = best.best_weights[0]
    raw = hidden[best.best_epoch]
    assert np.all(np.max(np.abs(kept - raw), 1) > STDDEV / 1000)
