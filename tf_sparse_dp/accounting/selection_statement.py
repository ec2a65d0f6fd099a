"""What may be claimed of a private selection, in plain words."""

from __future__ import annotations

import dp_accounting

from tf_sparse_dp.accounting.calibration import shown
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.selection import SelectionPlan
from tf_sparse_dp.accounting.wording import conditions, wrapped

_Relation = dp_accounting.NeighboringRelation

_NEIGHBOURS = {
    _Relation.ADD_OR_REMOVE_ONE: "the data with and without any one unit",
    _Relation.REPLACE_ONE: "the data as it is, and with any one unit replaced",
    _Relation.REPLACE_SPECIAL: (
        "the data as it is, and with any one unit replaced by one that "
        "contributes nothing to any gradient"
    ),
}

_NOT_COVERED = (
    "What was looked at to choose the options that runs draw from, score_clip "
    "and the plan; and other trainings or selections on the same data, which "
    "add to what is spent.",
    "Losses and metrics on the data, preprocessing that was fitted to them, "
    "side channels: all that the statement of one run does not cover either.",
)


def selection_statement(
    plan: SelectionPlan, filter: PrivacyFilter | None = None
) -> str:
    """What may be claimed of a selection, in plain words."""
    size = f"epsilon = {shown(plan.epsilon)} at delta = {shown(plan.delta)}"
    relation = plan.neighboring_relation or _Relation.ADD_OR_REMOVE_ONE
    count = plan.run_count
    lines = [
        "Privacy statement",
        "",
        f"Differentially private: {size}, for the whole selection. It "
        f"compares, and makes hard to tell apart, {_NEIGHBOURS[relation]}.",
    ]
    if plan.reveal_all:
        lines.append(
            f"Every one of {int(plan.mean_runs)} runs is charged (reveal_all): "
            "all of their results and noisy scores may be published."
        )
    else:
        limit = f", at most {count.most}" if count.most is not None else ""
        lines.append(
            f"One of a random number of runs, {count.mean:g} on average{limit} "
            f"(shape {count.shape:g}), whose number is secret; only the best "
            f"run is covered. Account: the {plan.form!r} form."
        )
    lines.append(f"Each run: {_described(plan)}.")
    if filter is not None:
        lines.append(
            "Paid, before the first run, by a filter with a budget of epsilon "
            f"= {shown(filter.epsilon)} at delta = {shown(filter.delta)}, "
            "which is what may be claimed of all that it paid for."
        )
    assumptions = [
        "Every run was as private as stated, with randomness of its own, and "
        "started from nothing that another run had left behind.",
    ]
    if plan.score_noise_multiplier is None:
        assumptions.append("Scores were computed from public data.")
    else:
        assumptions.append(
            "Scores were given unit by unit, each from the data of that unit "
            "and the model; they were clipped and got "
            f"{plan.score_noise} noise here. score_clip is public: it was not "
            "chosen by looking at these data. That there is more than one unit "
            "is public."
        )
    if not plan.reveal_all:
        assumptions.append(
            "Nothing of the other runs is known to anybody: no scores, logs, "
            "checkpoints, charts, nor how many there were or how long they "
            "took. Otherwise every run counts: plan with reveal_all."
        )
    lines += conditions(assumptions, _NOT_COVERED)
    return wrapped(lines)


def _described(plan: SelectionPlan) -> str:
    """What one run is, and its score."""
    run = plan.run
    if isinstance(run, PrivacyPlan):
        unit = "passes" if run.sampling.composition_unit == "pass" else "steps"
        told = (
            f"{run.num_compositions} {unit} with {run.noise} noise, noise "
            f"multiplier {run.noise_multiplier:g}, which alone is epsilon = "
            f"{shown(run.epsilon)} at delta = {shown(run.delta)}; "
            f"{run.sampling.description.rstrip('.')}"
        )
    elif isinstance(run, PrivacyFilter):
        told = (
            f"a {type(run).__name__} of its own, with a budget of epsilon = "
            f"{shown(run.epsilon)} at delta = {shown(run.delta)}"
        )
    elif isinstance(run, tuple):
        told = f"epsilon = {shown(run[0])} at delta = {shown(run[1])}"
    else:
        told = f"a {type(run).__name__} of dp_accounting"
    if plan.score_noise_multiplier is not None:
        told += (
            f"; and a score with {plan.score_noise} noise, noise multiplier "
            f"{plan.score_noise_multiplier:g}"
        )
    return told
