"""Means and sums over a batch are told apart, or left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf_sparse_dp.gradients.loss_scale import LossScale
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

WIDTH, OUTPUTS = 3, 16  # A multiple of the batch size below.
BATCH = 8


def reduction(loss: Callable[[Any], Any], rows: int | None) -> str | None:
    kernel = tf.Variable(tf.ones([WIDTH, OUTPUTS]))
    found = []

    @tf.function(input_signature=[tf.TensorSpec([rows, WIDTH])])
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(tf.square(x @ kernel))
        gradient = tape.gradient(value, kernel)
        separation = Separation([gradient], ["kernel"], [kernel.shape])
        found.append(LossScale(separation.analysis).reduction(gradient))

    step.get_concrete_function()
    return found[0]


@pytest.mark.parametrize("rows", [None, BATCH], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x: tf.reduce_mean(x), "mean"),
        (lambda x: tf.reduce_mean(tf.reduce_sum(x, 1)), "mean"),
        (
            lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32),
            "mean",
        ),
        (lambda x: 0.3 * tf.reduce_mean(x), "mean"),
        (lambda x: tf.reduce_sum(x), "sum"),
        (lambda x: tf.reduce_sum(tf.reduce_sum(x, 1)) / 5.0, "sum"),
    ],
)
def test_a_reduction_is_read_off_the_graph(
    loss: Callable[[Any], Any], expected: str, rows: int | None
) -> None:
    assert reduction(loss, rows) == expected


@pytest.mark.parametrize("rows", [None, BATCH], ids=["dynamic", "static"])
@pytest.mark.parametrize(
    ("loss", "truth"),
    [
        (lambda x: tf.reduce_mean(tf.reduce_mean(x, 1)), "mean"),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, 1)), "sum"),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, 0)), "mean"),
        (lambda x: tf.reduce_sum(x) / OUTPUTS, "sum"),
    ],
)
def test_what_a_constant_batch_size_hides_is_left_open(
    loss: Callable[[Any], Any], truth: str, rows: int | None
) -> None:
    """16 outputs and 8 examples: which of them was divided by?"""
    found = reduction(loss, rows)
    if rows is None:
        assert found == truth
    else:
        assert found in (None, truth)
