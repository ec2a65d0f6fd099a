"""Binary search that XLA compiles well."""

from __future__ import annotations

import tensorflow as tf

from tf_sparse_dp.gradients.internals import is_compiled


def last_not_above(ascending: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Where the largest entry that is not above stands; 0 if there is none.

    Args:
      ascending: Integers [n], n > 0, in ascending order.
      wanted: Integers [m] of the same type.

    Returns:
      Places, int32 [m].
    """
    if not is_compiled(tf.compat.v1.get_default_graph()):
        found = tf.searchsorted(ascending, wanted, side="right")
        return tf.maximum(found - 1, 0)
    # Unrolled: tf.searchsorted is hundreds of times slower under XLA.
    last = tf.shape(ascending)[0] - 1
    size = ascending.shape[0] or 2**31
    places = tf.zeros_like(wanted, tf.int32)
    for bit in reversed(range((size - 1).bit_length())):
        further = places + 2**bit
        entry = tf.gather(ascending, tf.minimum(further, last))
        fits = (further <= last) & (entry <= wanted)
        places = tf.where(fits, further, places)
    return places
