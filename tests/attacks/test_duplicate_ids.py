"""Attack: look one row up many times, and be clipped for each lookup alone.

L lookups of one row, each of norm C/√L, would add up to √L times the clip
norm. Norms are those of what a row gets in all, whatever way it is looked up.
`tests/mechanisms/test_contract.py` does the same to each mechanism's sums; here
it is the model that repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp import mechanisms

keras = tf.keras
layers = keras.layers

LOOKUPS, ROWS = 16, 40
CLIP_NORM = 0.01
LABELS = np.full([2, 1], 100.0, "float32")  # Far away: gradients are clipped.
ONE = np.array([1.0, 0.0], "float32")  # The other example weighs nothing.
TABLES = {
    "embedding": (layers.Embedding, None),
    "lazy": (tsdp.layers.LazyEmbedding, None),
    "threshold": (layers.Embedding, mechanisms.Threshold()),
    "partition selection": (
        layers.Embedding,
        mechanisms.PartitionSelection(),
    ),
    "projection": (layers.Embedding, mechanisms.Projection()),
}


class Repeating(keras.Model):
    """One table for two features, and for a feature and its double."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.table = embedding(ROWS, 4)
        self.score = layers.Dense(1)

    def call(self, ids: Any, training: bool = False) -> Any:
        rows = self.table(ids)
        again = self.table(ids[:, ::-1])
        pooled = tf.reduce_sum(rows, 1) + 2.0 * tf.reduce_sum(again, 1)
        return self.score(pooled)


def _model(name: str, clip_norm: float = CLIP_NORM) -> Any:
    embedding, mechanism = TABLES[name]
    model = Repeating(embedding)
    model(np.zeros([1, LOOKUPS], "int32"))
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0),
        noise_multiplier=0.0,
        expected_batch_size=1,
        clip_norm=clip_norm,
        mechanism=mechanism or "auto",
    )
    model.compile(optimizer=optimizer, loss="mse")
    return model


IDS = {
    "one row": np.zeros(LOOKUPS, "int32") + 7,
    "two rows": np.arange(LOOKUPS, dtype="int32") % 2,
    "all rows": np.arange(LOOKUPS, dtype="int32"),
    "the first row": np.zeros(LOOKUPS, "int32"),
    "the last row": np.zeros(LOOKUPS, "int32") + ROWS - 1,
}


def _move(model: Any, ids: np.ndarray) -> float:
    before = [w.copy() for w in model.get_weights()]
    model.train_on_batch(np.stack([ids, ids]), LABELS, sample_weight=ONE)
    return float(
        np.sqrt(
            sum(
                np.square(new.astype("float64") - old).sum()
                for new, old in zip(model.get_weights(), before, strict=True)
            )
        )
    )


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_example_is_worth_more_than_the_clip_norm(name: str) -> None:
    model = _model(name)
    moves = {what: _move(model, ids) for what, ids in IDS.items()}
    # Weights near 1 round to 6e-8, of 200 numbers: a ten-thousandth of it.
    assert max(moves.values()) <= CLIP_NORM * (1 + 1e-3), moves
    assert min(moves.values()) >= CLIP_NORM * (1 - 1e-2), moves


def test_clipping_by_the_lookup_would_be_found_out() -> None:
    """What the same gradient would move, were lookups taken for rows."""
    model = _model("embedding", clip_norm=1e9)
    ids = IDS["one row"]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(ids[np.newaxis]) - LABELS[:1]) ** 2)
    table, *rest = tape.gradient(loss, model.trainable_variables)
    parts = [np.asarray(table.values).ravel(), *map(np.ravel, rest)]
    wrong = np.sqrt(sum(np.square(part).sum() for part in parts))
    assert _move(model, ids) > 2 * wrong
