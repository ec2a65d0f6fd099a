r"""What replicas bring into a step, brought together before noise is drawn.

$\tilde s = \sum_{k=1}^{N} s_k + \xi$: each of $N$ replicas clips the units of
its own rows and adds them up, which gives $s_k$; sums are added over replicas;
and the sum gets the noise of one step. No replica sees less than a whole unit,
so a unit is clipped as on one device, and norms need no communication.

**One release.** What comes after the sums (noise, the decision whether the
step is paid, counts, the inner optimizer's rule) runs in the strategy's
cross-replica context, once, and its result goes to all copies of a variable:
one noise draw, one count, one ledger, and copies stay equal bit by bit. A batch
that is not in order on one replica is trained on by none. (Cores of a TPU have
no such context; all of them compute the same instead: `distribute.tpu`.)

**Guarantee.** That of the mechanism on one device with the same global batch:
one unit has all its rows on one replica, moves that replica's sum by at most
the clip norm, and hence moves their sum by at most that.

**Several processes** each run that once, on sums over the replicas of all of
them and with one key: see `processes`.

**The wire.** Sums of tables travel as ids and rows, one for each lookup of the
batch, whatever the number of rows of the table; sums of other variables, and
sketches, as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_sparse_dp.distribute import processes, tpu
from tf_sparse_dp.gradients.precision import is_for_tpu

Sum: TypeAlias = "tf.Tensor | tf.IndexedSlices"
_UPDATING = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Contribution:
    """What one replica, or all of them together, bring into a step.

    Attributes:
      sums: Clipped sums, as mechanisms make them.
      free: Parts of gradients that no example influences, such as a
        regulariser's; Keras gives each replica its share of those.
      rows: Rows of the batch, int64 [replicas].
      consistent: Whether the batch is in order, bool [replicas].
      affordable: Whether one more step can be paid, bool [replicas].
      count: Compositions that were spent, int64 [replicas].
      iterations: Steps that are in the weights, int64 [replicas].
      setting: Stands for what else has to be the same in all processes, int64
        [replicas].
    """

    sums: list[Sum]
    free: list[tf.Tensor]
    rows: tf.Tensor
    consistent: tf.Tensor
    affordable: tf.Tensor
    count: tf.Tensor
    iterations: tf.Tensor
    setting: tf.Tensor

    def are_alike(self) -> tf.Tensor:
        """Whether processes agree on what must be the same in all of them."""
        facts = tf.stack([self.count, self.iterations, self.setting])
        return tf.reduce_all(facts == facts[:, :1])


_SAID = (
    *("rows", "consistent", "affordable"),
    *("count", "iterations", "setting"),
)


def count() -> int:
    """How many replicas take a step together."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def has_copies() -> bool:
    """Whether variables have a copy on each replica, be it only one."""
    mirrored = isinstance(
        tf.distribute.get_strategy(), tf.distribute.MirroredStrategy
    )
    return mirrored or processes.are_several()


def local_place() -> tuple[int, int]:
    """This replica's place among those of its process, and their number.

    Raises:
      ValueError: Outside of `strategy.run`.
    """
    if not has_copies():
        return 0, 1
    strategy = tf.distribute.get_strategy()
    place = tf.get_static_value(_context().replica_id_in_sync_group)
    number = len(strategy.extended.worker_devices)
    # Processes have equally many, numbered one process after another.
    return int(place) % number, number


def once(make: Callable[[], Any]) -> Any:
    """Runs something for all replicas of this process; all get its result."""
    if not has_copies():
        return make()

    @tf.autograph.experimental.do_not_convert
    def merge(strategy: tf.distribute.Strategy) -> Any:
        return make()

    return _context().merge_call(merge)


def one_key(draw: Callable[[], tf.Tensor]) -> tf.Tensor:
    """A key for a step, the same for all replicas.

    Args:
      draw: Gives a key, int64 [2], in each process another one.
    """
    key = once(draw)
    if not processes.are_several():
        return key
    own = local_place()[0] == 0  # For all replicas of the process.
    return processes.added([key if own else tf.zeros_like(key)])[0]


def combined(own: Contribution, proceed: Callable[[Contribution], Any]) -> Any:
    """Runs the rest of a step, once, on what all replicas bring in.

    Args:
      own: What this replica brings in.
      proceed: Is called with the sums over all replicas, and with what each
        says. One of the replicas' is called for all, so that they must not
        differ.

    Returns:
      What `proceed` returns.
    """
    if count() == 1 and not has_copies():
        return proceed(own)
    tables = [t for t in own.sums if isinstance(t, tf.IndexedSlices)]
    others = [t for t in own.sums if not isinstance(t, tf.IndexedSlices)]
    to_add = [*others, *own.free]
    said = [tf.cast(getattr(own, name), tf.int64) for name in _SAID]
    to_join = [x for t in tables for x in (t.values, t.indices)]
    to_join.append(tf.stack(said, 1))
    context = _context()
    if is_for_tpu():
        to_add = [tpu.added(value) for value in to_add]
        to_join = [tpu.joined(value) for value in to_join]
        return proceed(_together(own, to_add, to_join))
    if processes.are_several():
        to_add, to_join = processes.added(to_add), processes.joined(to_join)

    @tf.autograph.experimental.do_not_convert
    def merge(
        strategy: tf.distribute.Strategy, to_add: Any, to_join: Any
    ) -> Any:
        def parts(value: Any) -> Any:
            local = strategy.experimental_local_results(value)
            # Of several processes, each replica has all.
            return local[:1] if processes.are_several() else local

        return proceed(
            _together(
                own,
                [tf.add_n(parts(value)) for value in to_add],
                [tf.concat(parts(value), 0) for value in to_join],
            )
        )

    return context.merge_call(merge, args=(to_add, to_join))


def _together(
    own: Contribution,
    added: Sequence[tf.Tensor],
    joined: Sequence[tf.Tensor],
) -> Contribution:
    """What all replicas bring in, as `own` is what one does.

    Args:
      own: Of one of them.
      added: Dense sums, and then free parts, added over replicas.
      joined: Rows and ids of each sparse sum, and last what each replica says,
        joined over replicas.
    """
    totals = iter(added)
    *rows, said = joined
    pairs = iter(zip(rows[::2], rows[1::2], strict=True))
    sums: list[Sum] = []
    for like in own.sums:
        if isinstance(like, tf.IndexedSlices):
            shape = tf.get_static_value(like.dense_shape)
            shape = tf.constant(shape, tf.int64)
            sums.append(tf.IndexedSlices(*next(pairs), shape))
        else:
            sums.append(next(totals))
    columns = dict(zip(_SAID, tf.unstack(said, axis=1), strict=True))
    for name in ("consistent", "affordable"):
        columns[name] = columns[name] > 0
    return Contribution(sums, list(totals), **columns)


@contextlib.contextmanager
def updating_all_copies() -> Iterator[None]:
    """While it lasts, optimizers of Keras write to all copies of a variable.

    They expect to be called by each replica with its own gradients: they add
    those up, and meet in one place to update copies. Here they are in that
    place already, with one gradient for all. Both Kerases then add nothing up,
    but still ask all replicas to meet, unless the strategy says that it can do
    without.
    """
    if not has_copies():
        yield
        return
    # One at a time: threads may trace models of one strategy.
    extended = vars(tf.distribute.get_strategy().extended)
    with _UPDATING:
        before = extended.get("_use_merge_call")
        extended["_use_merge_call"] = lambda: False
        try:
            yield
        finally:
            del extended["_use_merge_call"]
            if before is not None:
                extended["_use_merge_call"] = before


def _context() -> Any:
    context = tf.distribute.get_replica_context()
    if context is None:
        raise ValueError(
            "Gradients were applied outside of the replicas; expected it to "
            "be done by each of them, with gradients of its own rows. Call "
            "apply_gradients within strategy.run."
        )
    return context
