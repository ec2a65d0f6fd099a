r"""Updates of the rows that a mechanism released, at the cost of these rows.

Keras updates a table as if it were dense: every step writes all rows of all
slots, or of the table itself. Here the rule of the inner optimizer runs on the
released rows and their slots alone, gathered before it and scattered after it.
No rule is written anew: `update_step` of the optimizer itself runs, on what
stands in for the variable and its slots. Everything around it (clipping, weight
decay, averages, constraints, counting) remains the optimizer's own, and is
dense where it is so by definition.

**Rows.** A row is released if it is not zero: mechanisms fill up fixed sizes
with rows of zeros, and those move nothing. Ids that repeat are summed first.

**Lazy.** A row that was not released does not move and neither do its slots.
For SGD without momentum and for Adagrad that is what the dense rule does, as a
gradient of zero changes nothing. A rule with a memory (momentum, Adam, RMSprop)
would have moved the row on by what it remembers, and would have forgotten some
of it; here its memory waits until the row is released again. Counters of steps
are the optimizer's, not the row's.

**Privacy.** Only released sums, weights and slots enter: it is post-processing.

Gradients that are not `tf.IndexedSlices` any more when `update_step` gets them
are used as ever: after accumulation over several steps, and after
`global_clipnorm` of Keras 3. What the inner optimizer clips, it clips before
ids that repeat are summed, as tf-keras does; mechanisms do not repeat ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# Optimizers of Keras whose rule treats every entry alone. Others take norms or
# means over the variable (Adafactor, Lamb, Muon), or average over all steps.
ROW_WISE = frozenset(
    "SGD Adagrad Adam AdamW Adadelta Adamax Nadam RMSprop Ftrl Lion".split()
)


def is_row_wise(inner: Any) -> bool:
    """Whether the rule of an optimizer may run on some rows alone.

    A class of one's own says so with `row_wise = True`, if its `update_step`
    computes each row of the variable from that row of the gradient, of the
    variable and of slots; and if slots stand in lists in the order of the
    variables that it was built with, with one row for each of the variable's.
    """
    kind = type(inner)
    if kind.__module__.split(".")[0] in ("keras", "tf_keras"):
        return kind.__name__ in ROW_WISE
    return getattr(kind, "row_wise", False) is True


@contextlib.contextmanager
def by_rows(inner: Any) -> Iterator[None]:
    """While it lasts, the optimizer updates released rows only.

    Args:
      inner: An optimizer of either Keras. If it is not row-wise, nothing
        changes.
    """
    if not is_row_wise(inner):
        yield
        return
    own = inner.update_step

    @tf.autograph.experimental.do_not_convert
    def update_step(gradient: Any, variable: Any, *rest: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices):
            _update_rows(inner, gradient, _native(variable), rest)
        else:
            own(gradient, variable, *rest)

    # Not by setattr, which in Keras is more than that.
    vars(inner)["update_step"] = update_step
    try:
        yield
    finally:
        del vars(inner)["update_step"]


class RowView:
    """Rows of a variable, for code that expects the variable.

    Reading it gives the rows, assigning to it replaces them; the variable
    changes when they are written. It can do what optimizers do to variables,
    and nothing else.

    Args:
      variable: The variable.
      ids: Ids of rows; they may repeat.
    """

    __array_priority__ = 100  # Else NumPy's numbers would multiply it.

    def __init__(self, variable: tf.Variable, ids: tf.Tensor):
        self._variable = variable
        self._ids = ids
        self._before: tf.Tensor | None = None
        self._rows: tf.Tensor | None = None

    @property
    def dtype(self) -> tf.DType:
        return self._variable.dtype

    @property
    def shape(self) -> tf.TensorShape:
        return self._ids.shape.concatenate(self._variable.shape[1:])

    @property
    def value(self) -> RowView:
        """As of a Keras variable: what changes when it is assigned to."""
        return self

    @property
    def _unique_id(self) -> str:
        """By which optimizers find the slots of a variable.

        Of a replica's copy, those of the variable that it is a copy of.
        """
        for holder in (self._variable, self._variable.handle):
            variable_of = getattr(holder, "_distributed_container", None)
            if variable_of is not None:
                return variable_of()._unique_id
        return self._variable._unique_id

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        if self._rows is None:
            self._before = self._rows = tf.gather(self._variable, self._ids)
        return tf.convert_to_tensor(self._rows, dtype, name=name)

    def assign(self, value: Any) -> RowView:
        self._rows = self._checked(value)
        return self

    def assign_add(self, value: Any) -> RowView:
        return self.assign(tf.convert_to_tensor(self) + self._checked(value))

    def assign_sub(self, value: Any) -> RowView:
        return self.assign(tf.convert_to_tensor(self) - self._checked(value))

    def write(self, live: tf.Tensor) -> None:
        """Writes what was assigned into the variable, where `live` is True.

        Args:
          live: Bool, one per id; the same wherever an id repeats, as rows are.
        """
        if self._rows is self._before:
            return
        if self._before is None:
            self._before = tf.gather(self._variable, self._ids)
        live = tf.reshape(live, [-1] + [1] * (self.shape.rank - 1))
        rows = tf.where(live, self._rows, self._before)
        self._variable.scatter_update(tf.IndexedSlices(rows, self._ids))

    def _checked(self, value: Any) -> tf.Tensor:
        """A value of the shape of the rows: variables do not broadcast."""
        value = tf.convert_to_tensor(value, self.dtype)
        if not value.shape.is_compatible_with(self.shape):
            raise ValueError(
                f"update_step gave a value of shape {value.shape} to rows of "
                f"shape {self.shape}. Expected one value for each entry: an "
                "optimizer with row_wise = True computes every row from that "
                "row alone, and keeps slots in lists."
            )
        return value


def _operator(name: str) -> Callable[..., Any]:
    operator = getattr(tf.Tensor, name)

    def run(self: RowView, *others: Any) -> Any:
        return operator(tf.convert_to_tensor(self), *others)

    return run


for _name in tf.Tensor.OVERLOADABLE_OPERATORS:
    setattr(RowView, _name, _operator(_name))


def _update_rows(
    inner: Any,
    gradient: tf.IndexedSlices,
    variable: tf.Variable,
    rest: tuple[Any, ...],
) -> None:
    """The rule of an optimizer on the rows of a gradient.

    Every occurrence of an id gets the sum over all of them, so that all compute
    and write the same row: no size depends on how many ids repeat, as XLA needs
    it.
    """
    ids = tf.convert_to_tensor(gradient.indices)
    total = _total(ids, tf.cast(gradient.values, variable.dtype))
    views: dict[int, RowView] = {}

    def rows_of(table: tf.Variable) -> RowView:
        return views.setdefault(id(table), RowView(table, ids))

    # The optimizer as `update_step` is to see it: with rows in place of slots.
    # A copy, as lists that are changed in place can't be saved in checkpoints.
    view = object.__new__(type(inner))
    attributes = vars(view)
    attributes.update(vars(inner))
    attributes.pop("update_step", None)
    place = _place(inner, variable)
    for name, slots in vars(inner).items():
        if isinstance(slots, list) and place < len(slots):
            slot = _native(slots[place])
            if _has_rows(slot, variable.shape[0]):
                attributes[name] = [*slots]
                attributes[name][place] = rows_of(slot)
    before = dict(attributes)
    view.update_step(total, rows_of(variable), *rest)
    for name, value in attributes.items():
        if name not in before or before[name] is not value:
            setattr(inner, name, value)  # Such as a count of calls.
    live = tf.reduce_any(total != 0, list(range(1, total.shape.rank)))
    for rows in views.values():
        rows.write(live)


def _total(ids: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """For every occurrence of an id, the sum of the values of all."""
    places = tf.unique(ids)[1][:, tf.newaxis]
    sums = tf.tensor_scatter_nd_add(tf.zeros_like(values), places, values)
    return tf.gather_nd(sums, places)


def _native(variable: Any) -> Any:
    """The TensorFlow variable in a variable of Keras 3."""
    if isinstance(variable, tf.Variable):
        return variable
    return getattr(variable, "value", variable)


def _has_rows(slot: Any, rows: int) -> bool:
    return (
        isinstance(slot, tf.Variable)
        and slot.shape.rank > 0
        and slot.shape[0] == rows
    )


def _place(inner: Any, variable: tf.Variable) -> int:
    """Where the slots of a variable stand in lists."""
    places = getattr(inner, "_trainable_variables_indices", None)  # Keras 3.
    if places is None:
        places = inner._index_dict  # tf-keras.
    return places[inner._var_key(variable)]
