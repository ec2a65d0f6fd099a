"""Random matrices that measure a table by fewer rows than it has.

A matrix A of m rows is applied to each column of a table [rows, k]. It is
never stored: a public key stands for it, and everybody with that key has the
same matrix. Measuring is linear, so sketches of parts add up to the sketch of
the sum.

What decides on clipping is taken in float64, matrix products among it: float32
products may be rounded to far fewer digits by accelerators.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_sparse_dp.random_keys import fold_in, random_bits

# Numbers that a chunk of work may hold: 32 MB of float64.
_CHUNK = 2**22
# Entries of a matrix that is held while it is used many times: 256 MB.
_HELD = 2**26


class Measurement(abc.ABC):
    """An m x rows matrix A, known by its key.

    Args:
      rows: Rows of the table that is measured.
      count: Number of measurements, m.
      key: A key, int64 [2]. Whoever recovers the table needs the same.
    """

    def __init__(self, rows: int, count: int, key: tf.Tensor):
        self.rows = rows
        self.count = count
        self.key = key

    @property
    def domain(self) -> int:
        """Rows of what is measured: those of the table, then zeros."""
        return self.rows

    @property
    @abc.abstractmethod
    def squared_norm(self) -> float:
        """Largest squared singular value of A, or a bit more."""

    @abc.abstractmethod
    def measure(self, table: tf.Tensor) -> tf.Tensor:
        """A x: [domain, k] to [m, k], in the given dtype."""

    @abc.abstractmethod
    def adjoint(self, sketch: tf.Tensor) -> tf.Tensor:
        """A' y: [m, k] to [domain, k], in the given dtype."""

    @abc.abstractmethod
    def inverse(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """(A A')⁻¹ on [m, k], with A on the whole domain."""

    @abc.abstractmethod
    def sketch(self, values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """A times a table that is zero but for given rows; float64 [m, k].

        Args:
          values: [N, k].
          ids: Row numbers, [N]. They may repeat; those that the table does
            not have are left out.
        """

    @abc.abstractmethod
    def unit_squares(
        self, values: tf.Tensor, ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Squared norms of the sketches of many tables with few rows each.

        Args:
          values: [B, L, k].
          ids: Row numbers, [B, L], as in `sketch`.

        Returns:
          The squared norms, and the squared sums of the norms of the L parts
          of each sketch; both float64 [B].
        """

    def held(self) -> Measurement:
        """The same matrix, in the form that is best for many products."""
        return self

    def _inside(
        self, values: tf.Tensor, ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows of zeros at row 0 instead of rows that there are not."""
        ids = tf.cast(ids, tf.int64)
        there = (ids >= 0) & (ids < self.rows)
        values = tf.cast(values, tf.float64)
        return (
            tf.where(there[..., tf.newaxis], values, tf.zeros_like(values)),
            tf.where(there, ids, tf.zeros_like(ids)),
        )


class Transformed(Measurement):
    """m random rows of an orthogonal transform with random signs.

    Args: as of `Measurement`.
    """

    def __init__(self, rows: int, count: int, key: tf.Tensor):
        super().__init__(rows, count, key)
        if not 0 < count <= self.domain:
            raise ValueError(
                f"{count} measurements of {rows} rows were asked for; "
                f"expected 1 to {self.domain}."
            )
        coins = random_bits([self.domain], fold_in(key, 0), tf.int32)
        self._signs = tf.where(coins < 0, -1.0, 1.0)
        # The m largest of random numbers are at m random places. Sorted, so
        # that all workers have them in the same order.
        draws = random_bits([self.domain], fold_in(key, 1), tf.int32)
        self._picked = tf.math.top_k(draws, count, sorted=True).indices

    @property
    def squared_norm(self) -> float:
        return self.domain / self.count

    def inverse(self) -> Callable[[tf.Tensor], tf.Tensor]:
        # Rows of A are orthogonal, of squared norm domain / m.
        return lambda sketch: sketch * (self.count / self.domain)

    def measure(self, table: tf.Tensor) -> tf.Tensor:
        signed = table * tf.cast(self._signs, table.dtype)[:, tf.newaxis]
        return self._scale * tf.gather(self._transform(signed), self._picked)

    def adjoint(self, sketch: tf.Tensor) -> tf.Tensor:
        spread = tf.scatter_nd(
            self._picked[:, tf.newaxis],
            self._scale * sketch,
            [self.domain, sketch.shape[1]],
        )
        signs = tf.cast(self._signs, sketch.dtype)[:, tf.newaxis]
        return self._back(spread) * signs

    def sketch(self, values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        values, ids = self._inside(values, ids)
        table = tf.scatter_nd(
            ids[:, tf.newaxis], values, [self.domain, values.shape[1]]
        )
        return self.measure(table)

    def unit_squares(
        self, values: tf.Tensor, ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        gram = self._gram()
        signs = tf.cast(self._signs, tf.float64)

        def squares(
            values: tf.Tensor, ids: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            values, ids = self._inside(values, ids)
            values *= tf.gather(signs, ids)[:, :, tf.newaxis]
            # |A g|² = Σ_ll' (A'A)[j_l, j_l'] <v_l, v_l'>.
            columns = gram(ids[:, :, tf.newaxis], ids[:, tf.newaxis])
            pairs = columns * tf.matmul(values, values, transpose_b=True)
            parts = tf.abs(tf.linalg.diag_part(pairs))
            mass = tf.reduce_sum(tf.sqrt(parts), 1)
            return tf.reduce_sum(pairs, [1, 2]), tf.square(mass)

        lookups = ids.shape[1]
        size = max(1, _CHUNK // max(1, lookups * lookups))
        return _in_chunks(squares, values, ids, size)

    @property
    @abc.abstractmethod
    def _scale(self) -> float:
        """What makes columns of A have norm 1, on average or each."""

    @abc.abstractmethod
    def _transform(self, table: tf.Tensor) -> tf.Tensor:
        """The transform of each column."""

    @abc.abstractmethod
    def _back(self, table: tf.Tensor) -> tf.Tensor:
        """Its transpose."""

    @abc.abstractmethod
    def _gram(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Entries (A'A)[j, j'] but for signs, float64, for tensors j, j'."""


class Hadamard(Transformed):
    """Rows of the Walsh-Hadamard transform: entries ±1/√m.

    Every column has norm 1. Tables are filled up with zeros to a power of two.
    """

    @property
    def domain(self) -> int:
        return 1 << (self.rows - 1).bit_length()

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self.count)

    def _transform(self, table: tf.Tensor) -> tf.Tensor:
        return walsh_hadamard(table)

    _back = _transform  # It is symmetric.

    def _gram(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        # Row r of the transform has (-1)^{bits of r & j} at j, so products of
        # columns j and j' depend on j xor j' alone. Integers: exact.
        picked = tf.scatter_nd(
            self._picked[:, tf.newaxis],
            tf.ones([self.count, 1], tf.float64),
            [self.domain, 1],
        )
        products = walsh_hadamard(picked)[:, 0] / self.count

        def gram(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
            return tf.gather(products, tf.bitwise.bitwise_xor(left, right))

        return gram


class Cosine(Transformed):
    """Rows of the orthonormal cosine transform (DCT-II), times √(rows/m).

    Columns have norm 1 up to chance. Under XLA it takes a TensorFlow that
    compiles Fourier transforms of float64 (2.16 does not).
    """

    @property
    def _scale(self) -> float:
        return math.sqrt(self.rows / self.count)

    def _transform(self, table: tf.Tensor) -> tf.Tensor:
        columns = tf.transpose(table)
        return tf.transpose(tf.signal.dct(columns, norm="ortho"))

    def _back(self, table: tf.Tensor) -> tf.Tensor:
        columns = tf.transpose(table)
        return tf.transpose(tf.signal.idct(columns, norm="ortho"))

    def _gram(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        # 2 cos a cos b = cos(a - b) + cos(a + b): products of columns j and
        # j' are g(j - j') + g(j + j' + 1) with g(t) = Σ_r c_r cos(π r t / d)
        # over the picked rows r; c_0 = 1/2, the others 1, all over m.
        halved = tf.cast(tf.where(self._picked == 0, 0.5, 1.0), tf.float64)
        weights = tf.scatter_nd(
            self._picked[:, tf.newaxis], halved / self.count, [2 * self.rows]
        )
        waves = tf.math.real(tf.signal.rfft(weights))

        def gram(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
            total = left + right + 1
            total = tf.minimum(total, 2 * self.rows - total)
            return tf.gather(waves, tf.abs(left - right)) + tf.gather(
                waves, total
            )

        return gram


class GaussianColumns(Measurement):
    """Independent entries N(0, 1/m), the paper's; column j from its number.

    A column costs m random numbers each time it is looked at: right for
    sketches of few rows of any table, and for recovery of small ones.
    """

    def __init__(self, rows: int, count: int, key: tf.Tensor):
        super().__init__(rows, count, key)
        self._matrix: tf.Tensor | None = None

    @property
    def squared_norm(self) -> float:
        # Largest singular value of m x d: beyond 1 + √(d/m) + t/√m with
        # probability below exp(-t²/2) (Davidson and Szarek).
        largest = math.sqrt(self.rows / self.count) + 6 / math.sqrt(self.count)
        return (1 + largest) ** 2

    def held(self) -> Measurement:
        if self.rows * self.count > _HELD:
            return self
        held = GaussianColumns(self.rows, self.count, self.key)
        held._matrix = self._for_all(self.columns, tf.float32)
        return held

    def columns(self, ids: tf.Tensor) -> tf.Tensor:
        """Columns of A, float32 [N, m], for row numbers [N]."""
        pairs = (self.count + 1) // 2
        seeds = tf.bitcast(fold_in(self.key, 0), tf.uint64)
        starts = _scrambled(tf.cast(ids, tf.uint64) + seeds[0]) ^ seeds[1]
        bits = _scrambled(
            starts[:, tf.newaxis] + tf.cast(tf.range(1, pairs + 1), tf.uint64)
        )
        # Box and Muller. A public matrix needs no far tails.
        high = tf.cast(tf.bitwise.right_shift(bits, np.uint64(40)), tf.float32)
        low = tf.cast(bits & np.uint64(2**24 - 1), tf.float32)
        radius = tf.sqrt(-2.0 * tf.math.log((high + 0.5) * 2.0**-24))
        angle = low * np.float32(2 * np.pi * 2.0**-24)
        both = [radius * tf.cos(angle), radius * tf.sin(angle)]
        entries = tf.concat(both, 1)[:, : self.count]
        return entries * np.float32(1 / math.sqrt(self.count))

    def measure(self, table: tf.Tensor) -> tf.Tensor:
        if self._matrix is not None:
            matrix = tf.cast(self._matrix, table.dtype)
            return tf.matmul(matrix, table, transpose_a=True)
        return self._summed(table, tf.range(self.rows, dtype=tf.int64))

    def adjoint(self, sketch: tf.Tensor) -> tf.Tensor:
        def part(columns: tf.Tensor) -> tf.Tensor:
            return tf.matmul(tf.cast(columns, sketch.dtype), sketch)

        if self._matrix is not None:
            return part(self._matrix)
        return self._for_all(lambda ids: part(self.columns(ids)), sketch.dtype)

    def _for_all(
        self, function: Callable[[tf.Tensor], tf.Tensor], dtype: tf.DType
    ) -> tf.Tensor:
        """Rows of a function of the numbers of columns, for all columns."""
        size = min(self.rows, self._columns_at_once)
        count = -(-self.rows // size)
        ids = tf.reshape(tf.range(count * size, dtype=tf.int64), [count, size])
        parts = tf.map_fn(function, ids, fn_output_signature=dtype)
        return tf.reshape(parts, [count * size, parts.shape[2]])[: self.rows]

    def inverse(self) -> Callable[[tf.Tensor], tf.Tensor]:
        def add(ids: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
            inside = tf.cast(ids < self.rows, tf.float32)[:, tf.newaxis]
            columns = self.columns(ids) * inside
            return total + tf.matmul(columns, columns, transpose_a=True)

        size = min(self.rows, self._columns_at_once)
        square = tf.zeros([self.count, self.count])
        for_all = tf.range(-(-self.rows // size) * size, dtype=tf.int64)
        factor = tf.linalg.cholesky(_accumulated(add, for_all, size, square))
        return lambda sketch: tf.cast(
            tf.linalg.cholesky_solve(factor, tf.cast(sketch, tf.float32)),
            sketch.dtype,
        )

    def sketch(self, values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        return self._summed(*self._inside(values, ids))

    def unit_squares(
        self, values: tf.Tensor, ids: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        lookups = ids.shape[1]

        def squares(
            values: tf.Tensor, ids: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            values, ids = self._inside(values, ids)
            columns = self.columns(tf.reshape(ids, [-1]))
            columns = tf.reshape(columns, [-1, lookups, self.count])
            columns = tf.cast(columns, tf.float64)
            sketches = tf.matmul(columns, values, transpose_a=True)
            parts = tf.norm(columns, axis=2) * tf.norm(values, axis=2)
            return (
                tf.reduce_sum(tf.square(sketches), [1, 2]),
                tf.square(tf.reduce_sum(parts, 1)),
            )

        size = max(1, self._columns_at_once // max(1, lookups))
        return _in_chunks(squares, values, ids, size)

    @property
    def _columns_at_once(self) -> int:
        return max(1, _CHUNK // self.count)

    def _summed(self, values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Σ_l a_{j_l} v_l', in the dtype of the values."""
        dtype, width = values.dtype, values.shape[1]
        size = self._columns_at_once
        if ids.shape[0] is not None:
            size = max(1, min(size, ids.shape[0]))
        missing = -tf.shape(ids)[0] % size
        values = tf.pad(values, [[0, missing], [0, 0]])
        ids = tf.pad(ids, [[0, missing]])

        def add(places: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
            columns = tf.cast(self.columns(tf.gather(ids, places)), dtype)
            rows = tf.gather(values, places)
            return total + tf.matmul(columns, rows, transpose_a=True)

        start = tf.zeros([self.count, width], dtype)
        places = tf.range(tf.shape(ids)[0])
        return _accumulated(add, places, size, start)


def walsh_hadamard(table: tf.Tensor) -> tf.Tensor:
    """The unnormalised Walsh-Hadamard transform along the first axis.

    Args:
      table: [2^p, k].

    Returns:
      Row i is Σ_j (-1)^{bits of i & j} table[j], in order.
    """
    rows, width = table.shape
    bits = rows.bit_length() - 1
    # Kronecker products of small transforms, as products of matrices: few
    # passes over the memory.
    done = 0
    while done < bits:
        step = min(7, bits - done)
        small = np.ones([1, 1])
        for _ in range(step):
            small = np.block([[small, small], [small, -small]])
        factor = tf.constant(small, table.dtype)
        inner = width * 2**done
        table = tf.reshape(table, [-1, 2**step, inner])
        if inner == 1:
            table = tf.matmul(table[:, :, 0], factor)
        else:
            table = tf.matmul(factor, table)
        done += step
    return tf.reshape(table, [rows, width])


def _scrambled(numbers: tf.Tensor) -> tf.Tensor:
    """A permutation of the 64-bit numbers that looks random (SplitMix64)."""
    numbers *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers ^= tf.bitwise.right_shift(numbers, np.uint64(shift))
        numbers *= np.uint64(factor)
    return numbers ^ tf.bitwise.right_shift(numbers, np.uint64(31))


def _accumulated(
    add: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    items: tf.Tensor,
    size: int,
    start: tf.Tensor,
) -> tf.Tensor:
    """Adds up over chunks of `size` items; there are whole chunks only."""
    _, total = tf.while_loop(
        lambda done, _: done < tf.shape(items)[0],
        lambda done, total: (
            done + size,
            add(
                tf.ensure_shape(tf.slice(items, [done], [size]), [size]), total
            ),
        ),
        (tf.constant(0), start),
    )
    return total


def _in_chunks(
    function: Callable[..., tuple[tf.Tensor, tf.Tensor]],
    values: tf.Tensor,
    ids: tf.Tensor,
    size: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The function, applied to at most `size` units at a time."""
    units = ids.shape[0]
    if units is not None and units <= size:
        return function(values, ids)
    units = tf.shape(ids)[0]
    missing = -units % size
    values = tf.pad(values, [[0, missing], [0, 0], [0, 0]])
    ids = tf.pad(ids, [[0, missing], [0, 0]])
    left, right = tf.map_fn(
        lambda chunk: function(*chunk),
        (
            tf.reshape(values, [-1, size, *values.shape[1:]]),
            tf.reshape(ids, [-1, size, *ids.shape[1:]]),
        ),
        fn_output_signature=(tf.float64, tf.float64),
    )
    return tf.reshape(left, [-1])[:units], tf.reshape(right, [-1])[:units]
