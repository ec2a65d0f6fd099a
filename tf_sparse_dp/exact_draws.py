"""Single numbers drawn as exactly as their formulas say.

For the few draws whose every bit counts: a coin, or noise on one released
number. They use 160 bits each of what the operating system calls random,
and decimals of sixty digits, so that what is drawn differs from what is written
below with a probability of less than 2⁻¹²⁸. Noise is a whole number: whoever
adds it to a whole number releases nothing but a rounded sum of a number and
continuous noise. There are no low-order bits to look at (Mironov,
*On significance of the least significant bits for differential privacy*, 2012).
"""

from __future__ import annotations

import decimal
import secrets

_BITS = 160
_DIGITS = decimal.Context(prec=60)


def digits() -> decimal.Context:
    """A context of sixty digits, to be used with `localcontext`."""
    return _DIGITS.copy()


def uniform() -> decimal.Decimal:
    """A number between 0 and 1, neither included."""
    with decimal.localcontext(digits()):
        bits = decimal.Decimal(2 * secrets.randbits(_BITS) + 1)
        return bits / decimal.Decimal(2 ** (_BITS + 1))


def floored_laplace(scale: float) -> int:
    r"""Laplace noise, rounded down to a whole number.

    With probability ½ the noise is positive and $\lfloor E \rfloor$ for an
    exponential $E$ of mean `scale`, otherwise $\lfloor -E \rfloor$, which is
    $-\lfloor E \rfloor - 1$.

    Example:
      >>> type(floored_laplace(10.0))
      <class 'int'>
    """
    with decimal.localcontext(digits()):
        size = int(-uniform().ln() * decimal.Decimal(scale))
    return size if secrets.randbits(1) else -size - 1


def floored_gaussian(stddev: float) -> int:
    """Gaussian noise, rounded down to a whole number.

    The polar method: u·√(-2 ln(s)/s) for a point (u, v) of the unit disc, with
    s = u² + v², is standard normal.

    Reference: Marsaglia and Bray, "A convenient method for generating normal
    variables" (1964).
    """
    with decimal.localcontext(digits()):
        while True:
            u, v = 2 * uniform() - 1, 2 * uniform() - 1
            s = u * u + v * v
            if 0 < s < 1:
                break
        noise = u * (-2 * s.ln() / s).sqrt() * decimal.Decimal(stddev)
        return int(noise.to_integral_value(decimal.ROUND_FLOOR))
