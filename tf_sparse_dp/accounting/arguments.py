"""What arguments of plans, filters and odometers must be."""

from __future__ import annotations

import math
import numbers

import dp_accounting


def check_relation(relation: object) -> None:
    """Refuses what is no neighbouring relation of `dp_accounting`.

    A word, or nothing at all, would otherwise count as one of the relations,
    and not always as the dearest.

    Raises:
      TypeError: It is none.
    """
    if not isinstance(relation, dp_accounting.NeighboringRelation):
        raise TypeError(
            f"neighboring_relation is {relation!r}, expected a "
            "dp_accounting.NeighboringRelation. Name what neighbours differ "
            "by, such as "
            "dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE."
        )


def checked_real(
    name: str,
    value: object,
    *,
    below: float = math.inf,
    at_least: float | None = None,
) -> float:
    """The number itself, if it is one within bounds.

    Raises:
      TypeError: It is no number.
      ValueError: It is out of bounds.
    """
    bounds = "above 0" if at_least is None else f"of at least {at_least:g}"
    if below < math.inf:
        bounds += f" and below {below:g}"
    remedy = {
        "epsilon": "Typical budgets lie between 0.1 and 10.",
        "delta": "A common choice is a tenth of one over the number of "
        "examples, or of users where those are protected, or less.",
        "event_share": "It is the part of delta for deltas and failures of "
        "events.",
        "event_delta": "It is a part of delta.",
        "noise_multiplier": "For training without noise, leave out the plan.",
    }[name]
    message = (
        f"{name} is {value!r}, expected a finite number {bounds}. {remedy}"
    )
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    number = float(value)
    enough = number > 0 if at_least is None else number >= at_least
    if not (enough and number < below):  # also refuses NaN
        raise ValueError(message)
    return number
