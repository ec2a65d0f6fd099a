"""What each run of a selection may spend, from the budget of the whole."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import dp_accounting

from tf_sparse_dp.accounting.arguments import checked_real
from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE, round_up
from tf_sparse_dp.accounting.events import (
    Noise,
    Sampling,
    check_sampling,
    neighbouring_relation,
    step_event,
)
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.run_counts import RunCount
from tf_sparse_dp.accounting.selection import (
    MEAN_ROUNDING,
    Form,
    SelectionPlan,
    paper_run_delta,
)
from tf_sparse_dp.accounting.single_release import gaussian_noise_multiplier


def selection_budget(
    *,
    epsilon: float,
    delta: float,
    mean_runs: float | None = None,
    failure_probability: float | None = None,
    success_probability: float = 0.5,
    shape: float = 1.0,
    max_runs: int | None = None,
    form: Form = "renyi",
    sampling: Sampling | None = None,
    noise: Noise = "gaussian",
    score_share: float = 0.1,
    score_noise: Noise = "gaussian",
    neighboring_relation: dp_accounting.NeighboringRelation | None = None,
) -> SelectionPlan:
    """What every run of a selection may spend, for a budget of the whole.

    With a `sampling` the answer is a plan for each run, `plan.run`, to train
    with; without, the (epsilon, delta) of each run.

    Args:
      epsilon: The budget of the whole selection.
      delta: The budget of the whole selection.
      mean_runs: How many runs there are on average. Give this or
        `failure_probability`.
      failure_probability: With which no run is as good as the best part
        `success_probability` of all runs. (The private score may miss one.)
      success_probability: Of one run.
      shape: As in `SelectionPlan`.
      max_runs: As in `SelectionPlan`; the "paper" form finds it.
      form: As in `SelectionPlan`. "paper" gives each run (ε/12, (δ/4k)²), and
        its score ε/12 with Laplace noise: by the bound that it rests on this
        spends half of epsilon, which the plan says.
      sampling: How a run draws batches, and how many.
      noise: Of a run: "gaussian" or "laplace".
      score_share: The part of a run's budget that its score gets: of epsilon
        in the "tight" form, of squared inverse noise multipliers in the
        "renyi" form. 0 if scores are public; the "paper" form has a share of
        its own then.
      score_noise: "gaussian" or "laplace".
      neighboring_relation: As in `SelectionPlan`.

    Returns:
      A plan with an epsilon not above the budget's.

    Raises:
      TypeError, ValueError: An argument is not as described, or no noise fits
        the budget.

    Example:
      >>> plan = selection_budget(
      ...     epsilon=1.5,
      ...     delta=0.0,
      ...     mean_runs=10,
      ...     form="tight",
      ...     score_share=0.2,
      ...     score_noise="laplace",
      ... )
      >>> round(plan.run[0], 6), plan.score_noise_multiplier
      (0.4, 10.0)
    """
    epsilon = checked_real("epsilon", epsilon, below=500.0)
    delta = checked_real("delta", delta, at_least=0.0, below=1.0)
    if (mean_runs is None) == (failure_probability is None):
        raise ValueError(
            f"mean_runs is {mean_runs!r} and failure_probability is "
            f"{failure_probability!r}, expected exactly one of them."
        )
    if mean_runs is None:
        mean_runs = RunCount.for_failure(
            failure_probability,  # type: ignore[arg-type]
            success_probability=success_probability,
            shape=shape,
        ).mean
    RunCount(mean=mean_runs, shape=shape, most=max_runs)  # Says what is wrong.
    if not 0 <= score_share < 1:
        raise ValueError(
            f"score_share is {score_share!r}, expected a number from 0 to "
            "below 1: 0 for scores that are computed from public data."
        )
    if sampling is not None:
        check_sampling(sampling)
        own = neighbouring_relation(sampling.neighbouring_relation)
        if neighboring_relation not in (None, own):
            raise ValueError(
                f"neighboring_relation is {neighboring_relation}, but the "
                f"sampling protects against {own}. Leave it out."
            )
        neighboring_relation = own
    if form == "paper":
        score_noise = "laplace"
        if delta == 0:
            raise ValueError(
                f"delta is {delta!r}, expected one above 0: the paper's form "
                "limits the number of runs, which delta pays for."
            )
        if max_runs is None:
            # (1 + e^(ε/2)) (1-γ)^k ≤ δ/2
            tail = math.log(2 * (1 + math.exp(epsilon / 2)) / delta)
            max_runs = math.ceil(tail * mean_runs)
    search = _Search(
        epsilon=epsilon,
        sampling=sampling,
        noise=noise,
        fixed={
            "delta": delta,
            "mean_runs": mean_runs,
            "shape": shape,
            "max_runs": max_runs,
            "form": form,
            "score_noise": score_noise,
            "neighboring_relation": neighboring_relation,
        },
    )
    if form == "paper":
        return search.paper(score_share > 0)
    if form == "tight" and sampling is None:
        return search.by_epsilon(score_share)
    return search.by_noise(score_share)


@dataclasses.dataclass(frozen=True)
class _Search:
    """For the least noise, or the largest epsilon, of a run."""

    epsilon: float
    sampling: Sampling | None
    noise: Noise
    fixed: dict[str, Any]

    def _plan(self, run: Any, multiplier: float | None) -> SelectionPlan:
        return SelectionPlan(
            run=run, score_noise_multiplier=multiplier, **self.fixed
        )

    def _pure_score(self, epsilon: float) -> float:
        """The noise multiplier of Laplace noise for a score that is ε-DP."""
        relation = self.fixed["neighboring_relation"]
        replaced = relation is dp_accounting.NeighboringRelation.REPLACE_ONE
        return round_up((2.0 if replaced else 1.0) / epsilon, digits=6)

    def paper(self, scored: bool) -> SelectionPlan:
        """(ε/12, (δ/4k)²) for a run, ε/12 for its score."""
        share = self.epsilon / 12
        delta = paper_run_delta(self.fixed["delta"], self.fixed["max_runs"])
        delta *= 1 - 1e-9  # Sums of deltas are rounded up.
        run: Any = (share, delta)
        if self.sampling is not None:
            run = PrivacyPlan(
                epsilon=share,
                delta=delta,
                sampling=self.sampling,
                noise=self.noise,
            )
        return self._plan(run, self._pure_score(share) if scored else None)

    def by_epsilon(self, share: float) -> SelectionPlan:
        """Run and score have epsilons, which add up."""
        count = RunCount(
            mean=self.fixed["mean_runs"],
            shape=self.fixed["shape"],
            most=self.fixed["max_runs"],
        )
        delta = self.fixed["delta"]
        charge = (1 + math.exp(self.epsilon)) * count.cut
        if charge > 0 and charge >= delta:
            raise ValueError(
                f"max_runs is {count.most}, which cuts the number of runs with "
                f"probability {count.cut:.3g}; 1 + e^epsilon times that is not "
                f"below delta = {delta:g}. Raise it, or leave it out."
            )
        whole = self.epsilon / (2 + count.shape if count.mean > 1 else 1)
        # Sums of deltas are rounded up, and so is the mean.
        left = (delta - charge) / count.mean * (1 - 4 * MEAN_ROUNDING)
        score = None
        if share > 0 and self.fixed["score_noise"] == "laplace":
            score = self._pure_score(share * whole)
        elif share > 0:
            if left == 0:
                raise ValueError(
                    "delta is 0, at which Gaussian noise is never private. "
                    "Give score_noise='laplace', or a delta above 0."
                )
            left /= 2
            score = gaussian_noise_multiplier(share * whole, left)
            score *= self._pure_score(1.0)  # 2 if units are replaced.
        run = (1 - share) * whole
        for _ in range(100):  # Rounding may take the last digits.
            plan = self._plan((run, left), score)
            if plan.epsilon <= self.epsilon:
                return plan
            run *= 1 - 1e-9
        raise ValueError(
            f"epsilon is {self.epsilon:g}, expected a larger one, or a larger "
            "delta: no run is known to fit."
        )

    def by_noise(self, share: float) -> SelectionPlan:
        """Training and score are one event, whose noise is searched for."""
        if self.fixed["delta"] == 0:
            raise ValueError(
                "delta is 0, expected a number above 0. For pure differential "
                "privacy take form='tight', a score with Laplace noise, and no "
                "sampling."
            )
        score = None
        if share > 0:
            # Alone, a score of this noise would use up everything.
            alone = _least(
                lambda z: self._plan((0.0, 0.0), z), self.epsilon, digits=3
            )
            power = 1.0 if self.fixed["score_noise"] == "laplace" else 0.5
            score = round_up(alone * share**-power, digits=4)
        if self.sampling is not None:
            found = _least(
                lambda z: self._plan(self._training(z), score),
                self.epsilon,
                digits=4,
            )
            run = PrivacyPlan(
                noise_multiplier=found,
                delta=self.fixed["delta"] / self.fixed["mean_runs"],
                sampling=self.sampling,
                noise=self.noise,
            )
            return self._plan(run, score)
        delta = self.fixed["delta"] / 4 / self.fixed["mean_runs"]
        inverse = _least(
            lambda z: self._plan((1 / z, delta), score),
            self.epsilon,
            digits=6,
        )
        return self._plan((1 / inverse, delta), score)

    def _training(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """What a plan of this noise costs at most."""
        sampling: Any = self.sampling
        step = step_event(
            sampling,
            noise_multiplier=noise_multiplier,
            noise=self.noise,
            release_failure=RELEASE_FAILURE,
        )
        return dp_accounting.SelfComposedDpEvent(
            step, sampling.num_compositions
        )


def _least(
    plan_of: Callable[[float], SelectionPlan], epsilon: float, digits: int
) -> float:
    """The least number, to so many digits, whose plan fits epsilon."""

    def fits(number: float) -> bool:
        try:
            return plan_of(number).epsilon <= epsilon
        except ValueError:
            return False

    high = 1.0
    while not fits(high):
        high *= 2
        if high > 1e6:
            raise ValueError(
                f"epsilon is {epsilon:g}, expected one that some noise "
                "reaches at this delta and with so many runs. Raise epsilon "
                "or delta, or take fewer runs."
            )
    low = high / 2
    while low > 1e-3 and fits(low):
        high, low = low, low / 2
    while high - low > 10.0**-digits * high:
        middle = (low + high) / 2
        if fits(middle):
            high = middle
        else:
            low = middle
    high = round_up(high, digits)
    while not fits(high):
        high = round_up(high * (1 + 1e-9), digits)
    return high
