"""Takes the gradients of a traced step apart into one term per example."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients.analysis import Analysis
from tf_sparse_dp.gradients.factors import DenseFactor, Factor
from tf_sparse_dp.gradients.functions import Library
from tf_sparse_dp.gradients.inlining import inlined
from tf_sparse_dp.gradients.memory import Memory
from tf_sparse_dp.gradients.placed import added, placed
from tf_sparse_dp.gradients.rules.lookups import (
    are_distinct,
    check_shared_rows,
    paired_rows,
)
from tf_sparse_dp.gradients.rules.registry import (
    FACTORING,
    JOINING,
    LIFTING,
    RAGGED_FACTORING,
    Factors,
)
from tf_sparse_dp.gradients.rules.segments import lookup_terms
from tf_sparse_dp.gradients.sinks import check_engines
from tf_sparse_dp.gradients.types import Free, Mixed, Ragged, Summed

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"
_SUMS = ("Add", "AddV2", "AddN", "Sub")


@dataclasses.dataclass(frozen=True)
class Separated:
    """One variable's gradient: a free part plus one term per example.

    Attributes:
      terms: The examples' terms; None if the gradient sees no example.
      free: What no example influences (regularisers); None if zero.
    """

    terms: Factor | None
    free: tf.Tensor | None


class Separation:
    """The gradients of one step, proven to be sums over examples.

    Args:
      gradients: What a gradient tape returned while a graph was traced.
      names: Names of the variables, for messages.
      shapes: Shapes of the variables.
      collect: Keep refusals of single variables in `refusals` instead of
        raising the first one. For reports; a step must not be taken then.

    Attributes:
      gradients: The gradients, computed without calls of functions.
      parts: One `Separated` per gradient; None where the gradient is None, or
        was refused.
      refusals: What was refused, by the gradient's place.
      inputs: All tensors of the batch, whether gradients see them or not.
      batch_size: Number of examples, a scalar int32 tensor.
      consistent: Whether all inputs have that many examples; a bool tensor
        that is known only when the step runs. It depends on shapes alone, and
        on whether ragged features are what the model takes them for: as many
        weights as ids in every example, say.

    Raises:
      NotSeparableError: If the proof fails for any of the gradients.
    """

    def __init__(
        self,
        gradients: Sequence[Gradient],
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        collect: bool = False,
    ):
        targets = _targets(gradients)
        if not targets:
            raise NotSeparableError(
                "No variable has a gradient. Expected a loss that depends on "
                "at least one trainable variable; check the loss and the "
                "variables that were passed to the optimizer."
            )
        if not all(tf.is_symbolic_tensor(target) for target in targets):
            raise NotSeparableError(
                "The gradients were computed eagerly, so there is no graph to "
                "prove that examples do not mix. Compile the model without "
                "run_eagerly=True, or put the training step into a "
                "tf.function."
            )
        graph = targets[0].graph
        check_engines(graph, Library(graph))  # Before rules are asked for.
        self.gradients = _without_calls(gradients)
        self.analysis = Analysis(_targets(self.gradients))
        self.batch_size = self.analysis.batch_size
        self.inputs = self.analysis.inputs()
        self.names = list(names)
        self.parts: list[Separated | None] = []
        self.refusals: dict[int, NotSeparableError] = {}
        for place, (gradient, name, shape) in enumerate(
            zip(self.gradients, names, shapes, strict=True)
        ):
            part = None
            try:
                if gradient is not None:
                    part = self._separate(gradient, name, tuple(shape))
            except NotSeparableError as refusal:
                if not collect:
                    raise
                self.refusals[place] = refusal
            self.parts.append(part)
        # Last: taking gradients apart may require more of the batch.
        self.consistent = self._consistency()
        if not collect:
            Memory(self.analysis).check()

    def _consistency(self) -> tf.Tensor:
        checks = [
            tf.shape(root)[0] == self.batch_size
            for root in self.analysis.batched_roots()
        ]
        rows = tf.cast(self.batch_size, tf.int64)
        for feature in self.analysis.ragged:
            checks.append(feature.well_formed(self.batch_size))
            # Examples without values may get one.
            most = tf.size(feature.values, tf.int64) + rows
            checks.append(most <= self.analysis.sizes.most_values)
        checks.append(self.batch_size <= self.analysis.sizes.most_rows)
        checks += [check() for check in self.analysis.requirements]
        return tf.reduce_all(tf.stack(checks))

    def terms(self) -> tuple[list[Factor], list[str]]:
        """Terms of the gradients that examples influence, and their names."""
        found = [
            (part.terms, name)
            for part, name in zip(self.parts, self.names, strict=True)
            if part is not None and part.terms is not None
        ]
        return [terms for terms, _ in found], [name for _, name in found]

    def _separate(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        name: str,
        shape: tuple[int, ...],
    ) -> Separated:
        if isinstance(gradient, tf.IndexedSlices):
            return self._separate_rows(gradient, name, shape)
        self._check_not_mixed(gradient, name)
        kind = self.analysis.type(gradient)
        if isinstance(kind, Free):
            return Separated(None, gradient)
        if not isinstance(kind, Summed):
            raise self._refusal(
                name,
                "its gradient still has an example axis",
                gradient.op.name,
                "Pass the gradient of a loss that is summed or averaged over "
                "examples.",
            )
        part = self._terms(gradient, name)
        if part.terms is not None and part.terms.shape != shape:
            raise self._refusal(
                name,
                f"its gradient's terms have shape {part.terms.shape} instead "
                f"of {shape}",
                gradient.op.name,
            )
        return Separated(_wide(part.terms), part.free)

    def _check_not_mixed(self, tensor: tf.Tensor, name: str) -> None:
        kind = self.analysis.type(tensor)
        if isinstance(kind, Mixed):
            raise self._refusal(name, kind.reason, kind.operation, kind.remedy)

    def _separate_rows(
        self, gradient: tf.IndexedSlices, name: str, shape: tuple[int, ...]
    ) -> Separated:
        """A gradient that is given as rows and row ids."""
        terms: list[Factor] = []
        free: list[tf.Tensor] = []
        for values, ids in paired_rows(
            self.analysis, gradient.values, gradient.indices
        ):
            part = self._rows(values, ids, name, shape)
            if part.terms is not None:
                terms.append(part.terms)
            if part.free is not None:
                free.append(part.free)
        return Separated(
            _wide(added(terms)) if terms else None,
            _sum_of(free) if free else None,
        )

    def _rows(
        self,
        values: tf.Tensor,
        ids: tf.Tensor,
        name: str,
        shape: tuple[int, ...],
    ) -> Separated:
        self._check_not_mixed(values, name)
        self._check_not_mixed(ids, name)
        kinds = (self.analysis.type(values), self.analysis.type(ids))
        operation = values.op
        if self.analysis.is_input(values):
            raise self._refusal(
                name,
                "it was computed outside of the traced step",
                operation.name,
                "Compute the gradients in the tf.function that applies them.",
            )
        try:
            if isinstance(kinds[0], Summed) and isinstance(kinds[1], Free):
                check_shared_rows(values, ids, shape)
                part = self._terms(values, name)
                terms, free = part.terms, part.free
                if terms is not None:
                    terms = placed(
                        terms,
                        ids,
                        shape,
                        sparse=True,
                        distinct=are_distinct(self.analysis, ids),
                    )
                if free is not None:
                    free = tf.convert_to_tensor(
                        tf.IndexedSlices(free, ids, tf.constant(shape))
                    )
                return Separated(terms, free)
            if isinstance(kinds[0], Free):
                raise self._refusal(
                    name, "the rows of its gradient see no example", values.name
                )
            return Separated(
                lookup_terms(self.analysis, values, ids, shape, True), None
            )
        except ValueError as error:
            if isinstance(error, NotSeparableError):
                raise
            raise self._refusal(
                name, f"{operation.type} {error}", operation.name
            ) from error

    def _terms(self, tensor: tf.Tensor, name: str) -> Separated:
        """Terms of a `Summed` tensor, by structural recursion."""
        op = tensor.op
        kinds = [self.analysis.type(x) for x in op.inputs]
        summed = [i for i, k in enumerate(kinds) if isinstance(k, Summed)]
        try:
            if not summed:
                ragged = any(isinstance(k, Ragged) for k in kinds)
                rule = (RAGGED_FACTORING if ragged else FACTORING).get(op.type)
                if rule is None:
                    raise ValueError("has no rule to take it apart")
                return Separated(_output(rule(self.analysis, op), tensor), None)
            if op.type in _SUMS:
                return self._sum(op, name)
            if op.type in JOINING:
                return self._join(op, name)
            lift = LIFTING.get(op.type)
            if lift is None or len(summed) != 1:
                raise ValueError("has no rule to take it apart")
            (index,) = summed
            inner = self._terms(op.inputs[index], name)
            terms, free = inner.terms, inner.free
            if terms is not None:
                lifted = lift(self.analysis, op, terms, index)
                terms = _output(lifted, tensor)
            if free is not None:  # A batch of one term.
                single = DenseFactor(free[tf.newaxis])
                lifted = lift(self.analysis, op, single, index)
                free = _output(lifted, tensor).per_example()[0]
            return Separated(terms, free)
        except ValueError as error:
            if isinstance(error, NotSeparableError):
                raise
            raise self._refusal(name, f"{op.type} {error}", op.name) from error

    def _sum(self, op: tf.Operation, name: str) -> Separated:
        terms: list[Factor] = []
        free: list[tf.Tensor] = []
        for place, tensor in enumerate(op.inputs):
            sign = -1.0 if op.type == "Sub" and place == 1 else 1.0
            if isinstance(self.analysis.type(tensor), Free):
                part = Separated(None, tensor)
            else:
                part = self._terms(tensor, name)
            if part.terms is not None:
                if part.terms.shape != tuple(op.outputs[0].shape):
                    raise ValueError("spreads a batch sum over a larger shape")
                terms.append(
                    part.terms if sign == 1.0 else part.terms.scaled(sign)
                )
            if part.free is not None:
                shape = op.outputs[0].shape
                free.append(sign * tf.broadcast_to(part.free, shape))
        return Separated(
            added(terms) if terms else None,
            _sum_of(free) if free else None,
        )

    def _join(self, op: tf.Operation, name: str) -> Separated:
        """Tensors side by side; what a part lacks is zero."""
        tensors = op.inputs[:-1] if op.type == "ConcatV2" else op.inputs
        parts = [
            Separated(None, tensor)
            if isinstance(self.analysis.type(tensor), Free)
            else self._terms(tensor, name)
            for tensor in tensors
        ]
        rule = JOINING[op.type]
        terms: Factor | None = None
        factors = [_wide(part.terms) for part in parts]
        present = [factor for factor in factors if factor is not None]
        if present:
            count = tf.shape(present[0].per_example())[0]
            each = [
                tf.zeros([count, *tensor.shape])
                if factor is None
                else factor.per_example()
                for factor, tensor in zip(factors, tensors, strict=True)
            ]
            slacks = [factor.squared_slack() for factor in present]
            slacks = [slack for slack in slacks if slack is not None]
            terms = DenseFactor(
                rule(self.analysis, op, each),
                tf.add_n(slacks) if slacks else None,
            )
        free: tf.Tensor | None = None
        if any(part.free is not None for part in parts):
            single = [
                tf.zeros_like(tensor) if part.free is None else part.free
                for part, tensor in zip(parts, tensors, strict=True)
            ]
            single = [tensor[tf.newaxis] for tensor in single]
            free = rule(self.analysis, op, single)[0]
        return Separated(terms, free)

    def _refusal(
        self, name: str, reason: str, operation: str, remedy: str = ""
    ) -> NotSeparableError:
        remedy = remedy or "Rewrite that part of the model or the loss."
        if self.analysis.sizes.batch_size == 1:
            remedy += (
                " A batch size of 1 that is fixed while tracing hides where "
                "the examples are: trace with TensorSpec([None, ...])."
            )
        refusal = NotSeparableError(
            f"The gradient of '{name}' is not proven to be a sum of "
            f"per-example parts: {reason} (operation '{operation}'). Nothing "
            f"was trained. {remedy} tf_sparse_dp.explain(model, batch) shows "
            "the way from there to the variable."
        )
        refusal.reason, refusal.operation = reason, operation
        refusal.remedy = remedy
        return refusal


def _sum_of(tensors: list[tf.Tensor]) -> tf.Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def _output(factors: Factors, tensor: tf.Tensor) -> Factor:
    """The factor of one of an operation's outputs."""
    factor = (
        factors if isinstance(factors, Factor) else factors[tensor.value_index]
    )
    if factor is None:
        raise ValueError("has no rule to take it apart")
    return factor


def _wide(factor: Factor | None) -> Factor | None:
    return None if factor is None else factor.cast(tf.float32)


def tensors_of(gradient: tf.Tensor | tf.IndexedSlices) -> list[tf.Tensor]:
    """The tensors that a gradient consists of."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [gradient]


def _targets(gradients: Sequence[Gradient]) -> list[tf.Tensor]:
    return [t for g in gradients if g is not None for t in tensors_of(g)]


def _without_calls(gradients: Sequence[Gradient]) -> list[Gradient]:
    tensors = iter(inlined(_targets(gradients)))
    result: list[Gradient] = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            gradient = tf.IndexedSlices(next(tensors), next(tensors))
        elif gradient is not None:
            gradient = next(tensors)
        result.append(gradient)
    return result
