"""Batches of users: exact draws, uniform parts, units that stay together."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from sampling_claims import poisson_claims_refuted, refuted

from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.sampling import (
    PoissonSampling,
    RandomAccess,
    UserSampling,
    is_validity_column,
)

pytestmark = pytest.mark.once

# User u has COUNTS[u] examples, which stand in the data in no order.
COUNTS = (1, 2, 3, 4, 5, 7)
USERS, PER_BATCH, MOST, STEPS = len(COUNTS), 2, 3, 10_000
Q = PER_BATCH / USERS
OWNERS = np.random.default_rng(0).permutation(
    np.repeat(np.arange(USERS), COUNTS)
)
SAMPLING = UserSampling(
    num_users=USERS,
    users_per_batch=PER_BATCH,
    examples_per_user=MOST,
    steps=STEPS,
)


def seeded(sampling, data, users, seed=0) -> tf.data.Dataset:
    with pytest.warns(PrivacyWarning, match="repeatable"):
        return sampling.dataset(data, users, seed=seed)


def units(sampling: UserSampling, owners=OWNERS, seed: int = 0) -> np.ndarray:
    """The example in each row, [steps, units, m]; -1 where there is none."""
    ids = np.arange(1, len(owners) + 1)
    run = seeded(sampling, (ids,), owners, seed).batch(sampling.num_steps)
    rows = next(iter(run))[0].numpy() - 1
    return rows.reshape(sampling.num_steps, -1, sampling.examples_per_user)


def members(record: np.ndarray) -> np.ndarray:
    """Which users are in the batch, [steps, users]."""
    owners = np.append(OWNERS, -1)[record]
    return (owners[..., None] == np.arange(USERS)).any((1, 2))


@pytest.fixture(scope="module")
def record() -> np.ndarray:
    return units(SAMPLING)


def test_users_are_drawn_as_poisson_examples_are(record):
    """False failure: 4e-6. However many examples a user has."""
    assert not poisson_claims_refuted(members(record), Q)


def test_drawing_examples_instead_of_users_is_rejected():
    """Who has many examples would be in the batch more often."""
    drawn = np.random.default_rng(0).random([STEPS, OWNERS.size]) < Q
    by_user = [drawn[:, user == OWNERS].any(1) for user in range(USERS)]
    assert "inclusion" in poisson_claims_refuted(np.stack(by_user, 1), Q)


def test_a_unit_is_one_users_and_a_user_has_one_unit(record):
    owners = np.append(OWNERS, -1)[record]
    for batch, people in zip(record[:500], owners[:500], strict=True):
        users = [set(unit) - {-1} for unit in people]
        assert all(len(user) <= 1 for user in users)
        present = [user.pop() for user in users if user]
        assert len(set(present)) == len(present)
        examples = batch[batch >= 0]
        assert len(set(examples)) == len(examples)
        counts = np.bincount(people[people >= 0], minlength=USERS)
        for user in present:
            assert counts[user] == min(COUNTS[user], MOST)


def _subsets(record: np.ndarray, user: int) -> list[tuple[int, ...]]:
    """The sorted examples of a user, in the batches in which they are."""
    theirs = np.isin(record, np.flatnonzero(user == OWNERS))
    return [
        tuple(sorted(batch[own]))
        for batch, own in zip(record, theirs, strict=True)
        if own.any()
    ]


def _subset_claims_refuted(drawn: list[tuple[int, ...]], user: int) -> list:
    theirs = np.flatnonzero(user == OWNERS).tolist()
    most = min(len(theirs), MOST)
    support = list(itertools.combinations(theirs, most))
    assert set(drawn) <= set(support)
    counts = Counter(drawn)
    return refuted(
        {str(s): counts[s] for s in support},
        len(drawn),
        dict.fromkeys(map(str, support), 1 / len(support)),
    )


@pytest.mark.parametrize("user", range(USERS))
def test_every_part_of_a_users_examples_is_equally_likely(record, user):
    """False failure: 1e-6 for each user."""
    assert not _subset_claims_refuted(_subsets(record, user), user)


def test_parts_do_not_depend_on_who_else_was_drawn(record):
    """False failure: 1e-6 for each of the tests."""
    present = members(record)
    for other in range(USERS - 1):
        for here in (True, False):
            some = record[present[:, other] == here]
            assert not _subset_claims_refuted(_subsets(some, 5), 5)


def test_parts_are_drawn_anew(record):
    """Pairs of successive draws of a user. False failure: 1e-6."""
    drawn = _subsets(record, 3)
    pairs = Counter(zip(drawn[0::2], drawn[1::2], strict=False))
    support = list(itertools.product(set(drawn), repeat=2))
    assert len(support) == 16
    trials = len(drawn) // 2
    claims = dict.fromkeys(map(str, support), 1 / 16)
    assert not refuted({str(s): pairs[s] for s in support}, trials, claims)
    same = {str(s): trials // 4 * (s[0] == s[1]) for s in support}
    assert refuted(same, trials, claims)


def test_taking_the_first_is_rejected(record):
    theirs = np.flatnonzero(OWNERS == 5)
    assert _subset_claims_refuted([tuple(theirs[:MOST])] * 1000, 5)


def _place_claims_refuted(record: np.ndarray) -> list[str]:
    """Row of each example, alone and given that another user was not drawn."""
    steps, slots, size = record.shape
    rows = record.reshape(steps, -1)
    absent = ~members(record)
    counts, claims = {}, {}
    for example, user in enumerate(OWNERS):
        p = Q * min(1, MOST / COUNTS[user]) / (slots * size)
        other = (user + 1) % USERS
        for row in range(slots * size):
            here = rows[:, row] == example
            counts[f"{example}@{row}"] = here.sum()
            claims[f"{example}@{row}"] = p
            counts[f"{example}@{row},-{other}"] = here[absent[:, other]].sum()
            claims[f"{example}@{row},-{other}"] = p * (1 - Q)
    return refuted(counts, steps, claims)


def test_places_are_uniform_and_do_not_depend_on_others(record):
    """False failure: 1e-6."""
    assert not _place_claims_refuted(record)
    order = np.argsort(-record.max(2), axis=1)
    users_in_front = np.take_along_axis(record, order[..., None], axis=1)
    assert _place_claims_refuted(users_in_front)
    examples_in_front = -np.sort(-record, axis=2)
    assert _place_claims_refuted(examples_in_front)


def test_padding_is_zero_and_marked():
    ids = np.arange(1, OWNERS.size + 1)
    data = ({"id": ids, "v": np.ones([ids.size, 2], np.float32)}, ids)
    sampling = dataclasses.replace(SAMPLING, steps=20)
    for x, y, weight in sampling.dataset(data, OWNERS).as_numpy_iterator():
        assert weight.dtype == np.float16
        assert weight.shape == (sampling.batch_rows,)
        valid = weight > 0
        np.testing.assert_array_equal(y > 0, valid)
        np.testing.assert_array_equal(x["id"], y)
        np.testing.assert_array_equal(x["v"].any(1), valid)


def test_weights_travel_with_their_examples():
    weights = np.linspace(1, 2, OWNERS.size).astype(np.float16)
    ids = np.arange(OWNERS.size)
    sampling = dataclasses.replace(SAMPLING, steps=20)
    run = sampling.dataset((ids, ids, weights), OWNERS)
    for x, _, weight in run.as_numpy_iterator():
        valid = weight > 0
        np.testing.assert_array_equal(weight[valid], weights[x[valid]])


def test_data_that_are_read_when_drawn():
    read = []

    def source(indices):
        read.extend(indices)
        assert (np.diff(indices) > 0).all()
        return indices + 1, OWNERS[indices]

    data = RandomAccess(source, num_examples=OWNERS.size, batched=True)
    sampling = dataclasses.replace(SAMPLING, steps=30)
    for x, y, weight in sampling.dataset(data, OWNERS).as_numpy_iterator():
        valid = weight > 0
        np.testing.assert_array_equal(x > 0, valid)
        np.testing.assert_array_equal(y[valid], OWNERS[x[valid] - 1])
    assert len(read) < 30 * SAMPLING.batch_rows


@pytest.mark.parametrize(
    "name",
    [
        lambda user: user,
        lambda user: 10**12 - user,
        lambda user: f"user {user}",
        lambda user: f"user {user}".encode(),
        lambda user: np.int64(user),
    ],
)
@pytest.mark.parametrize("kind", [list, np.array, tf.constant])
def test_ids_of_any_kind_name_the_same_users(name, kind):
    named = kind([name(user) for user in OWNERS])
    one = dataclasses.replace(SAMPLING, users_per_batch=1, steps=10)
    rows = units(one, named)
    for unit in rows.reshape(-1, MOST):
        assert len(set(OWNERS[unit[unit >= 0]])) <= 1
    assert (rows >= 0).any()


def test_objects_of_a_data_frame_are_ids():
    named = np.array([f"user {user}" for user in OWNERS], object)
    assert (units(dataclasses.replace(SAMPLING, steps=5), named) >= 0).any()


def test_fewer_users_than_the_bound_are_drawn_as_often():
    """False failure: 4e-6. The bound is twice the number of users."""
    sampling = UserSampling(
        num_users=2 * USERS,
        users_per_batch=2 * PER_BATCH,
        examples_per_user=MOST,
        steps=5000,
    )
    assert sampling.sampling_probability == Q
    assert not poisson_claims_refuted(members(units(sampling)), Q)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        (np.arange(OWNERS.size), "names 22 users, expected at most num_use"),
        (OWNERS[:-1], "expected 21 rows, .* the length of user_ids says"),
        (OWNERS.astype(float), "dtype float64, expected a vector of integers"),
        (OWNERS > 2, "dtype bool"),
        (OWNERS[:, None], r"shape \(22, 1\)"),
        (["a", float("nan")] * 11, "dtype object"),
        (["a", None] * 11, "dtype object"),
        (["1", 1] * 11, "dtype object"),
        (["a", "a\0"] * 11, "dtype object"),
        (np.zeros(0, int), "user_ids is empty"),
        (3, r"shape \(\)"),
        (None, r"shape \(\)"),
    ],
)
def test_bad_ids(users, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SAMPLING.dataset((np.arange(OWNERS.size),), users)


def test_a_source_of_another_length_than_the_ids():
    source = RandomAccess(lambda i: (i,), num_examples=OWNERS.size + 1)
    with pytest.raises(ValueError, match="expected 22 as the length of user_i"):
        SAMPLING.dataset(source, OWNERS)


def test_ids_are_needed():
    with pytest.raises(TypeError, match="user_ids"):
        SAMPLING.dataset((np.arange(OWNERS.size),))


def test_shapes_and_length_are_static():
    sampling = dataclasses.replace(SAMPLING, steps=7)
    x = np.zeros([OWNERS.size, 5], np.int32)
    dataset = sampling.dataset((x, np.zeros(OWNERS.size)), OWNERS)
    rows = sampling.max_users_per_batch * MOST
    x_spec, y_spec, weight_spec = dataset.element_spec
    assert x_spec == tf.TensorSpec([rows, 5], tf.int32)
    assert y_spec == tf.TensorSpec([rows], tf.float64)
    assert is_validity_column(weight_spec)
    assert weight_spec.shape == [rows]
    assert len(dataset) == 7


def test_iterations_differ():
    """Equal with probability far below 1e-100."""
    sampling = UserSampling(
        num_users=5000, users_per_batch=100, examples_per_user=2, steps=3
    )
    owners = np.arange(10_000) % 5000
    dataset = sampling.dataset((np.arange(10_000),), owners)
    drawn = [tuple(x) for _ in range(2) for x, _, _ in dataset]
    assert len({tuple(map(int, batch)) for batch in drawn}) == 6


def test_facts():
    sampling = UserSampling(
        num_users=1000, users_per_batch=50, examples_per_user=4, epochs=2.5
    )
    alike = PoissonSampling(num_examples=1000, batch_size=50, epochs=2.5)
    assert sampling.num_units == 1000
    assert sampling.examples_per_unit == 4
    assert sampling.unit == "user"
    assert sampling.max_users_per_batch == alike.max_batch_size
    assert sampling.batch_rows == 4 * alike.max_batch_size
    for fact in (
        "num_steps",
        "num_compositions",
        "sampling_probability",
        "expected_batch_size",
        "overflow_probability",
        "composition_unit",
        "neighbouring_relation",
        "requires_validity",
    ):
        assert getattr(sampling, fact) == getattr(alike, fact)
    for words in (
        "50 steps",
        "1,000 users",
        "probability 0.05",
        "at most 4 examples",
    ):
        assert words in sampling.description
    single = dataclasses.replace(sampling, examples_per_user=1)
    assert "at most 1 example, chosen" in single.description


@pytest.mark.parametrize(
    "config",
    [
        {"epochs": 2},
        {"epochs": 0.5, "max_users_per_batch": 40},
        {"steps": np.int64(3)},
    ],
)
def test_config_round_trip(config):
    sampling = UserSampling(
        num_users=100, users_per_batch=20, examples_per_user=3, **config
    )
    again = UserSampling.from_config(sampling.get_config())
    assert again == sampling
    assert hash(again) == hash(sampling)
    assert again.num_steps == sampling.num_steps
    assert all(
        type(value) in (int, float, type(None))
        for value in sampling.get_config().values()
    )


def test_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SAMPLING.num_users = 3
    with pytest.raises(TypeError):
        UserSampling(100, 10, 2, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_users": 0}, "num_users is 0, expected at least 1"),
        ({"num_users": 100.0}, "num_users is 100.0, expected an integer"),
        ({"users_per_batch": 0}, "users_per_batch is 0"),
        ({"users_per_batch": 101}, "users_per_batch is 101, expected at most"),
        ({"examples_per_user": 0}, "examples_per_user is 0"),
        ({"examples_per_user": True}, "examples_per_user is True"),
        ({"epochs": None}, "exactly one"),
        ({"steps": 5}, "exactly one"),
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": None, "steps": 0}, "steps is 0"),
        ({"max_users_per_batch": 9}, "max_users_per_batch is 9, expected at"),
        ({"max_users_per_batch": 9.5}, "max_users_per_batch is 9.5"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {
        "num_users": 100,
        "users_per_batch": 10,
        "examples_per_user": 3,
        "epochs": 1,
        **change,
    }
    with pytest.raises((TypeError, ValueError), match=message):
        UserSampling(**arguments)


@pytest.mark.parametrize("seed", [-1, 0.5, "0"])
def test_bad_seed(seed):
    with pytest.raises((TypeError, ValueError), match="seed is"):
        SAMPLING.dataset((np.arange(OWNERS.size),), OWNERS, seed=seed)
