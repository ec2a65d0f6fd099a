"""From the rows of a batched tensor to one group of rows per example."""

from __future__ import annotations

import tensorflow as tf

from tf_sparse_dp.gradients.types import Batched


def example_major(
    tensor: tf.Tensor, kind: Batched, batch_size: tf.Tensor
) -> tf.Tensor:
    """Regroups a tensor as [B, rows per example, other axes in order]."""
    rank = tensor.shape.rank
    if kind.axis:
        others = [axis for axis in range(rank) if axis != kind.axis]
        tensor = tf.transpose(tensor, [kind.axis, *others])
    if kind.per_example == 1:
        return tf.expand_dims(tensor, 1)
    rest = [
        size if size is not None else tf.shape(tensor)[axis + 1]
        for axis, size in enumerate(tensor.shape[1:])
    ]
    sizes = [batch_size * block.per_example for block in kind.blocks]
    parts = tf.split(tensor, sizes) if len(sizes) > 1 else [tensor]
    groups = []
    for block, part in zip(kind.blocks, parts, strict=True):
        if block.outer > 1:
            part = tf.reshape(
                part, [block.outer, batch_size, block.inner, *rest]
            )
            part = tf.transpose(
                part, [1, 0, 2, *range(3, 3 + len(rest))]
            )
        groups.append(
            tf.reshape(part, [batch_size, block.per_example, *rest])
        )
    return groups[0] if len(groups) == 1 else tf.concat(groups, axis=1)
