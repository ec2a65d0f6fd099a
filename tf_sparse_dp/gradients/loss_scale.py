"""Whether the loss is a sum or a mean over the batch, read off the graph.

Clipping must know, because a mean makes every example's gradient smaller by
the batch size. Privacy does not depend on it: norms are taken after scaling.

Tensors get a *degree* d: they scale like B^d when the batch size B changes
and everything else stays. Dividing by the batch size lowers the degree by
one; products add degrees. A mean's per-example terms have degree -1, a sum's
degree 0. When the batch size is a constant of the graph, dividing the
(data-free) seed of the backward pass by a multiple of it counts.
"""

from __future__ import annotations

import tensorflow as tf

from tf_sparse_dp.gradients.analysis import Analysis
from tf_sparse_dp.gradients.sizes import key
from tf_sparse_dp.gradients.types import FREE, Batched, BatchMultiple, Free

_KEEPS_FIRST = frozenset(
    "Identity Neg Cast Reshape Transpose ExpandDims Squeeze Sum Mean Tile Pad "
    "Slice StridedSlice BroadcastTo GatherV2 PreventGradient StopGradient "
    "ReluGrad Relu6Grad EluGrad SeluGrad LeakyReluGrad SoftplusGrad "
    "SoftsignGrad UnsortedSegmentSum BiasAddGrad FusedBatchNormGradV3".split()
)
_MULTIPLIES = frozenset(
    "Mul MulNoNan MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum "
    "SigmoidGrad TanhGrad RsqrtGrad SqrtGrad ReciprocalGrad InvGrad".split()
)
_DIVIDES = frozenset({"RealDiv", "DivNoNan", "Div", "Xdivy"})
_AGREES = frozenset("Add AddV2 AddN Sub Select SelectV2 ConcatV2 Pack".split())
_REDUCTIONS = {-1: "mean", 0: "sum"}


class LossScale:
    """Degrees of the tensors behind the gradients.

    Args:
      analysis: The types of those tensors.
    """

    def __init__(self, analysis: Analysis):
        self._analysis = analysis
        self._degrees: dict[tuple[str, int], int | None] = {}
        for op in analysis.operations:
            degree = self._degree(op)
            for output in op.outputs:
                self._degrees[key(output)] = degree

    def reduction(self, tensor: tf.Tensor) -> str | None:
        """A gradient's reduction, "mean" or "sum"; None if it is not clear."""
        degree = self._degrees[key(tensor)]
        return None if degree is None else _REDUCTIONS.get(degree)

    def _degree(self, op: tf.Operation) -> int | None:
        degrees = [self._degrees[key(tensor)] for tensor in op.inputs]
        if op.type == "Cast" and op.inputs[0].dtype.is_integer:
            return self._count_degree(op.inputs[0])
        if op.type == "Mean" and self._reduces_batch(op):
            return None if degrees[0] is None else degrees[0] - 1
        if op.type in _DIVIDES:
            divisor = degrees[1]
            if divisor == 0:
                divisor = self._constant_degree(op)
            if degrees[0] is None or divisor is None:
                return None
            return degrees[0] - divisor
        if op.type in _MULTIPLIES:
            return None if None in degrees[:2] else sum(degrees[:2])  # type: ignore[arg-type]
        if op.type == "Fill":
            return degrees[1]
        if op.type == "StridedSliceGrad":
            return degrees[4]
        if op.type in _KEEPS_FIRST:
            return degrees[0]
        if op.type in _AGREES:
            return self._agreed(op)
        return 0 if all(degree == 0 for degree in degrees) else None

    def _count_degree(self, tensor: tf.Tensor) -> int | None:
        """1 for a multiple of the batch size, 0 for data and constants."""
        if self._analysis.type(tensor) != FREE:
            return 0
        entries = self._analysis.sizes.value(tensor)
        if entries is None or None in entries:
            return None
        kinds = {isinstance(entry, BatchMultiple) for entry in entries}
        return int(kinds.pop()) if len(kinds) == 1 else None

    def _reduces_batch(self, op: tf.Operation) -> bool:
        kind = self._analysis.type(op.inputs[0])
        axes = self._analysis.sizes.ints(op.inputs[1])
        if not isinstance(kind, Batched) or axes is None:
            return False
        rank = op.inputs[0].shape.rank
        return kind.axis in [axis % rank for axis in axes]

    def _constant_degree(self, op: tf.Operation) -> int | None:
        """1 for a data-free seed over a constant multiple of the batch size."""
        seed, divisor = op.inputs
        batch_size = self._analysis.sizes.batch_size
        types = [self._analysis.type(seed), self._analysis.type(divisor)]
        if batch_size in (None, 1) or types != [FREE, FREE]:
            return self._degrees[key(divisor)]
        value = self._constant(divisor)
        if value is None or value % batch_size:
            return None if value is None else 0
        # Other divisors may happen to be multiples. A mean over the batch
        # divides a scalar by the batch size, or entries by their number.
        entries = seed.shape.num_elements()
        return 1 if value in (batch_size, entries) else None

    def _constant(self, tensor: tf.Tensor) -> float | None:
        value = tf.get_static_value(tensor)
        if value is None and tensor.op.type == "Cast":
            return self._analysis.sizes.scalar(tensor.op.inputs[0])
        return None if value is None or value.ndim else float(value)

    def _agreed(self, op: tf.Operation) -> int | None:
        """The one degree of all summands that see examples."""
        tensors = op.inputs[:-1] if op.type == "ConcatV2" else op.inputs
        if op.type.startswith("Select"):
            tensors = tensors[1:]
        found = {
            self._degrees[key(tensor)]
            for tensor in tensors
            if not isinstance(self._analysis.type(tensor), Free)
        } or {self._degrees[key(tensor)] for tensor in tensors}
        return found.pop() if len(found) == 1 else None
