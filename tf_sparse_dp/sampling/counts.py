"""Whole numbers that describe a sampling, checked once for all of them."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, *, at_least: int = 1) -> int:
    """Returns `value` as an int, or says why it is not a usable count.

    Args:
      name: What the count is called in the error.
      value: Any integer, NumPy's included. Truth values and floats, even
        whole ones, are refused: they are usually a swapped argument.
      at_least: The smallest count that makes sense.

    Raises:
      TypeError: `value` is not an integer.
      ValueError: `value` is smaller than `at_least`.

    Example:
      >>> whole_number("batch_size", 32)
      32
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} is {value!r}, expected an integer of at least "
            f"{at_least}. Pass int(...) if the value is a whole number."
        ) from None
    if count < at_least:
        raise ValueError(
            f"{name} is {count}, expected at least {at_least}. Check that the "
            "arguments were not swapped."
        )
    return count
