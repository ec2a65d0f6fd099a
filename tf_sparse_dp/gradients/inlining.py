"""Puts the bodies of called functions in place of the calls.

A layer inside its own `tf.function` is one operation of the step's graph, a
call, and so is its share of the backward pass. Rules speak of plain
operations, so what the gradients need of the bodies is copied into the step's
graph, and whoever used a call's outputs gets those of the copy. What is then
proven about the graph holds for what runs, because the copy is what runs.

Of a body only what the gradients are computed from is copied, once per call,
so that the backward pass sees the values of its own forward pass. Nothing
that has a side effect is copied: writes stay with the call, which remains in
the graph. Random numbers are drawn anew by the copy, and variables that the
body writes are read as the call leaves them; neither changes what examples
can see of each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients import functions, internals, state
from tf_sparse_dp.gradients.effects import CALLS
from tf_sparse_dp.gradients.functions import Function, Library
from tf_sparse_dp.gradients.sizes import key

# What stands for a tensor once calls are gone: a tensor of the step's graph,
# or the name that its copy will have there.
_Standin: TypeAlias = "tf.Tensor | str"


def inlined(targets: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The targets, computed by plain operations instead of calls.

    Operations of the graph that use what is copied are changed to use the
    copy. A graph without calls behind the targets stays as it is.

    Raises:
      NotSeparableError: If the targets are computed in a function by an
        operation that may not run twice.
    """
    return _Inlining(targets).targets


@dataclasses.dataclass
class _Body:
    """One call of a function.

    Attributes:
      function: What is called.
      prefix: Of the names of copied operations.
      call: The call in the step's graph that it is part of.
      parent: The body in which it is called; None for the step's graph.
      inputs: Tensors of the step's graph, or names of tensors of the parent.
      bodies: Those of the calls in this body.
    """

    function: Function
    prefix: str
    call: tf.Operation
    parent: _Body | None
    inputs: list[Any]
    bodies: dict[str, _Body | None] = dataclasses.field(default_factory=dict)


class _Inlining:
    def __init__(self, targets: Sequence[tf.Tensor]):
        self._graph = targets[0].graph
        self._library = Library(self._graph)
        self._bodies: dict[str, _Body | None] = {}
        self._standins: dict[tuple[str, int], _Standin] = {}
        self._replaced: list[tf.Tensor] = []
        self._copies: dict[str, tuple[_Body, Any]] = {}
        self._borrowed: dict[str, tf.Tensor] = {}
        self._seen: set[str] = set()
        self._pending: list[tuple[_Body | None, Any]] = []
        found = [self._in_graph(target) for target in targets]
        while self._pending:
            body, node = self._pending.pop()
            if body is None:
                for tensor in node.inputs:
                    self._in_graph(tensor)
            else:
                self._copy(body, node)
        self._insert()
        self.targets = [self._tensor(standin) for standin in found]

    # What is needed.

    def _in_graph(self, tensor: tf.Tensor) -> _Standin:
        """What stands for a tensor of the step's graph."""
        if key(tensor) in self._standins:
            return self._standins[key(tensor)]
        op, index = tensor.op, tensor.value_index
        standin: _Standin = tensor
        if op.type == "IdentityN":
            # What tf.custom_gradient leaves; it joins tensors in name only.
            standin = self._in_graph(op.inputs[index])
        elif op.type in CALLS and self._body(op) is not None:
            body: Any = self._body(op)
            standin = self._in_body(body, body.function.returns[index])
        elif op.name not in self._seen:
            self._seen.add(op.name)
            self._pending.append((None, op))
        self._standins[key(tensor)] = standin
        if standin is not tensor:
            self._replaced.append(tensor)
        return standin

    def _in_body(self, body: _Body, tensor: str) -> _Standin:
        """What stands for a tensor of a function's body."""
        name, index = functions.place(tensor)
        position = body.function.arguments.get(name)
        if position is not None:
            if body.parent is None:
                return self._in_graph(body.inputs[position])
            return self._in_body(body.parent, body.inputs[position])
        node = body.function.nodes[name]
        if node.op == "IdentityN":
            return self._in_body(body, node.input[index])
        if node.op in CALLS:
            called = self._body_inside(body, node)
            if called is not None:
                return self._in_body(called, called.function.returns[index])
        copied = f"{body.prefix}/{name}"
        if copied not in self._seen:
            self._seen.add(copied)
            self._pending.append((body, node))
        return f"{copied}:{index}"

    def _body(self, call: tf.Operation) -> _Body | None:
        if call.name not in self._bodies:
            function = self._library.get(call.get_attr("f").name)
            self._bodies[call.name] = None
            if function is not None:
                prefix = f"{call.name}/{function.name}"
                self._bodies[call.name] = _Body(
                    function,
                    self._graph.unique_name(prefix),
                    call,
                    None,
                    list(call.inputs),
                )
        return self._bodies[call.name]

    def _body_inside(self, body: _Body, node: Any) -> _Body | None:
        if node.name not in body.bodies:
            function = self._library.get(node.attr["f"].func.name)
            body.bodies[node.name] = None
            if function is not None:
                body.bodies[node.name] = _Body(
                    function,
                    f"{body.prefix}/{node.name}/{function.name}",
                    body.call,
                    body,
                    functions.inputs(node),
                )
        return body.bodies[node.name]

    # The copy.

    def _copy(self, body: _Body, node: Any) -> None:
        name = f"{body.prefix}/{node.name}"
        if state.has_effects(node, self._library):
            raise NotSeparableError(
                "The gradients are computed in the function "
                f"'{body.function.name}' with {node.op}, which has side "
                "effects or sees those of others, so nothing is proven about "
                f"it (operation '{name}'). Nothing was trained. Take that "
                "operation out of the model, or compute it outside the "
                "training step, in the input pipeline."
            )
        copy = tf.compat.v1.NodeDef()
        copy.CopyFrom(node)
        copy.name = name
        del copy.input[:]
        # What the operation waited for is a side effect or a write, and stays
        # with the call.
        for tensor in functions.inputs(node):
            standin = self._in_body(body, tensor)
            if isinstance(standin, tf.Tensor):
                self._borrowed[standin.name] = standin
                standin = standin.name
            copy.input.append(standin)
        # Colocation may name operations that are not copied.
        copy.attr.pop("_class", None)
        self._copies[name] = (body, copy)

    def _insert(self) -> None:
        if self._copies:
            graph_def = tf.compat.v1.GraphDef()
            graph_def.versions.CopyFrom(self._graph.graph_def_versions)
            graph_def.node.extend(copy for _, copy in self._copies.values())
            with self._graph.as_default():
                tf.graph_util.import_graph_def(
                    graph_def, input_map=self._borrowed, name=""
                )
        for name, (body, _) in self._copies.items():
            internals.read_after(
                self._graph.get_operation_by_name(name), body.call
            )
        for old in self._replaced:
            new = self._tensor(self._standins[key(old)])
            # The call may have known more than its operations tell.
            new.set_shape(old.shape)
            for user in old.consumers():
                # A call that was copied is no longer used; with the outputs
                # of the copies it would wait for them in vain.
                if user.type not in CALLS:
                    internals.use_instead(user, old, new)

    def _tensor(self, standin: _Standin) -> tf.Tensor:
        if isinstance(standin, tf.Tensor):
            return standin
        return self._graph.get_tensor_by_name(standin)
