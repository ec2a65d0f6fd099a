"""Walks a traced training step and types every tensor behind a gradient.

One pass over the ancestors of the gradients, inputs first, suffices. An
operation without a rule that meets example data yields `Mixed`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    PYTHON,
)
from tf_sparse_dp.gradients.functions import Library
from tf_sparse_dp.gradients.rules.loops import in_loop
from tf_sparse_dp.gradients.rules.registry import TYPING, mixed
from tf_sparse_dp.gradients.sizes import Sizes, key
from tf_sparse_dp.gradients.types import (
    FREE,
    Batched,
    Free,
    Mixed,
    Type,
)

# Inputs of these graphs are loop variables or branch arguments, not a batch.
_CONTROL_FLOW_GRAPHS = frozenset(
    {"WhileBodyFuncGraph", "WhileCondFuncGraph", "CondBranchFuncGraph"}
)
_COMPOSITES = (tf.RaggedTensorSpec, tf.SparseTensorSpec, tf.IndexedSlicesSpec)

_SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank"})

_UNKNOWN_OPERATION = (
    "Rewrite that part of the model with operations that have a rule, or "
    "compute it outside the training step, in the input pipeline."
)


class Analysis:
    """Types of all tensors behind `targets`.

    Args:
      targets: Symbolic tensors of one graph: the gradients.

    Attributes:
      operations: All operations behind the targets, inputs first.
      sizes: Symbolic shapes.
      roots: The tensors of the batch that reach the targets.
      batch_size: The number of examples, a scalar int32 tensor.

    Raises:
      NotSeparableError: If no tensor of a batch reaches the targets, or the
        batch's tensors disagree on the number of examples.
    """

    def __init__(self, targets: Sequence[tf.Tensor]):
        self.graph = targets[0].graph
        self._types: dict[tuple[str, int], Type] = {}
        self._captured: dict[tuple[str, int], Any] = {}
        self._library: Library | None = None
        self._see_captures()
        if type(self.graph).__name__ == "CondBranchFuncGraph":
            raise NotSeparableError(
                "The gradients are applied in a branch (tf.cond) of the step, "
                "as the loss scaling of mixed_float16 does; whether a step is "
                "taken would then depend on the raw gradients. Use "
                "mixed_bfloat16 or float32, and apply gradients in every step."
            )
        self.operations = ancestors(self.graph, targets)
        self.roots = self._find_roots(self.operations)
        self.sizes = Sizes(self._known_type, self._static_batch_size())
        self.batch_size = tf.shape(self.batched_roots()[0])[0]
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
        return [root for root in self.roots if root.shape.rank]

    def inputs(self) -> list[tf.Tensor]:
        """All tensors of the batch, whether they reach the targets or not."""
        return self._batch_tensors(self.graph.get_operations())

    def is_input(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor is one of the batch's, perhaps reshaped."""
        while tensor.op.type in ("Identity", "Reshape", "Cast"):
            tensor = tensor.op.inputs[0]
        return self._gives_batch(tensor.op)

    def is_captured(self, tensor: tf.Tensor) -> bool:
        """Whether a placeholder stands for a tensor from outside the graph."""
        return key(tensor) in self._captured

    def captured(self, tensor: tf.Tensor) -> Any:
        """What a captured placeholder stands for; None if it is an argument."""
        return self._captured.get(key(tensor))

    def _find_roots(self, operations: list[tf.Operation]) -> list[tf.Tensor]:
        self._check_signature()
        roots = self._batch_tensors(operations)
        sources = {
            "arguments" if root.op.type == "Placeholder" else root.op.name
            for root in roots
        }
        if len(sources) > 1:
            raise NotSeparableError(
                "The gradients see more than one batch ("
                + ", ".join(sorted(sources))
                + "), and one example may be in several of them. Expected one "
                "batch per step: add up no gradients of several batches, and "
                "zip data sets that belong together."
            )
        if not any(root.shape.rank for root in roots):
            raise NotSeparableError(
                "No tensor of a batch reaches the gradients. "
                "Expected the training step to be traced with the batch as an "
                "argument or taken from a dataset iterator. Pass the batch "
                "into the tf.function instead of closing over it."
            )
        return roots

    def _check_signature(self) -> None:
        signature = self.graph.structured_input_signature
        for spec in tf.nest.flatten(signature):
            if isinstance(spec, _COMPOSITES):
                raise NotSeparableError(
                    f"The step has an input of type {type(spec).__name__}, "
                    "whose rows are not examples. Expected tensors with one "
                    "row per example: pad ragged and sparse features to a "
                    "fixed public length before the step, and pass no "
                    "gradients that were computed elsewhere."
                )

    def _batch_tensors(self, operations: list[tf.Operation]) -> list[tf.Tensor]:
        return [
            output
            for op in operations
            if self._gives_batch(op)
            for output in op.outputs
            if output.dtype != tf.resource
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
        return any(_from_outside(op, name) for name in ITERATORS)

    def _static_batch_size(self) -> int | None:
        sizes = {
            root.shape[0]
            for root in self.roots
            if root.shape.rank and root.shape[0] is not None
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
        if self._gives_batch(op):
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
        if root.dtype == tf.variant:
            return Mixed(
                f"input {root.name} is ragged or sparse",
                root.op.name,
                "Pad the feature to a fixed public length before the step.",
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
        return FREE

    def _computed_types(self, op: tf.Operation) -> list[Type]:
        inputs = [self.type(tensor) for tensor in op.inputs]
        for kind in inputs:
            if isinstance(kind, Mixed):
                return [kind] * len(op.outputs)
        rule = TYPING.get(op.type)
        if all(isinstance(kind, Free) for kind in inputs) and (
            rule is None or not getattr(rule, "sees_free", False)
        ):
            return [self._free_type(op)] * len(op.outputs)
        if rule is None:
            kind = mixed(op, "has no separability rule", _UNKNOWN_OPERATION)
            return [kind] * len(op.outputs)
        result = rule(self, op, inputs)
        if isinstance(result, list):
            return result
        return [result] * len(op.outputs)

    def _free_type(self, op: tf.Operation) -> Type:
        if state.called_by(op.node_def):
            self._library = self._library or Library(self.graph)
            hides = state.may_hide(op.node_def, self._library)
        else:
            stateful = op.op_def.is_stateful and op.type not in HARMLESS
            hides = stateful or op.type in PYTHON
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


def _from_outside(op: tf.Operation, op_type: str) -> bool:
    """Whether an iterator came into the step as an argument or a capture."""
    return op.type == op_type and op.inputs[0].op.type == "Placeholder"
