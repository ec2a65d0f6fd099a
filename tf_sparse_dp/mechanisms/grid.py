"""One public grid for all released values."""

from __future__ import annotations

import math

import tensorflow as tf

from tf_sparse_dp.mechanisms.interface import Sum


def noisy(total: Sum, noise: tf.Tensor, size: float) -> tf.Tensor:
    """A sum with noise on every entry: dense, rounded to the grid.

    Added up and rounded in float32 at least, and only then cast to the type of
    the sum: half precision would keep the noise's first digits only.

    Args:
      total: The sum; row ids may repeat.
      noise: As many numbers as the sum has entries.
      size: Standard deviation (or scale) of the noise.
    """
    wide = total.dtype if total.dtype.size >= 4 else tf.float32
    noise = tf.cast(noise, wide)
    if isinstance(total, tf.IndexedSlices):
        values = tf.tensor_scatter_nd_add(
            noise, total.indices[:, tf.newaxis], tf.cast(total.values, wide)
        )
    else:
        values = tf.cast(total, wide) + noise
    return tf.cast(rounded(values, size), total.dtype)


def rounded(values: tf.Tensor, stddev: float) -> tf.Tensor:
    r"""Values rounded to multiples of a power of two near stddev·2⁻¹².

    Low-order bits of floating point numbers tell where they come from. Noise
    by itself can be any float32 number near 0; a sum of 1 plus noise near -1
    can only be a multiple of $2^{-24}$: one look at such a number may tell the
    two apart. In tables, a row that the batch touched is a sum plus noise, and
    one that it did not touch is a direction times a length, which end in
    different bits even where there is no signal. On a grid far coarser than
    the rounding errors, and far finer than the noise, all formulas give the
    same points but for the few values that lie within a rounding error of the
    middle between two.

    Rounding is post-processing: it costs nothing of the guarantee. It takes
    away what is plainly visible; the guarantee as a whole remains that of
    floating point arithmetic. Sums of more than some thousand stddevs have
    rounding errors above the grid, which then changes nothing.

    Args:
      values: Float tensor.
      stddev: Standard deviation (or scale) of the noise: public.

    Raises:
      ValueError: If stddev and its grid do not fit in float32.
    """
    if not 2.0**-100 <= stddev <= 2.0**100:
        raise ValueError(
            f"Noise of size {stddev:g}, the noise multiplier times what one "
            "unit is clipped to, is too small or too large for float32: "
            "expected a number from 1e-30 to 1e30. Choose another clip_norm; "
            "for large or small gradients rescale the loss."
        )
    step = 2.0 ** (math.floor(math.log2(stddev)) - 12)
    points = tf.round(values / step)
    # Minus zero is no other point of the grid than zero: this gives 0 for both.
    return tf.math.multiply_no_nan(tf.constant(step, points.dtype), points)
