"""Many normal numbers at once, by kernels that XLA compiles for the CPU.

`random_tails.normal` writes every intermediate result to memory, and draws its
bits by a kernel that does one word at a time. Where the noise of a whole
network is drawn at every step, that shows. Here one compiled kernel makes the
bits and a second one makes numbers of them and does with these what is to be
done, all in registers: less than half the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_sparse_dp.compiled.kernels import kernel
from tf_sparse_dp.random_keys import philox_state

_EVEN = 2**12  # Only for such multiples XLA's code does many at a time.
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_INCREMENTS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_ROUNDS = 10
# sin(πx/2) on [0, 1], to a roundoff: the powers x, x³, ..., x¹¹.
_SINE = [
    np.float32((-1) ** n * (math.pi / 2) ** (2 * n + 1) / math.factorial(k))
    for n, k in enumerate(range(1, 12, 2))
]


def with_normals(
    use: Callable[..., tf.Tensor],
    values: tf.Tensor,
    key: tf.Tensor,
    *others: tf.Tensor,
) -> tf.Tensor:
    """What `use` makes of values and as many standard normal numbers.

    The numbers have the law of `random_tails.normal`, tails out to 9.4
    included, but are others for the same key.

    Args:
      use: Of values and numbers, entry by entry, and of the others; called
        while tracing, for all even and for all odd columns.
      values: float32, an even number of columns, all sizes known and such that
        kernels `can_do` as many.
      key: A key, int64 [2].
      *others: Scalars, or one column, for `use`.

    Returns:
      Values of the same shape.
    """
    *rows, columns = values.shape
    halves = [*rows, columns // 2]
    pairs = math.prod(halves)

    # Both numbers of a pair are one complex number: XLA's loops make one thing
    # at a time, and would go twice through what is the same for both.
    @kernel
    def drawn(
        words: tf.Tensor, values: tf.Tensor, *others: tf.Tensor
    ) -> tf.Tensor:
        words = tf.reshape(words[: 3 * pairs], [3, *halves])
        radius, sine, cosine = _polar(words)
        return tf.complex(
            use(tf.math.real(values), radius * sine, *others),
            use(tf.math.imag(values), radius * cosine, *others),
        )

    paired = tf.bitcast(tf.reshape(values, [*halves, 2]), tf.complex64)
    paired = drawn(_words(3 * pairs, key), paired, *others)
    return tf.reshape(tf.bitcast(paired, tf.float32), values.shape)


def _words(count: int, key: tf.Tensor) -> tf.Tensor:
    """Random words, uint32, at least so many."""
    blocks = _EVEN * -(-count // (4 * _EVEN))
    words = _words_kernel(blocks)(_state(key))
    return tf.reshape(tf.bitcast(words, tf.uint32), [4 * blocks])


def _words_kernel(blocks: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Gives the four words of each block as the bits of a complex number.

    As four tensors XLA would make each block four times.
    """

    def double(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
        low, high = tf.cast(low, tf.uint64), tf.cast(high, tf.uint64)
        both = low | tf.bitwise.left_shift(high, np.uint64(32))
        return tf.bitcast(both, tf.float64)

    @kernel
    def words(state: tf.Tensor) -> tf.Tensor:
        first, second, third, fourth = philox(blocks, state)
        return tf.complex(double(first, second), double(third, fourth))

    return words


def _state(key: tf.Tensor) -> tf.Tensor:
    """Where Philox starts for a key, uint32 [4].

    Words of 64 bits would make the kernel ten times slower.
    """
    state = tf.concat(philox_state(key), 0)
    return tf.reshape(tf.bitcast(state, tf.uint32), [4])


def philox(blocks: int, state: tf.Tensor) -> list[tf.Tensor]:
    """The four words of each of the first blocks of Philox 4 x 32.

    Those that `random_keys.random_bits` gives one block after another.

    Args:
      blocks: How many, less than 2³¹.
      state: Philox's key and the upper half of its counter, uint32 [4].

    Reference: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
    2011.
    """
    xor = tf.bitwise.bitwise_xor
    number = tf.cast(tf.range(blocks), tf.uint32)
    nothing = tf.zeros_like(number)
    words = [number, nothing, nothing + state[2], nothing + state[3]]
    first, second = state[0], state[1]
    for _ in range(_ROUNDS):
        low, high = _halves(tf.cast(words[0], tf.uint64) * _MULTIPLIERS[0])
        below, above = _halves(tf.cast(words[2], tf.uint64) * _MULTIPLIERS[1])
        words = [
            *(xor(xor(above, words[1]), first), below),
            *(xor(xor(high, words[3]), second), low),
        ]
        first, second = first + _INCREMENTS[0], second + _INCREMENTS[1]
    return words


def _halves(words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The lower and the upper 32 bits."""
    upper = tf.bitwise.right_shift(words, np.uint64(32))
    return tf.cast(words, tf.uint32), tf.cast(upper, tf.uint32)


def _polar(words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Radii, sines and cosines of Box and Muller's transform.

    Args:
      words: uint32 [3, pairs]: two for each radius, one for the angle.
    """
    high, low, turn = tf.unstack(words)
    # A coin, and 63 bits for 0 < v < 1/2: near radius 0, too, every digit of
    # a number is right. -ln u for u = v or 1 - v.
    rest = tf.bitwise.right_shift(high, np.uint32(1))
    small = tf.cast(tf.cast(rest, tf.int32), tf.float32) * 2.0**-32
    small += tf.cast(low, tf.float32) * 2.0**-64 + 2.0**-65
    coin = tf.bitwise.bitwise_and(high, np.uint32(1)) == 1
    exponential = tf.where(coin, -tf.math.log(small), _minus_log_of_rest(small))
    radius = tf.sqrt(2.0 * exponential)
    # Two bits for the quarter, the others for the way through it.
    quarter = tf.bitwise.right_shift(turn, np.uint32(30))
    way = tf.bitwise.bitwise_and(turn, np.uint32(2**30 - 1))
    way = tf.cast(tf.cast(way, tf.int32), tf.float32) * 2.0**-30
    rising, falling = _sine(way), _sine(1.0 - way)
    odd = (quarter == 1) | (quarter == 3)
    sine, cosine = (
        tf.where(odd, falling, rising),
        tf.where(odd, rising, falling),
    )
    sine = tf.where(quarter >= 2, -sine, sine)
    cosine = tf.where((quarter == 1) | (quarter == 2), -cosine, cosine)
    return radius, sine, cosine


def _minus_log_of_rest(small: tf.Tensor) -> tf.Tensor:
    """-ln(1 - v) for 0 < v < 1/2, to a few roundoffs: 2 artanh(v / (2 - v))."""
    ratio = small / (2.0 - small)  # Below 1/3: the first term left out is 1e-8.
    square = ratio * ratio
    total = tf.zeros_like(square)
    for power in range(13, 0, -2):
        total = total * square + np.float32(2.0 / power)
    return total * ratio


def _sine(quarters: tf.Tensor) -> tf.Tensor:
    """Sines of angles from 0 to a quarter of a turn, given in quarters."""
    square = quarters * quarters
    total = tf.zeros_like(square)
    for coefficient in reversed(_SINE):
        total = total * square + coefficient
    return total * quarters
