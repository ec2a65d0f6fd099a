"""What a step remembers of its examples: in variables, in tables.

What one step writes, a later one reads, and a saved model carries away. The
gradients are private only if nothing that they read was written from example
data, be it by way of other variables; and a model is, only if none of its
own weights was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients import state
from tf_sparse_dp.gradients.ancestry import ancestors
from tf_sparse_dp.gradients.state import Write
from tf_sparse_dp.gradients.types import Free

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_ANY = ("", -1)  # A resource that may be any other.


@dataclasses.dataclass(frozen=True)
class ExampleWrite:
    """A write of example data.

    Attributes:
      operation: Name of the operation that writes.
      kind: Its type.
      variable: Name of the variable that is written; "" if it has none.
      read: Whether the gradients read it, in this step or in a later one.
      reason: What makes it example data, in words.
    """

    operation: str
    kind: str
    variable: str
    read: bool
    reason: str

    def refusal(self) -> NotSeparableError:
        """What is wrong, and what to do."""
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
                "public data, or make them Keras metrics, which are no weights."
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
        id(variable.handle)
        for metric in model.metrics
        for variable in metric.variables
    }
    return [w for w in model.weights if id(w.handle) not in metrics]


class Memory:
    """The writes of example data in a step, those traced so far.

    Args:
      analysis: The types of the step's tensors.
    """

    def __init__(self, analysis: Analysis):
        self._analysis = analysis
        self._graph = analysis.graph

    def check(self, variables: Iterable[Any] = ()) -> None:
        """Refuses a step that remembers examples where it matters.

        Args:
          variables: The model's own variables.

        Raises:
          NotSeparableError: If the step may write what it learns from examples
            into a variable that the gradients depend on, now or later, or
            into one of `variables`.
        """
        for write in self.example_writes(variables):
            raise write.refusal()

    def example_writes(
        self, variables: Iterable[Any] = ()
    ) -> list[ExampleWrite]:
        """Writes of example data to what gradients read, or to `variables`."""
        read = self._read_by(self._analysis.operations)
        names = self._names()
        own = {id(variable.handle) for variable in variables}
        kept = {
            place
            for place in self._analysis.captured_places()
            if id(self._analysis.resource(place)) in own
        }
        found = []
        for write, reason in self._tainted(read | kept):
            places = self._places(write.handles)
            reads = self._meets(places, read)
            if not reads and not self._meets(places, kept):
                continue  # It matters by way of another variable only.
            name = next((names[p] for p in sorted(places) if p in names), "")
            found.append(
                ExampleWrite(write.operation, write.kind, name, reads, reason)
            )
        return found

    def _tainted(self, kept: set[tuple[str, int]]) -> list[tuple[Write, str]]:
        """Writes of example data that reach what is kept, and why."""
        writes = self._reaching(kept)
        tainted: dict[tuple[str, int], Write] = {}
        reasons: dict[int, str] = {}
        while True:
            before = len(reasons)
            for number, write in enumerate(writes):
                if number in reasons:
                    continue
                reason = self._reason(write, tainted)
                if reason:
                    reasons[number] = reason
                    for place in self._places(write.handles):
                        tainted.setdefault(place, write)
            if len(reasons) == before:
                return [(writes[n], reasons[n]) for n in sorted(reasons)]

    def _reaching(self, kept: set[tuple[str, int]]) -> list[Write]:
        """Writes to what is kept, or to what such writes are computed from."""
        kept = set(kept)
        pending = state.writes(self._graph)
        found: list[Write] = []
        while True:
            here = [
                write
                for write in pending
                if self._meets(self._places(write.handles), kept)
            ]
            if not here:
                return found
            found.extend(here)
            pending = [write for write in pending if write not in here]
            for write in here:
                kept |= self._behind(write)

    def _reason(
        self, write: Write, tainted: dict[tuple[str, int], Write]
    ) -> str:
        if write.hidden:
            return "its value may come from outside of the step"
        for value in write.values:
            if value.dtype == tf.resource:
                continue
            kind = self._analysis.late_type(value)
            if not isinstance(kind, Free):
                return f"its value {value.name} depends on the batch"
        for place in sorted(self._behind(write)):
            for other in sorted(tainted):
                if self._meets({place}, {other}):
                    return (
                        "its value is read from what "
                        f"'{tainted[other].operation}' writes"
                    )
        return ""

    def _behind(self, write: Write) -> set[tuple[str, int]]:
        """The resources that a written value is computed from."""
        handles = [v for v in write.values if v.dtype == tf.resource]
        values = [v for v in write.values if v.dtype != tf.resource]
        operations = ancestors(self._graph, values)
        return self._places(handles) | self._read_by(operations)

    # Resources, by the placeholder through which they enter the graph.

    def _places(self, handles: Sequence[tf.Tensor]) -> set[tuple[str, int]]:
        return self._known(
            {place for handle in handles for place in state.places(handle)}
        )

    def _read_by(
        self, operations: Sequence[tf.Operation]
    ) -> set[tuple[str, int]]:
        return self._known(state.read_by(operations))

    def _known(self, places: set[tuple[str, int]]) -> set[tuple[str, int]]:
        """A variable that is an argument may be one that is captured too."""
        return {
            place if self._analysis.resource(place) is not None else _ANY
            for place in places
        }

    @staticmethod
    def _meets(
        some: set[tuple[str, int]], others: set[tuple[str, int]]
    ) -> bool:
        if not some or not others:
            return False
        return bool(some & others) or _ANY in some or _ANY in others

    def _names(self) -> dict[tuple[str, int], str]:
        """Names of variables that the graph knows, by place."""
        names = {id(v.handle): v.name for v in self._graph.variables}
        places = {
            place: names.get(id(self._analysis.resource(place)), "")
            for place in self._analysis.captured_places()
        }
        return {place: name for place, name in places.items() if name}
