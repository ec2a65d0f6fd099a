"""Rényi divergences of a step from tensors, as `accounting.divergences`.

For noise or sampling that is only known while a compiled step runs. Formulas
and allowances for rounding are those of that file; they take float64 for what
IEEE says it is, as CPUs and GPUs do. TPUs make do with two float32 numbers for
one, so that steps for them are refused; what is known beforehand comes from
`GraphFilter.table`, which has none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.accounting.divergences import ULP, log_binomials
from tf_sparse_dp.accounting.events import Noise
from tf_sparse_dp.gradients.precision import is_for_tpu

# As good as infinite, and no infinity has to be subtracted from another.
_HUGE = 1e300


def step_divergence(
    sampling_probability: Any,
    noise_multiplier: Any,
    orders: Sequence[int],
    noise: Noise = "gaussian",
) -> tf.Tensor:
    """Divergences of noisy sums, rounded up, along a new last axis.

    Args:
      sampling_probability: Of Poisson sampling, float64; None without.
      noise_multiplier: float64, of the same shape.
      orders: Integers above 1.
      noise: "gaussian" or "laplace".

    Returns:
      float64; infinite where an argument makes no sense.

    Raises:
      ValueError: While a step for a TPU is traced.

    Example:
      >>> step_divergence(0.01, 1.0, [2, 8]).numpy().round(6)
      array([0.000172, 0.000894])
      >>> step_divergence(None, 2.0, [2, 4]).numpy().round(6)
      array([0.25, 0.5 ])
    """
    if is_for_tpu():
        raise ValueError(
            "RenyiFilter adds up what steps cost in float64, within the step, "
            "for which a TPU has pairs of float32 numbers; expected float64. "
            "Use a PrivacyPlan, or a filter that is paid ahead, such as "
            "ZcdpFilter."
        )
    z = tf.convert_to_tensor(noise_multiplier, tf.float64)[..., tf.newaxis]
    alpha = np.asarray(orders, np.float64)
    sensible = z >= 0
    if sampling_probability is None and noise == "gaussian":
        result = tf.constant(alpha) * (0.5 / z / z) * (1 + 8 * ULP)
    else:
        q = 1.0 if sampling_probability is None else sampling_probability
        q = tf.convert_to_tensor(q, tf.float64)[..., tf.newaxis]
        sensible &= (q >= 0) & (q <= 1)
        k = np.arange(2.0, max(orders) + 1.0)
        lift = _laplace_lift if noise == "laplace" else _gaussian_lift
        excess = _subsampled(q, orders, lift(z, k))
        result = tf.math.softplus(excess) / (alpha - 1) * (1 + 8 * ULP)
    return tf.where(sensible, result, np.inf)


def _gaussian_lift(z: tf.Tensor, k: np.ndarray) -> tf.Tensor:
    growth = tf.minimum(tf.constant(k * (k - 1)) * (0.5 / z / z), _HUGE)
    return growth + tf.math.log(-tf.math.expm1(-growth))


def _laplace_lift(z: tf.Tensor, k: np.ndarray) -> tf.Tensor:
    loss = tf.minimum(1 / z, _HUGE)
    # From 30 on, neglecting what is subtracted is nothing but rounding up.
    far = (k - 1) * loss > 30
    near = tf.where(far, tf.zeros([], tf.float64), loss)
    rise = k * tf.math.expm1((k - 1) * near)
    fall = (k - 1) * tf.math.expm1(-k * near)
    moment = rise + fall + 4 * ULP * (rise - fall)
    lift = tf.where(far, (k - 1) * loss + np.log(k), tf.math.log(moment))
    return lift - np.log(2 * k - 1)


def _subsampled(
    q: tf.Tensor, orders: Sequence[int], lifted: tf.Tensor
) -> tf.Tensor:
    """Logarithm of the sum over k = 2, 3, ... up to the order, rounded up."""
    q, lifted = q[..., tf.newaxis, :], lifted[..., tf.newaxis, :]
    choices = tf.constant(log_binomials(orders)[:, 2:])
    alpha = np.asarray(orders, np.float64)
    k = np.arange(2.0, max(orders) + 1.0)
    rest = np.maximum(alpha[:, np.newaxis] - k, 0.0)
    none = tf.constant(-np.inf, tf.float64)
    chosen = tf.math.xlogy(tf.constant(k), q)
    others = tf.math.xlog1py(tf.constant(rest), -q)
    terms = choices + chosen + others + lifted
    largest = tf.reduce_max(terms, axis=-1, keepdims=True)
    shift = tf.where(largest > none, largest, 0.0)
    total = tf.reduce_sum(tf.exp(terms - shift), axis=-1)
    sizes = tf.where(terms > none, tf.abs(lifted) - chosen - others, 0.0)
    rounding = 8 * ULP * (alpha + tf.reduce_max(sizes, axis=-1))
    return shift[..., 0] + tf.math.log(total) + rounding
