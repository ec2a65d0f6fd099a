"""Noise everywhere, then projection on the ball that the sums lie in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import dp_accounting
import tensorflow as tf

from tf_sparse_dp.mechanisms.ball_projection import projected
from tf_sparse_dp.mechanisms.gaussian import deduplicated, with_noise
from tf_sparse_dp.mechanisms.grid import noisy
from tf_sparse_dp.mechanisms.interface import (
    Mechanism,
    PublicFacts,
    Sum,
    Variable,
)
from tf_sparse_dp.mechanisms.merged_tables import MergedTables
from tf_sparse_dp.mechanisms.noisy_tables import Layout, check_tables
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.random_tails import laplace

GEOMETRIES = ("rows", "coordinates")
NOISES = ("gaussian", "laplace")
TABLES = ("together", "each")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Projection(Mechanism):
    r"""Noise on every entry, then projection of tables on a ball.

    $\hat s = \mathrm{argmin}_{x \in K} |x - z|_2$ with $z = s + \xi$. With
    `geometry="rows"`, $K = \{x : \sum_r |x_r|_2 \le R\}$ over the rows of
    tables; with `geometry="coordinates"`, $K = \{x : |x|_1 \le R\}$. An example
    that reaches at most $q$ rows (or coordinates) and has norm at most $C$ has
    $\sum_r |x_r| \le C \sqrt q$, so the sums of $n$ examples lie in $K$ for

    $R = C \sqrt q\, n$: $C$ = clip_norm, $n$ = expected_batch_size, $q$ = the
    `lookups` of a table, times its width for coordinates, summed over the
    tables that are projected together.

    Projection is a soft threshold at the $\tau$ that leaves $\sum_r (|z_r| -
    \tau)_+ = R$. Of rows that no example touched, only those above a lower
    bound of $\tau$ are ever drawn: time and memory grow with the rows that a
    batch touches and with $R / \sigma$, not with the rows of the table, and
    the result has the distribution of noise on all rows.

    The lower bound is public, and chosen such that noise alone all but
    certainly (6 standard deviations) puts $\tau$ above it; should it not, the
    threshold is the lower bound, which costs accuracy and no privacy. If
    `PublicFacts.failure_probability` is 0, the lower bound falls until it is
    one, and the projection is exact.

    Variables that are not tables get noise on every entry, and no projection.

    **Guarantee.** Gaussian noise: if one unit changes all sums together by at
    most $C$ in L2 norm, releasing them is a Gaussian mechanism with noise
    multiplier $\sigma / C$, $\sigma$ = the stddev of `PublicFacts`. Laplace
    noise: units are clipped to L1 norm $C \sqrt{q'}$ instead, $q'$ = all
    coordinates of all variables that one unit can reach; with scale $b =
    $ noise_multiplier $\cdot\, C \sqrt{q'}$, releasing the sums is a Laplace
    mechanism, and $\epsilon$-private for $\epsilon = 1 /$ noise_multiplier.
    Neighbours: add or remove one unit, or zero one out. Projection sees only
    noisy sums and public numbers: a wrong $q$ costs accuracy only, with Laplace
    noise as well, as the clipping enforces what the noise covers. Beyond that a
    release is another one than it should be with
    `PublicFacts.failure_probability`, for whatever data; only if that is 0 is
    Laplace noise pure. How many rows of zeros fill a release up is not private.

    Args:
      geometry: "rows" or "coordinates". Rows give the smaller error where
        examples reach whole rows, as with embeddings.
      noise: "gaussian", or "laplace" for pure privacy, with coordinates only.
      tables: "together" on one ball, or "each" on a ball of its own.
      lookups: Most rows of a table that one unit reaches, for tables where it
        is not known from the model (ragged ids). A wrong number costs accuracy.

    Raises:
      ValueError: If an argument is none of these, or rows are combined with
        Laplace noise.

    Example:
      >>> Projection().description
      'Gaussian noise on every entry, tables projected by rows together'

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), algorithm 1 (for
    coordinates).
    """

    geometry: str = "rows"
    noise: str = "gaussian"
    tables: str = "together"
    lookups: int | None = None

    def __post_init__(self) -> None:
        _check_choice("geometry", self.geometry, GEOMETRIES)
        _check_choice("noise", self.noise, NOISES)
        _check_choice("tables", self.tables, TABLES)
        if self.noise == "laplace" and self.geometry != "coordinates":
            raise ValueError(
                f"geometry={self.geometry!r} was given with noise='laplace'; "
                "expected 'coordinates', as norms of rows of Laplace noise "
                "are not supported. Pass geometry='coordinates', or "
                "noise='gaussian'."
            )
        whole = isinstance(self.lookups, int) and not isinstance(
            self.lookups, bool
        )
        if self.lookups is not None and (not whole or self.lookups < 1):
            raise ValueError(
                f"lookups={self.lookups!r} was given; expected a whole number "
                "of at least 1: the most rows that one unit reaches."
            )

    @property
    def noise_family(self) -> str:
        return self.noise

    @property
    def uses_lookups(self) -> bool:
        return True

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        self.check(facts)
        if facts.noise_multiplier == 0:
            return [deduplicated(total) for total in sums]
        return self.projected(sums, key, facts)[0]

    def projected(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> tuple[list[Sum], list[tf.Tensor]]:
        """What is released, and by how much norms were shrunk in each ball.

        The latter is as private as the former.
        """
        if self.tables == "each":
            return self._projected(sums, key, facts)
        variables = tuple(map(self._with_lookups, facts.variables))
        tables = MergedTables(
            sums, dataclasses.replace(facts, variables=variables)
        )
        released, thresholds = self._projected(
            tables.together(sums), key, tables.facts
        )
        return tables.apart(released), thresholds

    def _projected(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> tuple[list[Sum], list[tf.Tensor]]:
        keys = [fold_in(key, place) for place in range(len(sums))]
        size = self._noise_size(facts)
        released: list[Sum] = list(sums)
        for place, variable in enumerate(facts.variables):
            if not variable.sparse:
                released[place] = self._noisy(sums[place], keys[place], size)
        thresholds = []
        balls = self._balls(facts)
        for ball in balls:
            radius = self._radius(
                [facts.variables[place] for place in ball], facts
            )
            tables, threshold = projected(
                [sums[place] for place in ball],
                [keys[place] for place in ball],
                [self._layout(facts.variables[place], size) for place in ball],
                radius * facts.units,
                facts.failure_probability / len(balls),
                largest_radius=radius * facts.expected_batch_size,
            )
            thresholds.append(threshold)
            for place, table in zip(ball, tables, strict=True):
                released[place] = table
        return released, thresholds

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        if self.noise == "laplace":
            return dp_accounting.LaplaceDpEvent(noise_multiplier)
        return super().event(noise_multiplier)

    def check(self, facts: PublicFacts) -> None:
        check_tables(facts)
        for variable in facts.variables:
            if variable.sparse:
                self._rows(variable)

    @property
    def description(self) -> str:
        return (
            f"{self.noise.capitalize()} noise on every entry, tables projected "
            f"by {self.geometry} {self.tables}"
        )

    def _rows(self, table: Variable) -> int:
        """Most rows of the table that one unit reaches."""
        known = self.lookups if table.lookups is None else table.lookups
        if known is None:
            own, other = "lookups=...", "Threshold()"
            if self.noise == "laplace":
                own = 'geometry="coordinates", noise="laplace", lookups=...'
                other = "Laplace()"
            raise ValueError(
                "How many rows of a table one unit reaches, from which "
                "Projection takes its radius, is not known for the table "
                f"{table.name!r} of shape {table.shape}: its ids are ragged or "
                f"sparse. Pass Projection({own}) with a number that few "
                f"units exceed, or use {other}, which need not know."
            )
        if known < 1:
            raise ValueError(
                f"One unit reaches {known} rows of the table {table.name!r} of "
                f"shape {table.shape}; expected at least 1. Leave it out of "
                "the variables that are trained."
            )
        return min(known, table.shape[0])

    def _with_lookups(self, variable: Variable) -> Variable:
        if not variable.sparse:
            return variable
        return dataclasses.replace(variable, lookups=self._rows(variable))

    def reachable_entries(self, variable: Variable) -> int:
        return super().reachable_entries(self._with_lookups(variable))

    def _noise_size(self, facts: PublicFacts) -> float:
        """Standard deviation or scale of the noise."""
        if self.noise == "laplace":
            return facts.noise_multiplier * self.l1_sensitivity(facts)
        return facts.stddev

    def _noisy(
        self, total: tf.Tensor, key: tf.Tensor, size: float
    ) -> tf.Tensor:
        if self.noise == "gaussian":
            return with_noise(total, key, size)
        return noisy(total, size * laplace(total.shape, key), size)

    def _layout(self, table: Variable, size: float) -> Layout:
        return Layout(table.shape, self.geometry, self.noise, size)

    def _balls(self, facts: PublicFacts) -> list[list[int]]:
        """Places of the tables that are projected together."""
        tables = [i for i, v in enumerate(facts.variables) if v.sparse]
        if self.tables == "each":
            return [[place] for place in tables]
        return [tables] if tables else []

    def _radius(self, tables: Sequence[Variable], facts: PublicFacts) -> float:
        """Of the ball of one unit."""
        reach = (
            self._rows if self.geometry == "rows" else self.reachable_entries
        )
        return facts.clip_norm * math.sqrt(sum(map(reach, tables)))


def _check_choice(name: str, given: object, choices: Sequence[str]) -> None:
    if given not in choices:
        raise ValueError(
            f"{name}={given!r} was given; expected one of {choices}."
        )
