"""What training releases, in the words of `dp_accounting`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import dp_accounting

from tf_sparse_dp.accounting.dp_events import FailingDpEvent

Noise: TypeAlias = Literal["gaussian", "laplace"]
NOISES = ("gaussian", "laplace")

_RELATIONS = {
    "add_or_remove_one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}


class Part(Protocol):
    """A part of a batch that is drawn without replacement."""

    @property
    def source_size(self) -> int: ...
    @property
    def sample_size(self) -> int: ...
    @property
    def uses(self) -> int: ...


class StepFacts(Protocol):
    """What an account needs to know of one step; see `Sampling`.

    Steps may have `parts`, too: see `parts_of`.
    """

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
      neighbouring_relation: "add_or_remove_one" or "zero_out"; "replace_one"
        for steps that have `parts_of` their batches, which are for filters.
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
    if parts_of(sampling):
        raise ValueError(
            f"sampling is {sampling!r}, whose batches have parts that are "
            "drawn without replacement; expected none in a plan, which does "
            "not account for them. Give the optimizer a RenyiFilter."
        )


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
    parts = parts_of(step)
    replaces = neighbours is dp_accounting.NeighboringRelation.REPLACE_ONE
    if replaces != bool(parts):
        raise ValueError(
            f"sampling has the neighbouring relation {relation!r} and "
            f"{len(parts)} parts that are drawn without replacement. Expected "
            "'replace_one' with such parts, as in BiasReducedSampling, and "
            "'add_or_remove_one' or 'zero_out' without: replacing a unit "
            "changes a sum by twice the clip norm, which is accounted for in "
            "parts alone."
        )
    if parts:
        _check_parts(parts, probability)
        return
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


def parts_of(step: Any) -> tuple[Part, ...]:
    """Parts of the batch, if it consists of parts without replacement.

    Each is drawn independently of the others: a uniform set of `sample_size`
    out of `source_size` units. A unit of it is in `uses` noisy sums at most,
    each with noise of its own.
    """
    return tuple(getattr(step, "parts", ()))


def _check_parts(parts: Sequence[Part], probability: float | None) -> None:
    if probability is not None:
        raise ValueError(
            f"sampling has a sampling_probability, {probability}, and parts "
            "that are drawn without replacement, expected one of them. Give "
            "None for the probability: the parts say it."
        )
    for part in parts:
        counts = (part.source_size, part.sample_size, part.uses)
        whole = all(type(count) is int and count >= 1 for count in counts)
        if not whole or part.sample_size > part.source_size:
            raise ValueError(
                f"sampling has the part {part!r}, expected integers of at "
                "least 1, and a sample_size of at most source_size."
            )


def neighbouring_relation(name: str) -> dp_accounting.NeighboringRelation:
    """The relation of `dp_accounting` with our name.

    "zero_out" replaces a unit by one whose contribution is zero, "replace_one"
    by any other; everything else, the number of units included, stays as it
    was. `check_step` has which samplings it is accounted for.

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
    by zero. (Replacing a unit by another would change it by up to 2C; that is
    for `parts_event`.) Without amplification a composition is one *pass*:
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


def parts_event(
    parts: Sequence[Part], noise_multiplier: float
) -> dp_accounting.DpEvent:
    r"""Noisy sums over parts of a batch, each drawn without replacement.

    **Guarantee**: for units that are replaced. Of the u = `uses` noisy sums
    that a unit of a part is in, each changes by at most 2C and has Gaussian
    noise of stddev zC: one Gaussian vector whose mean moves by at most 2C√u,
    which is replacing a unit under a noise multiplier of z/√u. Parts are drawn
    independently, so that they compose.

    Example:
      >>> import types
      >>> part = types.SimpleNamespace(source_size=9, sample_size=4, uses=4)
      >>> parts_event([part], 1.0).events[0].event
      GaussianDpEvent(noise_multiplier=0.5)
    """
    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SampledWithoutReplacementDpEvent(
                part.source_size,
                part.sample_size,
                dp_accounting.GaussianDpEvent(
                    _divided_by_root(noise_multiplier, part.uses)
                ),
            )
            for part in parts
        ]
    )


def _divided_by_root(number: float, by: int) -> float:
    """Divides by the root of an integer, rounded down; exact if it is whole."""
    root = math.isqrt(by)
    if root * root == by:
        return number / root
    return number / math.sqrt(by) * (1 - 2.0**-51)


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

    Raises:
      ValueError: The batch has parts, and the noise is not Gaussian.
    """
    event: dp_accounting.DpEvent
    parts = parts_of(sampling)
    if parts and noise != "gaussian":
        raise ValueError(
            f"The noise is {noise!r}, expected 'gaussian': what parts of a "
            "batch cost that are drawn without replacement is proven for "
            "Gaussian noise alone."
        )
    if parts:
        event = parts_event(parts, noise_multiplier)
    else:
        event = training_event(
            sampling_probability=sampling.sampling_probability,
            noise_multiplier=noise_multiplier,
            compositions=1,
            noise=noise,
        ).event
    failure = sampling.overflow_probability + release_failure
    return FailingDpEvent(event, failure) if failure else event
