"""Whether the arguments of an optimizer fit together."""

from __future__ import annotations

import math
from typing import Any

from tf_sparse_dp.accounting.adaptive_plan import Plan
from tf_sparse_dp.mechanisms.automatic import Automatic
from tf_sparse_dp.mechanisms.bias_reduction import BiasReduction
from tf_sparse_dp.mechanisms.events import check_event
from tf_sparse_dp.mechanisms.interface import Mechanism
from tf_sparse_dp.sampling.bias_reduced import BiasReducedSampling
from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.step_kinds import has_parts, step_kinds


def unit_size(given: Any, plan: Plan | None) -> int:
    """How many consecutive examples are one unit."""
    planned = 1 if plan is None else plan.sampling.examples_per_unit
    if given is None:
        return planned
    given = whole_number("examples_per_unit", given)
    if plan is not None and given != planned:
        raise ValueError(
            f"examples_per_unit={given} was given, but the plan's "
            f"{type(plan.sampling).__name__} has {planned}. The plan decides "
            "what one unit is: leave it out, and for users with several "
            "examples make the plan with UserSampling, or with "
            "EpochSampling(examples_per_unit=...)."
        )
    return given


def chosen_mechanism(
    mechanism: Mechanism | str, plan: Plan | None
) -> Mechanism:
    """The mechanism itself, whichever way it was named."""
    if mechanism == "auto":
        return Automatic(noise="gaussian" if plan is None else plan.noise)
    if isinstance(mechanism, Mechanism):
        return mechanism
    raise ValueError(
        f"mechanism={mechanism!r} was given; expected 'auto' or a mechanism "
        "such as tf_sparse_dp.Gaussian()."
    )


def check_noise(plan: Plan | None, mechanism: Mechanism) -> None:
    """The plan's noise multiplier must be that of the mechanism's noise."""
    check_event(mechanism)
    if plan is None or plan.noise == mechanism.noise_family:
        return
    raise ValueError(
        f"The plan accounts for {plan.noise} noise, but {mechanism!r} has "
        f"{mechanism.noise_family} noise. Expected the same of both: make the "
        f"plan with noise={mechanism.noise_family!r}, or choose a mechanism "
        f"with {plan.noise} noise."
    )


def check_parts(plan: Plan | None, mechanism: Mechanism) -> None:
    """What draws a batch in parts must be what releases it in these parts."""
    reduces = isinstance(mechanism, BiasReduction)
    drawn = plan is not None and isinstance(plan.sampling, BiasReducedSampling)
    in_parts = plan is not None and has_parts(step_kinds(plan.sampling))
    if reduces == drawn == in_parts:
        return
    sampling = "no sampling" if plan is None else repr(plan.sampling)
    raise ValueError(
        f"{mechanism!r} was given with {sampling}. Expected BiasReduction(...) "
        "together with BiasReducedSampling(...), or neither: the sampling "
        "accounts for the releases of this mechanism alone, and the mechanism "
        "needs its batches. Give a RenyiFilter, "
        "sampling=BiasReducedSampling(...) and "
        "mechanism=BiasReduction(Projection())."
    )


def check_choice(
    plan: Plan | None,
    noise_multiplier: float | None,
    expected_batch_size: float | None,
) -> None:
    """Either a plan, or what is needed without one."""
    given = [noise_multiplier is not None, expected_batch_size is not None]
    if plan is not None:
        if not isinstance(plan, Plan):
            raise TypeError(
                f"plan is a {type(plan).__name__}; expected a PrivacyPlan or a "
                "privacy filter. Build one with tf_sparse_dp.PrivacyPlan("
                "epsilon=..., delta=..., sampling=...)."
            )
        if any(given):
            raise ValueError(
                "A plan was given together with noise_multiplier or "
                "expected_batch_size. The plan fixes both: leave them out."
            )
        return
    if not all(given):
        raise ValueError(
            "No plan was given. Expected a PrivacyPlan, or both "
            "noise_multiplier and expected_batch_size (then nothing is "
            f"enforced); got noise_multiplier={noise_multiplier!r} and "
            f"expected_batch_size={expected_batch_size!r}."
        )
    check_positive("expected_batch_size", expected_batch_size)
    check_positive("noise_multiplier", noise_multiplier, zero_allowed=True)


def check_positive(name: str, value: Any, zero_allowed: bool = False) -> None:
    """A finite number above zero, or at least zero."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        good = False
    else:
        good = value > 0 or zero_allowed
    if not good:
        expected = "at least 0" if zero_allowed else "above 0"
        raise ValueError(
            f"{name}={value!r} was given; expected a finite number {expected}."
        )
