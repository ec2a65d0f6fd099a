"""The layers for Keras 3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import keras
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import (
    get_stateless_scope,
    in_stateless_scope,
)

from tf_sparse_dp.layers.joined_ids import FeatureIds
from tf_sparse_dp.layers.lazy_embedding import LazyRows


@keras.saving.register_keras_serializable(package="tf_sparse_dp")
class LazyEmbedding(LazyRows, keras.layers.Embedding):
    """A table with lazy noise; `LazyRows` says how, for both Kerases."""

    _not_cast: ClassVar = {"autocast": False}

    def build(self, input_shape: Any = None) -> None:
        with _state():
            super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        scope = get_stateless_scope() if in_stateless_scope() else None
        if scope is not None and (
            scope.get_current_value(self._embeddings) is not None
        ):
            raise ValueError(
                f"LazyEmbedding '{self.name}' was called with another table "
                "than its own, by stateless_call; expected a call of the layer "
                "as it is, since noise is kept with the table. Use "
                "set_weights, or keras.layers.Embedding."
            )
        return super().call(inputs)

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            f"LazyEmbedding '{self.name}' was to be quantized ({mode}); "
            "expected float32, in which noise is drawn. Give its rows to a "
            "keras.layers.Embedding by set_weights, and quantize that."
        )

    def enable_lora(self, rank: Any, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            f"enable_lora({rank!r}) was called on LazyEmbedding '{self.name}', "
            "which has noise on the rows of one table. Give its rows to a "
            "keras.layers.Embedding by set_weights for low-rank updates."
        )

    # Keras' own layer saves nothing but its table.

    def save_own_variables(self, store: Any) -> None:
        if self.denoise:
            keras.layers.Layer.save_own_variables(self, store)
        else:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        if self.denoise:
            keras.layers.Layer.load_own_variables(self, store)
        else:
            super().load_own_variables(store)


@contextlib.contextmanager
def _state() -> Iterator[None]:
    """Lets variables be made at once, and as the layer asks for.

    Keras builds a model of one's own by calling it in a scope without state,
    and makes its variables afterwards.
    """
    scope = get_stateless_scope()
    global_state.set_global_attribute("stateless_scope", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


LazyEmbedding.__doc__ = LazyRows.__doc__


@keras.saving.register_keras_serializable(package="tf_sparse_dp")
class JoinedIds(FeatureIds, keras.layers.Layer):
    """Several features in one table; `FeatureIds` says how."""


JoinedIds.__doc__ = FeatureIds.__doc__
