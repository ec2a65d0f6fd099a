"""Laplace noise on every entry: the dense baseline of pure privacy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import dp_accounting
import tensorflow as tf

from tf_sparse_dp.mechanisms.gaussian import deduplicated
from tf_sparse_dp.mechanisms.grid import noisy
from tf_sparse_dp.mechanisms.interface import Mechanism, PublicFacts, Sum
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.random_tails import laplace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    r"""Adds independent Laplace noise to every entry of every variable.

    $\tilde s = s + \xi$ with density $e^{-|x|/b} / 2b$ of each entry of $\xi$.
    Units are clipped to L1 norm $C \sqrt q$, with $C$ = clip_norm and $q$ the
    number of entries that one unit can reach, of all variables together: whole
    variables, but of a table only its `lookups` times its width. So many
    entries of L2 norm $C$ have an L1 norm of at most $C \sqrt q$. The scale is
    $b$ = noise_multiplier $\cdot\, C \sqrt q$.

    **Guarantee.** One unit changes all sums together by at most $C \sqrt q$ in
    L1 norm, so releasing them is a Laplace mechanism, and $\epsilon$-private
    for $\epsilon = 1 /$ noise_multiplier, with $\delta = 0$ (neighbours: add or
    remove one unit, or zero one out). The clipping enforces it: a wrong $q$
    costs accuracy only. That is so in exact arithmetic: float32 noise ends at
    45 scales, beyond which it should lie with probability $2^{-65}$.

    Dense by definition: a table's noise touches all its rows at every step.
    The noise grows with $\sqrt q$, which for dense variables is large: pure
    privacy is for few entries, or few steps.

    Example:
      >>> Laplace().description
      'Laplace noise on every entry of every variable'

    Reference: Dwork, McSherry, Nissim and Smith, "Calibrating Noise to
    Sensitivity in Private Data Analysis" (2006).
    """

    @property
    def noise_family(self) -> str:
        return "laplace"

    @property
    def fixed_sizes(self) -> bool:
        return False

    @property
    def uses_lookups(self) -> bool:
        return True

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        if facts.noise_multiplier == 0:
            return [deduplicated(total) for total in sums]
        scale = facts.noise_multiplier * self.l1_sensitivity(facts)
        return [
            noisy(
                total,
                scale * laplace(variable.shape, fold_in(key, place)),
                scale,
            )
            for place, (total, variable) in enumerate(
                zip(sums, facts.variables, strict=True)
            )
        ]

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        return dp_accounting.LaplaceDpEvent(noise_multiplier)

    @property
    def description(self) -> str:
        return "Laplace noise on every entry of every variable"
