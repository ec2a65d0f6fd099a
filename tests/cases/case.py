"""What a case is, and the examples that most cases share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras
layers = tf.keras.layers
KERAS_3 = tsdp.DPSparseOptimizer.__module__.endswith("keras3")
KERASES = ("Keras 3", "tf-keras")
RUNNING = KERASES[0] if KERAS_3 else KERASES[1]

BATCHES = (8, 8, 4)
EXAMPLES = sum(BATCHES)
LEARNING_RATE = 0.25


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, 20 examples for it, a loss, and what is to come of it.

    Attributes:
      name: Unique among all cases; a row of docs/models.md.
      build: Makes the model.
      inputs: Nested arrays with one row per example.
      targets: Nested arrays with one row per example.
      loss: Makes what `compile` takes as `loss`.
      example_loss: The loss of a batch of one, from the model, its inputs and
        targets; for models with losses of their own or several outputs.
      reduction: Whether the loss is a mean or a sum over examples.
      sample_weight: One weight per example.
      compile: Further arguments of `compile`.
      random: Whether a step draws random numbers, so that it is accepted but
        cannot be compared.
      tolerance: How far weights may be from those of the loop.
      refused: What the refusal says (a regular expression), on both Kerases or
        by Keras; empty where the model is trained.
      why: The refusal's reason in the table.
      only: The one Keras that has such a model; empty for both.
      needs: A layer without which the case is left out, on old versions.
      lane: Whether to run on the oldest versions as well.
    """

    name: str
    build: Callable[[], Any]
    inputs: Any
    targets: Any
    loss: Callable[[], Any] = lambda: keras.losses.MeanSquaredError()
    example_loss: Callable[[Any, Any, Any], Any] | None = None
    reduction: str = "mean"
    sample_weight: np.ndarray | None = None
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)
    random: bool = False
    tolerance: float = 1e-5
    refused: str | Mapping[str, str] = ""
    why: str = ""
    only: str = ""
    needs: str = ""
    lane: bool = False

    def refusal(self, by: str = RUNNING) -> str:
        """What a refusal by one Keras says; empty if there is none."""
        if isinstance(self.refused, str):
            return self.refused
        return self.refused.get(by, "")

    def outcome(self, by: str = RUNNING) -> str:
        """What the table says of one Keras."""
        if self.only and self.only != by:
            return f"not in {by}"
        if self.refusal(by):
            return f"refused: {self.why}"
        return "accepted (random)" if self.random else "equal to the loop"


_random = np.random.RandomState(0)
IDS = _random.randint(0, 30, (EXAMPLES,)).astype("int32")
FEW_IDS = _random.randint(0, 6, (EXAMPLES, 5)).astype("int32")
MASKED_IDS = _random.randint(0, 30, (EXAMPLES, 5)).astype("int32")
MASKED_IDS[:, 3:] *= _random.rand(EXAMPLES, 2) > 0.5
MANY_IDS = _random.randint(0, 9, (EXAMPLES, 70)).astype("int32")
FEATURES = _random.randn(EXAMPLES, 4).astype("float32")
SEQUENCES = _random.randn(EXAMPLES, 5, 4).astype("float32")
REAL = _random.randn(EXAMPLES, 1).astype("float32")
BINARY = (_random.rand(EXAMPLES, 1) > 0.5).astype("float32")
CLASSES = _random.randint(0, 3, (EXAMPLES,)).astype("int32")
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
WEIGHTS = _random.rand(EXAMPLES).astype("float32") + 0.1
MIXED = (IDS, FEW_IDS, FEATURES)


def embedding(rows: int = 30, width: int = 4, **options: Any) -> Any:
    return layers.Embedding(
        rows, width, embeddings_initializer="normal", **options
    )


def dense_model(outputs: int = 1, activation: str | None = None) -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, activation="relu"),
            layers.Dense(outputs, activation=activation),
        ]
    )


def functional(*tail: Callable[[], Any], outputs: int = 1) -> Any:
    """Two tables and dense features, then the given layers."""
    one = keras.Input((), dtype="int32")
    several = keras.Input((5,), dtype="int32")
    dense = keras.Input((4,))
    pooled = layers.GlobalAveragePooling1D()(embedding(6)(several))
    x = layers.Concatenate()([embedding()(one), pooled, dense])
    x = layers.Dense(7, activation="relu")(x)
    for layer in tail:
        x = layer()(x)
    return keras.Model([one, several, dense], layers.Dense(outputs)(x))


def sequence(*middle: Callable[[], Any], mask: bool = False) -> Any:
    """Looked-up items, the given layers, then pooling."""
    ids = keras.Input((5,), dtype="int32")
    x = embedding(width=8, mask_zero=mask)(ids)
    for layer in middle:
        x = layer()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Dense(1)(layers.Dense(6, "relu")(x)))


class Through(keras.Model):
    """What the given layers make of dense features or sequences."""

    def __init__(self, *steps: Callable[[Any], Any], outputs: int = 1):
        super().__init__()
        self.steps = steps
        self.parts = [s for s in steps if isinstance(s, layers.Layer)]
        self.score = layers.Dense(outputs)

    def call(self, inputs: Any, training: bool = False) -> Any:
        for step in self.steps:
            inputs = step(inputs)
        return self.score(inputs)
