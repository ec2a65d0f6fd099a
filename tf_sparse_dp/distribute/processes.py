r"""What processes that train together tell each other in a step.

Each process of a `MultiWorkerMirroredStrategy` traces the same step, for its
own replicas. What has to be one for all is made one by collective operations:

**One key.** $k = \sum_p k_p \bmod 2^{64}$, of keys that each process draws from
its operating system: uniform if a single one of them is, and fresh whatever
was restarted. With the same sums and the same key, all release the same.

**One sum, one decision.** Clipped sums are added, ids and rows of tables are
put one after another, and so is what each replica says of its part of the
batch, of what was spent, and of what it can pay. All processes then reckon with
the same numbers: the step is taken by all or by none.

**Nothing but that.** Counts, steps in the weights, clip norm, noise, mechanism
and sampling are compared in every step. Where they differ, none is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def are_several() -> bool:
    """Whether the strategy in scope is made for several processes."""
    return isinstance(
        tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy
    )


def added(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums over all replicas of all processes, in one operation a type."""
    context = tf.distribute.get_replica_context()
    return _packed(
        tensors,
        lambda packed: context.all_reduce(tf.distribute.ReduceOp.SUM, packed),
        lambda total, like: tf.reshape(total[0], like.shape),
    )


def joined(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Rows of all replicas of all processes, in one operation a type.

    Replicas must have equally many; if not, all of them fail.
    """
    context = tf.distribute.get_replica_context()
    own = tf.stack([tf.size(tensor) for tensor in tensors])[tf.newaxis]
    equal = tf.debugging.assert_equal(
        context.all_gather(own, 0),
        own,
        "Replicas have different numbers of rows of one batch; expected as "
        "many on each. Give batches a number of rows that is fixed, and a "
        "multiple of the number of replicas.",
    )
    with tf.control_dependencies([equal]):
        tensors = [tf.identity(tensor) for tensor in tensors]
    return _packed(
        tensors,
        lambda packed: context.all_gather(packed, 0),
        lambda parts, like: tf.reshape(parts, [-1, *like.shape[1:]]),
    )


def _packed(
    tensors: Sequence[tf.Tensor],
    exchange: Callable[[tf.Tensor], tf.Tensor],
    unpacked: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> list[tf.Tensor]:
    """Exchanges tensors as one vector for each type."""
    results: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [i for i, t in enumerate(tensors) if t.dtype == dtype]
        own = [tf.reshape(tensors[i], [-1]) for i in places]
        sizes = tf.stack([tf.size(vector) for vector in own])
        packed = exchange(tf.concat(own, 0))
        packed = tf.reshape(packed, [-1, tf.reduce_sum(sizes)])
        for place, parts in zip(
            places, tf.split(packed, sizes, 1, num=len(own)), strict=True
        ):
            results[place] = unpacked(parts, tensors[place])
    return [results[place] for place in range(len(tensors))]


def numbers(number: int, strategy: tf.distribute.Strategy) -> list[int]:
    """Numbers that all replicas of all processes give at the same time."""

    @tf.function(autograph=False)
    def gather() -> Any:
        own = tf.constant([number], tf.int64)
        return strategy.run(lambda: joined([own])[0])

    return strategy.experimental_local_results(gather())[0].numpy().tolist()
