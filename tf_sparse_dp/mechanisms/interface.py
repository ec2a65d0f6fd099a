"""What an optimizer asks of a mechanism."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import dp_accounting
import tensorflow as tf

from tf_sparse_dp.gradients.clipping import clip_and_sum, clip_and_sum_parts
from tf_sparse_dp.gradients.factors import Factor

_LOOKUPS = (
    "How many rows of a table one example looks up is the width of its array "
    "of ids, and was fixed without looking at the data, as by "
    "pad_sequences(..., maxlen=50): a width that the longest example decides "
    "would tell how long that one is."
)

Sum: TypeAlias = "tf.Tensor | tf.IndexedSlices"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variable:
    """What is public about one variable's gradient.

    Attributes:
      shape: Shape of the variable.
      sparse: Whether its sum comes as `tf.IndexedSlices`: a table.
      lookups: Most rows of the table that one unit can reach; None if a unit
        can reach any number, or if it is not a table.
      name: What the model calls it, such as "model/items/embeddings".
      noise_later: Whether whoever reads its rows adds the noise: a table of
        `LazyEmbedding`. Its sum is released as it is.
    """

    shape: tuple[int, ...]
    sparse: bool = False
    lookups: int | None = None
    name: str = ""
    noise_later: bool = False

    @classmethod
    def of(
        cls, terms: Factor, name: str = "", noise_later: bool = False
    ) -> Variable:
        """The facts about a variable whose units' terms are given."""
        sparse = getattr(terms, "sparse", False)
        lookups = getattr(terms, "rows_per_example", None) if sparse else None
        if lookups is not None:
            lookups = min(lookups, terms.shape[0])
        return cls(
            shape=terms.shape,
            sparse=sparse,
            lookups=lookups,
            name=name,
            noise_later=noise_later,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """What a mechanism may know besides the data: nothing that is secret.

    Attributes:
      variables: One entry per variable.
      clip_norm: Largest norm of one unit's contribution.
      noise_multiplier: Ratio of the noise to the sensitivity. 0: no privacy.
      expected_batch_size: Units in a batch, expected; what private sums will
        be divided by.
      failure_probability: How likely a release may be another one than it
        should because a size was fixed beforehand. 0 forbids fixed sizes, and
        with them compilation by XLA.
      levels: How many sizes the batches of `BiasReducedSampling` can have;
        None for other samplings.
      level: Which one this batch has, an integer tensor from 0 on. None while
        nothing is released yet.
      part_size: A float32 tensor, where a release is over a part of the batch
        whose size is known only in the step: at most `expected_batch_size`.
    """

    variables: tuple[Variable, ...]
    clip_norm: float
    noise_multiplier: float
    expected_batch_size: float
    failure_probability: float
    levels: int | None = None
    level: tf.Tensor | None = None
    part_size: tf.Tensor | None = None

    @property
    def units(self) -> tf.Tensor | float:
        """How many units a release is over, expected."""
        if self.part_size is None:
            return self.expected_batch_size
        return self.part_size

    @property
    def stddev(self) -> float:
        """Standard deviation of Gaussian noise on a sum."""
        return self.noise_multiplier * self.clip_norm

    @property
    def noise_later(self) -> list[str]:
        """Names of the variables that get their noise later."""
        return [v.name for v in self.variables if v.noise_later]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism(abc.ABC):
    """Releases sums of clipped gradients privately.

    Fields of a mechanism are public facts. Data and randomness are arguments.
    """

    @property
    def noise_family(self) -> str:
        """The noise whose multiplier a plan gives: "gaussian" or "laplace"."""
        return "gaussian"

    @property
    def spent_before(self) -> tuple[float, float]:
        """Epsilon and delta that it took to make this mechanism.

        What fields tell about the training data, if they were computed from
        it; for neighbours that differ by one unit's being there, or being
        zeroed out. Statements add it to what training spends.
        """
        return 0.0, 0.0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What has to be true beyond the step, in sentences for a statement."""
        return (_LOOKUPS,) if self.uses_lookups else ()

    @property
    def uses_lookups(self) -> bool:
        """Whether what is released depends on `Variable.lookups`."""
        return False

    @property
    def fixed_sizes(self) -> bool:
        """Whether sizes are fixed beforehand where that may fail.

        How likely, `PublicFacts.failure_probability` bounds.
        """
        return True

    @property
    def allows_noise_later(self) -> bool:
        """Whether tables may get their noise later: `Variable.noise_later`."""
        return False

    def clipped(
        self,
        terms: Sequence[Factor],
        key: tf.Tensor,
        facts: PublicFacts,
        *,
        scale: tf.Tensor | float = 1.0,
        valid: tf.Tensor | None = None,
    ) -> list[Sum]:
        """Sums over units of what `release` makes private, clipped.

        Args:
          terms: One per variable: the terms of all units.
          key: The key that `release` gets.
          facts: The facts that `release` gets.
          scale: Undoes the loss reduction.
          valid: Bool, one per unit; units with False have no influence.
        """
        laplace = self.noise_family == "laplace"
        return clip_and_sum(
            terms,
            clip_norm=self.l1_sensitivity(facts)
            if laplace
            else facts.clip_norm,
            scale=scale,
            valid=valid,
            norm="l1" if laplace else "l2",
        ).sums

    def clipped_parts(
        self,
        terms: Sequence[Factor],
        keys: Sequence[tf.Tensor],
        facts: PublicFacts,
        *,
        parts: Sequence[tf.Tensor],
        scale: tf.Tensor | float = 1.0,
        valid: tf.Tensor | None = None,
    ) -> list[list[Sum]]:
        """What `clipped` gives for parts of the batch, one after another.

        For Gaussian noise: each unit's contribution to each part is clipped
        to the L2 norm `clip_norm`.

        Args:
          terms: As of `clipped`.
          keys: For each part the key that its `release` gets.
          facts: As of `clipped`.
          parts: For each part which units are in it: bool, one per unit.
          scale: As of `clipped`.
          valid: As of `clipped`.
        """
        return clip_and_sum_parts(
            terms, parts, clip_norm=facts.clip_norm, scale=scale, valid=valid
        )

    def l1_sensitivity(self, facts: PublicFacts) -> float:
        r"""What units are clipped to in L1 norm where noise is Laplace's.

        $C \sqrt q$, with $C$ = clip_norm and $q$ the number of entries that one
        unit can reach, of all variables together: so many entries of L2 norm
        $C$ have an L1 norm of at most that.
        """
        return facts.clip_norm * math.sqrt(
            sum(map(self.reachable_entries, facts.variables))
        )

    def reachable_entries(self, variable: Variable) -> int:
        """How many entries of a variable one unit can reach at most."""
        if variable.lookups is None:
            return math.prod(variable.shape)
        return variable.lookups * math.prod(variable.shape[1:])

    @abc.abstractmethod
    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        """Private sums of all variables.

        Args:
          sums: From `clipped`. Row ids of `tf.IndexedSlices` may repeat.
          key: A fresh key, int64 [2].
          facts: What is public.

        Returns:
          One per variable. Row ids of `tf.IndexedSlices` do not repeat, but
          for rows of zeros that fill up a fixed size. Those have id 0: an
          optimizer may do something to every row it is given, and a row that
          the batch touched must not be given for that.
        """

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """What one release costs whoever is in the batch."""
        return dp_accounting.GaussianDpEvent(noise_multiplier)

    def resolved(self, facts: PublicFacts) -> Mechanism:
        """The mechanism that releases, given what is public."""
        return self

    def check(self, facts: PublicFacts) -> None:  # noqa: B027
        """Refuses facts that this mechanism is not made for.

        Raises:
          ValueError: With what was found, what is expected and what to do.
        """

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """One sentence for the privacy statement."""

    def get_config(self) -> dict[str, Any]:
        """The fields, for `type(self)(**config)`."""
        return dataclasses.asdict(self)
