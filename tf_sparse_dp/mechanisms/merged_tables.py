"""Tables of one width, laid end to end and treated as one.

A mechanism that treats rows alike need not do for every table what it can do
for all of them at once: a model with dozens of tables would be traced, and
run, dozens of times as long.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.mechanisms.interface import PublicFacts, Sum, Variable
from tf_sparse_dp.mechanisms.noisy_tables import FEWEST_ROWS
from tf_sparse_dp.mechanisms.search import last_not_above
from tf_sparse_dp.mechanisms.tail_sampling import hit_capacity


class MergedTables:
    """Merges tables of one width and type, and takes them apart again.

    Tables are merged that have enough rows for anything but dense noise. Half
    of the failure probability is left for taking them apart.

    Args:
      sums: One per variable.
      facts: What is public.

    Attributes:
      facts: What is public about the variables after merging.
    """

    def __init__(self, sums: Sequence[Sum], facts: PublicFacts):
        groups: dict[object, list[int]] = {}
        for place, variable in enumerate(facts.variables):
            kind: object = place
            if variable.sparse and variable.shape[0] >= FEWEST_ROWS:
                kind = (math.prod(variable.shape[1:]), sums[place].dtype.name)
            groups.setdefault(kind, []).append(place)
        self._groups = list(groups.values())
        self._sums = sums
        self._variables = facts.variables
        self._failure_probability = facts.failure_probability / 2
        self.facts = dataclasses.replace(
            facts,
            variables=tuple(
                _merged_variable([facts.variables[i] for i in group])
                for group in self._groups
            ),
            failure_probability=self._failure_probability,
        )

    def together(self, sums: Sequence[Sum]) -> list[Sum]:
        """One sum per merged variable, out of one per variable."""
        return [
            sums[group[0]]
            if len(group) == 1
            else _merged(
                [sums[i] for i in group], [self._variables[i] for i in group]
            )
            for group in self._groups
        ]

    def apart(self, released: Sequence[Sum]) -> list[Sum]:
        """One sum per variable, out of one per merged variable.

        Args:
          released: Of merged tables it is dense, or row ids are ascending,
            after rows of zeros.
        """
        found: dict[int, Sum] = {}
        for group, total in zip(self._groups, released, strict=True):
            parts = [total]
            if len(group) > 1:
                parts = _apart(
                    total,
                    [self._sums[i] for i in group],
                    [self._variables[i] for i in group],
                    self._failure_probability / len(self._sums),
                )
            found.update(zip(group, parts, strict=True))
        return [found[place] for place in range(len(self._sums))]


def _merged_variable(tables: Sequence[Variable]) -> Variable:
    first, *others = tables
    if not others:
        return first
    lookups = [table.lookups for table in tables]
    return Variable(
        shape=(_starts(tables)[-1], math.prod(first.shape[1:])),
        sparse=True,
        lookups=None if None in lookups else sum(lookups),  # type: ignore[arg-type]
        name=", ".join(table.name for table in tables),
    )


def _starts(tables: Sequence[Variable]) -> list[int]:
    """Where in the merged table each one starts, and where the last ends."""
    return list(itertools.accumulate((t.shape[0] for t in tables), initial=0))


def _merged(
    sums: Sequence[tf.IndexedSlices], tables: Sequence[Variable]
) -> tf.IndexedSlices:
    *starts, end = _starts(tables)
    ids = []
    for total, table, start in zip(sums, tables, starts, strict=True):
        own = tf.cast(total.indices, tf.int64)
        # An id of no row must not become one of the next table's.
        there = (own >= 0) & (own < table.shape[0])
        ids.append(tf.where(there, own + start, -1))
    values = tf.concat([_flat(total.values) for total in sums], 0)
    shape = [end, values.shape[1]]
    return tf.IndexedSlices(
        values, tf.concat(ids, 0), tf.constant(shape, tf.int64)
    )


def _flat(values: tf.Tensor) -> tf.Tensor:
    """Rows without further axes: [n, width]."""
    width = math.prod(values.shape[1:])
    return tf.reshape(values, [tf.shape(values)[0], width])


def _apart(
    total: Sum,
    sums: Sequence[tf.IndexedSlices],
    tables: Sequence[Variable],
    failure_probability: float,
) -> list[Sum]:
    """The released rows of each table."""
    if not isinstance(total, tf.IndexedSlices):
        rows = [table.shape[0] for table in tables]
        return [
            tf.reshape(part, table.shape)
            for part, table in zip(tf.split(total, rows), tables, strict=True)
        ]
    starts = _starts(tables)
    full = tf.reduce_any(total.values != 0, 1)
    # The first place is for what is not there: zeros.
    ids = tf.pad(
        tf.where(full, total.indices, -1), [[1, 0]], constant_values=-1
    )
    values = tf.pad(total.values, [[1, 0], [0, 0]])
    bounds = last_not_above(ids, tf.constant(starts, ids.dtype) - 1) + 1
    sizes = _sizes(total, sums, tables, failure_probability)
    parts: list[Sum] = []
    for place, (begin, end) in enumerate(
        itertools.pairwise(tf.unstack(bounds))
    ):
        size, shape = sizes[place], tables[place].shape
        places = begin + tf.range(end - begin if size is None else size)
        places = tf.where(places < end, places, 0)
        own = tf.maximum(tf.gather(ids, places) - starts[place], 0)
        parts.append(
            tf.IndexedSlices(
                tf.reshape(tf.gather(values, places), [-1, *shape[1:]]),
                tf.cast(own, sums[place].indices.dtype),
                tf.constant(shape, tf.int64),
            )
        )
    return parts


def _sizes(
    total: tf.IndexedSlices,
    sums: Sequence[tf.IndexedSlices],
    tables: Sequence[Variable],
    failure_probability: float,
) -> list[int | None]:
    """How many rows a table gets; None, as many as it has, if that may vary.

    Of the places in the merged table, as many as there are ids are for rows
    that the batch touched. The others are for hits, of which there are fewer
    on average; so a table's hits are, on average, no more than its share of
    those places.
    """
    touched = [given.indices.shape[0] for given in sums]
    places = total.indices.shape[0]
    if places is None or None in touched or failure_probability == 0:
        return [None] * len(sums)
    hits = max(places - sum(touched), 0) / _starts(tables)[-1]
    return [
        min(
            table.shape[0],
            count
            + hit_capacity(table.shape[0], min(hits, 1.0), failure_probability),
        )
        for table, count in zip(tables, touched, strict=True)
    ]
