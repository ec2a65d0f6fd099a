"""Ragged and sparse features: terms as a loop gives them, or a refusal.

Raw graphs. Each accepted one must give every example the term that it has
when it is alone in a batch, whatever lengths the others have.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.ragged_inputs import of_arguments
from tf_sparse_dp.gradients.ragged_rows import (
    RaggedRowFactor,
    per_example_sums,
)
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

_random = np.random.RandomState(0)
ROWS, WIDTH = 9, 3
TABLE = tf.Variable(_random.randn(ROWS, WIDTH).astype("float32"))
OTHER = tf.Variable(_random.randn(ROWS, WIDTH).astype("float32"))
KERNEL = tf.Variable(_random.randn(ROWS, WIDTH).astype("float32"))
SQUARE = tf.Variable(_random.randn(WIDTH, WIDTH).astype("float32"))
BIAS = tf.Variable(_random.randn(WIDTH).astype("float32"))
VARIABLES = [TABLE, OTHER, KERNEL, SQUARE, BIAS]

# Ids that repeat within examples and across them, and lengths that differ.
LISTS = [[1, 2, 1], [3], [8, 8, 2, 1, 0], [4, 1]]
GAPS = [[1, 2, 1], [], [8, 8, 2, 1, 0], [4, 1], []]
TARGETS = _random.randn(5).astype("float32")


def features(lists: list[list[int]]) -> dict[str, Any]:
    ids = tf.ragged.constant(lists, tf.int64, ragged_rank=1)
    numbers = tf.cast(ids.values, tf.float32)
    dense = np.zeros((len(lists), ROWS), "float32")
    for example, row in enumerate(lists):
        dense[example, row] = np.arange(1, len(row) + 1)
    weights = ids.with_values(tf.sin(numbers + 0.5) + 0.2)
    return {
        "ids": ids,
        "weights": tf.RaggedTensor.from_row_lengths(
            weights.values, ids.row_lengths()
        ),
        "sparse_ids": ids.to_sparse(),
        "sparse_weights": weights.to_sparse(),
        "counts": tf.sparse.from_dense(dense),
        "dense_ids": tf.constant([len(row) % ROWS for row in lists]),
        "y": tf.constant(TARGETS[: len(lists)]),
    }


SIGNATURE = {
    "ids": tf.RaggedTensorSpec([None, None], tf.int64),
    "weights": tf.RaggedTensorSpec([None, None], tf.float32),
    "sparse_ids": tf.SparseTensorSpec([None, None], tf.int64),
    "sparse_weights": tf.SparseTensorSpec([None, None], tf.float32),
    "counts": tf.SparseTensorSpec([None, ROWS], tf.float32),
    "dense_ids": tf.TensorSpec([None], tf.int32),
    "y": tf.TensorSpec([None], tf.float32),
}
Forward = Callable[[dict[str, Any]], Any]


def loss(forward: Forward, batch: dict[str, Any]) -> Any:
    outputs = forward(batch)
    return tf.reduce_sum(tf.square(tf.reduce_sum(outputs, 1) - batch["y"]))


def separated(forward: Forward, batch: dict[str, Any]) -> Any:
    with tf.GradientTape() as tape:
        total = loss(forward, batch)
    gradients = tape.gradient(total, VARIABLES)
    separation = Separation(
        gradients, list("tokqb"), [tuple(v.shape) for v in VARIABLES]
    )
    terms = [None if part is None else part.terms for part in separation.parts]
    return (
        [None if t is None else t.per_example() for t in terms],
        [None if t is None else t.squared_norms() for t in terms],
        separation.consistent,
    )


def traced(
    forward: Forward, lists: list[list[int]], how: str = "dynamic"
) -> Any:
    batch = features(lists)
    if how == "iterator":
        data = tf.data.Dataset.from_tensor_slices(batch).batch(len(lists))

        @tf.function
        def from_iterator(iterator: Any) -> Any:
            return separated(forward, next(iterator))

        return from_iterator(iter(data))
    signature = [SIGNATURE] if how == "dynamic" else None
    step = tf.function(
        lambda batch: separated(forward, batch), input_signature=signature
    )
    return step(batch)


def _gathered(batch: dict[str, Any]) -> Any:
    return tf.gather(TABLE, batch["ids"])


def _summed(batch: dict[str, Any]) -> Any:
    return tf.reduce_sum(_gathered(batch), 1) @ SQUARE


def _averaged(batch: dict[str, Any]) -> Any:
    return tf.reduce_mean(tf.nn.embedding_lookup(TABLE, batch["ids"]), 1)


def _square_root(batch: dict[str, Any]) -> Any:
    lengths = tf.cast(batch["ids"].row_lengths(), tf.float32)
    return tf.reduce_sum(_gathered(batch), 1) / tf.sqrt(lengths)[:, None]


def _largest(batch: dict[str, Any]) -> Any:
    return tf.reduce_max(_gathered(batch), 1)


def _weighted(batch: dict[str, Any]) -> Any:
    rows = _gathered(batch)
    weights = batch["weights"].values[:, None]
    return tf.reduce_sum(rows.with_values(rows.values * weights), 1)


def _attention(batch: dict[str, Any]) -> Any:
    ids = batch["ids"]
    rows = ids.value_rowids()
    query = tf.gather(tf.gather(OTHER, batch["dense_ids"]), rows)
    keys = tf.gather(TABLE, ids.values)
    scores = tf.exp(tf.reduce_sum(tf.tanh(query @ SQUARE) * keys, 1))
    count = ids.nrows()
    total = tf.math.unsorted_segment_sum(scores, rows, count)
    scores = (scores / tf.gather(total, rows))[:, None]
    return tf.math.unsorted_segment_sum(scores * keys, rows, count)


def _repeated(batch: dict[str, Any]) -> Any:
    ids = batch["ids"]
    query = tf.cast(batch["dense_ids"], tf.float32)[:, None]
    query = tf.repeat(query, ids.row_lengths(), axis=0)
    rows = tf.concat([query, tf.gather(TABLE, ids.values)], 1)
    rows = tf.nn.relu(rows[:, 1:] - rows[:, :1]) @ SQUARE
    return tf.reduce_sum(ids.with_values(rows), 1)


def _biased(batch: dict[str, Any]) -> Any:
    rows = tf.nn.bias_add(tf.gather(TABLE, batch["ids"].values), BIAS)
    rows = tf.tanh(rows * BIAS)
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _with(combiner: str, ids: str, weights: str | None = None) -> Forward:
    def forward(batch: dict[str, Any]) -> Any:
        chosen = None if weights is None else batch[weights]
        return (
            tf.nn.embedding_lookup_sparse(
                TABLE, batch[ids], chosen, combiner=combiner
            )
            @ SQUARE
        )

    return forward


def _safe(
    combiner: str, ids: str, weights: str | None = None, default: Any = None
) -> Forward:
    def forward(batch: dict[str, Any]) -> Any:
        chosen = None if weights is None else batch[weights]
        return tf.nn.safe_embedding_lookup_sparse(
            TABLE, batch[ids], chosen, combiner=combiner, default_id=default
        )

    return forward


def _of_length(batch: dict[str, Any]) -> Any:
    ids = batch["ids"].to_tensor(default_value=7, shape=[None, 4])
    return tf.reduce_sum(tf.gather(TABLE, ids), 1)


def _rows_of_length(batch: dict[str, Any]) -> Any:
    rows = _gathered(batch).to_tensor(shape=[None, 4, WIDTH])
    return tf.reduce_sum(tf.nn.softmax(rows, 1) * rows, 1)


def _to_sparse(batch: dict[str, Any]) -> Any:
    return tf.nn.safe_embedding_lookup_sparse(TABLE, batch["ids"].to_sparse())


def _to_dense(batch: dict[str, Any]) -> Any:
    ids = batch["sparse_ids"]
    shape = tf.stack([ids.dense_shape[0], 5])
    ids = tf.sparse.to_dense(tf.SparseTensor(ids.indices, ids.values, shape))
    return tf.reduce_sum(tf.gather(TABLE, ids), 1)


def _sparse_product(batch: dict[str, Any]) -> Any:
    return tf.tanh(tf.sparse.sparse_dense_matmul(batch["counts"], KERNEL))


def _dense_product(batch: dict[str, Any]) -> Any:
    return tf.sparse.to_dense(batch["counts"]) @ KERNEL


def _retained(batch: dict[str, Any]) -> Any:
    counts = batch["counts"]
    counts = tf.sparse.retain(counts, counts.values > 1.5)
    return tf.sparse.sparse_dense_matmul(counts, KERNEL)


def _shared(batch: dict[str, Any]) -> Any:
    """One table, read by a ragged, a sparse and a plain feature."""
    alone = tf.gather(TABLE, batch["dense_ids"])
    pooled = tf.nn.safe_embedding_lookup_sparse(TABLE, batch["sparse_ids"])
    return alone * (pooled + tf.reduce_sum(_gathered(batch), 1))


def _modulo(batch: dict[str, Any]) -> Any:
    ids = batch["ids"].with_values(batch["ids"].values % 4)
    return tf.nn.safe_embedding_lookup_sparse(TABLE, ids) + _summed(batch)


FULL = {
    "averaged": _averaged,
    "square root of the length": _square_root,
    "largest": _largest,
    "attention": _attention,
    "lookup, sum": _with("sum", "sparse_ids"),
    "lookup, mean": _with("mean", "sparse_ids"),
    "lookup, sqrtn": _with("sqrtn", "sparse_ids"),
    "lookup, sum, weights": _with("sum", "sparse_ids", "sparse_weights"),
    "lookup, mean, weights": _with("mean", "sparse_ids", "sparse_weights"),
    "lookup, sqrtn, weights": _with("sqrtn", "sparse_ids", "sparse_weights"),
    "lookup, ragged": _with("mean", "ids"),
    "lookup, ragged, weights": _with("sqrtn", "ids", "weights"),
}
# These also take examples without values.
ANY = {
    "summed": _summed,
    "weighted": _weighted,
    "repeated": _repeated,
    "biased": _biased,
    "safe lookup": _safe("mean", "sparse_ids"),
    "safe lookup, weights": _safe("sum", "sparse_ids", "sparse_weights"),
    "safe lookup, default": _safe("sqrtn", "sparse_ids", None, 5),
    "safe lookup, ragged": _safe("sqrtn", "ids"),
    "safe lookup, ragged, weights": _safe("mean", "ids", "weights", 5),
    "of a fixed length": _of_length,
    "rows of a fixed length": _rows_of_length,
    "to sparse": _to_sparse,
    "to dense": _to_dense,
    "sparse product": _sparse_product,
    "dense product": _dense_product,
    "retained": _retained,
    "shared table": _shared,
    "modulo": _modulo,
}


def check_against_loop(forward: Forward, lists: Any, how: str) -> None:
    terms, norms, consistent = traced(forward, lists, how)
    assert bool(consistent)
    for example, row in enumerate(lists):
        alone = features([row])
        alone["y"] = tf.constant(TARGETS[example : example + 1])
        with tf.GradientTape() as tape:
            total = loss(forward, alone)
        expected = tape.gradient(total, VARIABLES)
        for found, squared, want in zip(terms, norms, expected, strict=True):
            if want is None:
                assert found is None
                continue
            want = tf.convert_to_tensor(want).numpy()
            np.testing.assert_allclose(
                found[example], want, rtol=1e-4, atol=1e-4
            )
            np.testing.assert_allclose(
                squared[example], np.sum(want**2), rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("name", [*FULL, *ANY])
def test_terms_equal_those_of_a_loop(name: str) -> None:
    forward = {**FULL, **ANY}[name]
    lists = GAPS if name in ANY else LISTS
    check_against_loop(forward, lists, "dynamic")


@pytest.mark.lane
@pytest.mark.parametrize("how", ["static", "iterator"])
@pytest.mark.parametrize(
    "name", ["lookup, mean, weights", "safe lookup", "summed", "dense product"]
)
def test_however_the_batch_arrives(name: str, how: str) -> None:
    forward = {**FULL, **ANY}[name]
    check_against_loop(forward, LISTS, how)
    check_against_loop(forward, [LISTS[2]], "dynamic")


# What must not be.


def _position(batch: dict[str, Any]) -> Any:
    rows = tf.gather(TABLE, batch["ids"].values)
    places = tf.range(tf.shape(rows)[0])
    rows *= tf.cast(places, tf.float32)[:, None]
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _number_of_values(batch: dict[str, Any]) -> Any:
    return _summed(batch) / tf.cast(tf.size(batch["ids"].values), tf.float32)


def _number_of_values_as_a_shape(batch: dict[str, Any]) -> Any:
    ones = tf.ones([tf.shape(batch["ids"].values)[0], 2])
    return _summed(batch) * tf.reduce_sum(ones)


def _splits_as_numbers(batch: dict[str, Any]) -> Any:
    begins = tf.cast(batch["ids"].row_splits[:-1], tf.float32)
    return _summed(batch) * begins[:, None]


def _row_ids_as_numbers(batch: dict[str, Any]) -> Any:
    rows = tf.gather(TABLE, batch["ids"].values)
    numbers = tf.cast(batch["ids"].value_rowids(), tf.float32)
    return tf.reduce_sum(batch["ids"].with_values(rows * numbers[:, None]), 1)


def _bounding_shape(batch: dict[str, Any]) -> Any:
    longest = tf.cast(batch["ids"].bounding_shape()[1], tf.float32)
    return _summed(batch) / longest


def _longest(batch: dict[str, Any]) -> Any:
    longest = tf.reduce_max(batch["ids"].row_lengths())
    return _summed(batch) / tf.cast(longest, tf.float32)


def _longest_of_sparse(batch: dict[str, Any]) -> Any:
    longest = tf.cast(batch["sparse_ids"].dense_shape[1], tf.float32)
    return _summed(batch) / longest


def _cumulated(batch: dict[str, Any]) -> Any:
    rows = tf.cumsum(tf.gather(TABLE, batch["ids"].values))
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _reversed(batch: dict[str, Any]) -> Any:
    rows = tf.reverse(tf.gather(TABLE, batch["ids"].values), [0])
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _sorted(batch: dict[str, Any]) -> Any:
    ids = tf.sort(batch["ids"].values)
    return tf.reduce_sum(tf.gather(TABLE, batch["ids"].with_values(ids)), 1)


def _rolled(batch: dict[str, Any]) -> Any:
    ids = tf.roll(batch["ids"].values, 1, 0)
    return tf.reduce_sum(tf.gather(TABLE, batch["ids"].with_values(ids)), 1)


def _shifted(batch: dict[str, Any]) -> Any:
    ids = batch["ids"].values
    ids = tf.concat([ids[1:], ids[:1]], 0)
    return tf.reduce_sum(tf.gather(TABLE, batch["ids"].with_values(ids)), 1)


def _gathered_by_ids(batch: dict[str, Any]) -> Any:
    ids = batch["ids"]
    rows = tf.gather(tf.gather(TABLE, ids.values), ids.values % 2)
    return tf.reduce_sum(ids.with_values(rows), 1)


def _other_segments(batch: dict[str, Any]) -> Any:
    ids = batch["ids"]
    return tf.math.unsorted_segment_sum(
        tf.gather(TABLE, ids.values), ids.values % 4, ids.nrows()
    )


def _moved_segments(batch: dict[str, Any]) -> Any:
    ids = batch["ids"]
    rows = tf.maximum(ids.value_rowids(), 1)
    return tf.math.unsorted_segment_sum(
        tf.gather(TABLE, ids.values), rows, ids.nrows()
    )


def _number_of_distinct_ids(batch: dict[str, Any]) -> Any:
    distinct, _ = tf.unique(batch["ids"].values)
    return _summed(batch) / tf.cast(tf.size(distinct), tf.float32)


def _place_among_distinct_ids(batch: dict[str, Any]) -> Any:
    _, places = tf.unique(batch["ids"].values)
    rows = tf.gather(TABLE, places)
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _all_distinct_ids(batch: dict[str, Any]) -> Any:
    distinct, _ = tf.unique(batch["ids"].values)
    total = tf.reduce_sum(tf.gather(TABLE, distinct), 0)
    return _summed(batch) + total


def _distinct_of_another(batch: dict[str, Any]) -> Any:
    distinct, _ = tf.unique(batch["ids"].values)
    _, places = tf.unique(tf.cast(batch["weights"].values > 0, tf.int64))
    rows = tf.gather(tf.gather(TABLE, distinct), places)
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _joined_batches(batch: dict[str, Any]) -> Any:
    both = tf.concat([batch["ids"], batch["ids"]], 0)
    both = tf.reduce_sum(tf.gather(TABLE, both), 1)
    return tf.reshape(both, [2, -1, WIDTH])[0]


def _kept_positions(batch: dict[str, Any]) -> Any:
    kept = tf.where(batch["ids"].values > 1)[:, 0]
    rows = tf.gather(TABLE, kept)
    return _summed(batch) + tf.reduce_sum(rows, 0)


def _kept_and_combined(batch: dict[str, Any]) -> Any:
    """Kept by two masks: equally many rows, but not the same ones."""
    ids = batch["ids"].values
    first = tf.boolean_mask(ids, ids > 1)
    second = tf.boolean_mask(ids, ids < 4)
    size = tf.minimum(tf.size(first), tf.size(second))
    rows = tf.gather(TABLE, first[:size]) * tf.gather(TABLE, second[:size])
    return _summed(batch) + tf.reduce_sum(rows, 0)


def _two_masks(batch: dict[str, Any]) -> Any:
    ids = batch["ids"].values
    rows = tf.gather(TABLE, tf.boolean_mask(ids, ids > 1))
    rows *= tf.gather(TABLE, tf.boolean_mask(ids, ids < 4))
    return _summed(batch) + tf.reduce_sum(rows, 0)


def _words(batch: dict[str, Any]) -> Any:
    words = tf.strings.split(tf.strings.as_string(batch["dense_ids"]))
    ids = tf.strings.to_hash_bucket_fast(words.values, ROWS)
    return tf.reduce_sum(tf.gather(TABLE, words.with_values(ids)), 1)


def _splits_of_ones_own(batch: dict[str, Any]) -> Any:
    splits = tf.concat([[0], tf.cast(batch["dense_ids"], tf.int64)], 0)
    rows = tf.RaggedTensor.from_row_splits(
        tf.gather(TABLE, batch["ids"].values), splits, validate=False
    )
    return tf.reduce_sum(rows, 1)


def _softmax_of_all(batch: dict[str, Any]) -> Any:
    scores = tf.nn.softmax(tf.cast(batch["ids"].values, tf.float32))
    rows = tf.gather(TABLE, batch["ids"].values) * scores[:, None]
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _mean_of_all(batch: dict[str, Any]) -> Any:
    mean = tf.reduce_mean(tf.gather(TABLE, batch["ids"].values), 0)
    return _summed(batch) + mean


def _dropped_out(batch: dict[str, Any]) -> Any:
    rows = tf.nn.dropout(tf.gather(TABLE, batch["ids"].values), 0.5)
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _transposed(batch: dict[str, Any]) -> Any:
    rows = tf.gather(TABLE, batch["ids"].values)
    rows = tf.nn.softmax(rows @ tf.transpose(rows)) @ rows
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _folded(batch: dict[str, Any]) -> Any:
    rows = tf.reshape(tf.gather(TABLE, batch["ids"].values), [WIDTH, -1])
    rows = tf.reshape(tf.transpose(rows), [-1, WIDTH])
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _reshaped_sparse(batch: dict[str, Any]) -> Any:
    counts = tf.sparse.reshape(batch["counts"], [ROWS, -1])
    counts = tf.sparse.reshape(counts, [-1, ROWS])
    return tf.sparse.sparse_dense_matmul(counts, KERNEL)


def _transposed_sparse(batch: dict[str, Any]) -> Any:
    product = tf.sparse.sparse_dense_matmul(
        batch["counts"], _summed(batch), adjoint_a=True
    )
    return tf.sparse.sparse_dense_matmul(batch["counts"], product)


def _wide(batch: dict[str, Any]) -> tuple[Any, Any]:
    """Rows of 27 columns, and how many rows there are in the batch."""
    rows = tf.tile(tf.gather(TABLE, batch["ids"].values), [1, ROWS])
    return rows, tf.shape(rows)[0]


def _scaled(batch: dict[str, Any], scale: Any) -> Any:
    rows = tf.gather(TABLE, batch["ids"].values) * tf.stop_gradient(scale)
    return tf.reduce_sum(batch["ids"].with_values(rows), 1)


def _column_by_the_number_of_values(batch: dict[str, Any]) -> Any:
    rows, count = _wide(batch)
    return _scaled(batch, tf.slice(rows, tf.stack([0, count]), [-1, 1]))


def _as_many_columns_as_values(batch: dict[str, Any]) -> Any:
    rows, count = _wide(batch)
    taken = tf.slice(rows, [0, 0], tf.stack([-1, count]))
    return _scaled(batch, tf.reduce_mean(taken, 1, keepdims=True))


def _padded_to_the_number_of_values(batch: dict[str, Any]) -> Any:
    rows, count = _wide(batch)
    padded = tf.raw_ops.StridedSliceGrad(
        shape=tf.stack([count, count]),
        begin=[0, 0],
        end=[0, 2],
        strides=[1, 1],
        dy=rows[:, :2],
        begin_mask=1,
        end_mask=1,
    )
    return _scaled(batch, tf.reduce_mean(padded, 1, keepdims=True))


def _reshaped_by_sizes_that_are_not_known(batch: dict[str, Any]) -> Any:
    counts, examples = batch["counts"], tf.shape(batch["y"], tf.int64)[0]
    rows, columns = examples + 0, (examples + ROWS) - examples
    indices, _ = tf.raw_ops.SparseReshape(
        input_indices=counts.indices,
        input_shape=tf.stack([rows, columns]),
        new_shape=tf.stack([columns, rows]),
    )
    moved = tf.raw_ops.SparseToDense(
        sparse_indices=indices,
        output_shape=tf.stack([examples, tf.constant(ROWS, tf.int64)]),
        sparse_values=counts.values,
        default_value=0.0,
    )
    return moved @ KERNEL


def _not_validated(batch: dict[str, Any]) -> Any:
    dense = tf.sparse.to_dense(batch["counts"], validate_indices=False)
    return dense @ KERNEL


ATTACKS = [
    _not_validated,
    _reshaped_by_sizes_that_are_not_known,
    _column_by_the_number_of_values,
    _as_many_columns_as_values,
    _padded_to_the_number_of_values,
    _position,
    _number_of_values,
    _number_of_values_as_a_shape,
    _splits_as_numbers,
    _row_ids_as_numbers,
    _bounding_shape,
    _longest,
    _longest_of_sparse,
    _cumulated,
    _reversed,
    _sorted,
    _rolled,
    _shifted,
    _gathered_by_ids,
    _other_segments,
    _moved_segments,
    _number_of_distinct_ids,
    _place_among_distinct_ids,
    _all_distinct_ids,
    _distinct_of_another,
    _joined_batches,
    _kept_positions,
    _kept_and_combined,
    _two_masks,
    _words,
    _splits_of_ones_own,
    _softmax_of_all,
    _mean_of_all,
    _dropped_out,
    _transposed,
    _folded,
    _reshaped_sparse,
    _transposed_sparse,
]


@pytest.mark.parametrize("how", ["dynamic", "static"])
@pytest.mark.parametrize("forward", ATTACKS, ids=lambda f: f.__name__[1:])
def test_what_sees_other_examples_is_refused(
    forward: Forward, how: str
) -> None:
    with pytest.raises(tsdp.NotSeparableError, match="Nothing was trained"):
        traced(forward, LISTS, how)


def test_the_longest_example_must_not_decide_the_length() -> None:
    def forward(batch: dict[str, Any]) -> Any:
        return tf.reduce_sum(tf.gather(TABLE, batch["ids"].to_tensor()), 1)

    with pytest.raises(tsdp.NotSeparableError, match=r"shape=\[None, length\]"):
        traced(forward, LISTS)


def test_two_ragged_axes_are_refused() -> None:
    @tf.function
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.gather(TABLE, ids.flat_values))
        return Separation([tape.gradient(total, TABLE)], ["t"], [TABLE.shape])

    with pytest.raises(tsdp.NotSeparableError, match="2 ragged axes"):
        step(tf.ragged.constant([[[1], [2]], [[3, 4]]]))


def test_the_widest_value_must_not_decide_a_size() -> None:
    spec = tf.RaggedTensorSpec([None, None, None], ragged_rank=1)

    @tf.function(input_signature=[spec])
    def step(features: Any) -> Any:
        with tf.GradientTape() as tape:
            means = tf.reduce_mean(features.values, 1, keepdims=True)
            rows = features.with_values(means * BIAS)
            total = tf.reduce_sum(tf.square(tf.reduce_sum(rows, 1)))
        return Separation([tape.gradient(total, BIAS)], ["b"], [BIAS.shape])

    with pytest.raises(tsdp.NotSeparableError, match="fixed public size"):
        step(tf.RaggedTensor.from_row_lengths(tf.ones([3, 2]), [1, 2]))


# What only shows when the step runs.


def _consistent(forward: Forward, batch: dict[str, Any]) -> bool:
    step = tf.function(
        lambda batch: separated(forward, batch)[2],
        input_signature=[SIGNATURE],
    )
    return bool(step(batch))


def test_weights_have_the_lengths_of_their_ids() -> None:
    batch = features(LISTS)
    assert _consistent(_weighted, batch)
    lengths = tf.constant([1, 3, 5, 2], tf.int64)  # As many, but not whose.
    batch["weights"] = tf.RaggedTensor.from_row_lengths(
        batch["weights"].values, lengths
    )
    assert not _consistent(_weighted, batch)
    assert _consistent(_summed, batch)


def test_sparse_weights_have_the_lengths_of_their_ids() -> None:
    batch = features(LISTS)
    forward = _with("sum", "sparse_ids", "sparse_weights")
    assert _consistent(forward, batch)
    weights = batch["sparse_weights"]
    rows = tf.sort(tf.constant([0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3], tf.int64))
    batch["sparse_weights"] = tf.SparseTensor(
        tf.stack([rows, weights.indices[:, 1]], 1),
        weights.values,
        weights.dense_shape,
    )
    assert not _consistent(forward, batch)


def test_rows_and_row_ids_have_the_same_lengths() -> None:
    """Rows of one feature at the row ids of another, never combined before."""

    @tf.function(input_signature=[SIGNATURE])
    def consistent(batch: dict[str, Any]) -> Any:
        rows = tf.gather(OTHER, tf.cast(batch["weights"].values > 0, tf.int32))
        shape = tf.constant([ROWS, WIDTH], tf.int64)
        gradient = tf.IndexedSlices(rows, batch["ids"].values, shape)
        return Separation([gradient], ["t"], [(ROWS, WIDTH)]).consistent

    batch = features(LISTS)
    assert bool(consistent(batch))
    lengths = tf.constant([1, 3, 5, 2], tf.int64)
    batch["weights"] = tf.RaggedTensor.from_row_lengths(
        batch["weights"].values, lengths
    )
    assert not bool(consistent(batch))


def test_a_lookup_gives_every_example_a_row() -> None:
    """Without ids at the end there are fewer rows; one row would spread."""
    forward = _with("sum", "ids")

    def spread(batch: dict[str, Any]) -> Any:
        return forward(batch) + _summed(batch)

    assert _consistent(forward, features(LISTS))
    assert not _consistent(spread, features([[1, 2], [], []]))


@pytest.mark.parametrize(
    "splits", [[0, 3, 2, 9, 11], [1, 3, 4, 9, 11], [0, 3, 4, 9, 10]]
)
def test_splits_are_splits(splits: list[int]) -> None:
    batch = features(LISTS)
    batch["ids"] = tf.RaggedTensor.from_row_splits(
        batch["ids"].values, tf.constant(splits, tf.int64), validate=False
    )

    step = tf.function(
        lambda batch: _flat_sum(batch)[1], input_signature=[SIGNATURE]
    )
    assert not bool(step(batch))
    assert bool(step(features(LISTS)))


def _flat_sum(batch: dict[str, Any]) -> Any:
    """A sum over all values, whoever's they are."""
    with tf.GradientTape() as tape:
        rows = tf.gather(TABLE, batch["ids"].values)
        total = tf.reduce_sum(tf.tanh(rows @ SQUARE))
        total += tf.reduce_sum(batch["y"]) * tf.reduce_sum(OTHER[0])
    variables = [TABLE, SQUARE]
    separation = Separation(
        tape.gradient(total, variables),
        ["table", "square"],
        [tuple(v.shape) for v in variables],
    )
    parts = separation.parts
    return [part.terms.per_example() for part in parts], separation.consistent


def test_a_sum_over_all_values_has_one_term_per_example() -> None:
    terms, consistent = tf.function(_flat_sum, input_signature=[SIGNATURE])(
        features(GAPS)
    )
    assert bool(consistent)
    for example, row in enumerate(GAPS):
        with tf.GradientTape() as tape:
            rows = tf.gather(TABLE, tf.constant(row, tf.int64))
            total = tf.reduce_sum(tf.tanh(rows @ SQUARE))
        expected = tape.gradient(total, [TABLE, SQUARE])
        for found, want in zip(terms, expected, strict=True):
            want = tf.convert_to_tensor(want)
            np.testing.assert_allclose(found[example], want, atol=1e-5)


def test_features_have_as_many_examples_as_the_batch() -> None:
    batch = features(LISTS)
    batch["ids"] = batch["ids"][:3]
    assert not _consistent(_averaged, {**batch, "y": batch["y"][:1]})
    batch = features(LISTS)
    counts = batch["counts"]
    batch["counts"] = tf.SparseTensor(counts.indices, counts.values, [7, ROWS])
    batch["y"] = tf.zeros([1])
    assert not _consistent(_sparse_product, batch)


Pair = collections.namedtuple("Pair", ["second", "first"])


def test_arguments_are_told_apart_in_any_structure() -> None:
    """By what the step's own RaggedTensors and SparseTensors hold."""
    ragged = tf.ragged.constant([[1, 2], [3]])
    short = ragged.with_row_splits_dtype(tf.int32)
    sparse = tf.sparse.from_dense([[1, 0], [0, 1]])
    vector = tf.constant([1, 2])

    @tf.function
    def step(a: Any, b: Any = None, *more: Any, k: Any, z: Any, **rest: Any):  # type: ignore[no-untyped-def]
        graph = tf.compat.v1.get_default_graph()
        arguments = [
            op.outputs[0]
            for op in graph.get_operations()
            if op.type == "Placeholder"
        ]
        found = of_arguments(graph.structured_input_signature, arguments)
        expected = [
            [x.values, x.row_splits]
            if isinstance(x, tf.RaggedTensor)
            else [x.indices, x.values, x.dense_shape]
            for x in tf.nest.flatten((a, b, more, k, z, rest))
            if isinstance(x, tf.RaggedTensor | tf.SparseTensor)
        ]
        names = {tuple(t.name for t in x.tensors()) for x in found}
        assert names == {tuple(t.name for t in x) for x in expected}
        assert len(found) == len(expected)
        return vector

    several = {"z": vector, "b": ragged, "a": [sparse, (vector, short)]}
    step(several, Pair(vector, ragged), k=sparse, z=vector)
    step(vector, ragged, sparse, vector, z=ragged, k=vector, y=short, x=vector)
    step(ragged, z=several, b=vector, k=Pair(sparse, vector), x=ragged, q=short)
    ordered = collections.OrderedDict(z=ragged, a=vector, k=sparse)
    step(ordered, [vector, ragged], k=ordered, z=3)


def test_dictionaries_keep_their_order() -> None:
    """Arguments become placeholders in the order of the dictionary."""
    batch = features(LISTS)
    backwards = dict(reversed(batch.items()))
    step = tf.function(lambda batch: separated(_weighted, batch)[0][0])
    np.testing.assert_array_equal(step(batch), step(backwards))


# The factor by itself.


def _factor(seed: int = 0) -> tuple[RaggedRowFactor, np.ndarray]:
    random = np.random.RandomState(seed)
    examples = np.array([0, 0, 0, 2, 2, 2, 2, 3, 3, 5])
    ids = np.array([1, 1, -0, 4, 0, 4, 4, 0, 1, 6])
    values = random.randn(10, 2).astype("float32")
    dense = np.zeros((6, 7, 2), "float32")
    np.add.at(dense, (examples, ids), values)
    factor = RaggedRowFactor(
        tf.constant(values),
        tf.constant(ids),
        tf.constant(examples, tf.int64),
        tf.constant(6, tf.int64),
        (7, 2),
    )
    return factor, dense


@pytest.mark.parametrize("out_of_range", [-1, ROWS])
def test_ids_out_of_range_reach_no_other_example(out_of_range: int) -> None:
    factor = RaggedRowFactor(
        tf.ones([1, WIDTH]),
        tf.constant([out_of_range]),
        tf.constant([1], tf.int64),
        tf.constant(3, tf.int64),
        (ROWS, WIDTH),
    )
    assert not np.any(factor.per_example())


def test_repeated_rows_count_as_their_sum() -> None:
    factor, dense = _factor()
    np.testing.assert_allclose(factor.per_example(), dense, rtol=1e-6)
    squares = np.sum(dense**2, (1, 2))
    np.testing.assert_allclose(factor.squared_norms(), squares, rtol=1e-6)
    slack = factor.squared_slack().numpy()
    assert np.all(slack[[0, 2, 3, 5]] > 0)
    assert np.all(slack <= 1e-4 * squares + 1e-12)
    weights = np.arange(6, dtype="float32")
    total = tf.convert_to_tensor(factor.weighted_sum(tf.constant(weights)))
    want = np.einsum("i,ivw->vw", weights, dense)
    np.testing.assert_allclose(total, want, rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_and_has_no_weight_has_no_influence() -> None:
    factor, dense = _factor()
    values = factor.values.numpy()
    values[3] = np.nan
    spoilt = RaggedRowFactor(
        tf.constant(values),
        factor.ids,
        factor.examples,
        factor.batch_size,
        factor.table_shape,
    )
    finite = np.isfinite(spoilt.squared_norms())
    np.testing.assert_array_equal(finite, [1, 1, 0, 1, 1, 1])
    weights = tf.cast(finite, tf.float32)
    for total in (
        spoilt.weighted_sum(weights),
        spoilt.masked(tf.constant(finite)).weighted_sum(tf.ones([6])),
    ):
        want = np.einsum("i,ivw->vw", weights, dense)
        np.testing.assert_allclose(tf.convert_to_tensor(total), want, rtol=1e-5)


def test_sums_over_many_lookups_go_on_growing() -> None:
    """In float32, 2²⁴ + 1 = 2²⁴: counts and norms would be too small."""
    values, examples = tf.constant([2.0**24, 1.0, 1.0]), tf.zeros([3], tf.int64)
    found = per_example_sums(values, examples, tf.constant(1, tf.int64))
    assert found.numpy().tolist() == [2.0**24 + 2]
    factor, _ = _factor()
    for method in (
        factor.squared_norms,
        factor.squared_slack,
        factor.absolute_norms,
    ):
        traced = tf.function(method).get_concrete_function()
        sums = [
            op.outputs[0].dtype
            for op in traced.graph.get_operations()
            if op.type == "UnsortedSegmentSum" and op.outputs[0].shape.rank == 1
        ]
        assert sums and set(sums) == {tf.float64}
        assert traced.output_dtypes == tf.float32


@pytest.mark.parametrize("size", [2, 3, 4])
def test_units_of_several_examples(size: int) -> None:
    factor, dense = _factor()
    grouped = factor.grouped(size)
    groups = 6 // size
    want = dense[: groups * size].reshape(groups, size, 7, 2).sum(1)
    np.testing.assert_allclose(grouped.per_example(), want, atol=1e-6)
    np.testing.assert_allclose(
        grouped.squared_norms(), np.sum(want**2, (1, 2)), rtol=1e-5
    )


def test_no_values_at_all() -> None:
    factor = RaggedRowFactor(
        tf.zeros([0, 2]),
        tf.zeros([0], tf.int64),
        tf.zeros([0], tf.int64),
        tf.constant(3, tf.int64),
        (7, 2),
    )
    np.testing.assert_array_equal(factor.squared_norms(), np.zeros(3))
    np.testing.assert_array_equal(factor.squared_slack(), np.zeros(3))
