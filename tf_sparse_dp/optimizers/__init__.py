"""The private optimizer for the Keras that `tf.keras` stands for."""

from __future__ import annotations

import tensorflow as tf

from tf_sparse_dp.optimizers.table_rules import DualAveraging

if hasattr(tf.keras, "__version__"):  # tf-keras has none here.
    from tf_sparse_dp.optimizers.keras3 import DPSparseOptimizer
else:
    from tf_sparse_dp.optimizers.keras2 import DPSparseOptimizer

__all__ = ["DPSparseOptimizer", "DualAveraging"]
