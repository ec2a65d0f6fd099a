"""The theorems behind Table 2, by algorithm. See `rates` for symbols."""

from __future__ import annotations

import dataclasses
import math

from tf_sparse_dp.theory.bound import (
    SPARSE,
    Bound,
    check,
    check_approximate,
    check_beta,
    check_positive,
    kind,
    log,
    quarter,
    unmet,
)


def output_perturbation_erm(
    *,
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float = 0.0,
    lipschitz: float = 1.0,
    distance: float = 1.0,
    smoothness: float | None = None,
    beta: float = 0.05,
) -> Bound:
    r"""Output perturbation, empirical risk: thm:output-pert-improved.

    With probability 1 - β, approximate: $LD (s \ln(1/δ) \ln(d/β))^{1/4} /
    \sqrt{εn}$; pure, for `smoothness` μ and an unconstrained domain:
    $L^{2/3} μ^{1/3} D^{4/3} (s \ln(d/β) / (εn))^{1/3}$. The pure proof drops
    a 1 beside μ/λ, so it needs λ ≤ μ for the theorem's
    $λ = (L^2 μ s \ln(d/β) / (D^2 εn))^{1/3}$; this is in `unmet`.
    """
    check(n, d, s, epsilon, delta)
    check_beta(beta)
    check_positive(lipschitz=lipschitz, distance=distance)
    size = s * log(d / beta)
    if delta == 0:
        if smoothness is None:
            raise ValueError(
                "delta=0 was given without smoothness; expected the Lipschitz "
                "constant of the gradients. Pure output perturbation needs a "
                "smooth loss; for others see exponential_mechanism."
            )
        check_positive(smoothness=smoothness)
        third = (size / (epsilon * n)) ** (1 / 3)
        scale = (lipschitz**2 * smoothness * distance**4) ** (1 / 3)
        weight = (lipschitz**2 * smoothness / distance**2) ** (1 / 3) * third
        return Bound(
            terms={SPARSE: scale * third},
            source="thm:output-pert-improved, pure",
            unmet=unmet({"lambda <= smoothness": weight <= smoothness}),
        )
    rate = quarter(size * log(1 / delta), epsilon * n)
    return Bound(
        terms={SPARSE: lipschitz * distance * rate},
        source="thm:output-pert-improved, approximate",
    )


def output_perturbation_sco(
    *,
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float = 0.0,
    lipschitz: float = 1.0,
    distance: float = 1.0,
    loss_range: float = 1.0,
    smoothness: float | None = None,
    beta: float = 0.05,
) -> Bound:
    r"""Output perturbation, population: thm:output_pert_approx_DP_SCO.

    `output_perturbation_erm` plus, approximate, $(LD \sqrt{\ln n} + B)
    \sqrt{\ln(1/β) / n}$; pure, $B \sqrt{\ln(1/β)/n}$. The pure case prints
    F_S on the left where the proof has the population's risk. That proof also
    has $L^2 \ln n \ln(1/β) / (λn)$, which the statement leaves out: it is of
    order $n^{-2/3}$ and is in `additional` here.
    """
    empirical = output_perturbation_erm(
        n=n,
        d=d,
        s=s,
        epsilon=epsilon,
        delta=delta,
        lipschitz=lipschitz,
        distance=distance,
        smoothness=smoothness,
        beta=beta,
    )
    check_positive(loss_range=loss_range)
    tail = math.sqrt(log(1 / beta) / n)
    if delta == 0:
        weight = empirical.value / distance**2
        stability = lipschitz**2 * log(n) * log(1 / beta) / (weight * n)
        additional = loss_range * tail + stability
    else:
        spread = lipschitz * distance * math.sqrt(log(n))
        additional = (spread + loss_range) * tail
    return dataclasses.replace(
        empirical,
        additional=additional,
        source=f"thm:output_pert_approx_DP_SCO, {kind(delta)}",
    )


def exponential_mechanism(
    *,
    n: int,
    d: int,
    s: int,
    epsilon: float,
    lipschitz: float = 1.0,
    loss_range: float = 1.0,
    beta: float = 0.05,
) -> Bound:
    r"""Sparse exponential mechanism, pure: thm:sparse_exp_mech.

    $L^{2/3} B^{1/3} (\frac{s}{εn} \ln(\frac{L \sqrt s εn}{B} \frac dβ))^{1/3}$
    with probability 1 - β, for convex losses that need not be smooth and a
    minimiser of norm 1 at most. (The proof ends with (d/β)³ in the logarithm,
    the same up to a constant.)
    """
    check(n, d, s, epsilon, 0.0)
    check_beta(beta)
    check_positive(lipschitz=lipschitz, loss_range=loss_range)
    inside = lipschitz * math.sqrt(s) * epsilon * n / loss_range * d / beta
    rate = (s * log(inside) / (epsilon * n)) ** (1 / 3)
    return Bound(
        terms={SPARSE: (lipschitz**2 * loss_range) ** (1 / 3) * rate},
        source="thm:sparse_exp_mech",
    )


def bias_reduced_convex(
    *,
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float,
    lipschitz: float = 1.0,
    distance: float = 1.0,
) -> Bound:
    r"""Bias-reduced SGD, convex empirical risk: thm:convex_const_proba.

    $LD \sqrt{\ln n} (s \ln(d/s) \ln^3(1/δ))^{1/4} / \sqrt{εn}$ with
    probability 1/2. The lemmas behind it need δ < 1/n² and
    $d ≳ nε \sqrt{s \ln(d/s) / \ln(1/δ)}$.
    """
    missing = _bias_reduced_unmet(n, d, s, epsilon, delta)
    check_positive(lipschitz=lipschitz, distance=distance)
    inside = s * log(d / s) * log(1 / delta) ** 3
    rate = math.sqrt(log(n)) * quarter(inside, epsilon * n)
    return Bound(
        terms={SPARSE: lipschitz * distance * rate},
        source="thm:convex_const_proba",
        unmet=missing,
    )


def bias_reduced_nonconvex(
    *,
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float,
    lipschitz: float = 1.0,
    smoothness: float = 1.0,
    gap: float = 1.0,
) -> Bound:
    r"""Bias-reduced SGD, squared gradient norm: thm:nonconvex_const_proba.

    $(\sqrt{Γμ} L \sqrt{\ln n \ln(1/δ)} + L^2)
    (s \ln(d/s) \ln(1/δ))^{1/4} / \sqrt{εn}$ with probability 1/2; μ =
    `smoothness`, Γ = `gap`, how far the first risk is above the least one.
    Conditions as for `bias_reduced_convex`. Mind the square: Table 2 has the
    norm.
    """
    missing = _bias_reduced_unmet(n, d, s, epsilon, delta)
    check_positive(lipschitz=lipschitz, smoothness=smoothness, gap=gap)
    inside = s * log(d / s) * log(1 / delta)
    logs = math.sqrt(log(n) * log(1 / delta))
    scale = math.sqrt(gap * smoothness) * lipschitz * logs + lipschitz**2
    return Bound(
        terms={SPARSE: scale * quarter(inside, epsilon * n)},
        source="thm:nonconvex_const_proba",
        unmet=missing,
    )


def _bias_reduced_unmet(
    n: int, d: int, s: int, epsilon: float, delta: float
) -> tuple[str, ...]:
    check(n, d, s, epsilon, delta)
    check_approximate(delta)
    least = n * epsilon * math.sqrt(s * log(d / s) / log(1 / delta))
    return unmet(
        {
            "delta < 1/n^2": delta * n**2 < 1,
            "d >= n epsilon sqrt(s ln(d/s) / ln(1/delta))": d >= least,
        }
    )
