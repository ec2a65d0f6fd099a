"""What a step remembers of its examples: in variables, in tables.

What one step writes, a later one reads, and a saved model carries away. The
gradients are private only if nothing that they read was written from example
data, be it by way of other variables; and a model is, only if none of its
own weights was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients import internals, state
from tf_sparse_dp.gradients.ancestry import ancestors
from tf_sparse_dp.gradients.deciding import Deciding
from tf_sparse_dp.gradients.functions import Library
from tf_sparse_dp.gradients.rules.registry import mixed
from tf_sparse_dp.gradients.sinks import check_engines, refused_sink
from tf_sparse_dp.gradients.sizes import key
from tf_sparse_dp.gradients.state import Write
from tf_sparse_dp.gradients.types import FREE, Free, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_ANY = 0  # No object's identity: a resource that may be any other.


@dataclasses.dataclass(frozen=True)
class ExampleWrite:
    """A write of example data.

    Attributes:
      operation: Name of the operation that writes.
      kind: Its type.
      variable: Name of the variable that is written; "" if it has none.
      read: Whether the gradients read it, in this step or in a later one.
      reason: What makes it example data, in words.
      sink: Whether it goes to something that is no variable or table.
    """

    operation: str
    kind: str
    variable: str
    read: bool
    reason: str
    sink: bool = False

    def refusal(self) -> NotSeparableError:
        """What is wrong, and what to do."""
        if self.sink:
            return refused_sink(self.operation, self.kind, self.reason)
        what = f"variable '{self.variable}'" if self.variable else "variable"
        where = f"operation '{self.operation}', {self.kind}: {self.reason}"
        if self.read:
            reason = (
                f"The step writes example data into a {what} that its "
                f"gradients read ({where}), so examples would influence each "
                "other through it, now or in a later step."
            )
            remedy = (
                "Keep running statistics and memories out of the model, or "
                "compute them from public data."
            )
        else:
            reason = (
                f"The step writes example data into a {what} of the model "
                f"({where}). No gradient reads it, but it leaves with the "
                "saved model, without any noise."
            )
            remedy = (
                "Keep running statistics out of the model, compute them from "
                "public data, or make them Keras metrics and reset those "
                "before saving."
            )
        error = NotSeparableError(f"{reason} Nothing was trained. {remedy}")
        error.reason, error.remedy = reason, remedy
        error.operation = self.operation
        return error


def weights_of(model: Any) -> list[Any]:
    """A Keras model's own variables, which are saved with it.

    Its metrics and its generators of random seeds are not among them.
    """
    metrics = {
        handle
        for metric in model.metrics
        for variable in metric.variables
        for handle in _handles(variable)
    }
    return [w for w in model.weights if not metrics & set(_handles(w))]


def _handles(variable: Any) -> list[int]:
    """Identities of what a variable stands for: all its copies, on replicas."""
    native = variable
    if not isinstance(native, tf.Variable):  # Of Keras 3.
        native = getattr(variable, "value", variable)
    if isinstance(native, tf.distribute.DistributedValues):
        return [id(copy.handle) for copy in native.values]
    return [id(variable.handle)]


class Memory:
    """The writes of example data in a step, those traced so far.

    Args:
      analysis: The types of the step's tensors.
    """

    def __init__(self, analysis: Analysis):
        self.graph = analysis.graph
        self._analysis = analysis
        self._views: list[Analysis | Around] = [analysis]

    def check(self, variables: Iterable[Any] = ()) -> None:
        """Refuses a step that remembers examples where it matters.

        Args:
          variables: The model's own variables.

        Raises:
          NotSeparableError: If the step may write what it learns from examples
            into a variable that the gradients depend on, now or later, or
            into one of `variables`, or to where no variable stands for it.
        """
        for view in self._views:
            check_engines(view.graph, view.library)
        for write in self.example_writes(variables):
            raise write.refusal()

    def check_when_traced(
        self, variables: Callable[[], Iterable[Any]] = tuple
    ) -> None:
        """Checks once more when all of the step is traced.

        And when the functions are from which the step is being called, which
        may write to the same variables.

        Args:
          variables: Gives the model's own variables.
        """
        internals.when_traced(
            self._analysis.graph, lambda: self.check(variables())
        )
        graph = self._analysis.graph.outer_graph
        while internals.is_traced(graph):
            around = Around(graph)

            def check(around: Around = around) -> None:
                self._views.append(around)
                self.check(variables())

            internals.when_traced(graph, check)
            graph = graph.outer_graph
        # Gradients may be applied further inside than they were computed.
        graph = tf.compat.v1.get_default_graph()
        while internals.is_traced(graph.outer_graph):
            graph = graph.outer_graph
        internals.when_traced(
            graph, lambda: Deciding(graph).check(self._are_clean)
        )

    def _are_clean(self, handles: Sequence[tf.Tensor]) -> bool:
        """Whether the step writes no example data to what these stand for."""
        resources = {
            _resource(handle.graph, place)
            for handle in handles
            for place in state.places(handle)
        }
        return not any(
            _meet(write.resources, resources)
            for write, _ in self._tainted(resources)
        )

    def example_writes(
        self, variables: Iterable[Any] = ()
    ) -> list[ExampleWrite]:
        """Writes of example data to what gradients read, or to `variables`.

        And those to what nobody here can look at.
        """
        read = self._read_by(self._analysis, self._analysis.operations)
        own = {
            handle: getattr(variable, "path", variable.name)
            for variable in variables
            for handle in _handles(variable)
        }
        kept = set(own)
        names = {
            handle: variable.name
            for view in self._views
            for variable in view.graph.variables
            for handle in _handles(variable)
        }
        names.update(own)
        found = []
        for write, reason in self._tainted(read | kept):
            reads = _meet(write.resources, read)
            sink = write.write.sink
            if not reads and not sink and not _meet(write.resources, kept):
                continue  # It matters by way of another variable only.
            name = next((names[r] for r in write.resources if r in names), "")
            found.append(
                ExampleWrite(
                    write.write.operation,
                    write.write.kind,
                    name,
                    reads,
                    reason,
                    sink,
                )
            )
        return found

    def _tainted(self, kept: set[int]) -> list[tuple[_Known, str]]:
        """Writes of example data that reach what is kept, and why."""
        writes = self._reaching(kept)
        reasons: dict[int, str] = {}
        while True:
            before = len(reasons)
            for number, write in enumerate(writes):
                if number not in reasons:
                    reason = _reason(write, [writes[n] for n in reasons])
                    if reason:
                        reasons[number] = reason
            if len(reasons) == before:
                return [(writes[n], reasons[n]) for n in sorted(reasons)]

    def _reaching(self, kept: set[int]) -> list[_Known]:
        """Writes to what is kept, or to what such writes are computed from.

        What goes to a sink is kept.
        """
        kept = set(kept)
        found: list[_Known] = []
        pending = [
            (view, write)
            for view in self._views
            for write in state.writes(view.graph, view.library)
        ]
        while True:
            later = []
            before = len(found)
            for view, write in pending:
                resources = self._resources(view, write.handles)
                if write.sink or _meet(resources, kept):
                    behind = self._behind(view, write)
                    found.append(_Known(view, write, resources, behind))
                    kept |= behind
                else:
                    later.append((view, write))
            if len(found) == before:
                return found
            pending = later

    def _behind(self, view: Analysis | Around, write: Write) -> set[int]:
        """The resources that a written value is computed from."""
        handles = [v for v in write.values if v.dtype == tf.resource]
        values = [v for v in write.values if v.dtype != tf.resource]
        operations = ancestors(view.graph, values)
        return self._resources(view, handles) | self._read_by(view, operations)

    def _resources(
        self, view: Analysis | Around, handles: Sequence[tf.Tensor]
    ) -> set[int]:
        places = {p for handle in handles for p in state.places(handle)}
        return {_resource(view.graph, place) for place in places}

    def _read_by(
        self, view: Analysis | Around, operations: Sequence[tf.Operation]
    ) -> set[int]:
        places = state.read_by(operations)
        return {_resource(view.graph, place) for place in places}


class Around:
    """A function from which the step is called, and whose types nobody knows.

    Args:
      graph: The function's graph.
    """

    def __init__(self, graph: tf.Graph):
        self.graph = graph
        self.library = Library(graph)

    def late_type(self, tensor: tf.Tensor) -> Type:
        """`Free` if nothing but constants and variables is behind a tensor."""
        for op in ancestors(self.graph, [tensor]):
            argument = op.type == "Placeholder" and not _is_constant(op)
            if argument or state.may_hide(op.node_def, self.library):
                return mixed(op, "may hold example data")
        return FREE


@dataclasses.dataclass(frozen=True)
class _Known:
    """A write, with what is known of its surroundings.

    Attributes:
      view: Knows the types of its values.
      write: The write.
      resources: What it may write to.
      behind: What its value may be read from.
    """

    view: Analysis | Around
    write: Write
    resources: set[int]
    behind: set[int]


def _reason(known: _Known, tainted: Sequence[_Known]) -> str:
    """Why a write is one of example data; empty if it is not."""
    if known.write.hidden:
        return "its value may come from outside of the step"
    for value in known.write.values:
        if value.dtype == tf.resource:
            continue
        if not isinstance(known.view.late_type(value), Free):
            return f"its value {value.name} depends on the batch"
    for other in tainted:
        if _meet(known.behind, other.resources):
            return (
                f"its value is read from what '{other.write.operation}' writes"
            )
    return ""


def _resource(graph: tf.Graph, place: tuple[str, int]) -> int:
    """Identity of what a placeholder stands for, from the outermost graph.

    A variable that is an argument may be any, one that is captured too.
    """
    tensor = graph.get_tensor_by_name("{}:{}".format(*place))
    while tf.is_symbolic_tensor(tensor):
        captured = {key(inner): outer for outer, inner in tensor.graph.captures}
        if key(tensor) not in captured:
            return _ANY
        tensor = captured[key(tensor)]
    return id(tensor)


def _is_constant(op: tf.Operation) -> bool:
    """Whether a placeholder stands for a resource or an eager tensor."""
    (tensor,) = op.outputs
    captured = {key(inner): outer for outer, inner in op.graph.captures}
    outer = captured.get(key(tensor))
    if tensor.dtype == tf.resource:
        return True
    return outer is not None and not tf.is_symbolic_tensor(outer)


def _meet(some: set[int], others: set[int]) -> bool:
    if not some or not others:
        return False
    return bool(some & others) or _ANY in some or _ANY in others
