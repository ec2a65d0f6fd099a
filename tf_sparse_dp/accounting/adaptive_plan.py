"""A filter with the sampling and the noise of the run that spends it."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any, TypeAlias

import dp_accounting

from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE
from tf_sparse_dp.accounting.events import (
    Noise,
    StepFacts,
    check_run,
    check_step,
    neighbouring_relation,
    step_event,
)
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.plan import PrivacyPlan

_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AdaptivePlan:
    """What a `PrivacyPlan` is to a run of fixed noise, for one that adapts.

    The filter pays for every step, or pass, before it is taken. How many there
    will be is not known; there are at most those of the sampling.

    **Guarantee**: the filter's, for the neighbouring relation of the sampling.
    Noise may be changed between steps by whatever was released before.

    Args:
      filter: The budget.
      sampling: How batches are drawn, and how many at most.
      kinds: Facts about the kinds of steps that there are.
      noise_multiplier: At the start; at least 0.001.
      noise: "gaussian" or "laplace".

    Raises:
      TypeError, ValueError: An argument is not as described.
    """

    filter: PrivacyFilter
    sampling: Any
    kinds: tuple[StepFacts, ...]
    noise_multiplier: float
    noise: Noise = "gaussian"

    def __post_init__(self) -> None:
        check_run(self.sampling)
        for kind in self.kinds:
            check_step(kind, self.sampling.neighbouring_relation)
        check_noise_multiplier(self.noise_multiplier)
        relation = neighbouring_relation(self.sampling.neighbouring_relation)
        if relation is not self.filter.neighboring_relation:
            raise ValueError(
                f"The filter is for {self.filter.neighboring_relation}, but "
                f"the sampling protects against {relation}. Make the filter "
                f"with neighboring_relation={relation}."
            )
        object.__setattr__(self, "_release_failure", RELEASE_FAILURE)
        if not self.filter.can_spend(self.step_event(self.noise_multiplier)):
            object.__setattr__(self, "_release_failure", 0.0)

    @property
    def epsilon(self) -> float:
        """The filter's budget."""
        return self.filter.epsilon

    @property
    def delta(self) -> float:
        """The filter's budget."""
        return self.filter.delta

    @property
    def num_compositions(self) -> int:
        """Steps, or passes, that there are at most."""
        return int(self.sampling.num_compositions)

    @property
    def neighbouring_relation(self) -> str:
        """What neighbours differ by."""
        return str(self.sampling.neighbouring_relation)

    @property
    def accountant(self) -> str:
        """Whose word the guarantee is."""
        return type(self.filter).__name__

    @property
    def release_failure(self) -> float:
        """As of `PrivacyPlan`; paid by the filter with every step."""
        return self._release_failure  # type: ignore[attr-defined, no-any-return]

    def epsilon_spent(self, compositions: int) -> float:
        """What may be claimed: the budget, once anything was released."""
        return self.epsilon if compositions else 0.0

    def step_event(
        self, noise_multiplier: float, kind: int = 0
    ) -> dp_accounting.DpEvent:
        """One step, or pass, with all that the filter has to pay for."""
        return step_event(
            self.kinds[kind],
            noise_multiplier=noise_multiplier,
            noise=self.noise,
            release_failure=self.release_failure,
        )


def check_noise_multiplier(value: Any) -> float:
    """The number itself, if it is one that a filter can account for.

    Raises:
      TypeError: It is no number.
      ValueError: It is too small, or not finite.
    """
    message = (
        f"noise_multiplier is {value!r}, expected a number from {_LEAST_NOISE} "
        f"to {_MOST_NOISE:g}, for which a filter knows what steps cost."
    )
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    number = float(value)
    if not _LEAST_NOISE <= number <= _MOST_NOISE:
        raise ValueError(message)
    return number


Plan: TypeAlias = PrivacyPlan | AdaptivePlan
