"""Different events together: never below the truth, and hardly above."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting import PrivacyPlan, composition
from tf_sparse_dp.accounting.calibration import spent_epsilon
from tf_sparse_dp.accounting.composition import composed_epsilon, pld_error
from tf_sparse_dp.accounting.dp_events import (
    ApproxDpEvent,
    FailingDpEvent,
    PublicMixtureDpEvent,
)
from tf_sparse_dp.accounting.parts import ADD_OR_REMOVE_ONE, parts_of
from tf_sparse_dp.sampling import PoissonSampling

pytestmark = [pytest.mark.once, pytest.mark.lane]

ZERO_OUT = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
NOTHING = dp_accounting.NoOpDpEvent()


def gaussian(z):
    return dp_accounting.GaussianDpEvent(z)


def laplace(z):
    return dp_accounting.LaplaceDpEvent(z)


def poisson(q, event):
    return dp_accounting.PoissonSampledDpEvent(q, event)


def reference(events, delta):
    """dp_accounting's own accountant, on a fine grid."""
    accountant = dp_accounting.pld.PLDAccountant(
        value_discretization_interval=2e-4
    )
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


MIXED = {
    "noise": [(poisson(0.01, gaussian(1.0)), 300), (laplace(10.0), 1)],
    "sampling": [
        (poisson(0.05, gaussian(2.0)), 30),
        (poisson(0.02, gaussian(1.2)), 50),
        (gaussian(20.0), 1),
    ],
    "laplace": [(laplace(30.0), 100), (poisson(0.1, laplace(3.0)), 50)],
}


@pytest.mark.parametrize("events", MIXED.values(), ids=MIXED)
def test_agrees_with_another_accountant(events):
    found = composed_epsilon(events, delta=1e-6)
    assert found == pytest.approx(reference(events, 1e-6), rel=3e-3)
    turned = composed_epsilon(events[::-1], delta=1e-6)
    assert turned == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("q", [None, 0.01])
@pytest.mark.parametrize("failure", [0.0, 1e-13])
def test_equal_events_cost_exactly_what_the_plan_says(
    noise, q, failure, poisson
):
    relation = "add_or_remove_one" if q else "zero_out"
    batches = poisson(
        sampling_probability=q,
        neighbouring_relation=relation,
        overflow_probability=failure,
    )
    kind = {"gaussian": gaussian, "laplace": laplace}[noise]
    event = kind(4.0)
    if q is not None:
        event = dp_accounting.PoissonSampledDpEvent(q, event)
    if failure:
        event = FailingDpEvent(event, failure)
    events = [
        (event, 30),
        (dp_accounting.SelfComposedDpEvent(event, 10), 2),
        (dp_accounting.ComposedDpEvent([NOTHING, event]), 1),
    ]
    found = composed_epsilon(
        events,
        delta=1e-6,
        neighboring_relation=ADD_OR_REMOVE_ONE if q else ZERO_OUT,
    )
    assert found == spent_epsilon(
        batches,
        noise_multiplier=4.0,
        delta=1e-6,
        compositions=51,
        noise=noise,
    )


def test_the_steps_of_a_plan_cost_what_the_plan_says():
    sampling = PoissonSampling(num_examples=2000, batch_size=100, steps=60)
    plan = PrivacyPlan(noise_multiplier=1.5, delta=1e-6, sampling=sampling)
    for steps in (1, 17, 60):
        found = composed_epsilon([(plan.step_event, steps)], delta=1e-6)
        assert found == plan.epsilon_spent(steps)


def test_convolution_never_falls_below_the_closed_form(exact_epsilon):
    # With probability 1 a Poisson step is a plain Gaussian.
    events = [
        (poisson(1.0, gaussian(100.0)), 1000),
        (poisson(1.0, gaussian(40.0)), 300),
        (poisson(1.0, gaussian(8.0)), 4),
        (gaussian(9.0), 2),
    ]
    precision = sum(
        count / getattr(event, "event", event).noise_multiplier ** 2
        for event, count in events
    )
    z = 1 / math.sqrt(precision)
    smallest = 2 * pld_error(parts_of(events, ADD_OR_REMOVE_ONE))
    for delta in (1e-3, 1e-6, 30 * smallest, 3 * smallest, smallest):
        found = composed_epsilon(events, delta=delta)
        assert found >= exact_epsilon(z, 1, delta)
        allowed = delta - 1.2 * smallest / 2
        assert found <= 1.005 * exact_epsilon(z, 1, allowed)
    below = composed_epsilon(events, delta=0.9 * smallest)
    assert found <= below <= 1.2 * found  # Rényi divergences answer there.


def test_plain_gaussians_are_one(exact_epsilon):
    found = composed_epsilon(
        [(gaussian(3.0), 4), (gaussian(4.0), 9)], delta=1e-6
    )
    exact = exact_epsilon(1 / math.sqrt(4 / 9 + 9 / 16), 1, 1e-6)
    assert exact <= found <= 1.002 * exact


def response(epsilon, delta):
    """Outcomes of (ε, δ) randomised response: mass here, mass there."""
    keep = (1 - delta) / (1 + math.exp(-epsilon))
    lose = 1 - delta - keep
    return [(delta, 0.0), (keep, lose), (lose, keep), (0.0, delta)]


@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_approximate_events_are_randomised_response(delta):
    pairs = [(0.31, 1e-6), (0.31, 1e-6), (0.17, 0.0), (0.05, 1e-5)]
    events = [(ApproxDpEvent(*pair), 1) for pair in pairs]
    found = composed_epsilon(events, delta=delta)
    outcomes = [
        tuple(np.prod(run, axis=0))
        for run in itertools.product(*(response(*pair) for pair in pairs))
    ]

    def exact(epsilon):
        gaps = (here - math.exp(epsilon) * there for here, there in outcomes)
        return math.fsum(max(0.0, gap) for gap in gaps)

    assert exact(found) <= delta < exact(0.998 * found)


def test_pure_sums():
    events = [(laplace(2.0), 3), (ApproxDpEvent(0.25), 2)]
    assert composed_epsilon(events, delta=0.0) == pytest.approx(2.0, rel=1e-12)
    assert composed_epsilon(events, delta=0.0) >= 2.0
    assert composed_epsilon(events, delta=1e-100) <= 2.0 * (1 + 1e-12)
    events.append((ApproxDpEvent(0.1, 1e-9), 1))
    assert composed_epsilon(events, delta=0.0) == math.inf
    assert composed_epsilon(events, delta=1.1e-9) <= 2.1 * (1 + 1e-12)
    events.append((gaussian(10.0), 1))
    assert composed_epsilon(events, delta=0.0) == math.inf


def test_a_mixture_is_the_average_of_its_divergences(exact_epsilon):
    mixture = PublicMixtureDpEvent((0.25, 0.75), (gaussian(1.0), gaussian(4.0)))
    found = composed_epsilon([(mixture, 1)], delta=1e-4)

    def delta_at(z):
        low, high = 1e-12, 1.0
        for _ in range(60):
            middle = math.sqrt(low * high)
            if exact_epsilon(z, 1, middle) > found:
                low = middle
            else:
                high = middle
        return high

    exact = 0.25 * delta_at(1.0) + 0.75 * delta_at(4.0)
    assert 0.998e-4 <= exact <= 1e-4


def test_a_mixture_lies_between_its_parts():
    strong, weak = poisson(0.02, gaussian(1.0)), poisson(0.02, gaussian(1.5))
    both = PublicMixtureDpEvent((0.5, 0.5), (strong, weak))
    same = PublicMixtureDpEvent((0.5, 0.5), (strong, strong))
    idle = PublicMixtureDpEvent((0.5, 0.5), (strong, NOTHING))
    at = {
        event: composed_epsilon([(event, 200)], delta=1e-6)
        for event in (strong, weak, both, same, idle)
    }
    assert at[weak] < at[both] < at[strong]
    assert at[idle] < at[both]
    assert at[same] == pytest.approx(at[strong], rel=2e-3)
    # What cannot be mixed as distributions is mixed as moments.
    composed = PublicMixtureDpEvent(
        (0.5, 0.5), (dp_accounting.ComposedDpEvent([strong, weak]), NOTHING)
    )
    found = composed_epsilon([(composed, 200)], delta=1e-6)
    assert at[idle] < found < 1.5 * at[strong]


def test_failures_of_all_events_are_charged_together():
    p = 1e-9
    events = [
        (FailingDpEvent(poisson(0.01, gaussian(1.0)), p), 10),
        (FailingDpEvent(dp_accounting.ComposedDpEvent([laplace(9.0)]), p), 5),
        (
            PublicMixtureDpEvent(
                (0.5, 0.5), (NOTHING, FailingDpEvent(gaussian(30.0), p))
            ),
            4,
        ),
    ]
    delta = 1e-6
    found = composed_epsilon(events, delta=delta)
    ideal = [
        (poisson(0.01, gaussian(1.0)), 10),
        (laplace(9.0), 5),
        (PublicMixtureDpEvent((0.5, 0.5), (NOTHING, gaussian(30.0))), 4),
    ]
    charge = 17 * p * (1 + math.exp(found))
    assert composed_epsilon(ideal, delta=delta) < found
    assert composed_epsilon(ideal, delta=delta - charge) <= found
    assert composed_epsilon(events, delta=30 * p) == math.inf


def test_many_different_events_are_left_to_renyi_divergences(monkeypatch):
    events = [(poisson(0.05, gaussian(2.0 + i / 100)), 99) for i in range(6)]
    by_pld = composed_epsilon(events, delta=1e-6)
    monkeypatch.setattr(composition, "_MAX_DIFFERENT", 5)
    by_renyi = composed_epsilon(events, delta=1e-6)
    assert by_pld < by_renyi < 2 * by_pld


def test_an_absurd_epsilon_is_not_computed_to_the_last_digit(monkeypatch):
    def refuse(parts):
        raise AssertionError("losses far out on a long grid")

    monkeypatch.setattr(composition, "composed_pld", refuse)
    events = [(poisson(0.5, gaussian(0.2)), 20_000), (gaussian(9.0), 1)]
    assert 1e4 < composed_epsilon(events, delta=1e-6) < 1e6


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.NonPrivateDpEvent(),
        gaussian(0.0),
        poisson(0.5, laplace(0.0)),
        PublicMixtureDpEvent((0.5, 0.5), (NOTHING, gaussian(0.0))),
    ],
)
def test_no_noise_is_no_privacy(event):
    assert composed_epsilon([(event, 1)], delta=0.1) == math.inf
    assert composed_epsilon([(event, 0)], delta=0.1) == 0.0


def test_nothing_costs_nothing():
    events = [(NOTHING, 5), (poisson(0.0, gaussian(1.0)), 3)]
    for delta in (0.0, 1e-12, 0.5):
        assert composed_epsilon(events, delta=delta) == 0.0


def test_what_is_refused():
    step = poisson(0.1, gaussian(1.0))
    for event in (step, PublicMixtureDpEvent((1.0,), (step,))):
        with pytest.raises(
            privacy_accountant.UnsupportedEventError, match="ADD_OR_REMOVE_ONE"
        ):
            composed_epsilon(
                [(event, 1)], delta=1e-6, neighboring_relation=REPLACE_ONE
            )
    unknown = dp_accounting.UnsupportedDpEvent()
    with pytest.raises(
        privacy_accountant.UnsupportedEventError, match="not known"
    ):
        composed_epsilon([(unknown, 1)], delta=1e-6)
    for count in (-1, 1.5, True):
        with pytest.raises(ValueError, match="whole number"):
            composed_epsilon([(gaussian(1.0), count)], delta=1e-6)
    with pytest.raises(ValueError, match="whole number"):
        composed_epsilon(
            [(dp_accounting.SelfComposedDpEvent(gaussian(1.0), -2), 1)],
            delta=1e-6,
        )
    for delta in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="delta is"):
            composed_epsilon([(gaussian(1.0), 1)], delta=delta)
    for event in (gaussian(-1.0), poisson(1.5, gaussian(1.0))):
        with pytest.raises(
            privacy_accountant.UnsupportedEventError, match="expected a number"
        ):
            composed_epsilon([(event, 1)], delta=1e-6)


def test_a_subclass_of_an_event_is_another_event():
    class LouderDpEvent(dp_accounting.GaussianDpEvent):
        pass

    with pytest.raises(privacy_accountant.UnsupportedEventError):
        composed_epsilon([(LouderDpEvent(1.0), 1)], delta=1e-6)


def test_replacing_a_unit_changes_sums_twice_as_much():
    for kind in (gaussian, laplace):
        for others in ([], [(laplace(30.0), 1)]):
            assert composed_epsilon(
                [(kind(3.0), 2), *others],
                delta=1e-6,
                neighboring_relation=REPLACE_ONE,
            ) == composed_epsilon(
                [(kind(1.5), 2), *((laplace(15.0), 1) for _ in others)],
                delta=1e-6,
            )


def test_zeroing_a_unit_is_sampled_as_removing_it_is():
    events = [(poisson(0.1, gaussian(2.0)), 5), (laplace(9.0), 1)]
    assert composed_epsilon(
        events, delta=1e-6, neighboring_relation=ZERO_OUT
    ) == composed_epsilon(events, delta=1e-6)


def test_what_only_renyi_divergences_know():
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 10, gaussian(4.0)
    )
    events = [(sampled, 10), (gaussian(9.0), 1)]
    found = composed_epsilon(
        events, delta=1e-6, neighboring_relation=REPLACE_ONE
    )
    alone = composed_epsilon(
        events[1:], delta=1e-6, neighboring_relation=REPLACE_ONE
    )
    assert alone < found < 2 * alone
    failing = [(FailingDpEvent(sampled, 1e-9), 10)]
    assert composed_epsilon(
        failing, delta=1e-6, neighboring_relation=REPLACE_ONE
    ) > composed_epsilon(
        [(sampled, 10)], delta=1e-6, neighboring_relation=REPLACE_ONE
    )


def test_sampled_and_failing_in_either_order():
    inside = poisson(0.1, FailingDpEvent(gaussian(2.0), 1e-9))
    outside = FailingDpEvent(poisson(0.1, gaussian(2.0)), 1e-9)
    assert composed_epsilon([(inside, 7)], delta=1e-6) == composed_epsilon(
        [(outside, 7)], delta=1e-6
    )


def test_sampled_approximate_events_are_amplified():
    sampled = poisson(0.1, ApproxDpEvent(1.0, 1e-7))
    amplified = ApproxDpEvent(math.log1p(0.1 * math.expm1(1.0)), 1e-8)
    found = composed_epsilon([(sampled, 20)], delta=1e-6)
    assert found == pytest.approx(
        composed_epsilon([(amplified, 20)], delta=1e-6), rel=1e-9
    )
