"""Where examples come from: arrays, nested arrays, or reading by index."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.padding import (
    VALIDITY_DTYPE,
    as_validity,
    is_validity_column,
)
from tf_sparse_dp.sampling.structure import WEIGHT, filled, flattened
from tf_sparse_dp.sampling.workers import check_same, current_share


@dataclasses.dataclass(frozen=True)
class RandomAccess:
    """Examples that are read by index when they are drawn, and not before.

    For data larger than memory: a memory-mapped file, a database, a directory
    of images. Only the examples of the current batch are ever held.

    **Guarantee**: that of the sampling that draws the indices, provided that
    the source returns for index i a function of example i alone.

    Args:
      source: A callable, or an object with `[]`, that takes an index from 0 to
        `num_examples - 1` and returns that example as `(x,)`, `(x, y)` or
        `(x, y, sample_weight)`. Every example has the same structure, types
        and shapes; example 0 is read first to learn them (a worker's own
        first one, where several train together and have equal sources).
      num_examples: How many there are; `len(source)` by default.
      batched: Whether the source takes a vector of int64 indices instead, and
        returns arrays with one row for each of them. Much faster where reading
        many rows costs little more than reading one. The indices are sorted.

    Raises:
      TypeError: `source` can be neither called nor indexed, or has no length
        and `num_examples` is not given.

    Example:
      >>> squares = RandomAccess(lambda i: (i, i * i), num_examples=1000)
      >>> squares.num_examples
      1000
    """

    source: Any
    _: dataclasses.KW_ONLY
    num_examples: int | None = None
    batched: bool = False

    def __post_init__(self) -> None:
        if not (callable(self.source) or hasattr(self.source, "__getitem__")):
            raise TypeError(
                f"source is a {type(self.source).__name__}, expected a "
                "callable or an object with []. Pass a function from an index "
                "to an example."
            )
        count = self.num_examples
        if count is None:
            if not hasattr(self.source, "__len__"):
                raise TypeError(
                    "num_examples is not given and the source has no length. "
                    "Pass RandomAccess(source, num_examples=...)."
                )
            count = len(self.source)
        object.__setattr__(
            self, "num_examples", whole_number("num_examples", count)
        )

    def read(self, index: Any) -> Any:
        """What the source returns for an index, or for a vector of them."""
        if hasattr(self.source, "__getitem__"):
            return self.source[index]
        return self.source(index)


class Column(NamedTuple):
    """Name, type and shape of one array, without its leading axis."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    def spec(self, rows: int | None) -> tf.TensorSpec:
        """The tensor that holds `rows` rows of the column."""
        return tf.TensorSpec((rows, *self.shape), tf.as_dtype(self.dtype))


_Rows = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """Data of any form, as columns that are read by index.

    Args:
      columns: The arrays of x and y, then the validity column.
      read: From sorted int64 indices to their rows, by the column's name.
        The validity column is absent where the user gave no weights.
      x: The structure of x, with a column's name in place of each array.
      y: The same for y; None without labels.
      weighted: Whether the user gave weights.
    """

    columns: tuple[Column, ...]
    read: Callable[[np.ndarray], _Rows]
    x: Any
    y: Any
    weighted: bool

    def rows(self, indices: np.ndarray) -> list[np.ndarray]:
        """The rows of each column; examples without a weight weigh one."""
        *_, validity = self.columns
        rows = {validity.name: np.ones(indices.size, validity.dtype)}
        rows.update(self.read(indices))
        return [rows[column.name] for column in self.columns]

    def dataset(
        self,
        batches: Callable[[], Iterable[tuple[np.ndarray, ...]]],
        *,
        batch_rows: int | None,
        steps: int,
        weights: bool,
    ) -> tf.data.Dataset:
        """Batches as Keras takes them: `(x, y, weight)`, `(x, y)` or `(x,)`.

        The arrays stay where they are: the pipeline calls back for each batch,
        so that none of them becomes a constant in a graph.

        In the scope of several workers it has no end.

        Args:
          batches: Starts a pass: `steps` batches, one array for each column.
          batch_rows: The number of rows of every batch; None if it varies.
          steps: The number of batches of a pass.
          weights: Whether to give out the validity column.

        Raises:
          ValueError: In the scope of a distribution strategy that cannot deal
            out so many rows evenly.
        """
        _check_even(batch_rows)
        names = [column.name for column in self.columns]

        def arranged(*arrays: tf.Tensor) -> tuple[Any, ...]:
            named = dict(zip(names, arrays, strict=True))
            x = filled(self.x, named)
            y = None if self.y is None else filled(self.y, named)
            if weights:
                return x, y, named[WEIGHT]
            return (x,) if y is None else (x, y)

        dataset = (
            tf.data.Dataset.from_generator(
                batches,
                output_signature=tuple(
                    column.spec(batch_rows) for column in self.columns
                ),
            )
            .map(arranged)
            .apply(tf.data.experimental.assert_cardinality(steps))
        )
        if current_share().workers > 1:
            # Else each worker is asked before each step whether it has data.
            dataset = dataset.repeat()
            # Rows are where this puts them; else batches would be padding.
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = (
                tf.data.experimental.AutoShardPolicy.DATA
            )
            dataset = dataset.with_options(options)
        return dataset.prefetch(tf.data.AUTOTUNE)


def open_examples(
    data: Any,
    num_examples: int,
    *,
    told_by: str = "num_examples",
    beside: Iterable[np.ndarray] = (),
) -> Examples:
    """Checks `data` against `num_examples` and makes it readable by index.

    In the scope of several workers, they compare what they were given.

    Args:
      data: `(x,)`, `(x, y)` or `(x, y, sample_weight)` of arrays, or of dicts
        and tuples of arrays, with one row for each example; or `RandomAccess`.
      num_examples: How many examples the sampling was told of.
      told_by: The argument that said so, for errors.
      beside: What else has to be the same in all workers.

    Raises:
      TypeError: `data`, or an array in it, is of a form that cannot be used.
      ValueError: Lengths differ, weights are invalid, or a scalar column has
        the type that is reserved for the validity column.
    """
    share = current_share()
    if isinstance(data, RandomAccess):
        if data.num_examples != num_examples:
            raise ValueError(
                f"The source has {data.num_examples} examples, expected "
                f"{num_examples} as {told_by} says: make them equal."
            )
        own = min(share.worker, num_examples - 1)
        x, y, first = _fetched(data, np.array([own]))
        read = _reader(data, first)
        compared = list(beside)
    else:
        x, y, leaves = flattened(data)
        first = _arrays(leaves, num_examples, f", as {told_by} says")
        read = _gatherer(first)
        compared = [*first.values(), *beside]
    if share.workers > 1:
        check_same(compared)
    return Examples(
        columns=_columns(first), read=read, x=x, y=y, weighted=WEIGHT in first
    )


def _arrays(leaves: Mapping[str, Any], num_rows: int, why: str = "") -> _Rows:
    """The leaves as arrays of `num_rows` rows, weights as validity."""
    arrays = {name: _array(name, leaf) for name, leaf in leaves.items()}
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != num_rows:
            raise ValueError(
                f"{name} has shape {array.shape}, expected {num_rows} rows, "
                f"one for each example{why}. Several inputs go in a tuple or a "
                "dict; a list is read as one array."
            )
    if WEIGHT in arrays:
        arrays[WEIGHT] = as_validity(arrays[WEIGHT], WEIGHT)
    return arrays


def _array(name: str, leaf: Any) -> np.ndarray:
    """The leaf as an array that a tensor can hold."""
    try:
        if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
            raise TypeError
        array = np.asarray(leaf)
        if array.dtype.kind == "O":
            raise TypeError
        tf.as_dtype(array.dtype)
    except (TypeError, ValueError):
        dtype = getattr(leaf, "dtype", None)
        kind = type(leaf).__name__ + (f" of {dtype}" if dtype else "")
        raise TypeError(
            f"{name} is a {kind} that does not fit a dense tensor, expected an "
            "array of numbers, truth values or strings. Pad ragged or sparse "
            "rows to one length; use np.asarray(values, dtype=str) for strings."
        ) from None
    return array


def _columns(arrays: _Rows) -> tuple[Column, ...]:
    columns = [
        Column(name, array.dtype, array.shape[1:])
        for name, array in arrays.items()
        if name != WEIGHT
    ]
    for column in columns:
        if is_validity_column(column.spec(None)):
            raise ValueError(
                f"{column.name} holds scalars of type float16, which marks the "
                "validity column of a batch; expected another type. Cast it "
                'with .astype("float32").'
            )
    validity = Column(WEIGHT, np.dtype(VALIDITY_DTYPE.as_numpy_dtype), ())
    return (*columns, validity)


def _gatherer(arrays: _Rows) -> Callable[[np.ndarray], _Rows]:
    return lambda indices: {k: array[indices] for k, array in arrays.items()}


def _fetched(
    access: RandomAccess, indices: np.ndarray
) -> tuple[Any, Any, _Rows]:
    """What a source returns for indices: structures, and rows by name."""
    if access.batched:
        x, y, leaves = flattened(access.read(indices))
        return x, y, _arrays(leaves, indices.size)
    examples = [flattened(access.read(int(index))) for index in indices]
    x, y, first = examples[0]
    for _, _, leaves in examples:
        _require_same_names(leaves, first)
    lists = {name: [leaves[name] for *_, leaves in examples] for name in first}
    return x, y, _arrays(lists, indices.size)


def _reader(
    access: RandomAccess, first: _Rows
) -> Callable[[np.ndarray], _Rows]:
    """Reads rows that are sure to be like the first one in type and shape."""

    def read(indices: np.ndarray) -> _Rows:
        if not indices.size:
            return {name: array[:0] for name, array in first.items()}
        _, _, rows = _fetched(access, indices)
        _require_same_names(rows, first)
        return {name: _like(first[name], rows[name], name) for name in first}

    return read


def _check_even(batch_rows: int | None) -> None:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if batch_rows is not None and batch_rows % replicas:
        more = -(-batch_rows // replicas) * replicas
        raise ValueError(
            f"Batches have {batch_rows} rows, padding included, which "
            f"{replicas} replicas cannot share evenly; expected a multiple of "
            f"that. Pass max_batch_size={more} to the sampling, say."
        )


def _require_same_names(
    given: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    if given.keys() != expected.keys():
        raise ValueError(
            f"The source returned {sorted(given)} for one example and "
            f"{sorted(expected)} for another, expected the same of all. Fill "
            "in what is missing."
        )


def _like(first: np.ndarray, rows: np.ndarray, name: str) -> np.ndarray:
    """`rows` in the type of `first`, if nothing is lost by that."""
    same_type = tf.as_dtype(rows.dtype) == tf.as_dtype(first.dtype)
    fits = same_type or np.can_cast(rows.dtype, first.dtype, "safe")
    if rows.shape[1:] != first.shape[1:] or not fits:
        raise ValueError(
            f"The source returned {name} with shape {rows.shape[1:]} and dtype "
            f"{rows.dtype}, expected {first.shape[1:]} and {first.dtype} as in "
            "example 0. Return the same for all examples."
        )
    # Strings of different lengths differ in NumPy's type, not in TensorFlow's.
    return rows if same_type else rows.astype(first.dtype)
