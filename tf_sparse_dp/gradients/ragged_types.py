"""What tensors of ragged and sparse features may depend on.

The rows of such a feature's flat values belong to examples by a *partition*
that is known only when the step runs: how many rows there are, and where an
example's rows lie, depends on all examples. So the tensors that describe the
partition are not free, and each has a type of its own.

| type | meaning |
| --- | --- |
| `Scattered` | each example's rows, in their order, depend on it only |
| `RowIds` | for each row the number of its example |
| `Splits`, `SplitsEdge` | where each example's rows begin and end |
| `Indices` | a sparse tensor's indices: `RowIds` and a `Scattered` column |
| `Kept` | positions of the rows that a mask keeps |
| `Distinct` | row k is a free function of the k-th distinct id of the batch |
| `Places` | for each row the number of its id among the distinct ones |
| `Pooled` | row k is the sum of one row for each lookup of the k-th id |

None of them may be used as numbers, apart from `Scattered` and the
differences of splits; and none may meet another partition's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tf_sparse_dp.gradients.types import (
    BatchMultiple,
    BatchPlusOne,
    DataSize,
    Dim,
    Ragged,
)


class Partition:
    """Which example each row belongs to.

    Equal partitions give every row to the same example. Two of them become
    equal by `merge`, when they are proven to be, or when the step checks that
    they are.

    Args:
      examples: Makes the vector of every row's example number.
      parent: The partition that this one was derived from.
      derivation: How; equal derivations of equal partitions are equal.
      full: Whether every example is known to have a row.
    """

    def __init__(
        self,
        examples: Callable[[], tf.Tensor],
        *,
        parent: Partition | None = None,
        derivation: tuple[str, ...] = (),
        full: bool = False,
    ):
        self._make = examples
        self._examples: tf.Tensor | None = None
        self._same: Partition | None = None
        self.parent = parent
        self.derivation = derivation
        self.full = full

    def examples(self) -> tf.Tensor:
        """Every row's example number, int64."""
        if self._examples is None:
            self._examples = tf.cast(self._make(), tf.int64)
        return self._examples

    def merge(self, other: Partition) -> None:
        """Takes the two for equal from now on."""
        if self != other:
            other._representative()._same = self._representative()

    def _representative(self) -> Partition:
        partition = self
        while partition._same is not None:
            partition = partition._same
        return partition

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        return self._representative() is other._representative()

    def __hash__(self) -> int:  # Partitions that are merged become equal.
        return 0


@dataclasses.dataclass(frozen=True)
class OfRows(Ragged):
    """A tensor with one row for each row of a partition."""

    partition: Partition

    @property
    def rows(self) -> Dim:
        return DataSize(self.partition)


@dataclasses.dataclass(frozen=True)
class Scattered(OfRows):
    """An example's rows, in their order, depend on that example only."""


@dataclasses.dataclass(frozen=True)
class RowIds(OfRows):
    """The example number of every row, [N]."""


@dataclasses.dataclass(frozen=True)
class Indices(OfRows):
    """A sparse tensor's indices [N, 2]: example, and place within it."""


@dataclasses.dataclass(frozen=True)
class Splits(Ragged):
    """Where each example's rows begin, and the end of the last, [B + 1]."""

    partition: Partition

    @property
    def rows(self) -> Dim:
        return BatchPlusOne()


@dataclasses.dataclass(frozen=True)
class SplitsEdge(Ragged):
    """Where each example's rows begin, or (`end`) where they end, [B]."""

    partition: Partition
    end: bool

    @property
    def rows(self) -> Dim:
        return BatchMultiple(1)


@dataclasses.dataclass(frozen=True)
class Kept(Ragged):
    """Positions in `source` of the rows of `partition`, [M] or [M, 1]."""

    source: Partition
    partition: Partition

    @property
    def rows(self) -> Dim:
        return DataSize(self.partition)


@dataclasses.dataclass(frozen=True)
class Distinct(Ragged):
    """Row k is a free function of the k-th distinct id.

    Attributes:
      unique: Name of the operation that found the distinct ids.
      partition: The partition of the ids.
    """

    unique: str
    partition: Partition

    @property
    def rows(self) -> Dim:
        return DataSize(self.unique)


@dataclasses.dataclass(frozen=True)
class Places(Ragged):
    """The number of every row's id among the distinct ids, [N]."""

    unique: str
    partition: Partition

    @property
    def rows(self) -> Dim:
        return DataSize(self.partition)


@dataclasses.dataclass(frozen=True)
class Pooled(Ragged):
    """Row k adds up what each lookup of the k-th distinct id contributes.

    Attributes:
      unique: As that of `Distinct`.
      partition: The partition of the lookups.
      source: Name of the operation that added up.
    """

    unique: str
    partition: Partition
    source: str

    @property
    def rows(self) -> Dim:
        return DataSize(self.unique)
