"""Batches that the guarantee does not speak of are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers.refusals import (
    FEATURES,
    IDS,
    TARGETS,
    OwnStep,
    compiled,
    dense_model,
    private,
    refused,
)

keras = tf.keras
layers = keras.layers

N = 40
X = np.random.RandomState(0).randn(N, 4).astype("float32")
Y = X.sum(1, keepdims=True)
POISSON = tsdp.PoissonSampling(
    num_examples=N, batch_size=8, steps=3, max_batch_size=24
)


def test_a_length_that_the_batch_decides() -> None:
    ids = keras.Input((None,), dtype="int32")
    pooled = layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(ids))
    model = compiled(keras.Model(ids, layers.Dense(1)(pooled)), IDS)
    lists = [([1, 2], [0.0]), ([1, 2, 3, 4], [1.0])]
    data = tf.data.Dataset.from_generator(
        lambda: lists,
        output_signature=(
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([1], tf.float32),
        ),
    ).padded_batch(2)
    with refused(model, "(None, None)", "Pad or cut", "fixed public length"):
        model.fit(data, verbose=0)


class Weighted(keras.Model):
    """Ragged ids with weights of a feature of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(9, 4)
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        ids, weights = inputs
        rows = self.table(ids.values) * weights.values[:, None]
        return self.score(tf.reduce_sum(ids.with_values(rows), 1))


def test_weights_of_other_lengths_than_their_ids() -> None:
    ids = tf.ragged.constant([[1, 2], [3], [1, 4], [5]])
    good = tf.ragged.constant([[0.1, 0.2], [0.3], [0.4, 0.5], [0.6]])
    bad = tf.ragged.constant([[0.1], [0.2, 0.3], [0.4, 0.5], [0.6]])
    model = Weighted()
    model((ids, good))
    model.compile(optimizer=private(), loss="mse", jit_compile=False)
    with refused(
        model,
        "same lengths in every example",
        error=tsdp.PrivacyStateError,
    ):
        data = tf.data.Dataset.from_tensor_slices(((ids, bad), Y[:4]))
        model.fit(data.batch(4), verbose=0)
    data = tf.data.Dataset.from_tensor_slices(((ids, good), Y[:4]))
    model.fit(data.batch(4), verbose=0)
    assert model.optimizer.compositions_spent == 1


def _step(model: Any, *specs: tf.TensorSpec) -> Callable[..., Any]:
    """A loop's step whose loss uses all of its arguments."""

    @tf.function(input_signature=specs)
    def step(x: tf.Tensor, y: tf.Tensor, other: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            errors = (model(x) - y) ** 2 * other
            loss = tf.reduce_mean(errors)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return step


def _specs(*shapes: list[int | None]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(shape, tf.float32) for shape in shapes]


def test_a_scalar_among_the_arguments_of_a_step() -> None:
    model = compiled(dense_model())
    step = _step(model, *_specs([None, 4], [None, 1], []))
    with refused(model, "has no example axis", "as variables or constants"):
        step(FEATURES, TARGETS, 0.5)


def test_inputs_that_disagree_when_traced() -> None:
    model = compiled(dense_model())
    step = _step(model, *_specs([8, 4], [8, 1], [1, 1]))
    with refused(model, "disagree on the number of examples", "(1, 1)"):
        step(FEATURES, TARGETS, [[0.5]])


def test_inputs_that_disagree_when_run() -> None:
    model = compiled(dense_model())
    step = _step(model, *_specs([None, 4], [None, 1], [None, 1]))
    with refused(
        model,
        "1 steps were refused",
        "did not have the same number of rows",
        error=tsdp.PrivacyStateError,
    ):
        step(FEATURES, TARGETS, [[0.5]])
        model.optimizer.privacy_statement()


def test_a_batch_that_is_not_an_argument() -> None:
    model = compiled(OwnStep(lambda gradients: gradients), IDS)
    step = tf.function(lambda: model.train_step((IDS, TARGETS)))
    with refused(model, "No tensor of a batch", "Pass the batch into"):
        step()


def test_a_loss_without_weights() -> None:
    model = compiled(OwnStep(lambda gradients: [None, None, None]), IDS)
    with refused(model, "No variable has a gradient", "check the loss"):
        model.fit(IDS, TARGETS, batch_size=8, verbose=0)


def poisson_model() -> Any:
    plan = tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-2, sampling=POISSON)
    optimizer = tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), plan)
    return compiled(dense_model(), optimizer=optimizer)


PLAIN = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 24},
    "arrays and weights": lambda: {
        "x": X,
        "y": Y,
        "sample_weight": np.ones(N, "float32"),
        "batch_size": 24,
    },
    "a data set": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(N).batch(24)
    },
    "a validity column that was dropped": lambda: {
        "x": POISSON.dataset((X, Y)).map(lambda x, y, valid: (x, y))
    },
    "a validity column of another type": lambda: {
        "x": POISSON.dataset((X, Y)).map(
            lambda x, y, valid: (x, y, tf.cast(valid, tf.float32))
        )
    },
    "two of them": lambda: {
        "x": POISSON.dataset((X, Y)).map(
            lambda x, y, valid: (x, tf.cast(y[:, 0], tf.float16), valid)
        )
    },
}


@pytest.mark.parametrize("name", PLAIN)
def test_data_that_are_not_poisson_batches(name: str) -> None:
    model = poisson_model()
    says = ["PoissonSampling", "validity columns", "sampling.dataset(...)"]
    with refused(model, *says, "EpochSampling"):
        model.fit(**PLAIN[name](), verbose=0)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_poisson_batches_that_were_batched_again(jit_compile: bool) -> None:
    model = poisson_model()
    model.compile(model.optimizer, loss="mse", jit_compile=jit_compile)
    data = POISSON.dataset((X, Y)).unbatch().batch(16)
    with refused(
        model,
        "5 steps were refused",
        "without batching it again",
        error=tsdp.PrivacyStateError,
    ):
        model.fit(data, verbose=0)


def test_poisson_batches_of_another_size() -> None:
    model = poisson_model()
    data = POISSON.dataset((X, Y)).map(
        lambda x, y, valid: (x[:8], y[:8], valid[:8])
    )
    with refused(model, "has 8 rows", "gives 24", "without batching it again"):
        model.fit(data, verbose=0)


def test_poisson_batches_as_they_are() -> None:
    model = poisson_model()
    model.fit(POISSON.dataset((X, Y)), verbose=0)
    assert model.optimizer.compositions_spent == POISSON.num_steps


def test_the_messages_hold_no_data() -> None:
    """A refusal is seen by others; it may name shapes, never values."""
    model = compiled(dense_model(), loss=lambda y, p: tf.reduce_max(y - p))
    with pytest.raises(tsdp.NotSeparableError) as caught:
        model.fit(FEATURES, TARGETS, verbose=0)
    assert not re.search(r"\d\.\d{3}", str(caught.value))
