"""The optimizer for Keras 3."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras.src.losses import loss as losses

from tf_sparse_dp.distribute import replicas
from tf_sparse_dp.layers.lazy_variable import not_lazy
from tf_sparse_dp.optimizers.trained_before import register
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
        register(variables, self._trainer)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        variables = list(trainable_variables)
        _check_shares()
        if not self.built:
            self.build(variables)
        self._take_step(list(grads), variables, self._apply_inner)

    def _apply_inner(self, private: list[Any], variables: list[Any]) -> None:
        # What is released is of all replicas already. Summing it again, which
        # Keras does for one replica too, would make tables dense on TPUs.
        methods = vars(self.inner_optimizer)
        methods["_all_reduce_sum_gradients"] = list
        try:
            self.inner_optimizer.apply(private, variables)
        finally:
            del methods["_all_reduce_sum_gradients"]

    @property
    def variables(self) -> list[Any]:
        return [self._compositions, *self.inner_optimizer.variables]


def _check_shares() -> None:
    """Older versions do not give each replica its share of the mean."""
    shares = hasattr(losses, "scale_loss_for_distribution")
    if replicas.count() > 1 and not shares:
        raise ValueError(
            f"Keras {keras.__version__} does not divide losses by the number "
            "of replicas, so that gradients would be clipped several times as "
            "large as they are; expected a version that does. Update Keras, "
            "use tf-keras, or train on one device."
        )


DPSparseOptimizer.__doc__ = PrivateWrapper.__doc__
