"""Both accountants bound the truth from above, and from not far above."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tf_sparse_dp.accounting.accountants import (
    accountant_for,
    ideal_epsilon,
    numerical_error,
)
from tf_sparse_dp.accounting.events import training_event

ADD_OR_REMOVE = "add_or_remove_one"


def epsilon(q, noise_multiplier, k, delta, relation=ADD_OR_REMOVE):
    return ideal_epsilon(
        sampling_probability=q,
        noise_multiplier=noise_multiplier,
        compositions=k,
        delta=delta,
        relation=relation,
    )


def choice(q, noise_multiplier, k, delta):
    return accountant_for(
        sampling_probability=q,
        noise_multiplier=noise_multiplier,
        compositions=k,
        delta=delta,
    )


@pytest.mark.parametrize("relation", ["zero_out", ADD_OR_REMOVE])
@pytest.mark.parametrize(
    ("noise_multiplier", "k", "delta"),
    [(0.3, 1, 1e-6), (1.0, 1, 1e-5), (5.0, 10, 1e-6), (40.0, 3, 1e-9)],
)
def test_passes_equal_the_closed_form(
    noise_multiplier, k, delta, relation, exact_epsilon
):
    exact = exact_epsilon(noise_multiplier, k, delta)
    found = epsilon(None, noise_multiplier, k, delta, relation)
    assert exact <= found <= 1.002 * exact


# With probability 1 a Poisson step is a plain Gaussian whose closed form is
# known, while the accountant still goes all the way through its convolutions.
@pytest.mark.parametrize(
    ("noise_multiplier", "k"), [(3.0, 10), (30.0, 1000), (400.0, 100_000)]
)
def test_convolution_never_falls_below_the_closed_form(
    noise_multiplier, k, exact_epsilon
):
    smallest = 2 * numerical_error(k)
    for delta in (1e-3, 1e-6, 30 * smallest, 3 * smallest, smallest):
        assert choice(1.0, noise_multiplier, k, delta) == "PLD"
        found = epsilon(1.0, noise_multiplier, k, delta)
        assert found >= exact_epsilon(noise_multiplier, k, delta)
        # What the allowance for rounding costs, and no more.
        allowed = delta - 1.2 * numerical_error(k)
        assert found <= 1.005 * exact_epsilon(noise_multiplier, k, allowed)


def test_subsampled_gaussians_equal_their_integral():
    """Two steps; losses of the first are integrated over, by quadrature."""
    q, z, delta = 0.3, 1.2, 1e-4
    nodes, weights = np.polynomial.legendre.leggauss(600)
    x = 0.5 + nodes * (0.5 + 9 * z)
    weights = weights * (0.5 + 9 * z)
    base = stats.norm.pdf(x, scale=z)
    mixture = (1 - q) * base + q * stats.norm.pdf(x, loc=1, scale=z)

    def divergence(eps, first, second):
        losses = eps - np.log(first / second)
        gap = first - np.exp(losses)[:, None] * second
        return (weights * first) @ (np.maximum(gap, 0) @ weights)

    def exact(eps):
        return max(
            divergence(eps, mixture, base), divergence(eps, base, mixture)
        )

    found = epsilon(q, z, 2, delta)
    # Kinks cost the quadrature its digits after the third.
    assert exact(found) <= 1.001 * delta
    assert exact(0.995 * found) > 1.001 * delta


def test_subsampling_with_probability_one_is_no_subsampling():
    plain = epsilon(None, 20.0, 100, 1e-6)
    assert epsilon(1.0, 20.0, 100, 1e-6) == pytest.approx(plain, rel=2e-3)


CASES = [
    (0.01, 1.0, 1000, 1e-5),
    (0.01, 1.0, 10_000, 1e-6),
    (0.01, 5.0, 10_000, 1e-7),
    (0.2, 10.0, 100, 1e-6),
    (0.5, 1.0, 10, 1e-5),
]


@pytest.mark.parametrize("case", CASES)
def test_pld_and_rdp_agree_within_their_gap(case):
    q, noise_multiplier, k, delta = case
    event = training_event(
        sampling_probability=q,
        noise_multiplier=noise_multiplier,
        compositions=k,
    )
    rdp = dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(delta)
    assert choice(*case) == "PLD"
    assert epsilon(*case) <= rdp <= 1.2 * epsilon(*case)


@pytest.mark.parametrize("case", CASES[:3])
def test_the_event_means_the_same_to_another_accountant(case):
    q, noise_multiplier, k, delta = case
    event = training_event(
        sampling_probability=q,
        noise_multiplier=noise_multiplier,
        compositions=k,
    )
    accountant = dp_accounting.pld.PLDAccountant().compose(event)
    assert epsilon(*case) == pytest.approx(
        accountant.get_epsilon(delta), rel=3e-3
    )


@pytest.mark.parametrize("case", [(1e-3, 0.7, 10_000), (1e-4, 0.5, 100_000)])
def test_a_coarser_grid_only_overstates(case):
    q, noise_multiplier, k = case
    fine, coarse = (
        ideal_epsilon(
            sampling_probability=q,
            noise_multiplier=noise_multiplier,
            compositions=k,
            delta=1e-6,
            relation=ADD_OR_REMOVE,
            grid_points=points,
        )
        for points in (25_000, 2500)
    )
    assert fine <= coarse <= 1.1 * fine


def test_rdp_answers_where_rounding_would_drown_delta(exact_epsilon):
    for k in (1, 1000, 100_000):
        delta = 1.9 * numerical_error(k)
        assert choice(0.01, 1.0, k, delta) == "RDP"
    assert choice(0.01, 2.0, 2_000_000, 1e-5) == "RDP"
    assert choice(0.01, 0.05, 10, 1e-5) == "RDP"
    for delta in (1e-14, 1e-30, 1e-200):
        exact = exact_epsilon(2.0, 4, delta)
        assert exact <= epsilon(None, 2.0, 4, delta) <= 1.2 * exact


def test_no_jump_between_the_accountants():
    k = 1000
    at = 2 * numerical_error(k)
    by_pld = epsilon(0.01, 1.0, k, at)
    by_rdp = epsilon(0.01, 1.0, k, at * 0.999)
    assert choice(0.01, 1.0, k, at * 0.999) == "RDP"
    assert by_pld <= by_rdp <= 1.2 * by_pld


def test_divergences_of_next_to_nothing():
    # dp_accounting alone may find these slightly negative, and refuse.
    found = epsilon(1e-7, 500.0, 900_000, 1e-12)
    assert 0 <= found < 0.02


def test_extreme_noise():
    assert epsilon(0.01, 1e9, 1000, 1e-6) == pytest.approx(0, abs=1e-4)
    # Ten Gaussians of z = 0.001 have mu²/2 = 5e6.
    assert 5e6 < epsilon(None, 0.001, 10, 1e-6) < 2e7


def test_more_of_anything_bad_costs_more():
    here = epsilon(0.01, 1.0, 1000, 1e-6)
    assert epsilon(0.02, 1.0, 1000, 1e-6) > here
    assert epsilon(0.01, 0.9, 1000, 1e-6) > here
    assert epsilon(0.01, 1.0, 1001, 1e-6) > here
    assert epsilon(0.01, 1.0, 1000, 0.9e-6) > here
