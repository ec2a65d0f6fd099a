"""Tables and theorems: continuity, order, slopes, and the paper's crossings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tf_sparse_dp import theory
from tf_sparse_dp.theory import rates

pytestmark = [pytest.mark.once]

PURE = {"epsilon": 1.0, "delta": 0.0}
APPROXIMATE = {"epsilon": 0.5, "delta": 1e-9}
TABLES = [
    (rates.mean_upper, rates.mean_lower),
    (rates.erm_upper, rates.erm_lower),
    (rates.sco_upper, rates.sco_lower),
]


def grid():
    for n in 2 ** np.arange(0, 40, 3):
        for d, s in ((10**2, 1), (10**4, 5), (10**7, 40), (10**9, 1000)):
            for privacy in (PURE, APPROXIMATE):
                yield {"n": int(n), "d": d, "s": s, **privacy}


@pytest.mark.parametrize(("upper", "lower"), TABLES)
def test_lower_bounds_are_below_upper_ones(upper, lower) -> None:
    for facts in grid():
        above, below = float(upper(**facts)), float(lower(**facts))
        assert 0 < below <= above <= 1, facts


@pytest.mark.parametrize(("upper", "lower"), TABLES)
def test_more_examples_never_hurt(upper, lower) -> None:
    for facts in grid():
        more = facts | {"n": 8 * facts["n"]}
        for bound in (upper, lower):
            assert float(bound(**more)) <= float(bound(**facts)), facts


# What the three regimes of Tables 1 and 2 say of n, d and s, by hand.
SLOPES = [
    (rates.mean_upper, PURE, "sparse", {"n": -1 / 2, "s": 1 / 2}),
    (rates.mean_upper, PURE, "dense", {"n": -1, "d": 1 / 2, "s": 1 / 2}),
    (rates.mean_upper, APPROXIMATE, "sparse", {"n": -1 / 2}),
    (rates.mean_upper, APPROXIMATE, "dense", {"n": -1, "d": 1 / 2, "s": 0}),
    (rates.mean_lower, PURE, "dense", {"n": -1, "d": 1 / 2, "s": 1 / 2}),
    (
        rates.mean_lower,
        APPROXIMATE,
        "sparse",
        {"n": -1 / 2, "d": 0, "s": 1 / 4},
    ),
    (rates.mean_lower, APPROXIMATE, "dense", {"n": -1, "d": 1 / 2, "s": 0}),
    (rates.erm_upper, PURE, "sparse", {"n": -1 / 3, "s": 1 / 3}),
    (rates.erm_upper, PURE, "dense", {"n": -1, "d": 1, "s": 0}),
    (rates.erm_upper, APPROXIMATE, "sparse", {"n": -1 / 2, "s": 1 / 4}),
    (rates.erm_upper, APPROXIMATE, "dense", {"n": -1, "d": 1 / 2, "s": 0}),
    (rates.stationarity_upper, APPROXIMATE, "sparse", {"n": -1 / 4}),
    (
        rates.stationarity_upper,
        APPROXIMATE,
        "dense",
        {"n": -2 / 3, "d": 1 / 3, "s": 0},
    ),
]


@pytest.mark.parametrize(("bound", "privacy", "term", "slopes"), SLOPES)
def test_slopes_of_the_terms(bound, privacy, term, slopes) -> None:
    facts = {"n": 10**5, "d": 10**8, "s": 16, **privacy}
    for name, slope in slopes.items():
        twice = facts | {name: 2 * facts[name]}
        ratio = bound(**twice).terms[term] / bound(**facts).terms[term]
        assert math.log2(ratio) == pytest.approx(slope, abs=1e-9)


def test_the_gaps_are_those_the_paper_names() -> None:
    facts = {"n": 10**4, "d": 10**9, "s": 100, **APPROXIMATE}
    gap = float(rates.mean_upper(**facts)) / float(rates.mean_lower(**facts))
    assert gap == pytest.approx(math.log(10**7) ** 0.25)
    # Pure ERM: the exponents differ by 1/6.
    ratios = []
    for n in (10**4, 10**5):
        facts = {"n": n, "d": 10**12, "s": 10, **PURE}
        lower = rates.erm_lower(**facts).terms["sparse"]
        lower /= math.sqrt(math.log(10**12 / n))
        ratios.append(rates.erm_upper(**facts).terms["sparse"] / lower)
    assert math.log10(ratios[1] / ratios[0]) == pytest.approx(1 / 6)


def test_table_and_theorem_agree_at_constant_probability() -> None:
    facts = {"n": 10**4, "d": 10**8, "s": 10, **APPROXIMATE}
    for theorem in (rates.projection, rates.compressed_sensing):
        ratio = float(theorem(**facts)) / float(rates.mean_upper(**facts))
        assert 1 <= ratio < 1.5
    # Table 2 leaves out (ln n)^(1/4) and has the root of the theorem.
    norm = rates.stationarity_upper(**facts).terms["sparse"]
    squared = float(rates.bias_reduced_nonconvex(**facts))
    ratio = math.sqrt(squared) / norm / math.log(10**4) ** 0.25
    assert 1 <= ratio < 1.1
    # They do not in the convex case: the theorem has ln^3(1/delta).
    theorem = float(rates.bias_reduced_convex(**facts))
    table = rates.erm_upper(**facts).terms["sparse"] * math.sqrt(
        math.log(10**4)
    )
    extra = math.sqrt(math.log(1e9))
    assert theorem / table == pytest.approx(
        extra * (math.log(10**7) / math.log(10**8)) ** 0.25
    )


def test_theorems_scale_as_their_units() -> None:
    """Twice the loss is twice the risk; a coordinate may change its unit."""
    facts = {"n": 10**4, "d": 10**6, "s": 10, "epsilon": 1.0}
    for delta in (0.0, 1e-9):
        one = rates.output_perturbation_sco(
            **facts, delta=delta, smoothness=3.0, loss_range=5.0
        )
        scaled = rates.output_perturbation_sco(
            **facts,
            delta=delta,
            lipschitz=2 * 7.0,
            smoothness=3.0 * 2 * 49,
            distance=1 / 7,
            loss_range=10.0,
        )
        assert scaled.value == pytest.approx(2 * one.value)
    one = rates.exponential_mechanism(**facts, lipschitz=2.0, loss_range=3.0)
    two = rates.exponential_mechanism(**facts, lipschitz=4.0, loss_range=6.0)
    assert two.value == pytest.approx(2 * one.value)
    facts |= {"delta": 1e-9}
    one = rates.bias_reduced_nonconvex(**facts, gap=2.0, smoothness=3.0)
    two = rates.bias_reduced_nonconvex(
        **facts, gap=4.0, smoothness=6.0, lipschitz=2.0
    )
    assert two.value == pytest.approx(4 * one.value)


def test_unmet_conditions_are_named() -> None:
    facts = {"n": 100, "d": 100, "s": 60, "epsilon": 2.0}
    assert rates.mean_lower(**facts).unmet == ("s < d/2",)
    unmet = rates.mean_lower(**facts, delta=0.1).unmet
    assert unmet == ("epsilon <= 1", "delta < 1/n")
    assert rates.bias_reduced_convex(
        n=10**4, d=100, s=4, epsilon=1.0, delta=1e-6
    ).unmet == ("delta < 1/n^2", "d >= n epsilon sqrt(s ln(d/s) / ln(1/delta))")
    good = {"n": 10**3, "d": 10**6, "s": 4, "epsilon": 1.0, "delta": 1e-7}
    assert not rates.bias_reduced_convex(**good).unmet
    assert not rates.mean_lower(**good).unmet
    assert rates.output_perturbation_erm(
        n=10, d=100, s=5, epsilon=1.0, smoothness=0.01
    ).unmet == ("lambda <= smoothness",)


def test_regimes_change_where_their_boundaries_say() -> None:
    for task in ("mean", "erm", "sco", "stationarity"):
        for delta in (0.0, 1e-6):
            if task == "stationarity" and delta == 0:
                continue
            facts = (10**8, 10, 1.0, delta)
            first = theory.regime(1000, *facts, task=task)
            until, dense = first.constant_until, first.dense_from
            assert until < dense
            expected = [
                (until / 1.5, "constant"),
                (until * 1.5, "sparse"),
                (dense / 1.5, "sparse"),
                (dense * 1.5, "dense"),
            ]
            for n, name in expected:
                found = theory.regime(max(1, int(n)), *facts, task=task)
                if task == "sco" and name != "dense" and n < 2 * until:
                    continue  # The sampling error moves it a little.
                assert found.name == name, (task, delta, n)
                assert found.algorithm in found.summary


def test_sparsity_may_never_help() -> None:
    found = theory.regime(100, 10, 10, 1.0)
    assert found.name == "dense"
    assert found.constant_until == found.dense_from
    assert "never helps" in found.summary


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n=0"),
        ({"n": 1.5}, "n=1.5"),
        ({"n": True}, "n=True"),
        ({"d": -3}, "d=-3"),
        ({"s": 0}, "s=0"),
        ({"s": 101}, "at most d"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": -1e-9}, "delta=-1e-09"),
        ({"delta": math.nan}, "delta=nan"),
        ({"task": "median"}, "task='median'"),
        ({"task": "stationarity", "delta": 0.0}, "delta above 0"),
    ],
)
def test_nonsense_is_refused(change, message) -> None:
    good = {"n": 10, "d": 100, "s": 2, "epsilon": 1.0, "delta": 1e-6}
    theory.regime(**good)
    with pytest.raises(ValueError, match=message):
        theory.regime(**(good | change))


def test_theorems_refuse_what_they_cannot_use() -> None:
    facts = {"n": 10, "d": 100, "s": 2, "epsilon": 1.0}
    with pytest.raises(ValueError, match="smoothness"):
        rates.output_perturbation_erm(**facts)
    with pytest.raises(ValueError, match="beta=0"):
        rates.projection(**facts, beta=0.0)
    with pytest.raises(ValueError, match="lipschitz=-1"):
        rates.projection(**facts, lipschitz=-1.0)
    with pytest.raises(ValueError, match="delta above 0"):
        rates.compressed_sensing(**facts, delta=0.0)
    with pytest.raises(ValueError, match="fit into n rows"):
        rates.block_lower(
            n=10, block_rows=6, blocks=2, error=1.0, probability=0.5
        )
