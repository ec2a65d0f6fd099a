"""Loops, which are not looked into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.types import Mixed, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


@typing(
    "While",
    "StatelessWhile",
    "TensorListFromTensor",
    "TensorListGetItem",
    "TensorListPopBack",
    "TensorListPushBack",
    "TensorListReserve",
    "TensorListSetItem",
    "TensorListStack",
)
def _loop(analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]) -> Type:
    return in_loop(op)


def in_loop(op: tf.Operation) -> Mixed:
    """The type of what a loop gives."""
    return mixed(
        op,
        "is part of a loop, which is not looked into",
        "Unroll recurrent layers (unroll=True), or use layers without a loop; "
        "write tf.map_fn and tf.vectorized_map as operations on the whole "
        "batch.",
    )
