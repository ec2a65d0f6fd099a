"""What the layers for Keras 3 and tf-keras have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tf_sparse_dp.distribute import replicas
from tf_sparse_dp.layers.denoising import Denoising
from tf_sparse_dp.layers.initial_rows import InitialRows
from tf_sparse_dp.layers.lazy_variable import LazyVariable, lazy_variable
from tf_sparse_dp.layers.pending_noise import PendingNoise

# Of Keras' own layer, and without meaning here or wrong under lazy noise.
_REFUSED = {
    "embeddings_regularizer": "A regulariser moves all rows at every step",
    "embeddings_constraint": "A constraint looks at all rows at every step",
    "activity_regularizer": "A penalty on outputs mixes with the loss",
    "lora_rank": "Low-rank updates are not noise on rows",
    "sparse": "Sparse outputs cannot be clipped per example",
    "use_one_hot_matmul": "One-hot products read all rows at every step",
}


class LazyRows:
    """A drop-in for `keras.layers.Embedding` with dense noise at sparse cost.

    Trained by `DPSparseOptimizer`, its table gets Gaussian noise on all rows at
    every step, as DP-SGD demands, but a row's noise is drawn only when the row
    is next read: as one number per entry whose variance is that of all the
    steps since. A step costs what the rows in the batch cost, however many rows
    there are.

    **Guarantee.** That of `Gaussian` noise on all rows at every step: the
    weights that anyone can read have the same distribution (docs/training.md
    has the proof). Nothing reads a row without its noise: not the model, not
    `get_weights`, not saving in any format. The end of `fit` draws all that is
    pending, and so does reading the table as a whole, which takes time in
    proportion to all rows.

    Exact only for updates that are linear in the gradient, so that tables are
    updated by plain SGD, or by `DualAveraging`: the `tables` argument of
    `DPSparseOptimizer`.

    Args: those of `keras.layers.Embedding` without regularisers, constraints
      and low-rank updates, weights being float32, and
      denoise: Whether lookups give the table's rows shrunk towards their
        initial values, by as much as `Denoising` finds them to be noise. For
        tables that `DualAveraging` updates. Uniform, normal and constant
        initial values are computed again when they are needed; of others a
        copy of the table is kept. `embeddings` is the table before shrinking;
        `layer(tf.range(input_dim))` is all of it as lookups give it.

    Example:
      >>> import tensorflow as tf
      >>> import tf_sparse_dp as tsdp
      >>> items = tsdp.layers.LazyEmbedding(100_000, 16)
      >>> items(tf.constant([[3, 5]])).shape
      TensorShape([1, 2, 16])
    """

    _not_cast: ClassVar[dict[str, Any]]  # Says that to `add_weight`.
    _denoising: Denoising | None = None
    denoise = False  # Also while Keras builds the layer for given weights.

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *args: Any,
        denoise: bool = False,
        **kwargs: Any,
    ):
        if denoise and kwargs.get("weights") is not None:
            raise ValueError(
                "weights were given to LazyEmbedding with denoise=True, which "
                "shrinks rows towards what embeddings_initializer gave them. "
                "Expected one of the two: give an initializer that gives these "
                "weights, or leave denoise out."
            )
        if not isinstance(denoise, bool):
            raise TypeError(f"denoise={denoise!r} was given; expected a bool.")
        super().__init__(input_dim, output_dim, *args, **kwargs)  # type: ignore[call-arg]
        self.denoise = denoise
        for name, reason in _REFUSED.items():
            value = kwargs.get(name) or getattr(self, name, None)
            if value:
                raise ValueError(
                    f"{name}={value!r} was given to LazyEmbedding. "
                    f"{reason}, which noise that is drawn later does not "
                    "allow. Leave it out, or use keras.layers.Embedding."
                )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "denoise": self.denoise}  # type: ignore[misc]

    def build(self, input_shape: Any = None) -> None:
        if getattr(self, "built", False):
            return
        if replicas.has_copies() or replicas.count() > 1:
            strategy = type(tf.distribute.get_strategy()).__name__
            raise ValueError(
                f"LazyEmbedding '{self.name}' was built under "  # type: ignore[attr-defined]
                f"{strategy}; its rows get their noise when one device reads "
                "them. Use keras.layers.Embedding, say with Threshold() or "
                "Projection(), or train on one device."
            )
        given = self.embeddings_initializer  # type: ignore[has-type]
        initial = None
        if self.denoise:
            initial = InitialRows.of(given, self.output_dim)  # type: ignore[attr-defined]
        # Under this name Keras finds it; a saved table may come in its place.
        self.embeddings_initializer = given if initial is None else initial
        try:
            with tf.init_scope(), tf.variable_creator_scope(_lazy):
                super().build(input_shape)  # type: ignore[misc]
        finally:
            self.embeddings_initializer = given
        table = lazy_variable(self.embeddings)  # type: ignore[attr-defined]
        if table is None:
            strategy = type(tf.distribute.get_strategy()).__name__
            raise ValueError(
                f"LazyEmbedding '{self.name}' was built under "  # type: ignore[attr-defined]
                f"{strategy}, which makes variables of its own. Build it "
                "outside of the strategy's scope."
            )
        table.noise = PendingNoise(table)
        if self.denoise:
            with tf.init_scope():
                self._denoising = table.denoising = Denoising(
                    table,
                    self._kept_initial(table, initial),
                    self._kept("shrinkage", np.ones([table.shape[1]], "f4")),
                    self._kept("noise_variance", np.zeros([], "f8")),
                )

    def _kept_initial(
        self, table: LazyVariable, initial: InitialRows | None
    ) -> Callable[[tf.Tensor], tf.Tensor]:
        """Gives rows of the table as it was before any training."""
        if initial is None:
            copy = self._kept("initial", table.numpy())
            return lambda ids: tf.gather(tf.convert_to_tensor(copy), ids)
        key = self._kept("initial_key", initial.key)
        return lambda ids: initial.rows(ids, tf.convert_to_tensor(key))

    def _kept(self, name: str, value: np.ndarray) -> Any:
        """A weight that is saved with the layer and that nothing trains."""
        weight = self.add_weight(  # type: ignore[attr-defined]
            name=name,
            shape=value.shape,
            dtype=str(value.dtype),
            initializer=lambda shape, dtype=None: tf.constant(value),
            trainable=False,
            **self._not_cast,
        )
        # Checkpoints of Keras 3 have what is an attribute.
        setattr(self, f"_kept_{name}", weight)
        return weight

    def draw_noise(self) -> None:
        """Draws all noise that rows lack, as whoever reads the table would.

        Takes time in proportion to all rows, if any lacks noise.
        """
        lazy_variable(self.embeddings).draw_all()  # type: ignore[attr-defined,union-attr]

    def call(self, inputs: Any) -> Any:
        if isinstance(inputs, tf.SparseTensor):
            raise TypeError(
                f"LazyEmbedding '{self.name}' was given a SparseTensor; "  # type: ignore[attr-defined]
                "expected ids in a dense or ragged tensor. Convert it with "
                "tf.sparse.to_dense or tf.RaggedTensor.from_sparse."
            )
        return tf.ragged.map_flat_values(self._looked_up, inputs)

    def _looked_up(self, ids: tf.Tensor) -> tf.Tensor:
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)
        if self._denoising is None:
            rows = lazy_variable(self.embeddings).sparse_read(ids)  # type: ignore[attr-defined,union-attr]
        else:
            rows = self._denoising.rows(ids)
        return tf.cast(rows, self.compute_dtype)  # type: ignore[attr-defined]


def _lazy(
    next_creator: Any,
    *,
    initial_value: Any,
    name: str | None = None,
    dtype: Any = None,
    trainable: bool | None = None,
    **others: Any,
) -> LazyVariable:
    table = LazyVariable(
        initial_value, name=name, dtype=dtype, trainable=trainable
    )
    if table.dtype != tf.float32:
        raise ValueError(
            f"A LazyEmbedding has weights of type {table.dtype.name}; expected "
            "float32, in which noise is drawn. Give it dtype='float32', or "
            "dtype='mixed_bfloat16' for outputs in bfloat16."
        )
    return table
