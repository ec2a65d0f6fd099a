"""Norms need products in the precision that they claim to have."""

from __future__ import annotations

import tensorflow as tf

from tf_sparse_dp.local_variable import TPU_STRATEGIES


def is_for_tpu() -> bool:
    """Whether what is traced now is for the replicas of a TPU."""
    return not tf.executing_eagerly() and isinstance(
        tf.distribute.get_strategy(), TPU_STRATEGIES
    )


def check_precision() -> None:
    """Refuses products that keep a few bits of float32 numbers.

    GPUs multiply matrices in TensorFloat-32 by default, which keeps 10 bits,
    and TPUs in bfloat16, which keeps 7. Norms that are taken from products
    allow for the rounding of float32 and no more: where the parts of a
    gradient cancel, the norm could come out as a small part of what it is.

    One switch of TensorFlow turns off both: without TensorFloat-32, TPUs are
    told to multiply in the highest precision, which takes several passes.

    Raises:
      ValueError: If there is a GPU, or the step is for a TPU, and
        TensorFloat-32 is not switched off.
    """
    if not tf.config.experimental.tensor_float_32_execution_enabled():
        return
    if is_for_tpu():
        where = "TPUs in bfloat16"
    elif tf.config.list_physical_devices("GPU"):
        where = "GPUs in TensorFloat-32"
    else:
        return
    raise ValueError(
        f"TensorFlow multiplies matrices on {where}, in which norms of "
        "gradients come out too small, so that clipping would not hold; "
        "expected float32. Call "
        "tf.config.experimental.enable_tensor_float_32_execution(False) first."
    )
