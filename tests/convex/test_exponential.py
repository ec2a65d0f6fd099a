"""The sparse exponential mechanism: its net, its law, its sampling."""

from __future__ import annotations

import itertools
import math
import random
import warnings
import zlib
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest

from tf_sparse_dp import ApproxDPFilter, BudgetExhausted, PrivacyWarning
from tf_sparse_dp.convex import SparseExponentialMechanism, exponential
from tf_sparse_dp.convex.sparse_net import (
    grid_size,
    log_least_size,
    sparse_net,
)

pytestmark = [pytest.mark.once]
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def mechanism(**changes) -> SparseExponentialMechanism:
    given = {
        "epsilon": 1.0,
        "loss_range": 2.0,
        "lipschitz": 1.0,
        "sparsity": 2,
    }
    return SparseExponentialMechanism(**(given | changes))


def linear(points: np.ndarray, example: np.ndarray) -> np.ndarray:
    return points @ example


def hinge(points: np.ndarray, example: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - 3 * points @ example)


def wild(points: np.ndarray, example: np.ndarray) -> np.ndarray:
    """Breaks every assumption: unbounded, nowhere continuous, not finite."""
    seed = zlib.crc32(example.tobytes())
    found = np.random.default_rng(seed).standard_cauchy(len(points)) * 1e3
    if seed % 5 == 0:
        found[seed % len(found)] = [math.nan, math.inf, -math.inf, 1e308][
            seed % 4
        ]
    return found


# The net.


@pytest.mark.parametrize("tau", [0.45, 0.5, 0.6, 0.71, 0.9, 1.0])
@pytest.mark.parametrize("d", [1, 3, 6])
def test_the_net_covers_sparse_vectors(d, tau, seeded) -> None:
    k = min(d, math.floor(1 / tau**2))
    net = sparse_net(d, k, tau)
    assert (np.linalg.norm(net, axis=1) <= 1 + 1e-12).all()
    assert ((net != 0).sum(axis=1) <= k).all()
    assert len(np.unique(net, axis=0)) == len(net) <= grid_size(d, k, tau)
    vectors = np.zeros((300, d))
    for row in vectors:
        support = seeded.choice(d, k, replace=False)
        row[support] = seeded.normal(size=k)
        # Half of them on the sphere, where the net ends.
        row *= seeded.choice([1, seeded.random()]) / np.linalg.norm(row)
    distances = np.linalg.norm(vectors[:, None] - net[None], axis=2).min(axis=1)
    assert distances.max() <= tau + 1e-12
    # A net for a tenth of the spacing's rounding would not be so coarse.
    if k > 1:
        assert distances.max() > tau / 4


def test_a_coarser_net_does_not_cover(seeded) -> None:
    net = sparse_net(4, 4, 0.5)
    coarse = net[::3]
    vectors = seeded.normal(size=(300, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    gaps = np.linalg.norm(vectors[:, None] - coarse[None], axis=2).min(axis=1)
    assert gaps.max() > 0.5


@pytest.mark.parametrize(
    ("d", "k", "tau"), [(4, 3, 0.5), (3, 3, 0.3), (5, 1, 0.2)]
)
def test_the_size_is_counted_right(d, k, tau) -> None:
    squares = math.floor(k * ((1 + tau) / (2 * tau)) ** 2 + 1e-9)
    reach = range(-math.isqrt(squares), math.isqrt(squares) + 1)
    counted = sum(
        sum(x * x for x in point) <= squares and sum(x != 0 for x in point) <= k
        for point in itertools.product(reach, repeat=d)
    )
    assert grid_size(d, k, tau) == counted
    assert log_least_size(d, k, tau) <= math.log(counted)


def test_large_nets_are_refused_with_their_size_and_at_once() -> None:
    for n, d in ((10**6, 10), (10**9, 10**6), (10**18, 1), (10**12, 2)):
        with pytest.raises(ValueError, match=r"net of .* points is needed"):
            mechanism().net(n, d)
    with pytest.raises(ValueError, match=r"net of \d+,\d+ points") as refusal:
        mechanism(max_net_size=10).net(60, 5)
    assert "max_net_size=10" in str(refusal.value)
    assert len(mechanism().net(60, 5)) > 10


def test_tau_solves_its_equation() -> None:
    for epsilon, n, d in ((0.1, 5, 3), (1.0, 1000, 10), (5.0, 10**8, 10**6)):
        m = mechanism(epsilon=epsilon, loss_range=3.0, lipschitz=0.5)
        tau = m.fineness(n, d)
        left = tau**3 / math.log(d / (tau * m.beta))
        right = 3.0 / (0.5 * math.sqrt(2) * epsilon * n)
        assert left == pytest.approx(right, rel=1e-9)
    # The quotient as printed would make the net coarser with more data.
    assert mechanism().fineness(1000, 5) < mechanism().fineness(100, 5)
    assert mechanism(tau=0.3).fineness(7, 5) == 0.3


def test_few_examples_leave_zero_alone() -> None:
    assert mechanism().net(2, 5).tolist() == [[0.0] * 5]


# The law.


def largest_log_ratio(
    m: SparseExponentialMechanism, loss, trials: int, seed: int
) -> float:
    """Over all outputs, between random neighbours; adversarial now and then."""
    source = np.random.default_rng(seed)
    worst = 0.0
    for trial in range(trials):
        n, d = int(source.integers(1, 12)), int(source.integers(1, 4))
        points = m.net(n, d)
        data = source.normal(size=(n, d)) * 10 ** source.uniform(-1, 2)
        other = data.copy()
        other[0] = -data[0] if trial % 2 else source.normal(size=d)
        law, other_law = (
            m.log_probabilities(m.steps(loss, rows, points))
            for rows in (data, other)
        )
        assert np.exp(law).sum() == pytest.approx(1)
        worst = max(worst, np.abs(law - other_law).max())
    return worst


@pytest.mark.parametrize("loss", [linear, hinge, wild])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
def test_no_probability_changes_by_more_than_epsilon(loss, epsilon) -> None:
    m = mechanism(epsilon=epsilon, tau=0.6)
    worst = largest_log_ratio(m, loss, 100, seed=1)
    assert 0 < worst <= epsilon + 1e-9


def spiteful(points: np.ndarray, example: np.ndarray) -> np.ndarray:
    """Nothing at one point and B at the others, or the other way round."""
    here = np.arange(len(points)) == 0
    return np.where(here == (example[0] > 0), 0.0, 2.0)


def test_the_bound_is_tight_and_twice_the_exponent_is_caught(
    monkeypatch,
) -> None:
    epsilon = 0.5
    m = mechanism(epsilon=epsilon, tau=0.6)
    points = m.net(5, 3)
    data = np.ones((5, 3))
    other = data.copy()
    other[0] = -1

    def ratio(of: SparseExponentialMechanism) -> float:
        law, neighbour = (
            of.log_probabilities(of.steps(spiteful, rows, points))
            for rows in (data, other)
        )
        return np.abs(law - neighbour).max()

    assert 0.8 * epsilon < ratio(m) <= epsilon
    # What a missing 2 in the denominator would do.
    assert ratio(mechanism(epsilon=2 * epsilon, tau=0.6)) > 1.3 * epsilon
    # And losses that are not cut off.
    monkeypatch.setattr(
        exponential,
        "_clamped_steps",
        lambda losses, span: np.rint(losses / span * 2**20).astype(np.int64),
    )
    assert largest_log_ratio(m, linear, 50, seed=1) > epsilon


def test_within_its_range_a_loss_is_not_changed() -> None:
    m = mechanism(loss_range=2.0, tau=0.6)
    points = m.net(4, 3)
    rows = np.random.default_rng(0).normal(size=(4, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = m.log_probabilities(m.steps(linear, rows, points))
    exact = -m.epsilon / (2 * 2.0) * (points @ rows.sum(axis=0))
    exact -= np.log(np.exp(exact).sum())
    assert found == pytest.approx(exact, abs=1e-5)


# The draw.


def test_frequencies_are_those_of_the_law() -> None:
    m = mechanism(epsilon=3.0, tau=0.71)
    points = m.net(6, 2)
    rows = np.random.default_rng(0).normal(size=(6, 2))
    steps = m.steps(linear, rows, points)
    law = np.exp(m.log_probabilities(steps))
    source, trials = random.Random(0), 20_000
    drawn = [exponential._sample(steps, 3.0, source) for _ in range(trials)]
    counts = np.bincount(drawn, minlength=len(points))
    # Chi-square with k degrees of freedom: k + 6 sqrt(2k) fails by chance with
    # probability below 1e-6 here.
    degrees = len(points) - 1
    limit = degrees + 6 * math.sqrt(2 * degrees)

    def distance(expected: np.ndarray) -> float:
        return ((counts - trials * expected) ** 2 / (trials * expected)).sum()

    assert distance(law) < limit
    wrong = law**2 / (law**2).sum()  # Twice the exponent.
    assert distance(wrong) > 10 * limit


@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(1, 3), Fraction(9, 4)])
def test_coins_with_exponential_odds(gamma) -> None:
    source, trials = random.Random(1), 20_000
    heads = sum(
        exponential._happens_exp(gamma.numerator, gamma.denominator, source)
        for _ in range(trials)
    )
    expected = math.exp(-gamma)
    deviation = math.sqrt(trials * expected * (1 - expected))
    assert abs(heads - trials * expected) <= 5 * deviation  # 6e-7 by chance


def test_a_release_is_described() -> None:
    rows = [np.array([-1.0, 0.0, 0.0])] * 100
    m = mechanism(epsilon=20.0, tau=0.5, seed=0)
    with pytest.warns(PrivacyWarning, match="fixed seed"):
        release = m.minimise(linear, rows, dimension=3)
    # Weights fall by e^1000 per unit of risk: the best of the net, in effect.
    assert release.value.tolist() == [1.0, 0.0, 0.0]
    assert release.description.startswith("NOT PRIVATE")
    private = mechanism(tau=0.5).minimise(linear, rows, dimension=3)
    assert "epsilon = 1, pure" in private.description
    assert "NOT" not in private.description
    first, assumed, beyond = private.description.split("\n\n")
    assert "losses were shifted to begin at 0 and cut off at 2." in first
    assert assumed.startswith("This holds if:\n- The number of examples")
    assert "operating system" in assumed
    assert beyond.startswith("Not covered:\n- ")


def test_losses_that_are_no_numbers_decide_nothing() -> None:
    """Not silently wrong only: an error or a warning would tell of data."""
    m = mechanism(epsilon=5.0, tau=0.6)
    points = m.net(4, 3)
    rows = [np.array([1.0, 0.0, 0.0])] * 4

    def law(loss) -> np.ndarray:
        return m.log_probabilities(m.steps(loss, rows, points))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m.minimise(lambda p, e: p @ e * np.nan, rows, dimension=3)
        same = law(lambda p, e: np.full(len(p), np.nan))
    assert same == pytest.approx(-np.log(len(points)))
    assert law(linear).max() > same.max() + 1


def test_a_filter_pays_first() -> None:
    rows = [np.zeros(3)] * 10
    m = mechanism(epsilon=np.float32(1.0), tau=0.6)
    budget = ApproxDPFilter(
        epsilon=8.0, delta=1e-6, neighboring_relation=REPLACE_ONE
    )
    m.minimise(linear, rows, dimension=3, filter=budget)
    assert budget.remaining() < 1
    with pytest.raises(BudgetExhausted):
        mechanism(epsilon=20.0, tau=0.6).minimise(
            lambda points, example: pytest.fail("was looked at"),
            rows,
            dimension=3,
            filter=budget,
        )
    other = ApproxDPFilter(epsilon=1.5, delta=1e-6)
    with pytest.raises(ValueError, match="expected REPLACE_ONE"):
        m.minimise(linear, rows, dimension=3, filter=other)
    assert other.remaining() == 1


def test_draws_without_a_seed_differ() -> None:
    rows = [np.zeros(4)] * 10
    m = mechanism(tau=0.5)
    drawn = [m.minimise(linear, rows, dimension=4).value for _ in range(9)]
    # All equal by chance: below 1e-16.
    assert len(np.unique(drawn, axis=0)) > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0}, "epsilon=0"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"epsilon": "1"}, "epsilon='1'"),
        ({"loss_range": math.nan}, "loss_range=nan"),
        ({"lipschitz": -1.0}, "lipschitz=-1.0"),
        ({"sparsity": 0}, "sparsity=0"),
        ({"sparsity": True}, "sparsity=True"),
        ({"beta": 1.0}, "below 1"),
        ({"tau": 0.0}, "tau=0.0"),
        ({"max_net_size": 1.5}, "max_net_size=1.5"),
    ],
)
def test_nonsense_is_refused(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        mechanism(**change)


def test_bad_data_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mechanism().minimise(linear, [], dimension=3)
    with pytest.raises(TypeError, match=r"list_iterator was .* list\(data\)"):
        mechanism().minimise(linear, iter([np.zeros(3)]), dimension=3)
    with pytest.raises(ValueError, match="one number for each"):
        mechanism(tau=0.6).minimise(
            lambda points, example: 0.0, [1, 2], dimension=3
        )
    with pytest.raises(ValueError, match="read-only"):

        def spoil(points: np.ndarray, example: object) -> np.ndarray:
            points[:] = 0
            return points[:, 0]

        mechanism(tau=0.6).minimise(spoil, [1, 2], dimension=3)


def test_losses_that_warn_of_an_example_are_not_heard() -> None:
    def overflows(points, example):
        return np.log1p(np.exp(example * points[:, 0]))

    mechanism = SparseExponentialMechanism(
        epsilon=1.0, loss_range=2.0, lipschitz=1.0, sparsity=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mechanism.minimise(overflows, [1.0, 1e5], dimension=2)
