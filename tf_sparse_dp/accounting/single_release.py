"""Noise for one release, in closed form."""

from __future__ import annotations

import math

from scipy import special

from tf_sparse_dp.accounting.accountants import pure_epsilon
from tf_sparse_dp.accounting.calibration import round_up

_ULP = 2.0**-52
_UNDERFLOW = 1e-300


def gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    r"""Delta of one release with Gaussian noise, rounded up.

    .. math:: \delta = \Phi(a) - e^\varepsilon \Phi(-b), \quad
      a = \tfrac{1}{2z} - \varepsilon z, \quad b = \tfrac{1}{2z} + \varepsilon z

    with ε = `epsilon`, z = `noise_multiplier`, the standard deviation over the
    L2 sensitivity. Exact: no smaller delta holds. As $b^2/2 = a^2/2 +
    \varepsilon$, both terms have the factor $e^{-a^2/2}$, without which their
    difference keeps its digits.

    Example:
      >>> round(gaussian_delta(1.0, 1.0), 6)
      0.126937

    Reference: Balle and Wang, "Improving the Gaussian Mechanism for
    Differential Privacy" (2018), Theorem 5.
    """
    half, shift = 0.5 / noise_multiplier, epsilon * noise_multiplier
    a, b = half - shift, half + shift
    scaled = float(special.erfcx(b / math.sqrt(2))) / 2
    if a > 0:
        return float(special.ndtr(a)) - math.exp(-a * a / 2) * scaled + 8 * _ULP
    difference = float(special.erfcx(-a / math.sqrt(2))) / 2 - scaled
    # What was lost in a, in its square, and in the difference.
    lost = 8 * _ULP * (1 + 2 * (half + shift) * (1 - a))
    return math.exp(-a * a / 2) * (max(difference, 0.0) + lost) + _UNDERFLOW


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """The least Gaussian noise for one release, rounded up to 6 digits.

    Args:
      epsilon: Above 0.
      delta: Above 0 and below 1.

    Returns:
      Standard deviation over L2 sensitivity.

    Raises:
      ValueError: Floating point numbers cannot tell how much suffices.

    Example:
      >>> gaussian_noise_multiplier(1.0, 1e-6)
      4.22468
    """
    # Noise that is halved, and halved again, until it is too little.
    high = 1.0
    while gaussian_delta(epsilon, high) > delta:
        high *= 2
        if high > 1e12:
            raise ValueError(
                f"epsilon is {epsilon:g} and delta is {delta:g}, expected "
                "larger ones: no noise within 12 orders of magnitude of the "
                "sensitivity is sure to suffice. Raise one of them."
            )
    low = high / 2
    while gaussian_delta(epsilon, low) <= delta:
        high, low = low, low / 2
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, middle) <= delta:
            high = middle
        else:
            low = middle
    return round_up(high, digits=6)


def laplace_noise_multiplier(epsilon: float, delta: float) -> float:
    r"""The least Laplace noise for one release, rounded up to 6 digits.

    .. math:: \delta = 1 - e^{(\varepsilon - 1/z)/2}
      \quad\Longrightarrow\quad z = 1 / (\varepsilon - 2 \ln(1 - \delta))

    Args:
      epsilon: Above 0.
      delta: At least 0 and below 1.

    Returns:
      Scale over L1 sensitivity.

    Example:
      >>> laplace_noise_multiplier(0.5, 0.0)
      2.0
    """
    if delta > 0:
        loss = epsilon - 2 * math.log1p(-delta) * (1 - 8 * _ULP)
        return round_up((1 + 8 * _ULP) / loss, digits=6)
    noise_multiplier = round_up(1 / epsilon, digits=6)
    while epsilon < pure_epsilon(
        sampling_probability=None,
        noise_multiplier=noise_multiplier,
        compositions=1,
    ):
        noise_multiplier = round_up(noise_multiplier * (1 + 1e-9), digits=6)
    return noise_multiplier
