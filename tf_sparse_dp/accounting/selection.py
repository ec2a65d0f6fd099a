"""What the best of a random number of private runs costs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import dp_accounting
from dp_accounting import dp_event

from tf_sparse_dp.accounting.arguments import check_relation, checked_real
from tf_sparse_dp.accounting.calibration import epsilon_with_failures
from tf_sparse_dp.accounting.composition import composed_epsilon
from tf_sparse_dp.accounting.dp_events import ApproxDpEvent, FailingDpEvent
from tf_sparse_dp.accounting.events import (
    NOISES,
    Noise,
    neighbouring_relation,
)
from tf_sparse_dp.accounting.filters.interface import (
    ADD_OR_REMOVE_ONE,
    PrivacyFilter,
)
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.run_counts import RunCount

Form: TypeAlias = Literal["renyi", "tight", "paper"]
FORMS = ("renyi", "tight", "paper")
# Of what is accounted for, more than any rounding of the mean or of γ.
MEAN_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionPlan:
    r"""The budget of a selection: K runs, of which only the best is released.

    K is drawn from `RunCount` and told to nobody. Every run is the same
    mechanism Q, a private training followed by a private score, with fresh
    randomness; the run with the highest score is released, ties being broken at
    random, and of all others nothing, not even how many there were.

    **Guarantee**, for the neighbouring relation of the run, at δ = `delta`, by
    `form`:

    * "tight": let Q be (ε₁, δ₁)-DP with δ₁ = δ/E[K]. The selection is
      ((2+η)ε₁, δ)-DP, where η = `shape`, finite: 3ε₁ for a geometric K.

      *Proof.* Break ties by a uniform number that belongs to the score. Let
      δ₁ = 0, p the density of an output of Q and S the probability that Q gives
      one with a higher score. With φ(t) = E[t^K] the output has density
      pφ'(1-S), and φ'(1-S) is proportional to (γ + (1-γ)S)^-(1+η). A neighbour
      has p' ≥ e^-ε₁ p and S' ≤ e^ε₁ S, hence γ + (1-γ)S' ≤ e^ε₁ (γ + (1-γ)S),
      and a density of at least e^-(2+η)ε₁ times that. For δ₁ > 0, Q reveals all
      with probability δ₁ and is ε₁-DP otherwise (Kairouz, Oh and Viswanath,
      2015). None of K runs reveals all with the same probability m for both
      neighbours, and m ≥ 1 - δ₁E[K]; given that, K is of the same family with
      another γ, to which the first part applies. So the output is, with
      probability m, (2+η)ε₁-DP. ∎
    * "renyi": Rényi divergences of Q give those of the selection (Papernot and
      Steinke, 2022, Theorems 2 and 6), which cost less wherever Q is better
      than the worst mechanism that is (ε₁, δ₁)-DP, as noisy training is.
    * "paper": as Liu and Talwar (2019) state it and the paper uses it: with K
      geometric and at most k = `max_runs`, δ₁ = (δ/4k)², and a δ₂ for the limit
      the selection is (3ε₁ + 3√(2δ₁), k√(2δ₁) + δ₂)-DP. For δ₂ the charge of
      the next paragraph is taken, with which the bound follows from "tight".

    **A limit** on K changes the output with probability c = P(K > max_runs) at
    most, on any data: δ pays (1 + e^ε)c for it, as for all failures
    (`overflow_charge`).

    **Composed**: with `reveal_all` there are exactly `mean_runs` runs, a whole
    number, every one of which may be published with its noisy score.

    Args:
      run: What one training costs: a `PrivacyPlan`; a filter, of whose budget
        every run has one of its own; an event of `dp_accounting`; or a pair
        (epsilon, delta).
      delta: Of the whole selection.
      mean_runs: E[K].
      shape: Of the distribution of K, see `RunCount`.
      max_runs: None for no limit.
      score_noise_multiplier: Noise of the score over the largest absolute score
        of one unit. None if scores are computed from public data and from what
        the run released, which costs nothing.
      score_noise: "gaussian" or "laplace".
      form: "renyi", "tight" or "paper".
      reveal_all: Whether everything may be published.
      neighboring_relation: Of `dp_accounting`; None for that of `run`, for
        events and pairs adding or removing a unit.

    Attributes:
      epsilon: Of the whole selection.

    Raises:
      TypeError, ValueError: An argument is not as described, or there is no
        epsilon at this delta.

    Example:
      >>> plan = SelectionPlan(
      ...     run=(0.5, 0.0), delta=0.0, mean_runs=10, form="tight"
      ... )
      >>> round(plan.epsilon, 6)
      1.5

    Reference: Liu and Talwar, "Private Selection from Private Candidates"
    (2019), Theorem 3.4; Papernot and Steinke, "Hyperparameter Tuning with Rényi
    Differential Privacy" (2022).
    """

    run: Any
    delta: float
    mean_runs: float
    shape: float = 1.0
    max_runs: int | None = None
    score_noise_multiplier: float | None = None
    score_noise: Noise = "gaussian"
    form: Form = "renyi"
    reveal_all: bool = False
    neighboring_relation: dp_accounting.NeighboringRelation | None = None
    epsilon: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._set(
            "delta", checked_real("delta", self.delta, at_least=0, below=1.0)
        )
        event, relation = _stated(self.run, self.neighboring_relation)
        self._set("neighboring_relation", relation)
        if self.form not in FORMS:
            raise ValueError(f"form is {self.form!r}, expected one of {FORMS}.")
        if self.score_noise not in NOISES:
            raise ValueError(
                f"score_noise is {self.score_noise!r}, expected 'gaussian' or "
                "'laplace'."
            )
        if self.score_noise_multiplier is not None:
            checked_real("noise_multiplier", self.score_noise_multiplier)
            kind = (
                dp_accounting.GaussianDpEvent
                if self.score_noise == "gaussian"
                else dp_accounting.LaplaceDpEvent
            )
            score = kind(self.score_noise_multiplier)
            event = dp_accounting.ComposedDpEvent([event, score])
        self._set("_run_event", event)
        self._set("_count", self._checked_count())
        epsilon = self._epsilon()
        if not epsilon < math.inf:
            raise ValueError(
                f"The selection has no epsilon at delta = {self.delta:g} in "
                f"the {self.form!r} form. Expected a larger delta, or runs "
                f"with a smaller one{self._needed_delta()}"
                + (
                    f"; max_runs = {self.max_runs} cuts the number of runs "
                    f"with probability {self.run_count.cut:.3g}, which has to "
                    "be well below delta: raise it, or leave it out."
                    if self.max_runs is not None
                    else "."
                )
            )
        self._set("epsilon", epsilon)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _needed_delta(self) -> str:
        own: Any = self.run[1] if isinstance(self.run, tuple) else None
        if isinstance(self.run, PrivacyFilter):
            own = self.run.delta
        if not own:
            return ""
        return (
            f": {own:g} of a run, times {self.mean_runs:g} runs, is "
            f"{own * self.mean_runs:g}, which has to be well below "
            f"{self.delta:g}"
        )

    def _checked_count(self) -> RunCount:
        count = RunCount(
            mean=self.mean_runs, shape=self.shape, most=self.max_runs
        )
        if self.reveal_all:
            if count.mean != int(count.mean) or self.max_runs is not None:
                raise ValueError(
                    f"mean_runs is {self.mean_runs!r} and max_runs "
                    f"{self.max_runs!r}, expected a whole number and None: "
                    "with reveal_all there are exactly mean_runs runs."
                )
        elif self.form != "renyi" and math.isinf(self.shape):
            raise ValueError(
                f"shape is {self.shape!r}: Poisson's number of runs has no "
                f"{self.form!r} form. Expected a finite shape, or 'renyi'."
            )
        elif self.form == "paper" and (
            self.shape != 1 or self.max_runs is None
        ):
            raise ValueError(
                f"shape is {self.shape!r} and max_runs {self.max_runs!r}: the "
                "'paper' form is for a geometric number of runs, shape 1, with "
                "a limit. Take selection_budget, which finds the limit, or "
                "another form."
            )
        return count

    @property
    def run_count(self) -> RunCount:
        """The distribution of the number of runs."""
        return self._count  # type: ignore[attr-defined, no-any-return]

    @property
    def run_event(self) -> dp_accounting.DpEvent:
        """One run: training and score."""
        return self._run_event  # type: ignore[attr-defined]

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The whole selection, as what a filter knows best.

        `approximate_event`, which all know, is valid too and mostly dearer
        where more is composed with it.
        """
        if self.reveal_all:
            return dp_accounting.SelfComposedDpEvent(
                self.run_event, int(self.mean_runs)
            )
        if self.form != "renyi":
            return self.approximate_event
        event = self.run_event
        if self.run_count.mean > 1:
            mean = self.run_count.mean * (1 + MEAN_ROUNDING)
            event = dp_event.RepeatAndSelectDpEvent(
                event, mean, self.run_count.shape
            )
        if self.run_count.cut > 0:
            event = FailingDpEvent(event, self.run_count.cut)
        return event

    @property
    def approximate_event(self) -> ApproxDpEvent:
        """The whole selection, as (epsilon, delta)."""
        return ApproxDpEvent(self.epsilon, self.delta)

    def _run_epsilon(self, delta: float) -> float:
        relation = self.neighboring_relation or ADD_OR_REMOVE_ONE
        return composed_epsilon(
            [(self.run_event, 1)], delta=delta, neighboring_relation=relation
        )

    def _epsilon(self) -> float:
        relation = self.neighboring_relation or ADD_OR_REMOVE_ONE
        if self.reveal_all or self.form == "renyi":
            return composed_epsilon(
                [(self.event, 1)],
                delta=self.delta,
                neighboring_relation=relation,
            )
        count = self.run_count
        if self.form == "paper":
            return self._paper_epsilon(count.cut)
        if count.mean == 1:
            return self._run_epsilon(self.delta)

        def unlimited(delta: float) -> float:
            share = delta / (count.mean * (1 + MEAN_ROUNDING))
            return (2 + count.shape) * self._run_epsilon(share)

        return epsilon_with_failures(
            unlimited, delta=self.delta, failure=count.cut
        )

    def _paper_epsilon(self, cut: float) -> float:
        limit = int(self.max_runs or 1)
        share = paper_run_delta(self.delta, limit)
        lost = math.sqrt(2 * share)
        run = self._run_epsilon(share)
        if run > 200:
            return math.inf
        needed = lost * limit + (1 + math.exp(3 * run)) * cut
        return 3 * run + 3 * lost if needed <= self.delta else math.inf


def paper_run_delta(delta: float, limit: int) -> float:
    """(δ/4k)²: what the paper lets each of at most k runs have."""
    return (delta / (4 * limit)) ** 2


def _stated(
    run: Any, relation: dp_accounting.NeighboringRelation | None
) -> tuple[dp_accounting.DpEvent, dp_accounting.NeighboringRelation]:
    """The event of one training, and what neighbours differ by."""
    own = None
    event: dp_accounting.DpEvent
    if isinstance(run, PrivacyPlan):
        own = neighbouring_relation(run.neighbouring_relation)
        event = dp_accounting.SelfComposedDpEvent(
            run.step_event, run.num_compositions
        )
    # A filter is a PrivacyAccountant, not an event.
    elif isinstance(run, PrivacyFilter):
        own = run.neighboring_relation
        event = ApproxDpEvent(run.epsilon, run.delta)
    elif isinstance(run, dp_accounting.DpEvent):
        event = run
    elif isinstance(run, tuple) and len(run) == 2:
        event = ApproxDpEvent(
            checked_real("epsilon", run[0], at_least=0.0),
            checked_real("delta", run[1], at_least=0.0, below=1.0),
        )
    else:
        raise TypeError(
            f"run is {run!r}, expected what one private run costs: a "
            "PrivacyPlan, a PrivacyFilter, a dp_accounting.DpEvent or a pair "
            "(epsilon, delta)."
        )
    if relation is None:
        return event, own or ADD_OR_REMOVE_ONE
    check_relation(relation)
    if own is not None and relation is not own:
        raise ValueError(
            f"neighboring_relation is {relation}, but the run is private for "
            f"{own}. Leave it out."
        )
    return event, relation
