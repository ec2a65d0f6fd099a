"""The way from where examples mix to a variable, told by layers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.gradients.analysis import Analysis
from tf_sparse_dp.gradients.separation import Gradient, tensors_of
from tf_sparse_dp.gradients.types import Mixed

_SUFFIX = re.compile(r"_\d+$")
_BACKWARD = "gradient_tape/"
_SHAPES = frozenset({"Shape", "ShapeN", "Size"})


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of the way from where examples mix to a variable.

    Attributes:
      layer: Name of the layer, or of the scope, whose operations these are.
      backward: Whether they belong to the backward pass.
      first: Type of the first operation.
      last: Type of the last one.
    """

    layer: str
    backward: bool
    first: str
    last: str

    def __str__(self) -> str:
        operations = self.first
        if self.last != self.first:
            operations += f" .. {self.last}"
        backward = " backward" if self.backward else ""
        return f"{self.layer}{backward} ({operations})"


class Layers:
    """Finds the layer that an operation belongs to, by its name scopes.

    Args:
      names: Names of the layers.
      model: Name of the model.
      operations: Names of the graph's operations.
    """

    def __init__(
        self, names: Sequence[str], model: str, operations: Sequence[str]
    ):
        self._names = {*names, model}
        # Keras 3 opens every scope twice and works in the second, so that
        # "dense_1" is the scope of "dense"; tf-keras works in the first.
        scopes = {name.split("/")[0] for name in operations}
        self._plain = model in scopes
        self._operations = set(operations)

    def layer(self, operation: str) -> str:
        """The innermost layer, or else the outermost scope."""
        *scopes, _ = operation.removeprefix(_BACKWARD).split("/")
        for scope in reversed(scopes):
            stripped = _SUFFIX.sub("", scope)
            for name in (scope, stripped) if self._plain else (stripped, scope):
                if name in self._names:
                    return name
        # The backward pass takes the names of operations for scopes.
        if not scopes or scopes[0] in self._operations:
            return "train_step"
        return scopes[0]


def path(
    analysis: Analysis, gradient: Gradient, operation: str
) -> list[tf.Operation]:
    """The shortest way from an operation that mixes to a gradient.

    Through values if there is such a way, otherwise through shapes as well.
    """
    if gradient is None:
        return []
    return _shortest(analysis, gradient, operation, _SHAPES) or _shortest(
        analysis, gradient, operation, frozenset()
    )


def _shortest(
    analysis: Analysis,
    gradient: tf.Tensor | tf.IndexedSlices,
    operation: str,
    avoided: frozenset[str],
) -> list[tf.Operation]:
    ways = [[tensor.op] for tensor in tensors_of(gradient)]
    seen = {way[0].name for way in ways}
    while ways:
        longer = []
        for way in ways:
            if way[0].name == operation:
                return way
            for tensor in way[0].inputs:
                kind = analysis.type(tensor)
                if not isinstance(kind, Mixed) or kind.operation != operation:
                    continue
                op = tensor.op
                if op.name not in seen and op.type not in avoided:
                    seen.add(op.name)
                    longer.append([op, *way])
        ways = longer
    return []


def stages(way: Sequence[tf.Operation], layers: Layers) -> tuple[Stage, ...]:
    """A way with all operations of one layer in a row told as one."""
    found: list[Stage] = []
    for op in way:
        layer = layers.layer(op.name)
        backward = op.name.startswith(_BACKWARD)
        # What adds up the gradients of several uses stands in no scope.
        within = "/" not in op.name and bool(found)
        if found and (found[-1].layer, found[-1].backward) == (layer, backward):
            within = True
        if within:
            found[-1] = dataclasses.replace(found[-1], last=op.type)
        else:
            found.append(Stage(layer, backward, op.type, op.type))
    return tuple(found)
