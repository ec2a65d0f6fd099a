"""Noise fits its budget, tightly, and overflow is paid for."""

from __future__ import annotations

import itertools
import math

import pytest

from tf_sparse_dp.accounting.accountants import ideal_epsilon
from tf_sparse_dp.accounting.calibration import (
    calibrated_noise_multiplier,
    overflow_charge,
    round_up,
    spent_epsilon,
)


def spent(sampling, noise_multiplier, delta):
    return spent_epsilon(
        sampling,
        noise_multiplier=noise_multiplier,
        delta=delta,
        compositions=sampling.num_compositions,
    )


@pytest.mark.parametrize(
    ("q", "k", "epsilon", "delta"),
    [
        (0.01, 1000, 1.0, 1e-5),
        (0.01, 10_000, 3.0, 1e-6),
        (0.001, 2000, 0.5, 1e-7),
        (0.004, 732, 8.0, 1e-8),
        (0.5, 20, 0.1, 1e-6),
        (1.0, 50, 2.0, 1e-6),
        (0.01, 1000, 1.0, 1e-15),
        (0.01, 1000, 1e-3, 1e-5),
        (0.01, 100, 100.0, 1e-6),
        (None, 10, 3.0, 1e-6),
        (None, 1, 0.05, 1e-9),
        (None, 4, 30.0, 1e-20),
    ],
)
def test_noise_keeps_to_epsilon_and_hardly_less_would(
    q, k, epsilon, delta, poisson
):
    relation = "zero_out" if q is None else "add_or_remove_one"
    sampling = poisson(
        sampling_probability=q,
        num_compositions=k,
        neighbouring_relation=relation,
    )
    noise_multiplier = calibrated_noise_multiplier(
        sampling, epsilon=epsilon, delta=delta
    )
    assert noise_multiplier == float(f"{noise_multiplier:.5g}")
    assert 0.998 * epsilon <= spent(sampling, noise_multiplier, delta)
    assert spent(sampling, noise_multiplier, delta) <= epsilon
    assert spent(sampling, noise_multiplier * (1 - 3e-4), delta) > epsilon


def test_passes_need_the_analytic_gaussian_noise(passes, exact_epsilon):
    noise_multiplier = calibrated_noise_multiplier(
        passes(5), epsilon=2.0, delta=1e-6
    )
    exact = exact_epsilon(noise_multiplier, 5, 1e-6)
    assert 0.999 * 2.0 <= exact <= 2.0


def test_an_epsilon_out_of_reach_is_refused(poisson):
    with pytest.raises(ValueError, match="Ask for a larger epsilon"):
        calibrated_noise_multiplier(
            poisson(num_compositions=10), epsilon=1e-3, delta=1e-20
        )


def test_round_up():
    assert round_up(1.2340000001, 4) == 1.235
    assert round_up(1.234, 4) >= 1.234
    assert round_up(0.0, 4) == 0.0
    assert round_up(math.inf, 4) == math.inf
    for value in (0.1 + 0.2, 1 / 3, 123456.7, 9.99999, 1e-9 / 7):
        assert value <= round_up(value, 5) <= value * (1 + 1.0001e-4)


def test_overflow_charge():
    charge = overflow_charge(
        compositions=7, epsilon=math.log(3), overflow_probability=1e-9
    )
    assert charge == pytest.approx(28e-9)
    assert (
        overflow_charge(compositions=7, epsilon=1e6, overflow_probability=0.0)
        == 0.0
    )
    assert math.inf == overflow_charge(
        compositions=7, epsilon=1e6, overflow_probability=1e-300
    )


@pytest.mark.parametrize("p", [1e-3, 0.05])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_overflow_charge_covers_the_worst_failure(p, k):
    """Randomised response that blurts out the truth with probability p.

    The ideal is pure (k·e)-DP, so the exact delta is all of the charge.
    """
    e = 0.7
    keep = math.exp(e) / (1 + math.exp(e))

    def outcomes(bit):
        answers = {f"noisy {bit}": keep, f"noisy {1 - bit}": 1 - keep}
        answers = {key: (1 - p) * mass for key, mass in answers.items()}
        return answers | {f"truth {bit}": p}

    keys = sorted(outcomes(0).keys() | outcomes(1).keys())
    delta = 0.0
    for run in itertools.product(keys, repeat=k):
        zero = math.prod(outcomes(0).get(key, 0.0) for key in run)
        one = math.prod(outcomes(1).get(key, 0.0) for key in run)
        delta += max(0.0, zero - math.exp(k * e) * one)
    charge = overflow_charge(
        compositions=k, epsilon=k * e, overflow_probability=p
    )
    assert p < delta * 1.0001
    assert delta <= charge


def test_calibration_leaves_overflow_its_part_of_delta(poisson):
    epsilon, delta, k = 2.0, 1e-6, 500
    p = delta / 2 / (k * (1 + math.exp(epsilon)))
    charged = calibrated_noise_multiplier(
        poisson(num_compositions=k, overflow_probability=p),
        epsilon=epsilon,
        delta=delta,
    )
    halved = calibrated_noise_multiplier(
        poisson(num_compositions=k), epsilon=epsilon, delta=delta / 2
    )
    assert charged == pytest.approx(halved, rel=2e-4)


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.3])
def test_epsilon_with_overflow_holds(share, poisson):
    delta, k, noise_multiplier = 1e-6, 500, 1.0
    ideal = spent(poisson(num_compositions=k), noise_multiplier, delta)
    p = share * delta / (k * (1 + math.exp(ideal)))
    sampling = poisson(num_compositions=k, overflow_probability=p)
    found = spent(sampling, noise_multiplier, delta)
    charge = overflow_charge(
        compositions=k, epsilon=found, overflow_probability=p
    )
    assert ideal <= found <= 1.2 * ideal
    remaining = ideal_epsilon(
        sampling_probability=0.01,
        noise_multiplier=noise_multiplier,
        compositions=k,
        delta=delta - charge,
        relation="add_or_remove_one",
    )
    assert remaining <= found


def test_overflow_that_uses_up_delta(poisson):
    sampling = poisson(num_compositions=1000, overflow_probability=1e-9)
    assert spent(sampling, 1.0, 1e-6) == math.inf
    with pytest.raises(ValueError, match="Raise max_batch_size"):
        calibrated_noise_multiplier(sampling, epsilon=1.0, delta=1e-6)
