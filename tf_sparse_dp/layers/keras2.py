"""The layers for tf-keras, the continuation of Keras 2."""

from __future__ import annotations

from typing import ClassVar

import tf_keras as keras

from tf_sparse_dp.layers.joined_ids import FeatureIds
from tf_sparse_dp.layers.lazy_embedding import LazyRows


@keras.saving.register_keras_serializable(package="tf_sparse_dp")
class LazyEmbedding(LazyRows, keras.layers.Embedding):
    """A table with lazy noise; `LazyRows` says how, for both Kerases."""

    _not_cast: ClassVar = {"experimental_autocast": False}


LazyEmbedding.__doc__ = LazyRows.__doc__


@keras.saving.register_keras_serializable(package="tf_sparse_dp")
class JoinedIds(FeatureIds, keras.layers.Layer):
    """Several features in one table; `FeatureIds` says how."""


JoinedIds.__doc__ = FeatureIds.__doc__
