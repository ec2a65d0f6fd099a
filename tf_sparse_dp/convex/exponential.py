"""The sparse exponential mechanism, by enumeration, for tiny problems."""

from __future__ import annotations

import dataclasses
import math
import numbers
import random
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting import ApproxDpEvent, PrivacyFilter
from tf_sparse_dp.convex.exponential_release import ExponentialRelease
from tf_sparse_dp.convex.sparse_net import (
    grid_size,
    log_least_size,
    sparse_net,
)
from tf_sparse_dp.errors import PrivacyWarning, callers_level

# Losses are rounded to this part of their range, so that sums are exact.
_STEPS = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseExponentialMechanism:
    r"""Minimises a convex risk with sparse gradients, pure, without smoothness.

    Publishes a point x of a net of sparse vectors with probability proportional
    to $\exp(-\frac{εn}{2B} F_S(x))$, where $F_S$ is the mean loss of n examples
    and B = `loss_range`. The net has points with $1/τ^2$ entries that are not
    zero at most, and is τ-dense among such vectors of norm 1; τ solves
    $τ^3 / \ln(d/(τβ)) = B / (L \sqrt s εn)$ with L = `lipschitz`,
    s = `sparsity` and β = `beta`. The paper prints both the exponent and that
    quotient upside down, and the exponent without the 2.

    **Guarantee.** ε-differential privacy (δ = 0) where neighbours have one
    example replaced; n is public. It holds whatever `loss` is, as long as it is
    a function of the point and one example: each example's losses over the net
    are lowered so that the least is 0, cut off at B, and rounded to multiples
    of $B/2^{20}$. So an example adds to each point a whole number of steps from
    0 to $2^{20}$, replacing one changes a weight by $e^{±ε/2}$ at most, their
    sum as well, hence probabilities by $e^{±ε}$ at most. An example with a
    loss that is NaN or infinite at any point counts as 0 at every point. This
    raises no error and no warning, which would tell something about the data:
    a `loss` that is NaN for all examples has any point of the net published,
    all alike. Try it on examples that you make up:
    `loss(mechanism.net(n, d), example)`. L, s and β matter to accuracy only.

    **Sampling is exact**: points are drawn uniformly and kept with probability
    $e^{-γ}$ for a rational γ, by whole numbers alone and from the operating
    system's entropy (Canonne, Kamath and Steinke, "The discrete Gaussian for
    differential privacy", 2020, algorithm 1). How long it takes depends on
    the data; do not let others measure it.

    **Accuracy.** If losses are convex and L-Lipschitz with s-sparse gradients
    and range B on the unit ball, and some minimiser has norm 1 at most, the
    excess risk is as `theory.rates.exponential_mechanism` says. Rescale the
    problem if its minimiser is farther away.

    The net has about $(d/τ)^{1/τ^2}$ points, which is why this is for tiny
    problems only.

    Args:
      epsilon: Above 0.
      loss_range: B, how much the loss of an example can vary over the ball.
      lipschitz: L.
      sparsity: s.
      beta: Probability with which accuracy may fail.
      tau: Fineness of the net, if it is not to follow from the others. Public.
      max_net_size: Larger nets are refused.
      seed: For tests only: makes the draw reproducible, hence not private.

    Raises:
      ValueError: An argument is out of range.

    Example:
      >>> import numpy as np
      >>> from tf_sparse_dp import convex
      >>> data = [(np.eye(5)[i % 2], 1.0) for i in range(60)]
      >>> def hinge(points, example):
      ...     row, label = example
      ...     return np.maximum(0, 1 - label * (points @ row))
      >>> mechanism = convex.SparseExponentialMechanism(
      ...     epsilon=2.0, loss_range=2.0, lipschitz=1.0, sparsity=1
      ... )
      >>> release = mechanism.minimise(hinge, data, dimension=5)
      >>> release.value.shape, release.net_size
      ((5,), 1711)

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), algorithm 7; McSherry
    and Talwar, "Mechanism design via differential privacy" (2007).
    """

    epsilon: float
    loss_range: float
    lipschitz: float
    sparsity: int
    beta: float = 0.05
    tau: float | None = None
    max_net_size: int = 200_000
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "loss_range", "lipschitz"):
            _check(name, getattr(self, name), math.inf)
        _check("beta", self.beta, 1.0)
        if self.tau is not None:
            _check("tau", self.tau, math.inf)
        for name in ("sparsity", "max_net_size"):
            _check_count(name, getattr(self, name))

    def fineness(self, num_examples: int, dimension: int) -> float:
        """τ: as given, or as the accuracy theorem would have it."""
        _check_count("num_examples", num_examples)
        _check_count("dimension", dimension)
        if self.tau is not None:
            return self.tau
        ratio = self.loss_range / (self.lipschitz * math.sqrt(self.sparsity))
        ratio /= self.epsilon * num_examples
        # τ³ rises and ln(d/(τβ)) falls: one root, below d/β where ln is 0.
        low, high = 0.0, dimension / self.beta
        while True:
            middle = (low + high) / 2
            if middle in (low, high):
                return high
            above = ratio * math.log(dimension / (middle * self.beta))
            low, high = (middle, high) if middle**3 < above else (low, middle)

    def net(self, num_examples: int, dimension: int) -> np.ndarray:
        """The points one of which is published, [m, d]; from public facts only.

        Raises:
          ValueError: There would be too many.
        """
        tau = self.fineness(num_examples, dimension)
        entries = min(dimension, math.floor(1 / tau**2))
        least = log_least_size(dimension, entries, tau)
        size = f"at least 10^{least / math.log(10):.1f}"
        # Beyond, counting takes long and the order says enough.
        too_large = least > math.log(max(10**6, self.max_net_size))
        if not too_large:
            count = grid_size(dimension, entries, tau)
            size, too_large = f"{count:,}", count > self.max_net_size
        if too_large:
            raise ValueError(
                f"a net of {size} points is needed for {dimension} "
                f"coordinates and {num_examples} examples (tau = {tau:.4g}, so "
                f"up to {entries} entries of a point are not zero); expected "
                f"at most max_net_size={self.max_net_size}. This mechanism is "
                "for tiny problems: give a larger tau, or use "
                "OutputPerturbation, which needs a smooth loss."
            )
        return sparse_net(dimension, entries, tau)

    def steps(
        self,
        loss: Callable[[np.ndarray, Any], Any],
        data: Sequence[Any],
        points: np.ndarray,
    ) -> np.ndarray:
        """Private: losses of points summed over examples, in B/2^20, [m]."""
        points = np.array(points)
        points.flags.writeable = False
        totals = np.zeros(len(points), np.int64)
        for example in data:
            # A warning about one example would give it away.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                losses = np.asarray(loss(points, example), np.float64)
            if losses.shape != totals.shape:
                raise ValueError(
                    f"loss returned shape {losses.shape}; expected "
                    f"{totals.shape}: one number for each of {len(points)} "
                    "points."
                )
            totals += _clamped_steps(losses, self.loss_range)
        return totals

    def log_probabilities(self, steps: np.ndarray) -> np.ndarray:
        """Private: logarithms of what each point is published with, [m]."""
        exponents = -self.epsilon / 2 * (steps - steps.min()) / _STEPS
        return exponents - np.log(np.exp(exponents).sum())

    def minimise(
        self,
        loss: Callable[[np.ndarray, Any], Any],
        data: Sequence[Any],
        *,
        dimension: int,
        filter: PrivacyFilter | None = None,
    ) -> ExponentialRelease:
        """Publishes a point of small risk. Each call spends epsilon anew.

        Args:
          loss: From points [m, d] and one example to the m losses. Must not
            depend on anything else, nor fail on some examples. NaN makes an
            example count for nothing, silently.
          data: The examples, as a list, tuple or array; how many is public.
          dimension: d.
          filter: Pays before the data are used; for
            `NeighboringRelation.REPLACE_ONE`.

        Raises:
          BudgetExhausted: The filter does not pay. Nothing was released.
          TypeError: `data` has no length.
          ValueError: There is no example, the net is too large, `loss` does
            not give one number for each point, or the filter is for another
            relation.

        Warns:
          PrivacyWarning: A seed was given.
        """
        if not hasattr(data, "__len__"):
            raise TypeError(
                f"data of type {type(data).__name__} was given; expected a "
                "list, tuple or array of examples, whose number is known. For "
                "an iterator give list(data)."
            )
        if not len(data):
            raise ValueError("data has no examples; expected at least one.")
        points = self.net(len(data), dimension)
        if self.seed is not None:
            warnings.warn(
                "The draw comes from a fixed seed: whoever knows or guesses it "
                "can repeat it on other data. Seeds are for tests; leave it "
                "out.",
                PrivacyWarning,
                stacklevel=callers_level(),
            )
        if filter is not None:
            _spend(filter, float(self.epsilon))
        steps = self.steps(loss, data, points)
        source: random.Random = random.SystemRandom()
        if self.seed is not None:
            source = random.Random(self.seed)
        chosen = _sample(steps, self.epsilon, source)
        return ExponentialRelease(
            value=points[chosen].copy(),
            epsilon=self.epsilon,
            tau=self.fineness(len(data), dimension),
            net_size=len(points),
            num_examples=len(data),
            loss_range=float(self.loss_range),
            seeded=self.seed is not None,
        )


def _spend(budget: PrivacyFilter, epsilon: float) -> None:
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    if budget.neighboring_relation is not relation:
        raise ValueError(
            f"{budget!r} is for {budget.neighboring_relation}, expected "
            "REPLACE_ONE, for which the exponential mechanism is private. Make "
            "a filter with neighboring_relation=REPLACE_ONE."
        )
    budget.spend(ApproxDpEvent(epsilon, 0.0))


def _clamped_steps(losses: np.ndarray, loss_range: float) -> np.ndarray:
    """Whole numbers from 0 to 2^20, whatever the losses of one example are."""
    if not np.isfinite(losses).all():
        return np.zeros(losses.shape, np.int64)
    # Halves cannot overflow where losses are huge; quotients may, to infinity,
    # and a warning about one example would give it away.
    above = losses / 2 - losses.min() / 2
    with np.errstate(over="ignore"):
        part = np.minimum(above / loss_range, 0.5)
    return np.rint(2 * part * _STEPS).astype(np.int64)


def _sample(steps: np.ndarray, epsilon: float, source: random.Random) -> int:
    """Index i with probability proportional to exp(-ε steps[i] / 2^21)."""
    rate = Fraction(float(epsilon)) / (2 * _STEPS)
    # A shift of all does not change the law, and the best is always kept.
    excess = (steps - steps.min()).tolist()
    while True:
        index = source.randrange(len(excess))
        if _happens_exp(
            excess[index] * rate.numerator, rate.denominator, source
        ):
            return index


def _happens_exp(top: int, bottom: int, source: random.Random) -> bool:
    """True with probability exp(-top/bottom), in whole numbers."""
    while top > bottom:
        if not _happens_exp_below_one(bottom, bottom, source):
            return False
        top -= bottom
    return _happens_exp_below_one(top, bottom, source)


def _happens_exp_below_one(
    top: int, bottom: int, source: random.Random
) -> bool:
    """As `_happens_exp`, for top ≤ bottom.

    The first k with a failure, where trial k succeeds with probability γ/k, is
    odd with probability exp(-γ): the series of the exponential.
    """
    k = 1
    while source.randrange(bottom * k) < top:
        k += 1
    return k % 2 == 1


def _check(name: str, value: object, limit: float) -> None:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0 < value < limit:  # type: ignore[operator]
        below = "" if limit == math.inf else f" and below {limit:g}"
        raise ValueError(
            f"{name}={value!r} was given; expected a finite number above 0"
            f"{below}."
        )


def _check_count(name: str, value: object) -> None:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < 1:  # type: ignore[operator]
        raise ValueError(
            f"{name}={value!r} was given; expected a whole number of at least "
            "1."
        )
