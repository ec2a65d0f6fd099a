"""Layers for the Keras that `tf.keras` stands for."""

from __future__ import annotations

import tensorflow as tf

if hasattr(tf.keras, "__version__"):  # tf-keras has none here.
    from tf_sparse_dp.layers.keras3 import JoinedIds, LazyEmbedding
else:
    from tf_sparse_dp.layers.keras2 import JoinedIds, LazyEmbedding

__all__ = ["JoinedIds", "LazyEmbedding"]
