"""Vectors in any form that `private_mean` takes."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import tensorflow as tf

from tf_sparse_dp.gradients.factors import DenseFactor, Factor, RowFactor
from tf_sparse_dp.gradients.placed import PlacedFactor
from tf_sparse_dp.gradients.ragged_rows import RaggedRowFactor
from tf_sparse_dp.mechanisms.interface import Sum


class Vectors(abc.ABC):
    """A number of vectors of one shape."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many there are."""

    @property
    @abc.abstractmethod
    def rows(self) -> int:
        """What sparsity counts: entries of a vector, or rows of a table."""

    @property
    def lookups(self) -> int | None:
        """Most rows that are not zero, if the form says so."""
        return None

    @property
    def valid(self) -> tf.Tensor | None:
        """Which vectors are in order, bool [count]; None if all are."""
        return None

    @abc.abstractmethod
    def factor(self, as_table: bool) -> Factor:
        """The vectors as terms, of a table if that is asked for."""

    @abc.abstractmethod
    def mean(self, private: Sum) -> Sum:
        """The private sum in the vectors' own form, divided by their count."""


@dataclasses.dataclass(frozen=True)
class DenseVectors(Vectors):
    """Vectors that are held as they are: [n, d]."""

    values: tf.Tensor

    def __post_init__(self) -> None:
        _check_sizes("vectors", self.values.shape, "[n, d]")

    @property
    def count(self) -> int:
        return int(self.values.shape[0])

    @property
    def rows(self) -> int:
        return int(self.values.shape[1])

    def factor(self, as_table: bool) -> Factor:
        if not as_table:
            return DenseFactor(self.values)
        block = DenseFactor(self.values[:, :, tf.newaxis])
        places = tf.range(self.rows, dtype=tf.int64)
        return PlacedFactor(block, places, (self.rows, 1), distinct=True)

    def mean(self, private: Sum) -> Sum:
        if isinstance(private, tf.IndexedSlices):
            private = tf.convert_to_tensor(private)
        return tf.reshape(private, [self.rows]) / self.count


@dataclasses.dataclass(frozen=True)
class SparseVectors(Vectors):
    """Vectors of which each has entries of its own, any number of them."""

    tensor: tf.SparseTensor

    def __post_init__(self) -> None:
        _check_sizes("dense_shape of vectors", self._shape, "[n, d]")

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.dense_shape.numpy().tolist())

    @property
    def count(self) -> int:
        return self._shape[0]

    @property
    def rows(self) -> int:
        return self._shape[1]

    @property
    def _owned(self) -> tf.Tensor:
        """Which entries belong to a vector at all."""
        owners = self.tensor.indices[:, 0]
        return (owners >= 0) & (owners < self.count)

    @property
    def valid(self) -> tf.Tensor:
        owners, places = tf.unstack(self.tensor.indices, axis=1)
        there = (places >= 0) & (places < self.rows)
        wrong = self._owned & ~there
        owners = tf.where(wrong, owners, -1)
        found = tf.math.unsorted_segment_sum(
            tf.ones_like(owners), owners, self.count
        )
        return tf.equal(found, 0)

    def factor(self, as_table: bool) -> Factor:
        indices = tf.boolean_mask(self.tensor.indices, self._owned)
        values = tf.boolean_mask(self.tensor.values, self._owned)
        return RaggedRowFactor(
            values=values[:, tf.newaxis],
            ids=_within(indices[:, 1], self.rows),
            examples=indices[:, 0],
            batch_size=tf.constant(self.count, tf.int64),
            table_shape=(self.rows, 1),
        )

    def mean(self, private: Sum) -> Sum:
        if not isinstance(private, tf.IndexedSlices):
            return tf.reshape(private, [self.rows]) / self.count
        ids, values = _published(private)
        return tf.IndexedSlices(
            tf.reshape(values, [-1]) / self.count,
            ids,
            tf.constant([self.rows], tf.int64),
        )


@dataclasses.dataclass(frozen=True)
class TableRows(Vectors):
    """Tables of which each has a few rows that are not zero.

    Attributes:
      values: [n, s, k].
      ids: [n, s].
      shape: [rows, k].
    """

    values: tf.Tensor
    ids: tf.Tensor
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_sizes("values of vectors", self.values.shape, "[n, s, k]")
        _check_sizes("dense_shape of vectors", self.shape, "[rows, k]")
        if (
            self.ids.shape != self.values.shape[:2]
            or self.values.shape[2] != self.shape[1]
        ):
            raise ValueError(
                f"vectors has indices of shape {tuple(self.ids.shape)}, values "
                f"of shape {tuple(self.values.shape)} and dense_shape "
                f"{self.shape}; expected [n, s], [n, s, k] and [rows, k]. Give "
                "every vector s rows, filled up with rows of zeros."
            )

    @property
    def count(self) -> int:
        return int(self.values.shape[0])

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def lookups(self) -> int:
        return min(int(self.ids.shape[1]), self.rows)

    @property
    def valid(self) -> tf.Tensor:
        there = (self.ids >= 0) & (self.ids < self.rows)
        return tf.reduce_all(there, axis=1)

    def factor(self, as_table: bool) -> Factor:
        return RowFactor(self.values, _within(self.ids, self.rows), self.shape)

    def mean(self, private: Sum) -> Sum:
        if not isinstance(private, tf.IndexedSlices):
            return private / self.count
        ids, values = _published(private)
        return tf.IndexedSlices(values / self.count, ids, private.dense_shape)


def opened(vectors: Any) -> Vectors:
    """The vectors, in a form that is known.

    Raises:
      TypeError: They are not numbers, or in no such form.
      ValueError: Shapes are not those of vectors, or there is nothing.
    """
    if isinstance(vectors, tf.SparseTensor):
        return SparseVectors(
            tf.SparseTensor(
                vectors.indices,
                _floats("values of vectors", vectors.values),
                vectors.dense_shape,
            )
        )
    if not isinstance(vectors, tf.IndexedSlices):
        return DenseVectors(_floats("vectors", vectors))
    if vectors.dense_shape is None:
        raise ValueError(
            "vectors is tf.IndexedSlices without a dense_shape; expected one "
            "with [rows, k], the shape of the table. Pass it as the third "
            "argument of tf.IndexedSlices."
        )
    ids = tf.convert_to_tensor(vectors.indices)
    if not ids.dtype.is_integer:
        raise TypeError(
            f"indices of vectors are of type {ids.dtype.name}; expected whole "
            "numbers: which rows the values belong to."
        )
    shape = tf.convert_to_tensor(vectors.dense_shape).numpy().tolist()
    values = _floats("values of vectors", vectors.values)
    return TableRows(values, tf.cast(ids, tf.int64), tuple(shape))


def _floats(name: str, values: Any) -> tf.Tensor:
    try:
        tensor = tf.convert_to_tensor(values)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} is a {type(values).__name__} that cannot be made a "
            "tensor; expected an array or tensor of numbers [n, d], a "
            "tf.SparseTensor [n, d], or tf.IndexedSlices. Give all vectors the "
            "same length."
        ) from error
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise TypeError(
            f"{name} is of type {tensor.dtype.name}; expected real numbers."
        )
    return tf.cast(tensor, tf.float32)


def _within(ids: tf.Tensor, rows: int) -> tf.Tensor:
    """Ids that exist; others belong to vectors that count as zero."""
    return tf.where((ids >= 0) & (ids < rows), ids, tf.zeros_like(ids))


def _published(private: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids and rows that are not zero, in order.

    How many rows of zeros there are, and which rows come first, would tell
    which rows the data have.
    """
    values = private.values
    axes = list(range(1, values.shape.rank))
    kept = tf.reduce_any(tf.not_equal(values, 0), axes)
    ids = tf.boolean_mask(private.indices, kept)
    order = tf.argsort(ids)
    values = tf.boolean_mask(values, kept)
    return tf.gather(ids, order), tf.gather(values, order)


def _check_sizes(name: str, shape: Any, expected: str) -> None:
    sizes = tuple(shape)
    if len(sizes) != expected.count(",") + 1:
        raise ValueError(
            f"{name} has shape {sizes}; expected {expected}. Reshape it: one "
            "vector is what one person contributes."
        )
    if 0 in sizes:
        raise ValueError(
            f"{name} has shape {sizes}; expected {expected} without a size of "
            "0. There is no mean of nothing, and nothing to protect."
        )
