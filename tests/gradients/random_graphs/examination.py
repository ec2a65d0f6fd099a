"""Whether a traced graph is separable, and whether what was accepted is true.

The truth is found without the library, by evaluating the gradient G of the
traced graph on batches. G is *separable* if it is a constant plus one term per
example that sees this example only. That holds exactly if, for all batches
and every two rows, the effect of replacing one row does not depend on the
other: G(X) - G(X with i) - G(X with j) + G(X with both) = 0.

A graph with an unknown batch size is also run on one example at a time. Where
the sum (or mean) of those gradients is the gradient of the batch, its terms
must be those gradients.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.clipping import clip_and_sum
from tf_sparse_dp.gradients.separation import Separation

DRAWS = 2
WILD = 50.0


@dataclasses.dataclass(frozen=True)
class Subject:
    """A loss to examine.

    Attributes:
      loss: From the tensors of a batch to a scalar.
      variables: What to differentiate it by.
      specs: Signature of the batch.
      draw: A random batch of so many rows.
      rows: The batch size to draw.
      precise: Whether the loss is computed in float64.
      tensors: The batch as the traced step gets it.
    """

    loss: Callable[..., Any]
    variables: Sequence[Any]
    specs: Sequence[tf.TensorSpec]
    draw: Callable[[np.random.RandomState, int], list[np.ndarray]]
    rows: int
    precise: bool = True
    tensors: Callable[[Sequence[np.ndarray]], list[Any]] = lambda batch: [
        tf.constant(array) for array in batch
    ]

    @property
    def static(self) -> bool:
        return self.specs[0].shape[0] is not None


@dataclasses.dataclass
class Finding:
    """What came of a graph.

    Attributes:
      accepted: Whether the library took the gradient apart.
      refusal: Its message if it did not.
      separable: What the numbers say; None if they say nothing.
      looped: Whether one example at a time gives the same gradient.
      problems: What is wrong with accepted terms: unsound if any.
    """

    accepted: bool = False
    refusal: str = ""
    separable: bool | None = None
    looped: bool = False
    problems: list[str] = dataclasses.field(default_factory=list)

    @property
    def operation(self) -> str:
        """The type of the operation that was refused."""
        found = re.search(r"parts: (\w+) .*\(operation", self.refusal, re.S)
        return found.group(1) if found else self.refusal[:60]


@dataclasses.dataclass(frozen=True)
class Terms:
    """Everything about a batch, as flat arrays over all variables."""

    gradient: np.ndarray
    terms: np.ndarray
    free: np.ndarray
    squared_norms: np.ndarray
    slack: np.ndarray
    clipped: np.ndarray


class Inconsistent(Exception):
    """A batch for which a step would not be taken."""


class Examination:
    """Traces a subject once and evaluates it on many batches."""

    def __init__(self, subject: Subject, seed: int):
        self.subject = subject
        self.numbers = np.random.RandomState(seed)
        self.finding = Finding()
        self.clip_norm = tf.Variable(1.0)
        rows = subject.rows if subject.static else None
        self._step = tf.function(
            self._traced,
            input_signature=[
                *subject.specs,
                tf.TensorSpec([rows], tf.bool),
            ],
            autograph=False,
        ).get_concrete_function()

    def _traced(self, *inputs: Any) -> Any:
        *batch, valid = inputs
        variables = self.subject.variables
        with tf.GradientTape() as tape:
            loss = self.subject.loss(*batch)
        gradients = tape.gradient(loss, variables)
        shapes = [tuple(v.shape) for v in variables]
        flat = _flat(gradients, shapes)
        try:
            separation = Separation(gradients, [str(s) for s in shapes], shapes)
            parts = separation.parts
            factors = [p.terms for p in parts if p is not None and p.terms]
            if not factors:
                raise tsdp.NotSeparableError("No example influences it.")
        except tsdp.NotSeparableError as error:
            self.finding.refusal = str(error)
            return flat
        self.finding.accepted = True
        rows = separation.batch_size
        terms = [
            tf.zeros([rows, int(np.prod(shape))], tf.float64)
            if part is None or part.terms is None
            else tf.reshape(
                tf.cast(part.terms.per_example(), tf.float64),
                [rows, int(np.prod(shape))],
            )
            for part, shape in zip(parts, shapes, strict=True)
        ]
        free = _flat([None if p is None else p.free for p in parts], shapes)
        slacks = [f.squared_slack() for f in factors]
        slacks = [tf.zeros([rows]), *[s for s in slacks if s is not None]]
        clipped = clip_and_sum(factors, clip_norm=self.clip_norm, valid=valid)
        sums = iter(clipped.sums)
        shares = [
            None if p is None or p.terms is None else next(sums) for p in parts
        ]
        return (
            flat,
            tf.concat(terms, 1),
            free,
            tf.add_n([f.squared_norms() for f in factors]),
            tf.add_n(slacks),
            _flat(shares, shapes),
            separation.consistent,
        )

    def run(
        self, batch: Sequence[np.ndarray], valid: np.ndarray | None = None
    ) -> Terms:
        if valid is None:
            valid = np.ones(len(batch[0]), bool)
        result = self._step(*self.subject.tensors(batch), tf.constant(valid))
        if not self.finding.accepted:
            nothing = np.zeros(0)
            return Terms(result.numpy(), *[nothing] * 5)
        *arrays, consistent = (tensor.numpy() for tensor in result)
        if not consistent:
            raise Inconsistent
        return Terms(*arrays)

    def draw(self, rows: int | None = None) -> list[np.ndarray]:
        return self.subject.draw(
            self.numbers, self.subject.rows if rows is None else rows
        )

    def examine(self) -> Finding:
        """Finds the truth, and checks what was accepted against it."""
        try:
            with np.errstate(all="ignore"):
                self._separability()
                if self.finding.accepted and self.finding.separable is not None:
                    self._check()
        except Inconsistent:
            self.finding.separable = None
        return self.finding

    def _separability(self) -> None:
        tolerance = 1e-8 if self.subject.precise else 3e-4
        depends, separable = False, True
        for _ in range(DRAWS):
            here, other = self.draw(), self.draw()
            base = self.run(here).gradient
            if not np.isfinite(base).all():
                return
            ones = [
                self.run(_replaced(here, other, [i])).gradient
                for i in range(self.subject.rows)
            ]
            depends |= any(not np.array_equal(one, base) for one in ones)
            for i, j in itertools.combinations(range(self.subject.rows), 2):
                both = self.run(_replaced(here, other, [i, j])).gradient
                size = sum(np.abs(g) for g in (base, ones[i], ones[j], both))
                twist = np.abs(base - ones[i] - ones[j] + both)
                if not np.all(twist <= tolerance * (size.max() + 1e-2)):
                    separable = False
        if depends:
            self.finding.separable = separable
            if separable and not self.subject.static:
                self.finding.looped = self._loops(self.draw())

    def _one_by_one(self, batch: Sequence[np.ndarray]) -> np.ndarray | None:
        """Gradients of batches of one; None if the graph allows none."""
        try:
            rows = [
                self.run([a[i : i + 1] for a in batch]).gradient
                for i in range(len(batch[0]))
            ]
        except tf.errors.OpError:
            return None
        return np.stack(rows)

    def _loops(self, batch: Sequence[np.ndarray]) -> bool:
        one_by_one = self._one_by_one(batch)
        if one_by_one is None:
            return False
        total, found = one_by_one.sum(0), self.run(batch).gradient
        return any(
            np.allclose(found, total / by, 1e-3, 1e-5)
            for by in (1, self.subject.rows)
        )

    def _check(self) -> None:
        if self.finding.separable is False and self.subject.rows > 1:
            self._complain("the gradient is not separable")
        batch = self.draw()
        found = self.run(batch)
        self._check_sum(found)
        self._check_norms(found)
        self._check_independence(batch, found)
        if self.finding.looped and self._loops(batch):
            self._check_loop(batch, found)
        self._check_sensitivity(batch, found)

    def _complain(self, problem: str) -> None:
        self.finding.problems.append(problem)

    def _rounding(self, found: Terms) -> float:
        """What float32 may lose of terms that are themselves sums."""
        parts = np.sqrt(np.abs(found.slack).max(initial=0))
        return 1e-5 * np.abs(found.terms).max() + 0.02 * parts + 1e-7

    def _check_sum(self, found: Terms) -> None:
        off = np.abs(found.terms.sum(0) + found.free - found.gradient).max()
        if not off <= 10 * self._rounding(found):
            self._complain(f"terms and gradient differ by {off}")

    def _check_norms(self, found: Terms) -> None:
        true = np.square(found.terms).sum(1)
        if not np.all(
            found.squared_norms + found.slack >= true * (1 - 1e-5) - 1e-30
        ):
            self._complain(
                f"norms {found.squared_norms} + {found.slack} below {true}"
            )

    def _check_independence(
        self, batch: Sequence[np.ndarray], found: Terms
    ) -> None:
        other = self.draw()
        wild = [a * WILD if a.dtype.kind == "f" else a for a in other]
        lost = [
            np.full_like(a, np.nan) if a.dtype.kind == "f" else a for a in other
        ]
        for row in range(self.subject.rows):
            for others, name in ((wild, "wild"), (lost, "not finite")):
                mine = self.run(_replaced(others, batch, [row]))
                moved = np.abs(mine.terms[row] - found.terms[row]).max()
                if not moved <= self._rounding(found):
                    self._complain(
                        f"the term of example {row} moves by {moved} when "
                        f"others are {name}"
                    )
                fixed = np.abs(mine.free - found.free).max()
                if not fixed <= 1e-5 * (1 + np.abs(found.free).max()):
                    self._complain(f"the free part moves by {fixed}")

    def _check_loop(self, batch: Sequence[np.ndarray], found: Terms) -> None:
        for row in range(self.subject.rows):
            alone = self.run([a[row : row + 1] for a in batch])
            off = min(
                np.abs(alone.terms[0] / by - found.terms[row]).max()
                for by in (1, self.subject.rows)
            )
            if not off <= 10 * self._rounding(found):
                self._complain(f"term {row} is {off} away from the loop's")

    def _check_sensitivity(
        self, batch: Sequence[np.ndarray], found: Terms
    ) -> None:
        """One example's influence on the clipped sum, whatever it holds."""
        norms = np.sqrt(np.square(found.terms).sum(1))
        clip_norm = max(1e-3, 0.6 * float(np.median(norms)))
        self.clip_norm.assign(clip_norm)
        row = self.numbers.randint(self.subject.rows)
        valid = np.arange(self.subject.rows) != row
        without = self.run(batch, valid).clipped
        wild = [a * WILD if a.dtype.kind == "f" else a for a in batch]
        lost = [
            np.full_like(a, np.nan) if a.dtype.kind == "f" else a for a in batch
        ]
        for rows, name in ((batch, ""), (wild, "wild "), (lost, "lost ")):
            changed = self.run(_replaced(batch, rows, [row])).clipped
            moved = np.linalg.norm(changed - without)
            size = np.abs(without).max()
            if not moved <= clip_norm * (1 + 1e-3) + 1e-5 * size:
                self._complain(
                    f"{name}example {row} moves the clipped sum by {moved}, "
                    f"more than {clip_norm}"
                )


def _flat(tensors: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> Any:
    """All tensors in one vector; zeros where there is none."""
    return tf.concat(
        [
            tf.zeros([int(np.prod(shape))], tf.float64)
            if tensor is None
            else tf.reshape(
                tf.broadcast_to(
                    tf.cast(tf.convert_to_tensor(tensor), tf.float64), shape
                ),
                [-1],
            )
            for tensor, shape in zip(tensors, shapes, strict=True)
        ],
        0,
    )


def _replaced(
    batch: Sequence[np.ndarray],
    other: Sequence[np.ndarray],
    rows: Sequence[int],
) -> list[np.ndarray]:
    """The batch with some rows of another."""
    result = [array.copy() for array in batch]
    for array, new in zip(result, other, strict=True):
        array[rows] = new[rows]
    return result
