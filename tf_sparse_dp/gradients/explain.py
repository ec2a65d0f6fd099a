"""How each gradient of a step separates, as data and in words."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence

from tf_sparse_dp.gradients.factors import Factor, OuterFactor, RowFactor
from tf_sparse_dp.gradients.paths import Stage
from tf_sparse_dp.gradients.placed import PlacedFactor
from tf_sparse_dp.gradients.ragged_rows import RaggedRowFactor
from tf_sparse_dp.gradients.separation import Gradient, Separated

_FLOAT = 4  # Bytes of what norms are computed in.
_WIDTH = 79


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What taking a gradient apart costs, estimated from shapes.

    Per unit of privacy, which is an example unless `examples_per_unit` says
    otherwise; multiply by the number of units in a batch. Not counted: the
    clipped sum itself, because it takes the place of the gradient's own
    contraction, which is then not computed; and what is linear in the sizes
    of the factors.

    Attributes:
      contraction: Multiply-adds of the gradient's own contraction, which the
        step does with or without privacy.
      norms: Multiply-adds for the norm.
      memory: Bytes held while norms are taken.
    """

    contraction: int
    norms: int
    memory: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a step would be refused.

    Attributes:
      reason: What was found.
      operation: Name of the operation where it was found; may be empty.
      layer: The layer that the operation belongs to; may be empty.
      remedy: What to do about it.
      variables: Whose gradients it reaches; empty if the whole step is meant.
      path: From the operation to the first of the variables.
    """

    reason: str
    operation: str = ""
    layer: str = ""
    remedy: str = ""
    variables: tuple[str, ...] = ()
    path: tuple[Stage, ...] = ()

    def __str__(self) -> str:
        facts = [("Refused", self.reason)]
        if self.layer:
            facts.append(("in layer", self.layer))
        if self.operation:
            facts.append(("operation", self.operation))
        if self.path:
            stages = [str(stage) for stage in self.path]
            facts.append(("path", " -> ".join([*stages, self.variables[0]])))
        if len(self.variables) > 1:
            facts.append(("reaches", ", ".join(self.variables)))
        if self.remedy:
            facts.append(("remedy", self.remedy))
        return "\n".join(
            textwrap.fill(
                f"{name + ':':<11}{value}",
                _WIDTH,
                subsequent_indent=" " * 11,
                break_long_words=False,
                break_on_hyphens=False,
            )
            for name, value in facts
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableExplanation:
    """How the gradient of one variable separates.

    Attributes:
      name: Name of the variable.
      shape: Shape of the variable.
      form: "outer products", "rows", "terms", "no example", "no gradient" or
        "refused".
      norms: How norms are taken; empty if there are none to take.
      positions: Outer products per example (T); None for other forms.
      rows_per_example: Rows that one example touches at most (s); None for
        other forms.
      sparse: Whether the clipped sum is given as rows.
      free: Whether a part is added that no example influences, such as a
        regulariser's gradient.
      cost: What taking it apart costs; None if there is nothing to do.
      refusal: Why it does not separate; None if it does.
    """

    name: str
    shape: tuple[int, ...]
    form: str
    norms: str = ""
    positions: int | None = None
    rows_per_example: int | None = None
    sparse: bool = False
    free: bool = False
    cost: Cost | None = None
    refusal: Refusal | None = None

    def gradient(self) -> str:
        """The form in a few words."""
        words = self.form
        if self.form == "rows":
            words = "sparse rows" if self.sparse else "rows, added up densely"
            if self.rows_per_example is not None:
                words += f", s = {self.rows_per_example}"
        elif self.positions is not None:
            words += f", T = {self.positions}"
        if self.free and self.form != "no example":
            words += " + regulariser"
        return words


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Explanation:
    """How the gradients of a model's training step separate.

    `str` gives it in words, and so does the last line of a notebook's cell.

    Attributes:
      model: Name of the model.
      loss_reduction: "mean" or "sum", as the optimizer was told; empty if
        the optimizer is not private and was told nothing.
      examples_per_unit: How many consecutive examples are clipped as one.
      variables: One entry per trainable variable.
      refusals: What the step would be refused for, each once.
      declared_rules: Types of operations in the step that have a rule of the
        user's, see `tf_sparse_dp.rules`.
      mechanism: What would release the gradients, and why; empty if the
        optimizer is not private or the step would be refused.
      notes: What else `DPSparseOptimizer` needs to be told.
    """

    model: str
    loss_reduction: str = ""
    examples_per_unit: int = 1
    variables: tuple[VariableExplanation, ...]
    refusals: tuple[Refusal, ...]
    declared_rules: tuple[str, ...] = ()
    mechanism: str = ""
    notes: tuple[str, ...] = ()

    @property
    def separable(self) -> bool:
        """Whether the step would be taken."""
        return not self.refusals

    @property
    def cost(self) -> Cost:
        """What taking all gradients apart costs."""
        costs = [v.cost for v in self.variables if v.cost is not None]
        return Cost(
            contraction=sum(cost.contraction for cost in costs),
            norms=sum(cost.norms for cost in costs),
            memory=sum(cost.memory for cost in costs),
        )

    def __str__(self) -> str:
        lines = [f"Training step of '{self.model}'", ""]
        lines += _table(self.variables)
        lines += ["", *self._summary()]
        for refusal in self.refusals:
            lines += ["", str(refusal)]
        return "\n".join(lines)

    __repr__ = __str__

    def _summary(self) -> list[str]:
        unit = "Each example is clipped on its own."
        if self.examples_per_unit > 1:
            unit = (
                f"Each run of {self.examples_per_unit} consecutive examples is "
                "clipped as one unit."
            )
        reached = [v for v in self.variables if v.refusal is not None]
        if self.separable:
            sentences = [f"All gradients separate. {unit}"]
        else:
            sentences = [
                f"REFUSED: {len(reached)} of {len(self.variables)} gradients "
                "are not proven to be sums over examples."
                if reached
                else "REFUSED, although every gradient separates."
            ]
        cost = self.cost
        if cost.contraction:
            share = cost.norms / cost.contraction
            sentences.append(
                "Cost, estimated from shapes, per "
                f"{'unit' if self.examples_per_unit > 1 else 'example'}: "
                f"{cost.norms:,} multiply-adds for norms, {share:.0%} of the "
                f"{cost.contraction:,} in the gradients' own contractions (a "
                "forward and backward pass takes about three times those), and "
                f"{cost.memory:,} bytes. The clipped sums take the place of "
                "the gradients' own contractions."
            )
        if self.declared_rules:
            sentences.append(
                "This rests on rules that were declared for: "
                f"{', '.join(self.declared_rules)}."
            )
        if self.mechanism:
            sentences.append(f"Mechanism: {self.mechanism}")
        sentences += [f"Note: {note}" for note in self.notes]
        return [textwrap.fill(sentence, _WIDTH) for sentence in sentences]


def _table(variables: Sequence[VariableExplanation]) -> list[str]:
    rows = [("variable", "shape", "gradient", "norms", "cost")]
    for variable in variables:
        cost = "" if variable.cost is None else f"{variable.cost.norms:,}"
        shape = "x".join(str(size) for size in variable.shape) or "scalar"
        rows.append(
            (variable.name, shape, variable.gradient(), variable.norms, cost)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return [
        "  ".join(
            cell.rjust(width) if place == 4 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def explained(
    name: str,
    shape: Sequence[int],
    gradient: Gradient,
    part: Separated | None,
    examples_per_unit: int = 1,
) -> VariableExplanation:
    """The explanation of a gradient that was not refused."""
    shape = tuple(shape)
    if gradient is None or part is None:
        return VariableExplanation(name=name, shape=shape, form="no gradient")
    free = part.free is not None
    if part.terms is None:
        return VariableExplanation(
            name=name, shape=shape, form="no example", free=free
        )
    terms = part.terms
    form, positions, rows, sparse = "terms", None, None, False
    if isinstance(terms, OuterFactor):
        form, positions = "outer products", terms.left.shape[1]
    elif isinstance(terms, (RowFactor, PlacedFactor)):
        form, rows = "rows", terms.rows_per_example
        sparse = terms.sparse
    elif isinstance(terms, RaggedRowFactor):
        form, sparse = "rows", terms.sparse
    if examples_per_unit > 1:
        terms = terms.grouped(examples_per_unit)  # As it is clipped.
    return VariableExplanation(
        name=name,
        shape=shape,
        form=form,
        norms=terms.norms_by,
        positions=positions,
        rows_per_example=rows,
        sparse=sparse,
        free=free,
        cost=_cost(terms),
    )


def _cost(terms: Factor) -> Cost:
    size = math.prod(terms.shape)
    if isinstance(terms, OuterFactor):
        positions, rows = terms.left.shape[1:]
        columns = terms.right.shape[2]
        own = positions * rows * columns
        if terms.norms_by == "from two norms":
            return Cost(contraction=own, norms=rows + columns, memory=0)
        if terms.norms_by == "from each term":
            return Cost(
                contraction=own,
                norms=own + rows * columns,
                memory=_FLOAT * rows * columns,
            )
        pairs = positions * positions
        return Cost(
            contraction=own,
            norms=pairs * (rows + columns + 1),
            memory=2 * _FLOAT * pairs,
        )
    if isinstance(terms, PlacedFactor):
        shared, lookups = terms.ids.shape[0], terms.rows_per_example
        inner = _cost(terms.block)
        # Rows are merged, and those that were looked up are taken out.
        return Cost(
            contraction=inner.contraction + lookups - shared,
            norms=inner.norms + 2 * shared,
            memory=inner.memory + 3 * _FLOAT * shared,
        )
    if isinstance(terms, RaggedRowFactor):  # For one lookup.
        width = math.prod(terms.shape[1:])
        return Cost(contraction=width, norms=width, memory=2 * _FLOAT * width)
    if isinstance(terms, RowFactor):
        lookups, width = terms.rows_per_example, terms.values.shape[2]
        own = lookups * width
        if terms.norms_by == "from pairs of rows":
            pairs = lookups * lookups
            return Cost(
                contraction=own,
                norms=pairs * (width + 1),
                memory=_FLOAT * (pairs + own),
            )
        memory = 0 if lookups == 1 else 2 * _FLOAT * own
        return Cost(contraction=own, norms=own, memory=memory)
    return Cost(contraction=size, norms=size, memory=_FLOAT * size)
