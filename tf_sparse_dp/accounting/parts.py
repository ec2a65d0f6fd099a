"""A sequence of events, taken apart into releases that can be composed."""

from __future__ import annotations

import collections
import dataclasses
import math
import numbers
from collections.abc import Iterable
from typing import Any, TypeAlias

import attr
import dp_accounting
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting.dp_events import (
    ApproxDpEvent,
    FailingDpEvent,
    PublicMixtureDpEvent,
)
from tf_sparse_dp.accounting.events import Noise

ADD_OR_REMOVE_ONE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
Counted: TypeAlias = tuple[dp_accounting.DpEvent, int]


@dataclasses.dataclass(frozen=True)
class Release:
    """One noisy sum, of all units or of a Poisson sample of them."""

    noise: Noise
    noise_multiplier: float
    sampling_probability: float | None = None


@dataclasses.dataclass
class Parts:
    """What a sequence of events is made of, whatever the order.

    Attributes:
      releases: How often each noisy sum is released.
      approximate: How often each (ε, δ) release.
      mixtures: How often each mixture by public randomness; failures of what
        is mixed are counted here and left out there.
      others: What only Rényi divergences may be known of.
      failure: Bound on the probability that any release fails.
      private: False if something is released without any noise.
    """

    releases: collections.Counter[Release]
    approximate: collections.Counter[tuple[float, float]]
    mixtures: collections.Counter[PublicMixtureDpEvent]
    others: list[Counted]
    failure: float = 0.0
    private: bool = True

    @property
    def size(self) -> int:
        """How many releases there are."""
        several = (self.releases, self.approximate, self.mixtures)
        return sum(counted.total() for counted in several) + sum(
            count for _, count in self.others
        )


def parts_of(
    events: Iterable[Counted],
    neighboring_relation: dp_accounting.NeighboringRelation,
) -> Parts:
    """Takes events apart.

    Raises:
      UnsupportedEventError: Amplification by Poisson sampling is claimed for
        neighbours that do not differ by the presence of a unit.
      ValueError: A count is not a whole number of at least 0, or a parameter
        is none that noise can have.
    """
    parts = Parts(
        collections.Counter(),
        collections.Counter(),
        collections.Counter(),
        [],
    )
    for event, count in events:
        _add(parts, event, _count(event, count), neighboring_relation)
    return parts


def _count(event: dp_accounting.DpEvent, count: object) -> int:
    whole = isinstance(count, numbers.Integral) and not isinstance(count, bool)
    if not whole or count < 0:  # type: ignore[operator]
        raise ValueError(
            f"count of {event!r} is {count!r}, expected a whole number of at "
            "least 0. Say how often the event occurs."
        )
    return int(count)  # type: ignore[call-overload, no-any-return]


def _add(
    parts: Parts,
    event: dp_accounting.DpEvent,
    count: int,
    relation: dp_accounting.NeighboringRelation,
) -> None:
    if count == 0:
        return
    match event:
        case dp_accounting.NoOpDpEvent():
            pass
        case dp_accounting.NonPrivateDpEvent():
            parts.private = False
        case dp_accounting.SelfComposedDpEvent():
            times = _count(event.event, event.count)
            _add(parts, event.event, count * times, relation)
        case dp_accounting.ComposedDpEvent():
            for inner in event.events:
                _add(parts, inner, count, relation)
        case FailingDpEvent():
            _add(parts, event.event, count, relation)
            parts.failure += count * event.failure_probability
        case ApproxDpEvent():
            parts.approximate[event.epsilon, event.delta] += count
        case PublicMixtureDpEvent():
            _add_mixture(parts, event, count, relation)
        case dp_accounting.GaussianDpEvent():
            _add_release(parts, event, "gaussian", None, count)
        case dp_accounting.LaplaceDpEvent():
            _add_release(parts, event, "laplace", None, count)
        case dp_accounting.PoissonSampledDpEvent():
            _add_sampled(parts, event, count, relation)
        case _:
            parts.others.append((event, count))


def _add_release(
    parts: Parts,
    event: Any,
    noise: Noise,
    probability: float | None,
    count: int,
) -> None:
    multiplier = event.noise_multiplier
    if not multiplier >= 0:
        raise ValueError(
            f"noise_multiplier of {event!r} is {multiplier!r}, expected a "
            "number of at least 0."
        )
    if multiplier == 0:
        parts.private = False
    elif multiplier < math.inf:
        release = Release(noise, float(multiplier), probability)
        parts.releases[release] += count


def _add_sampled(
    parts: Parts,
    event: Any,
    count: int,
    relation: dp_accounting.NeighboringRelation,
) -> None:
    if relation is not ADD_OR_REMOVE_ONE:
        raise privacy_accountant.UnsupportedEventError(
            f"{event!r} claims amplification by Poisson sampling, which holds "
            f"for neighbours of ADD_OR_REMOVE_ONE, not of {relation.name}. "
            "Account for it under that relation, or without amplification."
        )
    probability = event.sampling_probability
    if not 0 <= probability <= 1:
        raise ValueError(
            f"sampling_probability of {event!r} is {probability!r}, expected "
            "a number from 0 to 1."
        )
    if probability == 0:
        return
    match event.event:
        case dp_accounting.GaussianDpEvent():
            _add_release(
                parts, event.event, "gaussian", float(probability), count
            )
        case dp_accounting.LaplaceDpEvent():
            _add_release(
                parts, event.event, "laplace", float(probability), count
            )
        case _:
            parts.others.append((event, count))


def _add_mixture(
    parts: Parts,
    event: PublicMixtureDpEvent,
    count: int,
    relation: dp_accounting.NeighboringRelation,
) -> None:
    """The draw is public, so a mixture fails as often as its average part."""
    failure = 0.0
    ideal = []
    for weight, part in zip(event.probabilities, event.events, strict=True):
        inner = parts_of([(part, 1)], relation)
        failure += weight * inner.failure
        if weight > 0 and not inner.private:
            parts.private = False
        ideal.append(_without_failures(part))
    parts.failure += count * failure
    parts.mixtures[attr.evolve(event, events=ideal)] += count


def _without_failures(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    match event:
        case FailingDpEvent():
            return _without_failures(event.event)
        case dp_accounting.SelfComposedDpEvent():
            return dp_accounting.SelfComposedDpEvent(
                _without_failures(event.event), event.count
            )
        case dp_accounting.ComposedDpEvent():
            return dp_accounting.ComposedDpEvent(
                tuple(_without_failures(inner) for inner in event.events)
            )
        case PublicMixtureDpEvent():
            inner = [_without_failures(part) for part in event.events]
            return attr.evolve(event, events=inner)
    return event
