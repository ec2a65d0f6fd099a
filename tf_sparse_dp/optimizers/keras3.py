"""The optimizer for Keras 3."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tf_sparse_dp.layers.lazy_variable import not_lazy
from tf_sparse_dp.optimizers.wrapper import FLOAT16_REFUSAL, PrivateWrapper


@keras.saving.register_keras_serializable(package="tf_sparse_dp")
class DPSparseOptimizer(PrivateWrapper, keras.optimizers.Optimizer):
    """Trains privately; `PrivateWrapper` says how, for both Kerases."""

    _keras = keras
    _running = "Keras 3"
    _other = "tf_keras"
    _base_arguments: ClassVar = {"learning_rate": 0.0}  # Of the inner one.

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        if keras.config.dtype_policy().compute_dtype == "float16":
            raise ValueError(FLOAT16_REFUSAL)
        # Out of a trace that may fail and leave variables without a value.
        with tf.init_scope():
            self.inner_optimizer.build(not_lazy(variables))
            super().build(variables)
            self._load_deferred()

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        variables = list(trainable_variables)
        if not self.built:
            self.build(variables)
        self._take_step(
            list(grads),
            variables,
            self.inner_optimizer.apply,
        )

    @property
    def variables(self) -> list[Any]:
        return [self._compositions, *self.inner_optimizer.variables]


DPSparseOptimizer.__doc__ = PrivateWrapper.__doc__
