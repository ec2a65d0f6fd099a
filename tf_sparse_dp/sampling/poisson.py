"""Poisson sampling: every example joins every batch by its own coin."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.sampling.batch_sizes import BatchSizes
from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.draws import Draws, checked_seed, fresh_draws
from tf_sparse_dp.sampling.example_units import ExamplesAsUnits
from tf_sparse_dp.sampling.padding import pad_rows
from tf_sparse_dp.sampling.sources import open_examples
from tf_sparse_dp.sampling.workers import (
    ALL,
    Share,
    dealt_out,
    own_share,
)

# Chance that any batch of a run is cut at the default `max_batch_size`. Charged
# to delta, but out of sight of any delta that means something.
_OVERFLOW_OF_A_RUN = 1e-15


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonSampling(ExamplesAsUnits):
    r"""Batches in which every example takes part independently.

    .. math:: P(B_t = S) = q^{|S|} (1 - q)^{n - |S|}, \quad q = b / n

    for every set S of examples and each of T steps, with n = `num_examples`,
    b = `batch_size` and T = `num_steps`. This is the sampling that accountants
    mean by "Poisson subsampled"; shuffled batches of fixed size are not, and
    have less amplification.

    **Guarantee**: neighbours differ by the presence of one example. Given who
    else is in a batch, an example is in it with probability exactly q.
    Two things need saying:

    - *Overflow.* A batch larger than `max_batch_size` is cut to a uniformly
      random part of itself. Then examples displace each other, which Poisson
      accounting does not cover; it happens with at most
      `overflow_probability` in a step, and the plan charges that to delta. The
      bound holds for these data and with one example more.
    - *Place.* Drawn examples go to uniformly random slots among the
      `max_batch_size` rows, padding to the others. Taking one example out
      leaves the joint distribution of the others' slots as it was. So whatever
      a model does by position in the batch, such as dropout masks, is
      independent of who else was drawn, and the guarantee covers it.

    Who was drawn is secret: the randomness is the operating system's, fresh in
    each iteration. `num_examples` is public.

    Args:
      num_examples: n. To sample users with all of their examples, take
        `UserSampling`.
      batch_size: b, the expected number of examples in a batch.
      epochs: Length of the run in expected passes over the data, so that
        T = round(epochs·n/b); need not be whole.
      steps: T itself. Give either `epochs` or `steps`.
      max_batch_size: The number of rows of every batch, at least `batch_size`.
        By default the smallest for which a whole run overflows with
        probability at most 1e-15, which is about b + 9√b. Known after
        construction, as is `num_steps`.
      workers: W, the number of processes that train together. Examples are
        dealt out among them by index, and each draws among its own; so no
        example is drawn by two, and as every example has a coin of its own,
        this is the same sampling, with q = (b/W) / ⌈n/W⌉. Each worker has
        `max_batch_size` / W of the rows.

    Raises:
      TypeError: A count is not an integer.
      ValueError: A count is out of range or cannot be dealt out, or not
        exactly one of `epochs` and `steps` is given.

    Example:
      >>> sampling = PoissonSampling(
      ...     num_examples=50_000, batch_size=500, epochs=3
      ... )
      >>> sampling.num_steps, sampling.sampling_probability
      (300, 0.01)
      >>> x, y = np.zeros([50_000, 4]), np.zeros([50_000])
      >>> batches = sampling.dataset((x, y))
      >>> len(batches)
      300
      >>> x_spec, y_spec, weight_spec = batches.element_spec
      >>> y_spec.shape == [sampling.max_batch_size]
      True

    Reference: Mironov, Talwar and Zhang, "Rényi Differential Privacy of the
    Sampled Gaussian Mechanism" (2019), for the sampling; Chua et al., "Scalable
    DP-SGD: Shuffling vs. Poisson Subsampling" (2024), for why shuffling is not
    it, and for truncation.
    """

    num_examples: int
    batch_size: int
    epochs: float | None = None
    steps: int | None = None
    max_batch_size: int = None  # type: ignore[assignment]  # chosen below
    workers: int = 1
    num_steps: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        n = whole_number("num_examples", self.num_examples)
        b = whole_number("batch_size", self.batch_size)
        if b > n:
            raise ValueError(
                f"batch_size is {b}, expected at most num_examples={n}. "
                "Lower the batch size; equal to num_examples, it takes all "
                "examples in every step."
            )
        workers = whole_number("workers", self.workers)
        if b % workers:
            raise ValueError(
                f"batch_size is {b}, expected a multiple of workers={workers}: "
                "each of them draws an equal part."
            )
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"epochs is {self.epochs} and steps is {self.steps}, expected "
                "exactly one of them. Leave out the other."
            )
        if self.steps is not None:
            steps = whole_number("steps", self.steps)
            self._set("steps", steps)
        else:
            epochs = _positive(self.epochs)
            steps = max(1, round(epochs * n / b))
            self._set("epochs", epochs)
        self._set("num_examples", n)
        self._set("batch_size", b)
        self._set("num_steps", steps)
        self._set("workers", workers)
        limit = self.max_batch_size
        if limit is None:
            allowed = _OVERFLOW_OF_A_RUN / (steps * workers)
            limit = workers * self._batch_sizes.smallest_limit(allowed)
        self._set(
            "max_batch_size", whole_number("max_batch_size", limit, at_least=b)
        )
        if limit % workers:
            raise ValueError(
                f"max_batch_size is {limit}, expected a multiple of "
                f"workers={workers}: each of them has an equal part."
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @functools.cached_property
    def _batch_sizes(self) -> BatchSizes:
        """Of what one worker draws; where others have one more, from nobody."""
        return BatchSizes(
            num_examples=-(-self.num_examples // self.workers),
            batch_size=self.batch_size // self.workers,
        )

    @property
    def batch_rows(self) -> int:
        """The number of rows of every batch, padding included."""
        return self.max_batch_size

    @property
    def sampling_probability(self) -> float:
        """q, the probability that a given example is in a given batch."""
        share = -(-self.num_examples // self.workers)
        return (self.batch_size // self.workers) / share

    @property
    def expected_batch_size(self) -> float:
        """The mean number of examples in a batch."""
        return float(self.batch_size)

    @property
    def overflow_probability(self) -> float:
        """Upper bound of the probability that a batch is cut, for one step."""
        limit = self.max_batch_size // self.workers
        each = self._batch_sizes.overflow_probability(limit)
        return min(1.0, self.workers * each)

    @property
    def num_compositions(self) -> int:
        """How often the mechanism is charged: once for each step."""
        return self.num_steps

    @property
    def description(self) -> str:
        """One sentence for the privacy statement."""
        return (
            f"Poisson sampling: in each of {self.num_steps:,} steps, each of "
            f"{self.num_examples:,} examples is in the batch independently "
            f"with probability {self.sampling_probability:.6g}, "
            f"{self.batch_size:,} being expected{dealt_out(self.workers)}."
        )

    def with_compositions(self, number: int) -> PoissonSampling:
        """The same batches for another number of steps.

        A `max_batch_size` that is the default is the new default.
        """
        return self._changed(steps=number, epochs=None)

    def with_batch_size(self, batch_size: int) -> PoissonSampling:
        """As many steps with batches of another expected size.

        A `max_batch_size` that is the default is the new default.
        """
        return self._changed(
            batch_size=batch_size, steps=self.num_steps, epochs=None
        )

    def _changed(self, **changes: Any) -> PoissonSampling:
        usual: dict[str, Any] = {"max_batch_size": None}
        default = dataclasses.replace(self, **usual)
        if default.max_batch_size == self.max_batch_size:
            changes |= usual
        return dataclasses.replace(self, **changes)

    def dataset(self, data: Any, *, seed: int | None = None) -> tf.data.Dataset:
        """The batches of a run, as a pipeline for `fit`.

        An iteration has exactly `num_steps` batches `(x, y, weight)`, each of
        `max_batch_size` rows. Each further iteration draws anew, and costs as
        much privacy as the first; to see a run in parts, use
        `fit(..., epochs=k, steps_per_epoch=num_steps // k)`, which goes on
        where it was. In the scope of several workers there is no end to it:
        pass `steps_per_epoch`.

        `weight` is the validity column: float16, above zero where the row is
        an example. It may be moved within the batch by `map`, but must reach
        the training step, and rows must not be batched or filtered again.
        Padding rows are zeros. A step in which nobody was drawn is a
        batch of padding only, and is charged like any other.

        Args:
          data: `(x,)`, `(x, y)` or `(x, y, sample_weight)`: arrays, or dicts
            and tuples of arrays, with `num_examples` rows; or `RandomAccess`
            for examples that are read when drawn. Arrays are not copied.
            Without labels, batches are `(x, None, weight)`. Weights are
            rounded to half precision; zero excludes an example.
          seed: For tests only: makes the draws repeatable, and therefore not
            private.

        Raises:
          TypeError: The data is of a form that cannot be used.
          ValueError: Lengths differ from `num_examples`, a weight is negative
            or not finite, or a scalar feature has type float16.

        Example:
          >>> sampling = PoissonSampling(num_examples=4, batch_size=2, steps=1)
          >>> ids = {"user": np.arange(4), "item": np.arange(4)}
          >>> for x, y, weight in sampling.dataset((ids, np.ones(4))):
          ...     print(sorted(x), x["user"].shape, weight.dtype.name)
          ['item', 'user'] (5,) float16
        """
        examples = open_examples(data, self.num_examples)
        share = own_share(self.workers, self.max_batch_size)
        iterations = fresh_draws(checked_seed(seed))
        warn_of_seed(seed)

        def batches() -> Iterator[tuple[np.ndarray, ...]]:
            draws = next(iterations)
            for _ in range(self.num_steps):
                drawn, slots = self.draw(draws, share)
                yield tuple(
                    pad_rows(rows, slots, self.max_batch_size)
                    for rows in examples.rows(drawn)
                )

        return examples.dataset(
            batches,
            batch_rows=self.max_batch_size,
            steps=self.num_steps,
            weights=True,
        )

    def draw(
        self, draws: Draws, share: Share = ALL
    ) -> tuple[np.ndarray, np.ndarray]:
        """Who is in a batch, and in which slot each of them is.

        Given its size, a Poisson batch is a uniform subset; so drawing the
        size and then the subset is exact, and costs O(batch), not O(n). A
        uniform part of a uniform subset is one as well: cutting the size cuts
        the batch.

        Args:
          draws: Where the randomness comes from.
          share: What of examples and slots is this worker's.
        """
        limit = self.max_batch_size // self.workers
        size = min(self._batch_sizes.draw(draws), limit)
        drawn = draws.subset(-(-self.num_examples // self.workers), size)
        drawn = share.examples(drawn)
        slots = share.slots(self.max_batch_size)
        slots = slots[draws.permutation(limit)[:size]]
        there = drawn < self.num_examples
        return drawn[there], slots[there]

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal sampling."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.init and (field.name != "workers" or self.workers > 1)
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PoissonSampling:
        """The inverse of `get_config`."""
        return cls(**config)


def warn_of_seed(seed: int | None) -> None:
    """Warns the caller of `dataset` that seeded draws are not secret."""
    if seed is not None:
        warnings.warn(
            f"seed={seed} makes the batches repeatable: whoever knows it "
            "knows who was drawn, and the privacy guarantee does not hold. "
            "Leave it out except in tests.",
            PrivacyWarning,
            stacklevel=3,
        )


def _positive(epochs: Any) -> float:
    number = isinstance(epochs, numbers.Real) and not isinstance(epochs, bool)
    if not number or not 0 < epochs < math.inf:
        raise ValueError(
            f"epochs is {epochs!r}, expected a positive number of passes over "
            "the data. Give epochs=1 for one expected pass."
        )
    return float(epochs)
