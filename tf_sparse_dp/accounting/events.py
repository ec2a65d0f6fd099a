"""What training releases, in the words of `dp_accounting`."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import dp_accounting

from tf_sparse_dp.accounting.dp_events import FailingDpEvent

Noise: TypeAlias = Literal["gaussian", "laplace"]
NOISES = ("gaussian", "laplace")

_RELATIONS = {
    "add_or_remove_one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}


class StepFacts(Protocol):
    """What an account needs to know of one step; see `Sampling`."""

    @property
    def sampling_probability(self) -> float | None: ...
    @property
    def overflow_probability(self) -> float: ...


@runtime_checkable
class Sampling(Protocol):
    """The public facts about batches that an account needs.

    `PoissonSampling`, `UserSampling` and `EpochSampling` have them; so may a
    class of your own, as long as what it says is true of the batches that are
    trained on.

    Attributes:
      num_units: Privacy units in the data: examples, or users with all of
        theirs. Public; of two neighbours that differ in size it is the size of
        the larger, or an upper bound.
      examples_per_unit: How many consecutive rows of a batch are one unit's.
      sampling_probability: Probability with which each unit is in a batch,
        independently of all others; None claims no amplification.
      num_compositions: How often the mechanism is applied to a unit: steps, or
        passes when a unit is in at most one batch of a pass.
      composition_unit: "step" or "pass".
      neighbouring_relation: "add_or_remove_one" or "zero_out".
      overflow_probability: Upper bound, for each step, on the probability that
        the batch drawn is not the batch used.
      unit: What is protected, in a word.
      description: One sentence about how batches are drawn.
    """

    @property
    def num_units(self) -> int: ...
    @property
    def examples_per_unit(self) -> int: ...
    @property
    def sampling_probability(self) -> float | None: ...
    @property
    def num_compositions(self) -> int: ...
    @property
    def composition_unit(self) -> str: ...
    @property
    def neighbouring_relation(self) -> str: ...
    @property
    def overflow_probability(self) -> float: ...
    @property
    def unit(self) -> str: ...
    @property
    def description(self) -> str: ...
    def get_config(self) -> dict[str, Any]: ...


def check_sampling(sampling: object) -> None:
    """Refuses a sampling whose facts no account below is right for.

    Raises:
      TypeError: It lacks a fact.
      ValueError: A fact is impossible, or the combination is not covered.
    """
    if not isinstance(sampling, Sampling):
        raise TypeError(
            f"sampling is {sampling!r}, expected a PoissonSampling, a "
            "UserSampling or an EpochSampling. Construct one and pass the "
            "object itself. (Steps of several kinds, as those of a "
            "VaryingPoissonSampling, are for filters.)"
        )
    check_run(sampling)
    check_step(sampling, sampling.neighbouring_relation)


def check_run(sampling: Any) -> None:
    """Refuses impossible facts about a run as a whole.

    Raises:
      ValueError: A fact is impossible.
    """
    if sampling.composition_unit not in ("step", "pass"):
        raise ValueError(
            f"sampling.composition_unit is {sampling.composition_unit!r}, "
            "expected 'step' or 'pass'. Say what num_compositions counts."
        )
    if sampling.num_compositions < 1:
        raise ValueError(
            f"sampling.num_compositions is {sampling.num_compositions}, "
            "expected at least 1. Plan for at least one step or pass."
        )
    size = sampling.examples_per_unit
    if not isinstance(size, int) or size < 1:
        raise ValueError(
            f"sampling.examples_per_unit is {size!r}, expected an integer of "
            "at least 1. Say how many consecutive rows are one unit's."
        )


def check_step(step: StepFacts, relation: str) -> None:
    """Refuses facts about a step that no account below is right for.

    Raises:
      ValueError: A fact is impossible, or the combination is not covered.
    """
    if not 0 <= step.overflow_probability <= 1:
        raise ValueError(
            "sampling.overflow_probability is "
            f"{step.overflow_probability}, expected a probability. "
            "Give an upper bound on the chance that a draw is cut short."
        )
    neighbours = neighbouring_relation(relation)
    probability = step.sampling_probability
    if probability is None:
        return
    if not 0 < probability <= 1:
        raise ValueError(
            f"sampling.sampling_probability is {probability}, expected a "
            "number in (0, 1], or None for no amplification."
        )
    # Amplification is proven here for a unit's presence only. In a fixed-size
    # neighbour the other units' chances would have to be the same in both.
    if neighbours is not dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            "sampling has a sampling_probability and the neighbouring "
            f"relation {relation!r}, expected "
            "'add_or_remove_one' with Poisson sampling. Use PoissonSampling, "
            "or EpochSampling, which claims no amplification."
        )


def neighbouring_relation(name: str) -> dp_accounting.NeighboringRelation:
    """The relation of `dp_accounting` with our name.

    "zero_out" replaces a unit by one whose contribution is zero; everything
    else, the number of units included, stays as it was.

    Raises:
      ValueError: Unknown name.
    """
    if name not in _RELATIONS:
        raise ValueError(
            f"neighbouring_relation is {name!r}, expected one of "
            f"{sorted(_RELATIONS)}. Other relations need other sensitivities; "
            "they are not supported."
        )
    return _RELATIONS[name]


def training_event(
    *,
    sampling_probability: float | None,
    noise_multiplier: float,
    compositions: int,
    noise: Noise = "gaussian",
) -> dp_accounting.DpEvent:
    r"""Adaptive composition of (subsampled) noisy sums.

    .. math:: \tilde g_t = z C \xi_t
      + \sum_{i \in B_t} \mathrm{clip}_C(g_i), \quad t = 1, \dots, k

    with k = `compositions`, z = `noise_multiplier`, each unit in B_t with
    probability `sampling_probability`, entries of ξ standard normal or of
    standard Laplace distribution, and C the clip norm, which cancels: an L2
    norm for Gaussian noise and an L1 norm for Laplace noise.

    **Guarantee**: one unit changes the sum by at most C, under either
    relation: presence adds or removes one clipped vector, zeroing replaces one
    by zero. (Replacing a unit by another would change it by up to 2C; that
    relation is not offered.) Without amplification a composition is one *pass*:
    its batches are disjoint, so that only one of them sees the unit, and the
    noisy batch sums of the pass are together one release.

    **Many coordinates of Laplace noise** tell no more than one that takes the
    whole change. For a change of a with noise of scale 1 the hockey-stick
    divergence at e^ε is 1 - e^((ε-a)/2) for |ε| ≤ a. Integrating that over the
    losses of a second coordinate with change b ≤ a gives, for 0 ≤ ε ≤ a + b
    and c = (a + b - ε)/2, the value 1 - e^(-c) (1 + min(b, c)/2), which is
    less than 1 - e^(-c), that of one coordinate with change a + b. Negative ε
    follow by exchanging the two data sets, more coordinates by induction.

    Example:
      >>> training_event(
      ...     sampling_probability=None, noise_multiplier=2.0, compositions=3
      ... )
      SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    if compositions == 0:
        return dp_accounting.NoOpDpEvent()
    event: dp_accounting.DpEvent
    if noise == "laplace":
        event = dp_accounting.LaplaceDpEvent(noise_multiplier)
    else:
        event = dp_accounting.GaussianDpEvent(noise_multiplier)
    if sampling_probability is not None:
        event = dp_accounting.PoissonSampledDpEvent(sampling_probability, event)
    return dp_accounting.SelfComposedDpEvent(event, compositions)


def step_event(
    sampling: StepFacts,
    *,
    noise_multiplier: float,
    noise: Noise = "gaussian",
    release_failure: float = 0.0,
) -> dp_accounting.DpEvent:
    """One step, or pass, with all that there is to pay for.

    Args:
      sampling: How its batch is drawn; batches that are cut are failures.
      noise_multiplier: Of the step.
      noise: Of the step.
      release_failure: How likely the release fails.
    """
    event = training_event(
        sampling_probability=sampling.sampling_probability,
        noise_multiplier=noise_multiplier,
        compositions=1,
        noise=noise,
    ).event
    failure = sampling.overflow_probability + release_failure
    return FailingDpEvent(event, failure) if failure else event
