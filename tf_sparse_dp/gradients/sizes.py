"""Shapes of the traced graph as multiples of the batch size.

Reshapes, slices and broadcasts take their shapes from small integer tensors
that the graph computes. To know where the example axis went, those tensors
are evaluated here symbolically: each entry is an int, a multiple of the batch
size (`BatchMultiple`), or None when it is not known. When the batch size is
known while tracing, multiples of it are plain ints too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.gradients.dims import broadcast, divide, multiply, product
from tf_sparse_dp.gradients.types import (
    Batched,
    BatchMultiple,
    BatchPlusOne,
    DataSize,
    Dim,
    Ragged,
    Type,
)

_LONGEST = 64  # No shape, permutation or axis list is longer than this.


class Sizes:
    """Symbolic values of integer tensors and shapes of all tensors.

    Args:
      types: Maps a tensor to its type, or None when it has none yet.
      batch_size: The batch size if it is known while tracing.

    Attributes:
      most_rows: Up to this batch size, no multiple of it that the graph
        computes overflows.
      most_values: The same for sizes that the data decide.
    """

    def __init__(
        self, types: Callable[[tf.Tensor], Type | None], batch_size: int | None
    ):
        self._types = types
        self._values: dict[tuple[str, int], list[Dim] | None] = {}
        self._dims: dict[tuple[str, int], list[Dim]] = {}
        self.batch_size = batch_size
        self.most_rows = tf.int32.max
        self.most_values = tf.int32.max

    def rows(self, per_example: int) -> Dim:
        """The size of an axis with `per_example` rows per example."""
        if self.batch_size is None:
            return BatchMultiple(per_example)
        return per_example * self.batch_size

    def _known(self, dim: Dim) -> Dim:
        if self.batch_size is None:
            return dim
        if isinstance(dim, BatchMultiple):
            return dim.per_example * self.batch_size
        if isinstance(dim, BatchPlusOne):
            return self.batch_size + 1
        return dim

    def set_value(self, tensor: tf.Tensor, entries: Sequence[Dim]) -> None:
        """Records what a small integer tensor holds."""
        self._values[key(tensor)] = list(entries)

    def has_data_size(self, tensor: tf.Tensor) -> bool:
        """Whether a known integer tensor holds a size that data decide."""
        entries = self.value(tensor) or []
        return any(isinstance(entry, DataSize) for entry in entries)

    def set_dims(self, tensor: tf.Tensor, dims: Sequence[Dim]) -> None:
        """Records a shape that TensorFlow's own inference does not see."""
        self._dims[key(tensor)] = list(dims)

    def copy_dims(self, source: tf.Tensor, target: tf.Tensor) -> None:
        """Records that two tensors have the same shape."""
        dims = self.dims(source)
        if dims is not None:
            self.set_dims(target, dims)

    def dims(self, tensor: tf.Tensor) -> list[Dim] | None:
        """The shape of a tensor; None when even the rank is unknown."""
        known = self._dims.get(key(tensor))
        if known is not None:
            return known
        if tensor.shape.rank is None:
            return None
        dims: list[Dim] = list(tensor.shape.as_list())
        kind = self._types(tensor)
        if isinstance(kind, Batched):
            dims[kind.axis] = self.rows(kind.per_example)
        elif isinstance(kind, Ragged):
            dims[0] = self._known(kind.rows)
        if None in dims:
            computed = self._computed_dims(tensor)
            if computed is not None and len(computed) == len(dims):
                dims = [
                    there if here is None else here
                    for here, there in zip(dims, computed, strict=True)
                ]
        self._dims[key(tensor)] = dims
        return dims

    def _computed_dims(self, tensor: tf.Tensor) -> list[Dim] | None:
        op = tensor.op
        if op.type == "Reshape":
            return self._reshaped_dims(op)
        if op.type == "Range":
            start, limit, delta = (self.value(x) for x in op.inputs)
            if start != [0] or limit is None or delta is None:
                return None
            if not isinstance(delta[0], int) or delta[0] < 1:
                return None
            if isinstance(limit[0], int) and limit[0] < 0:
                return None
            return [divide(limit[0], delta[0])]
        if op.type == "ExpandDims":
            dims, axis = self.dims(op.inputs[0]), self.scalar(op.inputs[1])
            if dims is None or axis is None:
                return None
            axis %= len(dims) + 1
            return [*dims[:axis], 1, *dims[axis:]]
        if op.type == "Squeeze":
            dims, axes = self.dims(op.inputs[0]), op.get_attr("squeeze_dims")
            if dims is None or not axes:
                return None
            gone = {axis % len(dims) for axis in axes}
            return [dim for i, dim in enumerate(dims) if i not in gone]
        if op.type in _SHAPED_LIKE:
            return self.dims(op.inputs[0])
        if len(op.inputs) == 2 and op.type in _BROADCASTING:
            left, right = (self.dims(x) for x in op.inputs)
            if left is None or right is None:
                return None
            return broadcast(left, right)
        return None

    def _reshaped_dims(self, op: tf.Operation) -> list[Dim] | None:
        after, before = self.value(op.inputs[1]), self.dims(op.inputs[0])
        if after is None or -1 not in after:
            return after
        known = product([dim for dim in after if dim != -1])
        rest = None if before is None else divide(product(before), known)
        return [rest if dim == -1 else dim for dim in after]

    def value(self, tensor: tf.Tensor) -> list[Dim] | None:
        """Entries of a small integer tensor, row by row; None if unknown."""
        name = key(tensor)
        if name not in self._values:
            self._values[name] = None  # Ends recursion through loops.
            self._values[name] = self._value(tensor)
        return self._values[name]

    def scalar(self, tensor: tf.Tensor) -> int | None:
        """The one entry of an integer tensor if it is a known int."""
        entries = self.value(tensor)
        if entries is None or len(entries) != 1:
            return None
        return entries[0] if isinstance(entries[0], int) else None

    def ints(self, tensor: tf.Tensor) -> list[int] | None:
        """All entries of an integer tensor if they are known ints."""
        entries = self.value(tensor)
        if entries is None or not all(isinstance(v, int) for v in entries):
            return None
        return entries  # type: ignore[return-value]

    def _value(self, tensor: tf.Tensor) -> list[Dim] | None:
        if not tensor.dtype.is_integer:
            return None
        evaluate = _EVALUATORS.get(tensor.op.type)
        if evaluate is not None:
            entries = evaluate(self, tensor.op, tensor.value_index)
            if entries is not None:
                fit = self._fits(entries, tensor.dtype)
                return entries if fit else None
        constant = tf.get_static_value(tensor)
        if constant is None or np.size(constant) > _LONGEST:
            return None
        return [int(v) for v in np.ravel(constant)]

    def _fits(self, entries: Sequence[Dim], dtype: tf.DType) -> bool:
        """Whether the graph's integers hold what is computed here exactly."""
        for entry in entries:
            if isinstance(entry, int) and not dtype.min <= entry <= dtype.max:
                return False
            if isinstance(entry, BatchMultiple):
                if entry.per_example <= 0 or dtype.max < tf.int32.max:
                    return False
                most = dtype.max // entry.per_example
                self.most_rows = min(self.most_rows, most)
            if isinstance(entry, BatchPlusOne | DataSize):
                if dtype.max < tf.int32.max:
                    return False
            if isinstance(entry, BatchPlusOne):
                self.most_rows = min(self.most_rows, dtype.max - 1)
            if isinstance(entry, DataSize):
                most = dtype.max // max(entry.times, 1)
                self.most_values = min(self.most_values, most)
        return True


def key(tensor: tf.Tensor) -> tuple[str, int]:
    """Identity of a symbolic tensor within its graph."""
    return (tensor.op.name, tensor.value_index)


# Operations that keep their input's shape, and that broadcast two.
_SHAPED_LIKE = frozenset(
    "Identity Cast EnsureShape ZerosLike OnesLike Neg Exp Log Sqrt Rsqrt "
    "Square Abs Sign LogicalNot StopGradient Reciprocal Floor Sigmoid Tanh "
    "Relu".split()
)
_BROADCASTING = frozenset(
    "Add AddV2 Sub Mul RealDiv DivNoNan Maximum Minimum GreaterEqual Greater "
    "Less LessEqual Equal NotEqual LogicalAnd LogicalOr Pow".split()
)


def _shape(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    return sizes.dims(op.inputs[index])


def _size(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    dims = sizes.dims(op.inputs[0])
    return None if dims is None else [product(dims)]


def _same(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    return sizes.value(op.inputs[0])


def _joined(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    inputs = op.inputs[:-1] if op.type == "ConcatV2" else op.inputs
    # Row by row, vectors that are stacked follow each other as well.
    stacked = op.type == "Pack" and op.get_attr("axis") == 0
    # So gradients of long concatenations keep the shapes of their inputs.
    columns = (
        op.type == "Pack"
        and op.get_attr("axis") in (1, -1)
        and op.outputs[0].shape.rank == 2
    )
    if op.outputs[0].shape.rank != 1 and not stacked and not columns:
        return None
    parts = [sizes.value(x) for x in inputs]
    if any(part is None for part in parts):
        return None
    if columns:
        rows = zip(*parts, strict=True)  # type: ignore[arg-type]
        return [entry for row in rows for entry in row]
    return [entry for part in parts for entry in part]  # type: ignore[union-attr]


def _gathered(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    entries, where = sizes.value(op.inputs[0]), sizes.ints(op.inputs[1])
    if entries is None or where is None or op.inputs[0].shape.rank != 1:
        return None
    if sizes.scalar(op.inputs[2]) != 0 or op.get_attr("batch_dims"):
        return None
    return [entries[i] for i in where]


def _sliced(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    entries = sizes.value(op.inputs[0])
    bounds = [sizes.ints(x) for x in op.inputs[1:4]]
    if entries is None or any(b is None or len(b) != 1 for b in bounds):
        return None
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    if op.inputs[0].shape.rank != 1:
        return None
    begin, end, stride = (b[0] for b in bounds)  # type: ignore[index]
    if op.get_attr("shrink_axis_mask"):
        return [entries[begin]]
    return entries[
        None if op.get_attr("begin_mask") else begin : None
        if op.get_attr("end_mask")
        else end : stride
    ]


def _cut(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    entries, shape = sizes.value(op.inputs[0]), op.inputs[0].shape
    begin, size = (sizes.ints(x) for x in op.inputs[1:])
    if entries is None or begin is None or size is None:
        return None
    if not shape.is_fully_defined():
        return None
    places = tuple(
        slice(first, None if length == -1 else first + length)
        for first, length in zip(begin, size, strict=True)
    )
    kept = np.arange(len(entries)).reshape(shape)[places]
    return [entries[i] for i in kept.ravel()]


def _tiled(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    entries, count = sizes.value(op.inputs[0]), sizes.scalar(op.inputs[1])
    if entries is None or count is None or op.inputs[0].shape.rank != 1:
        return None
    return entries * count if len(entries) * count <= _LONGEST else None


def _transposed(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    entries, shape = sizes.value(op.inputs[0]), op.inputs[0].shape
    permutation = sizes.ints(op.inputs[1])
    if entries is None or permutation is None or not shape.is_fully_defined():
        return None
    places = np.arange(len(entries)).reshape(shape).transpose(permutation)
    return [entries[i] for i in places.ravel()]


def _unpacked(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    entries = sizes.value(op.inputs[0])
    if entries is None or len(entries) != len(op.outputs):
        return None
    if op.inputs[0].shape.rank not in (None, 1) or op.get_attr("axis"):
        return None
    return [entries[index]]


def _product(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    entries = sizes.value(op.inputs[0])
    if entries is None or op.inputs[0].shape.rank not in (0, 1):
        return None
    if op.outputs[0].shape.num_elements() != 1:  # Over no axis at all.
        return None
    return [product(entries)]


def _pairwise(combine: Callable[[Any, Any], Dim]) -> Any:
    def evaluate(
        sizes: Sizes, op: tf.Operation, index: int
    ) -> list[Dim] | None:
        left, right = (sizes.value(x) for x in op.inputs)
        if left is None or right is None:
            return None
        if op.outputs[0].shape.rank not in (0, 1):
            return None
        if len(left) == 1:
            left = left * len(right)
        if len(right) == 1:
            right = right * len(left)
        if len(left) != len(right):
            return None
        return [combine(a, b) for a, b in zip(left, right, strict=True)]

    return evaluate


def _on_ints(combine: Callable[[int, int], int]) -> Any:
    def guarded(a: Dim, b: Dim) -> Dim:
        if isinstance(a, int) and isinstance(b, int):
            return combine(a, b)
        return None

    return _pairwise(guarded)


def _maximum(a: Dim, b: Dim) -> Dim:
    # TensorFlow guards divisions by sizes with max(size, 1). A multiple of B
    # is at least 1 unless the batch is empty, where nothing is summed.
    if isinstance(a, BatchMultiple) and b in (0, 1):
        return a
    if isinstance(b, BatchMultiple) and a in (0, 1):
        return b
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return None


def _clamped(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    """min(n, max(n, anything)) is n, as counts of n kinds ask for."""
    if op.outputs[0].shape.rank != 0:
        return None
    for least, other in (op.inputs, op.inputs[::-1]):
        bound = sizes.scalar(least)
        if bound is None:
            continue
        known = [sizes.scalar(other)]
        if other.op.type == "Maximum":
            known = [sizes.scalar(x) for x in other.op.inputs]
        if any(x is not None and x >= bound for x in known):
            return [bound]
    return None


def _difference(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    if isinstance(a, BatchPlusOne) and b == 1:
        return BatchMultiple(1)
    return 0 if a is not None and a == b else None


def _floor_divide(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else None
    return divide(a, b)


def _range(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    bounds = [sizes.scalar(x) for x in op.inputs]
    if any(b is None for b in bounds):
        return None
    entries = range(*bounds)  # type: ignore[arg-type]
    return list(entries) if len(entries) <= _LONGEST else None


def _stitched(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    half = len(op.inputs) // 2
    entries: dict[int, Dim] = {}
    for where, what in zip(op.inputs[:half], op.inputs[half:], strict=True):
        positions, values = sizes.ints(where), sizes.value(what)
        if positions is None or values is None:
            return None
        if len(positions) != len(values):
            return None
        entries.update(zip(positions, values, strict=True))
    return [entries.get(i) for i in range(max(entries, default=-1) + 1)]


def _inverted(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    permutation = sizes.ints(op.inputs[0])
    if permutation is None:
        return None
    return [permutation.index(i) for i in range(len(permutation))]


def _filled(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    dims, entry = sizes.ints(op.inputs[0]), sizes.value(op.inputs[1])
    if dims is None or entry is None or int(np.prod(dims)) > _LONGEST:
        return None
    return entry * int(np.prod(dims))


def _offsets(sizes: Sizes, op: tf.Operation, index: int) -> list[Dim] | None:
    axis = sizes.scalar(op.inputs[0])
    shapes = [sizes.value(x) for x in op.inputs[1 : index + 1]]
    rank = op.inputs[1].shape[0]
    if axis is None or rank is None:
        return None
    offset: Dim = 0
    for shape in shapes:
        here = None if shape is None else shape[axis]
        if offset == 0:
            offset = here
        elif isinstance(offset, BatchMultiple) and isinstance(
            here, BatchMultiple
        ):
            offset = BatchMultiple(offset.per_example + here.per_example)
        elif isinstance(offset, int) and isinstance(here, int):
            offset = offset + here
        else:
            offset = None
    return [offset if i == axis % rank else 0 for i in range(rank)]


_EVALUATORS: dict[
    str, Callable[[Sizes, tf.Operation, int], list[Dim] | None]
] = {
    "Shape": _shape,
    "ShapeN": _shape,
    "Size": _size,
    "Identity": _same,
    "Cast": _same,
    "ExpandDims": _same,
    "Squeeze": _same,
    "Reshape": _same,
    "Pack": _joined,
    "Unpack": _unpacked,
    "ConcatV2": _joined,
    "GatherV2": _gathered,
    "StridedSlice": _sliced,
    "Slice": _cut,
    "Tile": _tiled,
    "Transpose": _transposed,
    "Prod": _product,
    "Mul": _pairwise(multiply),
    "FloorDiv": _pairwise(_floor_divide),
    "Maximum": _pairwise(_maximum),
    "Minimum": _clamped,
    "AddV2": _on_ints(lambda a, b: a + b),
    "Sub": _pairwise(_difference),
    "FloorMod": _on_ints(lambda a, b: a % b if b else 0),
    "Range": _range,
    "DynamicStitch": _stitched,
    "InvertPermutation": _inverted,
    "Fill": _filled,
    "ConcatOffset": _offsets,
}
