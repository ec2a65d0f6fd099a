"""Gaussian noise on every entry: the dense baseline."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.compiled.kernels import can_do
from tf_sparse_dp.compiled.normals import with_normals
from tf_sparse_dp.mechanisms.grid import noisy
from tf_sparse_dp.mechanisms.interface import Mechanism, PublicFacts, Sum
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.random_tails import normal

_SMALL = 2**20  # Entries of one variable.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    r"""Adds independent Gaussian noise to every entry of every variable.

    $\tilde s = s + \xi$, $\xi \sim N(0, \sigma^2 I)$ with $\sigma$ = the stddev
    of `PublicFacts`.

    **Guarantee.** If one example changes all sums together by at most $C$ in
    L2 norm, releasing them is a Gaussian mechanism with noise multiplier
    $\sigma / C$ (neighbours: add or remove one example, or zero one out).

    Dense by definition: a table's noise touches all its rows at every step,
    whatever the batch looked up; tables of `LazyEmbedding` get the same noise
    when rows are read, and their sums stay as they are until then. Without
    noise nothing is private, and sparse sums stay sparse.

    Example:
      >>> Gaussian().description
      'Gaussian noise on every entry of every variable'

    Reference: Dwork and Roth, "The Algorithmic Foundations of Differential
    Privacy", appendix A.
    """

    @property
    def fixed_sizes(self) -> bool:
        return False

    @property
    def allows_noise_later(self) -> bool:
        return True

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        if facts.stddev == 0:
            return [deduplicated(total) for total in sums]
        released = list(sums)
        small = []
        for place, variable in enumerate(facts.variables):
            if variable.noise_later:
                continue
            if _is_small(sums[place]):
                small.append(place)
                continue
            own = fold_in(key, place)
            released[place] = with_noise(sums[place], own, facts.stddev)
        if small:
            together = with_noise_together(
                [sums[place] for place in small],
                fold_in(key, len(sums)),
                facts.stddev,
            )
            for place, total in zip(small, together, strict=True):
                released[place] = total
        return released

    @property
    def description(self) -> str:
        return "Gaussian noise on every entry of every variable"


def with_noise(total: Sum, key: tf.Tensor, stddev: float) -> tf.Tensor:
    """The sum with noise on every entry, dense, rounded to the grid."""
    shape = total.shape
    if isinstance(total, tf.IndexedSlices):
        shape = tf.get_static_value(total.dense_shape).tolist()
    elif _has_kernel(total):
        flat = tf.reshape(total, [-1])
        size = flat.shape[0]
        flat = with_normals(
            lambda values, normals: noisy(values, stddev * normals, stddev),
            tf.pad(flat, [[0, 1]]) if size % 2 else flat,
            key,
        )
        return tf.reshape(flat[:size] if size % 2 else flat, shape)
    return noisy(total, normal(shape, key, stddev), stddev)


def with_noise_together(
    totals: Sequence[tf.Tensor], key: tf.Tensor, stddev: float
) -> list[tf.Tensor]:
    """The sums with noise, all of which is drawn at once: that costs less."""
    flat = [tf.cast(tf.reshape(t, [-1]), tf.float32) for t in totals]
    sizes = [math.prod(total.shape) for total in totals]
    parts = tf.split(with_noise(tf.concat(flat, 0), key, stddev), sizes)
    return [
        tf.cast(tf.reshape(part, total.shape), total.dtype)
        for part, total in zip(parts, totals, strict=True)
    ]


def _is_small(total: Sum) -> bool:
    """Whether it should get its noise with others, which takes less time.

    Not if noise for all of them takes much memory, or for this one alone
    little time: it need not wait for the others then.
    """
    return (
        tf.is_tensor(total)
        and total.dtype.size <= 4
        and math.prod(total.shape) <= _SMALL
        and not _has_kernel(total)
    )


def _has_kernel(total: tf.Tensor) -> bool:
    return total.dtype == tf.float32 and can_do(math.prod(total.shape))


def deduplicated(total: Sum) -> Sum:
    """The sum as it is, every row of a table once."""
    # Keras 3 updates a row once per occurrence, which is wrong for all rules
    # that are not linear in the gradient.
    if not isinstance(total, tf.IndexedSlices):
        return total
    ids, places = tf.unique(total.indices)
    # A segment sum would spread over all threads, each of them reading all ids.
    shape = [tf.shape(ids)[0], *total.values.shape[1:]]
    values = tf.tensor_scatter_nd_add(
        tf.zeros(shape, total.values.dtype),
        places[:, tf.newaxis],
        total.values,
    )
    return tf.IndexedSlices(values, ids, total.dense_shape)
