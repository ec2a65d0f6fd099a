"""What an optimizer is paid by, and what its ledger belongs to."""

from __future__ import annotations

import os
from typing import Any

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan, Plan
from tf_sparse_dp.accounting.filters.bias_reduced import BiasReducedFilter
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter
from tf_sparse_dp.accounting.ledger_file import LedgerFile
from tf_sparse_dp.accounting.ledger_header import LedgerHeader
from tf_sparse_dp.distribute import processes
from tf_sparse_dp.mechanisms.interface import Mechanism
from tf_sparse_dp.optimizers.core import PrivateStep
from tf_sparse_dp.optimizers.graph_payment import GraphPayment
from tf_sparse_dp.optimizers.payments import (
    BlockPayment,
    Payment,
    PlanPayment,
)
from tf_sparse_dp.sampling.step_kinds import has_parts, step_kinds


def adaptive_plan(
    budget: PrivacyFilter,
    sampling: Any,
    noise_multiplier: Any,
    mechanism: Mechanism | str,
) -> AdaptivePlan:
    """The plan of an optimizer that was given a filter.

    Raises:
      ValueError: Something is missing, or does not fit together.
    """
    if sampling is None or noise_multiplier is None:
        raise ValueError(
            f"{budget!r} was given with sampling={sampling!r} and "
            f"noise_multiplier={noise_multiplier!r}. Expected both: how "
            "batches are drawn, and the noise to start with."
        )
    family: Any = getattr(mechanism, "noise_family", "gaussian")
    return AdaptivePlan(
        filter=budget,
        sampling=sampling,
        kinds=step_kinds(sampling),
        noise_multiplier=noise_multiplier,
        noise=family,
    )


def described(thing: Any) -> dict[str, Any]:
    """The class and the arguments of something that can be made again."""
    return {
        "class_name": type(thing).__name__,
        "module": type(thing).__module__,
        "config": thing.get_config(),
    }


def header_of(step: PrivateStep) -> LedgerHeader:
    """What the ledger of a run belongs to."""
    plan = step.plan
    return LedgerHeader(
        account=_account(plan),
        mechanism=described(step.mechanism),
        noise=step.mechanism.noise_family,
        neighbouring_relation="add_or_remove_one"
        if plan is None
        else plan.neighbouring_relation,
        clip_norm=step.clip_norm,
        unit="example" if plan is None else plan.sampling.unit,
        spent_before=step.mechanism.spent_before,
        was_seeded=step.was_seeded,
    )


def _account(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return {"class_name": "None", "config": {}}
    if isinstance(plan, AdaptivePlan):
        budget = plan.filter
        config = budget.get_config()
        config.pop("name", None)  # Children differ in that alone.
        # Whether a file keeps the filter, and where, is no part of it.
        account = config.get("filter") or {
            "class_name": type(budget).__name__,
            "config": config,
        }
        return {**account, "sampling": described(plan.sampling)}
    return {"class_name": "PrivacyPlan", "config": plan.get_config()}


def ledger_file(
    step: PrivateStep, path: str | os.PathLike[str] | None
) -> LedgerFile | None:
    """The file that what is spent is written to beforehand.

    Raises:
      PrivacyStateError: The file belongs to something else, or was changed.
      ValueError: There is no plan.
    """
    if path is None:
        return None
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"ledger is {path!r}, expected the path of a file, which is made "
            "if it is not there."
        )
    plan = step.plan
    if plan is None:
        raise ValueError(
            f"ledger={path!r} was given without a plan, so that there is "
            "nothing to pay. Give DPSparseOptimizer a plan, or leave ledger "
            "out."
        )
    if isinstance(plan, AdaptivePlan):
        raise ValueError(
            f"ledger={path!r} was given with {plan.filter!r}. Where several "
            "runs spend a filter's budget, the filter must know of all: pass "
            f"SharedBudget({path!r}, filter) in the place of the filter, whose "
            "file is the ledger, and leave ledger out."
        )
    return LedgerFile(path, header_of(step), limit=plan.num_compositions)


def payments_for(
    step: PrivateStep, file: LedgerFile | None, run: str
) -> list[Payment]:
    """Who pays for the steps of a plan; nobody where there is none.

    Args:
      step: Of which plan and event are.
      file: Where blocks of steps are written down beforehand.
      run: The id of this run.
    """
    plan = step.plan
    if plan is None:
        return []
    counted = plan.sampling.composition_unit
    payments: list[Payment] = [PlanPayment(plan.num_compositions, counted)]
    if isinstance(plan, AdaptivePlan):
        in_graph: tuple[type[PrivacyFilter], ...] = (RenyiFilter,)
        if has_parts(step.kinds):
            in_graph = (RenyiFilter, BiasReducedFilter)
        if isinstance(plan.filter, in_graph) and counted == "step":
            return [*payments, GraphPayment(plan, step.noise_ratio, run)]
        if len(step.kinds) > 1:
            raise ValueError(
                f"{type(plan.sampling).__name__} has batches of several sizes, "
                "so that what a step costs is known only when it is taken. "
                f"Expected one of {[f.__name__ for f in in_graph]} to pay for "
                f"it, got {plan.filter!r}."
            )
        if processes.are_several():
            raise ValueError(
                f"{plan.filter!r} is paid ahead, which each of several "
                "processes would do by itself. Expected a PrivacyPlan, whose "
                "ledger the first process keeps, or a RenyiFilter."
            )
        payments.append(BlockPayment(plan.filter, step.event, run))
    if file is not None:
        payments.append(BlockPayment(file, step.event, run))
    return payments
