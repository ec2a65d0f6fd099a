"""Whatever reads a table in memory reads it with all of its noise."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.layers import owed_noise
from tests.layers.owed_noise import (
    IDS,
    ROWS,
    STDDEV,
    TARGETS,
    WIDTH,
    check,
    owing,
    table_of,
    without_noise,
)

keras = tf.keras
KERAS_3 = hasattr(keras, "__version__")
ALL = tf.range(ROWS)
ZEROS = tf.zeros([ROWS, WIDTH])
ONE_EACH = tf.SparseTensor(
    [[row, 0] for row in range(ROWS)], np.arange(ROWS), [ROWS, 1]
)

Read = Callable[[Any, Any], Any]  # Of the variable, and of Keras' own.

READS: dict[str, Read] = {
    "numpy": lambda v, k: k.numpy(),
    "asarray": lambda v, k: np.asarray(k),
    "value": lambda v, k: k.value if KERAS_3 else k.value(),
    "read_value": lambda v, k: v.read_value(),
    "without a copy": lambda v, k: v.read_value_no_copy(),
    "rows": lambda v, k: np.stack([row.numpy() for row in v]),
    "floats": lambda v, k: [[float(x) for x in row] for row in v],
    "slice": lambda v, k: k[:],
    "sum": lambda v, k: k + 0.0,
    "product": lambda v, k: v @ tf.eye(WIDTH),
    "matmul": lambda v, k: tf.linalg.matmul(v, tf.eye(WIDTH)),
    "einsum": lambda v, k: tf.einsum("ij->ij", v),
    "identity": lambda v, k: tf.identity(v),
    "cast": lambda v, k: tf.cast(v, tf.float32),
    "stack": lambda v, k: tf.stack([v, v])[1],
    "concat": lambda v, k: tf.concat([v], 0),
    "add_n": lambda v, k: tf.add_n([v, ZEROS]),
    "where": lambda v, k: tf.where(True, v, v),
    "raw identity": lambda v, k: tf.raw_ops.Identity(input=v),
    "raw list": lambda v, k: tf.raw_ops.IdentityN(input=[v])[0],
    "raw pack": lambda v, k: tf.raw_ops.Pack(values=[v])[0],
    "raw gather": lambda v, k: tf.raw_ops.GatherV2(
        params=v, indices=ALL, axis=0
    ),
    "constant": lambda v, k: tf.constant(v),
    "convert": lambda v, k: tf.convert_to_tensor(k),
    "as in numpy": lambda v, k: tf.experimental.numpy.multiply(v, 1.0),
    "gather": lambda v, k: tf.gather(k, ALL),
    "gather columns": lambda v, k: tf.gather(v, tf.range(WIDTH), axis=1),
    "gather_nd": lambda v, k: tf.gather_nd(v, ALL[:, tf.newaxis]),
    "lookup": lambda v, k: tf.nn.embedding_lookup(k, ALL),
    "sparse lookup": lambda v, k: tf.nn.embedding_lookup_sparse(
        v, ONE_EACH, None, combiner="sum"
    ),
    "safe lookup": lambda v, k: tf.nn.safe_embedding_lookup_sparse(
        v, ONE_EACH, combiner="sum"
    ),
    "serialized": lambda v, k: tf.io.parse_tensor(
        tf.io.serialize_tensor(v), tf.float32
    ),
    "data set": lambda v, k: next(iter(tf.data.Dataset.from_tensors(v))),
    "data set of rows": lambda v, k: np.stack(
        list(tf.data.Dataset.from_tensor_slices(v).as_numpy_iterator())
    ),
    "python in a graph": lambda v, k: tf.function(
        lambda: tf.py_function(lambda: v + 0.0, [], tf.float32)
    )(),
    "given to python": lambda v, k: tf.numpy_function(
        lambda x: x, [v], tf.float32
    ),
    "function": lambda v, k: tf.function(lambda: k + 0.0)(),
    "function with raw": lambda v, k: tf.function(
        lambda: tf.raw_ops.Identity(input=v)
    )(),
    "function that gathers": lambda v, k: tf.function(
        lambda: tf.gather(k, ALL)
    )(),
    "compiled": lambda v, k: tf.function(lambda: v + 0.0, jit_compile=True)(),
    "compiled gather": lambda v, k: tf.function(
        lambda: tf.gather(v, ALL), jit_compile=True
    )(),
    "map_fn": lambda v, k: tf.function(
        lambda: tf.map_fn(
            lambda i: tf.gather(v, i), ALL, fn_output_signature=tf.float32
        )
    )(),
    "while_loop": lambda v, k: tf.function(
        lambda: tf.while_loop(
            lambda i, x: i < 1, lambda i, x: (i + 1, x + v), (0, ZEROS)
        )[1]
    )(),
    "cond": lambda v, k: tf.function(
        lambda: tf.cond(tf.constant(True), lambda: v + 0.0, lambda: ZEROS)
    )(),
    "recomputed": lambda v, k: tf.recompute_grad(lambda: v + 0.0)(),
    "added to": lambda v, k: v.assign_add(ZEROS),
    "added to in a function": lambda v, k: tf.function(
        lambda: v.assign_add(ZEROS) + 0.0
    )(),
    "scattered": lambda v, k: v.scatter_add(tf.IndexedSlices(ZEROS[:1], [0])),
    "copy": lambda v, k: copy.copy(v),
    "deep copy": lambda v, k: copy.deepcopy(k).numpy(),
    "pickle": lambda v, k: pickle.loads(pickle.dumps(v)),
}
KERAS_READS: dict[str, Read] = {
    "numpy": lambda v, k: keras.ops.convert_to_numpy(k),
    "tensor": lambda v, k: keras.ops.convert_to_tensor(k),
    "take": lambda v, k: keras.ops.take(k, ALL, axis=0),
    "matmul": lambda v, k: keras.ops.matmul(k, tf.eye(WIDTH)),
    "cast": lambda v, k: keras.ops.cast(k, "float32"),
    "map": lambda v, k: keras.ops.map(
        lambda i: keras.ops.take(k, i, axis=0), ALL
    ),
}
if KERAS_3:
    if not hasattr(keras.ops, "map"):  # Before Keras 3.4.
        del KERAS_READS["map"]
    READS |= {f"keras.ops {name}": r for name, r in KERAS_READS.items()}


@pytest.fixture(scope="module")
def layer() -> Any:
    made = owed_noise.LazyEmbedding(ROWS, WIDTH)
    made.build((None,))
    return made


@pytest.mark.once
@pytest.mark.parametrize("name", READS)
def test_reads_have_noise(name: str, layer: Any) -> None:
    table = table_of(layer)
    hidden = owing(table)
    check(READS[name](table, layer.embeddings), table, hidden)


def test_a_read_past_the_variable_is_found_out(layer: Any) -> None:
    """The check can fail: TensorFlow's handle is the way that stays open."""
    table = table_of(layer)
    hidden = owing(table)
    with pytest.raises(AssertionError):
        check(without_noise(table), table, hidden)
    # And noise that is drawn anew for every reader.
    with pytest.raises(AssertionError):
        check(hidden + STDDEV, table, hidden)


@pytest.mark.lane
def test_what_is_printed_has_noise(layer: Any) -> None:
    table = table_of(layer)
    owing(table)
    text = repr(layer.embeddings)
    if "value=" in text or "numpy=" in text:  # Not in all versions of Keras.
        assert not table.noise.exists
    assert text == repr(layer.embeddings)


@pytest.mark.lane
def test_rows_that_are_read_alone_have_noise(layer: Any) -> None:
    table = table_of(layer)
    hidden = owing(table)
    row = layer(tf.constant([9])).numpy()[0]
    again = tf.function(layer)(tf.constant([[9, 9]])).numpy()[0]
    assert np.max(np.abs(row - hidden[9])) > STDDEV / 1000
    np.testing.assert_array_equal(again, [row, row])
    np.testing.assert_array_equal(table.numpy()[9], row)


@pytest.mark.once
def test_loops_that_read_a_row_often_see_one_noise(layer: Any) -> None:
    table = table_of(layer)
    owing(table)
    rows = tf.function(
        lambda: tf.map_fn(
            lambda i: tf.gather(table, 0 * i + 9),
            tf.range(100),
            fn_output_signature=tf.float32,
            parallel_iterations=50,
        )
    )()
    assert len(np.unique(rows, axis=0)) == 1


@pytest.mark.once
def test_ids_that_there_are_not_read_nothing_hidden(layer: Any) -> None:
    """XLA gives the nearest row for them."""
    table = table_of(layer)
    hidden = owing(table)
    for bad in (ROWS, -1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            layer(tf.constant([bad]))
    compiled = tf.function(table.sparse_read, jit_compile=True)
    for row in compiled(tf.constant([ROWS, -1])).numpy():
        assert np.all(np.max(np.abs(row - hidden), 1) > STDDEV / 1000)


def test_functions_refuse_the_table_as_an_argument(layer: Any) -> None:
    table = table_of(layer)
    hidden = owing(table)
    for argument in (table, [table], {"a": table}):
        with pytest.raises(TypeError, match="LazyEmbedding was given to"):
            tf.function(lambda x: tf.nest.flatten(x)[0] + 0.0)(argument)
    check(table, table, hidden)


@pytest.mark.once
def test_vectorized_loops_do_not_read_it(layer: Any) -> None:
    table = table_of(layer)
    hidden = owing(table)
    with pytest.raises(ValueError):  # TensorFlow's own, and not clear.
        tf.vectorized_map(lambda i: tf.gather(table, i), ALL)
    check(table, table, hidden)


WRITES: dict[str, Callable[[Any], Any]] = {
    "scatter_mul": lambda v: v.scatter_mul(
        tf.IndexedSlices(tf.fill([1, WIDTH], 1e6), [9])
    ),
    "scatter_div": lambda v: v.scatter_div(
        tf.IndexedSlices(tf.fill([1, WIDTH], 1e-6), [9])
    ),
    "in a function": lambda v: tf.function(
        lambda: v.scatter_mul(tf.IndexedSlices(tf.fill([1, WIDTH], 1e6), [9]))
    )(),
}


@pytest.mark.once
@pytest.mark.parametrize("name", WRITES)
def test_noise_grows_with_the_rows(name: str, layer: Any) -> None:
    """A row that is made larger before it has noise would show through it."""
    table = table_of(layer)
    table.assign(ZEROS + 1.0)
    owing(table)
    WRITES[name](table)
    noise = table.numpy()[9] - 1e6
    assert np.max(np.abs(noise)) > 1e6 * STDDEV / 1000


REPLACED: dict[str, Callable[[Any], Any]] = {
    "assign": lambda v: v.assign(ZEROS + 5.0),
    "assign in a function": lambda v: tf.function(
        lambda: v.assign(ZEROS + 5.0)
    )(),
    "scatter_update": lambda v: v.scatter_update(
        tf.IndexedSlices(ZEROS + 5.0, ALL)
    ),
    "scatter_nd_update": lambda v: v.scatter_nd_update(
        ALL[:, tf.newaxis], ZEROS + 5.0
    ),
    "slice": lambda v: v[:].assign(ZEROS + 5.0),
}


@pytest.mark.once
@pytest.mark.parametrize("name", REPLACED)
def test_what_replaces_rows_stays_as_it_is(name: str, layer: Any) -> None:
    table = table_of(layer)
    owing(table)
    REPLACED[name](table)
    np.testing.assert_array_equal(table.numpy(), ZEROS + 5.0)


@pytest.mark.lane
def test_models_read_rows_with_noise() -> None:
    """Evaluation, prediction, another model, and another optimizer."""
    made = owed_noise.model()
    table = table_of(made)
    rows = keras.Model(made.input, made.get_layer("table").output)
    for predict in (
        lambda: rows.predict(IDS, verbose=0),
        lambda: rows.predict_on_batch(IDS),
        lambda: rows(IDS).numpy(),
    ):
        hidden = owing(table)
        found = predict().reshape(-1, WIDTH)
        ids = IDS.reshape(-1)
        assert np.all(np.max(np.abs(found - hidden[ids]), 1) > 1.0)
        np.testing.assert_array_equal(found, table.numpy()[ids])
    owing(table)
    first = made.evaluate(IDS, TARGETS, verbose=0)
    assert made.test_on_batch(IDS, TARGETS) == pytest.approx(first, rel=1e-5)
    assert first > STDDEV
    owing(table)
    made.summary(print_fn=lambda *_, **__: None)
    made.compile(keras.optimizers.SGD(1e-9), "mse")
    made.train_on_batch(IDS, TARGETS)
    hidden = owing(table)
    check(made.get_weights()[0], table, hidden)


@pytest.mark.lane
def test_fit_ends_with_all_noise() -> None:
    made = owed_noise.model()
    table, before = table_of(made), made.get_weights()[0]
    owed = []

    class Watching(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            owed.append(bool(table.noise.exists))

    made.fit(IDS, TARGETS, batch_size=4, verbose=0, callbacks=[Watching()])
    assert owed == [True]
    assert not table.noise.exists
    after = without_noise(table)
    assert np.all(np.max(np.abs(after - before), 1) > STDDEV / 1000)
    np.testing.assert_array_equal(made.get_weights()[0], after)


@pytest.mark.once
def test_noise_is_that_of_the_steps(layer: Any) -> None:
    """Not more, as noise would be that is drawn again for the same steps."""
    table = table_of(layer)
    table.assign(ZEROS)
    sizes = []
    for _ in range(10):
        owing(table)
        for read in (table.numpy, lambda: layer(ALL), table.read_value):
            before = without_noise(table)
            read()
            sizes.append(np.std(without_noise(table) - before) / STDDEV)
    drawn = np.array(sizes).reshape(10, 3)
    assert np.all(drawn[:, 1:] == 0.0)
    # 160 numbers each: a standard deviation is off by a third once in 10^8.
    assert np.all(np.abs(drawn[:, 0] - 1.0) < 0.35)


@pytest.mark.once
def test_a_scratch_graph_does_not_hold_the_table() -> None:
    """Graphs in the style of TensorFlow 1 cannot reach it."""
    made = owed_noise.LazyEmbedding(ROWS, WIDTH)
    made.build((None,))
    table = table_of(made)
    hidden = owing(table)
    with tf.Graph().as_default(), pytest.raises(RuntimeError):
        tf.identity(table)
    check(table, table, hidden)
