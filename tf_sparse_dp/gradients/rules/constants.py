"""Tensors whose entries are known while tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


def constant(analysis: Analysis, tensor: tf.Tensor) -> np.ndarray | None:
    """Entries of a constant of the step, in order but of any shape."""
    op = tensor.op
    if op.type in ("Identity", "Reshape"):
        return constant(analysis, op.inputs[0])
    if op.type == "SelectV2" and op.inputs[0].op.type == "Less":
        # Keras 3 counts negative ids from the end.
        value, bound = op.inputs[0].op.inputs
        known = constant(analysis, value)
        below = tf.get_static_value(bound)
        if known is None or below is None or np.ndim(below):
            return None
        if known.size != op.outputs[0].shape.num_elements():
            return None  # Repeated, to the shape of the other branch.
        if value is op.inputs[2] and not np.any(known < below):
            return known
        return None
    if op.type == "Placeholder":
        outer = analysis.captured(tensor)
        if outer is None or tf.is_symbolic_tensor(outer):
            return None
        tensor = outer
    return tf.get_static_value(tensor)
