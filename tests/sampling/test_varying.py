"""Poisson batches of several expected sizes: exact given the size."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from sampling_claims import poisson_claims_refuted, refuted

from tf_sparse_dp.accounting import PrivacyPlan
from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.sampling import (
    EpochSampling,
    PoissonSampling,
    UserSampling,
    VaryingPoissonSampling,
    is_validity_column,
    kind_of,
    step_kinds,
)
from tf_sparse_dp.sampling.draws import fresh_draws

pytestmark = pytest.mark.once

EXAMPLES, SIZES, WEIGHTS = 12, (3, 6), (3, 1)
SAMPLING = VaryingPoissonSampling(
    num_examples=EXAMPLES, batch_sizes=SIZES, weights=WEIGHTS, steps=12_000
)


@pytest.fixture(scope="module")
def record():
    """Place of each step's size, and who was in the batch."""
    draws = next(fresh_draws(0))
    places, members = [], np.zeros([SAMPLING.steps, EXAMPLES], bool)
    for step in range(SAMPLING.steps):
        place, drawn, slots = SAMPLING.draw(draws)
        assert len(set(slots)) == len(drawn)
        assert max(slots, default=0) < SAMPLING.max_batch_sizes[place]
        places.append(place)
        members[step, drawn] = True
    return np.array(places), members


def test_sizes_are_drawn_with_their_weights(record):
    """False failure: 1e-6. Equal weights are rejected."""
    places, _ = record
    counts = {"0": (places == 0).sum(), "1": (places == 1).sum()}
    assert not refuted(counts, len(places), {"0": 0.75, "1": 0.25})
    assert refuted(counts, len(places), {"0": 0.5, "1": 0.5})


def test_draws_are_poisson_given_the_size(record):
    """False failure: 8e-6. Taken together they are of no one probability."""
    places, members = record
    for place, size in enumerate(SIZES):
        drawn = members[places == place]
        assert not poisson_claims_refuted(drawn, size / EXAMPLES)
    mean = np.dot(SIZES, WEIGHTS) / sum(WEIGHTS) / EXAMPLES
    assert "pairs" in poisson_claims_refuted(members, mean)


def test_the_next_size_does_not_depend_on_who_was_drawn(record):
    """False failure: 1e-6. A size that follows the first example is found."""
    places, members = record

    def dependent(following):
        counts, claims = {}, {}
        for i in range(EXAMPLES):
            # Disjoint pairs of steps, so that trials are independent.
            before = members[:-1:2, i] & (places[:-1:2] == 0)
            counts[str(i)] = (before & (following == 1)).sum()
            claims[str(i)] = 0.75 * SIZES[0] / EXAMPLES * 0.25
        return refuted(counts, len(following), claims)

    assert not dependent(places[1::2])
    assert dependent(np.where(members[:-1:2, 0], 1, places[1::2]))


def test_batches_tell_their_size_by_their_rows():
    sampling = VaryingPoissonSampling(
        num_examples=500, batch_sizes=(10, 40), steps=30
    )
    ids = np.arange(1, 501)
    seen = set()
    data = ({"id": ids, "v": np.ones([500, 2])}, ids)
    for x, y, weight in sampling.dataset(data):
        kind = sampling.step(len(weight))
        seen.add(kind.rows)
        valid = weight.numpy() > 0
        assert weight.dtype == tf.float16
        np.testing.assert_array_equal(x["id"].numpy() > 0, valid)
        np.testing.assert_array_equal(y, x["id"])
        np.testing.assert_array_equal(x["v"].numpy().any(1), valid)
        # Within 8 standard deviations, far from the other size's.
        bound = 8 * kind.expected_batch_size**0.5
        assert abs(valid.sum() - kind.expected_batch_size) < bound
    assert seen == set(sampling.max_batch_sizes)  # Else: 2e-9.


def test_specs_leave_the_rows_open_and_tell_the_length():
    dataset = SAMPLING.dataset((np.zeros([EXAMPLES, 7], np.int32),))
    spec, _, weight = dataset.element_spec
    assert spec == tf.TensorSpec([None, 7], tf.int32)
    assert is_validity_column(weight)
    assert len(dataset) == SAMPLING.num_steps


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_finds_its_kind_by_the_rows(compiled):
    sampling = VaryingPoissonSampling(
        num_examples=500, batch_sizes=(10, 40, 90), steps=3
    )
    kinds = step_kinds(sampling)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float32)],
        jit_compile=compiled,
    )
    def place(batch):
        return kind_of(tf.shape(batch)[0], kinds)

    for expected, rows in enumerate(sampling.max_batch_sizes):
        assert int(place(tf.zeros([rows]))) == expected
        assert sampling.step(rows) is kinds[expected]
    for rows in (0, 1, 10, 40):
        assert int(place(tf.zeros([rows]))) == -1
        with pytest.raises(ValueError, match=f"has {rows} rows, expected"):
            sampling.step(rows)


def test_facts_are_those_of_poisson_sampling():
    sampling = VaryingPoissonSampling(
        num_examples=1000, batch_sizes=(50, 200), steps=70
    )
    for size, kind in zip((50, 200), sampling.step_kinds, strict=True):
        poisson = PoissonSampling(num_examples=1000, batch_size=size, steps=70)
        assert step_kinds(poisson) == (kind,)
        assert kind.sampling_probability == size / 1000
        assert kind.overflow_probability == poisson.overflow_probability > 0
    for fact in ("0.05, 0.2", "1,000 examples"):
        assert fact in sampling.description
    assert sampling.requires_validity
    assert sampling.num_units == 1000


@pytest.mark.parametrize(
    "sampling",
    [
        EpochSampling(num_examples=12, batch_size=5, epochs=1),
        UserSampling(
            num_users=9, users_per_batch=3, examples_per_user=2, steps=1
        ),
    ],
)
def test_other_samplings_have_one_kind_of_step(sampling):
    (kind,) = step_kinds(sampling)
    assert kind.rows == sampling.batch_rows
    assert kind.sampling_probability == sampling.sampling_probability
    assert kind.expected_batch_size == sampling.expected_batch_size
    for rows in (kind.rows, 1):
        fits = kind.rows in (None, rows)
        assert int(kind_of(rows or 5, [kind])) == (0 if fits else -1)


def test_few_examples_still_give_different_rows():
    sampling = VaryingPoissonSampling(
        num_examples=5, batch_sizes=(2, 3, 5), steps=10
    )
    assert len(set(sampling.max_batch_sizes)) == 3
    assert min(sampling.max_batch_sizes) == 6
    assert all(k.overflow_probability == 0 for k in sampling.step_kinds)


def test_a_plan_refuses_it_and_names_filters():
    with pytest.raises(TypeError, match="VaryingPoissonSampling, are for filt"):
        PrivacyPlan(epsilon=1.0, delta=1e-6, sampling=SAMPLING)


def test_config_round_trip():
    config = SAMPLING.get_config()
    again = VaryingPoissonSampling.from_config(config)
    assert again == SAMPLING and hash(again) == hash(SAMPLING)
    # Configs come back from JSON with lists.
    listed = {
        k: list(v) if k != "steps" else v
        for k, v in config.items()
        if k != "num_examples"
    }
    assert VaryingPoissonSampling(num_examples=EXAMPLES, **listed) == SAMPLING
    assert dataclasses.replace(SAMPLING, steps=3).step_kinds[0].rows == (
        SAMPLING.step_kinds[0].rows
    )


def test_seed_repeats_and_is_warned_of():
    sampling = dataclasses.replace(SAMPLING, steps=20)
    runs = []
    for seed in (7, 7, 8):
        with pytest.warns(PrivacyWarning, match="repeatable"):
            dataset = sampling.dataset((np.arange(EXAMPLES),), seed=seed)
        runs.append([tuple(ids.numpy()) for ids, *_ in dataset])
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_sizes": ()}, "batch_sizes is .*, expected a tuple"),
        ({"batch_sizes": 10}, "batch_sizes is 10, expected a tuple"),
        ({"batch_sizes": (10, 10)}, "expected numbers that all differ"),
        ({"batch_sizes": (10, 200)}, "batch_size is 200, expected at most"),
        ({"batch_sizes": (10, 0)}, "one of batch_sizes is 0"),
        ({"batch_sizes": (10, 2.5)}, "one of batch_sizes is 2.5"),
        ({"weights": (1,)}, "expected one number for each"),
        ({"weights": (1, 0)}, "one of weights is 0"),
        ({"weights": (0.5, 0.5)}, "one of weights is 0.5"),
        ({"max_batch_sizes": (60, 60)}, "expected numbers that all differ"),
        ({"max_batch_sizes": (60, 10)}, "max_batch_size is 10, expected at le"),
        ({"steps": 0}, "steps is 0"),
        ({"num_examples": -1}, "num_examples is -1"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {
        "num_examples": 100,
        "batch_sizes": (10, 20),
        "steps": 5,
        **change,
    }
    with pytest.raises((TypeError, ValueError), match=message):
        VaryingPoissonSampling(**arguments)
