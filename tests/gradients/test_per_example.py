"""Gradients taken apart are those of a loop over examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests import model_cases as cases
from tf_sparse_dp.gradients.per_example import (
    DenseTerms,
    OuterTerms,
    RowTerms,
)

CASES = {
    case.name: case
    for case in cases.CASES
    if case.name
    in (
        "dense",
        "embeddings",
        "shared table",
        "towers, shared dense",
        "same dense twice",
        "70 lookups of 9 rows",
        "dense on sequences",
        "layer norm on sequences",
        "masked mean pooling",
        "regularisers",
        "sample weights",
        "sum of losses",
    )
}


def taken_apart(
    case: cases.Case, model: Any, jit_compile: bool = False
) -> tsdp.PerExampleGradients:
    """The gradients of the first batch."""

    @tf.function(jit_compile=jit_compile)
    def step(inputs: Any, targets: Any, weight: Any) -> Any:
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = case.loss()(targets, outputs, sample_weight=weight)
            loss += sum(model.losses)
        gradients = tape.gradient(
            loss, [v.value for v in variables] if cases.KERAS_3 else variables
        )
        return tsdp.per_example_gradients(
            gradients, variables, loss_reduction=case.reduction
        )

    data = (case.inputs, case.targets, case.sample_weight)
    data = cases.rows([part for part in data if part is not None], 0, 8)
    tensors = tf.nest.map_structure(tf.constant, data)
    return step(*tensors, *[None] * (3 - len(tensors)))


def materialised(terms: Any, shape: Any) -> np.ndarray:
    """One gradient per example."""
    if isinstance(terms, OuterTerms):
        return np.einsum("bti,bto->bio", terms.left, terms.right)
    if isinstance(terms, DenseTerms):
        return terms.values.numpy()
    assert isinstance(terms, RowTerms)
    dense = np.zeros([8, *shape])
    where = (terms.example_ids.numpy(), terms.row_ids.numpy())
    np.add.at(dense, where, terms.values.numpy())
    return dense


# XLA does not know which Keras a graph is from.
@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.once)]
)
@pytest.mark.parametrize("name", CASES)
def test_equal_to_a_loop(name: str, jit_compile: bool) -> None:
    case = CASES[name]
    model = cases.built(case)
    found = taken_apart(case, model, jit_compile)
    variables = model.trainable_variables
    each = [
        materialised(terms, variable.shape)
        for terms, variable in zip(found.terms, variables, strict=True)
    ]
    loop = cases.Loop(case, model)
    for example in range(8):
        expected = loop.gradients(example)
        for mine, want in zip(each, expected, strict=True):
            np.testing.assert_allclose(mine[example], want, rtol=0, atol=1e-5)
        np.testing.assert_allclose(
            found.norms[example], cases.norm(expected), rtol=1e-5
        )
        assert cases.norm(expected) > 1e-3  # Not a comparison of zeros.


def test_tables_stay_rows_and_kernels_stay_factors() -> None:
    case = CASES["embeddings"]
    model = cases.built(case)
    terms = taken_apart(case, model).terms
    kinds = {
        variable.name.split("/")[-1].split(":")[0]: type(term)
        for term, variable in zip(terms, model.trainable_variables, strict=True)
    }
    assert kinds == {
        "embeddings": RowTerms,
        "kernel": OuterTerms,
        "bias": DenseTerms,
    }


def test_rows_name_their_examples() -> None:
    """A row that is looked up twice appears twice; nothing else does."""
    case = CASES["70 lookups of 9 rows"]
    terms = taken_apart(case, cases.built(case)).terms[0]
    assert terms.values.shape == (8 * 70, 4)
    np.testing.assert_array_equal(
        terms.row_ids, case.inputs[:8].astype("int64").ravel()
    )
    np.testing.assert_array_equal(
        terms.example_ids, np.repeat(np.arange(8), 70)
    )


@tf.function
def _unused(x: tf.Tensor, used: Any, unused: Any, decayed: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(x * used) + decayed**2
    variables = [used, unused, decayed]
    return tsdp.per_example_gradients(tape.gradient(loss, variables), variables)


def test_what_no_example_influences_is_left_out() -> None:
    used, unused, decayed = (tf.Variable(2.0) for _ in range(3))
    found = _unused(tf.constant([1.0, -3.0]), used, unused, decayed)
    assert found.terms[1] is None
    assert found.terms[2] is None
    np.testing.assert_array_equal(found.terms[0].values, [1.0, -3.0])
    np.testing.assert_array_equal(found.norms, [1.0, 3.0])


def test_gradients_that_mix_examples_are_refused() -> None:
    weight = tf.Variable(2.0)

    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * x) ** 2
        return tsdp.per_example_gradients(
            tape.gradient(loss, [weight]), [weight]
        )

    with pytest.raises(tsdp.NotSeparableError, match="per-example"):
        step(tf.constant([1.0, 2.0]))


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match=r"loss_reduction='none'.*'sum'"):
        tsdp.per_example_gradients([], [], loss_reduction="none")


def test_eager_gradients_are_refused() -> None:
    weight = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        loss = 3.0 * weight
    gradients = tape.gradient(loss, [weight])
    with pytest.raises(tsdp.NotSeparableError, match=r"tf\.function"):
        tsdp.per_example_gradients(gradients, [weight])
