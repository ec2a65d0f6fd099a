"""Whether examples mix, told from gradients of changed batches alone.

Nothing here looks at a graph. A *run* gives the gradients of a batch that is
made of chosen rows. With F(S) the gradient of the batch S, its reduction
undone, and S_A the batch in which the rows of A are replaced by others, every
example contributes on its own exactly if

    F(S_AK) - F(S_A) - F(S_K) + F(S) = 0

for all disjoint A and K. Splitting the rows by each bit of their number puts
every two of them apart once, so log2 of the number of rows are enough splits.
All these batches have the same size; that F does not depend on the size either
is seen from S with S once more behind it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Rows: TypeAlias = "tuple[int, ...]"
Split: TypeAlias = "tuple[bool, ...]"  # Which rows are replaced, or counted.
Part: TypeAlias = "tuple[float, Any]"  # A factor and a gradient.

# What rounding may change a gradient by, relative to the gradients and over
# the tolerance.
_ROUNDING = 0.01
_MOST_NORMS = 4

_WRONG_RULE = (
    "The analysis accepted what it should not have. If rules were declared "
    "with tf_sparse_dp.rules, one of them is wrong; otherwise please report it."
)


@dataclasses.dataclass(frozen=True)
class Run:
    """What came out for one batch.

    Attributes:
      gradients: One per variable, as a gradient tape gives them.
      sums: Sums of the counted examples' terms, as the analysis found them,
        by the variable's place; None if it refused.
      norms: Norms of all examples' terms; None if it refused.
    """

    gradients: Sequence[Any]
    sums: Mapping[int, Any] | None = None
    norms: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one test.

    Attributes:
      test: What should hold, in words.
      passed: Whether it holds up to the tolerance.
      deviation: The largest relative deviation over all variables.
      worst: Name of the variable that deviates most.
      remedy: What to do if it does not hold.
    """

    test: str
    passed: bool
    deviation: float
    worst: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        mark = "ok    " if self.passed else "FAILED"
        text = f"{mark} {self.deviation:8.1e}  {self.test}"
        if not self.passed and self.worst:
            text += f" (most: {self.worst})"
        return text


class Experiment:
    """Tests on batches that are made of the rows of one.

    Args:
      run: Gradients of the batch of the given rows, and the sum of the terms
        of those that are counted.
      rows: How many rows there are.
      names: Names of the variables.
      loss_reduction: "mean" or "sum".
      tolerance: Relative deviation up to which things count as equal.
    """

    def __init__(
        self,
        run: Callable[[Rows, Split], Run],
        rows: int,
        names: Sequence[str],
        loss_reduction: str,
        tolerance: float,
    ):
        self._again = functools.cache(run)
        self._change = functools.cache(self._largest_change)
        self._names = list(names)
        self._given = tuple(range(rows))
        self._mean = loss_reduction == "mean"
        self._tolerance = tolerance
        # Every row has another that can take its place.
        size = rows // 2 if rows >= 8 else rows
        self.size = size
        self._others = [
            size + i if rows >= 8 else (i + 1) % size for i in range(size)
        ]
        self._batch = tuple(range(size))
        self._splits = [
            tuple(bool(i >> bit & 1) for i in range(size))
            for bit in range((size - 1).bit_length())
        ]

    def check_finite(self) -> None:
        """Refuses a batch whose gradients are not numbers to compare.

        Raises:
          ValueError: If they are not; it names the variables.
        """
        run = self._again(self._given, (True,) * len(self._given))
        names = [
            f"'{name}'"
            for name, gradient in zip(self._names, run.gradients, strict=True)
            if not math.isfinite(_norm([(1.0, gradient)]))
        ]
        if names:
            raise ValueError(
                "On this batch gradients are not finite, so nothing can be "
                f"seen: those of {', '.join(names)}. A mean over an empty list "
                "or a division by zero does that; tf.math.divide_no_nan gives "
                "0 instead, also in the gradient."
            )

    def randomness(self, run: Callable[[Rows, Split], Run]) -> float:
        """How much two runs on the same batch differ, relatively.

        Args:
          run: Does not go back to a state in which the same random numbers
            would be drawn again.
        """
        first, second = (run(self._batch, self._all) for _ in range(2))
        return _largest(
            _over(_norm([(1.0, a), (-1.0, b)]), _norm([(1.0, a)]))
            for a, b in zip(first.gradients, second.gradients, strict=True)
        )

    def influence(self) -> float:
        """Norm of the largest change that other rows make to any gradient."""
        return _largest(self._change(v) for v in range(len(self._names)))

    def gradient_tests(self) -> list[Finding]:
        """What must hold of gradients, whoever computed them."""
        return [self._independence(), self._doubling()]

    def term_tests(self) -> list[Finding]:
        """What must hold of the terms that the analysis found."""
        return [self._contributions(), self._completeness(), self._norms()]

    def alone(self, gradients: Callable[[int], Sequence[Any]]) -> Finding:
        """Terms must be the gradients of one example at a time."""

        def only(example: int) -> Split:
            return tuple(i == example for i in range(self.size))

        def deviation(variable: int, split: Split) -> float:
            # Compared with those of the first, so that what no example
            # influences cancels out.
            return _largest(
                self._relative(
                    variable,
                    [
                        self._sum(variable, self._none, only(example)),
                        self._sum(variable, self._none, only(0), -1),
                        (-1.0, one_by_one(example)[variable]),
                        (1.0, one_by_one(0)[variable]),
                    ],
                )
                for example in range(self.size)
            )

        one_by_one = functools.cache(gradients)
        return self._finding(
            "A term of the analysis is the gradient of one example alone",
            deviation,
            _WRONG_RULE,
        )

    # Gradients.

    def _independence(self) -> Finding:
        def deviation(variable: int, split: Split) -> float:
            return self._relative(
                variable,
                [
                    self._gradient(variable, self._all),
                    self._gradient(variable, split, -1),
                    self._gradient(variable, _opposite(split), -1),
                    self._gradient(variable, self._none),
                ],
            )

        return self._finding(
            "Replacing some examples leaves the contributions of the others",
            deviation,
            "Examples mix. tf_sparse_dp.explain(model, batch) shows where, if "
            "the analysis sees it.",
        )

    def _doubling(self) -> Finding:
        def change(variable: int, split: Split, twice: bool) -> list[Part]:
            return [
                self._gradient(variable, split, 1, twice),
                self._gradient(variable, self._none, -1, twice),
            ]

        def deviation(variable: int, split: Split) -> float:
            once, twice = (change(variable, split, t) for t in (False, True))
            contributions = self._relative(
                variable, [*twice, *((-c, gradient) for c, gradient in once)]
            )
            return _largest([contributions, norms])

        norms = self._doubled_norms()
        # A sum that is taken for a mean doubles; the reverse halves.
        actual, factor = ("sum", 2.0) if self._mean else ("mean", 0.5)
        split = self._splits[0]
        sizes = [
            [_norm(change(v, split, twice)) for twice in (False, True)]
            for v in range(len(self._names))
        ]
        remedy = "The contribution of an example depends on the batch size."
        if np.allclose(
            [twice for _, twice in sizes],
            [factor * once for once, _ in sizes],
            rtol=0.01,
        ):
            remedy = (
                f"The loss is a {actual} over examples: pass "
                f"loss_reduction={actual!r} to DPSparseOptimizer, or change "
                "the reduction of the loss."
            )
        return self._finding(
            "A batch twice as long has the same contributions and norms",
            deviation,
            remedy,
        )

    # Terms.

    def _contributions(self) -> Finding:
        def deviation(variable: int, split: Split) -> float:
            return _largest(
                self._relative(
                    variable,
                    [
                        self._sum(variable, replaced, _opposite(replaced)),
                        self._sum(
                            variable, self._none, _opposite(replaced), -1
                        ),
                    ],
                )
                for replaced in (split, _opposite(split))
            )

        return self._finding(
            "A term of the analysis sees one example", deviation, _WRONG_RULE
        )

    def _completeness(self) -> Finding:
        def deviation(variable: int, split: Split) -> float:
            return self._relative(
                variable,
                [
                    self._sum(variable, split, self._all),
                    self._sum(variable, self._none, self._all, -1),
                    self._gradient(variable, split, -1),
                    self._gradient(variable, self._none),
                ],
            )

        return self._finding(
            "The terms of the analysis add up to the gradient",
            deviation,
            _WRONG_RULE,
        )

    def _norms(self) -> Finding:
        norms = self._norms_of(self._batch)
        if norms is None:
            raise ValueError("The run gave terms but no norms.")
        deviations = []
        for example in range(min(self.size, _MOST_NORMS)):
            only = tuple(i == example for i in range(self.size))
            parts = [
                _norm([self._sum(variable, self._none, only)])
                for variable in range(len(self._names))
            ]
            difference = abs(np.linalg.norm(parts) - norms[example])
            deviations.append(_over(float(difference), float(norms.max())))
        worst = _largest(deviations)
        passed = worst <= self._tolerance
        return Finding(
            test="Norms of the analysis are those of its terms",
            passed=passed,
            deviation=worst,
            remedy="" if passed else _WRONG_RULE,
        )

    def _doubled_norms(self) -> float:
        norms = self._norms_of(self._batch)
        doubled = self._norms_of(self._batch * 2)
        if norms is None or doubled is None:
            return 0.0
        difference = np.abs(np.tile(norms, 2) - doubled).max()
        return _over(float(difference), float(norms.max()))

    # Batches and their gradients.

    @property
    def _none(self) -> Split:
        return (False,) * self.size

    @property
    def _all(self) -> Split:
        return (True,) * self.size

    def _rows(self, replaced: Split, twice: bool = False) -> Rows:
        rows = tuple(self._others[i] if replaced[i] else i for i in self._batch)
        return rows + self._batch if twice else rows

    def _scale(self, rows: Rows) -> float:
        return float(len(rows)) if self._mean else 1.0

    def _gradient(
        self,
        variable: int,
        replaced: Split,
        sign: float = 1,
        twice: bool = False,
    ) -> Part:
        rows = self._rows(replaced, twice)
        run = self._again(rows, (True,) * len(rows))
        return sign * self._scale(rows), run.gradients[variable]

    def _sum(
        self, variable: int, replaced: Split, counted: Split, sign: float = 1
    ) -> Part:
        rows = self._rows(replaced)
        sums = self._again(rows, counted).sums or {}
        return sign * self._scale(rows), sums.get(variable)

    def _norms_of(self, rows: Rows) -> np.ndarray | None:
        norms = self._again(rows, (True,) * len(rows)).norms
        return None if norms is None else self._scale(rows) * norms

    def _largest_change(self, variable: int) -> float:
        return _largest(
            _norm(
                [
                    self._gradient(variable, split),
                    self._gradient(variable, self._none, -1),
                ]
            )
            for split in self._splits
        )

    def _relative(self, variable: int, parts: Sequence[Part]) -> float:
        whole = _norm([self._gradient(variable, self._none)])
        # Where a gradient vanishes (that of a bias before a softmax, say), all
        # there is of it is rounding of what the others are made of.
        size = self._change(variable) + _ROUNDING * (whole + self.influence())
        return _over(_norm(parts), size)

    def _finding(
        self,
        test: str,
        deviation: Callable[[int, Split], float],
        remedy: str,
    ) -> Finding:
        deviations = [
            _largest(deviation(variable, split) for split in self._splits)
            for variable in range(len(self._names))
        ]
        worst = int(np.argmax(deviations))
        # A comparison that NaN does not pass.
        passed = deviations[worst] <= self._tolerance
        return Finding(
            test=test,
            passed=passed,
            deviation=deviations[worst],
            worst=self._names[worst],
            remedy="" if passed else remedy,
        )


def _opposite(split: Split) -> Split:
    return tuple(not part for part in split)


def _over(difference: float, size: float) -> float:
    if difference == 0:
        return 0.0
    return math.inf if size == 0 else difference / size


def _largest(numbers: Iterable[float]) -> float:
    """The maximum; NaN if there is one, which Python's own may lose."""
    return float(np.max(list(numbers)))


def _norm(parts: Sequence[Part]) -> float:
    """L2 norm of a linear combination of one variable's gradients."""
    parts = [(factor, g) for factor, g in parts if g is not None]
    if not parts:
        return 0.0
    if all(isinstance(g, tf.IndexedSlices) for _, g in parts):
        # Rows that several of them have are added; no table is made.
        rows = [factor * _array(g.values) for factor, g in parts]
        values = np.concatenate([r.reshape([len(r), -1]) for r in rows])
        ids = np.concatenate([g.indices.numpy() for _, g in parts])
        unique, where = np.unique(ids, return_inverse=True)
        total = np.zeros([len(unique), values.shape[1]])
        np.add.at(total, where, values)
        return float(np.linalg.norm(total))
    arrays = [factor * _array(tf.convert_to_tensor(g)) for factor, g in parts]
    return float(np.linalg.norm(np.sum(arrays, 0)))


def _array(tensor: tf.Tensor) -> np.ndarray:
    return tf.cast(tensor, tf.float64).numpy()
