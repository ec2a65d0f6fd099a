"""Keras Recommenders' DistributedEmbedding, as it runs without a TPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests import model_cases as cases

if not cases.KERAS_3:
    pytest.skip("keras_rs is written for Keras 3", allow_module_level=True)
keras_rs = pytest.importorskip(
    "keras_rs", reason="version lanes do without keras_rs"
)

keras = tf.keras
_random = np.random.RandomState(0)
LISTS = tf.RaggedTensor.from_row_lengths(
    _random.randint(0, 9, 40).astype("int32"), [1, 2, 3, 2] * 5
)
PADDED = _random.randint(0, 9, (20, 5)).astype("int32")
SINGLE = _random.randint(0, 9, (20, 1)).astype("int32")
REAL = _random.randn(20, 1).astype("float32")


class Distributed(keras.Model):
    """Two features of one table, pooled."""

    def __init__(self, combiner: str):
        super().__init__()
        table = keras_rs.layers.TableConfig(
            name="items",
            vocabulary_size=9,
            embedding_dim=4,
            combiner=combiner,
            initializer="normal",
        )
        self.embedding = keras_rs.layers.DistributedEmbedding(
            {
                name: keras_rs.layers.FeatureConfig(
                    name=name,
                    table=table,
                    input_shape=(None, length),
                    output_shape=(None, 4),
                )
                for name, length in (("ids", 5), ("single", 1))
            }
        )
        self.score = keras.layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        rows = self.embedding(inputs)
        return self.score(rows["ids"] * rows["single"])


def _case(combiner: str, ids: Any) -> cases.Case:
    return cases.Case(
        f"DistributedEmbedding, {combiner}",
        lambda: Distributed(combiner),
        {"ids": ids, "single": SINGLE},
        REAL,
    )


def _fitted(case: cases.Case, model: Any, clip_norm: float) -> None:
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(cases.learning_rate(clip_norm)),
        clip_norm=clip_norm,
        noise_multiplier=0.0,
        expected_batch_size=8,
    )
    model.compile(optimizer=optimizer, loss=case.loss())
    model.fit(cases.dataset(case), verbose=0)


@pytest.mark.parametrize("ids", [LISTS, PADDED], ids=["ragged", "padded"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weights_equal_those_of_a_loop(combiner: str, ids: Any) -> None:
    case = _case(combiner, ids)
    model = cases.built(case)
    loop = cases.Loop(case, model)
    clip_norm = loop.median_norm()
    expected = loop.weights(clip_norm, 8.0)
    _fitted(case, model, clip_norm)
    for variable, want in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), want, atol=1e-5)


def test_sparse_ids_are_refused() -> None:
    """It gives them a third axis; ragged ids say the same."""
    case = _case("sum", LISTS.to_sparse())
    with pytest.raises(tsdp.NotSeparableError, match="Nothing was trained"):
        _fitted(case, Distributed("sum"), 1.0)
