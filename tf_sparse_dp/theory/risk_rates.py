"""Table 2: private optimization. See `rates` for symbols."""

from __future__ import annotations

import dataclasses
import math

from tf_sparse_dp.theory.bound import (
    CONSTANT,
    DENSE,
    SPARSE,
    Bound,
    check,
    check_approximate,
    kind,
    log,
    quarter,
)
from tf_sparse_dp.theory.mean_rates import dense_rate, mean_lower


def erm_upper(
    *, n: int, d: int, s: int, epsilon: float, delta: float = 0.0
) -> Bound:
    r"""Table 2, convex empirical risk, upper; L = D = smoothness = 1.

    Approximate: $(s \ln d \ln(1/δ))^{1/4} / \sqrt{εn} \wedge R_{ε,δ}$. Pure:
    $(s \ln d / (εn))^{1/3} \wedge R_ε$. A constant term is added here, as in
    Table 1: a fixed point has excess risk LD at most. The last term is that of
    algorithms for dense gradients, not of the paper's.

    Beside output perturbation the approximate row cites bias-reduced SGD, whose
    theorem has $\sqrt{\ln n} (s \ln(d/s) \ln^3(1/δ))^{1/4}$: larger by
    $\sqrt{\ln(1/δ)}$, which is no power of ln n that the table leaves out. The
    cube root of the pure row, which both its algorithms have, is above the
    lower bound by $(εn)^{1/6}$; the paper leaves that open.
    """
    check(n, d, s, epsilon, delta)
    if delta == 0:
        sparse = (s * log(d) / (epsilon * n)) ** (1 / 3)
    else:
        sparse = quarter(s * log(d) * log(1 / delta), epsilon * n)
    return Bound(
        terms={
            CONSTANT: 1.0,
            SPARSE: sparse,
            DENSE: dense_rate(n=n, d=d, epsilon=epsilon, delta=delta),
        },
        source=f"Table 2, {kind(delta)}, convex ERM",
    )


def erm_lower(
    *, n: int, d: int, s: int, epsilon: float, delta: float = 0.0
) -> Bound:
    r"""Lower bound for convex empirical risk, L = D = 1: that of the mean.

    The paper says that known reductions give it (Bassily, Smith and Thakurta
    2014); here is the one that is meant. For f(x, z) = -⟨x, z⟩ on the unit
    ball the minimiser is $\bar z / ‖\bar z‖$ and a unit vector x has excess
    risk $‖\bar z‖ (1 - ⟨x, x^*⟩) = ‖\bar z‖ ‖x - x^*‖^2 / 2$. On the hard data
    sets the norm of the mean is of the order of the lower bound α, and known up
    to a constant without looking at the data; so a risk far below α would give
    an estimate of the mean, x times that norm, with an error far below α.
    """
    bound = mean_lower(n=n, d=d, s=s, epsilon=epsilon, delta=delta)
    return dataclasses.replace(
        bound, source=f"{bound.source}, for linear losses"
    )


def sco_upper(
    *, n: int, d: int, s: int, epsilon: float, delta: float = 0.0
) -> Bound:
    r"""Table 2, stochastic convex optimization, upper: ERM's and $1/\sqrt n$.

    The theorem's last term has $\sqrt{\ln n}$ more, a power of ln n that the
    table leaves out.
    """
    bound = erm_upper(n=n, d=d, s=s, epsilon=epsilon, delta=delta)
    return dataclasses.replace(
        bound,
        additional=1 / math.sqrt(n),
        source=f"Table 2, {kind(delta)}, SCO",
    )


def sco_lower(
    *, n: int, d: int, s: int, epsilon: float, delta: float = 0.0
) -> Bound:
    r"""Lower bound for stochastic convex optimization: ERM's and $1/\sqrt n$.

    Private risk as in `erm_lower` (reduction of Bassily, Feldman, Talwar and
    Guha Thakurta 2019); $1/\sqrt n$ is needed without privacy.
    """
    bound = erm_lower(n=n, d=d, s=s, epsilon=epsilon, delta=delta)
    return dataclasses.replace(
        bound,
        additional=1 / math.sqrt(n),
        source=f"{bound.source} and sampling",
    )


def stationarity_upper(
    *, n: int, d: int, s: int, epsilon: float, delta: float
) -> Bound:
    r"""Table 2, norm of the empirical gradient, nonconvex, upper.

    $(s \ln(d/s) \ln^3(1/δ))^{1/8} / (εn)^{1/4} \wedge R_{ε,δ}^{2/3}$, and a
    constant: gradients have norm L at most. Agrees with the theorem
    (`bias_reduced_nonconvex`, which bounds the square) but for $(\ln n)^{1/4}$.
    The paper has no lower bound, and no evidence that this one is best.
    """
    check(n, d, s, epsilon, delta)
    check_approximate(delta)
    rate = dense_rate(n=n, d=d, epsilon=epsilon, delta=delta)
    return Bound(
        terms={
            CONSTANT: 1.0,
            SPARSE: (s * log(d / s) * log(1 / delta) ** 3) ** (1 / 8)
            / (epsilon * n) ** (1 / 4),
            DENSE: rate ** (2 / 3),
        },
        source="Table 2, approximate, gradient norm",
    )
