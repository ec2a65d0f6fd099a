"""A traced step as a function of values, variables among them.

TensorFlow lowers a function for a platform that is not there only if it has no
variables. So the step's operations are traced anew, with the values of its
variables as arguments and results: a read gives the value, an assignment
replaces it, and branches and loops hand values in and out.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_DROPPED = ("_tpu_replicate", "_class", "_has_manual_control_dependencies")
_NOTHING = ("NoOp", "TPUReplicateMetadata", "TPUCompilationResult")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf")
_LOOPS = ("While", "StatelessWhile")
_HANDED_ON = (*_CALLS, *_BRANCHES, *_LOOPS, "Identity")


@dataclasses.dataclass(frozen=True)
class Variable:
    """Stands for a variable in place of its handle."""

    number: int


def _gather(value: Any, op: Any, ids: Any) -> Any:
    return tf.gather(value, ids, batch_dims=op.get_attr("batch_dims"))


# What an operation gives that reads a variable.
_READS: dict[str, Callable[..., Any]] = {
    "ReadVariableOp": lambda value, op: tf.identity(value),
    "ResourceGather": _gather,
    "VariableShape": lambda value, op: tf.shape(value, op.get_attr("out_type")),
}
# What a variable holds after an operation.
_WRITES: dict[str, Callable[..., Any]] = {
    "AssignVariableOp": lambda value, new: tf.identity(new),
    "AssignAddVariableOp": lambda value, more: value + more,
    "AssignSubVariableOp": lambda value, less: value - less,
    "ResourceScatterUpdate": lambda value, ids, rows: (
        tf.tensor_scatter_nd_update(value, ids[..., tf.newaxis], rows)
    ),
    "ResourceScatterAdd": lambda value, ids, rows: tf.tensor_scatter_nd_add(
        value, ids[..., tf.newaxis], rows
    ),
    "ResourceScatterSub": lambda value, ids, rows: tf.tensor_scatter_nd_sub(
        value, ids[..., tf.newaxis], rows
    ),
}


def lifted(
    operations: Sequence[tf.Operation],
    inputs: Sequence[tf.Tensor],
    variables: Sequence[Sequence[tf.Tensor]],
) -> Callable[..., list[tf.Tensor]]:
    """The function that operations compute, of values alone.

    Args:
      operations: Of one graph, whatever is needed among them.
      inputs: Tensors that are arguments.
      variables: For each variable, the handles that stand for it.

    Returns:
      A function of the inputs' values and the variables' values, that gives
      the variables' values after the operations.
    """

    def function(*arguments: tf.Tensor) -> list[tf.Tensor]:
        known: dict[Any, Any] = {
            tensor.ref(): value
            for tensor, value in zip(inputs, arguments, strict=False)
        }
        for number, handles in enumerate(variables):
            for handle in handles:
                known[handle.ref()] = Variable(number)
        values = dict(enumerate(arguments[len(inputs) :]))
        _Copy(known, values).run(operations)
        return [values[number] for number in range(len(variables))]

    return function


class _Copy:
    """Traces operations anew.

    Args:
      known: What tensors of the old graph are in the new one.
      values: What variables hold, by number; changed by `run`.
    """

    def __init__(self, known: dict[Any, Any], values: dict[int, Any]):
        self._known = known
        self._values = values

    def run(self, operations: Sequence[tf.Operation]) -> None:
        for op in in_order(operations):
            done = all(tensor.ref() in self._known for tensor in op.outputs)
            if op.type in _NOTHING or (op.outputs and done):
                continue
            found = self._run(op, [self._known[x.ref()] for x in op.inputs])
            for tensor, new in zip(op.outputs, found, strict=True):
                self._known[tensor.ref()] = new

    def _run(self, op: tf.Operation, inputs: list[Any]) -> Sequence[Any]:
        used = [x.number for x in inputs if isinstance(x, Variable)]
        if op.type in _CALLS:
            return self._called(op, "f", inputs)
        if not used:
            return self._copied(op, inputs)
        if op.type == "Identity":
            return inputs
        if op.type in _BRANCHES:
            return self._branched(op, inputs, used)
        if op.type in _LOOPS:
            return self._repeated(op, inputs, used)
        value = self._values[used[0]]
        if op.type in _READS:
            return [_READS[op.type](value, op, *inputs[1:])]
        if op.type in _WRITES:
            self._values[used[0]] = _WRITES[op.type](value, *inputs[1:])
            return []
        raise NotImplementedError(
            f"{op.type} ('{op.name}') uses a variable in a way that cannot be "
            "lifted; add it to tools/tpu_check/lifting.py."
        )

    def _called(
        self, op: tf.Operation, name: str, inputs: Sequence[Any]
    ) -> list[Any]:
        graph = op.graph._get_function(op.get_attr(name).name).graph
        known = {
            tensor.ref(): value
            for tensor, value in zip(graph.inputs, inputs, strict=True)
        }
        _Copy(known, self._values).run(graph.get_operations())
        return [known[tensor.ref()] for tensor in graph.outputs]

    def _branched(
        self, op: tf.Operation, inputs: list[Any], used: list[int]
    ) -> Sequence[Any]:
        def branch(name: str) -> Callable[[], list[Any]]:
            def run() -> list[Any]:
                values = dict(self._values)
                copy = _Copy({}, values)
                outputs = copy._called(op, name, inputs[1:])
                return [*outputs, *(values[number] for number in used)]

            return run

        found = tf.cond(
            tf.cast(inputs[0], tf.bool),
            branch("then_branch"),
            branch("else_branch"),
        )
        return self._taken_out(op, found, used)

    def _repeated(
        self, op: tf.Operation, inputs: list[Any], used: list[int]
    ) -> Sequence[Any]:
        plain = [i for i, x in enumerate(inputs) if not isinstance(x, Variable)]

        def arguments(variables: Sequence[Any]) -> tuple[Any, dict[int, Any]]:
            full = list(inputs)
            for place, value in zip(plain, variables, strict=False):
                full[place] = value
            values = dict(self._values)
            values.update(zip(used, variables[len(plain) :], strict=True))
            return full, values

        def condition(*variables: Any) -> Any:
            full, values = arguments(variables)
            return _Copy({}, values)._called(op, "cond", full)[0]

        def body(*variables: Any) -> list[Any]:
            full, values = arguments(variables)
            outputs = _Copy({}, values)._called(op, "body", full)
            return [
                *(outputs[place] for place in plain),
                *(values[number] for number in used),
            ]

        start = [inputs[place] for place in plain]
        start += [self._values[number] for number in used]
        found = tf.while_loop(condition, body, start)
        outputs = list(inputs)
        for place, value in zip(plain, found, strict=False):
            outputs[place] = value
        self._values.update(zip(used, found[len(plain) :], strict=True))
        return outputs

    def _taken_out(
        self, op: tf.Operation, found: Any, used: list[int]
    ) -> Sequence[Any]:
        found = list(found)
        count = len(op.outputs)
        self._values.update(zip(used, found[count:], strict=True))
        return found[:count]

    def _copied(self, op: tf.Operation, inputs: list[Any]) -> Sequence[Any]:
        graph = tf.compat.v1.get_default_graph()
        attributes = {
            name: value
            for name, value in op.node_def.attr.items()
            if name not in _DROPPED
        }
        for attribute in attributes.values():
            for called in (attribute.func, *attribute.list.func):
                if called.name:
                    function = op.graph._get_function(called.name)
                    graph._add_function_recursive(function)
        new = graph._create_op_internal(
            op.type,
            inputs,
            [tensor.dtype for tensor in op.outputs],
            attrs=attributes,
            op_def=op.op_def,
        )
        for tensor, old in zip(new.outputs, op.outputs, strict=True):
            tensor.set_shape(old.shape)
        return new.outputs


def in_order(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Operations after what they wait for, else as they were traced."""
    places = {op.name: place for place, op in enumerate(operations)}
    waiting = {}
    users: dict[int, list[int]] = {}
    for place, op in enumerate(operations):
        before = {tensor.op.name for tensor in op.inputs}
        before |= {other.name for other in op.control_inputs}
        before_here = [places[name] for name in before if name in places]
        waiting[place] = len(before_here)
        for other in before_here:
            users.setdefault(other, []).append(place)
    ready = [place for place, count in waiting.items() if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        place = heapq.heappop(ready)
        ordered.append(operations[place])
        for user in users.get(place, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    return ordered
