"""`explain`: how a model's gradients separate, before anything is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients.clipping import terms_of_units
from tf_sparse_dp.gradients.explain import (
    Explanation,
    Refusal,
    VariableExplanation,
    explained,
)
from tf_sparse_dp.gradients.memory import ExampleWrite, Memory, weights_of
from tf_sparse_dp.gradients.paths import Layers, path, stages
from tf_sparse_dp.gradients.rules.declared import declared_among
from tf_sparse_dp.gradients.separation import Gradient, Separation
from tf_sparse_dp.layers.lazy_variable import lazy_variable
from tf_sparse_dp.mechanisms.automatic import Automatic
from tf_sparse_dp.optimizers.core import (
    PrivateStep,
    lazily_trained,
    reductions,
)
from tf_sparse_dp.optimizers.wrapper import FLOAT16_REFUSAL, PrivateWrapper
from tf_sparse_dp.sampling.step_kinds import step_kinds
from tf_sparse_dp.traced_step import batch_spec, trace


def explain(model: Any, batch: Any) -> Explanation:
    """Explains how each gradient of the model's training step separates.

    Per variable: whether its gradient is a sum of outer products, of rows or
    of terms, how norms are taken, and the extra cost, estimated from shapes.
    For what would be refused: the operation, its layer, the way from there to
    the variable, and what to do. It says what `DPSparseOptimizer` would
    decide, whichever optimizer the model was compiled with.

    The number of examples counts as unknown, unless the model has a
    `DPSparseOptimizer` whose plan's sampling fixes it. A data set's own
    specification is taken as it is.

    The step is traced and not run: weights, optimizer, metrics and budget stay
    as they are. A model without variables gets them.

    Args:
      model: A compiled model.
      batch: What one step of `fit` gets: (x,), (x, y) or (x, y, weight) with
        an axis of examples, of which only shapes and dtypes matter; or a
        `tf.data.Dataset` of batches.

    Returns:
      The explanation: `print` it, or look at `variables`, `separable` and
      `refusals`.

    Raises:
      TypeError: If the model or the batch is not what is described above.
      ValueError: If the model is not compiled or applies no gradients.

    Example:
      >>> import tensorflow as tf
      >>> model = tf.keras.Sequential(
      ...     [tf.keras.Input((3,)), tf.keras.layers.Dense(2)]
      ... )
      >>> model.compile(optimizer="sgd", loss="mse")
      >>> batch = (tf.zeros([4, 3]), tf.zeros([4, 2]))
      >>> explanation = explain(model, batch)
      >>> explanation.separable
      True
      >>> [v.gradient() for v in explanation.variables]
      ['outer products, T = 1', 'terms']
    """
    reader = _Reader(model)
    spec = batch_spec(batch, _fixed_rows(model))
    trace(model, spec, reader.read, reader.forget)
    explanation = _joined(reader.found)
    # What is written after the gradients were read is known only now.
    writes = example_writes(model, reader.memories)
    remembered = [
        _whole_step(write.refusal(), reader.layers) for write in writes
    ]
    return dataclasses.replace(
        explanation, refusals=(*explanation.refusals, *remembered)
    )


def example_writes(
    model: Any, memories: Sequence[Memory]
) -> list[ExampleWrite]:
    """Writes of example data that a traced step must not do, each once."""
    own = weights_of(model)
    writes = [w for m in memories for w in m.example_writes(own)]
    return list(dict.fromkeys(writes))


def _fixed_rows(model: Any) -> int | None:
    """How many rows the batches of the plan have, if they all have as many."""
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, PrivateWrapper):
        return None
    plan = optimizer.private_step.plan
    kinds = () if plan is None else step_kinds(plan.sampling)
    return kinds[0].rows if len(kinds) == 1 else None


class _Reader:
    """Explains the gradients that a step is about to apply."""

    def __init__(self, model: Any):
        self._model = model
        self.forget()

    def forget(self) -> None:
        self.found: list[Explanation] = []
        self.memories: list[Memory] = []
        self.layers: Layers | None = None

    def read(
        self, gradients: Sequence[Gradient], variables: Sequence[Any]
    ) -> list[Any]:
        names = [getattr(v, "path", v.name) for v in variables]
        shapes = [tuple(v.shape) for v in variables]
        refusals = _refused_options(self._model)
        options: dict[str, Any] = {"model": self._model.name}
        entries: list[VariableExplanation] = []
        optimizer = self._model.optimizer
        if isinstance(optimizer, PrivateWrapper):
            options["loss_reduction"] = optimizer.loss_reduction
            options["examples_per_unit"] = optimizer.examples_per_unit
        try:
            separation = Separation(gradients, names, shapes, collect=True)
        except NotSeparableError as whole:
            # Nothing can be said of single variables.
            refusals.append(_whole_step(whole))
        else:
            self.memories.append(Memory(separation.analysis))
            entries = self._entries(separation, names, shapes)
            refusals += _grouped(entries)
            refusals += self._refused_step(separation, names)
            options["declared_rules"] = declared_among(
                separation.analysis.operations
            )
            if not isinstance(optimizer, PrivateWrapper):
                options["notes"] = _notes(separation)
            elif not refusals:
                step = optimizer.private_step
                try:
                    optimizer.check_tables(variables)
                    options["mechanism"] = _mechanism(
                        step,
                        separation,
                        [lazy_variable(v) is not None for v in variables],
                    )
                except ValueError as refused:
                    refusals.append(Refusal(reason=str(refused)))
        self.found.append(
            Explanation(
                variables=tuple(entries), refusals=tuple(refusals), **options
            )
        )
        return []

    def _entries(
        self,
        separation: Separation,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
    ) -> list[VariableExplanation]:
        layers = self.layers = self._layers(separation)
        unit = getattr(self._model.optimizer, "examples_per_unit", 1)
        entries = [
            explained(name, shape, gradient, part, unit)
            for name, shape, gradient, part in zip(
                names,
                shapes,
                separation.gradients,
                separation.parts,
                strict=True,
            )
        ]
        for place, error in separation.refusals.items():
            gradient = separation.gradients[place]
            way = path(separation.analysis, gradient, error.operation)
            entries[place] = VariableExplanation(
                name=names[place],
                shape=shapes[place],
                form="refused",
                refusal=Refusal(
                    reason=error.reason,
                    operation=error.operation,
                    layer=layers.layer(error.operation),
                    remedy=error.remedy,
                    variables=(names[place],),
                    path=stages(way, layers),
                ),
            )
        return entries

    def _layers(self, separation: Separation) -> Layers:
        graph = separation.analysis.graph
        return Layers(
            [layer.name for layer in self._model._flatten_layers()],
            self._model.name,
            [op.name for op in graph.get_operations()],
        )

    def _refused_step(
        self, separation: Separation, names: Sequence[str]
    ) -> list[Refusal]:
        """What the optimizer refuses of a step whose gradients separate."""
        refusals = []
        checks: list[Callable[[], Any]] = []
        if isinstance(self._model.optimizer, PrivateWrapper):
            step = self._model.optimizer.private_step
            checks += [
                lambda: step.check_reduction(separation, names),
                lambda: step.validity(separation),
            ]
        for check in checks:
            try:
                check()
            except NotSeparableError as error:
                refusals.append(_whole_step(error))
        return refusals


def _mechanism(
    step: PrivateStep, separation: Separation, noise_later: Sequence[bool]
) -> str:
    """The mechanism that would release these gradients, and why.

    Raises:
      ValueError: If it would refuse them.
    """
    terms, names = separation.terms()
    units, _ = terms_of_units(terms, None, step.examples_per_unit)
    later = lazily_trained(separation, noise_later)
    facts = step.public_facts(units, names, later)
    mechanism = step.resolved_mechanism(facts)
    if not isinstance(step.mechanism, Automatic):
        return f"{mechanism.description}."
    return f"{mechanism.description}: {step.mechanism.choice(facts).reason}."


def _notes(separation: Separation) -> tuple[str, ...]:
    """What an optimizer that is not private was not asked."""
    if "sum" not in reductions(separation):
        return ()
    return (
        "the loss is a sum over the examples of the batch, so "
        "DPSparseOptimizer needs loss_reduction='sum'.",
    )


def _whole_step(
    error: NotSeparableError, layers: Layers | None = None
) -> Refusal:
    layer = ""
    if layers is not None and error.operation:
        layer = layers.layer(error.operation)
    return Refusal(
        reason=error.reason or str(error),
        operation=error.operation,
        layer=layer,
        remedy=error.remedy,
    )


def _refused_options(model: Any) -> list[Refusal]:
    refusals = []
    if model.run_eagerly:
        refusals.append(
            Refusal(
                reason="The model runs eagerly, so that in fit there is no "
                "graph to prove anything about.",
                remedy="Compile it without run_eagerly=True.",
            )
        )
    loss_scaled = hasattr(model.optimizer, "inner_optimizer")
    if loss_scaled and not isinstance(model.optimizer, PrivateWrapper):
        refusals.append(Refusal(reason=FLOAT16_REFUSAL))
    return refusals


def _grouped(entries: Sequence[VariableExplanation]) -> list[Refusal]:
    """One refusal per reason, with all the variables that it reaches."""
    groups: dict[tuple[str, str], Refusal] = {}
    for entry in entries:
        refusal = entry.refusal
        if refusal is None:
            continue
        key = (refusal.operation, refusal.reason)
        first = groups.get(key)
        if first is not None:
            refusal = dataclasses.replace(
                first, variables=first.variables + refusal.variables
            )
        groups[key] = refusal
    return list(groups.values())


def _joined(found: Sequence[Explanation]) -> Explanation:
    """One explanation for a step that applies gradients several times."""
    first, *others = found
    for other in others:
        first = dataclasses.replace(
            first,
            variables=first.variables + other.variables,
            refusals=first.refusals + other.refusals,
        )
    return first
