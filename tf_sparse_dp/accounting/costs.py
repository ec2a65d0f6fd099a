r"""What an event costs, in a currency that adds up.

Every cost has up to three parts:

* `sizes`: what adds up, such as Rényi divergences, one for each order.
* `delta`: the probability with which all may be revealed. What is (ε, δ)-DP is
  a post-processing of randomised response that reveals all with probability δ
  and is ε-DP otherwise (Kairouz, Oh and Viswanath, *The composition theorem for
  differential privacy*, 2015). The probability that any of a run's events
  reveals all is at most the sum of their deltas, also when each was chosen
  after what came before and the sum has a bound that is never exceeded.
* `failure`: the probability with which the release is another one than that
  accounted for. Also these add up, by coupling (`FailingDpEvent`).

All three are rounded up.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import numbers
import sys
from typing import Any

import dp_accounting
import numpy as np
from scipy import stats

from tf_sparse_dp.accounting.divergences import ULP, Array
from tf_sparse_dp.accounting.dp_events import (
    ApproxDpEvent,
    FailingDpEvent,
    PublicMixtureDpEvent,
)

_Relation = dp_accounting.NeighboringRelation
SUMS = (dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent)
# It exists from dp-accounting 0.6 on.
_Truncated: Any = getattr(
    dp_accounting, "TruncatedSubsampledGaussianDpEvent", None
)
MOST_COUNT = 2**53  # Integers up to here are floats.


class UnknownCost(Exception):
    """Nobody proved what an event costs in this currency.

    Args:
      event: The event, or the part of one, that has no price.
      reason: Why, and what to do.
    """

    def __init__(self, event: dp_accounting.DpEvent, reason: str):
        super().__init__(event, reason)
        self.event = event
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Cost:
    """What an event costs; see the top of this file."""

    sizes: tuple[float, ...]
    delta: float = 0.0
    failure: float = 0.0


def added(first: float, second: float) -> float:
    """The sum of numbers of at least 0, rounded up; exact if one is 0."""
    if first == 0 or second == 0:
        return first + second
    return math.nextafter(first + second, math.inf)


def times(first: float, second: float) -> float:
    """The product of numbers of at least 0, rounded up; exact with 0 and 1."""
    if first == 0 or second == 0:
        return 0.0
    if first == 1 or second == 1:
        return float(first * second)
    return math.nextafter(first * second, math.inf)


def checked_number(
    event: dp_accounting.DpEvent, name: str, most: float = math.inf
) -> float:
    """The field of that name, if it is a number from 0 to `most`."""
    value = getattr(event, name)
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0 <= value <= most:
        raise UnknownCost(
            event, f"{name} is {value!r}, expected a number from 0 to {most:g}."
        )
    return float(value)


def checked_count(event: dp_accounting.DpEvent, name: str, least: int) -> int:
    """The field of that name, if it is an integer from `least` to 2^53."""
    value = getattr(event, name)
    if not isinstance(value, int) or not least <= value <= MOST_COUNT:
        raise UnknownCost(
            event,
            f"{name} is {value!r}, expected an integer from {least} to 2^53.",
        )
    return value


def amplified(epsilon: float, probability: float) -> float:
    """ln(1 + q (e^ε - 1)), rounded up.

    What is (ε, δ)-DP and sees a unit with probability q only is (this, qδ)-DP:
    for Poisson samples if units are added or removed, for samples without
    replacement if they are replaced (Balle, Barthe and Gaboardi, *Privacy
    amplification by subsampling*, 2018, Theorems 8 and 9).
    """
    if epsilon < 700 and probability < 1:
        grown = probability * math.expm1(epsilon)
        return min(epsilon, math.log1p(grown) * (1 + 16 * ULP))
    return epsilon if probability > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Sample:
    """A release from a sample of the data.

    Attributes:
      release: Gaussian, Laplace or `ApproxDpEvent`.
      probability: With which a unit is in the sample.
      change: Of a sum by a unit, over the largest norm of one contribution.
      failure: Of all that is done with the sample.
    """

    release: dp_accounting.DpEvent
    probability: float
    change: float
    failure: float


def sample_of(
    event: dp_accounting.DpEvent, relation: dp_accounting.NeighboringRelation
) -> Sample | None:
    """The sample that a sampled event takes; None if it is another event.

    **Poisson samples** have a price for sums (Gaussian or Laplace noise) if
    units are added, removed or zeroed, which for a sum is the same; for an
    (ε, δ)-DP event if units are added or removed. **Samples without
    replacement** have one for sums if units are replaced, by zero or another,
    with a change of up to twice the norm; for an (ε, δ)-DP event if any unit
    may be replaced by any.

    Raises:
      UnknownCost: Nothing is proven for this release or this relation.
    """
    if type(event) is dp_accounting.PoissonSampledDpEvent:
        probability = checked_number(event, "sampling_probability", 1.0)
        change = 1.0
        proven = (_Relation.ADD_OR_REMOVE_ONE, _Relation.REPLACE_SPECIAL)
    elif type(event) is dp_accounting.SampledWithoutReplacementDpEvent:
        units = checked_count(event, "source_dataset_size", 1)
        size = checked_count(event, "sample_size", 0)
        if size > units:
            raise UnknownCost(event, "the sample is larger than the data set.")
        probability = min(1.0, size / units * (1 + ULP))
        change = 2.0
        proven = (_Relation.REPLACE_ONE, _Relation.REPLACE_SPECIAL)
    else:
        return None
    release, failure = _inside(event.event)
    if type(release) not in (*SUMS, ApproxDpEvent):
        raise UnknownCost(
            release,
            "what sampling gains is known here for Gaussian and Laplace noise "
            "and for ApproxDpEvent.",
        )
    known = proven if type(release) in SUMS else proven[:1]
    if relation not in known:
        raise UnknownCost(
            event,
            f"what it gains is not proven for {relation.name}, only for "
            f"{' and '.join(other.name for other in known)}.",
        )
    return Sample(release, probability, change, failure)


def _inside(
    event: dp_accounting.DpEvent,
) -> tuple[dp_accounting.DpEvent, float]:
    """One release that stands for what is done with a sample, and its failure.

    Gaussians of noise multipliers z_i on one sample are one Gaussian with
    1/z² = Σ 1/z_i², adaptively too (Dong, Roth and Su, *Gaussian differential
    privacy*, 2022, Corollary 3.3). A failure that has probability p on *any*
    data set has it on any sample, hence on the sampled data: it moves outside.
    """
    kind = type(event)
    if kind is FailingDpEvent:
        inner, failure = _inside(event.event)
        return inner, added(failure, event.failure_probability)
    if kind in (
        dp_accounting.ComposedDpEvent,
        dp_accounting.SelfComposedDpEvent,
    ):
        precision, failure = _precision(event)
        noise = math.inf if precision == 0 else precision**-0.5
        return dp_accounting.GaussianDpEvent(noise * (1 - 4 * ULP)), failure
    return event, 0.0


def _precision(event: dp_accounting.DpEvent) -> tuple[float, float]:
    kind = type(event)
    if kind is dp_accounting.ComposedDpEvent:
        parts = [_precision(part) for part in event.events]
        return (
            functools.reduce(added, (p for p, _ in parts), 0.0),
            functools.reduce(added, (f for _, f in parts), 0.0),
        )
    if kind is dp_accounting.SelfComposedDpEvent:
        count = checked_count(event, "count", 1)
        precision, failure = _precision(event.event)
        return times(count, precision), times(count, failure)
    if kind is FailingDpEvent:
        precision, failure = _precision(event.event)
        return precision, added(failure, event.failure_probability)
    if kind is dp_accounting.NoOpDpEvent:
        return 0.0, 0.0
    if kind is dp_accounting.GaussianDpEvent:
        noise = checked_number(event, "noise_multiplier")
        with np.errstate(divide="ignore", over="ignore"):
            precision = float(1 / np.float64(noise) / np.float64(noise))
        return precision * (1 + 4 * ULP), 0.0
    raise UnknownCost(
        event,
        "of several releases from one sample only Gaussians have a price. "
        "If each release draws a sample of its own, let each be an event of "
        "its own.",
    )


class Prices(abc.ABC):
    """What events cost in one currency, under one neighbouring relation.

    Only exact types are known: a subclass of an event may mean another thing.

    Args:
      neighboring_relation: Of `dp_accounting`.
      length: How many numbers `Cost.sizes` has.
    """

    def __init__(
        self,
        neighboring_relation: dp_accounting.NeighboringRelation,
        length: int,
    ):
        self._relation = neighboring_relation
        self._length = length
        self._remembered = functools.lru_cache(maxsize=4096)(self._cost)

    @abc.abstractmethod
    def _release(self, event: dp_accounting.DpEvent) -> Cost:
        """The cost of an event that is not one of the structures below."""

    @abc.abstractmethod
    def _mixed(self, weights: Array, sizes: Array) -> Array:
        """Sizes of a public mixture; rows of `sizes` are its components."""

    def cost(self, event: dp_accounting.DpEvent) -> Cost:
        """What the event costs.

        Raises:
          UnknownCost: The event, or a part of it, has no price.
        """
        try:
            hash(event)
        except TypeError:  # A ComposedDpEvent has a list.
            return self._cost(event)
        return self._remembered(event)

    def _flat(self, size: float, delta: float = 0.0) -> Cost:
        return Cost((size,) * self._length, delta)

    def _cost(self, event: dp_accounting.DpEvent) -> Cost:
        kind = type(event)
        if kind is dp_accounting.NoOpDpEvent:
            return self._flat(0.0)
        if kind is dp_accounting.NonPrivateDpEvent:
            return self._flat(math.inf)
        if kind is dp_accounting.ComposedDpEvent:
            total = self._flat(0.0)
            for part in event.events:
                total = sum_of(total, self.cost(part), 1)
            return total
        if kind is dp_accounting.SelfComposedDpEvent:
            count = checked_count(event, "count", 1)
            return sum_of(self._flat(0.0), self.cost(event.event), count)
        if kind is FailingDpEvent:
            inner = self.cost(event.event)
            failure = added(inner.failure, event.failure_probability)
            return dataclasses.replace(inner, failure=failure)
        if kind is PublicMixtureDpEvent:
            return self._mixture(event)
        if kind is _Truncated:
            return self.cost(_failing(event))
        price = self._release(event)
        # No release is for nothing, however often it comes.
        sizes = tuple(max(size, sys.float_info.min) for size in price.sizes)
        return dataclasses.replace(price, sizes=sizes)

    def _mixture(self, event: PublicMixtureDpEvent) -> Cost:
        """The mixture's cost: expected delta and failure, and `_mixed` sizes.

        The draw and what was drawn reveal all, or fail, with the expected
        probability. What is left when nothing is revealed is a part of the
        mixture, no more likely than the whole for any of the components.
        """
        parts = [self.cost(component) for component in event.events]
        drawn = [i for i, p in enumerate(event.probabilities) if p > 0]
        weights = np.asarray([event.probabilities[i] for i in drawn])
        weights = weights / math.fsum(weights) * (1 + 4 * ULP)
        delta = failure = 0.0
        for weight, i in zip(weights.tolist(), drawn, strict=True):
            delta = added(delta, times(weight, parts[i].delta))
            failure = added(failure, times(weight, parts[i].failure))
        sizes = np.asarray([parts[i].sizes for i in drawn])
        infinite = np.any(np.isinf(sizes), axis=0)
        mixed = self._mixed(weights, np.where(infinite, 0.0, sizes))
        mixed = np.where(infinite, np.inf, mixed)
        return Cost(tuple(mixed.tolist()), delta, failure)


def sum_of(total: Cost, cost: Cost, count: int) -> Cost:
    """`total` and `count` times `cost`."""
    return Cost(
        tuple(
            added(before, times(count, size))
            for before, size in zip(total.sizes, cost.sizes, strict=True)
        ),
        added(total.delta, times(count, cost.delta)),
        added(total.failure, times(count, cost.failure)),
    )


def _failing(event: dp_accounting.DpEvent) -> FailingDpEvent:
    """A cut Poisson batch is an uncut one unless it overflows.

    Of two neighbours the larger has one unit more than the data set that the
    event names, if it names the smaller.
    """
    units = checked_count(event, "dataset_size", 0)
    most = checked_count(event, "truncated_batch_size", 0)
    probability = checked_number(event, "sampling_probability", 1.0)
    overflow = float(stats.binom.sf(most, units + 1, probability))
    noise = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    return FailingDpEvent(
        dp_accounting.PoissonSampledDpEvent(probability, noise),
        min(1.0, overflow * (1 + 1e-6)),
    )
