"""What decides whether a step is taken, and how often: never its examples.

A step in a branch or a loop tells, by being taken or not, what the branch or
loop depends on, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients import functions, state
from tf_sparse_dp.gradients.effects import CALLS, FLOW
from tf_sparse_dp.gradients.functions import Function, Library
from tf_sparse_dp.gradients.sizes import key

_LOOPS = frozenset({"While", "StatelessWhile"})
# Whether a data set goes on, which is no example's to say.
_GOES_ON = "OptionalHasValue"


class Deciding:
    """What decides about the step that a function takes.

    Args:
      graph: Of the outermost function from which the step is called.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._library = Library(graph)

    def check(self, are_clean: Callable[[Sequence[tf.Tensor]], bool]) -> None:
        """Refuses branches and loops that data decide about.

        Args:
          are_clean: Tells of variables' handles whether no example data are
            written to what they stand for.

        Raises:
          NotSeparableError: If constants, clean variables and whether there is
            another batch are not all that decides.
        """
        for op in self._graph.get_operations():
            if op.type not in FLOW:
                continue  # A definition takes long to make.
            places = self._inputs(op.node_def)
            if places is None or not all(
                self._is_public(op.inputs[place], are_clean) for place in places
            ):
                raise NotSeparableError(
                    "The step is called in a branch or loop (in operation "
                    f"'{op.name}', {op.type}) that may depend on example data, "
                    "so that whether it is taken would tell about them, "
                    "exactly. Take a step with every batch: clipping bounds "
                    "what any example does to it."
                )

    def _inputs(self, node: Any) -> set[int] | None:
        """Inputs of a node that decide about the step, by their places.

        None if there may be something else.
        """
        called = state.called_by(node) if node.op in FLOW else []
        taken = state.takes_the_step(called, self._library)
        if not taken:  # None if it might be, by who knows what decides.
            return None if taken is None else set()
        if node.op in _LOOPS:
            return self._of_loop(node)
        # The condition of a branch is its first input, and no argument.
        first = set() if node.op in CALLS else {0}
        found = _union(self._within(self._library.get(name)) for name in called)
        return _union([first, found and {len(first) + i for i in found}])

    def _of_loop(self, node: Any) -> set[int] | None:
        names = [node.attr[name].func.name for name in ("cond", "body")]
        condition, body = map(self._library.get, names)
        if condition is None or body is None:
            return None
        found: set[int] = set()
        pending = _union(
            [
                self._arguments(condition, condition.returns),
                self._within(body),
            ]
        )
        while pending:  # What a round hands to the next.
            found |= pending
            handed = [body.returns[place] for place in sorted(pending)]
            more = self._arguments(body, handed)
            pending = None if more is None else more - found
        return None if pending is None else found

    def _within(self, function: Function | None) -> set[int] | None:
        """Arguments of a function that decide about the step in it."""
        if function is None:
            return None
        found: list[set[int] | None] = []
        for node in function.nodes.values():
            places = self._inputs(node)
            if places is None:
                return None
            names = functions.inputs(node)
            found.append(
                self._arguments(function, [names[place] for place in places])
            )
        return _union(found)

    def _arguments(
        self, function: Function, names: Iterable[str]
    ) -> set[int] | None:
        """Arguments that tensors of a function depend on.

        None if they may depend on something else too.
        """
        found, hidden = state.origins(
            function, names, self._library, public={_GOES_ON}
        )
        return None if hidden else found

    def _is_public(
        self,
        tensor: tf.Tensor,
        are_clean: Callable[[Sequence[tf.Tensor]], bool],
    ) -> bool:
        """Whether nothing of an example is behind a tensor."""
        handles: list[tf.Tensor] = []
        constants = {
            key(inner)
            for outer, inner in self._graph.captures
            if not tf.is_symbolic_tensor(outer)
        }
        seen: set[str] = set()
        pending = [tensor]
        while pending:
            tensor = pending.pop()
            op = tensor.op
            if op.name in seen or op.type == _GOES_ON:
                continue
            seen.add(op.name)
            if tensor.dtype == tf.resource:
                handles.append(tensor)
            elif op.type == "Placeholder":
                if key(tensor) not in constants:
                    return False
            elif state.may_hide(op.node_def, self._library):
                return False
            pending.extend(op.inputs)
        return are_clean(handles)


def _union(sets: Iterable[set[int] | None]) -> set[int] | None:
    found: set[int] = set()
    for some in sets:
        if some is None:
            return None
        found |= some
    return found
