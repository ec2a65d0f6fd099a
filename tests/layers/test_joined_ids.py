"""Several features in one table: the same model, no row looked up twice."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras

SIZES = [7, 3, 5]
WIDTH = 4
BATCH = 6


def ids(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.RandomState(seed)
    return [rng.randint(0, n, BATCH).astype("int32") for n in SIZES]


def joined_model() -> Any:
    inputs = [keras.Input((), dtype="int32") for _ in SIZES]
    joined = tsdp.layers.JoinedIds(SIZES)
    table = keras.layers.Embedding(joined.rows, WIDTH, name="table")
    rows = keras.layers.Flatten()(table(joined(inputs)))
    return keras.Model(inputs, keras.layers.Dense(1, name="score")(rows))


def separate_model(joined: Any) -> Any:
    """The same with a table for each, of the same values."""
    inputs = [keras.Input((), dtype="int32") for _ in SIZES]
    tables = [
        keras.layers.Embedding(n + 1, WIDTH, name=f"table_{i}")
        for i, n in enumerate(SIZES)
    ]
    rows = [table(x) for table, x in zip(tables, inputs, strict=True)]
    rows = keras.layers.Concatenate()(rows)
    model = keras.Model(inputs, keras.layers.Dense(1, name="score")(rows))
    start = 0
    (values,) = joined.get_layer("table").get_weights()
    for table, n in zip(tables, SIZES, strict=True):
        table.set_weights([values[start : start + n + 1]])
        start += n + 1
    model.get_layer("score").set_weights(
        joined.get_layer("score").get_weights()
    )
    return model


def clipped_step(model: Any) -> None:
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(1.0),
            clip_norm=0.1,
            mechanism=tsdp.Gaussian(),
            noise_multiplier=0.0,
            expected_batch_size=BATCH,
        ),
        loss="mse",
    )
    data = tf.data.Dataset.from_tensors((tuple(ids()), np.ones((BATCH, 1))))
    model.fit(data, verbose=0)


@pytest.mark.filterwarnings("ignore::tf_sparse_dp.PrivacyWarning")
def test_a_clipped_step_is_that_of_separate_tables() -> None:
    joined = joined_model()
    separate = separate_model(joined)
    before = joined.get_layer("table").get_weights()[0]
    clipped_step(joined)
    clipped_step(separate)
    (found,) = joined.get_layer("table").get_weights()
    expected = np.concatenate(
        [separate.get_layer(f"table_{i}").get_weights()[0] for i in range(3)]
    )
    assert np.abs(found - before).max() > 1e-3
    np.testing.assert_allclose(found, expected, 1e-5, 1e-7)


def test_norms_need_no_comparison_of_rows() -> None:
    model = joined_model()
    model.compile(loss="mse", optimizer="sgd")
    shown = str(tsdp.explain(model, (tuple(ids()), np.ones((BATCH, 1)))))
    assert "from each row" in shown
    assert "from pairs of rows" not in shown


def test_ids_that_a_feature_does_not_have() -> None:
    joined = tsdp.layers.JoinedIds([3, 2])
    given = tf.constant([[-1, 0], [3, 1], [2, 2], [2**31 - 1, -(2**31)]])
    expected = [[3, 4], [3, 5], [2, 6], [3, 6]]
    np.testing.assert_array_equal(joined(given), expected)
    largest = tf.constant([[2**62, -(2**62)]], tf.int64)
    np.testing.assert_array_equal(joined(largest), [[3, 6]])
    assert joined.rows == 7


def test_columns_and_vectors_and_a_matrix_are_the_same() -> None:
    joined = tsdp.layers.JoinedIds(SIZES)
    vectors = [tf.constant(x) for x in ids()]
    expected = joined(vectors)
    columns = [x[:, tf.newaxis] for x in vectors]
    np.testing.assert_array_equal(joined(columns), expected)
    np.testing.assert_array_equal(joined(tf.stack(vectors, 1)), expected)


def test_it_is_saved_with_a_model(tmp_path: pathlib.Path) -> None:
    model = joined_model()
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    np.testing.assert_allclose(model(ids()), again(ids()), 1e-6)


@pytest.mark.parametrize(
    ("sizes", "error", "words"),
    [
        ([], ValueError, "at least one feature"),
        ([3, 0], ValueError, "at least 1"),
        ([3, 2.5], TypeError, "whole numbers"),
        ([2**31], ValueError, "several tables"),
    ],
)
def test_bad_sizes(sizes: list[Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        tsdp.layers.JoinedIds(sizes)


@pytest.mark.parametrize(
    "given",
    [
        [np.zeros(4, "int32")] * 2,
        np.zeros((4, 2), "int32"),
        [np.zeros((4, 2), "int32")] * 3,
        np.zeros((4, 3, 1), "int32"),
    ],
    ids=["two vectors", "two columns", "matrices", "three axes"],
)
def test_bad_ids(given: Any) -> None:
    with pytest.raises(Exception, match="one id per example"):
        tsdp.layers.JoinedIds(SIZES)(given)
