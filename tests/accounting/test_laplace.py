"""Laplace noise: accounts against integrals that are written out here."""

from __future__ import annotations

import fractions
import json
import math

import dp_accounting
import numpy as np
import pytest

from tf_sparse_dp.accounting import PrivacyPlan, accountants
from tf_sparse_dp.accounting.accountants import (
    accountant_for,
    ideal_epsilon,
    numerical_error,
    pure_epsilon,
)
from tf_sparse_dp.accounting.calibration import (
    RELEASE_FAILURE,
    calibrated_noise_multiplier,
)

pytestmark = pytest.mark.once


def epsilon(q, noise_multiplier, k, delta):
    return ideal_epsilon(
        sampling_probability=q,
        noise_multiplier=noise_multiplier,
        compositions=k,
        delta=delta,
        relation="zero_out" if q is None else "add_or_remove_one",
        noise="laplace",
    )


NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


def pair(q, z, removed):
    """Masses of two distributions: two atoms, and nodes between 0 and 1.

    Outside [0, 1] the ratio of densities is constant. Laplace noise of scale z
    around 0 against a mixture of itself and noise around 1; or reversed.
    """
    x = (NODES + 1) / 2
    width = WEIGHTS / 2 / (2 * z)
    tail = math.exp(-1 / z) / 2
    around_0 = np.concatenate([[0.5, tail], width * np.exp(-x / z)])
    around_1 = np.concatenate([[tail, 0.5], width * np.exp((x - 1) / z)])
    mixture = (1 - q) * around_0 + q * around_1
    return (mixture, around_0) if removed else (around_0, mixture)


def one_hockey_stick(eps, q, z, removed):
    """In closed form: the event lies beyond a point t of [0, 1]."""
    ratio = np.exp(eps if removed else -eps)
    with np.errstate(invalid="ignore", divide="ignore"):
        t = (1 + z * np.log((ratio - 1 + q) / q)) / 2
    t = np.clip(np.where(ratio <= 1 - q, 0.0, t), 0, 1)
    tail = np.exp(-t / z) / 2, 1 - np.exp((t - 1) / z) / 2
    if not removed:
        tail = 1 - tail[0], 1 - tail[1]
    mixture = (1 - q) * tail[0] + q * tail[1]
    both = (mixture, tail[0]) if removed else (tail[0], mixture)
    inside = both[0] - np.exp(eps) * both[1]
    return np.maximum(np.maximum(inside, 1 - np.exp(eps)), 0)


def hockey_stick(eps, q, z, removed, k):
    """Of k independent copies, by integrating over all but the last."""
    if k == 1:
        return one_hockey_stick(eps, q, z, removed)
    first, second = pair(q, z, removed)
    losses = eps[..., None] - np.log(first / second)
    return hockey_stick(losses, q, z, removed, k - 1) @ first


@pytest.mark.parametrize(
    ("q", "z", "k"),
    [
        (None, 1.0, 1),
        (None, 2.5, 2),
        (0.01, 1.0, 1),
        (0.3, 0.7, 2),
        (0.1, 0.4, 2),
        (0.5, 3.0, 3),
    ],
)
def test_epsilon_equals_the_integral(q, z, k):
    """At the epsilon found, and a little below: both neighbours, both ways."""

    def exact(eps):
        sampled = 1.0 if q is None else q
        eps = np.array([eps])
        ways = [hockey_stick(eps, sampled, z, way, k) for way in (True, False)]
        return np.max(ways)

    for share in (0.5, 1e-2, 1e-4):
        delta = share * exact(0.0)
        found = epsilon(q, z, k, delta)
        # The quadrature is right to three digits: slopes have kinks.
        assert exact(found) <= 1.001 * delta
        assert exact(0.99 * found) > 1.001 * delta


def test_the_integral_rejects_a_wrong_account():
    """Sampling with half the probability is found out."""
    q, z, k, delta = 0.3, 0.7, 2, 1e-2
    wrong = epsilon(q / 2, z, k, delta)
    exact = hockey_stick(np.array([wrong]), q, z, True, k)
    assert exact > 2 * delta


def test_long_runs_equal_an_independent_convolution():
    q, z, k, delta = 0.02, 0.8, 400, 1e-5
    step = 1e-5
    first, second = pair(q, z, True)
    losses = np.log(first / second)
    size = 2**19
    # To the nearest grid point: right on average, not an upper bound.
    masses = np.zeros(size)
    np.add.at(masses, np.rint(losses / step).astype(int) % size, first)
    composed = np.maximum(np.fft.irfft(np.fft.rfft(masses) ** k, size), 0)
    grid = step * ((np.arange(size) + size // 2) % size - size // 2)

    def exact(eps):
        gain = np.where(grid > eps, -np.expm1(eps - grid), 0)
        return float(composed @ gain)

    found = epsilon(q, z, k, delta)
    assert exact(found * 1.002) <= delta <= exact(found * 0.99)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1.2, 0.3), (2.0, 0.01)])
def test_two_coordinates_tell_less_than_one(a, b):
    """The lemma that lets one coordinate stand for many."""
    eps = np.linspace(-0.99, 0.99, 41) * (a + b)
    single = one_hockey_stick(eps, 1.0, 1 / (a + b), False)
    np.testing.assert_allclose(single, -np.expm1((eps - a - b) / 2))
    first, second = pair(1.0, 1 / b, False)
    losses = eps[:, None] - np.log(first / second)
    double = one_hockey_stick(losses, 1.0, 1 / a, False) @ first
    assert (double <= single + 1e-9).all()
    positive = eps >= 0
    c = (a + b - eps[positive]) / 2
    expected = 1 - np.exp(-c) * (1 + np.minimum(b, c) / 2)
    np.testing.assert_allclose(double[positive], expected, atol=1e-4)


def test_pure_epsilon_is_the_largest_loss():
    assert epsilon(None, 1.5, 3, 0.0) == 2.0
    for q, z, k in [(0.01, 1.0, 1000), (0.5, 0.3, 7), (1.0, 2.0, 3)]:
        first, second = pair(q, z, True)
        losses = np.log(first / second)
        found = epsilon(q, z, k, 0.0)
        largest = k * np.abs(losses).max()
        assert found == pytest.approx(largest, rel=1e-13)
    # Sampling gains nothing when noise is next to none.
    assert epsilon(0.5, 1e-3, 1, 0.0) == pytest.approx(1000)


@pytest.mark.parametrize("z", [0.1, 0.3, 1 / 3, 1.1, 7.7])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_pure_epsilon_is_rounded_up(z, k):
    exact = k / fractions.Fraction(z)
    found = pure_epsilon(
        sampling_probability=None, noise_multiplier=z, compositions=k
    )
    below = math.nextafter(found, 0)
    assert fractions.Fraction(below) < exact <= fractions.Fraction(found)


def test_tiny_deltas_have_an_answer_near_the_others():
    k = 1000
    for q, z in [(0.01, 1.0), (None, 300.0)]:
        at = 2 * numerical_error(k)
        case = {
            "sampling_probability": q,
            "noise_multiplier": z,
            "compositions": k,
            "noise": "laplace",
        }
        assert accountant_for(**case, delta=at) == "PLD"
        assert accountant_for(**case, delta=at / 2) == "RDP"
        assert accountant_for(**case, delta=0.0) == "pure"
        by_pld, by_rdp = epsilon(q, z, k, at), epsilon(q, z, k, at / 2)
        assert by_pld <= by_rdp <= 1.1 * by_pld
        assert by_rdp <= epsilon(q, z, k, 1e-60) <= epsilon(q, z, k, 0.0)


@pytest.mark.parametrize("order", [2, 3, 9])
@pytest.mark.parametrize(("q", "z"), [(0.01, 0.3), (0.3, 1.0), (1.0, 2.0)])
def test_divergences_are_integrals(order, q, z):
    """The formula is for one direction; the other one is not larger."""
    place = accountants.RDP_ORDERS.index(order)
    found = accountants._laplace_rdp(q, z)[place]
    removed, added = (
        math.log(first @ (first / second) ** (order - 1)) / (order - 1)
        for first, second in (pair(q, z, True), pair(q, z, False))
    )
    assert found == pytest.approx(removed, rel=1e-9)
    assert added <= removed * (1 + 1e-9)


@pytest.mark.parametrize("case", [(0.01, 1.0, 500), (None, 4.0, 5)])
def test_the_event_means_the_same_to_another_accountant(case, poisson):
    q, z, k = case
    plan = PrivacyPlan(
        noise_multiplier=z,
        delta=1e-7,
        sampling=poisson(sampling_probability=q, num_compositions=k),
        noise="laplace",
    )
    event = dp_accounting.LaplaceDpEvent(z)
    if q is not None:
        event = dp_accounting.PoissonSampledDpEvent(q, event)
    assert plan.event() == dp_accounting.SelfComposedDpEvent(event, k)
    accountant = dp_accounting.pld.PLDAccountant().compose(plan.event())
    theirs = accountant.get_epsilon(1e-7)
    assert plan.epsilon == pytest.approx(theirs, rel=5e-3)


@pytest.mark.parametrize(
    ("q", "k", "target", "delta"),
    [
        (0.01, 1000, 1.0, 1e-5),
        (0.5, 20, 0.1, 1e-6),
        (None, 1, 1.0, 1e-6),
        (None, 10, 3.0, 1e-6),
        (0.01, 1000, 2.0, 1e-20),
        (0.01, 1000, 1.0, 0.0),
        (None, 7, 2.0, 0.0),
        (1.0, 7, 30.0, 0.0),
    ],
)
def test_noise_keeps_to_epsilon_and_hardly_less_would(
    q, k, target, delta, poisson
):
    sampling = poisson(sampling_probability=q, num_compositions=k)
    z = calibrated_noise_multiplier(
        sampling, epsilon=target, delta=delta, noise="laplace"
    )
    assert z == float(f"{z:.5g}")
    assert 0.998 * target <= epsilon(q, z, k, delta) <= target
    assert epsilon(q, z * (1 - 3e-4), k, delta) > target


def test_pure_plans(poisson, passes):
    plan = PrivacyPlan(
        epsilon=2.0, delta=0.0, sampling=passes(3), noise="laplace"
    )
    assert (plan.noise_multiplier, plan.epsilon, plan.delta) == (1.5, 2.0, 0.0)
    assert plan.accountant == "pure"
    assert plan.release_failure == 0.0
    third = fractions.Fraction(1) / fractions.Fraction(1.5)
    assert plan.epsilon_spent(1) == pytest.approx(float(third), rel=1e-15)
    sampled = PrivacyPlan(
        noise_multiplier=2.0, delta=0, sampling=poisson(), noise="laplace"
    )
    assert sampled.epsilon == pytest.approx(
        1000 * math.log1p(0.01 * math.expm1(0.5)), rel=1e-12
    )
    config = json.loads(json.dumps(sampled.get_config()))
    again = PrivacyPlan.from_config(config, sampling=poisson())
    assert again == sampled
    assert again.noise == "laplace"


def test_old_configs_have_gaussian_noise(poisson):
    plan = PrivacyPlan(noise_multiplier=1.0, delta=1e-7, sampling=poisson())
    config = plan.get_config()
    del config["noise"]
    assert PrivacyPlan.from_config(config, sampling=poisson()) == plan


@pytest.mark.parametrize("given", ["epsilon", "noise_multiplier"])
@pytest.mark.parametrize(
    ("facts", "arguments", "words"),
    [
        ({}, {"noise": "gaussian"}, "gaussian noise is never private"),
        ({"overflow_probability": 1e-18}, {}, "batches that are never cut"),
        ({}, {"noise": "cauchy"}, "noise is 'cauchy'"),
        ({}, {"noise": None}, "noise is None"),
        ({}, {"delta": -1e-9}, "delta is -1e-09"),
        ({}, {"delta": math.nan}, "delta is nan"),
    ],
)
def test_what_is_not_pure_is_refused(facts, arguments, words, given, poisson):
    arguments = {"delta": 0.0, "noise": "laplace", given: 1.0} | arguments
    with pytest.raises(ValueError, match=words):
        PrivacyPlan(sampling=poisson(**facts), **arguments)


def test_failed_releases_are_charged(poisson, passes):
    """For tiny deltas it shows; where it would take over, none may fail."""
    k = 1000
    plan = PrivacyPlan(noise_multiplier=5.0, delta=1e-7, sampling=poisson())
    assert plan.release_failure == RELEASE_FAILURE == 2.0**-100
    charge = k * (1 + math.exp(plan.epsilon)) * RELEASE_FAILURE
    for delta, allowed in [(2000 * charge, True), (500 * charge, False)]:
        tiny = PrivacyPlan(
            noise_multiplier=200.0, delta=delta, sampling=poisson()
        )
        assert (tiny.release_failure > 0) == allowed
        spent = k * (1 + math.exp(tiny.epsilon)) * tiny.release_failure
        held = ideal_epsilon(
            sampling_probability=0.01,
            noise_multiplier=200.0,
            compositions=k,
            delta=delta - spent,
            relation="add_or_remove_one",
        )
        assert held <= tiny.epsilon <= held * (1 + 1e-7)
    for epsilon_ in (50.0, 400.0):
        plan = PrivacyPlan(epsilon=epsilon_, delta=1e-7, sampling=passes(4))
        assert plan.release_failure == 0.0
        assert plan.epsilon == epsilon_
