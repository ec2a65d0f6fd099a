"""How many units reach each row of a table, with a bound on every unit.

Counting rows is cheap to protect if no unit counts for much: a unit that
reaches m rows, over all tables together, counts 1/√m at each of them. Its
counts are then a vector of norm 1, however many rows it reaches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor, RowFactor
from tf_sparse_dp.gradients.placed import PlacedFactor
from tf_sparse_dp.gradients.ragged_rows import RaggedRowFactor

Lookups: TypeAlias = "RowFactor | RaggedRowFactor"

# Up to this many lookups, comparing all pairs is cheaper than sorting them.
_PAIRWISE_ROWS = 64

# Counts are multiples of this. Then float64 adds up 2²⁹ units without rounding,
# in any order, and one unit changes the counts by its own share and no more.
_GRAIN = 2.0**-24


def contribution_counts(
    tables: Sequence[Factor], valid: tf.Tensor | None = None
) -> list[tf.IndexedSlices]:
    r"""Clipped counts of the units that reach each row.

    $c_r = \sum_u [u \text{ reaches } r] / \sqrt{m_u}$ over the valid units $u$,
    with $m_u$ the number of rows, of all tables, that $u$ reaches. A unit
    reaches the rows that the table has and its terms look up with a value that
    is not zero, each of them once.

    Rows that a table's terms reach for every unit alike are public: no example
    has a say in which they are. They count as infinite, whatever the units
    are, and for no unit.

    **Guarantee.** Adding, removing or zeroing one unit changes the counts, all
    tables together, by at most 1 in L2 norm. Rounding does not add to that, for
    less than $2^{29}$ units.

    Args:
      tables: Terms of units whose sums are given as `tf.IndexedSlices`.
      valid: Bool, one per unit; units with False have no influence.

    Returns:
      One for each table: values float64 [N, 1], ids int64. Ids are those of
      the table's sum of clipped terms, in the same order: repeated, and
      possibly out of range where those are.

    Raises:
      TypeError: If a factor holds no rows.
    """
    own = [_own_lookups(table) for table in tables]
    firsts = [None if rows is None else _firsts(rows) for rows in own]
    sizes = [
        _per_unit(rows, first)
        for rows, first in zip(own, firsts, strict=True)
        if rows is not None
    ]
    share = _share(sizes, valid) if sizes else None
    counts = []
    for table, rows, first in zip(tables, own, firsts, strict=True):
        values, ids = [], []
        if isinstance(table, PlacedFactor):
            infinite = tf.constant(math.inf, tf.float64)
            values.append(tf.fill([table.ids.shape[0]], infinite))
            ids.append(tf.cast(table.ids, tf.int64))
        if rows is not None:
            values.append(_shares(rows, first, share))
            ids.append(tf.cast(_flat(rows.ids), tf.int64))
        counts.append(
            tf.IndexedSlices(
                tf.concat(values, 0)[:, tf.newaxis],
                tf.concat(ids, 0),
                tf.constant([table.shape[0], 1], tf.int64),
            )
        )
    return counts


def _own_lookups(table: Factor) -> Lookups | None:
    """What units look up by themselves; None if all is shared."""
    rows = table.rows if isinstance(table, PlacedFactor) else table
    if rows is None or isinstance(rows, (RowFactor, RaggedRowFactor)):
        return rows
    raise TypeError(
        f"Terms are given as {type(rows).__name__}; expected those of lookups "
        "in a table, whose sums are tf.IndexedSlices."
    )


def _firsts(rows: Lookups) -> tf.Tensor:
    """Which lookups reach a row, of a unit's equal ones only the first."""
    if isinstance(rows, RaggedRowFactor):
        return _firsts_of_ragged(rows)
    return _firsts_of_fixed(rows)


def _there(rows: Lookups) -> tf.Tensor:
    """Lookups of rows that the table has, with a value that is not zero."""
    inside = (rows.ids >= 0) & (rows.ids < rows.table_shape[0])
    # What is not finite is not zero: such a unit may count.
    return inside & tf.reduce_any(rows.values != 0, -1)


def _firsts_of_fixed(rows: RowFactor) -> tf.Tensor:
    """Bool [B, L]."""
    there = _there(rows)
    lookups = rows.rows_per_example
    if lookups == 1:
        return there
    # All that is not there counts as one row more.
    ids = tf.where(there, rows.ids, -tf.ones_like(rows.ids))
    if lookups <= _PAIRWISE_ROWS:
        same = ids[:, :, tf.newaxis] == ids[:, tf.newaxis, :]
        earlier = tf.range(lookups)[:, tf.newaxis] > tf.range(lookups)
        return there & ~tf.reduce_any(same & earlier, 2)
    order = tf.argsort(ids, axis=1, stable=True)
    ordered = tf.gather(ids, order, batch_dims=1)
    starts = tf.pad(
        ordered[:, 1:] != ordered[:, :-1],
        [[0, 0], [1, 0]],
        constant_values=True,
    )
    back = tf.argsort(order, axis=1)
    return there & tf.gather(starts, back, batch_dims=1)


def _firsts_of_ragged(rows: RaggedRowFactor) -> tf.Tensor:
    """Bool [N]."""
    there = _there(rows)
    size = rows.table_shape[0]
    ids = tf.where(there, tf.cast(rows.ids, tf.int64), size)
    pairs, places = tf.unique(rows.examples * (size + 1) + ids)
    numbers = tf.range(tf.size(places))
    firsts = tf.math.unsorted_segment_min(numbers, places, tf.size(pairs))
    return there & (tf.gather(firsts, places) == numbers)


def _per_unit(rows: Lookups, first: tf.Tensor) -> tf.Tensor:
    """How many rows each unit reaches, int64 [B]."""
    ones = tf.cast(first, tf.int64)
    if isinstance(rows, RaggedRowFactor):
        return tf.math.unsorted_segment_sum(
            ones, rows.examples, rows.batch_size
        )
    return tf.reduce_sum(ones, 1)


def _share(sizes: list[tf.Tensor], valid: tf.Tensor | None) -> tf.Tensor:
    """What each unit counts at each of its rows, float64 [B]."""
    size = tf.cast(tf.maximum(tf.add_n(sizes), 1), tf.float64)
    share = _GRAIN * tf.floor(1 / (_GRAIN * tf.sqrt(size)))
    return share if valid is None else tf.where(valid, share, 0.0)


def _shares(rows: Lookups, first: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """What each lookup counts, float64 [N]."""
    if isinstance(rows, RaggedRowFactor):
        return tf.where(first, tf.gather(share, rows.examples), 0.0)
    return _flat(tf.where(first, share[:, tf.newaxis], 0.0))


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tensor, [-1])
