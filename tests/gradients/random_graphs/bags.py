"""Steps on a ragged feature: each example has as many ids as it likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.gradients.random_graphs.programs import (
    BAGS,
    LONGEST_BAG,
    TABLE_ROWS,
    Program,
)

# From a table and the bags to one row per example.
POOLED: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda t, bags: tf.reduce_sum(tf.gather(t, bags), 1),
    "mean": lambda t, bags: tf.math.divide_no_nan(
        tf.reduce_sum(tf.gather(t, bags), 1),
        tf.cast(bags.row_lengths(), t.dtype)[:, None],
    ),
    "tanh": lambda t, bags: tf.reduce_sum(tf.tanh(tf.gather(t, bags)), 1),
    "safe": lambda t, bags: tf.nn.safe_embedding_lookup_sparse(
        t, tf.cast(bags, tf.int64).to_sparse(), combiner="mean"
    ),
    "padded": lambda t, bags: tf.reduce_mean(
        tf.gather(t, bags.to_tensor(0, shape=[None, LONGEST_BAG])), 1
    ),
    "segments": lambda t, bags: tf.math.unsorted_segment_sum(
        tf.gather(t, bags.values), bags.value_rowids(), bags.nrows()
    ),
    "unique": lambda t, bags: tf.reduce_sum(
        bags.with_values(_by_distinct_ids(t, bags.values)), 1
    ),
    "masked": lambda t, bags: tf.reduce_sum(
        tf.gather(t, tf.ragged.boolean_mask(bags, bags > 1)), 1
    ),
}
# The same, but an example sees how many values others have, or which.
MIXING: dict[str, Callable[[Any, Any], Any]] = {
    "longest": lambda t, bags: tf.reduce_mean(
        tf.gather(t, bags.to_tensor()), 1
    ),
    "position": lambda t, bags: tf.reduce_sum(
        bags.with_values(
            tf.gather(t, bags.values)
            * tf.cast(tf.range(tf.shape(bags.values)[0]), t.dtype)[:, None]
        ),
        1,
    ),
    "number": lambda t, bags: (
        POOLED["sum"](t, bags) / tf.cast(1 + tf.size(bags.values), t.dtype)
    ),
    "running": lambda t, bags: tf.reduce_sum(
        bags.with_values(tf.cumsum(tf.gather(t, bags.values), 0)), 1
    ),
    "softmax": lambda t, bags: tf.reduce_sum(
        bags.with_values(tf.nn.softmax(tf.gather(t, bags.values), 0)), 1
    ),
    "begins": lambda t, bags: (
        POOLED["sum"](t, bags) * tf.cast(bags.row_splits[:-1], t.dtype)[:, None]
    ),
    "centred": lambda t, bags: tf.reduce_sum(
        bags.with_values(_centred(tf.gather(t, bags.values))), 1
    ),
    "distinct": lambda t, bags: (
        POOLED["sum"](t, bags)
        * tf.cast(tf.size(tf.unique(bags.values).y), t.dtype)
    ),
}


def _by_distinct_ids(table: Any, ids: Any) -> Any:
    distinct, places = tf.unique(ids)
    return tf.gather(tf.sin(tf.gather(table, distinct)), places)


def _centred(rows: Any) -> Any:
    return rows - tf.reduce_mean(rows, 0, keepdims=True)


def bag(p: Program) -> None:
    """Rows of a table, pooled over each example's ids."""
    if not p.ragged:
        raise LookupError
    ways = POOLED if p.careful else MIXING
    name = p.random.choice(list(ways))
    table, way = p.variable([TABLE_ROWS, p.width]), ways[name]
    p.add(
        f"bags {name} of table {table}",
        lambda c, bags: (
            way(tf.convert_to_tensor(c.variables[table]), bags)
            if name != "safe"
            else way(c.variables[table], bags)
        ),
        BAGS,
        axis=0,
        trained=True,
    )


def lengths(p: Program) -> None:
    """How many ids an example has, or its values meeting its features."""
    if not p.ragged:
        raise LookupError
    place = p.pick(lambda v: v.axis == 0 and v.shape[0] == p.rows)
    value = p.pool[place]
    if p.random.random() < 0.5:
        shape = [-1] + [1] * (value.rank - 1)
        p.add(
            "times lengths",
            lambda _, x, bags: (
                x * tf.reshape(tf.cast(bags.row_lengths(), x.dtype), shape)
            ),
            place,
            BAGS,
            axis=0,
        )
        return
    if value.rank != 2 or value.shape[1] != p.width:
        raise LookupError
    table = p.variable([TABLE_ROWS, p.width])

    def function(c: Any, x: Any, bags: Any) -> Any:
        rows = tf.gather(c.variables[table], bags.values)
        mine = tf.gather(x, bags.value_rowids())
        return tf.reduce_sum(bags.with_values(tf.tanh(rows * mine)), 1)

    text = f"bags of table {table} meet features"
    p.add(text, function, place, BAGS, axis=0, trained=True)
