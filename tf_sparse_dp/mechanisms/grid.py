"""One public grid for all released values."""

from __future__ import annotations

import math

import tensorflow as tf


def rounded(values: tf.Tensor, stddev: float) -> tf.Tensor:
    r"""Values rounded to multiples of a power of two near stddev·2⁻¹².

    A row that the batch touched is a sum plus noise; a row that it did not
    touch is a direction times a length. In exact arithmetic both have the same
    law where there is no signal, but floating point numbers that come out of
    different formulas end in different low-order bits, and those bits would
    tell which formula it was: which rows the batch touched. On a grid far
    coarser than the rounding errors, which are below $2^{-20}$ of a value, and
    far finer than the noise, both give the same points but for the few values
    that lie within a rounding error of the middle between two.

    Rounding is post-processing: it costs nothing of the guarantee. It takes
    away what is plainly visible; the guarantee as a whole remains that of
    floating point arithmetic.

    Args:
      values: Float tensor.
      stddev: Standard deviation (or scale) of the noise: public.

    Raises:
      ValueError: If the grid would not fit in float32.
    """
    if not 2.0**-100 <= stddev <= 2.0**100:
        raise ValueError(
            f"No grid of released values for noise of size {stddev}: expected "
            "a number between 2**-100 and 2**100. Rescale the loss, or release "
            "without noise and without a grid."
        )
    step = 2.0 ** (math.floor(math.log2(stddev)) - 12)
    points = tf.round(values / step) * step
    # Minus zero is no other point of the grid than zero.
    return tf.where(tf.equal(points, 0), tf.zeros_like(points), points)
