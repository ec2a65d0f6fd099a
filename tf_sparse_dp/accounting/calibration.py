"""From noise to epsilon and back, for batches that may overflow."""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable

from tf_sparse_dp.accounting.accountants import (
    GRID_POINTS,
    ideal_epsilon,
    pure_epsilon,
)
from tf_sparse_dp.accounting.events import Noise, Sampling

# How likely one release may go wrong because a size was fixed beforehand, over
# all variables; mechanisms keep to it. It is charged as overflow is.
RELEASE_FAILURE = 2.0**-100
# The largest part of delta that is given away for fixed sizes.
_FAILURE_SHARE = 2.0**-10


def round_up(value: float, digits: int) -> float:
    """The smallest number of so many significant digits that is not below.

    Example:
      >>> round_up(1.23401, 4), round_up(0.5, 4)
      (1.235, 0.5)
    """
    if value == 0 or not math.isfinite(value):
        return value
    exact = decimal.Decimal(value)
    unit = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return float(exact.quantize(unit, rounding=decimal.ROUND_CEILING))


def shown(value: float) -> str:
    """At least the value, in four digits.

    What float64 loses when numbers are added up is not taken for a digit.

    Example:
      >>> shown(1e-6 + 1e-5), shown(1.23401), shown(0.0)
      ('1.1e-05', '1.235', '0')
    """
    return f"{round_up(value * (1 - 1e-14), 4):g}"


def overflow_charge(
    *, compositions: int, epsilon: float, overflow_probability: float
) -> float:
    r"""The part of delta that cut batches, or failed releases, use up.

    .. math:: k (1 + e^\varepsilon) p

    with k = `compositions`, ε = `epsilon`, p = `overflow_probability`.

    **Guarantee**: let M compose k exact Poisson-sampled steps and let M' cut
    batches that are too large. Run both on the same randomness: they agree
    unless one of k draws overflows, so on *any* data set with at most
    `num_units` units their outputs differ by at most kp in total variation.
    If M is (ε, δ₀)-DP then for neighbours D, D' and any event S

        P(M'(D) ∈ S) ≤ P(M(D) ∈ S) + kp
                     ≤ e^ε P(M(D') ∈ S) + δ₀ + kp
                     ≤ e^ε (P(M'(D') ∈ S) + kp) + δ₀ + kp,

    so M' is (ε, δ₀ + k(1 + e^ε)p)-DP.

    A release that fails with probability p is charged alike. Where
    compositions are passes, p is charged once for a pass, however many batches
    it has: let M be ideal in the one batch of each pass that has the unit in
    which D and D' differ, and M' otherwise. All other releases are the same
    function of D and of D', failed or not, and cost nothing in M either.

    Example:
      >>> overflow_charge(
      ...     compositions=10, epsilon=0.0, overflow_probability=0.25e-9
      ... )
      5e-09
    """
    chance = compositions * overflow_probability
    if chance == 0:
        return 0.0
    try:
        return chance * (1 + math.exp(epsilon))
    except OverflowError:
        return math.inf


def affordable_release_failure(
    sampling: Sampling, *, epsilon: float, delta: float
) -> float:
    """`RELEASE_FAILURE`, or 0 where it would take a noticeable part of delta.

    With 0 mechanisms must not fix sizes beforehand. That is so for delta = 0,
    and where epsilon is so large (above 40 or so) that a failure, which is
    charged e^epsilon times, is dear in spite of its probability.
    """
    charge = overflow_charge(
        compositions=sampling.num_compositions,
        epsilon=epsilon,
        overflow_probability=RELEASE_FAILURE,
    )
    return RELEASE_FAILURE if charge <= _FAILURE_SHARE * delta else 0.0


class OverflowsTooOften(ValueError):
    """Overflow of batches uses up all of delta."""


def overflow_error(sampling: Sampling, delta: float) -> OverflowsTooOften:
    """For a plan whose batches overflow too often."""
    return OverflowsTooOften(
        "sampling.overflow_probability is "
        f"{sampling.overflow_probability:.3g} in each of "
        f"{sampling.num_compositions} steps. Each is charged to delta 1 + "
        f"e^epsilon times, which at this epsilon uses up all of "
        f"delta={delta:g}. Raise max_batch_size of the sampling "
        "(max_users_per_batch of users), so that "
        "draws are cut more rarely, or lower epsilon."
    )


def spent_epsilon(
    sampling: Sampling,
    *,
    noise_multiplier: float,
    delta: float,
    compositions: int,
    noise: Noise = "gaussian",
    release_failure: float = 0.0,
) -> float:
    """Epsilon at `delta` after so many compositions, overflow included.

    Infinite where overflow alone costs more than delta.
    """

    def ideal(remaining: float) -> float:
        return ideal_epsilon(
            sampling_probability=sampling.sampling_probability,
            noise_multiplier=noise_multiplier,
            compositions=compositions,
            delta=remaining,
            relation=sampling.neighbouring_relation,
            noise=noise,
        )

    if compositions == 0:
        return 0.0
    failure = sampling.overflow_probability + release_failure
    return epsilon_with_failures(
        ideal, delta=delta, failure=compositions * failure
    )


def epsilon_with_failures(
    ideal: Callable[[float], float], *, delta: float, failure: float
) -> float:
    """Epsilon at `delta` where any of all releases fails with `failure`.

    Args:
      ideal: Epsilon at a delta if nothing fails.
      delta: Of all releases, failures included.
      failure: Bound on the probability that one of them, or more, fails.
    """
    epsilon = ideal(delta)
    if failure == 0:
        return epsilon
    # The charge grows with epsilon, and epsilon with the charge. Reserve the
    # charge at `reach`: an epsilon that does not exceed it is charged no more
    # than was reserved, so it holds. Otherwise reach further; each round goes
    # up by at least a thousandth, until the charge passes delta.
    while True:
        reach = epsilon + 1e-3 * (1 + epsilon)
        charge = overflow_charge(
            compositions=1, epsilon=reach, overflow_probability=failure
        )
        if charge >= delta:
            return math.inf
        epsilon = ideal(delta - charge)
        if epsilon <= reach:
            return epsilon


def calibrated_noise_multiplier(
    sampling: Sampling,
    *,
    epsilon: float,
    delta: float,
    noise: Noise = "gaussian",
    release_failure: float = 0.0,
) -> float:
    """The least noise, to 5 digits, with which all compositions fit epsilon.

    Raises:
      ValueError: Overflow alone costs more than delta, or no noise suffices.
    """
    compositions = sampling.num_compositions
    if delta == 0:
        return _pure_noise_multiplier(sampling, epsilon)
    charge = overflow_charge(
        compositions=compositions,
        epsilon=epsilon,
        overflow_probability=sampling.overflow_probability + release_failure,
    )
    if charge >= delta:
        raise overflow_error(sampling, delta)

    def epsilon_at(
        noise_multiplier: float, grid_points: int = GRID_POINTS
    ) -> float:
        return ideal_epsilon(
            sampling_probability=sampling.sampling_probability,
            noise_multiplier=noise_multiplier,
            compositions=compositions,
            delta=delta - charge,
            relation=sampling.neighbouring_relation,
            noise=noise,
            grid_points=grid_points,
        )

    # A guess, by concentrated DP and a central limit: no bound, only near. Then
    # a coarse grid, to look at the fine one in a few places only.
    tail = -math.log(delta - charge)
    mu = math.sqrt(2) * (math.sqrt(tail + epsilon) - math.sqrt(tail))
    guess = math.sqrt(compositions) / mu
    if sampling.sampling_probability is not None:
        ratio = 1 / (guess * sampling.sampling_probability)
        guess = 1 / math.sqrt(math.log1p(ratio**2))
    guess = _least_noise(
        functools.partial(epsilon_at, grid_points=GRID_POINTS // 10),
        target=epsilon,
        guess=guess,
        tolerance=1e-3,
    )
    noise_multiplier = round_up(
        _least_noise(epsilon_at, target=epsilon, guess=guess, tolerance=1e-4),
        digits=5,
    )
    # Discretisation may leave the curve uneven in the last digit.
    while epsilon_at(noise_multiplier) > epsilon:
        noise_multiplier = round_up(noise_multiplier * (1 + 1e-9), digits=5)
    return noise_multiplier


def _pure_noise_multiplier(sampling: Sampling, epsilon: float) -> float:
    """The least Laplace noise, to 5 digits, that fits epsilon at delta = 0."""
    share = epsilon / sampling.num_compositions
    probability = sampling.sampling_probability
    if probability is None:
        noise_multiplier = 1 / share
    else:
        noise_multiplier = 1 / math.log1p(math.expm1(share) / probability)
    noise_multiplier = round_up(noise_multiplier, digits=5)
    while epsilon < pure_epsilon(
        sampling_probability=probability,
        noise_multiplier=noise_multiplier,
        compositions=sampling.num_compositions,
    ):
        noise_multiplier = round_up(noise_multiplier * (1 + 1e-9), digits=5)
    return noise_multiplier


def _least_noise(
    epsilon_at: Callable[[float], float],
    *,
    target: float,
    guess: float,
    tolerance: float,
) -> float:
    """A noise multiplier that meets the target while one just below does not.

    Secants between logarithms, where the falling epsilon is nearly a line.
    """
    low, high = -math.inf, math.inf
    point, slope = math.log(guess), -1.5
    before = math.nan, math.nan
    for evaluation in range(100):
        if abs(point) > 35:
            break  # No noise within 15 orders of magnitude of 1.
        ratio = epsilon_at(math.exp(point)) / target
        if ratio > 1:
            low = max(low, point)
        else:
            high = min(high, point)
        if high - low <= tolerance:
            return math.exp(high)
        excess = math.log(min(max(ratio, 0.05), 20.0))
        if before[1] != excess and evaluation > 0:
            slope = (excess - before[1]) / (point - before[0])
        before = point, excess
        if slope >= 0 or (evaluation >= 10 and math.isfinite(high - low)):
            slope = -math.inf  # Not a falling line: halve, below.
        step = min(max(-excess / slope, -2.0), 2.0)
        # Past the root, towards the end of the bracket that is further away.
        point += step
        point += math.copysign(tolerance * 0.4, (high - point) - (point - low))
        if not low < point < high or slope == -math.inf:
            if not math.isfinite(high - low):
                point = before[0] + math.copysign(1.0, ratio - 1)
            else:
                point = (low + high) / 2
    raise ValueError(
        f"epsilon is {target:g}, expected one that some noise multiplier can "
        "reach at this delta. Ask for a larger epsilon or a larger delta."
    )
