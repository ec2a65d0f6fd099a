"""Models and losses that mix examples are refused, with a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.model_cases import KERAS_3
from tests.optimizers.refusals import (
    FEATURES,
    IDS,
    TARGETS,
    Through,
    compiled,
    dense_model,
    private,
    refused,
)

keras = tf.keras
layers = keras.layers


def _scores(x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, x, transpose_b=True)


# What a model may do to the batch, the operation that mixes, and the remedy.
MIXING = {
    "subtracts the batch mean": (
        lambda x: x - tf.reduce_mean(x, 0),
        "Sub combines a sum over examples with single examples",
        "LayerNormalization",
    ),
    "subtracts the batch maximum": (
        lambda x: x - tf.reduce_max(x, 0),
        "Max over the example axis",
        "only in the loss's final reduction",
    ),
    "reverses": (
        lambda x: tf.reverse(x, [0]),
        "ReverseV2 reorders the batch",
        "Keep the examples",
    ),
    "rolls": (
        lambda x: tf.roll(x, 1, 0),
        "Roll reorders the batch",
        "Keep the examples",
    ),
    "sorts": (
        lambda x: tf.sort(x, 0),
        "TopKV2 over the example axis",
        "only in the loss's final reduction",
    ),
    "shuffles": (tf.random.shuffle, "RandomShuffle has no", "Rewrite"),
    "permutes": (
        lambda x: tf.gather(x, [1, 0, 3, 2, 5, 4, 7, 6]),
        "GatherV2 gathers across examples",
        "batch_dims",
    ),
    "sums up to an example": (
        lambda x: tf.cumsum(x, 0),
        "Cumsum over the example axis",
        "only in the loss's final reduction",
    ),
    "uses the first example": (
        lambda x: x * x[:1],
        "StridedSlice takes a part of the batch",
        "Keep the examples",
    ),
    "softmax over the batch": (
        lambda x: tf.nn.softmax(x, 0),
        "Softmax over the example axis",
        "only in the loss's final reduction",
    ),
    "in-batch scores": (
        lambda x: x * tf.reduce_sum(_scores(x), -1, keepdims=True),
        "MatMul pairs different examples",
        "Draw negatives from a public catalogue",
    ),
    "in-batch attention": (
        lambda x: tf.matmul(tf.nn.softmax(_scores(x)), x),
        "MatMul pairs different examples",
        "Draw negatives from a public catalogue",
    ),
    "distances between examples": (
        lambda x: tf.reduce_sum((x[:, None] - x[None]) ** 2, 1),
        "Sub pairs different examples",
        "Draw negatives from a public catalogue",
    ),
    "drops examples": (
        lambda x: tf.boolean_mask(x, x[:, 0] > 0),
        "Where finds entries by example data",
        "Multiply by the mask",
    ),
    "branches on a total": (
        lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: 2 * x),
        "Greater is not linear in a sum over examples",
        "Replace tf.cond by tf.where",
    ),
    "an operation without a rule": (
        tf.math.bessel_i0e,
        "BesselI0e has no separability rule",
        "declare it: tf_sparse_dp.rules.rowwise('BesselI0e')",
    ),
    "Python code": (
        lambda x: tf.ensure_shape(
            tf.py_function(lambda v: 2 * v, [x], tf.float32), [None, 4]
        ),
        "EagerPyFunc has no separability rule",
        "Rewrite",
    ),
    "a function of its own": (
        tf.function(tf.math.bessel_i0e),
        "BesselI0e has no separability rule",
        "Rewrite",
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_examples(name: str) -> None:
    function, met, remedy = MIXING[name]
    model = compiled(Through(function))
    with refused(model, met, "(operation '", "Nothing was trained", remedy):
        model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)


def test_a_rule_is_not_proposed_where_none_can_be_declared() -> None:
    model = compiled(Through(MIXING["Python code"][0]))
    with pytest.raises(tsdp.NotSeparableError) as error:
        model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)
    assert "rules.rowwise" not in str(error.value)


def test_batch_normalisation() -> None:
    model = compiled(Through(layers.BatchNormalization()))
    with refused(model, "SquaredDifference", "batch_norm", "LayerNormaliz"):
        model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)


class Centred(layers.Layer):
    """Subtracts a running mean that the step itself updates."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            name="mean", shape=(4,), initializer="zeros", trainable=False
        )

    def call(self, inputs: Any) -> Any:
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))
        return inputs - self.mean


def test_a_statistic_that_takes_the_way_through_a_variable() -> None:
    model = Through(Centred())
    model(tf.constant(FEATURES))
    model.compile(optimizer=private(), loss="mse")
    with refused(
        model,
        "writes example data into a variable",
        "AssignVariableOp",
        "Keep running statistics",
    ):
        model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)


@pytest.mark.parametrize("layer", ["GRU", "LSTM", "SimpleRNN"])
def test_recurrent_layers(layer: str) -> None:
    ids = keras.Input((5,), dtype="int32")
    states = getattr(layers, layer)(3)(layers.Embedding(9, 4)(ids))
    model = compiled(keras.Model(ids, layers.Dense(1)(states)), IDS)
    with refused(model, layer.lower().replace("rnn", "_rnn"), "unroll=True"):
        model.fit(IDS, TARGETS, batch_size=8, verbose=0)


def test_loops() -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, 2 * x), (0, x)
        )[1]

    model = compiled(Through(loop))
    with refused(model, "is part of a loop", "Unroll", "tf.map_fn"):
        model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)


LOSSES = {
    "log of a mean": (
        lambda y, p: tf.math.log(tf.reduce_mean((y - p) ** 2)),
        "Reciprocal is not linear in a sum",
    ),
    "root of a mean": (
        lambda y, p: tf.sqrt(tf.reduce_mean((y - p) ** 2)),
        "Sqrt is not linear in a sum",
    ),
    "mean over valid examples": (
        lambda y, p: (
            tf.reduce_sum(tf.where(y > 0, (y - p) ** 2, 0.0))
            / tf.reduce_sum(tf.cast(y > 0, tf.float32))
        ),
        "RealDiv is not linear in a sum",
    ),
    "variance": (
        lambda y, p: tf.math.reduce_variance(y - p),
        "Sub combines a sum over examples with single examples",
    ),
    "in-batch softmax": (
        lambda y, p: tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.range(tf.shape(p)[0]), _scores(p)
        ),
        "MatMul pairs different examples",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_are_no_sum_over_examples(name: str) -> None:
    loss, met = LOSSES[name]
    model = compiled(dense_model(), loss=loss)
    with refused(model, met, "(operation '", "Nothing was trained"):
        model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)


@pytest.mark.parametrize("name", ["Hinge", "SquaredHinge"])
def test_hinge_losses_look_at_all_labels(name: str) -> None:
    model = compiled(dense_model(), loss=getattr(keras.losses, name)())
    with refused(model, "All over the example axis", "hinge"):
        model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)


def test_a_mask_that_reaches_the_loss() -> None:
    ids = keras.Input((5,), dtype="int32")
    states = layers.Embedding(9, 4, mask_zero=True)(ids)
    model = compiled(keras.Model(ids, layers.Dense(1)(states)), IDS)
    says = "is not linear in a sum over examples", "let no mask reach the loss"
    with refused(model, *says):
        model.fit(IDS, np.ones([8, 5, 1], "f"), batch_size=8, verbose=0)


@pytest.mark.skipif(not KERAS_3, reason="tf-keras has no such reduction")
def test_a_loss_divided_by_the_total_weight() -> None:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model = compiled(dense_model(), loss=loss)
    weight = np.linspace(0.1, 1.0, 8, dtype="float32")
    with refused(model, "is not linear in a sum over examples"):
        model.fit(FEATURES, TARGETS, sample_weight=weight, verbose=0)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("given, actual", [("mean", "sum"), ("sum", "mean")])
def test_a_loss_reduction_that_is_not_the_loss(
    static: bool, given: str, actual: str
) -> None:
    reduction = {"sum": "sum", "mean": "sum_over_batch_size"}[actual]
    model = compiled(
        dense_model(),
        optimizer=private(loss_reduction=given),
        loss=keras.losses.MeanSquaredError(reduction=reduction),
    )
    data = tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS))
    data = data.batch(4, drop_remainder=static)
    with refused(
        model, f"loss_reduction={given!r} was given", f"is a {actual} over"
    ):
        model.fit(data, verbose=0)
