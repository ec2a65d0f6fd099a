"""The noise that the rows of a table still lack."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import tensorflow as tf

from tf_sparse_dp.compiled.kernels import can_do, with_room
from tf_sparse_dp.compiled.normals import with_normals
from tf_sparse_dp.gradients.effects import PENDING_NOISE
from tf_sparse_dp.gradients.internals import is_compiled
from tf_sparse_dp.random_keys import KeyStream
from tf_sparse_dp.random_tails import normal

# Steps from one commit of all rows to the next, at most. 8 bytes each.
_CAPACITY = 2**16
# Numbers that are drawn at a time when all rows get their noise.
_CHUNK = 2**20
_PATIENCE = 3.0  # Seconds without a word.


class PendingNoise:
    r"""How much noise every row of a table is owed, and what draws it.

    Step $t$ owes every entry of the table Gaussian noise of standard deviation
    $\sigma_t$. A row that lacks the noise of steps $s, \dots, t - 1$ lacks one
    Gaussian number per entry of variance $\sum_{u=s}^{t-1} \sigma_u^2 = V_t -
    V_s$: that is all that is ever drawn for them, and it is drawn once. Kept
    are the last step per row (int32) and the sums $V$ (float64: differences of
    float32 sums would be too small late in training).

    Args:
      table: The variable, [rows, width], float32.
      capacity: For how many steps at least the sums $V$ are kept; when they
        are used up, all rows get their noise, which moves the window on.
      seed: For tests only: makes the noise reproducible, hence not secret.
    """

    def __init__(
        self,
        table: tf.Variable,
        *,
        capacity: int = _CAPACITY,
        seed: int | None = None,
    ):
        self._handle = table.handle
        self._rows, self._width = table.shape
        # Places in a ring whose size is a power of two need no division.
        self._capacity = capacity = 1 << (capacity - 1).bit_length()
        if capacity < 2:
            raise ValueError(
                f"capacity={capacity} was given; expected 2 or more."
            )
        self._keys = KeyStream(seed)
        self._drawing: dict[int | None, Any] = {}  # By the number of ids.
        with tf.init_scope(), tf.device(table.device):
            # The first step whose noise a row lacks.
            self._first = _variable(tf.zeros([self._rows], tf.int32))
            self._sums = _variable(tf.zeros([capacity], tf.float64))
            self._step = _variable(tf.constant(0))
            # No row lacks noise of steps before this one, whatever `_first`.
            self._base = _variable(tf.constant(0))
            self._grid = _variable(tf.constant(0.0))

    @property
    def exists(self) -> tf.Tensor:
        """Whether any row may lack noise."""
        return tf.convert_to_tensor(self._step) > self._base

    @property
    def variance(self) -> tf.Tensor:
        """Variance of all noise so far, drawn or not, per entry; float64."""
        return self._sum(tf.convert_to_tensor(self._step))

    def owe(self, stddev: tf.Tensor | float) -> list[Any]:
        """One more step: every entry is owed noise of this size.

        Returns:
          What has to be done before that is written whose noise it is.
        """
        stddev = tf.cast(stddev, tf.float64)
        full = self._step - self._base >= self._capacity - 1
        room = tf.cond(
            full, self._draw_all, lambda: tf.constant(False), name=PENDING_NOISE
        )
        with tf.control_dependencies([room]):
            step = tf.identity(self._step)
            place = self._place(step + 1)
            total = _sum_up(self._sum(step), stddev**2)
            before = tf.identity(self._grid)
        finer = _grid(tf.cast(stddev, tf.float32))
        # A step without noise, as of a rate of 0, says nothing of others' grid.
        ruling = (finer > 0) & ((before == 0) | (finer < before))
        grid = tf.where(ruling, finer, before)
        summed = tf.raw_ops.ResourceScatterUpdate(
            resource=self._sums.handle, indices=[place], updates=[total]
        )
        ruled = self._grid.assign(grid, read_value=False)
        with tf.control_dependencies(_done(summed, ruled)):
            return _done(self._step.assign_add(1, read_value=False))

    def draw(self, ids: tf.Tensor) -> tf.Tensor:
        """Gives rows the noise that they lack; ids may repeat.

        Returns:
          A tensor that is there when they have it.
        """
        ids = tf.cast(tf.reshape(ids, [-1]), tf.int64)
        if tf.executing_eagerly():
            return self._draw_now(ids) if self.exists else tf.constant(False)
        return tf.cond(
            self.exists,
            lambda: self._draw_traced(ids),
            lambda: tf.constant(False),
            name=PENDING_NOISE,
        )

    def draw_all(self) -> tf.Tensor:
        """Gives all rows the noise that they lack."""
        if not tf.executing_eagerly():
            return tf.cond(
                self.exists,
                self._draw_all,
                lambda: tf.constant(False),
                name=PENDING_NOISE,
            )
        if self.exists:
            ready, step = _Ready(self._rows), self._step.numpy()
            for begin in range(0, self._rows, self._chunk):
                end = min(begin + self._chunk, self._rows)
                self._draw_now(tf.range(begin, end, dtype=tf.int64))
                ready.tell(end)
            self._base.assign(step)
        return tf.constant(True)

    def _draw_now(self, ids: tf.Tensor) -> tf.Tensor:
        """Draws in one call, which Ctrl-C cannot cut short, traced once."""
        most = ids.shape[0]
        # Else for any number of ids: tracing takes longer than it would save.
        if most is None or not can_do(most * self._width):
            most = None
        if most not in self._drawing:
            # Not by the function itself: many tables would be taken for
            # retracing.
            function = tf.function(self._draw, autograph=False)
            with tf.init_scope():  # Also if the first to call it is a graph.
                self._drawing[most] = function.get_concrete_function(
                    tf.TensorSpec([most], tf.int64)
                )
        return self._drawing[most](ids)

    def only_if_none(self, values: tf.Tensor) -> tf.Tensor:
        """Values that were read, for graphs that cannot draw any noise.

        Where rows lack noise these fail, and give NaN where they cannot fail:
        XLA leaves assertions out.
        """
        check = tf.debugging.assert_equal(
            self._step,
            self._base,
            "A function that was made to be exported, or that a tf.data "
            "pipeline runs, looks up rows that still lack their noise. Draw it "
            "first, with LazyEmbedding.draw_noise(); PrivacyBudget() does so "
            "before evaluation.",
        )
        with tf.control_dependencies(_done(check)):
            nothing = tf.constant(math.nan, values.dtype)
            return tf.where(self.exists, nothing, values)

    def forget(self) -> None:
        """For a table whose values have just been replaced by others."""
        step = tf.identity(self._step)
        total, grid = self._sum(step), tf.identity(self._grid)
        # A learning rate that was no number is forgotten as well.
        tf.raw_ops.ResourceScatterUpdate(
            resource=self._sums.handle,
            indices=[self._place(step)],
            updates=[tf.where(tf.math.is_finite(total), total, 0.0)],
        )
        self._grid.assign(tf.where(tf.math.is_finite(grid), grid, 0.0))
        self._base.assign(step)

    @property
    def _chunk(self) -> int:
        return max(1, min(self._rows, _CHUNK // self._width))

    def _draw_all(self) -> tf.Tensor:
        chunk, count = self._chunk, math.ceil(self._rows / self._chunk)
        step = tf.identity(self._step)

        def body(number: tf.Tensor) -> tuple[tf.Tensor]:
            # The last chunk overlaps the one before: all have the same size.
            begin = tf.minimum(number * chunk, self._rows - chunk)
            ids = tf.cast(begin + tf.range(chunk), tf.int64)
            with tf.control_dependencies([self._draw_traced(ids)]):
                return (number + 1,)

        (number,) = tf.while_loop(
            lambda number: number < count, body, (tf.constant(0),)
        )
        with tf.control_dependencies([number]):
            based = self._base.assign(step, read_value=False)
        with tf.control_dependencies(_done(based)):
            return tf.constant(True)

    def _draw_traced(self, ids: tf.Tensor) -> tf.Tensor:
        """Draws in a graph."""
        # XLA takes other operations.
        if is_compiled(tf.compat.v1.get_default_graph()):
            return self._draw(ids)
        return self._draw_now(ids)

    def _draw(self, ids: tf.Tensor) -> tf.Tensor:
        most = ids.shape[0]
        ids, places = _distinct(ids, self._rows)
        step = tf.identity(self._step)
        noisy = self._noisy(ids, places, most, step)
        # Noise that is drawn twice is too much noise; noise that counts as
        # drawn and was not written would be a breach.
        with tf.control_dependencies([noisy]):
            written = tf.raw_ops.ResourceScatterUpdate(
                resource=self._handle, indices=ids, updates=noisy
            )
        with tf.control_dependencies(_done(written)):
            marked = tf.raw_ops.ResourceScatterUpdate(
                resource=self._first.handle,
                indices=ids,
                updates=tf.fill(tf.shape(ids), step),
            )
        with tf.control_dependencies(_done(marked)):
            return tf.constant(True)

    def _noisy(
        self,
        ids: tf.Tensor,
        places: tf.Tensor | None,
        most: int | None,
        step: tf.Tensor,
    ) -> tf.Tensor:
        """Rows with the noise that they lack, on the grid.

        Args:
          ids: Which rows.
          places: Of whose numbers each row gets a copy; None: all their own.
          most: How many rows there can be, if that is known.
          step: The step now.
        """
        key, grid = self._keys.next(), tf.identity(self._grid)
        count = tf.shape(ids)[0]

        def of_size(size: int) -> tf.Tensor:
            padded = tf.pad(ids, [[0, size - count]])
            padded = tf.ensure_shape(padded, [size])
            rows, *sums = self._lacking(padded, step)
            stddev = _stddev(*sums)
            return with_normals(_with_noise, rows, key, stddev, grid)[:count]

        if most and self._width % 2 == 0 and can_do(most * self._width):
            return with_room(count, most, of_size)
        numbers = normal([count, self._width], key)
        if places is not None:
            numbers = tf.gather(numbers, places)
        rows, *sums = self._lacking(ids, step)
        return _with_noise(rows, numbers, _stddev(*sums), grid)

    def _lacking(
        self, ids: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Rows as they are, and the sums where their noise starts and stops."""
        rows = tf.raw_ops.ResourceGather(
            resource=self._handle, indices=ids, dtype=tf.float32
        )
        first = tf.maximum(tf.gather(self._first, ids), self._base)
        return rows, self._sum(first), self._sum(step)

    def _sum(self, step: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._sums, self._place(step))

    def _place(self, step: tf.Tensor) -> tf.Tensor:
        return tf.bitwise.bitwise_and(step, self._capacity - 1)


class _Ready:
    """Says how far it is, once that has taken a while.

    Args:
      rows: How many there are.
    """

    def __init__(self, rows: int):
        self._rows = rows
        self._told = time.monotonic()

    def tell(self, row: int) -> None:
        if time.monotonic() < self._told + _PATIENCE:
            return
        self._told = time.monotonic()
        line = f"drawing pending noise: {row / self._rows:.0%} of all rows"
        sys.stderr.write(line + "\n")


def _done(*operations: Any) -> list[Any]:
    """What to wait for: nothing where all is done one by one."""
    return [operation for operation in operations if operation is not None]


def _variable(value: tf.Tensor) -> tf.Variable:
    return tf.Variable(value, trainable=False)


def _distinct(ids: tf.Tensor, rows: int) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The ids without repetition; or, for XLA, sorted.

    For sorted ids also where each of them first stands.
    """
    # XLA, which may compile parts of any graph, reads the nearest row for an id
    # that there is not, and writes none.
    ids = tf.clip_by_value(ids, 0, rows - 1)
    if not is_compiled(tf.compat.v1.get_default_graph()):
        return tf.unique(ids)[0], None
    ids = tf.sort(ids)
    count = tf.shape(ids)[0]
    new = tf.concat([[0], tf.cast(ids[1:] != ids[:-1], tf.int32)], 0)
    number = tf.cumsum(new)[:count]
    firsts = tf.math.unsorted_segment_min(tf.range(count), number, count)
    return ids, tf.gather(firsts, number)


def _sum_up(total: tf.Tensor, more: tf.Tensor) -> tf.Tensor:
    """A sum from which, less the total, there remains what was added.

    Else a small step after many large ones would add nothing, and its noise
    would never be drawn.
    """
    added = total + more
    if is_compiled(tf.compat.v1.get_default_graph()):
        # Enough also for pairs of float32 numbers, which TPUs have for float64,
        # and too much by a part in 2²⁸ after all the steps that are kept.
        above = added * (1 + 2.0**-44)
    else:
        above = tf.math.nextafter(added, tf.constant(math.inf, added.dtype))
    return tf.where(added - total < more, above, added)


def _grid(stddev: tf.Tensor) -> tf.Tensor:
    """A power of two near stddev/4096: its exponent, without its digits."""
    exponent = tf.bitcast(stddev, tf.int32) & 0x7F800000
    grid = tf.bitcast(exponent, tf.float32) * 2.0**-12
    # Numbers that are divided by a smaller one would be infinite.
    return tf.where(grid > 0, tf.maximum(grid, 2.0**-100), grid)


def _stddev(start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
    """Of the noise from one variance to another; a column."""
    return tf.cast(tf.sqrt(stop - start), tf.float32)[:, tf.newaxis]


def _with_noise(
    values: tf.Tensor, numbers: tf.Tensor, stddev: tf.Tensor, grid: tf.Tensor
) -> tf.Tensor:
    """Values with noise, on the grid: `mechanisms.grid` says what for."""
    # Without noise, one so fine that all values but tiny ones are on it.
    scale = tf.where(grid > 0, grid, 2.0**-60)
    return tf.round((values + stddev * numbers) / scale) * scale
