"""Poisson batches whose expected size is drawn in public, step by step."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.draws import Draws, checked_seed, fresh_draws
from tf_sparse_dp.sampling.example_units import ExamplesAsUnits
from tf_sparse_dp.sampling.padding import pad_rows
from tf_sparse_dp.sampling.poisson import PoissonSampling, warn_of_seed
from tf_sparse_dp.sampling.sources import open_examples
from tf_sparse_dp.sampling.step_kinds import StepKind


@dataclasses.dataclass(frozen=True, kw_only=True)
class VaryingPoissonSampling(ExamplesAsUnits):
    r"""Poisson batches, the expected size of each drawn from a public list.

    .. math:: P(I_t = i) = w_i / \textstyle\sum_j w_j, \quad
      P(B_t = S \mid I_t = i) = q_i^{|S|} (1 - q_i)^{n - |S|},
      \quad q_i = b_i / n

    for every set S of examples and each of T steps, with n = `num_examples`,
    b = `batch_sizes`, w = `weights` and T = `steps`.

    **Guarantee**: neighbours differ by the presence of one example. I_t is
    drawn without looking at data and anybody may know it: the number of rows
    of the batch, different for every i, tells. Given I_t = i the step is one of
    `PoissonSampling` with batch size b_i, and a filter spends that event; so
    what the weights are, or that they are kept to, does not matter to privacy.
    Overflow and places of examples are as there.

    A plan, which fixes all events beforehand, has no place for it; give the
    optimizer a filter.

    Args:
      num_examples: n.
      batch_sizes: b, different integers of at least 1 and at most n.
      steps: T, the number of batches of an iteration.
      weights: w, integers of at least 1; all 1 if left out.
      max_batch_sizes: The number of rows for each batch size, all different.
        By default the smallest for which a run overflows with probability at
        most 1e-15, and those that would be equal one larger than another.

    Raises:
      TypeError: A count is not an integer.
      ValueError: A count is out of range, or counts that must differ do not.

    Example:
      >>> sampling = VaryingPoissonSampling(
      ...     num_examples=1000, batch_sizes=(10, 50), steps=3
      ... )
      >>> for kind in sampling.step_kinds:
      ...     print(kind.sampling_probability, kind.expected_batch_size)
      0.01 10.0
      0.05 50.0
      >>> known = {kind.rows for kind in sampling.step_kinds}
      >>> for ids, _, weight in sampling.dataset((np.arange(1000),)):
      ...     print(len(ids) in known, weight.dtype.name)
      True float16
      True float16
      True float16
    """

    num_examples: int
    batch_sizes: tuple[int, ...]
    steps: int
    weights: tuple[int, ...] = None  # type: ignore[assignment]  # chosen below
    max_batch_sizes: tuple[int, ...] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self._set(
            "num_examples", whole_number("num_examples", self.num_examples)
        )
        self._set("steps", whole_number("steps", self.steps))
        self._set_counts("batch_sizes")
        if self.weights is None:
            self._set("weights", (1,) * len(self.batch_sizes))
        self._set_counts("weights")
        if self.max_batch_sizes is not None:
            self._set_counts("max_batch_sizes")
        for name in ("batch_sizes", "max_batch_sizes"):
            counts = getattr(self, name) or ()
            if len(set(counts)) < len(counts):
                raise ValueError(
                    f"{name} is {counts}, expected numbers that all differ: "
                    "the number of rows tells which size a batch has. Give "
                    "each size once, and use weights to draw it more often."
                )
        self._set("max_batch_sizes", self._rows())
        self._set("_samplings", self._samplings_of(self.max_batch_sizes))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _set_counts(self, name: str) -> None:
        given = getattr(self, name)
        if not isinstance(given, tuple | list) or not given:
            raise TypeError(
                f"{name} is {given!r}, expected a tuple of integers with at "
                "least one. For batches of one size take PoissonSampling."
            )
        if name != "batch_sizes" and len(given) != len(self.batch_sizes):
            raise ValueError(
                f"{name} is {given!r}, expected one number for each of "
                f"batch_sizes={self.batch_sizes}."
            )
        counts = tuple(whole_number(f"one of {name}", n) for n in given)
        self._set(name, counts)

    def _samplings_of(self, rows: Any) -> tuple[PoissonSampling, ...]:
        return tuple(
            PoissonSampling(
                num_examples=self.num_examples,
                batch_size=size,
                steps=self.steps,
                max_batch_size=limit,
            )
            for size, limit in zip(self.batch_sizes, rows, strict=True)
        )

    def _rows(self) -> tuple[int, ...]:
        if self.max_batch_sizes is not None:
            return self.max_batch_sizes
        taken: list[int] = []
        for sampling in self._samplings_of([None] * len(self.batch_sizes)):
            rows = sampling.max_batch_size
            while rows in taken:
                rows += 1
            taken.append(rows)
        return tuple(taken)

    @functools.cached_property
    def step_kinds(self) -> tuple[StepKind, ...]:
        """Facts about the steps with each of the batch sizes, in order."""
        return tuple(
            StepKind(
                rows=sampling.max_batch_size,
                sampling_probability=sampling.sampling_probability,
                expected_batch_size=sampling.expected_batch_size,
                overflow_probability=sampling.overflow_probability,
            )
            for sampling in self._poisson
        )

    def step(self, rows: int) -> StepKind:
        """The kind of step whose batches have so many rows.

        Raises:
          ValueError: There is none.
        """
        for kind in self.step_kinds:
            if kind.rows == rows:
                return kind
        raise ValueError(
            f"The batch has {rows} rows, expected one of "
            f"{self.max_batch_sizes}. Train on the dataset(...) of this very "
            "sampling, without batching it again."
        )

    @property
    def _poisson(self) -> tuple[PoissonSampling, ...]:
        return self._samplings  # type: ignore[attr-defined, no-any-return]

    @property
    def num_steps(self) -> int:
        """T, the number of batches of an iteration."""
        return self.steps

    @property
    def num_compositions(self) -> int:
        """How often the mechanism is charged at most."""
        return self.steps

    @property
    def description(self) -> str:
        """One sentence for the privacy statement."""
        probabilities = ", ".join(
            f"{kind.sampling_probability:.6g}" for kind in self.step_kinds
        )
        return (
            "Poisson sampling with probabilities drawn in public: in each "
            f"step, each of {self.num_examples:,} examples is in the batch "
            "independently with the same probability, which is one of "
            f"{probabilities} and drawn without looking at data."
        )

    def dataset(self, data: Any, *, seed: int | None = None) -> tf.data.Dataset:
        """The batches of an iteration, as a pipeline for `fit`.

        As `PoissonSampling.dataset`, but for the number of rows, which is that
        of the size that was drawn: a compiled step is compiled once for each.

        Args:
          data: `(x,)`, `(x, y)` or `(x, y, sample_weight)`, with one row for
            each example; or `RandomAccess`.
          seed: For tests only: makes the draws repeatable, and therefore not
            private.

        Raises:
          TypeError: The data is of a form that cannot be used.
          ValueError: Lengths differ from `num_examples`, a weight is negative
            or not finite, or a scalar feature has type float16.
        """
        examples = open_examples(data, self.num_examples)
        iterations = fresh_draws(checked_seed(seed))
        warn_of_seed(seed)

        def batches() -> Iterator[tuple[np.ndarray, ...]]:
            draws = next(iterations)
            for _ in range(self.steps):
                place, drawn, slots = self.draw(draws)
                size = self.max_batch_sizes[place]
                yield tuple(
                    pad_rows(rows, slots, size) for rows in examples.rows(drawn)
                )

        return examples.dataset(
            batches, batch_rows=None, steps=self.steps, weights=True
        )

    def draw(self, draws: Draws) -> tuple[int, np.ndarray, np.ndarray]:
        """Which size a batch has, who is in it, and in which slots."""
        ends = list(itertools.accumulate(self.weights))
        place = bisect.bisect_right(ends, draws.below(ends[-1]))
        return place, *self._poisson[place].draw(draws)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal sampling."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> VaryingPoissonSampling:
        """The inverse of `get_config`."""
        return cls(**config)
