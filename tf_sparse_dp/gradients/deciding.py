"""What decides whether a step is taken, and how often: never its examples.

A step in a branch or a loop tells, by being taken or not, what the branch or
loop depends on, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients import functions, state
from tf_sparse_dp.gradients.effects import CALLS, FLOW
from tf_sparse_dp.gradients.functions import Function, Library
from tf_sparse_dp.gradients.sizes import key

_LOOPS = frozenset({"While", "StatelessWhile"})
# Whether a data set goes on, which is no example's to say.
_GOES_ON = "OptionalHasValue"


def check_deciding(graph: tf.Graph, library: Library) -> None:
    """Refuses branches and loops around a step that data decide about.

    Args:
      graph: One from which the step is called.
      library: Its functions.

    Raises:
      NotSeparableError: If constants, variables and whether there is another
        batch are not all that decides.
    """
    for op in graph.get_operations():
        if op.type not in FLOW - CALLS:
            continue
        if not state.takes_the_step(state.called_by(op.node_def), library):
            continue
        deciding: list[tf.Tensor] | None = [op.inputs[0]]
        if op.type in _LOOPS:
            deciding = _deciding_on_loop(op, library)
        if deciding is None or not all(map(_is_public, deciding)):
            raise NotSeparableError(
                f"The step is called in a branch or loop ('{op.name}', "
                f"{op.type}) that may depend on example data, so that whether "
                "it is taken would tell about them, exactly. Take a step with "
                "every batch: clipping bounds what any example does to it."
            )


def _deciding_on_loop(
    op: tf.Operation, library: Library
) -> list[tf.Tensor] | None:
    """What the number of rounds depends on; None if that is not known."""
    names = [op.get_attr(name).name for name in ("cond", "body")]
    condition, body = map(library.get, names)
    if condition is None or body is None:
        return None
    found: set[int] = set()
    pending = _arguments(condition, condition.returns, library)
    while pending:
        found |= pending
        returns = [body.returns[i] for i in sorted(pending)]
        more = _arguments(body, returns, library)
        pending = None if more is None else more - found
    return None if pending is None else [op.inputs[i] for i in sorted(found)]


def _arguments(
    function: Function, names: Sequence[str], library: Library
) -> set[int] | None:
    """Arguments that tensors of a function depend on.

    None if they may depend on something else too.
    """
    found: set[int] = set()
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
        if node.op == _GOES_ON:
            continue
        if state.may_hide(node, library):
            return None
        pending.extend(functions.place(x)[0] for x in functions.inputs(node))
    return found


def _is_public(tensor: tf.Tensor) -> bool:
    """Whether constants and variables are all that is behind a tensor."""
    seen: set[tuple[int, str]] = set()
    pending = [tensor]
    while pending:
        tensor = pending.pop()
        if not tf.is_symbolic_tensor(tensor) or tensor.dtype == tf.resource:
            continue
        op = tensor.op
        if (id(op.graph), op.name) in seen or op.type == _GOES_ON:
            continue
        seen.add((id(op.graph), op.name))
        if op.type == "Placeholder":
            captured = {key(inner): outer for outer, inner in op.graph.captures}
            if key(tensor) not in captured:
                return False
            pending.append(captured[key(tensor)])
        elif state.may_hide(op.node_def, Library(op.graph)):
            return False
        else:
            pending.extend(op.inputs)
    return True
