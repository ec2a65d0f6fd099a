"""The bias-reduced estimate: its parts, its weights, its noise."""

from __future__ import annotations

import dataclasses
import itertools

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests.mechanisms.contract import CLIP_NORM, KEY, Batch, dense
from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp import private_mean
from tf_sparse_dp.mechanisms import (
    BiasReduction,
    CompressedSensing,
    Gaussian,
    Laplace,
    Projection,
    Threshold,
)
from tf_sparse_dp.mechanisms.interface import Variable
from tf_sparse_dp.sampling import TruncatedGeometric

pytestmark = pytest.mark.once

INNER = [Projection(), CompressedSensing(measurements=20), Gaussian()]


def batch_of(examples: Batch, chosen) -> Batch:
    """The rows of a batch, out of those of all examples."""
    return dataclasses.replace(
        examples,
        ids=examples.ids[chosen],
        values=examples.values[chosen],
        dense=examples.dense[chosen],
    )


def facts_of(batch: Batch, level, levels, noise_multiplier=0.0, **others):
    return batch.facts(
        noise_multiplier,
        expected_batch_size=1.0,
        levels=levels,
        level=tf.constant(level),
        **others,
    )


def estimate(mechanism, batch, facts, key=KEY):
    valid = tf.ones([batch.units], bool)
    terms = batch.terms(*batch.inputs)
    sums = mechanism.clipped(terms, key, facts, valid=valid)
    return [dense(total) for total in mechanism.release(sums, key, facts)]


def clipped_mean(examples: Batch, chosen) -> list[np.ndarray]:
    terms = examples.dense_terms()
    total = [np.zeros_like(part) for part in terms[0]]
    for i in chosen:
        norm = np.sqrt(sum(np.square(part).sum() for part in terms[i]))
        for place, part in enumerate(terms[i]):
            total[place] += part * min(1.0, CLIP_NORM / norm) / len(chosen)
    return total


@pytest.mark.parametrize("inner", INNER, ids=lambda i: type(i).__name__)
def test_without_noise_it_is_the_gradient_of_the_last_example(inner):
    """Whatever N is: B, O and E cancel, draw by draw."""
    examples = Batch.random(12, size=1.0)
    rng = np.random.default_rng(0)
    for level in range(3):
        chosen = rng.permutation(12)[: 2 ** (level + 1) + 1]
        batch = batch_of(examples, chosen)
        found = estimate(
            BiasReduction(inner), batch, facts_of(batch, level, levels=3)
        )
        expected = clipped_mean(examples, chosen[-1:])
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-6)


def test_the_four_sums_are_those_of_the_parts():
    examples = Batch.random(9, size=1.0)
    examples.dense[3] = np.nan  # Counts as zero.
    facts = facts_of(examples, 2, levels=4)
    valid = tf.constant([True] * 6 + [False] + [True] * 2)
    sums = BiasReduction(Gaussian()).clipped(
        examples.terms(*examples.inputs), KEY, facts, valid=valid
    )
    parts = [(0, 1, 2, 4, 5, 7), (0, 1, 2), (4, 5, 7), (8,)]
    for place, part in enumerate(parts):
        found = sums[3 * place : 3 * place + 3]
        expected = clipped_mean(examples, part)
        for one, two in zip(found, expected, strict=True):
            if isinstance(one, tf.IndexedSlices):
                one = tf.convert_to_tensor(one)
            np.testing.assert_allclose(one, len(part) * two, atol=1e-6)


def telescoped(mechanism, examples, law):
    """The mean of the estimate over all draws, each with its probability."""
    n, total = examples.units, 0.0
    for level, p in enumerate(law.probabilities):
        size = 2 ** (level + 1)
        orders = list(itertools.permutations(range(n), size))
        # Given B, I is any example: all of them come equally often.
        for number, order in enumerate(orders):
            batch = batch_of(examples, [*order, number % n])
            facts = facts_of(batch, level, len(law.probabilities))
            found = estimate(mechanism, batch, facts)[1]
            total += float(p) / len(orders) * found
    return total


def test_it_telescopes_to_the_largest_batch(monkeypatch):
    """With an inner mechanism that is biased, by more for small batches."""
    examples = Batch.random(4, size=0.05)
    law = TruncatedGeometric(1)

    def biased(self, sums, key, facts):
        return [
            tf.convert_to_tensor(s) + 3 * tf.square(s) / facts.units + 1.0
            if not isinstance(s, tf.IndexedSlices)
            else s
            for s in sums
        ]

    monkeypatch.setattr(Gaussian, "release", biased)
    whole = sum(np.asarray(examples.dense, float))
    largest = (whole + 3 * whole**2 / 4 + 1) / 4
    found = telescoped(BiasReduction(Gaussian()), examples, law)
    np.testing.assert_allclose(found, largest, atol=1e-6)
    # Weights of another law do not telescope.
    monkeypatch.setattr(
        TruncatedGeometric, "scale", property(lambda self: 0.55)
    )
    wrong = telescoped(BiasReduction(Gaussian()), examples, law)
    assert np.abs(wrong - largest).max() > 1e-2


@pytest.mark.parametrize("level", [0, 2])
def test_noise_is_that_of_four_independent_releases(level):
    """False failure: 1e-6."""
    units = 2 ** (level + 1) + 1
    batch = Batch.random(units)
    batch = dataclasses.replace(
        batch, dense=np.zeros([units, 65_536], "float32"), numbers=False
    )
    facts = facts_of(batch, level, 3, noise_multiplier=2.0)
    noise = estimate(BiasReduction(Gaussian()), batch, facts)[1]
    weight = float(1 / (2 * TruncatedGeometric(2).scale))
    variance = (2.0 * CLIP_NORM) ** 2 * (3 * weight**2 + 1)
    # A mean of 65,536 squares is within 2.9 percent of 1 but for 1e-6.
    ratio = np.mean(np.square(noise)) / variance
    assert FALSE_ALARM >= 1e-6 and abs(ratio - 1) < 0.03


def test_each_part_is_projected_by_its_own_size():
    """Given the size in the step, or beforehand: the same projection."""
    batch = Batch.random(16, (5000, 4), size=1.0)
    known = batch.facts(expected_batch_size=16.0)
    exact = dataclasses.replace(known, failure_probability=0.0)
    told = dataclasses.replace(
        exact, expected_batch_size=512.0, part_size=tf.constant(16.0)
    )
    projection = Projection()
    sums = projection.clipped(batch.terms(*batch.inputs), KEY, known)
    for one, two in zip(
        projection.release(sums, KEY, exact),
        projection.release(sums, KEY, told),
        strict=True,
    ):
        np.testing.assert_array_equal(dense(one), dense(two))
    # With sizes fixed for the largest batch, the ball is that of this one.
    for size in (1.0, 16.0, 512.0):
        fixed = dataclasses.replace(
            known, expected_batch_size=512.0, part_size=tf.constant(size)
        )
        table, _, numbers = projection.release(sums, KEY, fixed)
        length = sum(
            np.linalg.norm(dense(t).reshape([5000, -1]), axis=1).sum()
            for t in (table, numbers)
        )
        assert length < CLIP_NORM * np.sqrt(6) * size * 1.01


def test_tables_stay_sparse_and_rows_come_once():
    batch = Batch.random(9, (300_000, 4), size=1.0)
    batch = dataclasses.replace(batch, numbers=False)
    facts = facts_of(batch, 2, 4, noise_multiplier=5.0)
    mechanism = BiasReduction(Projection())
    sums = mechanism.clipped(
        batch.terms(*batch.inputs), KEY, facts, valid=tf.ones([9], bool)
    )
    table, _ = mechanism.release(sums, KEY, facts)
    assert isinstance(table, tf.IndexedSlices)
    ids = table.indices.numpy()
    assert 0 < len(ids) < 20_000 and (np.diff(ids) > 0).all()
    assert table.values.numpy().any(1).all()


@pytest.mark.parametrize("inner", INNER, ids=lambda i: type(i).__name__)
def test_config_round_trip(inner):
    mechanism = BiasReduction(inner)
    again = BiasReduction.from_config(mechanism.get_config())
    assert again == mechanism
    assert again.description == mechanism.description
    assert again.event(0.7) == dp_accounting.GaussianDpEvent(0.7)


@pytest.mark.parametrize(
    ("inner", "error", "words"),
    [
        (Threshold(), TypeError, "expected Projection"),
        (Laplace(), TypeError, "expected Projection"),
        (BiasReduction(), TypeError, "expected Projection"),
        ("auto", TypeError, "expected Projection"),
        (
            Projection(geometry="coordinates", noise="laplace"),
            ValueError,
            "expected Gaussian noise",
        ),
    ],
)
def test_other_mechanisms_inside_are_refused(inner, error, words):
    with pytest.raises(error, match=words):
        BiasReduction(inner)


def test_other_batches_are_refused():
    batch = Batch.random(3)
    terms = batch.terms(*batch.inputs)
    mechanism = BiasReduction()
    valid = tf.ones([3], bool)
    with pytest.raises(ValueError, match="not drawn by BiasReducedSampling"):
        mechanism.clipped(terms, KEY, batch.facts(), valid=valid)
    with pytest.raises(ValueError, match="not drawn by BiasReducedSampling"):
        mechanism.check(batch.facts())
    with pytest.raises(ValueError, match="no validity column"):
        mechanism.clipped(terms, KEY, facts_of(batch, 0, 2))
    with pytest.raises(ValueError, match="not drawn by BiasReducedSampling"):
        private_mean(
            np.eye(50, dtype="float32"),
            epsilon=1.0,
            delta=1e-5,
            clip_norm=1.0,
            mechanism=mechanism,
        )
    ragged = dataclasses.replace(
        facts_of(batch, 0, 2),
        variables=(Variable(shape=(50, 4), sparse=True),),
    )
    with pytest.raises(ValueError, match="is not known for the table"):
        mechanism.check(ragged)
