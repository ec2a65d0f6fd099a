"""The functions that a graph calls, to be looked into."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from tf_sparse_dp.gradients import internals


class Function:
    """The definition of a function, with tensors named as in graphs.

    Attributes:
      name: As its author wrote it.
      arguments: Position of each argument by its name.
      nodes: Definitions of operations by name, without the arguments.
      returns: Names of the tensors that are returned.
    """

    def __init__(self, definition: Any):
        nodes, self.returns = internals.body(definition)
        self.name = _as_written(definition.signature.name)
        self.arguments = {
            arg.name: position
            for position, arg in enumerate(definition.signature.input_arg)
        }
        self.nodes = {
            node.name: node for node in nodes if node.name not in self.arguments
        }


class Library:
    """The functions that a graph may call, directly or not.

    While the graph is traced, their number grows, but none of them changes.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._functions: dict[str, Function | None] = {}
        self._definitions: dict[str, Any] = {}

    def get(self, name: str) -> Function | None:
        """A function; None if there is none that can be looked into."""
        if name not in self._functions:
            if name not in self._definitions:
                functions = self._graph.as_graph_def().library.function
                self._definitions = {f.signature.name: f for f in functions}
            definition = self._definitions.get(name)
            # One with attributes is many functions, one for each choice.
            plain = definition is not None and not definition.signature.attr
            self._functions[name] = Function(definition) if plain else None
        return self._functions[name]


def inputs(node: Any) -> list[str]:
    """Names of the tensors that a node takes; what it waits for left out."""
    return [name for name in node.input if not name.startswith("^")]


def place(tensor: str) -> tuple[str, int]:
    """The node of a tensor, and which of its outputs it is."""
    node, _, index = tensor.partition(":")
    return node, int(index or 0)


def _as_written(name: str) -> str:
    name = re.sub(r"^(__inference_|__forward_|_+)*|(_\d+)*$", "", name)
    # A lambda has brackets, and names of operations are in ASCII.
    return re.sub(r"[^a-zA-Z0-9_.-]", "", name) or "function"
