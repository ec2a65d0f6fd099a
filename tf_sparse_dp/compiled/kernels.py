"""When kernels are compiled, and for which sizes.

TensorFlow runs a graph operation by operation, each of which writes its result
to memory. Some parts of a private step have so much to do that they are worth
a kernel of their own, which XLA compiles for the CPU when it is first run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

# With fewer numbers it takes longer to compile than is ever saved.
_LEAST = 2**16
_MOST = 2**26  # Numbers that are held at a time.


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is compiled for the shapes that it is called with."""
    return tf.function(function, jit_compile=True, autograph=False)


def can_do(count: int | None) -> bool:
    """Whether kernels can, and should, do so many numbers in the graph at hand.

    Not where XLA compiles the graph as a whole, and not beside accelerators,
    for which it would compile them differently.

    Args:
      count: None if that is not known.
    """
    graph = tf.compat.v1.get_default_graph()
    return (
        count is not None
        and _LEAST <= count <= _MOST
        and not tf.executing_eagerly()
        and not control_flow_util.GraphOrParentsInXlaContext(graph)
        and _compiles()
    )


def with_room(
    count: tf.Tensor, most: int, of_size: Callable[[int], tf.Tensor]
) -> tf.Tensor:
    """What `of_size` makes for the least of a few sizes that is enough.

    Kernels have fixed sizes.

    Args:
      count: How much room is needed, a scalar.
      most: The largest that `count` can be.
      of_size: Called while tracing, for each size.
    """
    sizes = [max(most * eighths // 8, 1) for eighths in (2, 3, 4, 6, 8)]
    place = tf.reduce_sum(
        tf.cast(sizes[:-1] < tf.cast(count, tf.int32), tf.int32)
    )
    return tf.switch_case(
        place, [functools.partial(of_size, size) for size in sizes]
    )


@functools.cache
def _compiles() -> bool:
    """Whether XLA compiles for this CPU, and nothing but a CPU is there."""
    if len(tf.config.list_logical_devices()) > len(
        tf.config.list_logical_devices("CPU")
    ):
        return False
    with tf.init_scope():
        try:
            kernel(tf.negative)(tf.zeros([4]))
        except tf.errors.OpError:
            return False
    return True
