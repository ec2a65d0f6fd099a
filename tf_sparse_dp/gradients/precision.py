"""Norms need products in the precision that they claim to have."""

from __future__ import annotations

import tensorflow as tf


def check_precision() -> None:
    """Refuses TensorFloat-32, in which GPUs multiply matrices by default.

    It keeps 10 bits of a float32 number. Norms that are taken from products
    allow for the rounding of float32 and no more: where the parts of a
    gradient cancel, the norm could come out as a small part of what it is.

    TPUs multiply in bfloat16 by default, which keeps 7 bits. They are not
    supported yet, and not looked for here.

    Raises:
      ValueError: If there is a GPU and TensorFloat-32 is not switched off.
    """
    if (
        tf.config.list_physical_devices("GPU")
        and tf.config.experimental.tensor_float_32_execution_enabled()
    ):
        raise ValueError(
            "TensorFlow multiplies matrices on GPUs in TensorFloat-32, in "
            "which norms of gradients come out too small, so that clipping "
            "would not hold; expected float32. Call "
            "tf.config.experimental.enable_tensor_float_32_execution(False) "
            "first."
        )
