"""The geometric distribution, cut off: powers of two that halve in chance."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.draws import Draws

# More levels than any data set has; keeps 2^M within a float.
_MOST_LEVELS = 62


@dataclasses.dataclass(frozen=True)
class TruncatedGeometric:
    r"""A number N from 0 to M, each half as likely as the one before.

    .. math:: P(N = k) = p_k = C_M 2^{-k}, \quad
      C_M = \frac{1}{2 (1 - 2^{-(M+1)})}

    with M = `largest`. Drawn exactly: the weights 2^(M-k) are integers, which
    add up to 2^(M+1) - 1.

    Args:
      largest: M, from 0 to 62.

    Raises:
      TypeError: M is not an integer.
      ValueError: M is out of range.

    Example:
      >>> law = TruncatedGeometric(2)
      >>> [str(p) for p in law.probabilities]
      ['4/7', '2/7', '1/7']
      >>> law.draw(Draws()) in (0, 1, 2)
      True

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), section 5.1.
    """

    largest: int

    def __post_init__(self) -> None:
        largest = whole_number("largest", self.largest, at_least=0)
        if largest > _MOST_LEVELS:
            raise ValueError(
                f"largest is {largest}, expected at most {_MOST_LEVELS}: "
                f"batches have 2^(largest + 1) examples."
            )
        object.__setattr__(self, "largest", largest)

    @property
    def scale(self) -> Fraction:
        """C_M, exactly."""
        return Fraction(2**self.largest, self._total)

    @property
    def probabilities(self) -> tuple[Fraction, ...]:
        """p_0 to p_M, exactly; they add up to 1."""
        return tuple(
            Fraction(2 ** (self.largest - k), self._total)
            for k in range(self.largest + 1)
        )

    @property
    def _total(self) -> int:
        return 2 ** (self.largest + 1) - 1

    def draw(self, draws: Draws) -> int:
        """N, with exactly its probability.

        Of the integers below 2^(M+1) - 1, the upper 2^M go to 0, the 2^(M-1)
        below them to 1, and so on: x + 1 has M + 1 - N binary digits.
        """
        place = draws.below(self._total) + 1
        return self.largest + 1 - place.bit_length()
