"""Lets a traced step give gradients and terms, to be compared outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients.memory import Memory
from tf_sparse_dp.gradients.separation import Gradient, Separation
from tf_sparse_dp.numerical import Rows, Run, Split


class Probe:
    """What a step is asked for while it is traced, and what it answered.

    Attributes:
      names: Names of the variables.
      refusal: Why the analysis refuses; empty if it accepts.
      memories: What the analysis knows of writes.
    """

    def __init__(self) -> None:
        self._counted = tf.Variable(
            np.ones(1, "float32"), shape=[None], trainable=False
        )
        self.forget()

    def forget(self) -> None:
        """Before another trace."""
        self.names: list[str] = []
        self.refusal = ""
        self.memories: list[Memory] = []

    def read(
        self, gradients: Sequence[Gradient], variables: Sequence[Any]
    ) -> Any:
        """Takes gradients apart while tracing; the tensors that a run needs."""
        names = [getattr(v, "path", v.name) for v in variables]
        shapes = [tuple(v.shape) for v in variables]
        first = len(self.names)
        self.names += names
        terms = {}
        try:
            separation = Separation(gradients, names, shapes, collect=True)
        except NotSeparableError as error:
            self.refusal = self.refusal or str(error)
        else:
            self.memories.append(Memory(separation.analysis))
            for refusal in separation.refusals.values():
                self.refusal = self.refusal or str(refusal)
            terms = {
                str(first + place): part.terms
                for place, part in enumerate(separation.parts)
                if part is not None and part.terms is not None
            }
        counted = tf.convert_to_tensor(self._counted)
        return {
            "gradients": {
                str(first + place): gradient
                for place, gradient in enumerate(gradients)
                if gradient is not None
            },
            "sums": {p: f.weighted_sum(counted) for p, f in terms.items()},
            "squares": [factor.squared_norms() for factor in terms.values()],
        }

    def count(self, counted: Split) -> None:
        """Says which examples the next run shall sum."""
        self._counted.assign(np.array(counted, "float32"))

    def answer(self, outputs: Sequence[Any]) -> Run:
        """What came out of a run: one entry per call of `read`."""
        gradients: dict[str, Any] = {}
        sums: dict[int, Any] = {}
        squares: list[Any] = []
        for output in outputs:
            gradients |= output["gradients"]
            sums |= {int(p): total for p, total in output["sums"].items()}
            squares += output["squares"]
        given = [gradients.get(str(p)) for p in range(len(self.names))]
        if self.refusal or not squares:
            return Run(given)
        return Run(given, sums, np.sqrt(np.sum(squares, 0)))


def taken(batch: Any, rows: Rows) -> Any:
    """Some rows of all tensors of a batch, in that order."""
    return tf.nest.map_structure(lambda part: _taken(part, rows), batch)


def _taken(part: Any, rows: Rows) -> Any:
    if part is None:
        return None
    if not isinstance(part, tf.SparseTensor):
        return tf.gather(part, list(rows))
    shape = part.dense_shape.numpy()
    start, size = np.zeros_like(shape), np.array([1, *shape[1:]])
    single = []
    for row in rows:
        start[0] = row
        single.append(tf.sparse.slice(part, start.copy(), size))
    return tf.sparse.concat(0, single)
