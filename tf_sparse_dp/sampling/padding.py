"""Batches of random size in tensors of fixed size, and the mark between them.

A Poisson batch has a random number of examples; a compiled step wants one
shape. The spare rows are padding, and each batch carries a *validity column*
that tells the optimizer which rows are examples. It travels as Keras' sample
weight, so losses and weighted metrics leave padding out by themselves; but
clipping must not rely on that, since losses are free to ignore weights.

The optimizer sees a traced graph, in which names are lost. What survives is
type and shape, so the column is told apart by them: it is the batch's only
vector of half-precision numbers. Nobody feeds scalars in that type, and the
few who would are asked to cast them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

VALIDITY_DTYPE = tf.float16
"""Type of the validity column; an example counts where it is above zero."""

# Below this, float16 is subnormal: some devices flush it to zero, which would
# turn an example into padding on those devices only.
_SMALLEST_WEIGHT = float(np.finfo(np.float16).smallest_normal)
_LARGEST_WEIGHT = float(np.finfo(np.float16).max)


def is_validity_column(tensor: Any) -> bool:
    """Whether a batched tensor, or its spec, has the validity column's form.

    Args:
      tensor: Anything with a `dtype` and a static `shape`, batch axis first.

    Example:
      >>> is_validity_column(tf.ones([8], tf.float16))
      True
      >>> is_validity_column(tf.ones([8, 1], tf.float16))
      False
    """
    rank = tf.TensorShape(tensor.shape).rank
    return rank == 1 and tf.as_dtype(tensor.dtype) == VALIDITY_DTYPE


def as_validity(weights: np.ndarray, name: str) -> np.ndarray:
    """Rounds sample weights to the validity column's type.

    A weight of zero makes its example padding.

    Args:
      weights: One number for each example.
      name: What the weights are called in the error.

    Raises:
      ValueError: The weights are not a vector, or one of them is negative, not
        finite, or neither zero nor within the range of normal float16 numbers.
        The message never quotes a weight: weights are data.

    Example:
      >>> as_validity(np.array([0.0, 0.5, 2.0]), "sample_weight").dtype
      dtype('float16')
    """
    if weights.ndim != 1 or weights.dtype.kind not in "buif":
        raise ValueError(
            f"{name} has shape {weights.shape} and dtype {weights.dtype}, "
            "expected one number for each example. Pass an array of shape "
            "[num_examples]."
        )
    in_range = (weights >= _SMALLEST_WEIGHT) & (weights <= _LARGEST_WEIGHT)
    if not (in_range | (weights == 0)).all():
        raise ValueError(
            f"{name} holds weights that are negative, not finite, or out of "
            f"range; expected 0 or {_SMALLEST_WEIGHT:.2g} to "
            f"{_LARGEST_WEIGHT:.5g}, which is what half precision can carry. "
            "Rescale the weights, and clean the data of NaN."
        )
    return weights.astype(VALIDITY_DTYPE.as_numpy_dtype)


def pad_rows(rows: np.ndarray, slots: np.ndarray, size: int) -> np.ndarray:
    """Puts row i into slot `slots[i]` of `size`; the other slots are zeros.

    Zero is a valid id of every table and the empty string of every
    vocabulary, so padding passes through any model that examples pass.

    Example:
      >>> pad_rows(np.array([7, 8]), np.array([3, 1]), size=4)
      array([0, 8, 0, 7])
    """
    padded = np.zeros((size, *rows.shape[1:]), rows.dtype)
    padded[slots] = rows
    return padded
