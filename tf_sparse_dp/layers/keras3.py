"""The layers for Keras 3."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from tf_sparse_dp.layers.lazy_embedding import LazyRows


@keras.saving.register_keras_serializable(package="tf_sparse_dp")
class LazyEmbedding(LazyRows, keras.layers.Embedding):
    """A table with lazy noise; `LazyRows` says how, for both Kerases."""

    _not_cast: ClassVar = {"autocast": False}

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


LazyEmbedding.__doc__ = LazyRows.__doc__
