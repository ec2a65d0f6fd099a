"""Where rules are kept: one per operation type.

A *typing* rule says what type an operation's outputs have. A *factoring* rule
takes a contraction over examples apart into one term per example. A *lifting*
rule carries such terms through a linear operation on a sum; a *joining* rule
does so for an operation that puts several tensors side by side.

Operations that meet a ragged or sparse feature have typing and factoring rules
of their own, so that no other rule sees such types. A *recognising* rule knows
what an operation gives from the operations before it, where no type does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import tensorflow as tf

from tf_sparse_dp.gradients.types import Mixed, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis
    from tf_sparse_dp.gradients.factors import Factor

TypingRule: TypeAlias = (
    "Callable[[Analysis, tf.Operation, Sequence[Type]], Type | list[Type]]"
)
# Of an operation with several outputs, one factor for each; None where an
# output is no sum over examples.
Factors: TypeAlias = "Factor | Sequence[Factor | None]"
FactoringRule: TypeAlias = "Callable[[Analysis, tf.Operation], Factors]"
LiftingRule: TypeAlias = (
    "Callable[[Analysis, tf.Operation, Factor, int], Factors]"
)
JoiningRule: TypeAlias = (
    "Callable[[Analysis, tf.Operation, Sequence[tf.Tensor]], tf.Tensor]"
)

RecognisingRule: TypeAlias = "Callable[[Analysis, tf.Operation], Type | None]"

TYPING: dict[str, TypingRule] = {}
RAGGED_TYPING: dict[str, TypingRule] = {}
RAGGED_FACTORING: dict[str, FactoringRule] = {}
RECOGNISING: dict[str, RecognisingRule] = {}
FACTORING: dict[str, FactoringRule] = {}
LIFTING: dict[str, LiftingRule] = {}
JOINING: dict[str, JoiningRule] = {}


def typing(*op_types: str) -> Callable[[TypingRule], TypingRule]:
    """Registers a typing rule for the named operation types."""
    return _into(TYPING, op_types)


def factoring(*op_types: str) -> Callable[[FactoringRule], FactoringRule]:
    """Registers a factoring rule for the named operation types."""
    return _into(FACTORING, op_types)


def lifting(*op_types: str) -> Callable[[LiftingRule], LiftingRule]:
    """Registers a lifting rule for the named operation types."""
    return _into(LIFTING, op_types)


def ragged_typing(*op_types: str) -> Callable[[TypingRule], TypingRule]:
    """Registers a typing rule for operations on ragged features."""
    return _into(RAGGED_TYPING, op_types)


def ragged_factoring(
    *op_types: str,
) -> Callable[[FactoringRule], FactoringRule]:
    """Registers a factoring rule for sums over ragged features' rows."""
    return _into(RAGGED_FACTORING, op_types)


def recognising(*op_types: str) -> Callable[[RecognisingRule], RecognisingRule]:
    """Registers a rule that knows an operation by those before it."""
    return _into(RECOGNISING, op_types)


def joining(*op_types: str) -> Callable[[JoiningRule], JoiningRule]:
    """Registers a joining rule for the named operation types."""
    return _into(JOINING, op_types)


def _into(table, op_types):  # type: ignore[no-untyped-def]
    def register(rule):  # type: ignore[no-untyped-def]
        # All or none: half of a declaration would be nobody's.
        for op_type in op_types:
            if op_type in table:
                raise ValueError(
                    f"A rule for {op_type} exists already, and rules cannot be "
                    "replaced. Start Python anew to give another."
                )
        table.update(dict.fromkeys(op_types, rule))
        return rule

    return register


def mixed(op: tf.Operation, reason: str, remedy: str = "") -> Mixed:
    """The type of an output that could not be proven separable."""
    return Mixed(f"{op.type} {reason}", op.name, remedy)
