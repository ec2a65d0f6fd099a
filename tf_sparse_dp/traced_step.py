"""A model's own training step, traced without being taken.

The step is traced as `fit` traces it, except that the optimizer hands the
gradients to a reader instead of applying them. So whatever the model does in
its step, with whichever optimizer, can be looked at before anything is trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.gradients.separation import Gradient

KERAS_3 = hasattr(tf.keras, "__version__")  # tf-keras has none here.

# Gets gradients and variables; gives tensors for when the step runs.
Reader = Callable[[Sequence[Gradient], Sequence[Any]], Any]


def trace(
    model: Any, spec: Any, read: Reader, forget: Callable[[], None]
) -> Any:
    """Traces `model.train_step` up to the point where gradients are applied.

    Nothing is run. A model without variables gets them, as in `fit`.

    Args:
      model: A compiled Keras model.
      spec: Specification of a batch, see `batch_spec`.
      read: Called with gradients and variables, while tracing.
      forget: Called before the step is traced, which may happen twice: the
        first trace creates variables.

    Returns:
      The traced `tf.function`. It returns what `read` gave, once for each
      time that the step applies gradients.

    Raises:
      TypeError: If `model` is no model of the running `tf.keras`.
      ValueError: If the model is not compiled, or its step applies no
        gradients with `model.optimizer`.
    """
    if not isinstance(model, tf.keras.Model):
        raise TypeError(
            f"model is a {type(model).__name__}; expected a model of tf.keras, "
            f"which is {'Keras 3' if KERAS_3 else 'tf-keras'} here."
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(
            f"The model '{model.name}' has no optimizer. Compile it first, "
            "with the loss that it will be trained with: model.compile("
            "optimizer=..., loss=...). Any optimizer will do."
        )
    found: list[Any] = []

    def step(batch: Any) -> list[Any]:
        found.clear()
        forget()
        with _read_by(optimizer, lambda g, v: found.append(read(g, v))):
            _step(model, batch)
        return found

    # tf-keras lets AutoGraph convert the step, Keras 3 does not.
    traced = tf.function(step, input_signature=[spec], autograph=not KERAS_3)
    traced.get_concrete_function()
    if not found:
        raise ValueError(
            f"The training step of '{model.name}' applied no gradients with "
            "model.optimizer. Apply them with self.optimizer.apply_gradients "
            "in train_step."
        )
    return traced


def _step(model: Any, batch: Any) -> None:
    try:
        model.train_step(batch)
    except (TypeError, ValueError) as error:
        _, labels, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
        if labels is not None or not getattr(model, "loss", None):
            raise
        raise ValueError(
            f"The training step of '{model.name}' failed, and its loss "
            f"{model.loss!r} got no labels: the batch holds features only. "
            "Pass (x, y), as fit gets them."
        ) from error


@contextlib.contextmanager
def _read_by(optimizer: Any, reader: Callable[..., None]) -> Iterator[None]:
    """While open, `optimizer` gives gradients to `reader` and applies none."""

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(grads_and_vars: Any, *_: Any, **__: Any) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        reader(gradients, variables)
        return optimizer.iterations

    @tf.autograph.experimental.do_not_convert
    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        if trainable_variables is None:
            trainable_variables = optimizer._trainable_variables
        reader(list(grads), list(trainable_variables))
        return optimizer.iterations

    # Past `__setattr__`, with which Keras would track them as state.
    methods = vars(optimizer)
    methods["apply_gradients"], methods["apply"] = apply_gradients, apply
    try:
        yield
    finally:
        del methods["apply_gradients"], methods["apply"]


def batch_spec(batch: Any, rows: int | None = None) -> Any:
    """The specification of a batch as the training step sees it in `fit`.

    Args:
      batch: A batch, or a data set, whose own specification is kept as it is.
      rows: The number of examples; None leaves it open, as Keras does for
        arrays.
    """
    if isinstance(batch, tf.data.Dataset):
        return batch.element_spec
    return tf.nest.map_structure(
        lambda part: open_spec(part, rows), as_batch(batch)
    )


def as_batch(batch: Any) -> Any:
    """A batch as tensors, in the structure in which `train_step` gets it.

    Raises:
      TypeError: If the batch holds anything but arrays and tensors.
      ValueError: If a tensor has no axis of examples.
    """
    if isinstance(batch, tf.data.Dataset):
        batch = next(iter(batch))
    if isinstance(batch, (tuple, list)):
        batch = tuple(batch)
        while batch and batch[-1] is None:
            batch = batch[:-1]
        # None in the middle is for labels that there are not.
        return tuple(
            None if part is None else _as_tensors(part) for part in batch
        )
    return _as_tensors(batch)


def _as_tensors(structure: Any) -> Any:
    return tf.nest.map_structure(_as_tensor, _without_lists(structure))


def _without_lists(structure: Any) -> Any:
    """Lists as tuples: data sets, and so Keras, take lists for tensors."""
    if isinstance(structure, (list, tuple)) and not hasattr(
        structure, "_fields"
    ):
        return tuple(_without_lists(part) for part in structure)
    if isinstance(structure, dict):
        return {name: _without_lists(part) for name, part in structure.items()}
    return structure


def _as_tensor(part: Any) -> Any:
    if isinstance(part, tf.RaggedTensor | tf.SparseTensor):
        return part
    if not tf.is_tensor(part) and not isinstance(part, np.ndarray):
        raise TypeError(
            f"The batch holds a {type(part).__name__}; expected arrays or "
            "tensors with one row per example, as in (x, y): "
            "for instance next(iter(dataset))."
        )
    if isinstance(part, np.ndarray) and np.issubdtype(part.dtype, np.floating):
        part = part.astype(tf.keras.backend.floatx())  # As fit does.
    tensor = tf.convert_to_tensor(part)
    if not tensor.shape.rank:
        raise ValueError(
            "The batch holds a scalar; expected one row per example in every "
            "tensor."
        )
    return tensor


def open_spec(tensor: Any, rows: int | None = None) -> Any:
    """The specification of a tensor with any number of examples, or `rows`."""
    if tensor is None:
        return tf.data.Dataset.from_tensors((0, None)).element_spec[1]
    shape = [rows, *tensor.shape[1:]]
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            shape,
            tensor.dtype,
            tensor.ragged_rank,
            tensor.row_splits.dtype,
        )
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensorSpec(shape, tensor.dtype)
    return tf.TensorSpec(shape, tensor.dtype)
