"""Rows of tables that are one canary's own, and how they moved."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.gradients.per_example import (
    RowTerms,
    per_example_gradients,
)
from tf_sparse_dp.gradients.separation import Gradient
from tf_sparse_dp.layers.lazy_variable import lazy_variable
from tf_sparse_dp.traced_step import as_batch, open_spec, trace

# Examples whose gradients are computed at a time.
_CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class Lookups:
    """What examples look up in one table.

    Attributes:
      place: Of the table in the model's trainable variables.
      rows: int64 [n], the rows.
      examples: int64 [n], whose they are.
      gradients: float64 [n, width].
    """

    place: int
    rows: np.ndarray
    examples: np.ndarray
    gradients: np.ndarray


class ExampleGradients:
    """The gradients of examples by themselves, from a model's own step.

    Nothing is trained: gradients are read where the step would apply them.

    Args:
      model: A compiled model that has its variables.
      batch: Examples `(x, y, weight)`, for their types.
    """

    def __init__(self, model: Any, batch: Any):
        self._model = model
        self._variables: list[Any] = []
        self._spec = tf.nest.map_structure(open_spec, as_batch(batch))
        self._step = trace(model, self._spec, self._read, self._forget)

    def _forget(self) -> None:
        self._variables.clear()

    def _read(
        self, gradients: Sequence[Gradient], variables: Sequence[Any]
    ) -> Any:
        self._variables += variables
        found = per_example_gradients(gradients, variables)
        return {
            "tables": [
                terms if isinstance(terms, RowTerms) else None
                for terms in found.terms
            ],
            "squares": found.norms**2,
        }

    def of(self, batch: Any) -> tuple[list[Lookups], np.ndarray]:
        """What examples look up in each table, and norms of their gradients."""
        size = len(tf.nest.flatten(batch)[0])
        squares = np.zeros(size)
        parts: dict[int, list[Any]] = {}
        for begin in range(0, size, _CHUNK):
            end = min(begin + _CHUNK, size)
            outputs = self._step(
                as_batch(
                    tf.nest.map_structure(
                        lambda a, b=begin, e=end: None if a is None else a[b:e],
                        batch,
                    )
                )
            )
            tables = [t for output in outputs for t in output["tables"]]
            for output in outputs:
                squares[begin:end] += output["squares"].numpy()
            for number, terms in enumerate(tables):
                if terms is not None:
                    parts.setdefault(number, []).append(
                        (
                            terms.row_ids.numpy().astype(np.int64),
                            terms.example_ids.numpy().astype(np.int64) + begin,
                            terms.values.numpy().astype(np.float64),
                        )
                    )
        self._model.reset_metrics()
        found = [
            Lookups(
                self._place(number),
                *(
                    np.concatenate(column)
                    for column in zip(*chunks, strict=True)
                ),
            )
            for number, chunks in parts.items()
        ]
        return found, np.sqrt(squares)

    def _place(self, number: int) -> int:
        variable = self._variables[number]
        for place, other in enumerate(self._model.trainable_variables):
            if other is variable:
                return place
        raise ValueError(
            f"The training step of '{self._model.name}' applies gradients to "
            f"'{variable.name}', which is not among its trainable variables; "
            "expected a table of the model. Make the layer an attribute of "
            "the model."
        )


@dataclasses.dataclass(frozen=True)
class OwnRows:
    """The rows of one table that are each looked up by one canary alone.

    Attributes:
      place: Of the table in the model's trainable variables.
      rows: int64 [n], each once.
      canaries: int64 [n], whose they are.
      directions: float64 [n, width]: where the canary pushes its rows, of norm
        1 over all rows of a canary.
      initial: float64 [n, width], what the rows were before training.
    """

    place: int
    rows: np.ndarray
    canaries: np.ndarray
    directions: np.ndarray
    initial: np.ndarray

    def movement(self, model: Any) -> np.ndarray:
        """How far the rows of a model are from what they were, [n, width]."""
        table = model.trainable_variables[self.place]
        return read_rows(table, self.rows) - self.initial


def own_rows(
    model: Any, lookups: Sequence[Lookups], norms: np.ndarray
) -> tuple[list[OwnRows], np.ndarray]:
    """Rows that one canary alone looks up, with what they are now.

    Args:
      model: Before training.
      lookups: Of all canaries.
      norms: Of the canaries' gradients.

    Returns:
      The rows of each table that has any, and for each canary the part of its
      gradient's norm that lies in them.
    """
    found = []
    squares = np.zeros(norms.size)
    for table in lookups:
        rows, places = np.unique(table.rows, return_inverse=True)
        places = places.reshape(-1)
        sums = np.zeros((rows.size, table.gradients.shape[1]))
        np.add.at(sums, places, table.gradients)
        first = np.full(rows.size, norms.size, np.int64)
        last = np.full(rows.size, -1, np.int64)
        np.minimum.at(first, places, table.examples)
        np.maximum.at(last, places, table.examples)
        own = (first == last) & np.isfinite(sums).all(1) & sums.any(1)
        if not own.any():
            continue
        np.add.at(squares, first[own], np.square(sums[own]).sum(1))
        found.append((table.place, rows[own], first[own], sums[own]))
    lengths = np.sqrt(np.maximum(squares, 1e-300))
    variables = model.trainable_variables
    return [
        OwnRows(
            place,
            rows,
            canaries,
            # A step goes against the gradient.
            -sums / lengths[canaries][:, np.newaxis],
            read_rows(variables[place], rows),
        )
        for place, rows, canaries, sums in found
    ], np.sqrt(squares) / np.maximum(norms, 1e-300)


def read_rows(variable: Any, rows: np.ndarray) -> np.ndarray:
    """Rows of a table, with their noise where it is drawn late; float64."""
    raw = lazy_variable(variable)
    if raw is None:
        raw = tf.convert_to_tensor(variable)
    return tf.gather(raw, rows).numpy().astype(np.float64)


def row_scores(
    model: Any, tables: Sequence[OwnRows], canaries: int
) -> np.ndarray:
    """How far each canary's rows moved to where it would push them.

    With Gaussian noise and a push of fixed direction and length, no other
    function of the rows tells more (Neyman and Pearson's lemma: the density
    with the canary, over that without it, rises with this number). With other
    noise it is a choice. Any score is valid, a better one finds more.
    """
    total = np.zeros(canaries)
    for table in tables:
        moved = (table.movement(model) * table.directions).sum(1)
        np.add.at(total, table.canaries, moved)
    # What is not finite says nothing.
    return np.where(np.isfinite(total), total, 0.0)


def count_moved(model: Any, tables: Sequence[OwnRows], canaries: int) -> int:
    """How many canaries have a row that is not what it was."""
    changed = np.zeros(canaries, bool)
    for table in tables:
        np.logical_or.at(
            changed, table.canaries, (table.movement(model) != 0).any(1)
        )
    return int(changed.sum())
