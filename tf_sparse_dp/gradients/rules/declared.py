"""Rules that users declare for operations of their own.

A declared rule is an assumption of the guarantee: nobody proves it. So it is
kept apart by name, it cannot take the place of a rule of the library, and
operations with state cannot have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import tensorflow as tf

from tf_sparse_dp.gradients import internals
from tf_sparse_dp.gradients.effects import BATCHES, CALLS, OUTSIDE
from tf_sparse_dp.gradients.rules import registry
from tf_sparse_dp.gradients.rules.registry import (
    FactoringRule,
    LiftingRule,
    TypingRule,
    mixed,
)
from tf_sparse_dp.gradients.types import Batched, Free, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

Rule = TypeVar("Rule")

_DECLARED: set[str] = set()
# What stands for the batch, for shapes, or for other code than its own.
_RESERVED = (
    BATCHES
    | CALLS
    | OUTSIDE
    | frozenset(
        "Placeholder PlaceholderWithDefault Arg Retval Shape ShapeN Size Rank "
        "If StatelessIf While StatelessWhile Case StatelessCase For MapDefun "
        "SymbolicGradient RemoteCall BatchFunction XlaLaunch".split()
    )
)


def declared() -> tuple[str, ...]:
    """The types of operations that users declared rules for, sorted."""
    return tuple(sorted(_DECLARED))


def declared_among(operations: Iterable[tf.Operation]) -> tuple[str, ...]:
    """Those of them that some of the operations are of, sorted."""
    return tuple(sorted(_DECLARED & {op.type for op in operations}))


def may_declare(op_type: str) -> bool:
    """Whether users may still declare a rule for an operation type."""
    try:
        _check(op_type)
    except ValueError:
        return False
    return op_type not in _DECLARED


def typing(*op_types: str) -> Callable[[TypingRule], TypingRule]:
    """Declares a rule that says what type an operation's outputs have.

    The rule is called as `rule(analysis, op, types)` with the types of the
    operation's inputs, none of them `Mixed` and not all of them `Free`. It
    returns one type for all outputs, or a list with one for each; whatever it
    is not sure of is `mixed(op, "says why")`.

    **Assumption of the guarantee.** If the rule says `Batched` of an output,
    each of its rows depends on one example only.

    Raises:
      ValueError: If the operation is unknown, has state, or has a rule.
    """
    return _declaring(registry.typing, op_types)


def factoring(*op_types: str) -> Callable[[FactoringRule], FactoringRule]:
    """Declares a rule that takes a sum over examples apart.

    For operations whose typing rule says `Summed` although no input is: it is
    called as `rule(analysis, op)` and returns a `Factor` with the examples'
    terms, or raises ValueError with the reason why it cannot.

    **Assumption of the guarantee.** The terms of the factor add up to the
    output, and each depends on one example only.
    """
    return _declaring(registry.factoring, op_types)


def lifting(*op_types: str) -> Callable[[LiftingRule], LiftingRule]:
    """Declares a rule that carries terms through a linear operation.

    For operations whose typing rule says `Summed` because input `index` is: it
    is called as `rule(analysis, op, factor, index)` and returns the factor of
    the output.

    **Assumption of the guarantee.** The operation is linear in that input.
    """
    return _declaring(registry.lifting, op_types)


def rowwise(*op_types: str) -> None:
    """Declares that operations treat the rows of their inputs one by one.

    Row i of every output depends on row i of those inputs that hold examples,
    and on whatever holds none: weights, constants, attributes. Rows are along
    axis 0, and there are as many in all of them. An operation's gradient is
    another operation; declare it as well if it is row by row too. Saying it
    again changes nothing.

    **Assumption of the guarantee.** That this is so. The privacy statement
    names the operations; `tf_sparse_dp.rules.check` tests it.

    Raises:
      ValueError: If an operation is unknown, has state, or has another rule.
    """
    new = [t for t in op_types if registry.TYPING.get(t) is not _row_by_row]
    typing(*new)(_row_by_row)


def _row_by_row(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type | list[Type]:
    kinds = {kind for kind in inputs if not isinstance(kind, Free)}
    kind = kinds.pop()
    if kinds or not isinstance(kind, Batched):
        return mixed(op, "is declared row by row, but its inputs do not agree")
    if kind.axis != 0:
        return mixed(
            op,
            f"is declared row by row, but examples are on axis {kind.axis}",
            "Move the examples to axis 0 before it.",
        )
    rows = analysis.sizes.rows(kind.per_example)
    for output in op.outputs:
        shape = output.shape
        if not shape.rank:
            return mixed(op, "is declared row by row, but gives no rows")
        if shape[0] is not None and shape[0] != rows:
            return mixed(
                op, f"is declared row by row, but gives {shape[0]} rows"
            )
        analysis.sizes.set_dims(output, [rows, *shape.as_list()[1:]])
    return kind


def _declaring(
    register: Callable[..., Callable[[Rule], Rule]], op_types: Sequence[str]
) -> Callable[[Rule], Rule]:
    for op_type in op_types:
        _check(op_type)
    into = register(*op_types)

    def declare(rule: Rule) -> Rule:
        into(rule)
        _DECLARED.update(op_types)
        return rule

    return declare


def _check(op_type: str) -> None:
    if not internals.is_known(op_type):
        raise ValueError(
            f"TensorFlow knows no operation of type {op_type!r}. Expected the "
            "type of an operation as op.type has it; load the library of a "
            "custom operation first (tf.load_op_library)."
        )
    if op_type in _RESERVED or internals.has_state(op_type):
        raise ValueError(
            f"{op_type} has state, stands for other code, or hands over the "
            "batch, so no rule can vouch for it. Expected an operation whose "
            "outputs are a function of its inputs."
        )
    library = any(
        op_type in table
        for table in (registry.TYPING, registry.FACTORING, registry.LIFTING)
    )
    if library and op_type not in _DECLARED:
        raise ValueError(
            f"The library has a rule for {op_type}, which cannot be replaced. "
            "If it refuses what is separable, please report it."
        )
