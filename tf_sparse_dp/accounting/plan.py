"""A privacy plan: how much noise, for how long, with what guarantee."""

from __future__ import annotations

import dataclasses
import math
import numbers
import warnings
from collections.abc import Mapping
from typing import Any

import dp_accounting

from tf_sparse_dp.accounting.accountants import accountant_for
from tf_sparse_dp.accounting.arguments import checked_real
from tf_sparse_dp.accounting.calibration import (
    affordable_release_failure,
    calibrated_noise_multiplier,
    overflow_charge,
    overflow_error,
    spent_epsilon,
)
from tf_sparse_dp.accounting.events import (
    NOISES,
    Noise,
    Sampling,
    check_sampling,
    step_event,
    training_event,
)
from tf_sparse_dp.errors import PrivacyWarning, callers_level

# Typed as the float that it is once the plan is constructed.
_SOLVED_FOR: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    r"""The privacy budget of a training run, and the noise that keeps to it.

    .. math:: P(M(D) \in S) \le e^\varepsilon P(M(D') \in S) + \delta

    for every event S, neighbouring data sets D and D', and M the training run:
    all noisy gradients of `sampling.num_compositions` steps (or passes), each
    with Gaussian noise of standard deviation z·C on a sum of contributions
    clipped to L2 norm C. ε = `epsilon`, δ = `delta`, z = `noise_multiplier`;
    C is the optimizer's clip norm. Give ε to have the plan solve for z, or z
    for ε; after construction both are set. With `noise="laplace"`
    contributions are clipped to L1 norm C√q', q' being the number of entries of
    all variables that one unit can reach, and the noise has scale z·C√q'.

    **Guarantee**: D and D' differ by the presence of one unit
    (`PoissonSampling`: an example; `UserSampling`: a user with all of theirs),
    or by one unit's contribution being zeroed (`EpochSampling`); see
    `neighbouring_relation`. The larger has `num_units` of the sampling.
    Privacy is amplified by sampling only if the sampling draws every unit
    independently. Batches that overflow are charged to δ, and so are releases
    that fail because a size was fixed beforehand (`release_failure`). Every
    numerical approximation errs upwards in ε, including the rounding of floats,
    and a calibrated z is rounded up: the ε it costs never exceeds the one asked
    for.

    Args:
      epsilon: The budget; above 0 and below 500. Kept as given if given.
      delta: In (0, 1), and well below 1/num_units: a mechanism that
        publishes a random unit's data satisfies delta = 1/num_units. 0, pure
        differential privacy, with Laplace noise and a sampling whose batches
        never overflow.
      sampling: How batches are drawn, and how many.
      noise_multiplier: Ratio of the noise to what contributions are clipped
        to; at least 0.001.
      noise: "gaussian", or "laplace" for mechanisms with Laplace noise.

    Raises:
      TypeError: An argument is of the wrong kind.
      ValueError: A number is out of range, not exactly one of `epsilon` and
        `noise_multiplier` is given, or batches overflow too often for delta.

    Warns:
      PrivacyWarning: delta is at least 1/num_units.

    Example:
      >>> from tf_sparse_dp.sampling import PoissonSampling
      >>> sampling = PoissonSampling(
      ...     num_examples=100_000, batch_size=1_000, epochs=3
      ... )
      >>> plan = PrivacyPlan(epsilon=3.0, delta=1e-7, sampling=sampling)
      >>> round(plan.noise_multiplier, 2)
      0.81
      >>> plan.epsilon_spent(plan.num_compositions) <= 3.0
      True
      >>> from tf_sparse_dp.sampling import EpochSampling
      >>> PrivacyPlan(
      ...     epsilon=3.0,
      ...     delta=0.0,
      ...     sampling=EpochSampling(
      ...         num_examples=100_000, batch_size=1_000, epochs=3
      ...     ),
      ...     noise="laplace",
      ... ).noise_multiplier
      1.0

    Reference: Koskela, Jälkö and Honkela (2020) and Doroshenko, Ghazi, Kamath,
    Kumar and Manurangsi, "Connect the Dots" (2022), for privacy loss
    distributions; Mironov, Talwar and Zhang (2019) for Rényi divergences.
    """

    epsilon: float = _SOLVED_FOR
    delta: float
    sampling: Sampling
    noise_multiplier: float = _SOLVED_FOR
    noise: Noise = "gaussian"

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        if self.noise not in NOISES:
            raise ValueError(
                f"noise is {self.noise!r}, expected 'gaussian', or 'laplace' "
                "for a mechanism with Laplace noise. Name the mechanism's "
                "noise_family."
            )
        self._set("delta", _delta(self.delta, self.noise, self.sampling))
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                f"epsilon is {self.epsilon} and noise_multiplier is "
                f"{self.noise_multiplier}, expected exactly one of them. Give "
                "the one you want to fix; the plan solves for the other."
            )
        if self.delta * self.sampling.num_units >= 1:
            warnings.warn(
                f"delta is {self.delta:g}, expected well below "
                f"1/{self.sampling.num_units} = "
                f"{1 / self.sampling.num_units:.3g}, one over the number of "
                "protected units: with this delta, publishing one random "
                f"{self.sampling.unit} in the clear would count as private. "
                "Lower delta.",
                PrivacyWarning,
                stacklevel=callers_level(),
            )
        if self.noise_multiplier is None:
            self._set(
                "epsilon", checked_real("epsilon", self.epsilon, below=500.0)
            )
            self._decide_release_failure(self.epsilon)
            noise_multiplier = calibrated_noise_multiplier(
                self.sampling,
                epsilon=self.epsilon,
                delta=self.delta,
                noise=self.noise,
                release_failure=self.release_failure,
            )
            self._set("noise_multiplier", noise_multiplier)
        else:
            noise_multiplier = checked_real(
                "noise_multiplier", self.noise_multiplier, at_least=1e-3
            )
            self._set("noise_multiplier", noise_multiplier)
            self._set("_release_failure", 0.0)
            without = self._epsilon_after(self.num_compositions)
            self._decide_release_failure(without)
            self._set("epsilon", self._epsilon_after(self.num_compositions))
            if math.isinf(self.epsilon):
                raise overflow_error(self.sampling, self.delta)

    def _set(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)

    def _decide_release_failure(self, epsilon: float) -> None:
        failure = affordable_release_failure(
            self.sampling, epsilon=epsilon, delta=self.delta
        )
        self._set("_release_failure", failure)

    @property
    def release_failure(self) -> float:
        """How likely a release may fail because a size was fixed beforehand.

        2⁻¹⁰⁰, which is charged to delta as overflow is, or 0 where delta is 0
        or has no room for it: then sizes must not be fixed, which XLA needs.
        """
        return self._release_failure  # type: ignore[attr-defined, no-any-return]

    def _epsilon_after(self, compositions: int) -> float:
        return spent_epsilon(
            self.sampling,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            compositions=compositions,
            noise=self.noise,
            release_failure=self.release_failure,
        )

    @property
    def num_compositions(self) -> int:
        """Steps, or passes without amplification, that the plan pays for."""
        return self.sampling.num_compositions

    @property
    def neighbouring_relation(self) -> str:
        """What neighbours differ by: "add_or_remove_one" or "zero_out"."""
        return self.sampling.neighbouring_relation

    @property
    def accountant(self) -> str:
        """Whose number `epsilon` is: "PLD", or "RDP" where that is unsafe.

        "pure" for delta = 0, where epsilon is a sum over all compositions.
        """
        charge = overflow_charge(
            compositions=self.num_compositions,
            epsilon=self.epsilon,
            overflow_probability=self.sampling.overflow_probability
            + self.release_failure,
        )
        return accountant_for(
            sampling_probability=self.sampling.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            compositions=self.num_compositions,
            delta=self.delta - charge,
            noise=self.noise,
        )

    def event(self, compositions: int | None = None) -> dp_accounting.DpEvent:
        """What the run, or its beginning, releases; for other accountants.

        Overflow and failed releases are not in it, as accountants of
        dp-accounting know no such event; they are in `step_event`.
        """
        if compositions is None:
            compositions = self.num_compositions
        return training_event(
            sampling_probability=self.sampling.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            compositions=_count(compositions),
            noise=self.noise,
        )

    @property
    def step_event(self) -> dp_accounting.DpEvent:
        """One step, or pass, with overflow and failed releases."""
        return step_event(
            self.sampling,
            noise_multiplier=self.noise_multiplier,
            noise=self.noise,
            release_failure=self.release_failure,
        )

    def epsilon_spent(self, compositions: int) -> float:
        """Epsilon, at the plan's delta, after so many steps or passes.

        Rises from 0.0 to at most `epsilon` at `num_compositions`. The first
        call for a number costs some hundredths of a second to tenths, for very
        long runs seconds; it is remembered. Beyond the plan it rises further,
        to infinity where batches that overflow use up delta.

        Raises:
          ValueError: The number is negative.
        """
        compositions = _count(compositions)
        epsilon = self._epsilon_after(compositions)
        if compositions <= self.num_compositions:
            # What was released so far is a function of the whole run.
            return min(epsilon, self.epsilon)
        return epsilon

    def get_config(self) -> dict[str, Any]:
        """Plain values from which `from_config` makes an equal plan."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "noise": self.noise,
            "sampling": _described(self.sampling),
        }

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        sampling: Sampling | None = None,
    ) -> PrivacyPlan:
        """The plan of a `get_config`, with its noise as it was.

        The noise is taken over, not calibrated anew, since it may have been
        used already; its epsilon is computed anew. Should this version of the
        accountant find more than the plan promised, the plan says so from then
        on, and warns.

        Args:
          config: From `get_config`.
          sampling: Rebuilt from `config["sampling"]`, a class name and a
            config; may be left out where that is the object itself.

        Raises:
          ValueError: The sampling is not given, or is not the plan's.
        """
        saved = config["sampling"]
        if sampling is None and not isinstance(saved, Mapping):
            sampling = saved
        elif sampling is None or _described(sampling) != saved:
            raise ValueError(
                f"sampling is {sampling!r}, expected the plan's own: {saved}. "
                "Rebuild it from that class and config, and pass it."
            )
        plan = cls(
            delta=config["delta"],
            noise_multiplier=config["noise_multiplier"],
            sampling=sampling,
            noise=config.get("noise", "gaussian"),
        )
        promised = checked_real("epsilon", config["epsilon"], at_least=0.0)
        if plan.epsilon <= promised:
            plan._set("epsilon", promised)
        else:
            warnings.warn(
                f"the plan was saved with epsilon={promised:g}, but this "
                f"version accounts for {plan.epsilon:g} at its noise "
                f"multiplier of {plan.noise_multiplier:g}. The larger number "
                "holds; make a new plan to keep to the smaller.",
                PrivacyWarning,
                stacklevel=2,
            )
        return plan


def _described(sampling: Sampling) -> dict[str, Any]:
    return {
        "class_name": type(sampling).__name__,
        "config": sampling.get_config(),
    }


def _delta(value: object, noise: Noise, sampling: Sampling) -> float:
    if isinstance(value, bool) or value != 0:
        return checked_real("delta", value, below=1.0)
    if noise != "laplace":
        raise ValueError(
            f"delta is {value!r}, expected a number above 0 and below 1: "
            f"{noise} noise is never private at delta = 0. Give a delta well "
            "below one over the number of protected units, or for pure "
            "differential privacy use noise='laplace' and a mechanism with "
            "Laplace noise."
        )
    if sampling.overflow_probability > 0:
        raise ValueError(
            f"delta is {value!r}, but draws of the sampling are exact only up "
            f"to a probability of {sampling.overflow_probability:.3g}, which "
            "is charged to delta. Expected a delta above 0, or batches that "
            "are never cut: use EpochSampling. (Poisson draws are exact only "
            "of few examples, some hundred at most, with a max_batch_size "
            "above their number.)"
        )
    return 0.0


def _count(compositions: object) -> int:
    message = (
        f"compositions is {compositions!r}, expected a whole number of at "
        "least 0. Give the number of steps, or of started passes."
    )
    if isinstance(compositions, bool) or not isinstance(
        compositions, numbers.Integral
    ):
        raise TypeError(message)
    if compositions < 0:
        raise ValueError(message)
    return int(compositions)
