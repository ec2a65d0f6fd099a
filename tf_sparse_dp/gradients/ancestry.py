"""What a tensor of a graph is computed from."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def ancestors(
    graph: tf.Graph, targets: Sequence[tf.Tensor]
) -> list[tf.Operation]:
    """All operations that the targets depend on, inputs first.

    Keeps to the order in which the graph lists its operations wherever that
    order has inputs first; where operations were given other inputs later, it
    has not. Only loops have inputs that come after their users.
    """
    seen: set[str] = set()
    pending = [tensor.op for tensor in targets]
    while pending:
        op = pending.pop()
        if op.name not in seen:
            seen.add(op.name)
            pending.extend(tensor.op for tensor in op.inputs)
    behind = [op for op in graph.get_operations() if op.name in seen]
    return _inputs_first(behind)


def _inputs_first(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    ordered: list[tf.Operation] = []
    entered: set[str] = set()
    left: set[str] = set()
    for start in operations:
        path = [start]
        while path:
            op = path[-1]
            if op.name not in entered:
                entered.add(op.name)
                path.extend(
                    tensor.op
                    for tensor in op.inputs
                    if tensor.op.name not in entered
                )
                continue
            path.pop()
            if op.name not in left:
                left.add(op.name)
                ordered.append(op)
    return ordered
