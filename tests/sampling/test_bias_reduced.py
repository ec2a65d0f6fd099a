"""Batches of the bias-reduced estimator: who is drawn, and what it claims."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from sampling_claims import refuted

from tf_sparse_dp.accounting import PrivacyPlan
from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.sampling import (
    BiasReducedSampling,
    DrawnPart,
    RandomAccess,
    TruncatedGeometric,
    is_validity_column,
    kind_of,
)
from tf_sparse_dp.sampling.draws import fresh_draws

pytestmark = pytest.mark.once

EXAMPLES, STEPS = 9, 30_000
SAMPLING = BiasReducedSampling(num_examples=EXAMPLES, steps=STEPS)


@pytest.fixture(scope="module")
def record():
    """N of each step, and its batch."""
    draws = next(fresh_draws(0))
    return [SAMPLING.draw(draws) for _ in range(STEPS)]


@pytest.mark.parametrize("largest", [0, 1, 5, 62])
def test_probabilities_halve_and_add_up(largest):
    law = TruncatedGeometric(largest)
    assert sum(law.probabilities) == 1
    assert law.scale == 1 / (2 * (1 - Fraction(1, 2 ** (largest + 1))))
    for k, p in enumerate(law.probabilities):
        assert p == law.scale / 2**k


def test_every_draw_has_exactly_its_probability():
    """All outcomes of the uniform integer, gone through."""

    class Fixed:
        def __init__(self, value):
            self.value = value

        def below(self, bound):
            assert bound == 15
            return self.value

    law = TruncatedGeometric(3)
    found = [law.draw(Fixed(value)) for value in range(15)]
    assert [found.count(k) for k in range(4)] == [8, 4, 2, 1]


@pytest.mark.parametrize("wrong", [-1, 63])
def test_levels_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="largest is"):
        TruncatedGeometric(wrong)


def levels_refuted(levels):
    claims = dict(enumerate(map(float, SAMPLING.law.probabilities)))
    counts = {k: (levels == k).sum() for k in claims}
    return refuted(counts, len(levels), claims)


def test_levels_follow_their_law(record):
    """False failure: 1e-6. Levels of equal chances are rejected."""
    levels = np.array([level for level, _ in record])
    assert not levels_refuted(levels)
    assert levels_refuted(np.arange(len(levels)) % 3)


def batches_of(record, level):
    return np.stack([batch for n, batch in record if n == level])


def order_refuted(batches):
    """Whether ordered pairs, and the last one, are not uniform.

    Each pair of places in B shows each ordered pair of examples equally
    often; so O and E are a uniform partition, whatever B is.
    """
    *_, width = batches.shape
    pair = 1 / (EXAMPLES * (EXAMPLES - 1))
    counts, claims = {}, {}
    for a, b in itertools.permutations(range(width - 1), 2):
        for x, y in itertools.permutations(range(EXAMPLES), 2):
            event = (a, b, x, y)
            both = (batches[:, a] == x) & (batches[:, b] == y)
            counts[event], claims[event] = both.sum(), pair
    for a, x, y in itertools.product(
        range(width - 1), range(EXAMPLES), range(EXAMPLES)
    ):
        event = ("I", a, x, y)
        both = (batches[:, a] == x) & (batches[:, -1] == y)
        counts[event], claims[event] = both.sum(), EXAMPLES**-2
    return refuted(counts, len(batches), claims)


@pytest.mark.parametrize("level", [0, 1])
def test_batches_are_uniform_in_order_and_the_last_is_independent(
    record, level
):
    """False failure: 1e-6 each. Wrong variants are found out."""
    batches = batches_of(record, level)
    assert batches.shape[1] == 2 ** (level + 1) + 1
    assert all(len(set(batch[:-1])) == len(batch) - 1 for batch in batches)
    assert not order_refuted(batches)
    in_order = batches.copy()
    in_order[:, :-1].sort(axis=1)  # O would be the smaller examples.
    assert order_refuted(in_order)
    apart = batches[[batch[-1] not in batch[:-1] for batch in batches]]
    assert order_refuted(apart)  # I must be free to be in B.


def test_sets_are_uniform(record):
    """False failure: 1e-6."""
    batches = np.sort(batches_of(record, 1)[:, :-1], axis=1)
    sets = list(itertools.combinations(range(EXAMPLES), 4))
    counts = {s: (batches == s).all(1).sum() for s in sets}
    claims = dict.fromkeys(sets, 1 / math.comb(EXAMPLES, 4))
    assert not refuted(counts, len(batches), claims)


def test_pipelines_give_the_rows_in_order():
    sampling = BiasReducedSampling(num_examples=40, steps=12)
    ids = np.arange(40)
    seen = set()
    for x, y, weight in sampling.dataset(({"id": ids}, 2 * ids)):
        seen.add(len(weight))
        assert is_validity_column(weight)
        assert (weight.numpy() == 1).all()
        np.testing.assert_array_equal(y, 2 * x["id"].numpy())
        assert len(set(x["id"].numpy()[:-1])) == len(weight) - 1
    assert seen <= {3, 5, 9, 17, 33}


def test_seeds_repeat_and_warn_and_sources_are_read_in_order():
    sampling = BiasReducedSampling(num_examples=40, steps=8)
    asked = []

    def source(indices):
        asked.append(indices)
        return (indices.astype(np.float32),)

    with pytest.warns(PrivacyWarning):
        plain = sampling.dataset((np.arange(40, dtype=np.float32),), seed=3)
    access = RandomAccess(source, num_examples=40, batched=True)
    with pytest.warns(PrivacyWarning):
        read = sampling.dataset(access, seed=3)
    for one, other in zip(plain, read, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    assert all((np.diff(indices) > 0).all() for indices in asked)


def test_facts():
    sampling = BiasReducedSampling(num_examples=1000, steps=7)
    assert sampling.largest == 8
    kinds = sampling.step_kinds
    assert [kind.rows for kind in kinds] == [2 ** (k + 1) + 1 for k in range(9)]
    for k, kind in enumerate(kinds):
        assert int(kind_of(2 ** (k + 1) + 1, kinds)) == k
        assert kind.sampling_probability is None
        assert kind.expected_batch_size == 1.0
        assert kind.parts == (
            DrawnPart(source_size=1000, sample_size=2 ** (k + 1), uses=2),
            DrawnPart(source_size=1000, sample_size=1, uses=1),
        )
    assert sampling.neighbouring_relation == "replace_one"
    assert sampling.requires_validity
    assert sampling.num_units == 1000
    config = sampling.get_config()
    assert BiasReducedSampling.from_config(config) == sampling
    for n, largest in ((2, 0), (3, 0), (4, 1), (7, 1), (8, 2), (1024, 9)):
        found = BiasReducedSampling(num_examples=n, steps=1).largest
        assert found == largest


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_examples": 1}, ValueError),
        ({"num_examples": 8.0}, TypeError),
        ({"steps": 0}, ValueError),
        ({"largest": 3}, ValueError),
        ({"largest": -1}, ValueError),
        ({"largest": 1.0}, TypeError),
    ],
)
def test_wrong_arguments_are_refused(changes, error):
    arguments = {"num_examples": 8, "steps": 1, "largest": 2}
    BiasReducedSampling(**arguments)
    with pytest.raises(error):
        BiasReducedSampling(**arguments | changes)


def test_plans_refuse_it():
    with pytest.raises(TypeError, match="for filters"):
        PrivacyPlan(
            noise_multiplier=1.0,
            delta=1e-5,
            sampling=BiasReducedSampling(num_examples=8, steps=1),
        )


def test_shapes_are_open():
    dataset = SAMPLING.dataset((np.zeros([EXAMPLES, 7], np.int32),))
    spec, _, _ = dataset.element_spec
    assert spec == tf.TensorSpec([None, 7], tf.int32)
    assert len(dataset) == STEPS
