"""What a step of the bias-reduced estimator costs, by brute force.

For few examples the releases of a step are mixtures of Gaussians in three
dimensions (sums over B, O and E) and one (I), whose Rényi divergence is an
integral that can be computed.
"""

from __future__ import annotations

import dataclasses
import math
import types

import dp_accounting
import numpy as np
import pytest

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan
from tf_sparse_dp.accounting.dp_events import FailingDpEvent
from tf_sparse_dp.accounting.event_json import event_from_json, event_to_json
from tf_sparse_dp.accounting.events import check_step, parts_event, step_event
from tf_sparse_dp.accounting.filters import RenyiFilter
from tf_sparse_dp.accounting.renyi_costs import RenyiPrices

pytestmark = pytest.mark.once

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
ORDERS = (2, 3, 4)


@dataclasses.dataclass(frozen=True)
class Part:
    source_size: int
    sample_size: int
    uses: int


@dataclasses.dataclass(frozen=True)
class Step:
    parts: tuple[Part, ...] = (Part(8, 4, 2), Part(8, 1, 1))
    sampling_probability: float | None = None
    overflow_probability: float = 0.0


def claimed(noise_multiplier, *parts):
    event = parts_event(parts, noise_multiplier)
    return np.asarray(RenyiPrices(ORDERS, REPLACE).cost(event).sizes)


def log_density(points, means, weights, noise_multiplier):
    """Of a mixture of Gaussians, up to a constant."""
    found = -np.inf
    for mean, weight in zip(means, weights, strict=True):
        square = np.square(points - np.asarray(mean)).sum(-1)
        term = math.log(weight) - square / (2 * noise_multiplier**2)
        found = np.logaddexp(found, term)
    return found


def divergences(ours, theirs, weights, noise_multiplier):
    """Of the mixtures, on a grid, for all orders."""
    dims = len(ours[0])
    # What is integrated lies around α·p + (1 - α)·q for means p and q.
    reach = 2 * max(ORDERS) - 1 + 6 * noise_multiplier
    axis = np.arange(-reach, reach, noise_multiplier / 4)
    points = np.stack(np.meshgrid(*[axis] * dims, indexing="ij"), -1)
    p, q = (
        log_density(points, means, weights, noise_multiplier)
        for means in (ours, theirs)
    )
    p, q = (x - np.log(np.exp(x).sum()) for x in (p, q))
    return np.asarray(
        [np.log(np.exp(a * p + (1 - a) * q).sum()) / (a - 1) for a in ORDERS]
    )


def cost_of_batch(examples, size, noise_multiplier):
    """One example's clipped gradient of norm 1 is replaced by the opposite.

    It is in B with probability size / examples, and then in O or in E.
    """
    inside = size / examples
    means = [(1.0, 1.0, 0.0), (1.0, 0.0, 1.0)]
    weights = [inside / 2, inside / 2]
    if inside < 1:
        means, weights = [*means, (0.0, 0.0, 0.0)], [*weights, 1 - inside]
    return divergences(means, -np.asarray(means), weights, noise_multiplier)


def cost_of_one(examples, noise_multiplier):
    means = [(1.0,), (0.0,)]
    weights = [1 / examples, 1 - 1 / examples]
    return divergences(means, -np.asarray(means), weights, noise_multiplier)


@pytest.mark.parametrize(
    ("examples", "size"), [(2, 2), (3, 2), (4, 2), (4, 4), (8, 4)]
)
@pytest.mark.parametrize("noise_multiplier", [1.0, 2.5])
def test_the_account_covers_what_is_released(examples, size, noise_multiplier):
    batch = cost_of_batch(examples, size, noise_multiplier)
    assert (batch <= claimed(noise_multiplier, Part(examples, size, 2))).all()
    one = cost_of_one(examples, noise_multiplier)
    assert (one <= claimed(noise_multiplier, Part(examples, 1, 1))).all()
    if examples == size:  # Else a bound for samples is loose by a factor.
        once = claimed(noise_multiplier, Part(examples, size, 1))
        assert (batch > 1.2 * once).all()


def test_the_integral_is_right_where_it_is_known():
    """A Gaussian that moves by d has the divergence α d² / (2 σ²)."""
    found = divergences([(1.0, 0.5)], [(-1.0, 0.0)], [1.0], 2.0)
    expected = [a * 4.25 / 8 for a in ORDERS]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_three_uses_would_be_charged_too_much():
    """As the paper does: it costs half as much again without a sample."""
    two, three = (claimed(3.0, Part(4, 4, uses)) for uses in (2, 3))
    np.testing.assert_allclose(three / two, 1.5, rtol=1e-9)


def test_events_are_what_they_say_and_can_be_kept():
    event = step_event(Step(), noise_multiplier=2.0, release_failure=2.0**-100)
    assert isinstance(event, FailingDpEvent)
    batch, one = event.event.events
    assert (batch.source_dataset_size, batch.sample_size) == (8, 4)
    assert batch.event.noise_multiplier == pytest.approx(math.sqrt(2))
    assert batch.event.noise_multiplier <= math.sqrt(2)
    assert (one.sample_size, one.event.noise_multiplier) == (1, 2.0)
    assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize(
    ("step", "relation", "words"),
    [
        (Step(), "add_or_remove_one", "twice the clip norm"),
        (Step(), "zero_out", "twice the clip norm"),
        (Step(parts=()), "replace_one", "twice the clip norm"),
        (Step(sampling_probability=0.5), "replace_one", "one of them"),
        (Step(parts=(Part(4, 5, 1),)), "replace_one", "sample_size of at"),
        (Step(parts=(Part(4, 0, 1),)), "replace_one", "at least 1"),
        (Step(parts=(Part(4, 2, 0),)), "replace_one", "at least 1"),
        (Step(parts=(Part(4, 2.0, 1),)), "replace_one", "integers"),
    ],
)
def test_other_combinations_are_refused(step, relation, words):
    check_step(Step(), "replace_one")
    with pytest.raises(ValueError, match=words):
        check_step(step, relation)


def test_plans_of_filters():
    sampling = types.SimpleNamespace(
        composition_unit="step",
        num_compositions=3,
        examples_per_unit=1,
        neighbouring_relation="replace_one",
    )
    options = {
        "sampling": sampling,
        "kinds": (Step(),),
        "noise_multiplier": 20.0,
    }
    budget = RenyiFilter(epsilon=1.0, delta=1e-6, neighboring_relation=REPLACE)
    plan = AdaptivePlan(filter=budget, **options)
    assert plan.step_event(20.0).event == parts_event(Step().parts, 20.0)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        AdaptivePlan(filter=RenyiFilter(epsilon=1.0, delta=1e-6), **options)
    with pytest.raises(ValueError, match="Gaussian noise alone"):
        AdaptivePlan(filter=budget, noise="laplace", **options)
