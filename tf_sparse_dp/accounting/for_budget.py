"""Plans that a budget pays for: how much noise, how long, how large."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from tf_sparse_dp.accounting.accountants import ideal_epsilon
from tf_sparse_dp.accounting.calibration import OverflowsTooOften
from tf_sparse_dp.accounting.disk_cache import remember, remembered
from tf_sparse_dp.accounting.events import Noise, Sampling, check_sampling
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.progress import Progress
from tf_sparse_dp.accounting.search import largest_within
from tf_sparse_dp.errors import PrivacyWarning

_SLOW = 1.0  # Seconds; answers that took less are not kept on disk.


def noise_for_budget(
    sampling: Sampling,
    *,
    epsilon: float,
    delta: float,
    noise: Noise = "gaussian",
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> PrivacyPlan:
    """The plan with the least noise that fits the budget.

    As `PrivacyPlan(epsilon=epsilon, ...)`, which finds the noise anew each
    time and says nothing while it does.

    Args:
      sampling: How batches are drawn, and how many.
      epsilon: The budget.
      delta: The budget.
      noise: "gaussian" or "laplace".
      cache: Whether answers that took long are kept on disk, in the directory
        that `TF_SPARSE_DP_CACHE` names (`off` for none) or the user's. What
        was kept is evaluated before it is used: it can save time, but not
        noise.
      progress: Is called with a line for everything that is tried. If None, a
        search that takes long writes lines to stderr.

    Returns:
      The plan; `plan.noise_multiplier` is the answer.

    Raises:
      TypeError, ValueError: As `PrivacyPlan`.

    Example:
      >>> from tf_sparse_dp.sampling import PoissonSampling
      >>> sampling = PoissonSampling(
      ...     num_examples=10_000, batch_size=1_000, epochs=2
      ... )
      >>> noise_for_budget(sampling, epsilon=3.0, delta=1e-6).noise_multiplier
      1.2007
    """
    check_sampling(sampling)
    question = _question(
        "noise", sampling, epsilon=epsilon, delta=delta, noise=noise
    )
    watch = Progress("noise for a budget", progress)
    with watch.watching():
        if cache:
            kept = remembered(question)
            plan = _kept_noise(sampling, epsilon, delta, noise, kept)
            if plan is not None:
                return plan
        plan = PrivacyPlan(
            epsilon=epsilon, delta=delta, sampling=sampling, noise=noise
        )
    if cache and watch.seconds >= _SLOW:
        remember(question, plan.noise_multiplier)
    return plan


def _kept_noise(
    sampling: Sampling,
    epsilon: float,
    delta: float,
    noise: Noise,
    kept: float | None,
) -> PrivacyPlan | None:
    """The plan with this noise, if it fits epsilon and hardly less would."""
    if kept is None or not 1e-3 <= kept < math.inf:
        return None
    found = _epsilon(sampling, kept, delta, noise)
    if not 0.99 * epsilon <= found <= epsilon:
        return None
    return PrivacyPlan.from_config(
        {
            "epsilon": epsilon,
            "delta": delta,
            "noise_multiplier": kept,
            "noise": noise,
            "sampling": sampling,
        }
    )


def steps_for_budget(
    sampling: Sampling,
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    noise: Noise = "gaussian",
    at_most: int = 10_000_000,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> PrivacyPlan:
    """The longest plan that fits the budget, to the last step.

    Epsilon rises with every step (with every pass, where units are in one
    batch of a pass), since fewer are a part of more. The plan that is returned
    was evaluated, and one step more was too, unless it has `at_most` of them:
    then the budget may pay for more.

    Args:
      sampling: A `PoissonSampling`, `UserSampling` or `EpochSampling`; how long
        it is does not matter. A `max_batch_size` that was chosen by default is
        chosen anew for every length.
      noise_multiplier: Of every step.
      epsilon: The budget.
      delta: The budget.
      noise: "gaussian" or "laplace".
      at_most: The answer if the budget pays for as many or more. Raise it to
        learn how many more.
      cache: As in `noise_for_budget`.
      progress: As in `noise_for_budget`.

    Returns:
      The plan; `plan.num_compositions` is the answer.

    Raises:
      TypeError: The sampling cannot be lengthened.
      ValueError: Not even one step fits, or as `PrivacyPlan`.

    Example:
      >>> from tf_sparse_dp.sampling import PoissonSampling
      >>> sampling = PoissonSampling(
      ...     num_examples=10_000, batch_size=1_000, steps=1
      ... )
      >>> plan = steps_for_budget(
      ...     sampling, noise_multiplier=2.0, epsilon=3.0, delta=1e-6
      ... )
      >>> plan.num_compositions, plan.sampling.num_steps
      (125, 125)
    """
    return _largest(
        "steps",
        sampling,
        "with_compositions",
        at_most,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        noise=noise,
        cache=cache,
        progress=progress,
    )


def batch_size_for_budget(
    sampling: Sampling,
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    noise: Noise = "gaussian",
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> PrivacyPlan:
    """The plan with the largest batches that fit the budget, to the last unit.

    The number of steps stays that of `sampling`. Epsilon rises with the
    expected batch size, since a Poisson sample is a Poisson sample of a larger
    one. The plan that is returned was evaluated, and a batch of one unit more
    was too, unless all units are in every batch already.

    Args:
      sampling: A `PoissonSampling` or `UserSampling`; its batch size does not
        matter. A `max_batch_size` that was chosen by default is chosen anew.
      noise_multiplier: Of every step.
      epsilon: The budget.
      delta: The budget.
      noise: "gaussian" or "laplace".
      cache: As in `noise_for_budget`.
      progress: As in `noise_for_budget`.

    Returns:
      The plan; `plan.sampling.batch_size` is the answer, `users_per_batch` if
      users are sampled.

    Raises:
      TypeError: The sampling has no batch size that epsilon depends on.
      ValueError: Not even one unit fits, or as `PrivacyPlan`.

    Example:
      >>> from tf_sparse_dp.sampling import PoissonSampling
      >>> sampling = PoissonSampling(
      ...     num_examples=10_000, batch_size=1, steps=100
      ... )
      >>> plan = batch_size_for_budget(
      ...     sampling, noise_multiplier=2.0, epsilon=3.0, delta=1e-6
      ... )
      >>> plan.sampling.batch_size
      1112
    """
    if getattr(sampling, "workers", 1) > 1:
        raise ValueError(
            f"sampling has workers={sampling.workers}, each of which draws an "  # type: ignore[attr-defined]
            "equal part of a batch. Ask for workers=1, and make the sampling "
            "of the largest multiple that is no more than the answer."
        )
    return _largest(
        "batch size",
        sampling,
        "with_batch_size",
        getattr(sampling, "num_units", 1),
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        noise=noise,
        cache=cache,
        progress=progress,
    )


def _largest(
    what: str,
    sampling: Sampling,
    change: str,
    at_most: int,
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    noise: Noise,
    cache: bool,
    progress: Callable[[str], None] | None,
) -> PrivacyPlan:
    """The plan of the largest number that `change` can be given."""
    check_sampling(sampling)
    changed: Callable[[int], Sampling] | None = getattr(sampling, change, None)
    if changed is None:
        raise TypeError(
            f"sampling is {sampling!r}, whose {what} is nothing that epsilon "
            "depends on or that can be changed. Expected a PoissonSampling or "
            "a UserSampling, or for the number of passes an EpochSampling."
        )
    if isinstance(at_most, bool) or not isinstance(at_most, int) or at_most < 1:
        raise ValueError(
            f"at_most is {at_most!r}, expected a whole number of at least 1."
        )
    if not 0 < epsilon < math.inf:
        raise ValueError(
            f"epsilon is {epsilon!r}, expected a finite number above 0."
        )

    def epsilon_of(number: int) -> float:
        try:
            candidate = changed(number)
        except ValueError:  # Beyond a max_batch_size that was given.
            return math.inf
        return _epsilon(candidate, noise_multiplier, delta, noise)

    def plan_of(number: int) -> PrivacyPlan:
        return PrivacyPlan(
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=changed(number),
            noise=noise,
        )

    question = _question(
        what,
        changed(1),
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        noise=noise,
        at_most=at_most,
    )
    watch = Progress(f"{what} for a budget", progress)
    with watch.watching():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            try:
                # Refuses what is wrong with the arguments.
                least, bound = plan_of(1).epsilon, ""
            except OverflowsTooOften:
                # At this epsilon, which may be far beyond the budget.
                least = ideal_epsilon(
                    sampling_probability=changed(1).sampling_probability,
                    noise_multiplier=noise_multiplier,
                    compositions=changed(1).num_compositions,
                    delta=delta,
                    relation=sampling.neighbouring_relation,
                    noise=noise,
                )
                if least <= epsilon:
                    raise
                bound = "more than "
        if least > epsilon:
            unit = sampling.composition_unit
            length = f"1 {unit}" if what == "steps" else f"a {what} of 1"
            raise ValueError(
                f"epsilon is {epsilon:g}, but with {length} a noise "
                f"multiplier of {noise_multiplier:g} costs {bound}"
                f"{least:.4g} at delta={delta:g} already. Raise the noise "
                "multiplier, epsilon or delta."
            )
        kept = remembered(question) if cache else None
        if isinstance(kept, int) and 1 <= kept <= at_most:
            if epsilon_of(kept) <= epsilon:
                if kept == at_most or epsilon_of(kept + 1) > epsilon:
                    return plan_of(kept)
        number = largest_within(epsilon_of, epsilon, at_most)
        plan = plan_of(number)
    if cache and watch.seconds >= _SLOW:
        remember(question, number)
    return plan


def _epsilon(
    sampling: Sampling, noise_multiplier: float, delta: float, noise: Noise
) -> float:
    """Of such a plan; infinite if there is none, as batches overflow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        try:
            return PrivacyPlan(
                noise_multiplier=noise_multiplier,
                delta=delta,
                sampling=sampling,
                noise=noise,
            ).epsilon
        except ValueError:
            return math.inf


def _question(what: str, sampling: Sampling, **rest: Any) -> dict[str, Any]:
    return {
        "what": what,
        "sampling": {
            "class_name": type(sampling).__name__,
            "config": sampling.get_config(),
        },
        **rest,
    }
