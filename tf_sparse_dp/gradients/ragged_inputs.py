"""Finds the ragged and sparse features of a batch, and what they consist of.

A feature arrives as several tensors: arguments of the traced step, or what a
dataset's variant is decoded into. Which they are is read off the step's
signature, or the decoding operation; nothing else is taken for a partition.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients.ragged_types import (
    Indices,
    Partition,
    Scattered,
    Splits,
)
from tf_sparse_dp.gradients.sizes import Sizes, key
from tf_sparse_dp.gradients.types import DataSize, Mixed, Type

_LONGEST = Mixed(
    "the length of the longest example of the batch is used",
    "dense_shape",
    "Give the length that the model shall see as a constant: "
    "to_tensor(shape=[None, length]), tf.sparse.to_dense of a tensor whose "
    "dense_shape[1] is a constant.",
)
_WIDEST = Mixed(
    "the values of a ragged feature have a size that the batch decides, so one "
    "example can change what the layers see of the others",
    "values",
    "Pad or cut each value to a fixed public size.",
)


class RaggedInput(abc.ABC):
    """One feature whose examples have as many values as they like.

    Attributes:
      partition: Which value belongs to which example.
      values: The values of all examples one after another.
    """

    partition: Partition
    values: tf.Tensor

    @abc.abstractmethod
    def tensors(self) -> list[tf.Tensor]:
        """All tensors that the feature consists of."""

    @abc.abstractmethod
    def types(self, sizes: Sizes) -> dict[tuple[str, int], Type]:
        """Their types; known entries of small tensors go into `sizes`."""

    @abc.abstractmethod
    def batch_size(self) -> tf.Tensor:
        """The number of examples, int32."""

    @abc.abstractmethod
    def static_batch_size(self) -> int | None:
        """The number of examples if it is known while tracing."""

    @abc.abstractmethod
    def well_formed(self, batch_size: tf.Tensor) -> tf.Tensor:
        """Whether the feature is what its type promises; a bool tensor.

        Holds for whatever TensorFlow itself makes, so it tells nothing about
        examples.
        """


@dataclasses.dataclass(frozen=True, eq=False)
class RaggedRows(RaggedInput):
    """A `tf.RaggedTensor` with one ragged dimension."""

    values: tf.Tensor
    splits: tf.Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", Partition(self._examples))

    def _examples(self) -> tf.Tensor:
        ends = self.splits[1:]
        rows = tf.range(tf.shape(self.values, ends.dtype)[0])
        return tf.searchsorted(ends, rows, side="right")

    def tensors(self) -> list[tf.Tensor]:
        return [self.values, self.splits]

    def types(self, sizes: Sizes) -> dict[tuple[str, int], Type]:
        values: Type = Scattered(self.partition)
        shape = self.values.shape
        if shape.rank is None or None in shape.as_list()[1:]:
            values = dataclasses.replace(_WIDEST, operation=self.values.op.name)
        return {
            key(self.values): values,
            key(self.splits): Splits(self.partition),
        }

    def batch_size(self) -> tf.Tensor:
        return tf.shape(self.splits)[0] - 1

    def static_batch_size(self) -> int | None:
        size = self.splits.shape[0] if self.splits.shape.rank else None
        return None if size is None else size - 1

    def well_formed(self, batch_size: tf.Tensor) -> tf.Tensor:
        splits = tf.cast(self.splits, tf.int64)
        rows = tf.shape(self.values, tf.int64)[0]
        edges = tf.reduce_all(splits[:1] == 0) & tf.reduce_all(
            splits[-1:] == rows
        )
        ordered = tf.reduce_all(splits[1:] >= splits[:-1])
        return edges & ordered & (self.batch_size() == batch_size)


@dataclasses.dataclass(frozen=True, eq=False)
class SparseRows(RaggedInput):
    """A `tf.SparseTensor` of rank 2 whose first index is the example."""

    indices: tf.Tensor
    values: tf.Tensor
    dense_shape: tf.Tensor
    examples: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", Partition(self._examples))

    def _examples(self) -> tf.Tensor:
        return self.indices[:, 0]

    def tensors(self) -> list[tf.Tensor]:
        return [self.indices, self.values, self.dense_shape]

    def types(self, sizes: Sizes) -> dict[tuple[str, int], Type]:
        columns = self.columns
        sizes.set_value(
            self.dense_shape,
            [
                sizes.rows(1),
                DataSize(self.dense_shape.name) if columns is None else columns,
            ],
        )
        return {
            key(self.indices): Indices(self.partition),
            key(self.values): Scattered(self.partition),
            key(self.dense_shape): dataclasses.replace(
                _LONGEST, operation=self.dense_shape.op.name
            ),
        }

    def batch_size(self) -> tf.Tensor:
        return tf.cast(self.dense_shape[0], tf.int32)

    def static_batch_size(self) -> int | None:
        return self.examples

    def well_formed(self, batch_size: tf.Tensor) -> tf.Tensor:
        examples = self.partition.examples()
        size = tf.cast(batch_size, tf.int64)
        inside = tf.reduce_all((examples >= 0) & (examples < size))
        ordered = tf.reduce_all(examples[1:] >= examples[:-1])
        good = inside & ordered & (self.batch_size() == batch_size)
        if self.columns is not None:
            good &= tf.cast(self.dense_shape[1], tf.int32) == self.columns
        return good


def of_arguments(
    signature: Any, placeholders: Sequence[tf.Tensor]
) -> list[RaggedInput]:
    """The features among the arguments of the traced step.

    Args:
      signature: The arguments' specifications.
      placeholders: The tensors that stand for the arguments, in order.

    Raises:
      NotSeparableError: If an argument is not understood.
    """
    units = list(_units(signature))
    if not any(isinstance(spec, _COMPOSITES) for spec, _ in units):
        return []
    remaining = list(placeholders)
    found: list[RaggedInput] = []
    for spec, parts in units:
        tensors, remaining = remaining[: len(parts)], remaining[len(parts) :]
        if not _fit(parts, tensors):
            raise NotSeparableError(
                "The step has ragged or sparse arguments in a structure that "
                "is not understood. Expected tuples, lists and dictionaries "
                "of tensors: pass the features in one of those."
            )
        if isinstance(spec, tf.RaggedTensorSpec):
            found.append(_ragged(spec, tensors))
        elif isinstance(spec, tf.SparseTensorSpec):
            found.append(_sparse(spec, tensors))
    if remaining:
        raise NotSeparableError(
            "The step has ragged or sparse arguments, and arguments that its "
            "signature does not name. Pass the batch as tuples, lists and "
            "dictionaries of tensors."
        )
    return found


_COMPOSITES = (tf.RaggedTensorSpec, tf.SparseTensorSpec)


def _units(signature: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Specifications in the order in which arguments became placeholders.

    Dictionaries keep their order, unlike in `tf.nest`.
    """
    if isinstance(signature, Mapping):
        for part in signature.values():
            yield from _units(part)
    elif isinstance(signature, (tuple, list)):
        for part in signature:
            yield from _units(part)
    elif isinstance(signature, tf.TypeSpec):
        parts = tf.nest.flatten(signature, expand_composites=True)
        yield signature, parts


def _fit(specs: Sequence[Any], tensors: Sequence[tf.Tensor]) -> bool:
    if len(specs) != len(tensors):
        return False
    return all(
        tensor.dtype == spec.dtype
        and tensor.shape.as_list() == spec.shape.as_list()
        if isinstance(spec, tf.TensorSpec) and tensor.shape.rank is not None
        else tensor.dtype in (tf.resource, tf.variant)
        for spec, tensor in zip(specs, tensors, strict=True)
    )


def _ragged(
    spec: tf.RaggedTensorSpec, tensors: Sequence[tf.Tensor]
) -> RaggedInput:
    if len(tensors) != 2:
        raise _refused_rank(f"a RaggedTensor of {spec.ragged_rank} ragged axes")
    values, splits = tensors
    return RaggedRows(values, splits)


def _sparse(
    spec: tf.SparseTensorSpec, tensors: Sequence[tf.Tensor]
) -> RaggedInput:
    indices, values, dense_shape = tensors
    if spec.shape.rank != 2:
        raise _refused_rank(f"a SparseTensor of shape {spec.shape}")
    return SparseRows(
        indices, values, dense_shape, spec.shape[0], spec.shape[1]
    )


def _refused_rank(what: str) -> NotSeparableError:
    return NotSeparableError(
        f"The step has {what} as an input. Expected one list of values per "
        "example: RaggedTensors with one ragged axis, SparseTensors of shape "
        "[examples, columns]. Pad the others to a fixed public length."
    )


def of_variant(op: tf.Operation) -> RaggedInput | None:
    """The feature that an operation decodes from a dataset's variant."""
    if op.type == "RaggedTensorFromVariant":
        if op.get_attr("output_ragged_rank") != 1:
            raise _refused_rank("a RaggedTensor of several ragged axes")
        splits, values = op.outputs
        return RaggedRows(values, splits)
    if op.type == "DeserializeSparse":
        indices, values, dense_shape = op.outputs
        if indices.shape.rank != 2 or indices.shape[1] != 2:
            raise _refused_rank(f"a SparseTensor of rank {indices.shape[1]}")
        return SparseRows(indices, values, dense_shape)
    return None
