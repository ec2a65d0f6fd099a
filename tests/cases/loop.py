"""The reference: one example at a time, without any part of the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.cases.case import (
    BATCHES,
    EXAMPLES,
    KERAS_3,
    LEARNING_RATE,
    Case,
    keras,
)


def rows(structure: Any, start: int, stop: int) -> Any:
    """Some examples of nested arrays."""

    def some(array: Any) -> Any:
        if isinstance(array, tf.SparseTensor):
            columns = array.shape[1]
            return tf.sparse.slice(array, [start, 0], [stop - start, columns])
        return array[start:stop]

    return tf.nest.map_structure(some, structure)


def tensors(structure: Any) -> Any:
    """Nested arrays as tensors; ragged ones stay as they are."""
    return tf.nest.map_structure(
        lambda a: tf.constant(a) if isinstance(a, np.ndarray) else a, structure
    )


def built(case: Case) -> Any:
    """The case's model with its variables, from a fixed seed."""
    keras.utils.set_random_seed(1)
    model = case.build()
    model(tensors(rows(case.inputs, 0, 2)))
    return model


class Loop:
    """Training on a case's examples one by one.

    The gradient of one example is traced once, for speed.
    """

    def __init__(self, case: Case, model: Any):
        self.case = case
        self.model = model
        self._traced = tf.function(self._gradients)

    def gradients(self, example: int) -> list[np.ndarray]:
        """Gradients of one example's own loss, without regularisers."""
        parts = (self.case.inputs, self.case.targets)
        weight = self.case.sample_weight
        if weight is not None:
            parts = (*parts, weight)
        parts = tensors(rows(parts, example, example + 1))
        return [g.numpy().astype("float64") for g in self._traced(*parts)]

    def median_norm(self) -> float:
        norms = [norm(self.gradients(i)) for i in range(EXAMPLES)]
        return float(np.median(norms))

    def weights(
        self, clip_norm: float, expected_batch_size: float
    ) -> list[np.ndarray]:
        """Weights after three batches; the model's own are put back."""
        variables = self.model.trainable_variables
        initial = [v.numpy().copy() for v in variables]
        start = 0
        for size in BATCHES:
            total = [np.zeros(v.shape) for v in variables]
            for example in range(start, start + size):
                gradients = self.gradients(example)
                shrink = min(1.0, clip_norm / max(norm(gradients), 1e-30))
                for t, g in zip(total, gradients, strict=True):
                    t += shrink * g
            extra = self._regularisers()
            for v, t, e in zip(variables, total, extra, strict=True):
                step = learning_rate(clip_norm) * (t / expected_batch_size + e)
                v.assign(v.numpy() - step)
            start += size
        final = [v.numpy().copy() for v in variables]
        for v, value in zip(variables, initial, strict=True):
            v.assign(value)
        return final

    def _gradients(self, inputs: Any, targets: Any, weight: Any = None) -> Any:
        with tf.GradientTape() as tape:
            if self.case.example_loss is None:
                outputs = self.model(inputs, training=True)
                loss = self.case.loss()(targets, outputs, sample_weight=weight)
            else:
                loss = self.case.example_loss(self.model, inputs, targets)
        return self._dense(tape, loss)

    def _regularisers(self) -> list[Any]:
        """Gradients of what the weights alone decide."""
        if self.case.example_loss is not None or not self.model.losses:
            return [0.0] * len(self.model.trainable_variables)
        with tf.GradientTape() as tape:
            loss = tf.add_n(self.model.losses)
        return [g.numpy() for g in self._dense(tape, loss)]

    def _dense(self, tape: Any, loss: Any) -> list[tf.Tensor]:
        variables = self.model.trainable_variables
        gradients = tape.gradient(
            loss, [v.value for v in variables] if KERAS_3 else variables
        )
        return [
            tf.zeros(v.shape) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(gradients, variables, strict=True)
        ]


def learning_rate(clip_norm: float) -> float:
    """Steps of one size whatever the loss, so that one tolerance does."""
    return LEARNING_RATE / clip_norm


def norm(gradients: list[np.ndarray]) -> float:
    return float(np.sqrt(sum((g**2).sum() for g in gradients)))


def dataset(case: Case) -> tf.data.Dataset:
    """The case's examples in batches of 8, 8 and 4."""
    parts = (case.inputs, case.targets)
    if case.sample_weight is not None:
        parts += (case.sample_weight,)
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCHES[0])
