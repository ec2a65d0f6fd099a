"""The models of a selection's runs: are they what the plan accounts for?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan
from tf_sparse_dp.accounting.events import neighbouring_relation
from tf_sparse_dp.accounting.filters import PrivacyFilter
from tf_sparse_dp.accounting.filters.shared import budgets_of
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.selection import SelectionPlan

# What a training kept to, and the names of the budgets that paid for it.
_Training = tuple[Any, set[str]]
_SPENT = "What was spent stays spent."


def check_trained(
    value: Any, plan: SelectionPlan, begun: set[str], filters: set[str]
) -> None:
    """Compares the optimizers of what a run returned with the plan.

    Args:
      value: What `train_fn` returned.
      plan: Of the selection.
      begun: Ids of the trainings that began in the run.
      filters: Budgets that earlier runs had; those of this one are added.

    Raises:
      ValueError: A model was trained by something else.
    """
    run = plan.run
    own: set[str] = set()
    trainings: list[_Training] = []
    for optimizer in _optimizers(value, set()):
        private = hasattr(optimizer, "privacy_statement")
        if not private and isinstance(run, (PrivacyPlan, PrivacyFilter)):
            raise ValueError(
                "train_fn returned a model that is compiled with "
                f"{type(optimizer).__name__}, but the selection accounts for "
                f"runs with {run!r}. Expected a DPSparseOptimizer with it. "
                + _SPENT
            )
        if not private:
            continue
        _check_step(optimizer.private_step)
        workers = getattr(optimizer, "workers", 1)
        if workers > 1:
            raise ValueError(
                f"train_fn returned a model that {workers} processes "
                "trained together; each of them would draw how many runs there "
                "are, and choose, by itself. Expected runs of one process. "
                + _SPENT
            )
        _check_history(optimizer, begun)
        kept = optimizer.plan
        if isinstance(run, PrivacyPlan) and kept != run:
            raise ValueError(
                f"train_fn returned a model that was trained with {kept!r}, "
                f"but the selection accounts for runs with {run!r}. Train with "
                f"the latter, `run` of the selection's plan. {_SPENT}"
            )
        if isinstance(run, PrivacyFilter):
            own |= _check_filter(kept, run, filters)
        elif kept is not None:
            relation = neighbouring_relation(kept.neighbouring_relation)
            if relation is not plan.neighboring_relation:
                raise ValueError(
                    f"train_fn returned a model that is private for {relation},"
                    " but the selection's plan is for "
                    f"{plan.neighboring_relation}. Make the plan with "
                    f"neighboring_relation={relation}. {_SPENT}"
                )
        if kept is not None:
            trainings.append((_budget(kept), optimizer.trainer.budgets))
    _check_together(trainings, run)
    filters |= own


def private_optimizers(value: Any) -> list[Any]:
    """The `DPSparseOptimizer`s of the models in what a run returned."""
    return [
        optimizer
        for optimizer in _optimizers(value, set())
        if hasattr(optimizer, "mark_selected")
    ]


def _check_step(step: Any) -> None:
    """What no plan knows of, and what a statement would not forgive."""
    if step.was_seeded:
        raise ValueError(
            "train_fn returned a model whose noise has a fixed seed, so that "
            "it is not private. Leave out seed, which is for tests. " + _SPENT
        )
    if any(step.mechanism.spent_before):
        raise ValueError(
            f"train_fn returned a model that was trained with "
            f"{step.mechanism!r}, which spent privacy before training; no plan "
            "of a selection accounts for that. Choose what it chooses once, "
            f"before the selection, and add the cost to it. {_SPENT}"
        )


def _check_history(optimizer: Any, begun: set[str]) -> None:
    """What a model was trained by is this run's, and all of it is known."""
    trainer = optimizer.trainer
    if trainer.selected is not None:
        raise ValueError(
            "train_fn returned a model that an earlier selection chose; what "
            "that cost is not in this selection's plan. Train a new model in "
            "each run. It may start from the weights of the chosen one, with a "
            f"new optimizer: then the cost of both selections adds up. {_SPENT}"
        )
    if optimizer.other_trainers():
        raise ValueError(
            "train_fn returned a model whose weights another private optimizer "
            "has trained, too; what that spent is in no account of this run. "
            "Build a new model in each run, and train it with one optimizer. "
            + _SPENT
        )
    if not set(trainer.runs) <= begun:
        raise ValueError(
            "train_fn returned a model whose training began before the run: "
            "in another run, or elsewhere. Expected runs that start anew. Make "
            "model and optimizer within train_fn, and keep checkpoints in "
            f"run.directory, which each run has for itself. {_SPENT}"
        )


def _check_together(trainings: list[_Training], run: Any) -> None:
    """All that was trained in a run costs no more than the run, as a whole."""
    shared = len(trainings) < 2 or set.intersection(*(b for _, b in trainings))
    if isinstance(run, tuple):
        total = max if shared else math.fsum
        epsilon = total([0.0, *(kept.epsilon for kept, _ in trainings)])
        delta = total([0.0, *(kept.delta for kept, _ in trainings)])
        if epsilon > run[0] or delta > run[1]:
            raise ValueError(
                "train_fn returned what was trained with (epsilon, delta) = "
                f"{(epsilon, delta)} in all, but the selection accounts for "
                f"runs with {run}. Expected no more than that. {_SPENT}"
            )
    elif isinstance(run, (PrivacyPlan, PrivacyFilter)) and not shared:
        raise ValueError(
            f"train_fn returned {len(trainings)} models with a budget of their "
            f"own each, but the selection accounts for one {run!r} in a run. "
            "Expected one training, or trainings that share a filter; or a "
            "plan for what they cost together: docs/paper.md has an ensemble. "
            + _SPENT
        )


def _budget(kept: Any) -> Any:
    return kept.filter if isinstance(kept, AdaptivePlan) else kept


def _check_filter(kept: Any, run: PrivacyFilter, filters: set[str]) -> set[str]:
    """What the filter that paid is of, which is to be like `run`, and new."""
    paid = _budget(kept)
    if not isinstance(paid, PrivacyFilter) or _facts(paid) != _facts(run):
        raise ValueError(
            f"train_fn returned a model that was trained with {paid!r}"
            f"{_relation(paid)}, but the selection accounts for runs with "
            f"{run!r}{_relation(run)}. Give every run a filter of that kind "
            f"and budget. {_SPENT}"
        )
    names = budgets_of(paid)
    if names & (filters | budgets_of(run)):
        raise ValueError(
            f"train_fn returned a model that was trained with {paid!r}, which "
            "is also that of the selection's plan or of another run. Expected "
            "a filter of its own for each run, with the same budget: runs that "
            "share one are not alike. Make it within train_fn. " + _SPENT
        )
    return names


def _facts(budget: PrivacyFilter) -> tuple[Any, ...]:
    relation = budget.neighboring_relation
    return type(budget), budget.epsilon, budget.delta, relation


def _relation(budget: Any) -> str:
    if not isinstance(budget, PrivacyFilter):
        return ""
    return f" for {budget.neighboring_relation}"


def _optimizers(value: Any, seen: set[int]) -> Iterator[Any]:
    """Of compiled models, also within tuples, lists and dicts."""
    if id(value) in seen:
        return
    if isinstance(value, (tuple, list, Mapping)):
        seen.add(id(value))  # One may contain itself.
        inside = value.values() if isinstance(value, Mapping) else value
        for entry in inside:
            yield from _optimizers(entry, seen)
        return
    optimizer = getattr(value, "optimizer", None)
    # Other things than models may have an optimizer, of another kind.
    if optimizer is None or not hasattr(optimizer, "apply_gradients"):
        return
    if id(optimizer) not in seen:  # One may train several models.
        seen.add(id(optimizer))
        yield optimizer
