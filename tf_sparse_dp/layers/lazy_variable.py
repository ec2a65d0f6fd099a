"""A table whose rows get their noise when they are read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.compiled.row_sums import can_add_up, row_sums
from tf_sparse_dp.gradients.internals import is_run_elsewhere, is_saved_only
from tf_sparse_dp.layers.pending_noise import PendingNoise

# What tf.Variable(...) makes: its name is not public, its class is. In a graph,
# since the first eager operation ends the time to choose threads and devices.
with tf.Graph().as_default():
    _Variable: Any = type(tf.Variable(0.0))

_ARGUMENT = (
    "The table of a LazyEmbedding was given to a tf.function as an argument; "
    "the function would read it without the noise that rows still lack. Give "
    "it rows that the layer looked up, or tf.convert_to_tensor(table), or use "
    "the layer in the function without passing it."
)


def _with_noise(name: str) -> Callable[..., Any]:
    """A method of variables, for one all of whose rows have their noise."""

    def method(self: LazyVariable, *args: Any, **kwargs: Any) -> Any:
        with tf.control_dependencies(self._drawn()):
            return getattr(_Variable, name)(self, *args, **kwargs)

    return method


class LazyVariable(_Variable):  # type: ignore[misc]
    """A float32 variable [rows, width] that is never read without its noise.

    Reading rows first draws the noise that these rows lack; reading the
    variable as a whole draws that of all rows. Saving it in any format,
    copying it and handing it to a function are ways of reading. In a graph the
    draw is part of the graph.

    Only `add` leaves a table that lacks noise. What is added otherwise stands
    beside it; `assign` replaces all rows, and with them what they lacked; all
    else that writes rows first draws their noise.
    """

    noise: Any = None  # PendingNoise, as soon as it has its first value.
    denoising: Any = None  # Denoising, if lookups give shrunk rows.

    def add(
        self, update: tf.Tensor | tf.IndexedSlices, stddev: tf.Tensor | float
    ) -> None:
        """Adds what is private only with noise of this size on every entry."""
        # First what is owed: an update without noise is never forgotten.
        with tf.control_dependencies(self.noise.owe(stddev)):
            if isinstance(update, tf.IndexedSlices):
                self._add_rows(
                    update.indices, tf.cast(update.values, self.dtype)
                )
            else:
                tf.raw_ops.AssignAddVariableOp(
                    resource=self.handle, value=tf.cast(update, self.dtype)
                )

    def _add_rows(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        if can_add_up(rows):
            ids, rows = row_sums(rows, ids)
        # Never read and written back: noise that another thread draws in
        # between would be lost.
        tf.raw_ops.ResourceScatterAdd(
            resource=self.handle, indices=ids, updates=rows
        )

    def draw_all(self) -> None:
        """Draws all noise that rows lack."""
        self.noise.draw_all()

    # Reading, all ways of it.

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        indices = tf.convert_to_tensor(indices)
        with tf.control_dependencies(self._drawn(indices)):
            return self._checked(super().sparse_read(indices, name))

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        indices = tf.convert_to_tensor(indices)
        with tf.control_dependencies(self._drawn(indices[..., 0])):
            return self._checked(super().gather_nd(indices, name))

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        with tf.control_dependencies(self._drawn()):
            return self._checked(super()._read_variable_op(no_copy))

    def _drawn(self, ids: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Draws the noise of these rows, or of all; gives what to wait for."""
        # What is saved has all its noise; and it must not hold a key.
        if self.noise is None or is_saved_only():
            return []
        if is_run_elsewhere():
            return []
        return [self.noise.draw_all() if ids is None else self.noise.draw(ids)]

    def _checked(self, values: tf.Tensor) -> tf.Tensor:
        """Values of which a graph that draws nothing must not let all out."""
        if self.noise is None or is_saved_only() or not is_run_elsewhere():
            return values
        return self.noise.only_if_none(values)

    @property
    def _type_spec(self) -> Any:
        raise TypeError(_ARGUMENT)

    def __tf_tracing_type__(self, context: Any) -> Any:
        raise TypeError(_ARGUMENT)

    def _lazy_read(self, op: Any) -> Any:  # TensorFlow's own would not draw.
        return self

    @property
    def _handle(self) -> Any:
        # Eager operations read by a handle of this name, past all the above.
        return None

    @_handle.setter
    def _handle(self, handle: Any) -> None:
        self._hidden_handle = handle

    @property
    def handle(self) -> Any:
        return self._hidden_handle

    def __repr__(self) -> str:
        # TensorFlow's shows values: for the sake of a message all noise would
        # be drawn, and by functions that must not be called while one traces.
        return f"<LazyVariable '{self.name}' shape={self.shape}>"

    # Copying.

    def __deepcopy__(self, memo: dict[Any, Any]) -> LazyVariable:
        copied = self.__reduce__()[0]()
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        make = functools.partial(
            LazyVariable.made,
            self.numpy(),
            trainable=self.trainable,
            name=self._shared_name,
        )
        return make, ()

    @classmethod
    def made(cls, initial_value: Any, **kwargs: Any) -> LazyVariable:
        """A variable with noise of its own."""
        variable = cls(initial_value, **kwargs)
        variable.noise = PendingNoise(variable)
        return variable

    # Replacing.

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        done = super().assign(value, *args, **kwargs)
        if self.noise is not None:
            self.noise.forget()
        return done

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        done = super()._restore_from_tensors(restored_tensors)
        if self.noise is not None:
            self.noise.forget()
        return done

    # Rows that are scaled or chosen among have to have their noise by then:
    # noise that comes later would be too small for rows that were made larger.

    scatter_mul = _with_noise("scatter_mul")
    scatter_div = _with_noise("scatter_div")
    scatter_min = _with_noise("scatter_min")
    scatter_max = _with_noise("scatter_max")
    scatter_update = _with_noise("scatter_update")
    batch_scatter_update = _with_noise("batch_scatter_update")
    scatter_nd_min = _with_noise("scatter_nd_min")
    scatter_nd_max = _with_noise("scatter_nd_max")
    scatter_nd_update = _with_noise("scatter_nd_update")
    _strided_slice_assign = _with_noise("_strided_slice_assign")


def lazy_variable(variable: Any) -> LazyVariable | None:
    """The lazy variable behind a Keras variable, if it is one."""
    raw = getattr(variable, "_value", variable)  # Keras 3 wraps TensorFlow's.
    return raw if isinstance(raw, LazyVariable) else None


def not_lazy(variables: Sequence[Any]) -> list[Any]:
    """The variables that are updated as usual."""
    return [v for v in variables if lazy_variable(v) is None]
