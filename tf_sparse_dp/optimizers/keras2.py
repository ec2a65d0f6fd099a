"""The optimizer for tf-keras, the continuation of Keras 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras as keras

from tf_sparse_dp.layers.lazy_variable import not_lazy
from tf_sparse_dp.optimizers.trained_before import register
from tf_sparse_dp.optimizers.wrapper import FLOAT16_REFUSAL, PrivateWrapper


@keras.saving.register_keras_serializable(package="tf_sparse_dp")
class DPSparseOptimizer(PrivateWrapper, keras.optimizers.Optimizer):
    """Trains privately; `PrivateWrapper` says how, for both Kerases."""

    _keras = keras
    _running = "tf-keras"
    _other = "keras"

    @property
    def built(self) -> bool:  # type: ignore[override]
        return getattr(self, "_built", False)

    def build(self, var_list: list[Any]) -> None:
        if self.built:
            return
        if keras.mixed_precision.global_policy().compute_dtype == "float16":
            raise ValueError(FLOAT16_REFUSAL)
        super().build(var_list)
        self.inner_optimizer.build(not_lazy(var_list))
        self._built = True
        self._load_deferred()
        register(var_list, self._trainer)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> tf.Variable:
        gradients, variables = zip(*grads_and_vars, strict=True)
        with tf.init_scope():
            self.build(list(variables))
        self._take_step(
            gradients,
            variables,
            lambda private, its: self.inner_optimizer.apply_gradients(
                zip(private, its, strict=True),
                # There is one for all replicas.
                skip_gradients_aggregation=True,
            ),
        )
        return self.iterations

    @property
    def variables(self) -> list[Any]:
        variables = self.inner_optimizer.variables
        variables.insert(0, self._compositions)
        return variables


DPSparseOptimizer.__doc__ = PrivateWrapper.__doc__
