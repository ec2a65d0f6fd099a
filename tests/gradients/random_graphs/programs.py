"""Random programs over a small batch: made by running them, then replayed.

A program is a list of steps, each of which adds one tensor to a pool. While a
program is made its steps run eagerly on one batch, so that every shape is
known and what fails or explodes is dropped at once. The same steps are then
replayed while a graph is traced, with a batch size that may be unknown.

`Value.axis` is where the generator believes the examples to be. It only
steers how often examples meet; nothing that is checked depends on it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

LARGEST_VALUE = 1e3
MOST_ENTRIES = 400
MOST_AXES = 4
TABLE_ROWS = 5
LONGEST_BAG = 3
BAGS = 5  # The place of the ragged feature, behind all others.


@dataclasses.dataclass(frozen=True)
class Size:
    """A size in a shape that is `factor` times the batch size."""

    factor: int = 1


@dataclasses.dataclass(frozen=True)
class Context:
    """What a step may use besides tensors of the pool.

    Attributes:
      rows: The batch size: an int, or a scalar tensor.
      variables: The weights.
    """

    rows: Any
    variables: Sequence[Any]

    def shape(self, sizes: Sequence[int | Size]) -> Any:
        """A shape with the batch size put in."""
        sizes = [
            s.factor * self.rows if isinstance(s, Size) else s for s in sizes
        ]
        return tf.stack(sizes) if sizes else sizes


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor of the pool as it was on the batch of the maker."""

    tensor: Any
    axis: int | None = None
    trained: bool = False

    @property
    def shape(self) -> list[int]:
        return self.tensor.shape.as_list()

    @property
    def rank(self) -> int:
        return self.tensor.shape.rank


@dataclasses.dataclass(frozen=True)
class Step:
    """One tensor from others: `function(context, *pool[places])`."""

    text: str
    function: Callable[..., Any]
    places: tuple[int, ...]


class Program:
    """A random program and what it needs: inputs, weights and a loss.

    Args:
      seed: Everything random is drawn from it.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.random = r = random.Random(seed)
        self.numbers = np.random.RandomState(seed % 2**32)
        self.rows = r.choice([2, 3, 3, 4]) if r.random() > 0.03 else 1
        self.static = r.random() < 0.5 or self.rows == 1
        self.dtype = tf.float64 if r.random() < 0.8 else tf.float32
        self.wildness = r.choice([0.0, 0.05, 0.2, 0.6, 1.0])
        # Sizes that coincide with the batch size, or with twice it.
        sizes = [2, 3, 4, 5, self.rows, 2 * self.rows]
        self.width, self.length = r.choice(sizes), r.choice([1, *sizes[:-1]])
        self.steps: list[Step] = []
        self.variables: list[Any] = []
        self.ragged = r.random() < 0.2
        self.inputs = self.draw(self.numbers)
        self.context = Context(self.rows, self.variables)
        self.pool = [Value(x, 0) for x in self.tensors(self.inputs)]
        self.floats = [
            i for i, v in enumerate(self.pool) if v.tensor.dtype.is_floating
        ]

    @property
    def careful(self) -> bool:
        """Whether to keep examples apart in the next step."""
        return self.random.random() >= self.wildness

    def draw(
        self, numbers: np.random.RandomState, rows: int | None = None
    ) -> list[np.ndarray]:
        """A batch: features, sequences of features, labels, ids, id lists.

        Then, perhaps, ids and how many of them each example has.
        """
        rows = self.rows if rows is None else rows
        kind = self.dtype.as_numpy_dtype
        batch = [
            numbers.randn(rows, self.width).astype(kind),
            numbers.randn(rows, self.length, self.width).astype(kind),
            numbers.randn(rows).astype(kind),
            numbers.randint(0, TABLE_ROWS, rows).astype("int32"),
            numbers.randint(0, TABLE_ROWS, (rows, self.length)).astype("int32"),
        ]
        if self.ragged:
            ids = numbers.randint(0, TABLE_ROWS, (rows, LONGEST_BAG))
            lengths = numbers.randint(0, LONGEST_BAG + 1, rows)
            batch += [ids.astype("int32"), lengths.astype("int32")]
        return batch

    def tensors(self, batch: Sequence[np.ndarray]) -> list[Any]:
        """The batch as the traced step gets it."""
        if not self.ragged:
            return [tf.constant(array) for array in batch]
        *arrays, ids, lengths = batch
        there = np.arange(LONGEST_BAG) < lengths[:, None]
        bags = tf.RaggedTensor.from_row_lengths(ids[there], lengths)
        return [*map(tf.constant, arrays), bags]

    def specs(self) -> list[Any]:
        rows = self.rows if self.static else None
        arrays = self.inputs[:BAGS]
        specs: list[Any] = [
            tf.TensorSpec([rows, *array.shape[1:]], array.dtype)
            for array in arrays
        ]
        if self.ragged:
            specs.append(
                tf.RaggedTensorSpec([rows, None], tf.int32, 1, tf.int32)
            )
        return specs

    def variable(self, shape: Sequence[int]) -> int:
        """A weight, perhaps one that is used already; gives its number."""
        same = [
            number
            for number, variable in enumerate(self.variables)
            if tuple(variable.shape) == tuple(shape)
        ]
        if same and self.random.random() < 0.4:
            return self.random.choice(same)
        value = self.numbers.randn(*shape) / np.sqrt(max(1, np.prod(shape[:1])))
        self.variables.append(tf.Variable(value, dtype=self.dtype))
        return len(self.variables) - 1

    def constant(self, shape: Sequence[int]) -> Any:
        """An array to be closed over, as a constant of the graph."""
        value = self.numbers.randn(*shape)
        return np.asarray(value, self.dtype.as_numpy_dtype)

    def pick(self, suits: Callable[[Value], bool] = lambda _: True) -> int:
        """A float tensor of the pool, rather a late one.

        Raises:
          LookupError: If none suits.
        """
        places = [i for i in self.floats if suits(self.pool[i])]
        if not places:
            raise LookupError
        late = places[-3:]
        return self.random.choice(
            late if self.random.random() < 0.7 else places
        )

    def add(
        self,
        text: str,
        function: Callable[..., Any],
        *places: int,
        axis: int | None,
        trained: bool = False,
    ) -> int:
        """Runs a step and keeps it if its result is of use.

        Raises:
          ArithmeticError: If the result is too large, or not finite.
        """
        inputs = [self.pool[place] for place in places]
        tensor = function(self.context, *[value.tensor for value in inputs])
        if tensor.shape.rank > MOST_AXES or not (
            0 < tensor.shape.num_elements() <= MOST_ENTRIES
        ):
            raise ArithmeticError("size")
        if tensor.dtype.is_floating:
            array = tensor.numpy()
            if not np.isfinite(array).all() or (
                np.abs(array).max() > LARGEST_VALUE
            ):
                raise ArithmeticError("value")
            self.floats.append(len(self.pool))
        trained = trained or any(value.trained for value in inputs)
        self.steps.append(Step(text, function, places))
        self.pool.append(Value(tensor, axis, trained))
        return len(self.pool) - 1

    def replay(self, rows: Any, inputs: Sequence[Any]) -> Any:
        """The last step's tensor, for another batch."""
        context = Context(rows, self.variables)
        pool = list(inputs)
        for step in self.steps:
            tensors = [pool[place] for place in step.places]
            pool.append(step.function(context, *tensors))
        return pool[-1]

    def describe(self) -> str:
        """The program, a line a step."""
        lines = [
            f"seed {self.seed}: {self.rows} rows "
            f"({'static' if self.static else 'dynamic'}), {self.dtype.name}"
        ]
        names = ["x", "z", "y", "ids", "lists", *["bags"] * self.ragged]
        lines += [
            f"  {name} {value.shape}"
            for name, value in zip(names, self.pool, strict=False)
        ]
        for place, step in enumerate(self.steps, len(names)):
            names.append(f"v{place}")
            arguments = ", ".join(names[p] for p in step.places)
            shape = self.pool[place].shape
            lines.append(f"  v{place} {shape} = {step.text} ({arguments})")
        return "\n".join(lines)
