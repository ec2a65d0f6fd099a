"""What may be claimed about a model, in plain words."""

from __future__ import annotations

import dataclasses
from typing import Any

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan, Plan
from tf_sparse_dp.accounting.calibration import (
    overflow_charge,
    round_up,
    shown,
)
from tf_sparse_dp.accounting.events import parts_of
from tf_sparse_dp.accounting.wording import conditions, wrapped

_NEIGHBOURS = {
    "add_or_remove_one": (
        "the data with and without any one {unit} (add or remove one)"
    ),
    "zero_out": (
        "the data as it is, and with any one {unit} replaced by one that "
        "contributes nothing to any gradient (zero-out); the number and order "
        "of all others stay the same"
    ),
    "replace_one": (
        "the data as it is, and with any one {unit} replaced by any other "
        "(replace one); the number and order of all others stay the same"
    ),
}

_NOT_COVERED = (
    "Choosing hyper-parameters, features or this run among several by looking "
    "at the training data: each such run or look costs privacy of its own.",
    "Losses, metrics, gradients and progress on training data that are shown, "
    "logged or used for early stopping: Keras metrics are not private. Files "
    "of tf-keras keep their last values unless they are reset before saving.",
    "Preprocessing that was fitted to the data: vocabularies, normalisation, "
    "filtering, the labels' making.",
    "Weights that are not trained by this optimizer, and anything else that "
    "was computed from the data outside it.",
    "What the data say about a person who is not in them, or through others' "
    "records about the same person.",
    "Side channels: running time, memory, and the finite precision of "
    "floating-point noise.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """A claim of differential privacy with all that it rests on.

    `str` gives the claim in plain words; the fields are the same as data.

    Attributes:
      private: Whether a guarantee is claimed at all.
      reasons: Why not, if not.
      mechanism: What releases the gradients.
      noise: "gaussian" or "laplace".
      clip_norm: Bound on the L2 norm of one unit's contribution; for Laplace
        noise, times the square root of the number of entries that one unit
        can reach, on the L1 norm.
      noise_multiplier: Standard deviation of Gaussian noise over the bound, or
        scale of Laplace noise over the bound.
      epsilon: At the end of the plan, with what was spent before; None where
        nothing can be claimed.
      delta: Of both epsilons, with what was spent before.
      epsilon_spent: Up to now, with what was spent before; None where nothing
        can be claimed.
      spent_before: Epsilon and delta that went into the mechanism before
        training; all of the above include it.
      neighbouring_relation: "add_or_remove_one", "zero_out" or "replace_one".
      unit: What one unit is: "example", "user", or "unit" for a group of
        examples that the user has put together.
      examples_per_unit: How many examples a unit has in a batch at most.
      sampling: How batches are drawn.
      composition_unit: "step" or "pass".
      compositions: Steps taken, or passes started.
      compositions_left: Of the plan.
      accountant: "PLD", "RDP", or "pure" where delta is 0; the class of the
        filter where one pays.
      budget_left: The part of the filter's budget that is left, from 1.0 to
        0.0. None where no filter pays.
      failure_charge: The part of delta that pays, at the end of the plan, for
        releases that fail because a size was fixed beforehand. 0 if no size
        is.
      seeded: Whether a fixed seed was used.
      assumptions: What must be true for the claim to hold.
      not_covered: What the claim does not speak of.
      also_trained: Who else has trained these weights, and is not counted.
      selected: That it was chosen among several runs, by a private selection
        whose epsilon and delta these are; else empty.
    """

    private: bool
    reasons: tuple[str, ...]
    mechanism: str
    noise: str
    clip_norm: float
    noise_multiplier: float
    epsilon: float | None
    delta: float | None
    epsilon_spent: float | None
    spent_before: tuple[float, float]
    neighbouring_relation: str | None
    unit: str
    examples_per_unit: int
    sampling: str | None
    composition_unit: str
    compositions: int
    compositions_left: int | None
    accountant: str | None
    budget_left: float | None
    failure_charge: float
    seeded: bool
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    also_trained: tuple[str, ...] = ()
    selected: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, for JSON or a model card."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    def __str__(self) -> str:
        lines = ["Privacy statement", ""]
        if self.private:
            lines.append(f"Differentially private: {self._guarantee()}.")
        else:
            lines.append("NOT PRIVATE.")
            lines += [f"- {reason}" for reason in self.reasons]
            if self.epsilon_spent is not None:
                lines.append(f"Were it not for this: {self._guarantee()}.")
        lines += [line for line in (self.selected, *self.also_trained) if line]
        if self.neighbouring_relation and self.epsilon_spent is not None:
            neighbours = _NEIGHBOURS[self.neighbouring_relation]
            lines.append(
                "It compares, and makes hard to tell apart, "
                f"{neighbours.format(unit=self._whole_unit())}."
            )
        if self.epsilon_spent is not None and self.epsilon_spent not in (
            0,
            self.epsilon,
        ):
            lines.append(
                "The first holds if the number of "
                f"{'passes' if self.composition_unit == 'pass' else 'steps'} "
                "was fixed beforehand. Who stopped because of what the "
                "training showed claims the second."
            )
        if self.epsilon_spent is not None and any(self.spent_before):
            epsilon, delta = self.spent_before
            lines.append(
                f"Of this, epsilon = {shown(epsilon)} at delta = "
                f"{shown(delta)} was spent on the mechanism before training; "
                "the plan pays for the rest (epsilons and deltas add up)."
            )
        lines += [
            "",
            f"Mechanism: {self.mechanism}; {self._contribution()} clipped to "
            f"{self._bound()}, noise multiplier {self.noise_multiplier:g}"
            f"{'' if self.budget_left is None else ' in the next step'}.",
        ]
        if self.sampling is not None:
            lines.append(f"Sampling: {self.sampling.rstrip('.')}.")
        lines.append(f"Progress: {self._progress()}.")
        if self.accountant == "pure":
            lines.append(
                "Accountant: none is needed, each "
                f"{self.composition_unit}'s epsilon is added."
            )
        elif self.budget_left is not None:
            lines.append(f"Accountant: {self.accountant}, a privacy filter.")
        elif self.accountant is not None:
            lines.append(f"Accountant: {self.accountant}, of dp-accounting.")
        if self.failure_charge > 0:
            lines.append(
                "Fixed sizes: the number of rows of a release is fixed "
                "beforehand and too small with a probability of at most 2⁻¹⁰⁰, "
                f"for which {round_up(self.failure_charge, 2):g} of delta is "
                "set aside."
            )
        lines += conditions(self.assumptions, self.not_covered)
        return wrapped(lines)

    def _whole_unit(self) -> str:
        if self.unit == "example":
            return self.unit
        return f"{self.unit} with all examples of that {self.unit}"

    def _contribution(self) -> str:
        if self.examples_per_unit == 1:
            return f"contributions of one {self.unit}"
        return (
            f"contributions of one {self.unit}, the sum over at most "
            f"{self.examples_per_unit} examples in a batch,"
        )

    def _bound(self) -> str:
        if self.noise == "gaussian":
            return f"an L2 norm of {self.clip_norm:g}"
        return (
            f"an L1 norm of {self.clip_norm:g} times the square root of the "
            f"number of entries that one {self.unit} can reach"
        )

    def _guarantee(self) -> str:
        if (
            self.epsilon is None
            or self.epsilon_spent is None
            or self.delta is None
        ):
            return "epsilon is unknown"
        # Shown rounded up: a statement must not say less than was spent.
        if self.selected:
            return (
                f"epsilon = {shown(self.epsilon)} at delta = "
                f"{shown(self.delta)}"
            )
        if self.budget_left is not None:
            return (
                f"epsilon = {shown(self.epsilon)} at delta = "
                f"{shown(self.delta)}, the whole budget of the filter, of "
                f"which {self.budget_left:.1%} is left: what is released may "
                "have decided how much is spent, so that no less is claimed"
            )
        return (
            f"epsilon = {shown(self.epsilon_spent)} so far, and "
            f"{shown(self.epsilon)} at the end of the plan, at "
            f"delta = {shown(self.delta)}"
            + (" (pure differential privacy)" if self.delta == 0 else "")
        )

    def _progress(self) -> str:
        singular, plural, verb = {
            "pass": ("pass", "passes", "started"),
            "step": ("step", "steps", "taken"),
        }[self.composition_unit]
        unit = singular if self.compositions == 1 else plural
        done = f"{self.compositions} {unit} {verb}"
        if self.compositions_left is None:
            return f"{done}; no plan, so no end is enforced"
        if self.budget_left is not None:
            return f"{done}; the filter decides on every further one"
        return f"{done}, {self.compositions_left} left in the plan"


def privacy_statement(
    *,
    plan: Plan | None,
    mechanism: str,
    clip_norm: float,
    noise_multiplier: float,
    compositions: int,
    noise: str = "gaussian",
    fixed_sizes: bool = False,
    examples_per_unit: int = 1,
    seeded: bool = False,
    extra_assumptions: tuple[str, ...] = (),
    spent_before: tuple[float, float] = (0.0, 0.0),
) -> PrivacyStatement:
    """States what a run may claim; never fails for a run that may not.

    Args:
      plan: None if the optimizer was given a bare noise multiplier.
      mechanism: A few words for the mechanism, such as "Gaussian noise on every
        weight".
      clip_norm: Bound on the norm of one unit's contribution.
      noise_multiplier: The one that was used.
      compositions: Steps taken, or passes started.
      noise: The mechanism's: "gaussian" or "laplace".
      fixed_sizes: Whether the mechanism fixes sizes beforehand where the plan
        lets it, and so may fail.
      examples_per_unit: How many consecutive examples were clipped as one. A
        guarantee is claimed only if that is what the plan's sampling gives.
      seeded: Whether the noise or the batches came from a fixed seed.
      extra_assumptions: What else the mechanism relies on.
      spent_before: Epsilon and delta that were spent on the same data before,
        to make the mechanism, for the plan's neighbouring relation. Both are
        added to those of the plan (basic composition, which also holds if
        training depends on what was found before).

    Example:
      >>> statement = privacy_statement(
      ...     plan=None,
      ...     mechanism="Gaussian noise",
      ...     clip_norm=1.0,
      ...     noise_multiplier=0.0,
      ...     compositions=10,
      ... )
      >>> statement.private
      False
    """
    reasons = []
    if noise_multiplier == 0:
        reasons.append("The noise multiplier is 0: nothing hides any example.")
    elif plan is None:
        reasons.append(
            "There is no plan, so how batches were drawn and how many is not "
            "known and no epsilon follows. Give the optimizer a PrivacyPlan."
        )
    elif isinstance(plan, AdaptivePlan):
        if plan.filter.exceeded:
            reasons.append(f"More was released than {plan.filter!r} pays for.")
    elif noise_multiplier < plan.noise_multiplier:
        reasons.append(
            f"The noise multiplier used, {noise_multiplier:g}, is below the "
            f"plan's, {plan.noise_multiplier:g}."
        )
    if plan is not None and noise != plan.noise:
        reasons.append(
            f"The mechanism has {noise} noise, but the plan accounts for "
            f"{plan.noise} noise."
        )
    if plan is not None and (
        examples_per_unit != plan.sampling.examples_per_unit
    ):
        reasons.append(
            f"{examples_per_unit} consecutive examples were clipped as one, "
            f"but in the plan's sampling {plan.sampling.examples_per_unit} "
            f"belong to one {plan.sampling.unit}."
        )
    accounted = plan is not None and not reasons
    if seeded:
        reasons.append(
            "The seed is fixed: whoever knows or guesses it can take the noise "
            "off again. Seeds are for tests; leave out seed."
        )
    if plan is not None:
        unit = plan.sampling.unit
    else:
        unit = "example" if examples_per_unit == 1 else "unit"
    if plan is None or not accounted:
        epsilon = epsilon_spent = None
        failure_charge = 0.0
    else:
        failure_charge = overflow_charge(
            compositions=plan.num_compositions,
            epsilon=plan.epsilon,
            overflow_probability=plan.release_failure if fixed_sizes else 0.0,
        )
        if isinstance(plan, AdaptivePlan):
            failure_charge = 0.0  # The filter pays for it with every step.
        epsilon = spent_before[0] + plan.epsilon
        epsilon_spent = spent_before[0] + plan.epsilon_spent(compositions)
    if plan is not None and compositions > plan.num_compositions:
        reasons.append(
            f"{compositions - plan.num_compositions} more were released than "
            "the plan pays for. The epsilon so far includes them."
        )
    left = None
    if plan is not None:
        left = max(plan.num_compositions - compositions, 0)
    return PrivacyStatement(
        private=not reasons,
        reasons=tuple(reasons),
        mechanism=mechanism,
        noise=noise,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=spent_before[1] + plan.delta if plan and accounted else None,
        epsilon_spent=epsilon_spent,
        spent_before=spent_before,
        neighbouring_relation=plan.neighbouring_relation if plan else None,
        unit=unit,
        examples_per_unit=examples_per_unit,
        sampling=plan.sampling.description if plan else None,
        composition_unit=plan.sampling.composition_unit if plan else "step",
        compositions=compositions,
        compositions_left=left,
        accountant=plan.accountant if plan and accounted else None,
        budget_left=plan.filter.remaining()
        if isinstance(plan, AdaptivePlan)
        else None,
        failure_charge=failure_charge,
        seeded=seeded,
        assumptions=(
            (*_assumptions(plan, unit), *extra_assumptions)
            if plan is not None
            else extra_assumptions
        ),
        not_covered=_NOT_COVERED,
    )


def _assumptions(plan: Plan, unit: str) -> tuple[str, ...]:
    kinds = plan.kinds if isinstance(plan, AdaptivePlan) else (plan.sampling,)
    if parts_of(kinds[0]):
        batches = (
            "Every batch was drawn by the plan's own sampling, without "
            f"replacement: each set of as many {unit}s with the same "
            "probability, every time, and the rows of a batch were left in "
            "their order. Shuffled batches do not qualify."
        )
    elif kinds[0].sampling_probability is None:
        batches = (
            f"Every {unit} is in at most one batch of a pass, and batches are "
            "formed without regard to the values of the data."
        )
    else:
        batches = (
            f"Every batch was drawn by the plan's own sampling: each {unit} "
            "independently, with the same probability, every time. Shuffled "
            "batches do not qualify."
        )
    units, size = plan.sampling.num_units, plan.sampling.examples_per_unit
    if unit == "example":
        counted = (
            f"num_examples = {units} counts every example in the data, and is "
            "public. Who should be protected as a person has no more than one "
            "example in the data."
        )
    else:
        counted = (
            f"No more than {units} {unit}s are in the data, and that number is "
            "public. Who should be protected as a person is one "
            f"{unit}, to which all of their examples and no others belong."
        )
    if size > 1:
        counted += (
            f" Every {size} consecutive rows of a batch, from the first on, "
            f"are of one {unit} or padding, and that {unit} has no other rows "
            "in the batch."
        )
    adaptive: tuple[str, ...] = ()
    if isinstance(plan, AdaptivePlan):
        adaptive = (
            "Noise was changed, and training ended, for reasons that are "
            "public or that this budget paid for: losses and metrics on "
            "training data are not.",
        )
    return (
        batches,
        counted,
        *adaptive,
        "The random numbers that drew the batches and the noise are secret, "
        "and were used once.",
        "The whole training is this one: other models trained on the same data "
        "add to what is spent.",
    )
