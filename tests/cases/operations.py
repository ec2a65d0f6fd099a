"""TensorFlow operations in models of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.cases.case import (
    FEATURES,
    MIXED,
    REAL,
    SEQUENCES,
    Case,
    Through,
    functional,
    layers,
)


def _case(
    name: str,
    *steps: Callable[[Any], Any],
    inputs: Any = SEQUENCES,
    **more: Any,
) -> Case:
    """Steps between a Dense layer and the score."""

    def build() -> Any:
        return Through(layers.Dense(4), *steps)

    return Case(name, build, inputs, REAL, **more)


def _flat(x: Any) -> Any:
    return tf.reshape(x, [-1, 20])


def _mean(x: Any) -> Any:
    return tf.reduce_mean(x, 1)


def _boxes(x: Any) -> Any:
    """The three largest items by their first entry."""
    order = tf.argsort(x[..., 0], direction="DESCENDING")[:, :3]
    return tf.gather(x, order, batch_dims=1)


def _cosine(x: Any) -> Any:
    unit = tf.math.l2_normalize(x, -1)
    return tf.einsum("bte,bue->btu", unit, unit)


def _gated(x: Any) -> Any:
    keep = tf.cast(x[..., :1] > 0, x.dtype)
    return tf.where(x > 0.5, x * keep, tf.math.sin(x))


def _diagonals(x: Any) -> Any:
    square = tf.matmul(x, x, transpose_a=True)
    diagonal = tf.linalg.diag_part(square)
    x = tf.linalg.set_diag(square, 0.5 * diagonal)
    x = tf.linalg.band_part(x, 1, 0) + tf.linalg.diag(diagonal)
    return tf.reshape(x, [-1, 16])


def _by_length(x: Any) -> Any:
    lengths = tf.reduce_sum(tf.cast(x[..., 0] > 0, tf.int32), 1)
    mask = tf.sequence_mask(lengths, 5, x.dtype)
    return x * mask[..., tf.newaxis]


def _equations(x: Any) -> Any:
    x = tf.einsum("...te,...ue->...tu", x, x)
    x = tf.einsum("btu->but", x)
    x = tf.einsum("btu,btu->bt", x, x)
    return tf.einsum("b...,...->b...", x, tf.range(5.0))


def _repeated(x: Any) -> Any:
    x = tf.roll(tf.repeat(x, 2, axis=1), 1, axis=1)
    return tf.concat(tf.unstack(x, axis=1), -1)


def _smooth(x: Any) -> Any:
    x = tf.clip_by_value(x, -1.0, 1.5)
    x = tf.maximum(x, 0.1 * x) + tf.math.erf(x) + tf.math.log1p(tf.abs(x))
    x = x / (1.0 + tf.norm(x, axis=-1, keepdims=True))
    return x + tf.math.cumulative_logsumexp(x, 1)


def _windows(x: Any) -> Any:
    x = tf.stack([x[:, i : i + 3] for i in range(3)], 1)
    return tf.reduce_max(x, 2)


def _sorted_over_the_batch(x: Any) -> Any:
    return tf.sort(x, axis=0)


def _valid_count(labels: Any, scores: Any) -> Any:
    valid = tf.cast(labels > 0, tf.float32)
    loss = tf.reduce_sum(valid * tf.square(labels - scores))
    return loss / (1.0 + tf.reduce_sum(valid))


CASES = [
    _case("top k within an example", lambda x: tf.math.top_k(x, 2)[0], _mean),
    _case("sort within an example", lambda x: tf.sort(x, 1), _flat),
    _case("argsort and gather within an example", _boxes, _mean),
    _case(
        "cumulative sums and products",
        lambda x: tf.cumsum(x, 1) + tf.math.cumprod(x, 1, reverse=True),
        _flat,
    ),
    _case("cosine similarity", _cosine, lambda x: tf.reshape(x, [-1, 25])),
    _case("where and boolean gates", _gated, _flat),
    _case("diagonals and bands", _diagonals),
    _case("masks by length", _by_length, _flat),
    _case("equations of several forms", _equations),
    _case("repeat, roll, unstack", _repeated),
    _case("clip, norms, special functions", _smooth, _flat),
    _case("sliding windows", _windows, _mean),
    _case("log-sum-exp", lambda x: tf.reduce_logsumexp(x, 1)),
    _case(
        "variances and extremes",
        lambda x: tf.concat(
            [
                tf.math.reduce_std(x, 1),
                tf.reduce_max(x, 1),
                tf.reduce_min(x, 2),
            ],
            1,
        ),
    ),
    Case(
        "einsum dense",
        lambda: Through(
            layers.EinsumDense("btx,xy->bty", (5, 3), bias_axes="y"), _mean
        ),
        SEQUENCES,
        REAL,
    ),
    Case(
        "einsum dense, ellipsis",
        lambda: Through(
            layers.EinsumDense("...x,xy->...y", (5, 3), bias_axes="y"), _mean
        ),
        SEQUENCES,
        REAL,
    ),
    Case(
        "einsum dense, one kernel per position",
        lambda: Through(layers.EinsumDense("btx,txy->bty", (5, 3)), _mean),
        SEQUENCES,
        REAL,
    ),
    Case(
        "softmax layer with mask",
        lambda: Through(layers.Dense(4), MaskedSoftmax(), _flat),
        SEQUENCES,
        REAL,
    ),
    Case(
        "dropout",
        lambda: functional(lambda: layers.Dropout(0.5)),
        MIXED,
        REAL,
        random=True,
    ),
    Case(
        "gaussian dropout and noise",
        lambda: functional(
            lambda: layers.GaussianDropout(0.5),
            lambda: layers.GaussianNoise(0.1),
        ),
        MIXED,
        REAL,
        random=True,
    ),
    Case(
        "dropout of items",
        lambda: Through(
            layers.Dense(4), layers.SpatialDropout1D(0.5), layers.Flatten()
        ),
        SEQUENCES,
        REAL,
        random=True,
    ),
    _case(
        "sort over the batch",
        _sorted_over_the_batch,
        inputs=FEATURES,
        refused="TopKV2 over the example axis",
        why="each example gets the values of others",
    ),
    _case(
        "groups over the batch",
        lambda x: tf.gather(
            tf.math.unsorted_segment_mean(x, tf.cast(x[:, 0] > 0, tf.int32), 2),
            tf.cast(x[:, 0] > 0, tf.int32),
        ),
        inputs=FEATURES,
        refused="UnsortedSegmentMean.*plain sum or mean over examples",
        why="each example gets the mean of its group",
    ),
    Case(
        "loss over the number of valid examples",
        lambda: Through(layers.Dense(3)),
        FEATURES,
        REAL,
        loss=lambda: _valid_count,
        refused="RealDiv is not linear in a sum over examples.*mean over",
        why="that number is a sum over the batch",
    ),
]


class MaskedSoftmax(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.softmax = layers.Softmax(axis=1)

    def call(self, inputs: Any) -> Any:
        return self.softmax(inputs, mask=inputs > -0.5)
