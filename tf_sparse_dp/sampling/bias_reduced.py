"""Batches whose size is a random power of two, and one example beside."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.draws import Draws, checked_seed, fresh_draws
from tf_sparse_dp.sampling.example_units import ExamplesAsUnits
from tf_sparse_dp.sampling.poisson import warn_of_seed
from tf_sparse_dp.sampling.sources import open_examples
from tf_sparse_dp.sampling.step_kinds import DrawnPart, StepKind
from tf_sparse_dp.sampling.truncated_geometric import TruncatedGeometric


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiasReducedSampling(ExamplesAsUnits):
    r"""The batches of the bias-reduced estimator; for `BiasReduction` alone.

    Step t draws, independently of all that was before,

    - N, a `TruncatedGeometric` number from 0 to M, in public;
    - B, a uniform set of 2^(N+1) of the n examples, in uniformly random order:
      the first half is O, the second half is E;
    - I, one uniform example, independent of B. It may be in B as well.

    A batch has 2^(N+1) + 1 rows: O, E and I, in this order. Sizes are exact,
    and all different: the number of rows tells N, nothing is ever padded, and
    a compiled step sees at most log2(n) shapes.

    **Guarantee**: neighbours differ by one example that is *replaced* by
    another; n is fixed and public. Given N, a step of `BiasReduction` whose
    four releases (sums over B, O, E and I) have noise of stddev zC each, for
    contributions of norm at most C, is the composition of two events:

    - a sample of 2^(N+1) of n without replacement, and Gaussian noise with
      multiplier z/√2 on it. Proof: fix the order of B. A replaced example that
      is in B changes the sum over B by at most 2C, and one of the sums over O
      and E by at most 2C, but never both. The three noisy sums are one
      Gaussian vector, whose mean moves by at most 2C√2 with noise zC: that is
      what replacing does to Gaussian noise of multiplier z/√2. The order is
      independent of the data, and hockey-stick divergences are jointly convex,
      so this holds for a random one, too; it is all that amplification by a
      sample without replacement asks of the release (`RenyiPrices`).
    - a sample of 1 of n, and Gaussian noise with multiplier z.

    B and I are independent, so that the two compose. *Two* uses of an example
    in B are all; the paper counts three. N is drawn without looking at data,
    and a filter spends the event of the N that was drawn: the law of N does
    not matter to privacy.

    A plan, which fixes all events beforehand, has no place for it; give the
    optimizer a `RenyiFilter` with `neighboring_relation=REPLACE_ONE`.

    Args:
      num_examples: n, at least 2.
      steps: T, the number of batches of an iteration.
      largest: M; by default floor(log2 n) - 1, for which the largest batch
        takes at least half of the examples.

    Raises:
      TypeError: A count is not an integer.
      ValueError: A count is out of range.

    Example:
      >>> sampling = BiasReducedSampling(num_examples=20, steps=3)
      >>> sampling.largest, [kind.rows for kind in sampling.step_kinds]
      (3, [3, 5, 9, 17])
      >>> for ids, _, weight in sampling.dataset((np.arange(20),)):
      ...     print(len(ids) in (3, 5, 9, 17), weight.dtype.name)
      True float16
      True float16
      True float16

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), algorithm 3.
    """

    num_examples: int
    steps: int
    largest: int = None  # type: ignore[assignment]  # chosen below

    def __post_init__(self) -> None:
        n = whole_number("num_examples", self.num_examples, at_least=2)
        self._set("num_examples", n)
        self._set("steps", whole_number("steps", self.steps))
        most = n.bit_length() - 2  # floor(log2 n) - 1
        if self.largest is None:
            self._set("largest", most)
        self._set("largest", self.law.largest)
        if self.largest > most:
            raise ValueError(
                f"largest is {self.largest}, expected at most {most}: a batch "
                f"of 2^(largest + 1) different examples out of {n}."
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def law(self) -> TruncatedGeometric:
        """Of N."""
        return TruncatedGeometric(self.largest)

    @functools.cached_property
    def step_kinds(self) -> tuple[StepKind, ...]:
        """Facts about the steps with N = 0, 1, ..., M.

        The estimator is a mean already, so what it is divided by is 1.
        """
        return tuple(
            StepKind(
                rows=2 ** (level + 1) + 1,
                sampling_probability=None,
                expected_batch_size=1.0,
                overflow_probability=0.0,
                parts=(
                    DrawnPart(
                        source_size=self.num_examples,
                        sample_size=2 ** (level + 1),
                        uses=2,
                    ),
                    DrawnPart(
                        source_size=self.num_examples, sample_size=1, uses=1
                    ),
                ),
            )
            for level in range(self.largest + 1)
        )

    @property
    def num_steps(self) -> int:
        """T, the number of batches of an iteration."""
        return self.steps

    @property
    def num_compositions(self) -> int:
        """How often the mechanism is charged at most."""
        return self.steps

    @property
    def neighbouring_relation(self) -> str:
        """Which data sets must look alike."""
        return "replace_one"

    @property
    def description(self) -> str:
        """One sentence for the privacy statement."""
        return (
            "bias-reduced sampling: in each step, a number N from 0 to "
            f"{self.largest} is drawn in public, then 2^(N+1) of "
            f"{self.num_examples:,} examples without replacement, and one more "
            "independently of those."
        )

    def dataset(self, data: Any, *, seed: int | None = None) -> tf.data.Dataset:
        """The batches of an iteration, as a pipeline for `fit`.

        As `PoissonSampling.dataset`, but for the rows, of which none is
        padding. Their order tells O, E and I apart, and must be kept.

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
                _, drawn = self.draw(draws)
                # Sources are read in order, and each example once.
                known, places = np.unique(drawn, return_inverse=True)
                yield tuple(rows[places] for rows in examples.rows(known))

        return examples.dataset(
            batches, batch_rows=None, steps=self.steps, weights=True
        )

    def draw(self, draws: Draws) -> tuple[int, np.ndarray]:
        """N, and the examples of a batch: O, E and I, in this order."""
        level = self.law.draw(draws)
        size = 2 ** (level + 1)
        members = draws.subset(self.num_examples, size)
        members = members[draws.permutation(size)]
        return level, np.append(members, draws.below(self.num_examples))

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal sampling."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BiasReducedSampling:
        """The inverse of `get_config`."""
        return cls(**config)
