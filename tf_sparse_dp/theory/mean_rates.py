"""Table 1: the mean of sparse vectors. See `rates` for symbols."""

from __future__ import annotations

import math

from tf_sparse_dp.theory.bound import (
    CONSTANT,
    DENSE,
    SPARSE,
    Bound,
    check,
    check_approximate,
    check_beta,
    check_positive,
    check_whole,
    log,
    quarter,
    scaled,
    unmet,
)


def mean_upper(
    *, n: int, d: int, s: int, epsilon: float, delta: float = 0.0
) -> Bound:
    r"""Table 1, upper bounds, for vectors of norm 1.

    Pure: $1 \wedge \sqrt{s \ln d / (εn)} \wedge \sqrt{sd} / (εn)$.
    Approximate: $1 \wedge (s \ln(d/s) \ln(1/δ))^{1/4} / \sqrt{εn} \wedge
    \sqrt{d \ln(1/δ)} / (εn)$.

    The 1 is for publishing zero, which neither algorithm does by itself. The
    pure row cites thm:proj_mech_pure_DP, whose last term has a factor ln(d/β)
    that the table has not. The table is right: the squared norm of d Laplace
    variables of scale σ is 2dσ² on average, so it is of that order with
    constant probability, without a logarithm.
    """
    check(n, d, s, epsilon, delta)
    if delta == 0:
        return Bound(
            terms={
                CONSTANT: 1.0,
                SPARSE: math.sqrt(s * log(d) / (epsilon * n)),
                DENSE: math.sqrt(s * d) / (epsilon * n),
            },
            source="Table 1, pure, upper",
        )
    return Bound(
        terms={
            CONSTANT: 1.0,
            SPARSE: quarter(s * log(d / s) * log(1 / delta), epsilon * n),
            DENSE: dense_rate(n=n, d=d, epsilon=epsilon, delta=delta),
        },
        source="Table 1, approximate, upper",
        unmet=unmet({"epsilon <= 1": epsilon <= 1}),
    )


def mean_lower(
    *, n: int, d: int, s: int, epsilon: float, delta: float = 0.0
) -> Bound:
    r"""Table 1, lower bounds, which hold with constant probability.

    Pure, thm:LB_pure_DP_sparse_bootstrap, for s < d/2: $1 \wedge
    \sqrt{s \ln(d/(εn)) / (εn)} \wedge \sqrt{sd} / (εn)$. Taken literally the
    second term vanishes at εn = d and is not real beyond; the proof uses it
    below d/ε only and the third beyond, so here the logarithm is at least 1.

    Approximate, thm:LB_approx_DP_sparse, for ε ≤ 1 and $2^{-o(n)} ≤ δ ≤
    n^{-1-Ω(1)}$: $1 \wedge (s \ln(1/δ))^{1/4} / \sqrt{εn} \wedge
    \sqrt{d \ln(1/δ)} / (εn)$. It is below the upper bound by $\ln(d/s)^{1/4}$;
    the paper believes that the upper one is right. (The proof's last regime
    prints $ε\sqrt{n^*}$ where $\sqrt{εn^*}$ is meant; the result stands.)
    """
    check(n, d, s, epsilon, delta)
    if delta == 0:
        return Bound(
            terms={
                CONSTANT: 1.0,
                SPARSE: math.sqrt(s * log(d / (epsilon * n)) / (epsilon * n)),
                DENSE: math.sqrt(s * d) / (epsilon * n),
            },
            source="Table 1, pure, lower",
            unmet=unmet({"s < d/2": 2 * s < d}),
        )
    return Bound(
        terms={
            CONSTANT: 1.0,
            SPARSE: quarter(s * log(1 / delta), epsilon * n),
            DENSE: dense_rate(n=n, d=d, epsilon=epsilon, delta=delta),
        },
        source="Table 1, approximate, lower",
        unmet=unmet(
            {
                "epsilon <= 1": epsilon <= 1,
                "delta < 1/n": delta * n < 1,
                "ln(1/delta) < n": math.log(1 / delta) < n,
            }
        ),
    )


def packing_lower(*, n: int, d: int, s: int, epsilon: float) -> Bound:
    r"""thm:LB_pure_DP_sparse: $1 \wedge s \ln(d/s) / (εn)$, pure, s < d/2.

    From one packing; blocks of packings give `mean_lower`, which is larger
    wherever n is large. Holds with probability 1/2.
    """
    check(n, d, s, epsilon, 0.0)
    return Bound(
        terms={CONSTANT: 1.0, SPARSE: s * log(d / s) / (epsilon * n)},
        source="thm:LB_pure_DP_sparse",
        unmet=unmet({"s < d/2": 2 * s < d}),
    )


def block_lower(
    *, n: int, block_rows: int, blocks: int, error: float, probability: float
) -> tuple[float, float]:
    r"""lem:block_diagonal_bootstrap, with its constants.

    If $n_0$ = `block_rows` rows cannot be estimated better than `error` = α₀
    but with probability $1-ρ_0$ (ρ₀ = `probability`), then K = `blocks`
    independent such blocks on a diagonal, with zero rows up to n, cannot be
    better than $\frac{α_0 n_0}{n} \sqrt{ρ_0 K / 2}$ but with probability
    $e^{-ρ_0 K / 8}$. The lemma states $e^{-ρ_0/8}$; the Chernoff bound in its
    proof has the K.

    Returns:
      The error, and the least probability with which it is exceeded.
    """
    for name, value in (("n", n), ("block_rows", block_rows)):
        check_whole(name, value)
    check_whole("blocks", blocks)
    check_positive(error=error, probability=probability)
    if probability > 1 or blocks * block_rows > n:
        raise ValueError(
            f"probability={probability!r}, blocks={blocks!r} of "
            f"{block_rows!r} rows and n={n!r} were given; expected a "
            "probability of at most 1 and blocks that fit into n rows."
        )
    scaled = error * block_rows / n * math.sqrt(probability * blocks / 2)
    return scaled, -math.expm1(-probability * blocks / 8)


def projection(
    *,
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float = 0.0,
    lipschitz: float = 1.0,
    beta: float = 0.05,
) -> Bound:
    r"""Projection mechanism: thm:proj_mech_pure_DP, thm:proj_mech_approx_DP.

    With probability 1 - β, pure: $L(\sqrt{sd} \ln(d/β) / (nε) \wedge
    \sqrt{s \ln(d/β) / (nε)})$; approximate: $L((\sqrt d + \sqrt{\ln(1/β)})
    \sqrt{\ln(1/δ)} / (nε) \wedge (s \ln(1/δ) \ln(d/β))^{1/4} / \sqrt{nε})$.
    Neither needs ε ≤ 1 if the noise is calibrated exactly.
    """
    check(n, d, s, epsilon, delta)
    check_beta(beta)
    check_positive(lipschitz=lipschitz)
    logs = log(d / beta)
    if delta == 0:
        terms = {
            SPARSE: math.sqrt(s * logs / (epsilon * n)),
            DENSE: math.sqrt(s * d) * logs / (epsilon * n),
        }
        source = "thm:proj_mech_pure_DP"
    else:
        terms = {
            SPARSE: quarter(s * log(1 / delta) * logs, epsilon * n),
            DENSE: (math.sqrt(d) + math.sqrt(log(1 / beta)))
            * math.sqrt(log(1 / delta))
            / (epsilon * n),
        }
        source = "thm:proj_mech_approx_DP"
    return Bound(terms=scaled(terms, lipschitz), source=source)


def compressed_sensing(
    *,
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float,
    lipschitz: float = 1.0,
    beta: float = 0.05,
) -> Bound:
    r"""Gaussian ℓ₁ recovery, thm:Compressed_Sensing_UB_sparse_Mean_Est.

    With probability 1 - δ/2 - β: $L((\sqrt d + \sqrt{\ln(1/β)})
    \sqrt{\ln(1/δ)} / (nε) \wedge (s \ln(d/s) \ln(1/δ))^{1/4} / \sqrt{nε} +
    \sqrt{\ln(1/β) \ln(1/δ)} / (nε))$. Needs ε ≤ 1 and $6 e^{-cm} ≤ δ <
    s \ln(d/s) / m^2$ with $m ≈ nε \sqrt{s \ln(d/s) / \ln(1/δ)}$ measurements.
    Only the condition without an unknown constant, the right one, is checked.
    """
    check(n, d, s, epsilon, delta)
    check_approximate(delta)
    check_beta(beta)
    check_positive(lipschitz=lipschitz)
    private, size = log(1 / delta), s * log(d / s)
    root = math.sqrt(private) / (epsilon * n)
    tail = math.sqrt(log(1 / beta))
    measurements = epsilon * n * math.sqrt(size / private)
    terms = {
        SPARSE: quarter(size * private, epsilon * n) + tail * root,
        DENSE: (math.sqrt(d) + tail) * root,
    }
    return Bound(
        terms=scaled(terms, lipschitz),
        source="thm:Compressed_Sensing_UB_sparse_Mean_Est",
        unmet=unmet(
            {
                "epsilon <= 1": epsilon <= 1,
                "delta < s ln(d/s) / m^2": delta < size / measurements**2,
            }
        ),
    )


def dense_rate(*, n: int, d: int, epsilon: float, delta: float = 0.0) -> float:
    r"""Best known without sparsity: $R_ε = d/(εn)$, $R_{ε,δ}$ with a root.

    $R_{ε,δ} = \sqrt{d \ln(1/δ)} / (εn)$.
    """
    check(n, d, 1, epsilon, delta)
    if delta == 0:
        return d / (epsilon * n)
    return math.sqrt(d * log(1 / delta)) / (epsilon * n)
