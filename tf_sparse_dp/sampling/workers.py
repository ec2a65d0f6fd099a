"""Examples that are dealt out among workers, each of which draws its own.

Processes that train together have randomness of their own. If each drew from
all examples, one example could be in the parts of two of them, and count twice
in one step. So example i is worker (i mod W)'s, in every step; and the pipeline
of a worker has no other examples, whatever is done with it. All workers must
mean the same example by i: they compare digests of their data.

A worker's pipeline gives out batches of all rows, since `tf.distribute` cuts
batches into parts for all replicas; the rows of others are padding.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

_ROWS = 2**16  # At a time.


@dataclasses.dataclass(frozen=True)
class Share:
    """What of examples, and of rows of a batch, is one worker's.

    Attributes:
      worker: Its number, from 0.
      workers: How many there are.
      replicas: How many each of them has.
    """

    worker: int = 0
    workers: int = 1
    replicas: int = 1

    def examples(self, places: np.ndarray) -> np.ndarray:
        """The examples at places of the worker's list."""
        return places * self.workers + self.worker

    def slots(self, rows: int) -> np.ndarray:
        """The rows of a batch that `tf.distribute` gives to the worker.

        A batch is cut into a part for each replica; of these, the first goes
        to the first worker, the second to the second, and so on in turns.
        """
        parts = np.arange(rows).reshape(self.replicas, self.workers, -1)
        return parts[:, self.worker].ravel()


ALL = Share()


def own_share(workers: int, slots: int) -> Share:
    """The share of this process in what so many workers draw.

    Args:
      workers: How many the sampling has.
      slots: How many units a batch has room for.

    Raises:
      ValueError: If that is not the number of workers of the strategy that is
        in scope, or its replicas cannot share the batch.
    """
    share = current_share()
    if share.workers == workers:
        parts = workers * share.replicas
        if slots % parts:
            raise ValueError(
                f"A batch has room for {slots} units, which {parts} replicas "
                f"cannot share evenly; expected a multiple of {parts}, such as "
                f"{-(-slots // parts) * parts}."
            )
        return share
    if share.workers == 1:
        found = "no strategy with several workers is in scope"
    else:
        found = f"the strategy in scope has {share.workers} workers"
    raise ValueError(
        f"The sampling has workers={workers}, but {found}. Make the sampling "
        "with workers= the number of processes that train together (1 by "
        "default), and call dataset(...) in the scope of their "
        "tf.distribute.MultiWorkerMirroredStrategy: each process then draws "
        "examples of its own."
    )


def check_same(columns: Iterable[np.ndarray]) -> None:
    """Compares data with those of all other workers, who do the same.

    Raises:
      ValueError: In all of them, if they are not the same.
    """
    strategy = tf.distribute.get_strategy()
    digest = hashlib.blake2b(digest_size=8)
    for column in columns:
        digest.update(f"{column.dtype.str} {column.shape}".encode())
        for first in range(0, len(column), _ROWS):
            digest.update(column[first : first + _ROWS].tobytes())
    number = np.frombuffer(digest.digest(), np.int64)

    @tf.function(autograph=False)
    def gather() -> Any:
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_gather(
                tf.constant(number), 0
            )
        )

    if np.any(strategy.experimental_local_results(gather())[0] != number):
        raise ValueError(
            "The data that dataset(...) was given are not the same in all "
            "workers, or not in the same order; then two of them could draw "
            "one example in one step. Expected all examples, in one order, in "
            "every worker, each of which draws among its own. Shuffle with a "
            "seed that all have, and sort lists of files; or pass RandomAccess "
            "to read no more than what is drawn."
        )


def current_share() -> Share:
    """The share of this process by the strategy that is in scope."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return ALL
    local = strategy.experimental_local_results(
        strategy.experimental_distribute_values_from_function(
            lambda context: context.replica_id_in_sync_group
        )
    )
    # Processes have equally many replicas, numbered one after another.
    return Share(
        int(local[0]) // len(local),
        strategy.num_replicas_in_sync // len(local),
        len(local),
    )


def dealt_out(workers: int) -> str:
    """For the statement, after "expected"."""
    if workers == 1:
        return ""
    return f"; {workers} workers draw, each among examples of its own"
