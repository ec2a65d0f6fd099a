"""Contenders on TensorFlow Privacy, and its Keras without privacy.

- `not private`: legacy SGD, which updates only the rows of the batch.
  `keras SGD`: Keras 2's newer SGD.
- `fast clipping`: `DPModel` with a layer registry. Without XLA, which it would
  use unless told otherwise: its steps were no faster, and 26 tables take it
  long to compile. `clipping alone`: the same without noise.
- `sparse optimizer`: its Keras optimizer for sparse gradients.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
from tensorflow_privacy.privacy.fast_gradient_clipping.registry_functions import (  # noqa: E501
    layer_normalization,
    multi_head_attention,
)
from tensorflow_privacy.privacy.keras_models import dp_keras_model
from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras_sparse

from benchmarks.peers import data, keras_models
from benchmarks.peers.contenders import CLIPPING, FRAMEWORKS
from benchmarks.peers.turns import Contender, main

keras = tf.keras
BASES = FRAMEWORKS["TF-Privacy"].bases
SPARSE = "sparse optimizer"


def registry() -> Any:
    """The layers that it can clip fast."""
    known = layer_registry.make_default_layer_registry()
    known.insert(
        keras.layers.MultiHeadAttention,
        multi_head_attention.multi_head_attention_layer_computation,
    )
    known.insert(
        keras.layers.LayerNormalization,
        layer_normalization.layer_normalization_computation,
    )
    return known


def private_model(name: str, inputs: Any, output: Any) -> Any:
    """A `DPModel`, which has to take its fast way."""
    model = dp_keras_model.DPModel(
        l2_norm_clip=data.CLIP_NORM,
        noise_multiplier=(0.0 if name == CLIPPING else data.NOISE_MULTIPLIER),
        use_xla=False,
        layer_registry=registry(),
        inputs=inputs,
        outputs=output,
    )
    if not model._enable_fast_peg_computation:
        raise RuntimeError("DPModel does not clip this model fast")
    return model


def make(name: str, setting: data.Setting) -> Contender:
    """Sets up a contender."""
    keras.utils.set_random_seed(data.SEED)
    made: list[Any] = []

    def table() -> Any:
        made.append(keras.layers.Embedding(setting.rows, setting.width))
        return made[-1]

    inputs, output = keras_models.graph(
        setting, lambda columns: [table()(ids) for ids in columns]
    )
    reduction = "auto"
    if name == SPARSE:
        model = keras.Model(inputs, output)
        optimizer = dp_optimizer_keras_sparse.DPSparseKerasSGDOptimizer(
            l2_norm_clip=data.CLIP_NORM,
            noise_multiplier=data.NOISE_MULTIPLIER,
            num_microbatches=setting.batch_size,
            learning_rate=data.RATE,
        )
        reduction = "none"
    else:
        if name in BASES:
            model = keras.Model(inputs, output)
        else:
            model = private_model(name, inputs, output)
        if name == "keras SGD":
            optimizer = keras.optimizers.SGD(data.RATE)
        else:
            optimizer = keras.optimizers.legacy.SGD(data.RATE)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.BinaryCrossentropy(
            from_logits=True, reduction=reduction
        ),
    )
    return keras_models.contender(model, setting, made[0])


if __name__ == "__main__":
    keras_models.set_threads()
    main(make, "TF-Privacy")
