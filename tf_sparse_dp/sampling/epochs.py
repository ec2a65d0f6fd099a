"""The user's own batches: each example at most once in a pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.draws import checked_seed, fresh_draws
from tf_sparse_dp.sampling.sources import open_examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochSampling:
    r"""Batches that partition the data, in any order, without amplification.

    .. math:: B_1 \cup \dots \cup B_m \subseteq \{1, \dots, n\},
              \quad B_s \cap B_t = \emptyset, \quad m = \lceil n / b \rceil

    within each of E passes, with n = `num_examples`, b = `batch_size`,
    E = `epochs` and m = `steps_per_pass`.

    **Guarantee**: neighbours differ by one example that is zeroed out: it
    stays in its place but contributes nothing. (Were it taken away, others
    would move to other batches.) Each pass then is one use of the mechanism on
    that example, whatever the order of the batches, even a fixed or public
    one; nothing is gained from shuffling and nothing is claimed for it. The
    *assumption* is that no example occurs twice within a pass: no `repeat`,
    no oversampling, no overlapping windows. That cannot be seen from inside a
    training step. A pass that is started is charged, also if interrupted.

    With `examples_per_unit` above 1 the same holds of units: rows jm to
    jm + m - 1 of a batch are all that one unit, such as a user, has in that
    pass, and neighbours differ by all of a unit's rows being zeroed out. All
    batches then have to carry the validity column. (So `fit` on plain arrays,
    which shuffles their rows and would tear units apart, is refused.)

    Args:
      num_examples: n, the number of rows.
      batch_size: b, the number of rows of all batches but perhaps the last.
      epochs: E, the number of passes.
      examples_per_unit: m, which divides n and b. Units with fewer examples
        are filled up with rows of weight zero.

    Raises:
      TypeError: A count is not an integer.
      ValueError: A count is out of range.

    Example:
      >>> sampling = EpochSampling(num_examples=10, batch_size=4, epochs=2)
      >>> sampling.steps_per_pass, sampling.num_compositions
      (3, 2)
      >>> for x, y in sampling.dataset((np.zeros([10, 3]), np.ones(10))):
      ...     print(x.shape)
      (4, 3)
      (4, 3)
      (2, 3)
    """

    num_examples: int
    batch_size: int
    epochs: int
    examples_per_unit: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            count = whole_number(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, count)
        if self.batch_size > self.num_examples:
            raise ValueError(
                f"batch_size is {self.batch_size}, expected at most "
                f"num_examples={self.num_examples}. Lower the batch size."
            )
        for name in ("num_examples", "batch_size"):
            if getattr(self, name) % self.examples_per_unit:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, expected a multiple of "
                    f"examples_per_unit={self.examples_per_unit}. Count rows, "
                    "and fill units up with rows of weight zero."
                )

    @property
    def num_units(self) -> int:
        """How many are protected: examples, or groups of them."""
        return self.num_examples // self.examples_per_unit

    @property
    def steps_per_pass(self) -> int:
        """m, the number of batches in a pass."""
        return -(-self.num_examples // self.batch_size)

    @property
    def num_steps(self) -> int:
        """The number of batches in all passes."""
        return self.epochs * self.steps_per_pass

    @property
    def max_batch_size(self) -> int:
        """The largest number of rows of a batch."""
        return self.batch_size

    @property
    def sampling_probability(self) -> None:
        """None: no amplification is claimed."""
        return None

    @property
    def expected_batch_size(self) -> float:
        """The number of units in a full batch."""
        return float(self.batch_size // self.examples_per_unit)

    @property
    def overflow_probability(self) -> float:
        """Batches are never cut."""
        return 0.0

    @property
    def num_compositions(self) -> int:
        """How often the mechanism is charged: once for each pass."""
        return self.epochs

    @property
    def composition_unit(self) -> str:
        """What is charged once."""
        return "pass"

    @property
    def neighbouring_relation(self) -> str:
        """Which data sets must look alike."""
        return "zero_out"

    @property
    def requires_validity(self) -> bool:
        """Whether batches must carry the validity column."""
        return self.examples_per_unit > 1

    @property
    def batch_rows(self) -> None:
        """None: batches may have any number of rows."""
        return None

    @property
    def unit(self) -> str:
        """Whose contribution is protected."""
        return "example" if self.examples_per_unit == 1 else "unit"

    @property
    def description(self) -> str:
        """One sentence for the privacy statement."""
        units = "examples"
        if self.examples_per_unit > 1:
            units = f"units of {self.examples_per_unit:,} consecutive examples"
        passes = "one pass"
        if self.epochs > 1:
            passes = f"each of {self.epochs:,} passes"
        return (
            f"The user's own batches of {self.batch_size:,}: in {passes}, each "
            f"of {self.num_units:,} {units} "
            "is in at most one batch; no amplification by sampling is claimed."
        )

    def with_compositions(self, number: int) -> EpochSampling:
        """The same batches for another number of passes."""
        return dataclasses.replace(self, epochs=number)

    def dataset(self, data: Any, *, seed: int | None = None) -> tf.data.Dataset:
        """Shuffled batches in which each example occurs exactly once.

        Units stay together: consecutive rows of the data are consecutive rows
        of a batch. A convenience; any other batches that keep the assumption
        will do. One iteration is one pass, so use
        `fit(..., epochs=sampling.epochs)`.

        Args:
          data: As for `PoissonSampling.dataset`. Batches have the form of the
            data: `(x,)`, `(x, y)` or `(x, y, sample_weight)`, the weights in
            half precision, where zero excludes an example. Units come with
            weights always, as `(x, y, weight)` or `(x, None, weight)`.
          seed: Makes the order repeatable. The guarantee does not depend on
            the order, so this is harmless.

        Raises:
          TypeError: The data is of a form that cannot be used.
          ValueError: Lengths differ from `num_examples`, a weight is negative
            or not finite, or a scalar feature has type float16.
        """
        examples = open_examples(data, self.num_examples)
        iterations = fresh_draws(checked_seed(seed))

        def batches() -> Iterator[tuple[np.ndarray, ...]]:
            order = next(iterations).permutation(self.num_units)
            places = np.arange(self.examples_per_unit)
            size = self.batch_size // self.examples_per_unit
            for start in range(0, self.num_units, size):
                units = np.sort(order[start : start + size])
                rows = units[:, None] * self.examples_per_unit + places
                yield tuple(examples.rows(rows.ravel()))

        even = self.num_examples % self.batch_size == 0
        return examples.dataset(
            batches,
            batch_rows=self.batch_size if even else None,
            steps=self.steps_per_pass,
            weights=examples.weighted or self.requires_validity,
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal sampling."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EpochSampling:
        """The inverse of `get_config`."""
        return cls(**config)
