"""Noise of rows that nobody touched, above a threshold only.

A mechanism adds noise to all rows of a table and then, as post-processing,
drops all rows whose norm is at most a threshold. A row that no example touched
is pure noise: which of those survive is a coin per row, and how far they
exceed the threshold follows a known law. So the few survivors can be drawn
without drawing the many others, with exactly the distribution that noise on
all rows would give.

Sizes are fixed by public facts, so that XLA can compile all of it; only where
no failure at all is allowed do they grow until the end of the table.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from tf_sparse_dp.mechanisms.noise_norms import GaussianNorms, Norms
from tf_sparse_dp.mechanisms.search import last_not_above
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.random_tails import (
    Number,
    Size,
    chi_excess,
    cut_exponential,
    exponential,
    normal,
    signs,
)

# What the parts of a key are for.
_HITS, _EXCESS, _DIRECTIONS = range(3)


class Rows(NamedTuple):
    """Rows that a batch touched, each once.

    Attributes:
      ids: int64 [T], ascending; filled up with the number of rows.
      values: [T, k]; zeros where it was filled up.
      live: bool [T], False where it was filled up.
    """

    ids: tf.Tensor
    values: tf.Tensor
    live: tf.Tensor


class Hits(NamedTuple):
    """Rows that a coin per row chose.

    Attributes:
      ids: int64 [K], ids of rows; those that are live are ascending, all
        others are 0.
      live: bool [K]; False where there is no hit.
    """

    ids: tf.Tensor
    live: tf.Tensor


class Exceedances(NamedTuple):
    """Rows of pure noise whose norm exceeds a threshold.

    Attributes:
      ids: int64 [K], ids of rows; those that are live are ascending, all
        others are 0.
      live: bool [K]; False where there is no such row.
      excess: float32 [K], norm minus threshold; 0 where not live.
    """

    ids: tf.Tensor
    live: tf.Tensor
    excess: tf.Tensor


def touched_rows(total: tf.IndexedSlices, dtype: tf.DType = tf.float32) -> Rows:
    """Sums up what occurs more than once, and drops ids of no row.

    Ids of the result depend on the ids of `total` only, not on their order.

    Raises:
      ValueError: If the number of rows is not known when the graph is built.
    """
    shape = tf.get_static_value(total.dense_shape)
    if shape is None:
        raise ValueError(
            "A table's sum has a dense shape that is known only when it runs: "
            f"{total}. Expected a constant: make the tf.IndexedSlices with "
            "dense_shape=variable.shape."
        )
    rows = int(shape[0])
    ids = tf.cast(total.indices, tf.int64)
    known = (ids >= 0) & (ids < rows)
    count = tf.shape(ids)[0]
    width = math.prod(total.values.shape[1:])
    values = tf.cast(tf.reshape(total.values, [count, width]), dtype)
    values = tf.where(known[:, tf.newaxis], values, 0.0)
    ids = tf.where(known, ids, rows)
    order = tf.argsort(ids, stable=True)
    ids = tf.gather(ids, order)
    new = tf.concat([ids[:1] >= 0, ids[1:] != ids[:-1]], 0)
    places = tf.cumsum(tf.cast(new, tf.int32))[:, tf.newaxis] - 1
    values = tf.tensor_scatter_nd_add(
        tf.zeros_like(values), places, tf.gather(values, order)
    )
    ids = tf.tensor_scatter_nd_min(
        tf.fill(tf.shape(ids), tf.constant(rows, tf.int64)), places, ids
    )
    return Rows(ids, values, ids < rows)


def expected_hits(norms: Norms, rows: int, threshold: float) -> float:
    """How many rows of pure noise exceed the threshold on average."""
    return rows * float(norms.survival(threshold))


def hit_capacity(
    rows: int, probability: float, failure_probability: float
) -> int:
    r"""A number of hits that is exceeded with at most this probability.

    Chernoff's bound: a binomial number of mean $\mu$ reaches $K > \mu$ with
    probability at most $e^{-\mu} (e\mu/K)^K$. Never more than all rows.
    """
    mean = rows * probability
    if mean == 0:
        return 0
    if failure_probability == 0:
        return rows

    def failing(capacity: int) -> bool:
        count = capacity + 1
        log_bound = count - mean + count * math.log(mean / count)
        return log_bound > math.log(failure_probability)

    low, high = min(math.ceil(mean), rows), rows
    while low < high:
        middle = (low + high) // 2
        if failing(middle):
            low = middle + 1
        else:
            high = middle
    return low


def untouched_hits(
    rows: int,
    probability: Number,
    touched_ids: tf.Tensor,
    key: tf.Tensor,
    failure_probability: float,
) -> Hits:
    """Each row on its own with the given probability, but for touched rows.

    Args:
      rows: Number of rows of the table.
      probability: That of each row. A scalar float64 tensor if nothing may
        fail.
      touched_ids: int64 [T], ascending; ids of no row are ignored.
      key: A key, int64 [2].
      failure_probability: How likely hits may be left out because there are
        more of them than a size that is fixed beforehand. 0 fixes no size:
        exact, and not for XLA.

    Returns:
      Hits, in as many places as `hit_capacity` says. If nothing may fail, in
      as many as there are hits.
    """
    if failure_probability == 0:
        ids = _hits_to_the_end(rows, probability, key)
    else:
        capacity = hit_capacity(rows, probability, failure_probability)
        ids = _next_hits(rows, probability, key, capacity) - 1
    live = (ids < rows) & ~_is_among(touched_ids, ids, rows)
    if failure_probability == 0:
        ids = tf.boolean_mask(ids, live)
        return Hits(ids, tf.ones_like(ids, tf.bool))
    # A hit on a touched row must not be seen: it would tell of the batch.
    return Hits(tf.where(live, ids, 0), live)


def exceedances(
    norms: Norms,
    rows: int,
    threshold: float,
    touched_ids: tf.Tensor,
    key: tf.Tensor,
    failure_probability: float,
) -> Exceedances:
    """All untouched rows whose noise has a norm above the threshold.

    Args:
      norms: Law of the norm of a row's noise.
      rows: Number of rows of the table.
      threshold: Public; at least 0.
      touched_ids: int64 [T], ascending; ids of no row are ignored.
      key: A key, int64 [2].
      failure_probability: As for `untouched_hits`.

    Raises:
      ValueError: If the threshold is negative or not finite.
    """
    if not (math.isfinite(threshold) and threshold >= 0):
        raise ValueError(
            f"No norm can be compared with threshold {threshold}: expected a "
            "finite number, at least 0."
        )
    hits = untouched_hits(
        rows,
        float(norms.survival(threshold)),
        touched_ids,
        fold_in(key, _HITS),
        failure_probability,
    )
    return _with_excess(hits, norms, threshold, math.inf, key)


def exceedances_between(
    norms: Norms,
    rows: int,
    low: Number,
    high: Number,
    excluded_ids: tf.Tensor,
    key: tf.Tensor,
) -> Exceedances:
    """More exceedances, after a threshold turned out to be too high.

    Given that the norms of all rows but the excluded ones are at most `high`:
    those whose norm is above `low`, and their excess above `low`. For graphs
    and eagerly; there is no fixed size, hence no XLA.

    Args:
      norms: Law of the norm of a row's noise.
      rows: Number of rows of the table.
      low: The new threshold, at least 0. May be a tensor.
      high: The old threshold. May be a tensor. Nothing lies between unless it
        is above `low`, nor if either is not a number.
      excluded_ids: int64, in any order; ids of no row are ignored. Rows that
        were touched, and live rows that were found above `high`. (Not the
        places that are not live: row 0 may be free.)
      key: A key, int64 [2], other than that of the exceedances before.
    """
    low, high = (tf.cast(x, tf.float64) for x in (low, high))
    hits = untouched_hits(
        rows,
        _probability_between(norms, low, high),
        tf.sort(excluded_ids),
        fold_in(key, _HITS),
        failure_probability=0.0,
    )
    return _with_excess(hits, norms, low, high, key)


def directions(key: tf.Tensor, count: Size, width: int) -> tf.Tensor:
    """Uniform unit vectors, float32 [count, width]; signs for width 1.

    The key may be the one that exceedances were drawn with.
    """
    key = fold_in(key, _DIRECTIONS)
    if width == 1:
        return signs([count, 1], key)
    vectors = normal([count, width], key)
    norms = tf.norm(vectors, axis=1, keepdims=True)
    return vectors / tf.maximum(norms, 1e-30)


def _with_excess(
    hits: Hits, norms: Norms, low: Number, high: Number, key: tf.Tensor
) -> Exceedances:
    key = fold_in(key, _EXCESS)
    shape = [hits.ids.shape[0] or tf.shape(hits.ids)[0]]
    if isinstance(norms, GaussianNorms):
        unit = norms.stddev
        excess = chi_excess(
            shape, key, width=norms.width, low=low / unit, high=high / unit
        )
    else:
        unit = norms.scale
        excess = cut_exponential(shape, key, (high - low) / unit)
    return Exceedances(*hits, tf.where(hits.live, unit * excess, 0.0))


def _probability_between(
    norms: Norms, low: tf.Tensor, high: tf.Tensor
) -> tf.Tensor:
    """P(low < norm | norm <= high), float64."""
    if isinstance(norms, GaussianNorms):
        half = tf.constant(norms.width / 2, tf.float64)
        bottom, top = (tf.square(x / norms.stddev) / 2 for x in (low, high))
        # Whichever side is small has the digits.
        between = tf.where(
            tf.math.igammac(half, top) < 0.5,
            tf.math.igammac(half, bottom) - tf.math.igammac(half, top),
            tf.math.igamma(half, top) - tf.math.igamma(half, bottom),
        )
        return between / tf.math.igamma(half, top)
    bottom, top = low / norms.scale, high / norms.scale
    between = -tf.exp(-bottom) * tf.math.expm1(bottom - top)
    return between / -tf.math.expm1(-top)


def _next_hits(
    rows: int, probability: Number, key: tf.Tensor, count: Size
) -> tf.Tensor:
    r"""Where the next hits are, int64 [count], counted from 1.

    A row is a hit with probability $p$ on its own exactly if the numbers of
    rows skipped between hits are independent and geometric, and $\lfloor E /
    \lambda \rfloor$ is geometric for an exponential $E$ and $\lambda =
    -\ln(1 - p)$. Rows skipped are whole numbers and add up exactly, so that
    only a single $E / \lambda$ is ever rounded: by $2^{-52}$ of itself, less
    than a millionth of a row in a table of $10^9$ rows.
    """
    probability = tf.cast(probability, tf.float64)
    # What is not a number, as after a threshold that is none, hits nothing.
    probability = tf.where(probability > 0, tf.minimum(probability, 1), 0)
    skipped = exponential([count], key, tf.float64)
    skipped /= -tf.math.log1p(-probability)
    steps = 1 + tf.cast(tf.minimum(skipped, rows), tf.int64)
    return tf.cumsum(steps)


def _hits_to_the_end(
    rows: int, probability: Number, key: tf.Tensor
) -> tf.Tensor:
    """All hits and some beyond the end of the table, block by block."""

    def more(
        turn: tf.Tensor, end: tf.Tensor, ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        count = _block_size(rows, probability)
        block = end + _next_hits(rows, probability, fold_in(key, turn), count)
        return turn + 1, block[-1], tf.concat([ids, block - 1], 0)

    zero = tf.constant(0, tf.int64)
    *_, ids = tf.while_loop(
        lambda turn, end, ids: end < rows,
        more,
        (zero, zero, tf.zeros([0], tf.int64)),
        shape_invariants=(zero.shape, zero.shape, tf.TensorShape([None])),
    )
    return ids


def _block_size(rows: int, probability: Number) -> tf.Tensor:
    """Nearly always enough."""
    mean = rows * tf.cast(probability, tf.float64)
    mean = tf.where(mean > 0, mean, 0)
    enough = tf.minimum(mean + 5 * tf.sqrt(mean) + 8, rows)
    return tf.cast(enough, tf.int64)


def _is_among(ascending: tf.Tensor, ids: tf.Tensor, beyond: int) -> tf.Tensor:
    """Which ids occur; `beyond` may be found though it does not."""
    ascending = tf.concat([ascending, [beyond]], 0)  # Never empty.
    return tf.gather(ascending, last_not_above(ascending, ids)) == ids
