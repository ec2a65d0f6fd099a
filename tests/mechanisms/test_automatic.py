"""The automatic mechanism decides from public facts, and says why."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.mechanisms.public_facts import facts
from tf_sparse_dp.mechanisms import (
    Automatic,
    Gaussian,
    Laplace,
    Mechanism,
    Projection,
    Threshold,
)
from tf_sparse_dp.mechanisms.interface import Sum

pytestmark = pytest.mark.once


def table(rows: int, width: int = 16) -> tf.IndexedSlices:
    return tf.IndexedSlices(
        tf.zeros([0, width]),
        tf.zeros([0], tf.int64),
        tf.constant([rows, width], tf.int64),
    )


@pytest.mark.parametrize(
    ("sums", "lookups", "batch_size", "expected"),
    [
        ([tf.zeros([1000, 1000])], None, 1e3, Gaussian),
        ([table(1_000)], 1, 1e3, Gaussian),
        ([table(10_000_000)], 1, 1e3, Projection),
        ([table(10_000_000)], None, 1e3, Threshold),
        # The same tables, beside a step that does more.
        ([table(100_000)], 1, 1e3, Projection),
        ([table(100_000)], 1, 1e5, Gaussian),
        # Two small tables, of which projection would draw most rows.
        ([table(53_424, 9), table(10_000, 9)], 1, 4096, Gaussian),
        ([table(100_000), tf.zeros([1000, 1000])], 1, 1e6, Gaussian),
    ],
)
def test_choice(
    sums: list[Sum],
    lookups: int | None,
    batch_size: float,
    expected: type[Mechanism],
) -> None:
    public = facts(sums, 1.0, lookups=lookups, expected_batch_size=batch_size)
    chosen, reason = Automatic().choice(public)
    assert isinstance(chosen, expected)
    assert Automatic().resolved(public) == chosen
    assert reason
    assert ("docs/training.md" in reason) == (expected is not Gaussian)


@pytest.mark.parametrize(
    ("lookups", "expected"),
    [
        (2, Projection(geometry="coordinates", noise="laplace")),
        (None, Laplace()),
    ],
)
def test_laplace(lookups: int | None, expected: Mechanism) -> None:
    sums = [table(1000), tf.zeros([3])]
    public = facts(sums, 1.0, lookups=lookups)
    mechanism = Automatic(noise="laplace")
    chosen, reason = mechanism.choice(public)
    assert chosen == expected
    assert chosen.noise_family == mechanism.noise_family == "laplace"
    assert mechanism.event(2.0) == chosen.event(2.0)
    assert "Laplace" in reason


def test_the_chosen_mechanism_releases() -> None:
    sums = [table(1_000_000)]
    public = facts(sums, 1.0, lookups=1)
    key = tf.constant([3, 4], tf.int64)
    (released,) = Automatic().release(sums, key, public)
    (expected,) = Projection().release(sums, key, public)
    assert isinstance(released, tf.IndexedSlices)
    tf.debugging.assert_equal(released.values, expected.values)
    tf.debugging.assert_equal(released.indices, expected.indices)


def test_config_round_trip() -> None:
    assert Automatic(**Automatic().get_config()) == Automatic()
