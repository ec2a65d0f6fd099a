"""An estimate with the bias of the full batch, from batches that are small."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor
from tf_sparse_dp.gradients.internals import is_compiled
from tf_sparse_dp.mechanisms.compressed_sensing import CompressedSensing
from tf_sparse_dp.mechanisms.gaussian import Gaussian
from tf_sparse_dp.mechanisms.interface import Mechanism, PublicFacts, Sum
from tf_sparse_dp.mechanisms.projection import Projection
from tf_sparse_dp.mechanisms.released_rows import released_rows
from tf_sparse_dp.mechanisms.tail_sampling import touched_rows
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.sampling.truncated_geometric import TruncatedGeometric

# What a batch is of: all of B, its halves O and E, and I.
_PARTS = 4
_INNER: dict[str, type[Mechanism]] = {
    kind.__name__: kind for kind in (CompressedSensing, Gaussian, Projection)
}


@dataclasses.dataclass(frozen=True)
class BiasReduction(Mechanism):
    r"""Combines four releases of `inner` to one estimate of small bias.

    With N, B, O, E and I as `BiasReducedSampling` draws them, $p_k = C_M
    2^{-k}$ the law of N, and $\hat g(S)$ what `inner` makes of the sum over S,
    divided by $|S|$,

    $$G = \tfrac{1}{p_N} \left( \hat g(B) - \tfrac12 (\hat g(O) + \hat g(E))
    \right) + \hat g(I).$$

    All four sums have noise of the same size, so that this is $\hat s(B) -
    \hat s(O) - \hat s(E)$ over $2 C_M$, plus $\hat s(I)$, for the released sums
    $\hat s$.

    **Bias.** O, E and I have the law of a batch of their size, hence $E[G] =
    \sum_k (e_{k+1} - e_k) + e_0 = e_{M+1}$ with $e_k$ the mean of $\hat g$ over
    batches of $2^k$: the bias of `inner` on a batch of at least half of the
    data. It telescopes because what `inner` does depends on the size of S
    alone. Without noise, $\hat s(B) = \hat s(O) + \hat s(E)$, and G is the
    gradient of one random example. The price is the second moment, which is
    that of noise for batches of *one* example, several times over.

    **Guarantee.** Each release is one of `inner`, of multiplier z, with noise
    of its own. A unit of B is in two of them and I is drawn independently;
    `BiasReducedSampling` has the proof of what a step costs, for neighbours in
    which one example is replaced. Neither works without the other.

    Args:
      inner: `Projection()`, `CompressedSensing()` or `Gaussian()`, with
        Gaussian noise. Sizes that are fixed beforehand, such as the number of
        measurements, are those for the largest batch, in all four releases.

    Raises:
      TypeError: If `inner` is none of these.
      ValueError: If it has other noise.

    Example:
      >>> BiasReduction(Projection()).description[:37]
      'bias reduction by four releases each:'

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), algorithm 3; after
    Blanchet and Glynn, "Unbiased Monte Carlo for optimization and functions of
    expectations via multi-level randomization" (2015).
    """

    inner: Mechanism = dataclasses.field(default_factory=Projection)

    def __post_init__(self) -> None:
        if type(self.inner) not in _INNER.values():
            raise TypeError(
                f"inner is {self.inner!r}, expected Projection(), "
                "CompressedSensing() or Gaussian(): the estimate telescopes "
                "only if what is released depends on the size of a batch in a "
                "known way."
            )
        if self.inner.noise_family != "gaussian":
            raise ValueError(
                f"inner is {self.inner!r}, with {self.inner.noise_family} "
                "noise; expected Gaussian noise. What two uses of one example "
                "cost together is known for that alone."
            )

    @property
    def uses_lookups(self) -> bool:
        return self.inner.uses_lookups

    @property
    def fixed_sizes(self) -> bool:
        return self.inner.fixed_sizes

    def clipped(
        self,
        terms: Sequence[Factor],
        key: tf.Tensor,
        facts: PublicFacts,
        *,
        scale: tf.Tensor | float = 1.0,
        valid: tf.Tensor | None = None,
    ) -> list[Sum]:
        """As of `Mechanism`: the sums over B, over O, over E and over I.

        Raises:
          ValueError: If these are not facts about a batch of the sampling.
        """
        half = self._half(facts)
        if valid is None:
            raise ValueError(
                "The batch has no validity column, from which its number of "
                "rows is known. Train on BiasReducedSampling(...).dataset(...)."
            )
        places = tf.range(tf.shape(valid)[0])
        sums = self.inner.clipped_parts(
            terms,
            _keys(key),
            self._inner_facts(facts),
            parts=[
                places < 2 * half,
                places < half,
                (places >= half) & (places < 2 * half),
                places == 2 * half,
            ],
            scale=scale,
            valid=valid,
        )
        return [total for part in sums for total in part]

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        self.check(facts)
        half = tf.cast(self._half(facts), tf.float32)
        sizes = (2 * half, half, half, tf.ones([]))
        count = len(facts.variables)
        released = [
            self.inner.release(
                sums[place * count : (place + 1) * count],
                own,
                dataclasses.replace(self._inner_facts(facts), part_size=size),
            )
            for place, (own, size) in enumerate(
                zip(_keys(key), sizes, strict=True)
            )
        ]
        law = TruncatedGeometric(self._levels(facts) - 1)
        weight = float(1 / (2 * law.scale))
        weights = (weight, -weight, -weight, 1.0)
        return [
            _combined(parts, weights) for parts in zip(*released, strict=True)
        ]

    def check(self, facts: PublicFacts) -> None:
        self._levels(facts)
        self.inner.check(self._inner_facts(facts))

    @property
    def description(self) -> str:
        return (
            "bias reduction by four releases each: of a batch, of its halves, "
            "and of one more example; in all of them "
            f"{self.inner.description}"
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "inner": {
                "class_name": type(self.inner).__name__,
                "config": self.inner.get_config(),
            }
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BiasReduction:
        """The inverse of `get_config`."""
        inner = config["inner"]
        return cls(_INNER[inner["class_name"]](**inner["config"]))

    def _levels(self, facts: PublicFacts) -> int:
        if facts.levels is None:
            raise ValueError(
                "BiasReduction was given for batches that are not drawn by "
                "BiasReducedSampling; expected that sampling: the parts of a "
                "batch, and what they cost, are its own. Give "
                "DPSparseOptimizer a RenyiFilter and "
                "sampling=BiasReducedSampling(...), or use the inner "
                "mechanism by itself."
            )
        return facts.levels

    def _half(self, facts: PublicFacts) -> tf.Tensor:
        """2^N, the size of O and E; int32."""
        levels = self._levels(facts)
        if facts.level is None:
            raise ValueError(
                "Which size the batch has is not known. Release what "
                "DPSparseOptimizer gives within a step."
            )
        # Batches of no known size are not released; see `kind_of`.
        level = tf.clip_by_value(facts.level, 0, levels - 1)
        return tf.gather(tf.constant([2**k for k in range(levels)]), level)

    def _inner_facts(self, facts: PublicFacts) -> PublicFacts:
        """With the size of the largest batch, which is the same for all."""
        return dataclasses.replace(
            facts,
            expected_batch_size=float(2 ** self._levels(facts)),
            failure_probability=facts.failure_probability / _PARTS,
            levels=None,
            level=None,
        )


def _keys(key: tf.Tensor) -> list[tf.Tensor]:
    return [fold_in(key, part) for part in range(_PARTS)]


def _combined(parts: Sequence[Sum], weights: Sequence[float]) -> Sum:
    """The weighted sum; of tables that are given by rows, by rows."""
    if not isinstance(parts[0], tf.IndexedSlices):
        return tf.add_n(
            [
                part * tf.cast(weight, part.dtype)
                for part, weight in zip(parts, weights, strict=True)
            ]
        )
    values = [
        part.values * tf.cast(weight, part.values.dtype)
        for part, weight in zip(parts, weights, strict=True)
    ]
    together = tf.IndexedSlices(
        tf.concat(values, 0),
        tf.concat([part.indices for part in parts], 0),
        parts[0].dense_shape,
    )
    rows = touched_rows(together)
    return released_rows(
        rows.ids,
        rows.values,
        together,
        fixed_size=is_compiled(tf.compat.v1.get_default_graph()),
    )
