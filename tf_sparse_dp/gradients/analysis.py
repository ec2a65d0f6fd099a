"""Walks a traced training step and types every tensor behind a gradient.

One pass over the ancestors of the gradients, inputs first, suffices. An
operation without a rule that meets example data yields `Mixed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients import rules as _rules  # noqa: F401 (registers)
from tf_sparse_dp.gradients import state
from tf_sparse_dp.gradients.ancestry import ancestors
from tf_sparse_dp.gradients.effects import (
    HARMLESS,
    ITERATORS,
    OPTIONALS,
    OUTSIDE,
    REPLICATED,
)
from tf_sparse_dp.gradients.functions import Library
from tf_sparse_dp.gradients.ragged_inputs import (
    RaggedInput,
    of_arguments,
    of_variant,
)
from tf_sparse_dp.gradients.ragged_types import Partition, Splits
from tf_sparse_dp.gradients.rules.declared import may_declare
from tf_sparse_dp.gradients.rules.loops import in_loop
from tf_sparse_dp.gradients.rules.reductions import reduced_axes
from tf_sparse_dp.gradients.rules.registry import (
    RECOGNISING,
    TYPING,
    mixed,
)
from tf_sparse_dp.gradients.rules.scattered import ragged_rule
from tf_sparse_dp.gradients.sizes import Sizes, key
from tf_sparse_dp.gradients.types import (
    FREE,
    Batched,
    DataSize,
    Free,
    Mixed,
    Ragged,
    Type,
)

# Inputs of these graphs are loop variables or branch arguments, not a batch.
_CONTROL_FLOW_GRAPHS = frozenset(
    {"WhileBodyFuncGraph", "WhileCondFuncGraph", "CondBranchFuncGraph"}
)
# Decode a ragged or sparse feature that a dataset hands over.
_DECODERS = frozenset({"RaggedTensorFromVariant", "DeserializeSparse"})

_SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank"})
# Inputs that are nothing but sizes. Sizes that the data decide may stand there
# if it is known which they are: rows then keep their place.
_SIZES = {
    "BroadcastGradientArgs": (0, 1),
    "BroadcastTo": (1,),
    "Fill": (0,),
    "RaggedFillEmptyRows": (2,),
    "RaggedTensorToTensor": (0,),
    "Reshape": (1,),
    "Slice": (1, 2),
    "SparseFillEmptyRows": (2,),
    "SparseReshape": (1, 2),
    "SparseSegmentMeanGrad": (3,),
    "SparseSegmentSqrtNGrad": (3,),
    "SparseSegmentSumGrad": (3,),
    "SparseTensorDenseMatMul": (2,),
    "SparseToDense": (1,),
    "StridedSliceGrad": (0,),
    "Tile": (1,),
    "UnsortedSegmentSum": (2,),
}
# Of these, only the first entry speaks of the axis that holds the rows. Another
# axis of such a size would show an example how many values others have.
_SIZES_OF_ROWS = frozenset(
    "BroadcastTo Fill Reshape Slice StridedSliceGrad Tile".split()
)
_NUMBER_OF_VALUES = (
    "The number of values that all examples of the batch have together must "
    "not be used as a number. Average per example, and then over the batch."
)

_UNKNOWN_OPERATION = (
    "Rewrite that part of the model with operations that have a rule, or "
    "compute it outside the training step, in the input pipeline."
)
_DECLARE = (
    " If it treats examples one by one, declare it: "
    "tf_sparse_dp.rules.rowwise({!r}), see docs/explain.md."
)


class Analysis:
    """Types of all tensors behind `targets`.

    Args:
      targets: Symbolic tensors of one graph: the gradients.

    Attributes:
      operations: All operations behind the targets, inputs first.
      sizes: Symbolic shapes.
      roots: The tensors of the batch that reach the targets.
      ragged: The ragged and sparse features among them.
      batch_size: The number of examples, a scalar int32 tensor.
      requirements: What has to hold when the step runs: each gives a bool.

    Raises:
      NotSeparableError: If no tensor of a batch reaches the targets, or the
        batch's tensors disagree on the number of examples.
    """

    def __init__(self, targets: Sequence[tf.Tensor]):
        self.graph = targets[0].graph
        self._types: dict[tuple[str, int], Type] = {}
        self._captured: dict[tuple[str, int], Any] = {}
        self.library = Library(self.graph)
        self._see_captures()
        if type(self.graph).__name__ == "CondBranchFuncGraph":
            raise NotSeparableError(
                "The gradients are computed and applied in a branch (tf.cond); "
                "whether a step is taken could then depend on the batch. Take "
                "a step with every batch: clipping bounds what any example "
                "does to it. (The loss scaling of mixed_float16 is such a "
                "branch: use mixed_bfloat16 or float32.)"
            )
        self.operations = ancestors(self.graph, targets)
        # A replica of a TPU knows the batch by what is handed to it.
        self._handed_over = {
            key(tensor)
            for op in self.graph.get_operations()
            if op.type == REPLICATED
            for tensor in op.inputs
        }
        self._arguments = self._ragged_arguments()
        self.ragged = self._find_ragged(self.operations)
        self.roots = self._find_roots(self.operations)
        self.sizes = Sizes(self._known_type, self._static_batch_size())
        self._given: dict[tuple[str, int], Type] = {}
        for feature in self.ragged:
            self._given.update(feature.types(self.sizes))
        self.batch_size = self._batch_size()
        self.requirements: list[Callable[[], tf.Tensor]] = []
        for op in self.operations:
            self._infer(op)

    def type(self, tensor: tf.Tensor) -> Type:
        """The type of a tensor behind the targets."""
        kind = self._types.get(key(tensor))
        if kind is None:  # Only loops have inputs that come after their users.
            return in_loop(tensor.op)
        return kind

    def late_type(self, tensor: tf.Tensor) -> Type:
        """The type of any tensor of the graph, of one traced later too."""
        if self._known_type(tensor) is None:
            self._see_captures()
            for op in ancestors(self.graph, [tensor]):
                if any(self._known_type(x) is None for x in op.outputs):
                    self._infer(op)
        return self.type(tensor)

    def _see_captures(self) -> None:
        for outer, inner in self.graph.captures:
            self._captured[key(inner)] = outer

    def _known_type(self, tensor: tf.Tensor) -> Type | None:
        return self._types.get(key(tensor))

    def batched_roots(self) -> list[tf.Tensor]:
        """The roots that have an example axis."""
        return self._plain([root for root in self.roots if root.shape.rank])

    def inputs(self) -> list[tf.Tensor]:
        """All tensors of the batch, whether they reach the targets or not.

        Without those that a ragged or sparse feature consists of.
        """
        return self._plain(self._batch_tensors(self.graph.get_operations()))

    def _plain(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        parts = {
            key(tensor)
            for feature in self._arguments
            for tensor in feature.tensors()
        }
        return [tensor for tensor in tensors if key(tensor) not in parts]

    def same_rows(self, one: Partition, other: Partition) -> bool:
        """Whether two partitions are equal, or will be when the step runs.

        Two features may be combined value by value, such as ids and their
        weights. Whether each example has as many of the one as of the other
        is checked when the step runs.
        """
        if one == other:
            return True
        if one.derivation != other.derivation:
            return False
        if one.parent is not None and other.parent is not None:
            if not self.same_rows(one.parent, other.parent):
                return False
        else:
            self.requirements.append(
                lambda: _equal(one.examples(), other.examples())
            )
        one.merge(other)
        return True

    def is_input(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is one of the batch's, perhaps reshaped."""
        while tensor.op.type in ("Identity", "Reshape", "Cast"):
            tensor = tensor.op.inputs[0]
        return key(tensor) in self._given or self._gives_batch(tensor.op)

    def is_captured(self, tensor: tf.Tensor) -> bool:
        """Whether a placeholder stands for a tensor from outside the graph."""
        return key(tensor) in self._captured

    def captured(self, tensor: tf.Tensor) -> Any:
        """What a captured placeholder stands for; None if it is an argument."""
        return self._captured.get(key(tensor))

    def _find_roots(self, operations: list[tf.Operation]) -> list[tf.Tensor]:
        roots = self._batch_tensors(operations)
        sources = {_source(root.op) for root in roots}
        if len(sources) > 1:
            raise NotSeparableError(
                "The gradients see more than one batch ("
                + ", ".join(sorted(sources))
                + "), and one example may be in several of them. Expected one "
                "batch per step: add up no gradients of several batches, and "
                "zip data sets that belong together."
            )
        if not self.ragged and not any(root.shape.rank for root in roots):
            raise NotSeparableError(
                "No tensor of a batch reaches the gradients. "
                "Expected the training step to be traced with the batch as an "
                "argument or taken from a dataset iterator. Pass the batch "
                "into the tf.function instead of closing over it. (A data set "
                "whose last batch may be missing on a replica hides them all "
                "in a branch: fix the number of rows, and for several workers "
                "give it no end, with repeat() and steps_per_epoch.)"
            )
        return roots

    def _ragged_arguments(self) -> list[RaggedInput]:
        signature = self.graph.structured_input_signature
        for spec in tf.nest.flatten(signature):
            if isinstance(spec, tf.IndexedSlicesSpec):
                raise NotSeparableError(
                    "The step has an input of type IndexedSlices, whose rows "
                    "are not examples. Expected tensors with one row per "
                    "example: pass no gradients that were computed elsewhere."
                )
        arguments = [
            op.outputs[0]
            for op in self.graph.get_operations()
            if op.type == "Placeholder" and self._gives_batch(op)
        ]
        return of_arguments(signature, arguments)

    def _find_ragged(self, operations: list[tf.Operation]) -> list[RaggedInput]:
        reached = {key(output) for op in operations for output in op.outputs}
        found = [
            feature
            for feature in self._arguments
            if any(key(tensor) in reached for tensor in feature.tensors())
        ]
        for op in operations:
            if op.type in _DECODERS and self._gives_batch(op.inputs[0].op):
                feature = of_variant(op)
                if feature is not None:
                    found.append(feature)
        return found

    def _batch_size(self) -> tf.Tensor:
        roots = self.batched_roots()
        if roots:
            return tf.shape(roots[0])[0]
        return self.ragged[0].batch_size()

    def _batch_tensors(self, operations: list[tf.Operation]) -> list[tf.Tensor]:
        return [
            output
            for op in operations
            if self._gives_batch(op)
            for output in op.outputs
            if output.dtype != tf.resource
            and key(output) not in self._handed_over
        ]

    def _gives_batch(self, op: tf.Operation) -> bool:
        if op.type == "Placeholder":
            if type(self.graph).__name__ in _CONTROL_FLOW_GRAPHS:
                return False
            return not self.is_captured(op.outputs[0])
        if op.type in OPTIONALS:
            op = op.inputs[0].op
            if op.type == "Placeholder":
                return True
            return _from_outside(op, "IteratorGetNextAsOptional")
        if op.type == REPLICATED:
            return all(self._gives_batch(tensor.op) for tensor in op.inputs)
        return any(_from_outside(op, name) for name in ITERATORS)

    def _static_batch_size(self) -> int | None:
        sizes = {
            size
            for size in (
                *(root.shape[0] for root in self.batched_roots()),
                *(feature.static_batch_size() for feature in self.ragged),
            )
            if size is not None
        }
        if len(sizes) > 1:
            raise NotSeparableError(
                "The step's inputs disagree on the number of examples: "
                + ", ".join(f"{r.name} has shape {r.shape}" for r in self.roots)
                + ". Expected the same size on axis 0 of all of them. Pass "
                "what is not per example (weights, public tables) as "
                "variables or constants."
            )
        return sizes.pop() if sizes else None

    def _infer(self, op: tf.Operation) -> None:
        given = [self._given.get(key(output)) for output in op.outputs]
        if given and None not in given:
            types: list[Type] = given  # type: ignore[assignment]
        elif self._gives_batch(op):
            types = [self._root_type(output) for output in op.outputs]
        elif op.type in _SHAPE_ONLY or _is_true(op):
            types = [self._shape_type(op)] * len(op.outputs)
        else:
            types = self._computed_types(op)
        for output, kind in zip(op.outputs, types, strict=True):
            self._types[key(output)] = kind

    def _root_type(self, root: tf.Tensor) -> Type:
        if root.dtype == tf.resource:
            return FREE
        if key(root) in self._handed_over:
            return Mixed(
                f"input {root.name} is one replica's part of the batch, and "
                "gets to the gradients by another way than being handed to "
                "that replica, so that several could see it",
                root.op.name,
                "Compute gradients from the arguments of strategy.run alone.",
            )
        if root.dtype == tf.variant:
            return Mixed(
                f"input {root.name} is ragged or sparse, and is not decoded "
                "where it enters",
                root.op.name,
                "Pass RaggedTensors and SparseTensors as they are, or pad the "
                "feature to a fixed public length before the step.",
            )
        if not root.shape.rank:
            return Mixed(
                f"input {root.name} of shape {root.shape} has no example axis",
                root.op.name,
                "Pass scalars and public values as variables or constants.",
            )
        if None in root.shape.as_list()[1:]:
            return Mixed(
                f"input {root.name} of shape {root.shape} has a length that "
                "the batch decides, so one example can change what the layers "
                "see of the others",
                root.op.name,
                "Pad or cut the feature to a fixed public length.",
            )
        return Batched(0)

    def _shape_type(self, op: tf.Operation) -> Type:
        for tensor in op.inputs:
            kind = self.type(tensor)
            if isinstance(kind, Mixed) and not tensor.shape.is_fully_defined():
                return kind
            if isinstance(kind, Splits) or op.type == "Rank":
                continue
            if isinstance(kind, Ragged):
                reason = "depends on how many values each example has"
                return mixed(op, reason, _NUMBER_OF_VALUES)
        return FREE

    def _computed_types(self, op: tf.Operation) -> list[Type]:
        inputs = [self.type(tensor) for tensor in op.inputs]
        sized = self._forget_sizes(op, inputs)
        for kind in inputs:
            if isinstance(kind, Mixed):
                recognise = RECOGNISING.get(op.type)
                known = None if recognise is None else recognise(self, op)
                return [known or kind] * len(op.outputs)
        ragged = sized or any(isinstance(kind, Ragged) for kind in inputs)
        rule = ragged_rule(op) if ragged else TYPING.get(op.type)
        if (
            not ragged
            and all(isinstance(kind, Free) for kind in inputs)
            and (rule is None or not getattr(rule, "sees_free", False))
        ):
            return [self._free_type(op)] * len(op.outputs)
        if rule is None:
            remedy = _UNKNOWN_OPERATION
            if not ragged and may_declare(op.type):
                remedy += _DECLARE.format(op.type)
            kind = mixed(op, "has no separability rule", remedy)
            return [kind] * len(op.outputs)
        result = rule(self, op, inputs)
        if isinstance(result, list):
            return result
        return [result] * len(op.outputs)

    def _forget_sizes(self, op: tf.Operation, inputs: list[Type]) -> bool:
        """Takes sizes whose names are known for free, where a size is due.

        Returns:
          Whether one of them is a size that the data decide.
        """
        sized = False
        for place in _SIZES.get(op.type, ()):
            entries = self.sizes.value(op.inputs[place])
            if isinstance(inputs[place], Mixed):
                if entries is None or None in entries:
                    continue
                if op.type in _SIZES_OF_ROWS and any(
                    isinstance(entry, DataSize) for entry in entries[1:]
                ):
                    continue
                inputs[place] = FREE
            sized |= self.sizes.has_data_size(op.inputs[place])
        if op.type in ("Sum", "Mean") and isinstance(inputs[1], Mixed):
            # The axes along which a broadcast repeated rows.
            if reduced_axes(self, op) is not None:
                inputs[1] = FREE
        return sized

    def _free_type(self, op: tf.Operation) -> Type:
        op_def = op.op_def
        if any(a.type in ("func", "list(func)") for a in op_def.attr):
            hides = state.may_hide(op.node_def, self.library)
        else:
            stateful = op_def.is_stateful and op.type not in HARMLESS
            hides = stateful or op.type in OUTSIDE
        if hides:
            return mixed(
                op,
                "is stateful and may carry example data",
                "Pass the batch as an argument of the traced step.",
            )
        return FREE


def _is_true(op: tf.Operation) -> bool:
    """Whether an operation compares a scalar with itself.

    So tf.recompute_grad makes its second forward pass wait for the backward
    pass. A float that is not a number would not be equal to itself.
    """
    return (
        op.type == "Equal"
        and key(op.inputs[0]) == key(op.inputs[1])
        and (op.inputs[0].dtype == tf.bool or op.inputs[0].dtype.is_integer)
        and op.inputs[0].shape.rank == 0
    )


def _equal(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Whether two vectors are equal, whatever their lengths."""
    sizes = tf.size(one), tf.size(other)
    least = tf.minimum(*sizes)
    return tf.equal(*sizes) & tf.reduce_all(one[:least] == other[:least])


def _source(op: tf.Operation) -> str:
    """Which batch an operation gives a tensor of."""
    if op.type == REPLICATED:
        sources = {_source(tensor.op) for tensor in op.inputs}
        return " and ".join(sorted(sources))
    return "arguments" if op.type == "Placeholder" else op.name


def _from_outside(op: tf.Operation, op_type: str) -> bool:
    """Whether an iterator came into the step as an argument or a capture."""
    return op.type == op_type and op.inputs[0].op.type == "Placeholder"
