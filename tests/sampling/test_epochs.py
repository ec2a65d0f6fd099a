"""The user's own batches: facts, and the convenience data set."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tf_sparse_dp.sampling import EpochSampling

pytestmark = [pytest.mark.once, pytest.mark.lane]


def test_facts():
    sampling = EpochSampling(num_examples=1001, batch_size=100, epochs=3)
    assert sampling.steps_per_pass == 11
    assert sampling.num_steps == 33
    assert sampling.max_batch_size == 100
    assert sampling.expected_batch_size == 100.0
    assert sampling.sampling_probability is None
    assert sampling.overflow_probability == 0.0
    assert sampling.num_compositions == 3
    assert sampling.composition_unit == "pass"
    assert sampling.neighbouring_relation == "zero_out"
    assert not sampling.requires_validity
    assert sampling.unit == "example"
    for fact in ("3 passes", "1,001 examples", "at most one batch"):
        assert fact in sampling.description


@pytest.mark.parametrize(("n", "b"), [(10, 3), (10, 5), (10, 10), (1, 1)])
def test_each_example_once_in_a_pass(n, b):
    sampling = EpochSampling(num_examples=n, batch_size=b, epochs=2)
    dataset = sampling.dataset((np.arange(n), np.arange(n)))
    assert len(dataset) == sampling.steps_per_pass
    for _ in range(sampling.epochs):
        batches = [x for x, _ in dataset.as_numpy_iterator()]
        assert sorted(np.concatenate(batches)) == list(range(n))
        assert [len(x) for x in batches[:-1]] == [b] * (len(batches) - 1)


def test_facts_of_units():
    sampling = EpochSampling(
        num_examples=60, batch_size=12, epochs=2, examples_per_unit=3
    )
    assert sampling.num_units == 20
    assert sampling.expected_batch_size == 4.0
    assert sampling.steps_per_pass == 5
    assert sampling.unit == "unit"
    assert sampling.requires_validity
    assert sampling.batch_rows is None
    assert "each of 20 units of 3 consecutive examples" in sampling.description
    single = dataclasses.replace(sampling, epochs=1)
    assert "in one pass, each of 20 units" in single.description
    assert EpochSampling.from_config(sampling.get_config()) == sampling


@pytest.mark.parametrize(("n", "b", "m"), [(12, 6, 3), (10, 4, 2), (6, 6, 6)])
def test_units_stay_together(n, b, m):
    sampling = EpochSampling(
        num_examples=n, batch_size=b, epochs=1, examples_per_unit=m
    )
    batches = []
    for x, y, weight in sampling.dataset((np.arange(n), np.zeros(n))):
        assert y.shape == x.shape
        assert weight.dtype.name == "float16"
        np.testing.assert_array_equal(weight, np.ones(len(x)))
        batches.append(x)
    assert [len(x) for x in batches[:-1]] == [b] * (len(batches) - 1)
    rows = np.concatenate(batches).reshape(-1, m)
    np.testing.assert_array_equal(rows - rows[:, :1], [range(m)] * (n // m))
    assert sorted(rows[:, 0]) == list(range(0, n, m))


def test_units_are_shuffled():
    """In order by chance: less than 1e-100."""
    sampling = EpochSampling(
        num_examples=400, batch_size=200, epochs=1, examples_per_unit=2
    )
    first, _ = (x for x, _, _ in sampling.dataset((np.arange(400),)))
    assert set(first.numpy()) != set(range(200))


def test_shape_is_static_where_batches_are_even():
    even = EpochSampling(num_examples=10, batch_size=5, epochs=1)
    uneven = EpochSampling(num_examples=10, batch_size=4, epochs=1)
    assert even.dataset((np.arange(10),)).element_spec[0].shape == [5]
    spec = uneven.dataset((np.arange(10),)).element_spec[0]
    assert spec.shape.as_list() == [None]


def test_passes_are_shuffled_anew_and_seeds_repeat():
    """Equal by chance: less than 1e-100."""
    sampling = EpochSampling(num_examples=1000, batch_size=100, epochs=1)
    data = (np.arange(1000),)

    def passes(seed):
        dataset = sampling.dataset(data, seed=seed)
        return [
            [tuple(x) for (x,) in dataset.as_numpy_iterator()] for _ in range(2)
        ]

    first, second = passes(None)
    assert first != second
    assert passes(5) == passes(5)
    assert passes(5)[0] != passes(5)[1]
    assert passes(5) != passes(6)


def test_config_round_trip():
    sampling = EpochSampling(num_examples=10, batch_size=5, epochs=np.int64(2))
    assert EpochSampling.from_config(sampling.get_config()) == sampling
    assert {type(v) for v in sampling.get_config().values()} == {int}
    with pytest.raises(dataclasses.FrozenInstanceError):
        sampling.epochs = 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_examples": 0}, "num_examples is 0"),
        ({"batch_size": 11}, "batch_size is 11, expected at most"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"epochs": 1.5}, "epochs is 1.5, expected an integer"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": None}, "epochs is None"),
        ({"examples_per_unit": 0}, "examples_per_unit is 0"),
        ({"examples_per_unit": 1.0}, "examples_per_unit is 1.0"),
        ({"examples_per_unit": 3}, "num_examples is 10, expected a multiple"),
        ({"examples_per_unit": 2}, "batch_size is 5, expected a multiple of"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"num_examples": 10, "batch_size": 5, "epochs": 1, **change}
    with pytest.raises((TypeError, ValueError), match=message):
        EpochSampling(**arguments)
