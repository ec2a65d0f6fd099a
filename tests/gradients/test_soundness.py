"""Ways in which examples could meet unseen, each of them refused.

Raw graphs rather than models: what matters is the operation that hides the
meeting. An accepted graph must give every example the same term, whatever the
other examples are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

ROWS, WIDTH = 4, 3
X = np.random.RandomState(0).randn(ROWS, WIDTH).astype("float32")
W = tf.Variable(np.ones((WIDTH, 2), "float32"))
STATE = tf.Variable(np.zeros(WIDTH, "float32"))
TABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)


def terms(
    forward: Callable[[Any], Any], x: np.ndarray, static: bool
) -> np.ndarray:
    """Every example's term of the gradient of mean(forward(x) @ W)."""

    @tf.function(
        input_signature=[tf.TensorSpec([ROWS if static else None, x.shape[1]])]
    )
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(forward(batch) @ W))
        separation = Separation(tape.gradient(loss, [W]), ["W"], [W.shape])
        return separation.parts[0].terms.per_example()

    return step(tf.constant(x)).numpy()


def _shifted_by_padding(x: Any) -> Any:
    paddings = tf.stack([[0, 1], [0, 0]], axis=1)
    padded = tf.pad(tf.transpose(x), paddings)
    return x + tf.transpose(tf.slice(padded, [0, 0], [WIDTH, ROWS]))


def _cumulated(x: Any) -> Any:
    return tf.cumsum(x, axis=tf.constant([[1, 1], [0, 0]])[1][0])


def _selected_by_vector(x: Any) -> Any:
    square = tf.transpose(x[:, :1] * tf.ones([1, ROWS]))
    chosen = tf.raw_ops.Select(condition=x[:, 0] > 0, x=square, y=-square)
    return x + tf.transpose(chosen)[:, :WIDTH]


def _split_by_data(x: Any) -> Any:
    sizes = tf.cast(x[:, 0] > 1e9, tf.int32) + tf.constant([0, 1, 1, 1])
    parts = tf.split(x, sizes, axis=1)
    return x + tf.reduce_sum(parts[1], 1, keepdims=True)


def _state_in_a_function(x: Any) -> Any:
    @tf.function
    def remember(value: Any) -> None:
        STATE.assign(value)

    remember(tf.reduce_mean(x, 0))
    return x - STATE


def _state_in_a_branch(x: Any) -> Any:
    tf.cond(
        tf.constant(True),
        lambda: STATE.assign(tf.reduce_mean(x, 0)),
        lambda: tf.identity(STATE),
    )
    return x - STATE


def _state_for_the_next_step(x: Any) -> Any:
    shifted = x - STATE
    STATE.assign(tf.reduce_mean(x, 0))
    return shifted


def _state_in_a_table(x: Any) -> Any:
    TABLE.insert(tf.range(ROWS, dtype=tf.int64), x[:, 0])
    return x - TABLE.lookup(tf.constant([0], tf.int64))


def _from_python(x: Any) -> Any:
    hidden = tf.numpy_function(
        lambda: X.mean(0), [], tf.float32, stateful=False
    )
    return x - tf.ensure_shape(hidden, [WIDTH])


def _through_a_file(x: Any) -> Any:
    path = tf.constant("never_written")
    written = tf.io.serialize_tensor(tf.reduce_mean(x, 0))
    with tf.control_dependencies([tf.io.write_file(path, written)]):
        read = tf.io.parse_tensor(tf.io.read_file(path), tf.float32)
    return x - tf.ensure_shape(read, [WIDTH])


def _iterator_of_ones_own(x: Any) -> Any:
    others = tf.data.Dataset.from_tensor_slices(x).skip(1)
    first = tf.data.Dataset.from_tensor_slices(x).take(1)
    iterator = iter(others.concatenate(first).batch(ROWS))
    return x + tf.ensure_shape(next(iterator), [ROWS, WIDTH])


def _rolled(x: Any) -> Any:
    return x + tf.roll(x, 1, axis=0)


def _sorted(x: Any) -> Any:
    return x + tf.sort(x, axis=0)


def _attention_over_the_batch(x: Any) -> Any:
    return tf.nn.softmax(x @ tf.transpose(x)) @ x


def _counted(x: Any) -> Any:
    return x / tf.reduce_sum(tf.cast(x > 0, tf.float32))


def _looped(x: Any) -> Any:
    total = tf.zeros([WIDTH])
    for row in tf.range(ROWS):
        total += x[row]
    return x - total


def _array(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, ROWS).unstack(x)
    return x - array.read(0)


def _deduplicated(x: Any) -> Any:
    ids = tf.cast(x[:, 0] > 0, tf.int32)
    _, place = tf.unique(ids)
    return x * tf.cast(place[:, None], tf.float32)


def _folded(x: Any) -> Any:
    return tf.reshape(
        tf.reshape(x, [ROWS // 2, 2 * WIDTH])[:, ::2], [-1, WIDTH]
    )


def _segments_of_examples(x: Any) -> Any:
    return tf.math.unsorted_segment_sum(x, [0, 0, 1, 2], ROWS)


def _segments_of_two_axes(x: Any) -> Any:
    ids = np.arange(WIDTH * ROWS).reshape(WIDTH, ROWS) % WIDTH
    return x + tf.math.unsorted_segment_sum(tf.transpose(x), ids, WIDTH)


MIXING = [
    _shifted_by_padding,
    _cumulated,
    _selected_by_vector,
    _split_by_data,
    _state_in_a_function,
    _state_in_a_branch,
    _state_for_the_next_step,
    _state_in_a_table,
    _from_python,
    _through_a_file,
    _iterator_of_ones_own,
    _rolled,
    _sorted,
    _attention_over_the_batch,
    _counted,
    _looped,
    _array,
    _deduplicated,
    _folded,
    _segments_of_examples,
    _segments_of_two_axes,
]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("forward", MIXING, ids=lambda f: f.__name__[1:])
def test_what_mixes_is_refused(
    forward: Callable[[Any], Any], static: bool
) -> None:
    with pytest.raises(tsdp.NotSeparableError) as error:
        terms(forward, X, static)
    assert "Nothing was trained" in str(error.value)


def _sliced_features(x: Any) -> Any:
    return x * tf.reduce_sum(tf.slice(x, [0, 1], [-1, 2]), 1, keepdims=True)


def _moved_about(x: Any) -> Any:
    x = tf.transpose(tf.reshape(tf.transpose(x), [WIDTH, -1]))
    x = tf.reshape(tf.tile(x[:, None, :], [1, 2, 1]), [-1, 2 * WIDTH])
    return tf.split(x, [WIDTH, WIDTH], axis=1)[1]


def _joined_and_parted(x: Any) -> Any:
    both = tf.concat([x, 2.0 * x], 0)
    size = tf.shape(x)[0]
    return tf.tanh(tf.slice(tf.sin(both), [0, 0], [size, WIDTH]))


def _within(x: Any) -> Any:
    return tf.cumsum(tf.reverse(tf.nn.softmax(x), [1]), axis=1)


def _segments_within(x: Any) -> Any:
    # An id below 0 drops its entry.
    columns = tf.transpose(x)
    sums = tf.math.unsorted_segment_sum(columns, [1, -1, 1], WIDTH)
    ids = tf.constant([[0, 1], [2, 0], [1, 1]])
    pairs = tf.stack([columns, tf.sin(columns)], 1)
    return tf.transpose(sums + tf.math.unsorted_segment_sum(pairs, ids, WIDTH))


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "forward",
    [
        _sliced_features,
        _moved_about,
        _joined_and_parted,
        _within,
        _segments_within,
    ],
    ids=lambda f: f.__name__[1:],
)
def test_an_accepted_term_sees_one_example(
    forward: Callable[[Any], Any], static: bool
) -> None:
    before = terms(forward, X, static)
    changed = X.copy()
    changed[2] = 10.0
    after = terms(forward, changed, static)
    others = [0, 1, 3]
    np.testing.assert_array_equal(before[others], after[others])
    assert np.abs(before[2] - after[2]).max() > 0.01


def optimizer(**options: Any) -> Any:
    return tsdp.DPSparseOptimizer(
        tf.keras.optimizers.SGD(1.0),
        noise_multiplier=0.0,
        expected_batch_size=1.0,
        **options,
    )


def test_two_batches_in_a_step_are_refused() -> None:
    data = tf.data.Dataset.from_tensor_slices(X).batch(2)
    private = optimizer()
    private.build([W])

    @tf.function
    def step(first: Any, second: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(next(first) @ W)
            loss += tf.reduce_mean(next(second) @ W)
        private.apply_gradients([(tape.gradient(loss, W), W)])

    with pytest.raises(tsdp.NotSeparableError, match="more than one batch"):
        step(iter(data), iter(data))


def test_a_second_release_of_a_batch_is_refused_under_a_plan() -> None:
    sampling = tsdp.PoissonSampling(
        num_examples=64, batch_size=8, steps=9, max_batch_size=40
    )
    plan = tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-3, sampling=sampling)
    private = tsdp.DPSparseOptimizer(tf.keras.optimizers.SGD(1.0), plan)
    private.build([W])

    @tf.function
    def step(x: Any, _: Any, weight: Any) -> None:
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ W))
            private.apply_gradients([(tape.gradient(loss, W), W)])

    data = sampling.dataset((np.zeros((64, WIDTH), "float32"),))
    with pytest.raises(tsdp.NotSeparableError, match="twice"):
        step(*next(iter(data.map(lambda x, y, w: (x, x, w)))))


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_a_sum_over_flat_values_is_clipped_per_example(kind: str) -> None:
    """Values without a visible example count for the one that has them."""
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0], [], [40.0]])
    feature = ragged if kind == "ragged" else ragged.to_sparse()
    data = tf.data.Dataset.from_tensor_slices((X, feature)).batch(ROWS)
    own = X[:, :, None] + np.array([1.0, 5.0, 0.0, 40.0])[:, None, None]
    own = np.repeat(own, 2, axis=2)
    norms = np.sqrt(np.sum(own**2, (1, 2), keepdims=True))
    clipped = np.sum(own * np.minimum(1.0, 2.0 / norms), 0)

    def moved(step: Callable[..., None], *batch: Any) -> np.ndarray:
        before = W.numpy()
        step(*batch)
        after = W.numpy()
        W.assign(before)
        return before - after

    private = optimizer(loss_reduction="sum", clip_norm=2.0)
    private.build([W])

    def apply(x: Any, hidden: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ W)
            loss += tf.reduce_sum(hidden.values) * tf.reduce_sum(W)
        private.apply_gradients([(tape.gradient(loss, W), W)])

    @tf.function
    def from_iterator(iterator: Any) -> None:
        apply(*next(iterator))

    found = moved(from_iterator, iter(data))
    np.testing.assert_allclose(found, clipped, rtol=1e-4)
    found = moved(tf.function(apply), *next(iter(data)))
    np.testing.assert_allclose(found, clipped, rtol=1e-4)


def test_gradients_from_elsewhere_are_refused() -> None:
    table = tf.Variable(np.ones((9, 2), "float32"))
    private = optimizer(loss_reduction="sum")
    private.build([table])
    with tf.GradientTape() as tape:
        rows = tf.gather(table, [[1, 2], [2, 3]])
        loss = tf.reduce_sum(tf.square(rows))
    gradient = tape.gradient(loss, table)

    @tf.function
    def as_one(gradient: Any) -> None:
        private.apply_gradients([(gradient, table)])

    @tf.function
    def as_parts(values: Any, ids: Any) -> None:
        shape = tf.constant([9, 2], tf.int64)
        gradient = tf.IndexedSlices(values, ids, shape)
        private.apply_gradients([(gradient, table)])

    with pytest.raises(tsdp.NotSeparableError, match="elsewhere"):
        as_one(gradient)
    with pytest.raises(tsdp.NotSeparableError, match="outside of the traced"):
        as_parts(gradient.values, gradient.indices)
