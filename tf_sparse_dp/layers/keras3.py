"""The layers for Keras 3."""

from __future__ import annotations

import keras

from tf_sparse_dp.layers.lazy_embedding import LazyRows


@keras.saving.register_keras_serializable(package="tf_sparse_dp")
class LazyEmbedding(LazyRows, keras.layers.Embedding):
    """A table with lazy noise; `LazyRows` says how, for both Kerases."""


LazyEmbedding.__doc__ = LazyRows.__doc__
