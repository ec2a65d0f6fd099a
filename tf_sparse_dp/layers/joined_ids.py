"""Several features in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class FeatureIds:
    """Ids of several features as ids of one table, with rows for each.

    One lookup in one table takes less time than a lookup in each of 26: every
    operation costs some, private ones more. Each feature has rows of its own,
    from `first_rows[i]` on, so that an example looks up no row twice, which
    saves time when it is clipped.

    An id that a feature does not have, negative or too large, stands for one
    row more that the feature has for all of them. (Keras' own `Embedding` ends
    training with an error on a CPU, and takes any row on an accelerator.)

    Args:
      sizes: How many ids each feature has: 0 up to that number, exclusive.

    Attributes:
      rows: Rows that the table needs: `sum(sizes) + len(sizes)`.
      first_rows: The row of each feature's id 0.

    Example:
      >>> import tensorflow as tf
      >>> import tf_sparse_dp as tsdp
      >>> joined = tsdp.layers.JoinedIds([1000, 50])
      >>> table = tsdp.layers.LazyEmbedding(joined.rows, 16)
      >>> users, days = tf.constant([3, 999]), tf.constant([0, 80])
      >>> joined([users, days]).numpy().tolist()
      [[3, 1001], [999, 1051]]
      >>> table(joined([users, days])).shape  # Flatten() makes it [2, 32].
      TensorShape([2, 2, 16])
    """

    def __init__(self, sizes: Sequence[int], **kwargs: Any):
        super().__init__(**kwargs)
        self.sizes = [_checked(size) for size in sizes]
        self.rows = sum(self.sizes) + len(self.sizes)
        if not self.sizes or self.rows > np.iinfo(np.int32).max:
            raise ValueError(
                f"sizes={sizes!r} were given; expected the number of ids of at "
                "least one feature, less than 2³¹ in all. Use several tables."
            )
        self.first_rows = np.cumsum([0, *(n + 1 for n in self.sizes[:-1])])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sizes": self.sizes}  # type: ignore[misc]

    def call(self, inputs: Any) -> tf.Tensor:
        """Ids of a table.

        Args:
          inputs: One vector of integers per feature, or all in a matrix.

        Returns:
          Ids, [examples, features].

        Raises:
          ValueError: Other inputs.
        """
        several = isinstance(inputs, (list, tuple))
        given = [
            tf.convert_to_tensor(x) for x in (inputs if several else [inputs])
        ]
        shapes = [x.shape.as_list() for x in given]
        count = len(self.sizes)
        if several and [shape[1:] for shape in shapes] in (
            [[]] * count,
            [[1]] * count,
        ):
            if len({x.dtype for x in given}) > 1:
                given = [tf.cast(x, tf.int64) for x in given]
            # Few operations, of few bytes: all that follows waits for them.
            join = tf.concat if shapes[0][1:] else tf.stack
            ids = join(given, 1)
        elif not several and shapes[0][1:] == [count]:
            (ids,) = given
        else:
            raise ValueError(
                f"JoinedIds was given ids of shape {shapes}; expected one id "
                f"per example for each of {count} features: that many vectors, "
                "or a matrix with that many columns."
            )
        if ids.dtype != tf.int32:
            ids = tf.cast(ids, tf.int64)
        kind = ids.dtype.as_numpy_dtype
        last = np.array(self.sizes, kind)
        ids = tf.where(ids < 0, last, ids)
        # In this form `gradients.distinct` sees that rows differ.
        ids = tf.maximum(tf.minimum(ids, last), 0)
        return tf.cast(ids + self.first_rows.astype(kind), tf.int32)


def _checked(size: Any) -> int:
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
        raise TypeError(f"sizes has {size!r} in it; expected whole numbers.")
    if size < 1:
        raise ValueError(
            f"sizes has {size} in it; expected the number of ids of a feature, "
            "at least 1."
        )
    return int(size)
