"""How many runs a selection makes: random, and never told."""

from __future__ import annotations

import dataclasses
import decimal
import functools
import itertools
import math
import numbers
from collections.abc import Iterator
from typing import TypeAlias

from tf_sparse_dp.exact_draws import digits, uniform

_Decimal: TypeAlias = decimal.Decimal
_MOST_MEAN = 1e6
# What is left of a distribution when nothing is left that matters.
_NOTHING = decimal.Decimal("1e-50")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCount:
    r"""The distribution of a random number K of runs.

    .. math:: P(K = k) \propto (1-\gamma)^k \frac{\Gamma(k+\eta)}{k!},
      \quad k = 1, 2, \ldots

    with η = `shape`: the truncated negative binomial distribution; 1 is the
    geometric one (stop after each run with probability γ), 0 the logarithmic
    one, infinity Poisson's, for which K may be 0. γ follows from `mean`.

    With `most`, runs beyond that many are not made. This is another
    distribution with probability `cut` = P(K > most) only.

    Args:
      mean: E[K] before it is cut, from 1 to a million. With 1 there is one
        run, whatever the shape.
      shape: At least 0.
      most: None for no limit.

    Raises:
      TypeError, ValueError: An argument is not as described.

    Example:
      >>> RunCount(mean=10.0).failure_probability(0.5)
      0.0909090...
    """

    mean: float
    shape: float = 1.0
    most: int | None = None

    def __post_init__(self) -> None:
        mean = _number("mean_runs", self.mean)
        if not 1 <= mean <= _MOST_MEAN:
            raise ValueError(
                f"mean_runs is {self.mean!r}, expected a number from 1 to "
                f"{_MOST_MEAN:g}: how many runs there are on average."
            )
        shape = _number("shape", self.shape)
        if not shape >= 0:
            raise ValueError(
                f"shape is {self.shape!r}, expected at least 0: 1 for a "
                "geometric number of runs, 0 for a logarithmic one, infinity "
                "for Poisson's."
            )
        if 0 < shape < 1e-3 or 1e3 < shape < math.inf:
            raise ValueError(
                f"shape is {self.shape!r}, expected 0, infinity, or a number "
                "from 0.001 to 1000. Take 0, or infinity."
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "shape", shape)
        most = self.most
        if most is not None and (
            isinstance(most, bool)
            or not isinstance(most, numbers.Integral)
            or most < 1
        ):
            raise ValueError(
                f"max_runs is {most!r}, expected None or a whole number of at "
                "least 1."
            )

    @classmethod
    def for_failure(
        cls,
        failure_probability: float,
        *,
        success_probability: float = 0.5,
        shape: float = 1.0,
    ) -> RunCount:
        """As few runs as leave none that succeeds with this probability.

        Args:
          failure_probability: β, above 0 and below that of one run.
          success_probability: Of one run.
          shape: As above.

        Example:
          >>> round(RunCount.for_failure(0.05).mean, 6)
          19.0
        """
        single = 1 - _open("success_probability", success_probability)
        wanted = _open("failure_probability", failure_probability)
        if wanted >= single:
            return cls(mean=1.0, shape=shape)
        if (
            cls(mean=_MOST_MEAN, shape=shape).failure_probability(
                success_probability
            )
            > wanted
        ):
            raise ValueError(
                f"failure_probability is {failure_probability:g}: not even a "
                f"million runs of shape {shape:g} reach it. Expected a larger "
                "one, or a larger shape."
            )
        low, high = 1.0, _MOST_MEAN
        while high > low * (1 + 1e-9):
            middle = math.sqrt(low * high)
            count = cls(mean=middle, shape=shape)
            if count.failure_probability(success_probability) > wanted:
                low = middle
            else:
                high = middle
        return cls(mean=high, shape=shape)

    @functools.cached_property
    def gamma(self) -> float:
        """γ; 0 for Poisson's distribution, which has none."""
        if self.shape == 1:
            return 1 / self.mean
        if math.isinf(self.shape):
            return 0.0
        low, high = 0.0, 1.0
        while high - low > 1e-15 * high:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            if _mean(middle, self.shape) > self.mean:
                low = middle
            else:
                high = middle
        return high  # Its mean is not above the one that is accounted for.

    @property
    def cut(self) -> float:
        """P(K > most), rounded up; 0 without a limit."""
        if self.most is None or self.mean == 1:
            return 0.0
        with decimal.localcontext(digits()):
            first = itertools.islice(self._chances(), int(self.most))
            within = sum((chance for _, chance in first), _Decimal(0))
            if self._starts_at == 0:
                within += self._chance_of_none()
            beyond = float(max(1 - within, _Decimal(0)))
            return min(1.0, beyond * (1 + 1e-12))

    def failure_probability(self, success_probability: float) -> float:
        r"""That none of the runs succeeds, each with the same probability p.

        $E[(1-p)^K]$; for a geometric number of runs without a limit that is
        $\gamma(1-p) / (p + \gamma(1-p))$, with p = ½ therefore
        $\gamma / (1+\gamma)$.

        Args:
          success_probability: p, above 0 and below 1.
        """
        q = 1 - _open("success_probability", success_probability)
        if self.mean == 1:
            return q
        if self.most is None:
            return self._generating(q)
        total, weight = 0.0, 0.0
        if self._starts_at == 0:
            total = weight = float(self._chance_of_none())
        with decimal.localcontext(digits()):
            first = list(itertools.islice(self._chances(), int(self.most)))
        for number, chance in first:
            total += float(chance) * q**number
            weight += float(chance)
        return total + max(1 - weight, 0.0) * q ** int(self.most)

    def _generating(self, q: float) -> float:
        """E[q^K]."""
        if math.isinf(self.shape):
            return math.exp(self.mean * (q - 1))
        gamma = self.gamma
        inside = math.log1p(-(1 - gamma) * q)  # ln(1 - (1-γ)q)
        if self.shape == 0:
            return inside / math.log(gamma)
        eta = self.shape
        return math.expm1(-eta * inside) / math.expm1(-eta * math.log(gamma))

    @property
    def _starts_at(self) -> int:
        return 0 if math.isinf(self.shape) else 1

    def _chance_of_none(self) -> _Decimal:
        return (-_Decimal(self.mean)).exp()

    def _chances(self) -> Iterator[tuple[int, _Decimal]]:
        """1, 2, ... with their probabilities; in a context of many digits."""
        if math.isinf(self.shape):
            mean = _Decimal(self.mean)
            chance = mean * self._chance_of_none()
            for number in itertools.count(1):
                yield number, chance
                chance *= mean / (number + 1)
        gamma, eta = _Decimal(self.gamma), _Decimal(self.shape)
        if self.shape == 0:
            chance = (1 - gamma) / -gamma.ln()
        else:
            chance = eta * (1 - gamma) / ((-eta * gamma.ln()).exp() - 1)
        for number in itertools.count(1):
            yield number, chance
            chance *= (1 - gamma) * (number + eta) / (number + 1)

    def draw(self) -> int:
        """A number of runs, from what the operating system calls random."""
        if self.mean == 1:
            return 1
        with decimal.localcontext(digits()):
            left = uniform()
            if self._starts_at == 0:
                left -= self._chance_of_none()
                if left < 0:
                    return 0
            for number, chance in self._chances():
                left -= chance
                ended = chance < _NOTHING and number > self.mean
                if left < 0 or ended or number == self.most:
                    return number
        raise RuntimeError("Unreachable: the loop above does not end.")


def _mean(gamma: float, shape: float) -> float:
    log = math.log(gamma)
    if log == 0:
        return 1.0
    if shape == 0:
        return (1 - gamma) / gamma / -log
    return shape * (1 - gamma) / gamma / -math.expm1(shape * log)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}, expected a number.")
    return float(value)


def _open(name: str, value: object) -> float:
    number = _number(name, value)
    if not 0 < number < 1:
        raise ValueError(
            f"{name} is {value!r}, expected a number above 0 and below 1."
        )
    return number
