"""How tables whose noise is drawn later are updated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.gradients.separation import Gradient
from tf_sparse_dp.layers.lazy_variable import LazyVariable

_WHY = (
    "Noise that is drawn when a row is read is exact only for updates that are "
    "linear in the gradient: slots, momentum, decay, clipping and averages "
    "would have to see the noise of rows that nobody reads. Give the tables a "
    "rule of their own, DPSparseOptimizer(..., "
    "tables=keras.optimizers.SGD(learning_rate)), which leaves the other "
    "variables to the inner optimizer; or use keras.layers.Embedding."
)


class TableRule:
    r"""Plain SGD on tables of `LazyEmbedding`: $W - \eta_t \tilde g_t$.

    Args:
      keras: The running Keras.
      inner_optimizer: Whose steps are counted, and whose learning rate it is
        if tables have no rule of their own.
      tables: A plain SGD, or None.
    """

    def __init__(self, keras: Any, inner_optimizer: Any, tables: Any):
        self._keras = keras
        self._inner = inner_optimizer
        self.given = tables
        if tables is not None:
            self._check("tables", tables)

    def update(
        self,
        updates: Sequence[tuple[Gradient, LazyVariable]],
        stddev: tf.Tensor | float,
    ) -> None:
        """Takes a step on every table that has a gradient.

        Args:
          updates: Gradients, and the tables.
          stddev: Size of the noise that they lack.
        """
        rate = self._rate()
        for gradient, table in updates:
            if gradient is not None:
                table.add(_scaled(gradient, -rate), stddev * tf.abs(rate))

    def check(self) -> None:
        """For a model that has such tables.

        Raises:
          ValueError: If there is no rule for them.
        """
        if self.given is None:
            self._check("inner_optimizer", self._inner)

    def _rate(self) -> tf.Tensor:
        rate = (self.given or self._inner)._learning_rate
        if isinstance(
            rate, self._keras.optimizers.schedules.LearningRateSchedule
        ):
            rate = rate(self._inner.iterations)
        return tf.cast(tf.convert_to_tensor(rate), tf.float32)

    def _check(self, name: str, optimizer: Any) -> None:
        plain = self._keras.optimizers.SGD
        if type(optimizer) is not plain:
            raise ValueError(
                f"{name} is {type(optimizer).__name__}, but the model has "
                f"tables of LazyEmbedding, which need plain SGD. {_WHY}"
            )
        usual = plain().get_config()
        for option, value in optimizer.get_config().items():
            if option in ("name", "learning_rate", "jit_compile"):
                continue
            if value != usual.get(option) and (value or usual.get(option)):
                raise ValueError(
                    f"{name} is SGD with {option}={value!r}, but tables of "
                    f"LazyEmbedding need plain SGD. {_WHY}"
                )


def _scaled(gradient: Any, by: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values * tf.cast(by, gradient.values.dtype),
            gradient.indices,
            gradient.dense_shape,
        )
    return gradient * tf.cast(by, gradient.dtype)
