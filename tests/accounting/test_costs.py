"""What events cost, and which are refused."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant
from scipy import integrate, stats

from tf_sparse_dp import (
    ApproxDpEvent,
    ApproxDPFilter,
    FailingDpEvent,
    PublicMixtureDpEvent,
    RenyiFilter,
    ZcdpFilter,
)
from tf_sparse_dp.accounting.costs import UnknownCost
from tf_sparse_dp.accounting.renyi_costs import RenyiPrices

pytestmark = [pytest.mark.once, pytest.mark.lane]

Relation = dp_accounting.NeighboringRelation
ADD, ONE, ZERO = (
    Relation.ADD_OR_REMOVE_ONE,
    Relation.REPLACE_ONE,
    Relation.REPLACE_SPECIAL,
)
Gaussian = dp_accounting.GaussianDpEvent
Laplace = dp_accounting.LaplaceDpEvent
Poisson = dp_accounting.PoissonSampledDpEvent
Sampled = dp_accounting.SampledWithoutReplacementDpEvent
Repeated = dp_event.RepeatAndSelectDpEvent
Composed = dp_accounting.ComposedDpEvent
Times = dp_accounting.SelfComposedDpEvent
ORDERS = (2, 6, 17)


def sizes(event, relation=ADD, orders=ORDERS):
    return np.asarray(RenyiPrices(orders, relation).cost(event).sizes)


def reason(event, relation=ADD) -> UnknownCost:
    with pytest.raises(UnknownCost) as caught:
        RenyiPrices(ORDERS, relation).cost(event)
    return caught.value


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_replacing_moves_a_sum_twice_as_far(kind) -> None:
    np.testing.assert_array_equal(sizes(kind(3.0), ONE), sizes(kind(1.5), ADD))
    np.testing.assert_array_equal(sizes(kind(3.0), ZERO), sizes(kind(3.0), ADD))


def test_gaussians_from_one_sample_are_one() -> None:
    inner = Composed([Gaussian(2.0), Times(Gaussian(4.0), 12)])
    np.testing.assert_allclose(
        sizes(Poisson(0.1, inner)), sizes(Poisson(0.1, Gaussian(1.0))), 1e-12
    )


def test_amplified_pairs() -> None:
    cost = RenyiPrices(ORDERS, ADD).cost(Poisson(0.1, ApproxDpEvent(1.0, 1e-6)))
    epsilon = math.log(1 + 0.1 * (math.e - 1))
    np.testing.assert_allclose(cost.sizes, sizes(ApproxDpEvent(epsilon)), 1e-12)
    assert cost.delta == pytest.approx(1e-7)
    same = RenyiPrices(ORDERS, ONE).cost(
        Sampled(20, 2, ApproxDpEvent(1.0, 1e-6))
    )
    np.testing.assert_allclose(same.sizes, cost.sizes, 1e-12)


@pytest.mark.parametrize(
    ("event", "refused"),
    [
        (Poisson(0.1, Gaussian(1.0)), (ONE,)),
        (Poisson(0.1, Laplace(1.0)), (ONE,)),
        (Poisson(0.1, ApproxDpEvent(1.0)), (ONE, ZERO)),
        (Sampled(10, 1, Gaussian(1.0)), (ADD,)),
        (Sampled(10, 1, ApproxDpEvent(1.0)), (ADD, ZERO)),
    ],
)
def test_relations_without_a_proof_are_refused(event, refused) -> None:
    for relation in Relation:
        if relation in refused:
            assert reason(event, relation).event == event
            assert relation.name in reason(event, relation).reason
        else:
            assert np.all(sizes(event, relation) > 0)


class _Subclass(Gaussian):
    """Means another thing, perhaps."""


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.UnsupportedDpEvent(),
        _Subclass(1.0),
        Gaussian(-1.0),
        Gaussian(math.nan),
        Gaussian("2"),
        Gaussian(None),
        Laplace(-1.0),
        Poisson(1.1, Gaussian(1.0)),
        Poisson(math.nan, Gaussian(1.0)),
        Times(Gaussian(1.0), 0),
        Times(Gaussian(1.0), -1),
        Times(Gaussian(1.0), 1.5),
        Sampled(10, 11, Gaussian(1.0)),
        dp_accounting.SampledWithReplacementDpEvent(10, 2, Gaussian(1.0)),
        Repeated(Gaussian(1.0), 0.5, 1.0),
        Repeated(Gaussian(1.0), math.inf, 1.0),
        Repeated(Gaussian(1.0), 2.0, -1.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "around",
    [
        lambda event: event,
        lambda event: Composed([Gaussian(1.0), event]),
        lambda event: FailingDpEvent(Times(event, 2), 1e-9),
        lambda event: PublicMixtureDpEvent((1.0, 0.0), (Gaussian(1.0), event)),
    ],
)
def test_unknown_events_are_named(event, around) -> None:
    for relation in (ADD, ONE):
        assert reason(around(event), relation).event is event


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (lambda e: Poisson(0.1, e), Poisson(0.1, Gaussian(1.0))),
        (lambda e: Poisson(0.1, e), dp_accounting.NonPrivateDpEvent()),
        (lambda e: Poisson(0.1, Composed([e])), Laplace(1.0)),
        (
            lambda e: Poisson(0.1, e),
            PublicMixtureDpEvent((1.0,), (Gaussian(1.0),)),
        ),
        (lambda e: Repeated(e, 2.0, 1.0), dp_accounting.UnsupportedDpEvent()),
    ],
)
def test_unknown_inside_is_named(outer, inner) -> None:
    assert reason(outer(inner)).event == inner


def test_failures_move_out_of_samples_and_add_up() -> None:
    event = Times(
        Composed(
            [
                FailingDpEvent(Poisson(0.1, Gaussian(2.0)), 1e-9),
                Poisson(0.1, FailingDpEvent(Gaussian(2.0), 2e-9)),
            ]
        ),
        10,
    )
    cost = RenyiPrices(ORDERS, ADD).cost(event)
    plain = sizes(Poisson(0.1, Gaussian(2.0)))
    np.testing.assert_allclose(cost.sizes, 20 * plain, 1e-12)
    assert cost.failure == pytest.approx(3e-8)
    assert cost.delta == 0


def test_a_mixture_expects_its_deltas() -> None:
    event = PublicMixtureDpEvent(
        (0.75, 0.25),
        (
            FailingDpEvent(Gaussian(2.0), 4e-9),
            Composed((ApproxDpEvent(0.5, 1e-9), Poisson(0.1, Gaussian(3.0)))),
        ),
    )
    cost = RenyiPrices(ORDERS, ADD).cost(event)
    assert cost.delta == pytest.approx(0.25e-9)
    assert cost.failure == pytest.approx(3e-9)
    parts = [sizes(part) for part in event.events]
    grown = np.asarray(ORDERS) - 1
    moment = 0.75 * np.exp(grown * parts[0]) + 0.25 * np.exp(grown * parts[1])
    np.testing.assert_allclose(cost.sizes, np.log(moment) / grown, 1e-12)


def test_only_possible_components_count() -> None:
    event = PublicMixtureDpEvent(
        (1.0, 0.0), (Gaussian(2.0), dp_accounting.NonPrivateDpEvent())
    )
    np.testing.assert_allclose(sizes(event), sizes(Gaussian(2.0)), 1e-12)
    likely = PublicMixtureDpEvent((0.5, 0.5), event.events)
    assert np.all(np.isinf(sizes(likely)))


@pytest.mark.parametrize(
    "probabilities",
    [(0.5, 0.4), (1.5, -0.5), (1.0, math.nan), (1.0, math.inf), (1.0,), ()],
    ids=repr,
)
def test_impossible_probabilities_are_refused(probabilities) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        PublicMixtureDpEvent(probabilities, (Gaussian(2.0), Gaussian(1.0)))


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.NonPrivateDpEvent(),
        Gaussian(0.0),
        Laplace(0),
        Poisson(0.1, Gaussian(0.0)),
        ApproxDpEvent(math.inf),
        Poisson(0.1, ApproxDpEvent(math.inf)),
        Repeated(Gaussian(0.0), 2.0, 1.0),
    ],
    ids=repr,
)
def test_without_noise_the_cost_is_infinite(event) -> None:
    assert np.all(np.isinf(sizes(event)))


def mixture(means, weights, z):
    def density(x):
        return sum(
            w * stats.norm.pdf(x, m, z)
            for w, m in zip(weights, means, strict=True)
        )

    return density


def renyi(upper, lower, alpha):
    def integrand(x):
        return upper(x) ** alpha * lower(x) ** (1 - alpha)

    moment, _ = integrate.quad(integrand, -30, 30, limit=400)
    return math.log(moment) / (alpha - 1)


def test_one_of_two_without_replacement() -> None:
    """All pairs of neighbours with two units, by integration.

    Units contribute -1, 0 or 1; one is drawn and released with noise.
    """
    z, alpha = 3.0, 6
    worst = 0.0
    for kept in (-1.0, 0.0, 1.0):
        for old, new in ((1.0, -1.0), (-1.0, 1.0), (1.0, 0.0), (0.0, 1.0)):
            upper = mixture((kept, old), (0.5, 0.5), z)
            lower = mixture((kept, new), (0.5, 0.5), z)
            worst = max(worst, renyi(upper, lower, alpha))
    event = Sampled(2, 1, Gaussian(z))
    (bound,) = sizes(event, ONE, (alpha,))
    assert worst <= bound < 3 * worst
    # Without the factor of two for the change it would be too small.
    (naive,) = sizes(Poisson(0.5, Gaussian(z)), ADD, (alpha,))
    assert naive < worst


@pytest.mark.parametrize("z", [2.0, 6.0, 20.0])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5])
def test_without_replacement_is_no_looser_than_others(z, share) -> None:
    event = Sampled(1000, int(1000 * share), Gaussian(z))
    orders = (2, 3, 5, 10, 20)
    accountant = dp_accounting.rdp.RdpAccountant(orders, ONE)
    # Its noise multiplier is over the change, ours over the norm of a unit.
    accountant.compose(Sampled(1000, int(1000 * share), Gaussian(z / 2)))
    ours = sizes(event, ONE, orders)
    assert np.all(ours <= accountant.rdp * (1 + 1e-9))
    assert np.all(ours >= sizes(Poisson(share, Gaussian(z / 2)), ADD, orders))


def test_all_of_a_data_set_is_no_sample() -> None:
    np.testing.assert_array_equal(
        sizes(Sampled(7, 7, Gaussian(3.0)), ONE), sizes(Gaussian(3.0), ONE)
    )


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, math.inf])
def test_selection_is_that_of_dp_accounting(shape) -> None:
    run = Times(Poisson(0.01, Gaussian(2.0)), 100)
    event = Repeated(run, 5.0, shape)
    orders = (*range(2, 64), 128, 256, 512)
    accountant = dp_accounting.rdp.RdpAccountant(orders).compose(event)
    found = sizes(event, ADD, orders)
    np.testing.assert_allclose(found, accountant.rdp, 2e-5)
    assert np.all(found >= accountant.rdp)
    # Few orders of our own do not make the search for the best one coarse.
    few = sizes(event, ADD, (6, 17))
    np.testing.assert_array_equal(few, found[[4, 15]])


def test_one_of_several_runs_fails() -> None:
    run = FailingDpEvent(Gaussian(5.0), 1e-9)
    cost = RenyiPrices(ORDERS, ADD).cost(Repeated(run, 5.0, 1.0))
    assert cost.failure == pytest.approx(5e-9)
    np.testing.assert_array_equal(
        cost.sizes, sizes(Repeated(Gaussian(5.0), 5.0, 1.0))
    )


@pytest.mark.skipif(
    not hasattr(dp_accounting, "ZCDpEvent"), reason="exists from 0.6 on"
)
def test_events_of_dp_accounting_06() -> None:
    event = dp_accounting.ZCDpEvent(rho=0.1, xi=0.02)
    np.testing.assert_allclose(sizes(event), 0.02 + 0.1 * np.array(ORDERS))
    cut = dp_accounting.TruncatedSubsampledGaussianDpEvent(
        dataset_size=1000,
        sampling_probability=0.01,
        truncated_batch_size=40,
        noise_multiplier=2.0,
    )
    cost = RenyiPrices(ORDERS, ADD).cost(cut)
    overflow = stats.binom.sf(40, 1000, 0.01)
    assert overflow <= cost.failure < 1.2 * overflow
    np.testing.assert_array_equal(
        cost.sizes, sizes(Poisson(0.01, Gaussian(2.0)))
    )
    budget = ZcdpFilter(epsilon=1.0, delta=1e-6)
    assert budget.supports(dp_accounting.ZCDpEvent(rho=0.1))
    assert not budget.supports(event)
    assert not budget.supports(cut)


def test_what_other_currencies_refuse() -> None:
    concentrated = ZcdpFilter(epsilon=1.0, delta=1e-6)
    pairs = ApproxDPFilter(epsilon=1.0, delta=1e-6)
    sampled = Poisson(0.1, Gaussian(5.0))
    with pytest.raises(
        privacy_accountant.UnsupportedEventError, match="RenyiFilter"
    ):
        concentrated.spend(sampled)
    for event in (Gaussian(5.0), sampled):
        with pytest.raises(
            privacy_accountant.UnsupportedEventError, match=r"ApproxDpEvent\.of"
        ):
            pairs.spend(event)
        pairs.compose(ApproxDpEvent.of(event, 1e-9))
    assert pairs.supports(Poisson(0.1, Laplace(2.0)))
    mixed = PublicMixtureDpEvent((0.5, 0.5), (Laplace(2.0), Laplace(4.0)))
    for budget in (concentrated, pairs):
        same = budget.cost(Laplace(2.0))[0]
        np.testing.assert_array_equal(budget.cost(mixed)[0], same)


def test_pairs_of_events(exact_epsilon) -> None:
    step = ApproxDpEvent.of(Gaussian(2.0), 1e-5)
    assert step.delta == 1e-5
    exact = exact_epsilon(2.0, 1, 1e-5)
    assert exact <= step.epsilon < 1.001 * exact
    doubled = ApproxDpEvent.of(Gaussian(4.0), 1e-5, ONE)
    assert doubled.epsilon >= step.epsilon * (1 - 1e-9)
    drawn = ApproxDpEvent.of(Sampled(100, 1, Gaussian(4.0)), 1e-5, ONE)
    assert drawn.epsilon < doubled.epsilon
    assert ApproxDpEvent.of(Laplace(2.0), 0.0).epsilon == 0.5
    with pytest.raises(ValueError, match="larger delta"):
        ApproxDpEvent.of(ApproxDpEvent(1.0, 1e-5), 1e-6)
    with pytest.raises(privacy_accountant.UnsupportedEventError):
        ApproxDpEvent.of(dp_accounting.UnsupportedDpEvent(), 1e-6)


def test_costs_of_a_filter_are_what_it_spends() -> None:
    budget = RenyiFilter(epsilon=2.0, delta=1e-5)
    event = FailingDpEvent(Poisson(0.01, Gaussian(1.0)), 1e-12)
    divergences, charge = budget.cost(event)
    budget.spend(event)
    np.testing.assert_array_equal(budget.spent, divergences)
    assert charge == pytest.approx((1 + math.exp(2.0)) * 1e-12, rel=1e-12)
    assert charge >= (1 + math.exp(2.0)) * 1e-12
