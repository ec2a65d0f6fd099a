"""Events that `dp_accounting` has no words for.

They nest with those of `dp_accounting` in both directions. Its accountants do
not know them, and say so; our filters and our ledger do.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import attr
import dp_accounting


def _number(instance: Any, attribute: Any, value: Any, *, most: float) -> None:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0 <= value <= most:
        raise ValueError(
            f"{attribute.name} of {type(instance).__name__} is {value!r}, "
            f"expected a number from 0 to {most:g}."
        )


def _at_least_zero(instance: Any, attribute: Any, value: Any) -> None:
    _number(instance, attribute, value, most=math.inf)


def _probability(instance: Any, attribute: Any, value: Any) -> None:
    _number(instance, attribute, value, most=1.0)


def _event(instance: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, dp_accounting.DpEvent):
        raise TypeError(
            f"{attribute.name} of {type(instance).__name__} is {value!r}, "
            "expected a dp_accounting.DpEvent."
        )


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ApproxDpEvent(dp_accounting.DpEvent):
    """A release of which only (ε, δ) is known.

    Example:
      >>> ApproxDpEvent(epsilon=0.1, delta=1e-9)
      ApproxDpEvent(epsilon=0.1, delta=1e-09)
    """

    epsilon: float = attr.ib(validator=_at_least_zero)
    delta: float = attr.ib(default=0.0, validator=_probability)

    @classmethod
    def of(
        cls,
        event: dp_accounting.DpEvent,
        delta: float,
        neighboring_relation: dp_accounting.NeighboringRelation = (
            dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        ),
    ) -> ApproxDpEvent:
        """What another event is at a delta of your choice.

        It holds for one neighbouring relation, which the result does not name:
        spend it of a filter for the same.

        Args:
          event: Any whose cost is known.
          delta: From 0 to below 1.
          neighboring_relation: Of `dp_accounting`.

        Raises:
          UnsupportedEventError: Its cost is not known.
          ValueError: It has no epsilon at this delta.

        Example:
          >>> step = dp_accounting.GaussianDpEvent(20.0)
          >>> round(ApproxDpEvent.of(step, delta=1e-9).epsilon, 3)
          0.26
        """
        # It knows the events of this file.
        from tf_sparse_dp.accounting.composition import composed_epsilon

        epsilon = composed_epsilon(
            [(event, 1)], delta=delta, neighboring_relation=neighboring_relation
        )
        if math.isinf(epsilon):
            raise ValueError(
                f"{event!r} has no epsilon at delta = {delta!r}. Give a larger "
                "delta, above that of the event itself."
            )
        return cls(epsilon, delta)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class FailingDpEvent(dp_accounting.DpEvent):
    """A release that is `event`, but for a failure of small probability.

    Such is a Poisson batch that is cut when it is too large, or a mechanism
    that fixes sizes beforehand: run on the same randomness, it and `event` give
    the same unless the failure occurs, on *any* data set with probability at
    most `failure_probability`. A run with k of them is charged
    k·(1 + e^ε)·p of delta; `overflow_charge` has the proof.
    """

    event: dp_accounting.DpEvent = attr.ib(validator=_event)
    failure_probability: float = attr.ib(validator=_probability)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class PublicMixtureDpEvent(dp_accounting.DpEvent):
    """One of several events, chosen by public randomness.

    Which one it is, is drawn independently of the data, with `probabilities`,
    and anybody may know it. The event is the draw together with what was
    drawn; whoever decides on going on *after* the draw spends the event that
    was drawn instead.
    """

    probabilities: tuple[float, ...] = attr.ib(converter=tuple)
    events: tuple[dp_accounting.DpEvent, ...] = attr.ib(converter=tuple)

    def __attrs_post_init__(self) -> None:
        number = len(self.probabilities)
        if number != len(self.events) or not number:
            raise ValueError(
                f"PublicMixtureDpEvent has {number} probabilities and "
                f"{len(self.events)} events, expected as many, and at least "
                "one."
            )
        for event in self.events:
            _event(self, attr.fields(PublicMixtureDpEvent).events, event)
        total = math.fsum(self.probabilities)
        possible = all(chance >= 0 for chance in self.probabilities)
        if not possible or not abs(total - 1) <= 1e-9:  # Nor if it is NaN.
            raise ValueError(
                f"probabilities of PublicMixtureDpEvent are "
                f"{self.probabilities}, expected numbers of at least 0 that "
                "add up to 1."
            )
