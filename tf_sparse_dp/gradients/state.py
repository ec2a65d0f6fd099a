"""What a traced step may write to variables and tables, and from what.

Writes need no data flow to matter: a later step, or another layer of this
one, reads what was written. So every write of the graph is listed, those in
called functions and branches among them, with all that the written value may
depend on. A function is looked into as far as its arguments: which of them
hold example data is for the caller to say.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.gradients import functions, internals
from tf_sparse_dp.gradients.effects import (
    BATCHES,
    CALLS,
    FLOW,
    HARMLESS,
    OUTSIDE,
    READS,
    TELLING,
    is_pending_noise,
    is_private_update,
)
from tf_sparse_dp.gradients.functions import Function, Library
from tf_sparse_dp.gradients.sizes import key


@dataclasses.dataclass(frozen=True)
class Write:
    """A write that the graph may make.

    Attributes:
      operation: Name of the operation, that of the call before it if it is in
        a function.
      kind: Type of the operation.
      handles: What may be written to: variables and tables.
      values: What is written may depend on these tensors; for a handle, on
        what is stored there.
      hidden: Whether it may depend on something else too.
      sink: Whether it goes to what has no handle, such as a queue of a device;
        `handles` are empty then.
    """

    operation: str
    kind: str
    handles: tuple[tf.Tensor, ...]
    values: tuple[tf.Tensor, ...]
    hidden: bool = False
    sink: bool = False


def writes(graph: tf.Graph, library: Library) -> list[Write]:
    """All writes of a graph, which calls functions of `library`.

    But the private ones.
    """
    return [
        write
        for op in graph.get_operations()
        if _may_matter(op.type) and not is_private(op.type, op.name)
        for write in _writes_of(op, library)
    ]


def places(handle: tf.Tensor) -> set[tuple[str, int]]:
    """The resources that a handle may stand for, by where it enters."""
    found: set[tuple[str, int]] = set()
    seen: set[str] = set()
    pending = [handle]
    while pending:
        tensor = pending.pop()
        if tensor.op.name in seen:
            continue
        seen.add(tensor.op.name)
        behind = [x for x in tensor.op.inputs if x.dtype == tf.resource]
        pending.extend(behind)
        if not behind:
            found.add(key(tensor))
    return found


def read_by(operations: Sequence[tf.Operation]) -> set[tuple[str, int]]:
    """The resources whose content may reach the operations' outputs."""
    return {
        place
        for op in operations
        if op.type not in BATCHES
        for tensor in op.inputs
        if tensor.dtype == tf.resource
        for place in places(tensor)
    }


def _writes_of(op: tf.Operation, library: Library) -> Iterator[Write]:
    handles = tuple(x for x in op.inputs if x.dtype == tf.resource)
    calls = internals.may_call(op.type)
    if not handles and not calls and internals.has_outputs(op.type):
        return  # A definition takes long to make.
    called = called_by(op.node_def)
    if takes_the_step(called, library):
        return  # What the step writes is known better from within.
    if op.type in CALLS:
        function = library.get(called[0])
        if function is not None:
            for inner in _Inside(function, library).writes():
                yield _in_graph(inner, op)
            return
    values = tuple(op.inputs)
    if _any_below(op.node_def, library, _is_sink):
        yield Write(op.name, op.type, (), values, sink=True)
    if not handles or not _any_below(op.node_def, library, _may_write):
        return
    if not called and len(handles) == 1:
        values = tuple(x for x in values if x is not handles[0])
    yield Write(op.name, op.type, handles, values)


def _in_graph(inner: _InnerWrite, call: tf.Operation) -> Write:
    tensors = list(call.inputs)
    handles = [tensors[i] for i in sorted(inner.handles)]
    return Write(
        f"{call.name}/{inner.path}",
        inner.kind,
        tuple(x for x in handles if x.dtype == tf.resource),
        tuple(tensors[i] for i in sorted(inner.values)),
        inner.hidden,
        inner.sink,
    )


@dataclasses.dataclass(frozen=True)
class _InnerWrite:
    """A write in a function, by positions of the function's arguments."""

    path: str
    kind: str
    handles: frozenset[int]
    values: frozenset[int]
    hidden: bool
    sink: bool = False


class _Inside:
    """The writes of a function's body.

    Args:
      function: The function.
      library: The functions that it may call.
    """

    def __init__(self, function: Function, library: Library):
        self._function = function
        self._library = library

    def writes(self) -> Iterator[_InnerWrite]:
        for node in self._function.nodes.values():
            if is_private(node.op, node.name) or not _may_matter(node.op):
                continue
            for write in self._writes_of(node):
                yield dataclasses.replace(
                    write, path=f"{self._function.name}/{write.path}"
                )

    def _writes_of(self, node: Any) -> Iterator[_InnerWrite]:
        names = functions.inputs(node)
        called = called_by(node)
        if node.op in CALLS:
            function = self._library.get(called[0])
            if function is not None:
                for write in _Inside(function, self._library).writes():
                    values, hidden = self._origins(
                        [names[i] for i in write.values]
                    )
                    handles = [names[i] for i in write.handles]
                    yield _InnerWrite(
                        f"{node.name}/{write.path}",
                        write.kind,
                        frozenset() if write.sink else self._handles(handles),
                        values,
                        hidden or write.hidden,
                        write.sink,
                    )
                return
        sinks = _any_below(node, self._library, _is_sink)
        stores = _may_write(node) and _any_below(
            node, self._library, _may_write
        )
        if not sinks and not stores:
            return
        values, hidden = self._origins(names)
        if sinks:
            yield _InnerWrite(
                node.name, node.op, frozenset(), values, hidden, sink=True
            )
        if stores:
            yield _InnerWrite(
                node.name, node.op, self._handles(names), values, hidden
            )

    def _handles(self, names: Sequence[str]) -> frozenset[int]:
        """Arguments that are handed on as they are."""
        found = set()
        for name in names:
            node = functions.place(name)[0]
            while node not in self._function.arguments:
                definition = self._function.nodes[node]
                if definition.op != "Identity":
                    break
                node = functions.place(definition.input[0])[0]
            if node in self._function.arguments:
                found.add(self._function.arguments[node])
        if found:
            return frozenset(found)
        return frozenset(self._function.arguments.values())

    def _origins(self, names: Sequence[str]) -> tuple[frozenset[int], bool]:
        found, hidden = origins(self._function, names, self._library)
        return frozenset(found), hidden


def origins(
    function: Function,
    names: Iterable[str],
    library: Library,
    public: Container[str] = (),
) -> tuple[set[int], bool]:
    """Arguments that tensors of a function depend on.

    Args:
      function: The function.
      names: Of the tensors.
      library: The functions that it may call.
      public: Types of operations whose outputs nothing is asked about.

    Returns:
      Positions of the arguments, and whether there may be something else.
    """
    found: set[int] = set()
    hidden = False
    seen: set[str] = set()
    pending = [functions.place(name)[0] for name in names]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in function.arguments:
            found.add(function.arguments[name])
            continue
        node = function.nodes[name]
        if node.op in public:
            continue
        hidden = hidden or may_hide(node, library)
        pending.extend(functions.place(x)[0] for x in functions.inputs(node))
    return found, hidden


def called_by(node: Any) -> list[str]:
    """Names of the functions that a node may call."""
    if not internals.may_call(node.op):
        return []
    return [
        function.name
        for attribute in node.attr.values()
        for function in (attribute.func, *attribute.list.func)
        if function.name
    ]


def has_effects(node: Any, library: Library) -> bool:
    """Whether an operation may do more than give its outputs."""
    below = _below(node, library)
    return below is None or any(
        n.op in OUTSIDE or (n.op not in HARMLESS and internals.has_state(n.op))
        for n in below
    )


def may_hide(node: Any, library: Library) -> bool:
    """Whether an operation may give what its inputs do not hold."""
    below = _below(node, library)
    return below is None or any(
        n.op in OUTSIDE
        or (
            internals.has_state(n.op)
            and n.op not in HARMLESS
            and internals.has_outputs(n.op)
        )
        for n in below
    )


def _may_write(node: Any) -> bool:
    """Whether an operation may write to what it has a handle of."""
    return node.op not in READS | BATCHES and internals.takes_resources(node)


def _is_sink(node: Any) -> bool:
    """Whether an operation takes its inputs to where nothing here stands for.

    To a device's queue, another host, hardware that holds tables of its own.
    """
    return (  # Without outputs it is there for its effect alone.
        not internals.has_outputs(node.op)
        and node.op not in TELLING | {"NoOp"}
        and not internals.takes_resources(node)
    )


@functools.cache
def _may_matter(op_type: str) -> bool:
    """Whether operations of a type may write, or be sinks; by a quick look."""
    return op_type not in READS | BATCHES and (
        internals.may_take_resources(op_type)
        or internals.may_call(op_type)
        or not internals.has_outputs(op_type)
    )


def _any_below(
    node: Any, library: Library, is_wanted: Callable[[Any], bool]
) -> bool:
    """Whether an operation, or any in functions that it calls, is such one."""
    called = called_by(node)
    if not called:
        return is_wanted(node)
    below = nodes_below(called, library)
    return below is None or any(map(is_wanted, below))


def is_private(op_type: str, name: str) -> bool:
    """Whether what an operation writes tells nothing about examples."""
    return is_private_update(op_type, name) or is_pending_noise(op_type, name)


def takes_the_step(called: Sequence[str], library: Library) -> bool | None:
    """Whether a function makes the private update.

    None if it might, where one of them cannot be looked into.
    """
    below = nodes_below(called, library, with_calls=True)
    if below is None:
        return None
    return any(is_private_update(node.op, node.name) for node in below)


def _below(node: Any, library: Library) -> list[Any] | None:
    """A node, and the operations of the functions that it calls."""
    below = nodes_below(called_by(node), library)
    return (
        [node, *below] if below is not None and node.op not in FLOW else below
    )


def nodes_below(
    called: Sequence[str], library: Library, with_calls: bool = False
) -> list[Any] | None:
    """Operations of functions and of all that they call.

    None if one of the functions cannot be looked into.
    """
    found = []
    seen: set[str] = set()
    pending = list(called)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        function = library.get(name)
        if function is None:
            return None
        for node in function.nodes.values():
            calls = called_by(node)
            pending.extend(calls)
            if with_calls or node.op not in FLOW:
                found.append(node)
    return found
