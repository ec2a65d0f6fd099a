"""How many examples a Poisson draw holds: the binomial, in whole numbers."""

from __future__ import annotations

import bisect
import itertools
import math

from tf_sparse_dp.sampling.draws import Draws

_UNIT = 2**256
# Bound of the mass that the table leaves out; see `BatchSizes`.
_LEFT_OUT = 1e-43
# Weights from here on are right to as many digits as floats have.
_WEIGHTY = 2**50


class BatchSizes:
    r"""The distribution of the size of a Poisson batch.

    .. math:: P(K = k) = \binom{n}{k} q^k (1 - q)^{n - k}, \quad q = b / n

    with n = `num_examples` and b = `batch_size`, which is also the mode. Since
    q is a ratio of integers, so are all odds P(K = k + 1) / P(K = k); the table
    is built from them outwards from the mode in 256-bit fixed point, without
    a logarithm or a floating-point number.

    **Guarantee**: the table spans b ± (15√b + 70). By Bernstein's inequality,
    P(|K - b| >= t) <= 2 exp(-t² / (2(b + t/3))), less than 1e-43 of the mass
    lies outside, and rounding moves less still. Draws are exact to that.

    Args:
      num_examples: n, at least `batch_size`.
      batch_size: b, at least 1.

    Example:
      >>> sizes = BatchSizes(num_examples=2, batch_size=1)
      >>> round(sizes.overflow_probability(2), 12)  # three of three are drawn
      0.125
    """

    def __init__(self, *, num_examples: int, batch_size: int):
        n, b = num_examples, batch_size
        reach = 15 * math.isqrt(b) + 85
        weights = {b: _UNIT}
        for k in range(b, min(n, b + reach)):
            weights[k + 1] = weights[k] * (n - k) * b // ((k + 1) * (n - b))
        for k in range(b, max(0, b - reach), -1):
            weights[k - 1] = weights[k] * k * (n - b) // ((n - k + 1) * b)
        self._num_examples = n
        self._batch_size = b
        # Few examples: every size is in the table, and nothing is left out.
        self._whole = b == n or (
            len(weights) == n + 1 and min(weights.values()) >= _WEIGHTY
        )
        self._sizes = sorted(weights)
        self._cumulative = list(
            itertools.accumulate(weights[k] for k in self._sizes)
        )

    def draw(self, draws: Draws) -> int:
        """One batch size, by inversion of the table."""
        position = draws.below(self._cumulative[-1])
        return self._sizes[bisect.bisect_right(self._cumulative, position)]

    def overflow_probability(self, limit: int) -> float:
        """An upper bound of P(K' > limit), tight to 15 digits.

        K' is the size of a batch from n + 1 examples at the same q: a guarantee
        about adding an example must hold for the data set that has it, where
        P(K' > limit) = (1 - q) P(K > limit) + q P(K > limit - 1). It includes
        the mass that the table leaves out, and so is 0 only where it leaves out
        nothing: a draw that is exact to 1e-43 is not exact.
        """
        if limit > self._num_examples:
            return 0.0 if self._whole else _LEFT_OUT
        n, b = self._num_examples, self._batch_size
        tail = (n - b) * self._above(limit) + b * self._above(limit - 1)
        # Python divides integers to the nearest float: the next one up is
        # above the true ratio.
        bound = tail / (n * self._cumulative[-1]) + _LEFT_OUT
        return min(1.0, math.nextafter(bound, 1.0))

    def smallest_limit(self, probability: float) -> int:
        """The smallest limit that is exceeded with at most `probability`."""
        first = bisect.bisect_left(
            self._sizes,
            -probability,
            key=lambda limit: -self.overflow_probability(limit),
        )
        if first == len(self._sizes):
            return self._num_examples + 1
        return self._sizes[first]

    def _above(self, limit: int) -> int:
        """The weight of all sizes above `limit`."""
        within = bisect.bisect_right(self._sizes, limit)
        below = self._cumulative[within - 1] if within else 0
        return self._cumulative[-1] - below
