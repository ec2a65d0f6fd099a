"""A sequence of events, taken apart into releases that can be composed."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable
from typing import TypeAlias

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.costs import (
    Sample,
    UnknownCost,
    amplified,
    checked_number,
    sample_of,
)
from tf_sparse_dp.accounting.divergences import ULP
from tf_sparse_dp.accounting.dp_events import (
    ApproxDpEvent,
    FailingDpEvent,
    PublicMixtureDpEvent,
)
from tf_sparse_dp.accounting.events import Noise

ADD_OR_REMOVE_ONE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
Counted: TypeAlias = tuple[dp_accounting.DpEvent, int]


@dataclasses.dataclass(frozen=True)
class Release:
    """One noisy sum, of all units or of a Poisson sample of them."""

    noise: Noise
    noise_multiplier: float
    sampling_probability: float | None = None


@dataclasses.dataclass(frozen=True)
class Mixture:
    """One of several releases, or none, by public randomness."""

    probabilities: tuple[float, ...]
    releases: tuple[Release | None, ...]


@dataclasses.dataclass
class Parts:
    """What a sequence of events is made of, whatever the order.

    Attributes:
      releases: How often each noisy sum is released.
      approximate: How often each (ε, δ) release.
      mixtures: How often each mixture of single releases.
      unknown: The first event whose privacy loss is not known here, if any;
        then the others are not all there is.
      failure: Bound on the probability that any release fails.
      private: False if something is released without any noise.
    """

    releases: collections.Counter[Release]
    approximate: collections.Counter[tuple[float, float]]
    mixtures: collections.Counter[Mixture]
    unknown: dp_accounting.DpEvent | None = None
    failure: float = 0.0
    private: bool = True

    @property
    def size(self) -> int:
        """How many releases there are."""
        several = (self.releases, self.approximate, self.mixtures)
        return sum(counted.total() for counted in several)

    @property
    def different(self) -> int:
        """How many different ones."""
        return len(self.releases) + len(self.approximate) + len(self.mixtures)

    def joined(self) -> collections.Counter[Release]:
        """The releases, with all plain Gaussians as the one that they are.

        Noise of multipliers z₁, z₂, ... on the same change is told apart as one
        Gaussian of multiplier (z₁⁻² + z₂⁻² + ...)^(-1/2) is, rounded down here.
        """
        found: collections.Counter[Release] = collections.Counter()
        precision = []
        for release, count in self.releases.items():
            plain = release.sampling_probability is None
            if plain and release.noise == "gaussian":
                precision.append(count / release.noise_multiplier**2)
            else:
                found[release] = count
        if precision:
            multiplier = (1 - 8 * ULP) / math.sqrt(math.fsum(precision))
            found[Release("gaussian", multiplier)] = 1
        return found


def parts_of(
    events: Iterable[Counted],
    neighboring_relation: dp_accounting.NeighboringRelation,
) -> Parts:
    """Takes events apart.

    Noise multipliers are over the largest norm of one unit's contribution. If
    units are replaced a sum changes by twice as much, which halves them.

    Raises:
      ValueError: A count is not a whole number of at least 0.
    """
    parts = Parts(
        collections.Counter(), collections.Counter(), collections.Counter()
    )
    for event, count in events:
        _add(parts, event, whole(event, count), neighboring_relation)
    return parts


def whole(event: dp_accounting.DpEvent, count: object) -> int:
    """The count, if it is one.

    Raises:
      ValueError: It is not a whole number of at least 0.
    """
    if isinstance(count, int | np.integer) and not isinstance(count, bool):
        if count >= 0:
            return int(count)
    raise ValueError(
        f"count of {event!r} is {count!r}, expected a whole number of at least "
        "0. Say how often the event occurs."
    )


def _add(
    parts: Parts,
    event: dp_accounting.DpEvent,
    count: int,
    relation: dp_accounting.NeighboringRelation,
) -> None:
    # Exact types only: a subclass of an event may mean another thing.
    kind = type(event)
    if count == 0 or kind is dp_accounting.NoOpDpEvent:
        return
    if kind is dp_accounting.NonPrivateDpEvent:
        parts.private = False
    elif kind is dp_accounting.SelfComposedDpEvent:
        times = whole(event.event, event.count)
        _add(parts, event.event, count * times, relation)
    elif kind is dp_accounting.ComposedDpEvent:
        for inner in event.events:
            _add(parts, inner, count, relation)
    elif kind is FailingDpEvent:
        _add(parts, event.event, count, relation)
        parts.failure += count * event.failure_probability
    elif kind is PublicMixtureDpEvent:
        _add_mixture(parts, event, count, relation)
    else:
        try:
            _add_release(parts, event, count, relation)
        except UnknownCost:
            parts.unknown = parts.unknown or event


def _add_release(
    parts: Parts,
    event: dp_accounting.DpEvent,
    count: int,
    relation: dp_accounting.NeighboringRelation,
) -> None:
    change = 2.0 if relation is REPLACE_ONE else 1.0
    sample = sample_of(event, relation)
    plain = sample is None
    if sample is None:
        sample = Sample(event, 1.0, change, 0.0)
    elif type(event) is not dp_accounting.PoissonSampledDpEvent:
        raise UnknownCost(event, "its privacy loss is not known.")
    release, probability = sample.release, sample.probability
    if probability == 0:
        return
    kind = type(release)
    if kind is ApproxDpEvent:
        epsilon = amplified(release.epsilon, probability)
        delta = release.delta * probability
        parts.approximate[epsilon, delta] += count
    elif kind in (dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent):
        noise = checked_number(release, "noise_multiplier") / sample.change
        if noise == 0:
            parts.private = False
        elif noise < math.inf:
            family: Noise = "gaussian"
            if kind is dp_accounting.LaplaceDpEvent:
                family = "laplace"
            chance = None if plain else probability
            parts.releases[Release(family, noise, chance)] += count
    else:
        raise UnknownCost(event, "its privacy loss is not known.")
    parts.failure += count * sample.failure


def _add_mixture(
    parts: Parts,
    event: PublicMixtureDpEvent,
    count: int,
    relation: dp_accounting.NeighboringRelation,
) -> None:
    """The draw is public, so a mixture fails as often as its average part."""
    releases: list[Release | None] = []
    for weight, component in zip(
        event.probabilities, event.events, strict=True
    ):
        inner = parts_of([(component, 1)], relation)
        parts.failure += count * weight * inner.failure
        if weight > 0 and not inner.private:
            parts.private = False
        several = inner.joined()
        if inner.unknown is not None:
            parts.unknown = parts.unknown or inner.unknown
        elif inner.approximate or inner.mixtures or several.total() > 1:
            parts.unknown = parts.unknown or event
        releases.append(next(iter(several), None))
    parts.mixtures[Mixture(event.probabilities, tuple(releases))] += count
