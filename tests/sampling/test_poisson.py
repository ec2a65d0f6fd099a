"""Poisson batches: exact draws, uniform places, padding and overflow."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from sampling_claims import binomial, poisson_claims_refuted, refuted

from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.sampling import PoissonSampling, is_validity_column

pytestmark = pytest.mark.once

EXAMPLES, BATCH, STEPS = 12, 3, 10_000


def seeded(sampling: PoissonSampling, data, seed: int = 0) -> tf.data.Dataset:
    with pytest.warns(PrivacyWarning, match="repeatable"):
        return sampling.dataset(data, seed=seed)


def places(sampling: PoissonSampling, seed: int = 0) -> np.ndarray:
    """Example in each slot, [steps, slots]; -1 where there is padding."""
    ids = np.arange(1, sampling.num_examples + 1)
    run = seeded(sampling, (ids,), seed).batch(sampling.num_steps)
    return next(iter(run))[0].numpy() - 1


def members(slots: np.ndarray, examples: int) -> np.ndarray:
    """Who is in the batch, [steps, examples]."""
    return (slots[:, :, None] == np.arange(examples)).any(1)


@pytest.fixture(scope="module")
def record() -> np.ndarray:
    sampling = PoissonSampling(
        num_examples=EXAMPLES, batch_size=BATCH, steps=STEPS
    )
    return places(sampling)


def test_draws_are_poisson(record):
    """Each example alone, pairs, sizes, successive steps. False failure: 4e-6.

    The right sampler passes; the next test shows what the wrong ones do.
    """
    drawn = members(record, EXAMPLES)
    assert not poisson_claims_refuted(drawn, BATCH / EXAMPLES)


def _fixed_size(rng: np.random.Generator) -> np.ndarray:
    ranks = rng.random([STEPS, EXAMPLES]).argsort(1)
    return ranks < BATCH


def _shuffled(rng: np.random.Generator) -> np.ndarray:
    per_pass = EXAMPLES // BATCH
    ranks = rng.random([STEPS // per_pass, 1, EXAMPLES]).argsort(2)
    return (ranks // BATCH == np.arange(per_pass)[:, None]).reshape(
        -1, EXAMPLES
    )


def _too_often(rng: np.random.Generator) -> np.ndarray:
    return rng.random([STEPS, EXAMPLES]) < 1.1 * BATCH / EXAMPLES


def _with_replacement(rng: np.random.Generator) -> np.ndarray:
    drawn = rng.integers(EXAMPLES, size=[STEPS, BATCH])
    return members(drawn, EXAMPLES)


def _same_twice(rng: np.random.Generator) -> np.ndarray:
    drawn = rng.random([STEPS // 2, EXAMPLES]) < BATCH / EXAMPLES
    return drawn.repeat(2, axis=0)


def _in_pairs(rng: np.random.Generator) -> np.ndarray:
    drawn = rng.random([STEPS, EXAMPLES // 2]) < BATCH / EXAMPLES
    return drawn.repeat(2, axis=1)


@pytest.mark.parametrize(
    ("sampler", "claims"),
    [
        (_fixed_size, {"pairs", "sizes"}),
        (_shuffled, {"pairs", "sizes", "consecutive"}),
        (_too_often, {"inclusion", "pairs", "sizes"}),
        (_with_replacement, {"inclusion", "pairs", "sizes"}),
        (_same_twice, {"consecutive"}),
        (_in_pairs, {"pairs", "sizes"}),
    ],
)
def test_other_samplers_are_rejected(sampler, claims):
    drawn = sampler(np.random.default_rng(0))
    assert claims <= poisson_claims_refuted(drawn, BATCH / EXAMPLES)


def _place_claims_refuted(slots: np.ndarray, examples: int, q: float) -> list:
    """Place of each example, alone and jointly with each other example's.

    `i@s` : example i is in slot s. `i@s,j@t`: and j in t. `i@s,-j`: and j was
    not drawn; with the same probability whatever s is, presence of j does not
    move i.
    """
    steps, size = slots.shape
    counts: Counter = Counter()
    claims = {}
    at = slots[:, :, None] == np.arange(examples)
    absent = ~at.any(1)
    for i in range(examples):
        for s in range(size):
            counts[f"{i}@{s}"] = at[:, s, i].sum()
            claims[f"{i}@{s}"] = q / size
            for j in set(range(examples)) - {i}:
                counts[f"{i}@{s},-{j}"] = (at[:, s, i] & absent[:, j]).sum()
                claims[f"{i}@{s},-{j}"] = q * (1 - q) / size
                for t in set(range(size)) - {s}:
                    both = at[:, s, i] & at[:, t, j]
                    counts[f"{i}@{s},{j}@{t}"] = both.sum()
                    claims[f"{i}@{s},{j}@{t}"] = q * q / (size * (size - 1))
    return refuted(counts, steps, claims)


def test_places_are_uniform_and_do_not_depend_on_others():
    """False failure: 1e-6. Packing the drawn to the front is rejected."""
    sampling = PoissonSampling(
        num_examples=4, batch_size=2, steps=8000, max_batch_size=5
    )
    slots = places(sampling)
    assert not _place_claims_refuted(slots, examples=4, q=0.5)
    packed = -np.sort(-slots, axis=1)
    assert _place_claims_refuted(packed, examples=4, q=0.5)


def test_overflow_keeps_a_uniform_part():
    """False failure: 2e-6. Keeping the first ones is rejected."""
    n = 6
    sampling = PoissonSampling(
        num_examples=n, batch_size=3, steps=6000, max_batch_size=3
    )
    slots = places(sampling)
    drawn = members(slots, n)
    sizes = np.bincount(drawn.sum(1), minlength=n + 1)
    assert sizes[4:].sum() == 0
    # Of a neighbour, which may have one example more.
    overflow = sum(binomial(n + 1, 0.5, k) for k in range(4, n + 2))
    assert sampling.overflow_probability == pytest.approx(overflow)
    claims = {str(k): binomial(n, 0.5, k) for k in range(3)}
    claims["3"] = 1 - sum(claims.values())
    assert not refuted({k: sizes[int(k)] for k in claims}, 6000, claims)

    subsets = Counter(map(tuple, drawn[drawn.sum(1) == 3]))
    full = sum(subsets.values())
    assert len(subsets) == 20
    uniform = dict.fromkeys(subsets, 1 / 20)
    assert not refuted(subsets, full, uniform)

    uncut = np.random.default_rng(0).random([6000, n]) < 0.5
    first = uncut & (uncut.cumsum(1) <= 3)
    cut = Counter(map(tuple, first[first.sum(1) == 3]))
    assert refuted(cut, sum(cut.values()), dict.fromkeys(cut, 1 / 20))


def test_padding_is_zero_and_marked():
    n = 50
    data = (
        {"id": np.arange(1, n + 1), "v": np.ones([n, 2, 3], np.float32)},
        np.arange(1, n + 1),
    )
    sampling = PoissonSampling(num_examples=n, batch_size=10, steps=20)
    for x, y, weight in sampling.dataset(data).as_numpy_iterator():
        assert weight.dtype == np.float16
        assert weight.shape == (sampling.max_batch_size,)
        valid = weight > 0
        np.testing.assert_array_equal(weight, valid.astype(np.float16))
        np.testing.assert_array_equal(y > 0, valid)
        np.testing.assert_array_equal(x["id"], y)
        np.testing.assert_array_equal(x["v"].any((1, 2)), valid)
        assert len(set(y[valid])) == valid.sum()


def test_empty_draws_are_batches_of_padding():
    """Of 200 steps each is empty with probability 0.35; none: 4e-38."""
    sampling = PoissonSampling(num_examples=10, batch_size=1, steps=200)
    batches = list(sampling.dataset((np.arange(1, 11),)).as_numpy_iterator())
    assert len(batches) == 200
    empty = [ids for ids, _, weight in batches if not weight.any()]
    assert empty
    assert all(not ids.any() for ids in empty)


def test_all_examples_in_every_step():
    sampling = PoissonSampling(num_examples=5, batch_size=5, steps=3)
    # One row to spare: a neighbour with one example more must fit as well.
    assert sampling.max_batch_size == 6
    assert sampling.overflow_probability == 0.0
    tight = dataclasses.replace(sampling, max_batch_size=5)
    assert tight.overflow_probability == 1.0
    data = (np.arange(1, 6),)
    for ids, _, weight in sampling.dataset(data).as_numpy_iterator():
        assert sorted(ids) == [0, 1, 2, 3, 4, 5]
        np.testing.assert_array_equal(weight, ids > 0)


def _ids(dataset: tf.data.Dataset) -> list[tuple[int, ...]]:
    return [tuple(ids) for ids, _, _ in dataset.as_numpy_iterator()]


LARGE = PoissonSampling(num_examples=10_000, batch_size=100, steps=3)


@pytest.mark.parametrize("seed", [None, 7])
def test_iterations_differ(seed):
    """Equal with probability far below 1e-100."""
    data = (np.arange(10_000),)
    dataset = LARGE.dataset(data) if seed is None else seeded(LARGE, data, seed)
    first, second = _ids(dataset), _ids(dataset)
    assert len({*first, *second}) == 6


def test_unseeded_data_sets_differ():
    data = (np.arange(10_000),)
    drawn = _ids(LARGE.dataset(data)) + _ids(LARGE.dataset(data))
    assert len(set(drawn)) == 6


def test_global_seeds_do_not_make_draws_repeat():
    drawn = []
    for _ in range(2):
        np.random.seed(0)
        tf.random.set_seed(0)
        drawn += _ids(LARGE.dataset((np.arange(10_000),)))
    assert len(set(drawn)) == 6


def test_seed_repeats_each_iteration_and_is_warned_of():
    data = (np.arange(10_000),)
    one, two = seeded(LARGE, data, 7), seeded(LARGE, data, 7)
    assert [_ids(one), _ids(one)] == [_ids(two), _ids(two)]
    assert _ids(seeded(LARGE, data, 8)) != _ids(seeded(LARGE, data, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LARGE.dataset(data)


def test_shapes_and_length_are_static():
    sampling = PoissonSampling(num_examples=100, batch_size=10, epochs=2)
    x = {"a": np.zeros([100, 7], np.int32), "b": np.zeros(100)}
    dataset = sampling.dataset((x, np.zeros(100, np.float32)))
    rows = sampling.max_batch_size
    x_spec, y_spec, weight_spec = dataset.element_spec
    assert x_spec["a"] == tf.TensorSpec([rows, 7], tf.int32)
    assert x_spec["b"] == tf.TensorSpec([rows], tf.float64)
    assert y_spec == tf.TensorSpec([rows], tf.float32)
    assert is_validity_column(weight_spec)
    assert len(dataset) == sampling.num_steps == 20


def test_facts():
    sampling = PoissonSampling(num_examples=1000, batch_size=50, epochs=2.5)
    assert sampling.num_steps == sampling.num_compositions == 50
    assert sampling.sampling_probability == 0.05
    assert sampling.expected_batch_size == 50.0
    assert sampling.composition_unit == "step"
    assert sampling.neighbouring_relation == "add_or_remove_one"
    assert sampling.requires_validity
    assert sampling.unit == "example"
    assert 50 < sampling.max_batch_size < 130
    assert 0 < 50 * sampling.overflow_probability <= 1e-15
    tighter = dataclasses.replace(
        sampling, max_batch_size=sampling.max_batch_size - 1
    )
    assert 50 * tighter.overflow_probability > 1e-15
    for fact in ("50 steps", "1,000 examples", "probability 0.05"):
        assert fact in sampling.description


def test_a_fraction_of_an_epoch_is_at_least_a_step():
    sampling = PoissonSampling(num_examples=10, batch_size=10, epochs=0.1)
    assert sampling.num_steps == 1


def test_more_rows_than_examples_are_allowed():
    sampling = PoissonSampling(
        num_examples=10, batch_size=2, steps=2, max_batch_size=16
    )
    (ids, _, _), *_ = sampling.dataset((np.arange(10),))
    assert ids.shape == [16]
    assert sampling.overflow_probability == 0.0


@pytest.mark.parametrize(
    "config",
    [
        {"epochs": 2},
        {"epochs": 0.5, "max_batch_size": 40},
        {"steps": np.int64(3)},
    ],
)
def test_config_round_trip(config):
    sampling = PoissonSampling(num_examples=100, batch_size=20, **config)
    again = PoissonSampling.from_config(sampling.get_config())
    assert again == sampling
    assert hash(again) == hash(sampling)
    assert again.num_steps == sampling.num_steps
    assert all(
        type(value) in (int, float, type(None))
        for value in sampling.get_config().values()
    )


def test_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LARGE.batch_size = 3
    with pytest.raises(TypeError):
        PoissonSampling(100, 10, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_examples": 0}, "num_examples is 0, expected at least 1"),
        ({"num_examples": -5}, "num_examples is -5"),
        ({"num_examples": 100.0}, "num_examples is 100.0, expected an integer"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": "10"}, "batch_size is '10'"),
        ({"batch_size": float("nan")}, "batch_size is nan"),
        ({"batch_size": 101}, "batch_size is 101, expected at most num_exa"),
        ({"epochs": None}, "exactly one"),
        ({"steps": 5}, "exactly one"),
        ({"epochs": 0}, "epochs is 0, expected a positive"),
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": float("nan")}, "epochs is nan"),
        ({"epochs": float("inf")}, "epochs is inf"),
        ({"epochs": True}, "epochs is True"),
        ({"epochs": "2"}, "epochs is '2'"),
        ({"epochs": None, "steps": 0}, "steps is 0"),
        ({"epochs": None, "steps": 1.5}, "steps is 1.5"),
        ({"max_batch_size": 9}, "max_batch_size is 9, expected at least 10"),
        ({"max_batch_size": 20.5}, "max_batch_size is 20.5"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"num_examples": 100, "batch_size": 10, "epochs": 1, **change}
    with pytest.raises((TypeError, ValueError), match=message):
        PoissonSampling(**arguments)


@pytest.mark.parametrize("seed", [-1, 0.5, "0"])
def test_bad_seed(seed):
    with pytest.raises((TypeError, ValueError), match="seed is"):
        LARGE.dataset((np.arange(10_000),), seed=seed)
