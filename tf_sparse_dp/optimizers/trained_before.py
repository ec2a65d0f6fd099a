"""Which private optimizers of this process have trained a variable.

An optimizer counts its own steps. Who compiles a model anew begins a new count
on weights that were trained before: what both spent composes, and neither says
so unless it knows of the other. Nothing here keeps a model alive, and copies of
weights are not recognised.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan, Plan
from tf_sparse_dp.accounting.calibration import shown
from tf_sparse_dp.accounting.filters.shared import budgets_of
from tf_sparse_dp.accounting.selected import Selected


class Trainer:
    """What others have to know of an optimizer, also when it is gone.

    Args:
      plan: What it keeps to.
      ledger_id: Of the ledger file that it pays in; None without one.
      run: The id of its own steps.
      here: How many of them there are, a variable.
      count: All steps, those of loaded runs included, a variable.
    """

    def __init__(
        self,
        plan: Plan | None,
        ledger_id: str | None,
        run: str,
        here: tf.Variable,
        count: tf.Variable,
    ):
        self._plan = plan
        self._run, self._here, self._count = run, here, count
        self.loaded: dict[str, int] = {}  # Events of runs it goes on from.
        self.selected: Selected | None = None
        for begun in _WATCHED.values():
            begun.add(run)
        self.budgets: set[str] = set()  # What its statement is about.
        if isinstance(plan, AdaptivePlan):
            self.budgets = budgets_of(plan.filter)
        elif ledger_id is not None:
            self.budgets = {ledger_id}

    @property
    def steps(self) -> int:
        """Steps, or passes, that were spent."""
        return int(self._count.numpy())

    @property
    def runs(self) -> dict[str, int]:
        """How many events there are, by the run that they are of."""
        return {**self.loaded, self._run: int(self._here.numpy())}

    def __str__(self) -> str:
        steps, plan = self.steps, self._plan
        one, many = "step", "steps"
        if plan is not None and plan.sampling.composition_unit == "pass":
            one, many = "pass", "passes"
        told = f"{steps} {one if steps == 1 else many}"
        if self.selected is not None:
            return (
                f"{told}, selected among several runs at epsilon = "
                f"{shown(self.selected.epsilon)} and delta = "
                f"{shown(self.selected.delta)}"
            )
        if plan is None:
            return f"{told} without a plan, so that no epsilon is known"
        if isinstance(plan, AdaptivePlan):
            return (
                f"{told}, paid by a filter of epsilon = {shown(plan.epsilon)} "
                f"at delta = {shown(plan.delta)}"
            )
        epsilon = plan.epsilon_spent(steps)
        return (
            f"{told}, epsilon = {shown(epsilon)} at delta = {shown(plan.delta)}"
        )


_WATCHED: dict[int, set[str]] = {}
# By the id of a variable, which is hashed by no Keras alike.
_TRAINED: dict[int, tuple[weakref.ref[Any], list[Trainer]]] = {}


@contextlib.contextmanager
def beginnings() -> Iterator[set[str]]:
    """The ids of the trainings that begin while it lasts."""
    begun: set[str] = set()
    _WATCHED[id(begun)] = begun
    try:
        yield begun
    finally:
        del _WATCHED[id(begun)]


def register(variables: Iterable[Any], trainer: Trainer) -> None:
    """Writes down that an optimizer trains these variables."""
    for variable in variables:
        key = id(variable)
        known = _TRAINED.get(key)
        if known is None or known[0]() is not variable:

            def forget(reference: Any, key: int = key) -> None:
                if key in _TRAINED and _TRAINED[key][0] is reference:
                    del _TRAINED[key]

            known = _TRAINED[key] = (weakref.ref(variable, forget), [])
        if trainer not in known[1]:
            known[1].append(trainer)


def others_than(
    trainer: Trainer, runs: Mapping[str, int], bare: int
) -> list[Trainer]:
    """Who else trained its variables, at a cost that it does not state.

    Args:
      trainer: Of one optimizer.
      runs: Events in its ledger, by run; loaded ones are in its count.
      bare: Steps that were loaded as a number alone.
    """
    found: list[Trainer] = []
    for _, trainers in list(_TRAINED.values()):
        if trainer in trainers:
            found += [
                other
                for other in trainers
                if other is not trainer
                and other not in found
                and other.steps
                and not other.budgets & trainer.budgets
                and not _within(other.runs, runs)
                and not other.steps <= bare
            ]
    return [
        other
        for other in found
        if not any(  # One that went on from it has its steps as well.
            later is not other and _within(other.runs, later.loaded)
            for later in found
        )
    ]


def told(others: Sequence[Trainer]) -> tuple[str, ...]:
    """One line for each, for a statement."""
    return tuple(
        "These weights were trained by another private optimizer, too "
        f"({other}). What it spent is not in this figure: the two compose."
        for other in others
    )


def _within(runs: Mapping[str, int], known: Mapping[str, int]) -> bool:
    return all(known.get(run, 0) >= count for run, count in runs.items())
