"""From the rows of a batched tensor to one group of rows per example."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.types import Batched

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


def example_major(
    analysis: Analysis, tensor: tf.Tensor, kind: Batched
) -> tf.Tensor:
    """Regroups a tensor as [B, rows per example, other axes in order].

    Raises:
      ValueError: If the size of another axis is not known while tracing.
    """
    dims = analysis.sizes.dims(tensor) or []
    rest = [dim for axis, dim in enumerate(dims) if axis != kind.axis]
    if not all(isinstance(dim, int) for dim in rest):
        raise ValueError("has an axis of unknown size")
    batch_size = analysis.batch_size
    if kind.axis:
        others = [axis for axis in range(len(dims)) if axis != kind.axis]
        tensor = tf.transpose(tensor, [kind.axis, *others])
    if kind.per_example == 1:
        return tf.reshape(tensor, [batch_size, 1, *rest])
    sizes = [batch_size * block.per_example for block in kind.blocks]
    parts = tf.split(tensor, sizes) if len(sizes) > 1 else [tensor]
    groups = []
    for block, part in zip(kind.blocks, parts, strict=True):
        if block.outer > 1:
            part = tf.reshape(
                part, [block.outer, batch_size, block.inner, *rest]
            )
            part = tf.transpose(part, [1, 0, 2, *range(3, 3 + len(rest))])
        groups.append(tf.reshape(part, [batch_size, block.per_example, *rest]))
    return groups[0] if len(groups) == 1 else tf.concat(groups, axis=1)
