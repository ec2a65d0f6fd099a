"""Bias and second moment of the bias-reduced estimate, from its own releases.

What is drawn are batches as `BiasReducedSampling` draws them, given N = k, and
the releases of `BiasReduction` for them. The mean over N is taken with the
probabilities of N, not by drawing N, which is rarely large: that and nothing
else is worked out. Of both halves of the draws the mean is taken by itself, and
the product of their errors is an estimate of the squared bias without a bias of
its own, however large the noise of each is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp import BiasReducedSampling, BiasReduction
from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE
from tf_sparse_dp.gradients.factors import RowFactor
from tf_sparse_dp.mechanisms import Mechanism
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.sampling import kind_of


@dataclasses.dataclass(frozen=True)
class Point:
    """One estimate: n examples with s of d entries, of norm 1; noise z.

    `same` of the entries are those of all others, the rest is drawn anew for
    each example: the gradient has norm sqrt(same / s), at least.
    """

    n: int
    d: int
    s: int
    z: float
    same: int = 1

    @functools.cached_property
    def ids(self) -> np.ndarray:
        rng = np.random.default_rng(self.n * self.d + self.s)
        own = [
            rng.choice(self.d - self.same, self.s - self.same, replace=False)
            for _ in range(self.n)
        ]
        shared = np.tile(np.arange(self.same), (self.n, 1))
        ids = np.concatenate([shared, np.asarray(own) + self.same], axis=1)
        return ids.astype("int32")

    @property
    def mean(self) -> np.ndarray:
        """The gradient over all examples."""
        counts = np.bincount(self.ids.ravel(), minlength=self.d)
        mean: np.ndarray = counts / (math.sqrt(self.s) * self.n)
        return mean

    @property
    def sampling(self) -> BiasReducedSampling:
        return BiasReducedSampling(num_examples=self.n, steps=1)

    def terms(self, rows: tf.Tensor) -> list[Any]:
        values = tf.fill([tf.shape(rows)[0], self.s, 1], self.s**-0.5)
        return [
            RowFactor(
                values, tf.ensure_shape(rows, [None, self.s]), (self.d, 1)
            )
        ]

    def facts(self, **others: Any) -> PublicFacts:
        terms = self.terms(tf.constant(self.ids[:1]))
        return PublicFacts(
            variables=(Variable.of(terms[0], "table"),),
            clip_norm=1.0,
            noise_multiplier=self.z,
            failure_probability=RELEASE_FAILURE,
            **others,
        )

    @property
    def second_moment(self) -> float:
        """The lemma's, but for its constant; z has its ε and δ."""
        logarithm = math.log(self.d / self.s)
        return math.log(self.n) * self.z * math.sqrt(self.s * logarithm)


Draw = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def _dense(total: Any) -> tf.Tensor:
    return tf.reshape(tf.convert_to_tensor(total), [-1])


def reduced(point: Point, inner: Mechanism) -> Draw:
    """The estimate from a batch, of which the number of rows tells N."""
    mechanism = BiasReduction(inner)
    kinds = point.sampling.step_kinds

    @tf.function(input_signature=_signature(point))
    def draw(rows: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        facts = point.facts(
            expected_batch_size=1.0,
            levels=len(kinds),
            level=kind_of(tf.shape(rows)[0], kinds),
        )
        valid = tf.ones([tf.shape(rows)[0]], bool)
        sums = mechanism.clipped(point.terms(rows), key, facts, valid=valid)
        return _dense(mechanism.release(sums, key, facts)[0])

    return draw


def _signature(point: Point) -> list[tf.TensorSpec]:
    return [
        tf.TensorSpec([None, point.s], tf.int32),
        tf.TensorSpec([2], tf.int64),
    ]


def plain(point: Point, inner: Mechanism, size: int) -> Draw:
    """What the inner mechanism makes of a batch by itself."""

    @tf.function(input_signature=_signature(point))
    def draw(rows: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        facts = point.facts(expected_batch_size=float(size))
        sums = inner.clipped(point.terms(rows), key, facts)
        return _dense(inner.release(sums, key, facts)[0]) / size

    return draw


def _draws(
    point: Point, draw: Draw, size: int, count: int, extra: bool, seed: int
) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        chosen = rng.permutation(point.n)[:size]
        if extra:
            chosen = np.append(chosen, rng.integers(point.n))
        key = rng.integers(2**62, size=2)
        yield draw(tf.constant(point.ids[chosen]), tf.constant(key)).numpy()


@dataclasses.dataclass
class Moments:
    """Two independent means, and the mean squared norm."""

    halves: tuple[np.ndarray, np.ndarray]
    square: float

    def bias(self, truth: np.ndarray) -> float:
        """Its norm; the root of an unbiased estimate of the square."""
        one, two = (half - truth for half in self.halves)
        return math.sqrt(max(float(one @ two), 0.0))


def moments_of(values: Iterator[np.ndarray]) -> Moments:
    """Of as many draws as there are."""
    sums, squares, count = [0.0, 0.0], 0.0, 0
    for value in values:
        sums[count % 2] = sums[count % 2] + value.astype("float64")
        squares += float(np.square(value.astype("float64")).sum())
        count += 1
    halves = tuple(2 * total / count for total in sums)
    return Moments(halves, squares / count)  # type: ignore[arg-type]


def of_plain(
    point: Point, inner: Mechanism, size: int, count: int, seed: int = 1
) -> Moments:
    """Of the inner mechanism by itself, on batches of one size."""
    draw = plain(point, inner, size)
    return moments_of(_draws(point, draw, size, count, False, seed))


def of_reduced(
    point: Point, inner: Mechanism, count: int, seed: int = 2
) -> Moments:
    """Over all N, each with its probability."""
    halves, square = [0.0, 0.0], 0.0
    draw = reduced(point, inner)
    for level, chance in enumerate(point.sampling.law.probabilities):
        found = moments_of(
            _draws(point, draw, 2 ** (level + 1), count, True, seed + level)
        )
        for place in range(2):
            halves[place] = halves[place] + float(chance) * found.halves[place]
        square += float(chance) * found.square
    return Moments((halves[0], halves[1]), square)  # type: ignore[arg-type]
