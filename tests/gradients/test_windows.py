"""Windows over axes are safe on an example's own axes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

ROWS = 4
X = np.random.RandomState(0).randn(ROWS, 6, 6, 2).astype("float32")
KERNEL = tf.Variable(np.random.RandomState(1).randn(2, 2, 2, 2).astype("f"))
W = tf.Variable(np.random.RandomState(2).randn(2).astype("float32"))


def terms(
    forward: Callable[[Any], Any], x: np.ndarray, static: bool
) -> list[np.ndarray]:
    """Every example's terms for the kernel and a weight per channel."""

    @tf.function(
        input_signature=[tf.TensorSpec([ROWS if static else None, 6, 6, 2])]
    )
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(forward(batch * W)))
        gradients = tape.gradient(loss, [KERNEL, W])
        shapes = [KERNEL.shape, W.shape]
        parts = Separation(gradients, ["kernel", "w"], shapes).parts
        return [p.terms.per_example() for p in parts if p is not None]

    return [value.numpy() for value in step(tf.constant(x))]


def _conv(x: Any, **options: Any) -> Any:
    options = {"strides": 1, "padding": "SAME", **options}
    return tf.nn.conv2d(x, KERNEL, **options)


def _batch_second(x: Any) -> Any:
    return tf.transpose(x, [1, 0, 2, 3])


def _batch_last(x: Any) -> Any:
    return tf.transpose(x, [1, 2, 3, 0])


def _conv_over_the_batch(x: Any) -> Any:
    return _conv(_batch_second(x))


def _conv_with_examples_as_channels(x: Any) -> Any:
    kernel = tf.tile(KERNEL[:, :, :1], [1, 1, ROWS, 1])
    return tf.nn.conv2d(_batch_last(x), kernel, 1, "SAME")


def _depthwise_over_the_batch(x: Any) -> Any:
    return tf.nn.depthwise_conv2d(
        _batch_second(x), KERNEL, [1, 1, 1, 1], "SAME"
    )


def _channels_first(x: Any) -> Any:
    x = tf.transpose(x, [0, 3, 1, 2])
    return _conv(x, data_format="NCHW")


def _explicit_padding(x: Any) -> Any:
    return _conv(x, padding=[[0, 0], [1, 0], [0, 1], [0, 0]])


def _grouped(x: Any) -> Any:
    return _conv(tf.concat([x, tf.sin(x)], -1))


def _kernel_of_examples(x: Any) -> Any:
    kernel = KERNEL * tf.reduce_mean(x)
    return tf.nn.conv2d(tf.ones([1, 6, 6, 2]), kernel, 1, "SAME")


def _average_over_the_batch(x: Any) -> Any:
    return _conv(
        _batch_second(tf.nn.avg_pool2d(_batch_second(x), 2, 1, "SAME"))
    )


def _maximum_over_the_batch(x: Any) -> Any:
    return _conv(
        _batch_second(tf.nn.max_pool2d(_batch_second(x), 2, 1, "SAME"))
    )


def _window_on_axis_0(x: Any) -> Any:
    return _conv(
        tf.raw_ops.AvgPool(
            value=x, ksize=[2, 1, 1, 1], strides=[1, 1, 1, 1], padding="SAME"
        )
    )


def _pooled_channels_first(x: Any) -> Any:
    pooled = tf.nn.max_pool2d(x, [2, 1], 1, "SAME", data_format="NCHW")
    return _conv(pooled)


def _blocks_of_the_batch(x: Any) -> Any:
    x = tf.space_to_batch(_batch_second(x), [2, 2], [[0, 0], [0, 0]])
    return _conv(x)


def _batch_into_space(x: Any) -> Any:
    return _conv(tf.batch_to_space(x, [2, 2], [[0, 0], [0, 0]]))


def _blocks_taken_for_examples(x: Any) -> Any:
    x = tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]])
    x = tf.reshape(x, [-1, 4, 3 * 3, 2])  # The rows are block-major.
    return _conv(x)


def _resized_over_the_batch(x: Any) -> Any:
    return _conv(tf.image.resize(_batch_second(x), [8, 6], "bilinear"))


def _reversed_over_the_batch(x: Any) -> Any:
    lengths = tf.fill([6], 3)
    return _conv(tf.reverse_sequence(x, lengths, seq_axis=0, batch_axis=1))


def _reversed_by_others(x: Any) -> Any:
    lengths = tf.reduce_sum(tf.cast(x[:, 0, :, 0] > 0, tf.int32), 0)
    x = tf.transpose(x, [1, 0, 2, 3])
    return _conv(
        tf.reverse_sequence(x, lengths[:ROWS], seq_axis=0, batch_axis=1)
    )


MIXING = [
    _conv_over_the_batch,
    _conv_with_examples_as_channels,
    _depthwise_over_the_batch,
    _channels_first,
    _explicit_padding,
    _grouped,
    _kernel_of_examples,
    _average_over_the_batch,
    _maximum_over_the_batch,
    _window_on_axis_0,
    _pooled_channels_first,
    _blocks_of_the_batch,
    _batch_into_space,
    _blocks_taken_for_examples,
    _resized_over_the_batch,
    _reversed_over_the_batch,
    _reversed_by_others,
]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("forward", MIXING, ids=lambda f: f.__name__[1:])
def test_windows_over_examples_are_refused(
    forward: Callable[[Any], Any], static: bool
) -> None:
    with pytest.raises(tsdp.NotSeparableError, match="Nothing was trained"):
        terms(forward, X, static)


def _strided(x: Any) -> Any:
    return _conv(tf.nn.relu(_conv(x, strides=[1, 2])), padding="VALID")


def _dilated(x: Any) -> Any:
    return tf.nn.convolution(x, KERNEL, padding="SAME", dilations=2)


def _blocks_of_an_example(x: Any) -> Any:
    x = tf.space_to_batch(x, [3, 2], [[0, 0], [1, 1]])
    return _conv(tf.batch_to_space(tf.sin(x), [3, 2], [[0, 0], [1, 1]]))


def _pooled(x: Any) -> Any:
    x = tf.nn.max_pool2d(_conv(x), 3, 2, "SAME")
    return tf.nn.avg_pool2d(tf.sin(x), 2, 1, "VALID")


def _resized(x: Any) -> Any:
    return _conv(tf.image.resize(tf.image.resize(x, [9, 3]), [5, 5], "nearest"))


def _reversed(x: Any) -> Any:
    lengths = tf.reduce_sum(tf.cast(x[:, :, 0, 0] > 0, tf.int32), 1)
    return _conv(tf.reverse_sequence(x, lengths, seq_axis=1, batch_axis=0))


WITHIN = [
    _strided,
    _dilated,
    _blocks_of_an_example,
    _pooled,
    _resized,
    _reversed,
]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("forward", WITHIN, ids=lambda f: f.__name__[1:])
def test_windows_within_an_example_are_taken_apart(
    forward: Callable[[Any], Any], static: bool
) -> None:
    found = terms(forward, X, static)

    @tf.function
    def one(alone: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(forward(alone * W)))
        return tape.gradient(loss, [KERNEL, W])

    for example in range(ROWS):
        expected = one(tf.constant(X[example : example + 1]))
        for mine, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                mine[example], want, rtol=1e-4, atol=1e-4
            )
            assert np.abs(want).max() > 0.1
