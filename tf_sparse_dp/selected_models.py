"""The models of a selection's runs: are they what the plan accounts for?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan
from tf_sparse_dp.accounting.events import neighbouring_relation
from tf_sparse_dp.accounting.filters import PrivacyFilter
from tf_sparse_dp.accounting.filters.shared import budgets_of
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.selection import SelectionPlan

_SPENT = "What was spent stays spent."


def check_trained(value: Any, plan: SelectionPlan, filters: set[str]) -> None:
    """Compares the optimizers of what a run returned with the plan.

    Args:
      value: What `train_fn` returned.
      plan: Of the selection.
      filters: Budgets that earlier runs had; those of this one are added.

    Raises:
      ValueError: A model was trained by something else.
    """
    run = plan.run
    own: set[str] = set()
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
            if isinstance(run, tuple):
                _check_size(kept, run)
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


def _check_size(kept: Any, run: tuple[float, float]) -> None:
    budget = kept.filter if isinstance(kept, AdaptivePlan) else kept
    if budget.epsilon > run[0] or budget.delta > run[1]:
        raise ValueError(
            f"train_fn returned a model that was trained with {budget!r}, but "
            f"the selection accounts for runs with (epsilon, delta) = {run}. "
            f"Expected no more than that. {_SPENT}"
        )


def _check_filter(kept: Any, run: PrivacyFilter, filters: set[str]) -> set[str]:
    """What the filter that paid is of, which is to be like `run`, and new."""
    paid = kept.filter if isinstance(kept, AdaptivePlan) else kept
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
    if optimizer is not None and hasattr(optimizer, "apply_gradients"):
        yield optimizer
