"""Noise on rows that were chosen once, and no updates of all others."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.mechanisms.gaussian import deduplicated, with_noise
from tf_sparse_dp.mechanisms.interface import (
    Mechanism,
    PublicFacts,
    Sum,
    Variable,
)
from tf_sparse_dp.mechanisms.private_counts import checked_rows, noisy_counts
from tf_sparse_dp.mechanisms.search import last_not_above
from tf_sparse_dp.random_keys import fold_in


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrequencySelection(Mechanism):
    r"""Trains a fixed set of each table's rows, such as the most frequent.

    $\tilde s_r = s_r + \xi_r$ for $r \in R$, and $\tilde s_r = 0$ for all other
    rows; $\xi_r \sim N(0, \sigma^2 I)$, $R$ = the table's entry in `rows`,
    $\sigma$ = the stddev of `PublicFacts`. All of $R$ gets noise in every step,
    whatever the batch looked up. Rows outside of $R$ keep the weights that they
    start with. Dense variables get noise on every entry.

    **Guarantee.** Given $R$, this is a part of what `Gaussian` releases, hence
    a Gaussian mechanism with noise multiplier $\sigma / C$ (neighbours: add or
    remove one unit, or zero one out). What $R$ itself tells is not covered: it
    comes from public facts, or from `private`, whose cost is in `spent_before`
    and is added to the statement.

    Without noise nothing is private, and sums are released as they are, all of
    their rows.

    Args:
      rows: For each table the ids of the rows that are trained. A table is
        named by a part of its variable's name or path, from slash to slash:
        "items" for "model/items/embeddings". Every table has to have one entry,
        and every entry at least one table; `range(number_of_rows)` trains all
        rows.
      spent_epsilon: What the choice of rows cost; 0 if they are public.
      spent_delta: The same for delta.

    Raises:
      TypeError, ValueError: If an argument is not what is described above.
      ValueError: While tracing, if entries and tables do not match.

    Example:
      >>> mechanism = FrequencySelection(rows={"items": [7, 2, 7]})
      >>> mechanism.rows
      {'items': (2, 7)}

    Reference: Ghazi et al., "Sparsity-Preserving Differentially Private
    Training of Large Embedding Models", 2023 (DP-FEST).
    """

    rows: Mapping[str, Sequence[int]]
    spent_epsilon: float = 0.0
    spent_delta: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.rows, Mapping) or not self.rows:
            raise TypeError(
                f"rows is {self.rows!r}; expected a mapping from names of "
                "tables to ids of rows, such as {'items': [0, 5, 6]}."
            )
        rows = {str(k): _row_ids(k, v) for k, v in self.rows.items()}
        object.__setattr__(self, "rows", rows)
        for name, limit in (("spent_epsilon", math.inf), ("spent_delta", 1.0)):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value < limit:
                raise ValueError(
                    f"{name}={value!r} was given; expected a number from 0 to "
                    f"below {limit}."
                )
            object.__setattr__(self, name, float(value))

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, Sequence[float]],
        *,
        top: int | Mapping[str, int],
    ) -> FrequencySelection:
        """The rows with the largest counts, which have to be public.

        **Guarantee.** None for the counts: they must not come from the data
        that is trained on. Popularity that is published anyway, or counts of
        other people's data, qualify; else use `private`.

        Args:
          counts: For each table one number for each of its rows, from row 0
            on. Rows beyond the last number count as 0 and are not chosen.
          top: How many rows to take of each table. Of equal counts the first.

        Raises:
          TypeError, ValueError: If counts are no vector of finite numbers, or
            `top` is not between 1 and how many there are.

        Example:
          >>> FrequencySelection.from_counts(
          ...     {"items": [5, 0, 9, 7]}, top=2
          ... ).rows
          {'items': (2, 3)}
        """
        found = {}
        for name, numbers_of_table in _tables("counts", counts).items():
            vector = _counts(name, numbers_of_table)
            found[name] = _largest(vector, _top_of(top, name, len(vector)))
        return cls(rows=found)

    @classmethod
    def private(
        cls,
        lookups: Mapping[str, Sequence[Any]],
        *,
        table_rows: Mapping[str, int],
        top: int | Mapping[str, int],
        epsilon: float,
        delta: float,
    ) -> FrequencySelection:
        r"""The rows that most units look up, found privately.

        $R$ = the rows of the largest $c_r + N(0, \sigma^2)$, with $c_r = \sum_u
        [u \text{ looks up } r] / \sqrt{m_u}$ over all units $u$ of the data and
        $m_u$ the number of different rows, of all tables, that $u$ looks up.

        **Guarantee.** One unit changes all counts together by at most 1 in L2
        norm, so the noisy counts of all rows are (`epsilon`, `delta`)-
        differentially private by the exact condition for Gaussian noise, and
        so is the choice of the largest. Neighbours: add or remove one unit.
        Zeroing one out is the same here: a unit that contributes nothing looks
        up no row, and how many units there are is not used. It is spent in
        addition to the plan, and once for each call.

        Takes time and memory in proportion to units and rows, once.

        Args:
          lookups: For each table one entry per unit: the ids that this unit
            looks up, repeated or not. An array [units], an array [units, n], a
            sequence of sequences, or a `tf.RaggedTensor` with a row for each
            unit. A unit has the same place in all tables.
            It has to be the unit of the plan: all lookups of a user in one
            entry where users are protected. Ids that are not in the table,
            such as -1 for padding, do not count.
          table_rows: How many rows each table has.
          top: How many rows to take of each table.
          epsilon: Of the choice; above 0.
          delta: Of the choice; above 0 and below 1.

        Raises:
          TypeError, ValueError: If an argument is not what is described above.

        Example:
          >>> chosen = FrequencySelection.private(
          ...     {"items": [[0, 3], [3], [3, 3, 5]] * 1000},
          ...     table_rows={"items": 8},
          ...     top=1,
          ...     epsilon=1.0,
          ...     delta=1e-6,
          ... )
          >>> chosen.rows, chosen.spent_before
          ({'items': (3,)}, (1.0, 1e-06))
        """
        tops = {
            name: _top_of(top, name, checked_rows(name, size))
            for name, size in _tables("table_rows", table_rows).items()
        }
        counts = noisy_counts(
            lookups, table_rows=table_rows, epsilon=epsilon, delta=delta
        )
        return cls(
            rows={n: _largest(vector, tops[n]) for n, vector in counts.items()},
            spent_epsilon=epsilon,
            spent_delta=delta,
        )

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        if facts.stddev == 0:
            return [deduplicated(total) for total in sums]
        self.check(facts)
        released: list[Sum] = []
        for place, (total, variable) in enumerate(
            zip(sums, facts.variables, strict=True)
        ):
            own = fold_in(key, place)
            if variable.sparse:
                rows = self.rows[_entries(self.rows, variable)[0]]
                shape = tf.constant(variable.shape, tf.int64)
                values = _on_rows(total, rows, own, facts.stddev)
                ids = tf.constant(rows, total.indices.dtype)
                released.append(tf.IndexedSlices(values, ids, shape))
            else:
                released.append(with_noise(total, own, facts.stddev))
        return released

    def check(self, facts: PublicFacts) -> None:
        tables = [variable for variable in facts.variables if variable.sparse]
        names = [table.name for table in tables]
        for table in tables:
            entries = _entries(self.rows, table)
            if len(entries) != 1:
                raise ValueError(
                    f"The table '{table.name}' has {len(entries)} entries in "
                    f"rows, whose names are {list(self.rows)}; expected one. "
                    "Name it by a part of its name, from slash to slash; "
                    f"range({table.shape[0]}) trains all of its rows."
                )
            largest = self.rows[entries[0]][-1]
            if largest >= table.shape[0]:
                raise ValueError(
                    f"rows[{entries[0]!r}] has the id {largest}, but the table "
                    f"'{table.name}' has {table.shape[0]} rows. Choose ids "
                    "from 0 on that are below that."
                )
        for entry in self.rows:
            if not any(_matches(entry, name) for name in names):
                raise ValueError(
                    f"rows[{entry!r}] is for none of the tables {names}. Name "
                    "a table by a part of its name, from slash to slash. "
                    "Variables that are not among these have dense gradients: "
                    "leave them out, they get noise on all entries."
                )

    @property
    def fixed_sizes(self) -> bool:
        return False

    @property
    def spent_before(self) -> tuple[float, float]:
        return self.spent_epsilon, self.spent_delta

    @property
    def assumptions(self) -> tuple[str, ...]:
        if any(self.spent_before):
            return (
                "The rows that are trained were chosen once, by "
                "FrequencySelection.private on the training data, with all "
                "lookups of a protected unit in one entry; every further "
                "choice on these data adds to what is spent.",
            )
        return (
            "Which rows of tables are trained was decided without the training "
            "data (FrequencySelection was told so).",
        )

    @property
    def description(self) -> str:
        counts = ", ".join(
            f"{len(ids)} of '{name}'" for name, ids in self.rows.items()
        )
        chosen = "privately" if any(self.spent_before) else "from public facts"
        return (
            "Gaussian noise on fixed rows of every table, chosen "
            f"{chosen} ({counts}), and on every entry of other variables"
        )


def _row_ids(name: Any, ids: Sequence[int]) -> tuple[int, ...]:
    """Distinct ids in order."""
    array = np.asarray(ids)
    if array.ndim == 1 and array.size == 0:
        fault = "is empty"
    elif array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        fault = f"has shape {array.shape} and type {array.dtype}"
    elif array.min() < 0:
        fault = f"has the id {array.min()}"
    else:
        return tuple(np.unique(array).tolist())
    raise ValueError(
        f"rows[{name!r}] {fault}; expected a vector of at least one integer, "
        "none below 0: the ids of the rows to train."
    )


def _tables(argument: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{argument} is of type {type(given).__name__}; expected a mapping "
            "from names of tables, such as {'items': ...}."
        )
    return given


def _counts(name: str, given: Any) -> np.ndarray:
    """One finite number for each row, or an error."""
    expected = (
        "expected a vector with one finite number for each row, from row 0 on."
    )
    try:
        vector = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"counts of {name!r} are of type {type(given).__name__} and cannot "
            f"be made an array; {expected}"
        ) from error
    if vector.ndim != 1:
        raise ValueError(
            f"counts of {name!r} have shape {vector.shape}; {expected}"
        )
    wrong = np.flatnonzero(~np.isfinite(vector))
    if wrong.size:
        raise ValueError(
            f"counts of {name!r} are {vector[wrong[0]]} at row {wrong[0]}, and "
            f"not finite at {wrong.size} of {vector.size} rows; {expected} "
            "Pass 0 for rows without a count."
        )
    return vector


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _top_of(top: int | Mapping[str, int], name: str, rows: int) -> int:
    if isinstance(top, Mapping) and name not in top:
        raise ValueError(
            f"top has entries for {list(top)} and none for the table {name!r}; "
            f"expected a whole number from 1 to its {rows} rows. Name all "
            "tables, or pass one number for all."
        )
    wanted = top[name] if isinstance(top, Mapping) else top
    if (
        not isinstance(wanted, numbers.Integral)
        or isinstance(wanted, bool)
        or not 1 <= wanted <= rows
    ):
        raise ValueError(
            f"top={wanted!r} was given for the table {name!r}; expected a "
            f"whole number from 1 to its {rows} rows."
        )
    return int(wanted)


def _largest(numbers_of_rows: np.ndarray, top: int) -> list[int]:
    """Ids of the largest; of equal ones those of the first rows."""
    ids: list[int] = np.argsort(-numbers_of_rows, kind="stable")[:top].tolist()
    return ids


def _matches(entry: str, name: str) -> bool:
    """Whether the entry is a part of the name, from slash to slash."""
    return f"/{entry}/" in f"/{name.partition(':')[0]}/"


def _entries(rows: Mapping[str, Any], table: Variable) -> list[str]:
    return [entry for entry in rows if _matches(entry, table.name)]


def _on_rows(
    total: tf.IndexedSlices, rows: Sequence[int], key: tf.Tensor, stddev: float
) -> tf.Tensor:
    """The values of a sum at some rows, with noise on all of these."""
    chosen = tf.constant(rows, total.indices.dtype)
    places = last_not_above(chosen, total.indices)
    # Ids that were not chosen, and those that the table does not have, add 0.
    met = tf.gather(chosen, places) == total.indices
    met = tf.reshape(met, [-1] + [1] * (total.values.shape.rank - 1))
    values = tf.where(met, total.values, tf.zeros_like(total.values))
    shape = tf.constant([len(rows), *total.values.shape[1:]], tf.int64)
    return with_noise(tf.IndexedSlices(values, places, shape), key, stddev)
