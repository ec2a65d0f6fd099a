"""The filter in the graph decides as the one in Python, step for step."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.accounting.dp_events import FailingDpEvent
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter
from tf_sparse_dp.optimizers.graph_filter import PARTS, GraphFilter, added

pytestmark = [pytest.mark.once]

SEQUENCES, LENGTH, EVENTS = 10_000, 5, 1_000
CLOSE = 1e-12


def new_filter() -> RenyiFilter:
    return RenyiFilter(epsilon=3.0, delta=1e-5, event_delta=1e-6)


def event_of(kind, q, z, failure):
    if kind == "laplace":
        return dp_accounting.LaplaceDpEvent(z)
    event = dp_accounting.GaussianDpEvent(z)
    if kind == "gaussian":
        return event
    event = dp_accounting.PoissonSampledDpEvent(q, event)
    return FailingDpEvent(event, failure) if kind == "failing" else event


class Steps:
    """Random events, and random sequences of them that outlast a budget."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.kinds = rng.choice(
            ["gaussian", "poisson", "laplace", "failing"], EVENTS
        )
        self.q = rng.uniform(0.05, 0.9, EVENTS)
        sampled = np.isin(self.kinds, ["poisson", "failing"])
        self.z = rng.uniform(2.0, 6.0, EVENTS) * np.where(sampled, self.q, 1)
        self.z = np.maximum(self.z, 0.8)
        self.failure = np.where(
            self.kinds == "failing", rng.random(EVENTS) * 2e-8, 0.0
        )
        self.order = rng.integers(EVENTS, size=[SEQUENCES, LENGTH])
        self.events = [
            event_of(*facts)
            for facts in zip(
                self.kinds.tolist(),
                self.q.tolist(),
                self.z.tolist(),
                self.failure.tolist(),
                strict=True,
            )
        ]

    def costs(self, budget: GraphFilter) -> tf.Tensor:
        """What all events cost, computed from tensors."""
        z, failure = tf.constant(self.z), tf.constant(self.failure)
        plain = budget.step_cost(None, z)
        costs = {
            "gaussian": plain,
            "laplace": budget.step_cost(None, z, noise="laplace"),
            "poisson": budget.step_cost(tf.constant(self.q), z),
            "failing": budget.step_cost(tf.constant(self.q), z, failure),
        }
        for kind, cost in costs.items():
            plain = tf.where((self.kinds == kind)[:, np.newaxis], cost, plain)
        return plain


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps()


@pytest.fixture(scope="module")
def in_python(steps):
    """Decisions, and what was spent in the end."""
    prices = new_filter()._prices  # Shared, for it remembers.
    taken = np.zeros([SEQUENCES, LENGTH], bool)
    spent = []
    for sequence in range(SEQUENCES):
        renyi = new_filter()
        renyi._prices = prices
        for step, place in enumerate(steps.order[sequence].tolist()):
            event = steps.events[place]
            # What `spend` does, but for keeping books, which takes long.
            if renyi._fits(event, 1):
                renyi._maybe_compose(event, 1, True)
                taken[sequence, step] = True
        spent.append(renyi.spent)
    return taken, np.array(spent)


def in_graph(steps, *, jit_compile, affords=None):
    renyi = new_filter()
    budget = GraphFilter(renyi)
    affords = affords or GraphFilter.affords

    @tf.function(jit_compile=jit_compile)
    def run(order):
        costs = steps.costs(budget)
        spent = tf.zeros([SEQUENCES, costs.shape[-1]], tf.int64)
        decisions = []
        for step in range(LENGTH):
            after = added(spent, tf.gather(costs, order[:, step]))
            taken = affords(budget, after)
            spent = tf.where(taken[:, tf.newaxis], after, spent)
            decisions.append(taken)
        return tf.stack(decisions, 1), spent

    taken, spent = run(tf.constant(steps.order))
    return taken.numpy(), spent.numpy()[:, :-1] / PARTS


@pytest.mark.parametrize("jit_compile", [False, True])
def test_decisions_and_sums_agree(steps, in_python, jit_compile):
    expected, expected_spent = in_python
    taken, spent = in_graph(steps, jit_compile=jit_compile)
    # Many are refused at the end, and some are taken after one was refused.
    assert 0.2 < expected.mean() < 0.8
    assert (expected[:, 1:] & ~expected[:, :-1]).sum() > 100
    np.testing.assert_array_equal(taken, expected)
    np.testing.assert_allclose(spent, expected_spent, rtol=CLOSE)


def test_a_filter_that_stops_at_the_first_order_is_found(steps, in_python):
    def too_strict(budget, parts):
        return tf.reduce_all(parts <= tf.constant(budget._limits), -1)

    taken, _ = in_graph(steps, jit_compile=False, affords=too_strict)
    assert (taken != in_python[0]).sum() > 100


def one_step(budget, table, jit_compile):
    @tf.function(jit_compile=jit_compile)
    def step(index):
        cost = budget.look_up(table, index)
        taken = budget.decide(cost)
        budget.spend(cost, taken)
        return taken

    return step


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_filter_itself_agrees_too(steps, in_python, jit_compile):
    """As above, but through the variables that a step uses."""
    taken, spent = in_python
    for sequence in range(3):
        renyi = new_filter()
        budget = GraphFilter(renyi)
        table = budget.table(
            [steps.events[place] for place in steps.order[sequence]]
        )

        step = one_step(budget, table, jit_compile)
        found = [bool(step(tf.constant(index))) for index in range(LENGTH)]
        assert found == taken[sequence].tolist()
        np.testing.assert_allclose(
            budget.spent()[:-1], spent[sequence], rtol=CLOSE
        )
