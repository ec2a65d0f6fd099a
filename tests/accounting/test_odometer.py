"""The odometer holds at every stopping time; a composed epsilon does not."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import privacy_accountant_test
from scipy import optimize

from tf_sparse_dp.accounting.dp_events import ApproxDpEvent, FailingDpEvent
from tf_sparse_dp.accounting.filters.renyi import renyi_epsilon
from tf_sparse_dp.accounting.odometer import (
    ORDERS,
    PrivacyOdometer,
    ville_epsilon,
)
from tf_sparse_dp.accounting.renyi_costs import RenyiPrices

DELTA, RUNS, STEPS = 0.05, 4000, 80
NOISES = (2.0, 5.0, 20.0)
ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


class OdometerTest(privacy_accountant_test.PrivacyAccountantTest):
    """What `dp_accounting` asks of every accountant."""

    def _make_test_accountants(self):
        return [
            PrivacyOdometer(delta=1e-6),
            PrivacyOdometer(delta=0.1, orders=[7], event_share=0.5),
        ]


def gaussian_losses(rng, noise):
    return (rng.standard_normal(len(noise)) + 0.5 / noise) / noise


def laplace_losses(rng, noise):
    x = rng.laplace(size=len(noise)) * noise
    return (np.abs(x - 1) - np.abs(x)) / noise


CASES = {
    "gaussian": (dp_accounting.GaussianDpEvent, gaussian_losses),
    "laplace": (dp_accounting.LaplaceDpEvent, laplace_losses),
}


def adversary(kind, epsilon_of, *, margin=0.0, seed=0):
    """Runs that are stopped when the loss exceeds what is shown.

    The noise of every release depends on the losses before: the more was lost,
    the more careful it goes on.

    Args:
      kind: Of noise.
      epsilon_of: What is shown for divergences [runs, orders].
      margin: By how much the loss has to exceed it.
      seed: Of the noise.

    Returns:
      How often runs were stopped, and the means and standard errors of
      (1 - e^(ε-L))₊ at the end, which is at most δ if (ε, δ) is true.
    """
    event, losses = CASES[kind]
    prices = RenyiPrices(ORDERS, ADD_OR_REMOVE)
    costs = np.stack([prices.cost(event(noise)).sizes for noise in NOISES])
    rng = np.random.default_rng(seed)
    spent = np.zeros([RUNS, len(ORDERS)])
    loss, shown = np.zeros(RUNS), np.zeros(RUNS)
    stopped = np.zeros(RUNS, bool)
    for _ in range(STEPS):
        choice = np.where(loss < 0, 0, np.where(loss < 3, 1, 2))
        drawn = losses(rng, np.take(NOISES, choice))
        going = ~stopped
        loss[going] += drawn[going]
        spent[going] += costs[choice[going]]
        shown[going] = epsilon_of(spent[going])
        stopped |= loss > shown + margin
    excess = np.maximum(-np.expm1(shown - loss), 0)
    error = excess.std() / math.sqrt(RUNS)
    return stopped.mean(), excess.mean(), error


def odometer_epsilon(spent):
    return ville_epsilon(spent, ORDERS, DELTA)


def composed_epsilon(spent):
    """What holds for a sequence of events that was fixed beforehand."""
    return np.min(renyi_epsilon(spent, np.array(ORDERS, float), DELTA), -1)


LARGEST_ERROR = math.sqrt(DELTA * (1 - DELTA) / RUNS)


@pytest.mark.parametrize("kind", CASES)
def test_losses_hardly_ever_exceed_the_odometer(kind):
    stopped, excess, error = adversary(kind, odometer_epsilon)
    assert stopped <= DELTA + 3 * LARGEST_ERROR
    assert excess <= DELTA + 3 * error
    assert stopped > 0  # Else nothing was tried.


@pytest.mark.parametrize("kind", CASES)
def test_a_composed_epsilon_fails_the_same_tests(kind):
    stopped, _, _ = adversary(kind, composed_epsilon)
    assert stopped > DELTA + 10 * LARGEST_ERROR
    _, excess, error = adversary(kind, composed_epsilon, margin=0.3)
    assert excess > DELTA + 3 * error


def best_adversary(epsilon_of, gain, *, epsilon=0.3, steps=300):
    """The largest expected gain of all rules to stop, computed exactly.

    Randomised response loses +ε or -ε; so what can be known is how often it was
    +ε in how many steps. Whether to stop there is decided from the end on.
    """
    prices = RenyiPrices(ORDERS, ADD_OR_REMOVE)
    divergences = np.array(prices.cost(ApproxDpEvent(epsilon)).sizes)
    numbers = np.arange(1, steps + 1)[:, np.newaxis]
    shown = epsilon_of(numbers * divergences)
    plus = 1 / (1 + math.exp(-epsilon))
    value = np.zeros(steps + 2)
    for number in range(steps, 0, -1):
        loss = epsilon * (2 * np.arange(number + 1) - number)
        going_on = plus * value[1:] + (1 - plus) * value[:-1]
        value = np.maximum(gain(shown[number - 1], loss), going_on)
    return plus * value[1] + (1 - plus) * value[0]


def exceeded(shown, loss):
    return (loss > shown).astype(float)


def hockey_stick(shown, loss):
    return -np.expm1(np.minimum(shown - loss, 0))


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
def test_no_rule_to_stop_does_better_than_delta(epsilon):
    def best(epsilon_of, gain):
        return best_adversary(epsilon_of, gain, epsilon=epsilon)

    # Close to delta: it is not by waste that the odometer is right.
    assert DELTA / 2 < best(odometer_epsilon, exceeded) <= DELTA
    assert best(odometer_epsilon, hockey_stick) <= DELTA
    assert best(composed_epsilon, hockey_stick) > 1.2 * DELTA


def test_losses_are_simulated_right():
    """e^(αL) has the moment that the divergence says. 5 standard errors."""
    rng = np.random.default_rng(0)
    for event, losses in CASES.values():
        prices = RenyiPrices([2, 3], ADD_OR_REMOVE)
        drawn = losses(rng, np.full(200_000, 3.0))
        for order, rho in zip(
            (2, 3), prices.cost(event(3.0)).sizes, strict=True
        ):
            moments = np.exp((order - 1) * drawn)
            error = moments.std() / math.sqrt(moments.size)
            expected = math.exp((order - 1) * rho)
            assert abs(moments.mean() - expected) < 5 * error


def test_the_odometer_shows_what_was_tested():
    odometer = PrivacyOdometer(delta=DELTA / 0.9)
    prices = RenyiPrices(ORDERS, ADD_OR_REMOVE)
    spent = np.zeros(len(ORDERS))
    for noise in (2.0, 5.0, 2.0, 20.0):
        event = dp_accounting.GaussianDpEvent(noise)
        odometer.compose(event)
        spent = spent + prices.cost(event).sizes
        shown = odometer.spent()
        assert shown == pytest.approx(float(odometer_epsilon(spent)), rel=1e-9)
        assert shown == odometer.get_epsilon(odometer.delta)


@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 3.0, 100.0])
def test_the_equation_is_solved_from_above(scale, delta):
    orders = np.array(ORDERS, float)
    divergences = scale * orders * (1 + orders / 50)
    found = float(ville_epsilon(divergences, ORDERS, delta))

    def gap(epsilon):
        terms = (orders - 1) * (epsilon - divergences)
        return np.logaddexp.reduce(terms) - math.log(len(orders) / delta)

    exact = optimize.brentq(gap, 0.0, 1e5, xtol=1e-13, rtol=1e-13)
    assert exact <= found <= exact * (1 + 1e-9)
    union = divergences + math.log(len(orders) / delta) / (orders - 1)
    assert found <= union.min() * (1 + 1e-9)


def test_one_order_has_a_closed_form():
    odometer = PrivacyOdometer(delta=1e-6, orders=[9], event_share=0.5)
    odometer.compose(dp_accounting.GaussianDpEvent(5.0), 3)
    expected = 3 * 9 / (2 * 25) + math.log(2e6) / 8
    assert odometer.spent() == pytest.approx(expected, rel=1e-11)
    assert odometer.spent() >= expected


def test_infinite_divergences_leave_the_other_orders():
    divergences = np.array([0.1, 0.2, np.inf])
    found = ville_epsilon(divergences, (2, 4, 8), 1e-3)
    only = ville_epsilon(divergences[:2], (2, 4), 1e-3 * 2 / 3)
    assert float(found) == pytest.approx(float(only))


def test_deltas_up_to_their_share():
    odometer = PrivacyOdometer(delta=1e-6, event_share=0.2)
    pure = PrivacyOdometer(delta=1e-6, event_share=0.2)
    odometer.compose(ApproxDpEvent(0.1, 0.9e-8), 11)
    pure.compose(ApproxDpEvent(0.1), 11)
    assert 0 < odometer.spent() == pure.spent() < math.inf
    odometer.compose(ApproxDpEvent(0.0, 0.9e-8))
    assert odometer.spent() == math.inf
    # At a delta ten times as large there is still room.
    assert odometer.get_epsilon(1e-5) == pytest.approx(pure.get_epsilon(1e-5))


def test_failures_are_charged_at_the_next_level():
    event = dp_accounting.GaussianDpEvent(5.0)
    plain = PrivacyOdometer(delta=1e-6).compose(event)
    assert 1 < plain.spent() < 2
    most = 1e-7 / 2 / 7 / (1 + math.exp(2))
    within = FailingDpEvent(event, most * (1 - 1e-9))
    beyond = FailingDpEvent(event, most * (1 + 1e-9))
    assert PrivacyOdometer(delta=1e-6).compose(within).spent() == plain.spent()
    assert PrivacyOdometer(delta=1e-6).compose(beyond).spent() == math.inf


def test_failures_at_an_epsilon_without_level():
    event = dp_accounting.GaussianDpEvent(0.1)
    assert PrivacyOdometer(delta=1e-6).compose(event).spent() > 64
    failing = FailingDpEvent(event, 1e-300)
    assert PrivacyOdometer(delta=1e-6).compose(failing).spent() == math.inf


def test_no_delta_no_claim():
    odometer = PrivacyOdometer(delta=1e-6)
    odometer.compose(dp_accounting.LaplaceDpEvent(1.0))
    assert odometer.get_epsilon(0.0) == math.inf
    assert odometer.get_epsilon(1.0) == 0.0


def test_costs_more_than_what_is_known_beforehand():
    step = dp_accounting.PoissonSampledDpEvent(
        0.01, dp_accounting.GaussianDpEvent(1.0)
    )
    odometer = PrivacyOdometer(delta=1e-6).compose(step, 1500)
    composed = dp_accounting.rdp.RdpAccountant().compose(step, 1500)
    ratio = odometer.spent() / composed.get_epsilon(1e-6)
    assert 1.1 < ratio < 1.5


def test_relation_decides_what_events_cost():
    event = dp_accounting.GaussianDpEvent(4.0)
    replace = dp_accounting.NeighboringRelation.REPLACE_ONE
    twice = PrivacyOdometer(delta=1e-6, neighboring_relation=replace)
    once = PrivacyOdometer(delta=1e-6)
    once.compose(dp_accounting.GaussianDpEvent(2.0))
    assert twice.compose(event).spent() == pytest.approx(once.spent())


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
        {"event_share": 0.0},
        {"event_share": 1.0},
        {"orders": []},
        {"orders": [2, 2]},
        {"orders": [1, 2]},
        {"orders": [2.5]},
    ],
)
def test_bad_arguments(change):
    with pytest.raises(ValueError, match="expected"):
        PrivacyOdometer(**{"delta": 1e-6, **change})


@pytest.mark.parametrize("count", [-1, 1.5, 2**60])
def test_bad_counts(count):
    odometer = PrivacyOdometer(delta=1e-6)
    with pytest.raises(ValueError, match="count is"):
        odometer.compose(dp_accounting.GaussianDpEvent(1.0), count)
    assert odometer.spent() == 0
