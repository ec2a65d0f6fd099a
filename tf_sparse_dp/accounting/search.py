"""The last whole number whose epsilon still fits a budget."""

from __future__ import annotations

import math
from collections.abc import Callable


def largest_within(
    epsilon_of: Callable[[int], float], epsilon: float, most: int
) -> int:
    """The largest n from 0 to `most` with `epsilon_of(n)` at most `epsilon`.

    `epsilon_of` does not fall, and is 0 at 0. What is returned was evaluated,
    and so was the number after it, unless they are the ends. Should rounding
    leave the curve uneven, it is *a* number that fits next to one that does
    not.

    Epsilon grows about as the root of n, at most as n: squares are
    interpolated, which takes a few evaluations; whenever that does not halve
    the range, the next one does.
    """
    low, high = 0, most + 1  # The first fits; the last does not, or is outside.
    squares = {0: 0.0, most + 1: math.inf}
    guess = min(1, most)
    while high - low > 1:
        square = epsilon_of(guess) ** 2
        squares[guess] = square
        width = high - low
        if square <= epsilon**2:
            low = guess
        else:
            high = guess
        wanted, below, above = epsilon**2, squares[low], squares[high]
        if math.isinf(above):
            # No end to interpolate to: as far as it goes by proportion.
            ahead = low * min(wanted / below, 1e3) if below else 64.0 * low
            guess = math.ceil(1.01 * ahead) if ahead < most else most
            guess = max(guess, low + 1)
            if high <= most:
                guess = (low + high) // 2
        elif high - low > width / 2:
            guess = (low + high) // 2
        else:
            share = (wanted - below) / (above - below)
            guess = low + math.floor(share * (high - low))
        guess = min(max(guess, low + 1), high - 1)
    return low
