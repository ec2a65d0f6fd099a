"""Examples that are dealt out among workers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.sampling import PoissonSampling, UserSampling
from tf_sparse_dp.sampling.batch_sizes import BatchSizes
from tf_sparse_dp.sampling.draws import Draws, _seeded_draws
from tf_sparse_dp.sampling.units import Belongings, _check_numbers
from tf_sparse_dp.sampling.workers import Share, current_share

pytestmark = [pytest.mark.once]


@pytest.mark.parametrize(("workers", "replicas"), [(1, 1), (3, 1), (2, 4)])
def test_shares_are_disjoint_and_complete(workers: int, replicas: int) -> None:
    shares = [Share(w, workers, replicas) for w in range(workers)]
    slots = np.concatenate([share.slots(48) for share in shares])
    assert sorted(slots) == list(range(48))
    examples = np.concatenate([s.examples(np.arange(5)) for s in shares])
    assert sorted(examples) == list(range(5 * workers))


@pytest.mark.parametrize(("workers", "replicas"), [(3, 1), (2, 2)])
def test_slots_are_those_that_tensorflow_deals_out(
    workers: int, replicas: int
) -> None:
    """What its automatic sharding makes of a pipeline, for each worker."""
    rows = 12
    data = tf.data.Dataset.from_tensors(tf.range(rows)).repeat(2).unbatch()
    data = data.batch(rows, drop_remainder=True)
    for worker in range(workers):
        context = tf.distribute.InputContext(
            workers, worker, workers * replicas
        )
        share = Share(worker, workers, replicas)
        dealt = _dealt_out(data, context)
        for step in (dealt[:replicas], dealt[replicas:]):
            np.testing.assert_array_equal(
                np.concatenate(step), share.slots(rows)
            )


def _dealt_out(data: Any, context: tf.distribute.InputContext) -> list[Any]:
    """The batches of each replica of a worker, as tf.distribute makes them."""
    from tensorflow.python.data.experimental.ops import distribute
    from tensorflow.python.distribute import input_ops

    workers = context.num_input_pipelines
    replicas = context.num_replicas_in_sync
    sizes = distribute.batch_sizes_for_worker(
        distribute.compute_batch_size(data),
        workers,
        replicas // workers,
        context.input_pipeline_id,
    )
    data = input_ops.auto_shard_dataset(
        data.rebatch(sizes), workers, context.input_pipeline_id, replicas
    )
    return [part.numpy() for part in data]


def test_each_worker_draws_its_own_with_the_probability_that_is_claimed() -> (
    None
):
    """Of 2,000 draws each: frequencies are within six standard deviations.

    By the normal law, one of 101 fails with probability 2e-7.
    """
    sampling = PoissonSampling(
        num_examples=101, batch_size=30, steps=2000, workers=3
    )
    assert sampling.sampling_probability == 10 / 34
    counts = np.zeros(101)
    for worker in range(3):
        draws = _seeded_draws(7, worker)
        share = Share(worker, 3)
        own = set(share.slots(sampling.max_batch_size))
        for _ in range(2000):
            drawn, slots = sampling.draw(draws, share)
            assert set(drawn % 3) <= {worker}
            assert len(drawn) == len(set(drawn)) == len(set(slots))
            assert set(slots) <= own
            counts[drawn] += 1
    q = sampling.sampling_probability
    off = (counts - 2000 * q) / np.sqrt(2000 * q * (1 - q))
    assert np.abs(off).max() < 6


def test_overflow_is_charged_for_all_workers() -> None:
    alone = PoissonSampling(num_examples=1000, batch_size=120, steps=50)
    four = PoissonSampling(
        num_examples=1000, batch_size=120, steps=50, workers=4
    )
    # Each has its own spare rows, so that there are more of them.
    assert four.max_batch_size % 4 == 0
    assert four.max_batch_size > alone.max_batch_size
    assert 50 * four.overflow_probability <= 1e-15
    tight = PoissonSampling(
        num_examples=1000,
        batch_size=120,
        steps=50,
        workers=4,
        max_batch_size=160,
    )
    each = BatchSizes(num_examples=250, batch_size=30)
    assert tight.overflow_probability == 4 * each.overflow_probability(40)


def test_users_are_dealt_out_whole() -> None:
    sampling = UserSampling(
        num_users=9,
        users_per_batch=4,
        examples_per_user=2,
        steps=3,
        workers=2,
    )
    # A user who is not there leaves a number empty: nobody moves.
    users = np.repeat([0, 1, 2, 4, 5, 6, 7, 8], 3)
    belongings = Belongings(users, 9, numbered=True)
    for worker, _ in itertools.product(range(2), range(50)):
        examples, rows = sampling._draw(Draws(), belongings, Share(worker, 2))
        assert set(users[examples] % 2) <= {worker}
        half = sampling.batch_rows // 2
        assert set(rows // half) <= {worker}
    assert "2 workers draw" in sampling.description
    for wrong in (users - 1, users + 1, users.astype(str)):
        with pytest.raises(ValueError, match="dealt out among workers"):
            _check_numbers(wrong, 9)


def test_what_cannot_be_dealt_out() -> None:
    given: Any = {"num_examples": 100, "steps": 2, "workers": 3}
    with pytest.raises(ValueError, match="multiple of workers=3"):
        PoissonSampling(batch_size=10, **given)
    with pytest.raises(ValueError, match="max_batch_size is 32"):
        PoissonSampling(batch_size=12, max_batch_size=32, **given)
    sampling = PoissonSampling(batch_size=12, **given)
    with pytest.raises(ValueError, match="no strategy with several workers"):
        sampling.dataset((np.zeros(100),))
    assert current_share() == Share()


def test_config_says_it_only_of_several() -> None:
    """State that was saved before there were workers fits still."""
    for workers in (1, 2):
        sampling = PoissonSampling(
            num_examples=100, batch_size=10, steps=2, workers=workers
        )
        config = sampling.get_config()
        assert ("workers" in config) == (workers > 1)
        assert PoissonSampling.from_config(config) == sampling
        assert sampling.with_compositions(3).workers == workers
