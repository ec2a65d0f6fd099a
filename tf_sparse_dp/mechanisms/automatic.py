"""A mechanism chosen by the sizes of the variables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import dp_accounting
import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor
from tf_sparse_dp.mechanisms.gaussian import Gaussian
from tf_sparse_dp.mechanisms.interface import Mechanism, PublicFacts, Sum
from tf_sparse_dp.mechanisms.laplace import Laplace
from tf_sparse_dp.mechanisms.projection import Projection
from tf_sparse_dp.mechanisms.threshold import Threshold

# Nanoseconds on a core or two, measured with `make bench-overhead`. They
# decide about cost alone, so that it is enough if they are about right.
_PER_NOISE = 10.0  # A number of Gaussian noise.
_PER_LOOKUP = 50.0  # An entry of a row that is looked up, and its gradient.
_PER_PRODUCT = 0.06  # An entry of a dense variable, for one example.
_PER_STEP = 5e6
_PER_PROJECTED = 70.0  # An entry of a row that is looked up, for projection.

# A threshold that noise hardly ever exceeds is one that signals of a single
# step hardly ever exceed either.
_UNTOUCHED_ROWS = 1000.0

_MORE = (
    "Cutting off rows at every step costs accuracy where signals are weak but "
    "persistent. tf_sparse_dp.layers.LazyEmbedding keeps them at the cost of "
    "the rows that are looked up, for tables that SGD trains "
    "(docs/training.md); mechanism=Gaussian() at that of noise on all rows"
)


class Choice(NamedTuple):
    """A mechanism, and why it is the one."""

    mechanism: Mechanism
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Automatic(Mechanism):
    """Gaussian noise while that is cheap beside the step, else projection.

    Decides from public facts alone: shapes, lookups and batch size. Row
    `Projection` releases tables for which noise on all rows would take longer
    than the rest of the step, and much longer than projection; `Threshold`
    where the number of lookups is not known. For Laplace noise it is
    `Projection` by coordinates, or `Laplace`.

    **Guarantee.** That of the mechanism chosen; all of them have the same noise
    and the same noise multiplier.

    Args:
      noise: "gaussian" or "laplace": that of the plan.

    Example:
      >>> Automatic().description
      "Gaussian noise, by a mechanism that the tables' sizes choose"
    """

    noise: str = "gaussian"

    @property
    def noise_family(self) -> str:
        return self.noise

    @property
    def uses_lookups(self) -> bool:
        return True

    def resolved(self, facts: PublicFacts) -> Mechanism:
        return self.choice(facts).mechanism

    def choice(self, facts: PublicFacts) -> Choice:
        """The mechanism for these facts, and why."""
        if self.noise == "gaussian" and facts.noise_later:
            return Choice(
                Gaussian(), "tables of LazyEmbedding get theirs when read"
            )
        tables = [v for v in facts.variables if v.sparse]
        known = all(table.lookups is not None for table in tables)
        if self.noise == "laplace":
            return _pure(known)
        noise = _PER_NOISE * sum(math.prod(table.shape) for table in tables)
        step, projection = _costs(facts)
        these = "one table" if len(tables) == 1 else f"{len(tables)} tables"
        compared = (
            f"noise on all rows of {these} would take roughly "
            f"{_share(noise / step)} the time of the rest of the step"
        )
        if not tables:
            return Choice(Gaussian(), "no tables")
        if noise <= step:
            return Choice(Gaussian(), compared)
        if noise <= 2 * projection:
            return Choice(
                Gaussian(), f"{compared}, but so would leaving rows out"
            )
        if known:
            return Choice(Projection(), f"{compared}. {_MORE}")
        return Choice(
            Threshold(untouched_rows=_UNTOUCHED_ROWS),
            f"{compared}, and how many rows an example looks up is not known. "
            f"{_MORE}",
        )

    def clipped(
        self,
        terms: Sequence[Factor],
        key: tf.Tensor,
        facts: PublicFacts,
        *,
        scale: tf.Tensor | float = 1.0,
        valid: tf.Tensor | None = None,
    ) -> list[Sum]:
        return self.resolved(facts).clipped(
            terms, key, facts, scale=scale, valid=valid
        )

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        return self.resolved(facts).release(sums, key, facts)

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        if self.noise == "laplace":
            return dp_accounting.LaplaceDpEvent(noise_multiplier)
        return super().event(noise_multiplier)

    @property
    def description(self) -> str:
        family = self.noise.capitalize()
        return f"{family} noise, by a mechanism that the tables' sizes choose"


def _pure(known: bool) -> Choice:
    if known:
        return Choice(
            Projection(geometry="coordinates", noise="laplace"),
            "the plan is for Laplace noise",
        )
    return Choice(
        Laplace(),
        "the plan is for Laplace noise, and how many rows an example looks up "
        "is not known",
    )


def _costs(facts: PublicFacts) -> tuple[float, float]:
    """Nanoseconds of a step without noise and of projection, roughly."""
    looked_up = dense = 0
    for variable in facts.variables:
        if variable.sparse:
            lookups = 1 if variable.lookups is None else variable.lookups
            looked_up += lookups * math.prod(variable.shape[1:])
        else:
            dense += math.prod(variable.shape)
    each = _PER_LOOKUP * looked_up + _PER_PRODUCT * dense
    return (
        _PER_STEP + facts.expected_batch_size * each,
        facts.expected_batch_size * _PER_PROJECTED * looked_up,
    )


def _share(ratio: float) -> str:
    return f"{ratio:.0%} of" if ratio < 1 else f"{ratio:.2g} times"
