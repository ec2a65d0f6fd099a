"""The filter in the graph never takes a step that is not paid for."""

from __future__ import annotations

import decimal
import fractions
import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting.dp_events import ApproxDpEvent, FailingDpEvent
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter
from tf_sparse_dp.optimizers.graph_divergences import step_divergence
from tf_sparse_dp.optimizers.graph_filter import PARTS, GraphFilter
from tf_sparse_dp.optimizers.step_record import StepRecord

pytestmark = [pytest.mark.once]

ORDERS = (8, 12, 20, 32)
WAYS = ("eager", "graph", "XLA")


def graph_filter(epsilon=3.0, orders=ORDERS, event_delta=1e-6, **options):
    """A filter in the graph, and the one in Python."""
    renyi = RenyiFilter(
        epsilon=epsilon,
        delta=1e-5,
        orders=orders,
        event_delta=event_delta,
        **options,
    )
    return GraphFilter(renyi), renyi


def compiled(function, way):
    if way == "eager":
        return function
    return tf.function(
        function, jit_compile=way == "XLA", reduce_retracing=False
    )


def exact_divergence(q: float, z: float, order: int, noise: str):
    """In 60 digits, from the definition as a sum over how often one is in."""
    with decimal.localcontext() as context:
        context.prec = 60
        q, z, total = decimal.Decimal(q), decimal.Decimal(z), decimal.Decimal(0)
        for k in range(order + 1):
            if noise == "gaussian":
                moment = (k * (k - 1) / (2 * z * z)).exp()
            else:
                moment = (
                    k * ((k - 1) / z).exp() + (k - 1) * (-k / z).exp()
                ) / (2 * k - 1)
            # 0 ** 0 is 1 where everybody, or nobody, is in.
            absent = (1 - q) ** (order - k) if order > k else 1
            total += math.comb(order, k) * (q**k if k else 1) * absent * moment
        return total.ln() / (order - 1)


@pytest.mark.lane
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_divergences_bound_the_truth_closely(noise, way):
    rng = np.random.default_rng(0)
    q = 10 ** rng.uniform(-6, 0, 40)
    q[0] = 1.0
    z = 10 ** rng.uniform(-1, 2, 40)
    found = compiled(lambda q, z: step_divergence(q, z, ORDERS, noise), way)(
        tf.constant(q), tf.constant(z)
    ).numpy()
    for place in range(len(q)):
        for found_one, order in zip(found[place], ORDERS, strict=True):
            exact = exact_divergence(q[place], z[place], order, noise)
            assert exact <= decimal.Decimal(found_one)
            assert found_one <= float(exact) * (1 + 1e-11)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_without_sampling_everybody_is_in(noise):
    z = tf.constant([0.5, 3.0], tf.float64)
    without = step_divergence(None, z, ORDERS, noise).numpy()
    everybody = step_divergence(tf.ones_like(z), z, ORDERS, noise).numpy()
    np.testing.assert_allclose(without, everybody, rtol=1e-12)
    exact = exact_divergence(1.0, 3.0, 8, noise)
    assert exact <= decimal.Decimal(without[1, 2])


def test_senseless_arguments_cost_everything():
    q = tf.constant([0.1, 0.1, -0.1, 1.1, np.nan], tf.float64)
    z = tf.constant([-1.0, np.nan, 1.0, 1.0, 1.0], tf.float64)
    for noise in ("gaussian", "laplace"):
        assert np.isinf(step_divergence(q, z, ORDERS, noise)).all()
        assert np.isinf(step_divergence(None, z[:2], ORDERS, noise)).all()
    free = step_divergence(tf.constant(0.0, tf.float64), 1.0, ORDERS)
    assert (free.numpy() == 0).all()


def run(way, q, z, failures):
    """Decisions of a filter over steps with these costs, and the filter."""
    budget, _ = graph_filter()

    def step(q, z, failure):
        cost = budget.step_cost(q, z, failure)
        taken = budget.decide(cost)
        budget.spend(cost, taken)
        return taken

    step = compiled(step, way)
    return [
        bool(step(*map(tf.constant, facts)))
        for facts in zip(q, z, failures, strict=True)
    ], budget


def random_steps(seed, length=60):
    rng = np.random.default_rng(seed)
    q = 10 ** rng.uniform(-2, -0.3, length)
    z = 10 ** rng.uniform(-0.1, 0.5, length)
    failures = rng.random(length) * 2e-9 * (rng.random(length) < 0.5)
    return q, z, failures


def test_never_beyond_the_budget_in_exact_arithmetic():
    q, z, failures = random_steps(0)
    decisions = {way: run(way, q, z, failures) for way in WAYS}
    _, renyi = graph_filter()
    for taken, budget in decisions.values():
        assert taken == decisions["eager"][0]
        assert 0 < sum(taken) < len(taken)
        spent = [
            sum(
                fractions.Fraction(value)
                for value, t in zip(column, taken, strict=True)
                if t
            )
            for column in (*step_divergence(q, z, ORDERS).numpy().T, failures)
        ]
        spent[-1] *= fractions.Fraction(1 + math.exp(renyi.epsilon))
        within = [
            total <= fractions.Fraction(limit)
            for total, limit in zip(
                spent, (*renyi.budgets, renyi.event_delta), strict=True
            )
        ]
        assert any(within[:-1])
        assert within[-1]
        np.testing.assert_allclose(
            budget.spent(), [float(total) for total in spent], rtol=1e-12
        )
        assert 0 <= budget.remaining() < 0.1


def test_goes_on_while_one_order_is_left():
    """Cheap at a high order first, then at a low one: neither alone lasts."""
    budget, renyi = graph_filter(orders=(12, 32))
    for shares, expected in [
        ([0.6, 0.125], True),
        ([0.6, 0.125], True),  # The first is beyond its budget for good.
        ([0.0, 0.7], True),
        ([0.0, 0.1], False),
        ([0.0, 0.0], True),
    ]:
        parts = budget.cost(shares * renyi.budgets)
        taken = budget.decide(parts)
        assert bool(taken) is expected
        budget.spend(parts, taken)
    assert budget.remaining() == pytest.approx(0.05)


def test_the_last_part_is_paid_and_one_more_is_not():
    budget, renyi = graph_filter(orders=(12,))
    limit = math.floor(renyi.budgets[0] * PARTS * (1 - 2.0**-41))
    whole = budget.cost([limit / PARTS])
    assert whole.numpy()[0] == limit
    assert bool(budget.decide(whole))
    assert not bool(budget.decide(whole + tf.constant([1, 0], tf.int64)))
    more = budget.cost([math.nextafter(limit / PARTS, np.inf)])
    assert not bool(budget.decide(more))
    budget.spend(whole, True)
    assert not bool(budget.decide(budget.cost([1e-300])))
    assert bool(budget.decide(budget.cost([0.0])))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e-3])
def test_costs_that_make_no_sense_are_refused(wrong):
    budget, _ = graph_filter()
    fine = [0.0] * len(ORDERS)
    assert bool(budget.decide(budget.cost(fine, 0.999999e-6)))
    assert not bool(budget.decide(budget.cost([wrong] * len(ORDERS), 0.0)))
    assert not bool(budget.decide(budget.cost(fine, wrong)))
    assert not bool(budget.decide(budget.cost(fine, 1.000001e-6)))


def test_without_a_charge_budget_nothing_may_be_charged():
    budget, _ = graph_filter(event_delta=0.0)
    fine = [0.0] * len(ORDERS)
    assert bool(budget.decide(budget.cost(fine, 0.0)))
    assert not bool(budget.decide(budget.cost(fine, 1e-300)))


def test_what_is_beyond_stays_there():
    budget, _ = graph_filter()
    huge = budget.cost([1e308] * len(ORDERS), 1e308)
    for _ in range(20):
        budget.spend(huge, True)
    assert np.isinf(budget.spent()).all()
    assert not bool(budget.decide(0 * huge))


@pytest.mark.parametrize("way", WAYS)
def test_tables_cost_as_much_as_python_says(way):
    budget, renyi = graph_filter()
    gaussian = dp_accounting.GaussianDpEvent(2.0)
    events = [
        dp_accounting.PoissonSampledDpEvent(0.1, gaussian),
        FailingDpEvent(gaussian, 1e-9),
        ApproxDpEvent(0.1, 1e-7),
    ]
    table = budget.table(events)
    look_up = compiled(lambda index: budget.look_up(table, index), way)
    for index, event in enumerate(events):
        divergences, charge = renyi.cost(event)
        expected = np.append(divergences, charge / renyi.event_delta) * PARTS
        cost = look_up(tf.constant(index)).numpy()
        np.testing.assert_allclose(cost, expected, rtol=1e-13, atol=1)
        assert (cost >= expected).all()
    for index in (-1, 3, 2**31 - 1):
        assert not bool(budget.decide(look_up(tf.constant(index))))
    with pytest.raises(privacy_accountant.UnsupportedEventError):
        budget.table([dp_accounting.UnsupportedDpEvent()])


def test_begins_with_what_was_spent_in_python():
    renyi = RenyiFilter(epsilon=3.0, delta=1e-5, orders=ORDERS)
    event = FailingDpEvent(dp_accounting.GaussianDpEvent(9.0), 1e-12)
    renyi.spend(event, 3)
    budget = GraphFilter(renyi)
    np.testing.assert_allclose(budget.spent()[:-1], renyi.spent, rtol=1e-12)
    assert budget.spent()[-1] == pytest.approx(3 * renyi.cost(event)[1])
    assert budget.remaining() == pytest.approx(renyi.remaining())
    before = budget.spent()
    budget.take_in()  # Not a second time.
    np.testing.assert_array_equal(budget.spent(), before)
    renyi.spend(event, 2)
    budget.take_in()
    np.testing.assert_allclose(budget.spent()[:-1], renyi.spent, rtol=1e-12)


def test_left_is_how_often_it_can_be_spent():
    budget, renyi = graph_filter()
    event = FailingDpEvent(dp_accounting.GaussianDpEvent(9.0), 1e-12)
    (cost,) = budget.table([event])
    left = budget.left(cost)
    assert left == renyi.affordable(event, 10**6) > 1
    for _ in range(left):
        assert bool(budget.decide(cost))
        budget.spend(cost, True)
    assert budget.left(cost) == 0
    assert not bool(budget.decide(cost))


def test_relations():
    relations = dp_accounting.NeighboringRelation
    zeroed, _ = graph_filter(neighboring_relation=relations.REPLACE_SPECIAL)
    assert bool(zeroed.decide(zeroed.step_cost(None, 20.0)))
    replaced, _ = graph_filter(neighboring_relation=relations.REPLACE_ONE)
    with pytest.raises(ValueError, match="twice the clip norm"):
        replaced.step_cost(None, 20.0)
    # Costs of a table are the filter's own, which count a change of 2C.
    event, quieter = map(dp_accounting.GaussianDpEvent, (20.0, 10.0))
    np.testing.assert_allclose(
        replaced.table([event]), zeroed.table([quieter]), rtol=1e-12
    )


def test_budgets_must_fit():
    with pytest.raises(ValueError, match="expected divergences below 1024"):
        graph_filter(epsilon=2000.0)


def test_single_precision_is_not_taken():
    budget, _ = graph_filter()
    with pytest.raises(ValueError, match="float64"):
        budget.cost(tf.zeros([len(ORDERS)], tf.float32), 0.0)


@pytest.mark.lane
@pytest.mark.parametrize("way", WAYS)
def test_record_lists_every_step_taken_in_order(way):
    record = StepRecord(6)

    def step(taken, q, z, failure):
        room = record.has_room()
        record.write(taken & room, q, z, failure)
        return room

    step = compiled(step, way)
    facts = [
        (True, 0.1, 1.0, 0.0),
        (True, 0.1, 1.0, 0.0),
        (False, 0.5, 1.0, 0.0),
        (True, 0.1, 2.0, 0.0),
        (True, 0.1, 1.0, 1e-30),
        (True, 0.1, 1.0, 1e-30),
        (False, 0.5, 1.0, 0.0),
        (True, 0.1, 1.0, 0.0),
        (True, 0.7, 7.0, 0.0),  # Does not fit the page any more.
        (False, 0.7, 7.0, 0.0),
    ]
    room = [
        bool(step(tf.constant(t), *(tf.constant(x, tf.float64) for x in rest)))
        for t, *rest in facts
    ]
    assert room == [True] * 8 + [False] * 2
    narrow, wide = (
        dp_accounting.PoissonSampledDpEvent(
            0.1, dp_accounting.GaussianDpEvent(z)
        )
        for z in (1.0, 2.0)
    )
    assert record.events() == [
        (narrow, 2),
        (wide, 1),
        (FailingDpEvent(narrow, 1e-30), 2),
        (narrow, 1),
    ]
    record.clear()
    assert record.events() == []
    assert bool(record.has_room())


@pytest.mark.parametrize("way", ["graph", "XLA"])
def test_record_goes_round_and_loses_nothing_that_was_not_listed(way):
    record = StepRecord(3)
    write = compiled(lambda z: record.write(True, None, z, 0.0), way)
    listed = []
    for number in range(1, 11):
        write(tf.constant(number, tf.float64))
        if number % 3 == 0:
            assert not bool(record.has_room())
            listed += record.events()
            record.clear()
            assert bool(record.has_room())
    assert [e.noise_multiplier for e, _ in listed] == list(range(1, 10))
    assert [count for _, count in listed] == [1] * 9
    record.events()
    write(tf.constant(11.0, tf.float64))
    record.clear()  # Only of what was listed.
    assert record.events() == [(dp_accounting.GaussianDpEvent(11.0), 1)]


def test_record_of_laplace_noise_without_sampling():
    record = StepRecord(2, "laplace")
    record.write(True, None, 1.5, 0.0)
    assert record.events() == [(dp_accounting.LaplaceDpEvent(1.5), 1)]
