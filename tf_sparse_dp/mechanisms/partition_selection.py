"""Noise on the rows that enough units reach, found privately in every step."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any

import dp_accounting
import tensorflow as tf
from scipy import special

from tf_sparse_dp.gradients.clipping import clip_and_sum
from tf_sparse_dp.gradients.contributions import contribution_counts
from tf_sparse_dp.gradients.factors import Factor
from tf_sparse_dp.mechanisms.gaussian import deduplicated, with_noise
from tf_sparse_dp.mechanisms.grid import rounded
from tf_sparse_dp.mechanisms.interface import (
    Mechanism,
    PublicFacts,
    Sum,
    Variable,
)
from tf_sparse_dp.mechanisms.merged_tables import MergedTables
from tf_sparse_dp.mechanisms.noisy_tables import FEWEST_ROWS
from tf_sparse_dp.mechanisms.released_rows import released_rows
from tf_sparse_dp.mechanisms.tail_sampling import touched_rows, untouched_hits
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.random_tails import normal

# What the parts of a table's key are for.
_COUNTS, _VALUES, _HITS, _HIT_VALUES = range(4)

# If more than this part of the untouched rows is selected, noise is drawn for
# all rows: that is cheaper than to find out which.
_LARGE_PART = 0.25


# What has so small a share of the privacy gets a thousand times the noise.
_LEAST_SHARE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionSelection(Mechanism):
    r"""Selects rows by noisy counts, and adds noise to the selected rows only.

    $\tilde s_r = s_r + N(0, \sigma_2^2 I)$ for the rows of a table with
    $c_r + N(0, \sigma_1^2) > \tau$, and $\tilde s_r = 0$ for all others. $c_r$
    counts the units that reach row $r$: a unit that reaches $m$ rows, of all
    tables together, counts $1/\sqrt{m}$ at each. With $z$ the noise multiplier
    of `PublicFacts`, $C$ its clip norm, $\theta$ = `selection_share` and $\tau$
    = `threshold`,

    $\sigma_1 = z / \sqrt{\theta}, \quad \sigma_2 = C z / \sqrt{1 - \theta}$.

    Dense variables get noise of standard deviation $\sigma_2$ on every entry.

    **Guarantee.** One unit moves the counts of all rows by at most 1 in L2 norm
    and all sums by at most $C$. Noisy counts and noisy sums of *all* rows
    together are hence one Gaussian mechanism with noise multiplier
    $(\theta/z^2 + (1-\theta)/z^2)^{-1/2} = z$ (neighbours: add or remove one
    unit, or zero one out), and what is released is a function of them. Rows
    that no unit reaches are selected by their noise alone, each with
    probability $\bar\Phi(\tau/\sigma_1)$; they are drawn without visiting all
    rows, with the same distribution. Rows that are shared by all units, such as
    public candidates, are not secret: they are always selected and cost no
    unit any of its count.

    Costs time in proportion to the rows that the batch looks up and those that
    noise selects, not to the rows of the table; unless more than a quarter of
    all rows are selected by noise alone.

    Args:
      selection_share: Share of $1/z^2$ that the selection of rows uses, from
        1e-6 to 1 - 1e-6. The larger, the better are rows selected, and the more
        noise do values get: their noise grows by $1/\sqrt{1-\theta}$. On
        simulated sums over rows of a power law the error was least, and nearly
        the same, from 0.1 to 0.3.
      threshold: $\tau$, the noisy count above which a row is selected; at least
        0. None chooses, for all tables of one width, the one at which
        `expected_untouched` of their rows are selected by noise alone. Tables
        of fewer than 1000 rows have thresholds of their own; of tables with no
        more rows than expected all are selected, without counting.
      expected_untouched: See `threshold`; above 0 and below 1000, and not used
        if a threshold is given.

    Raises:
      ValueError: If an argument is not what is described above.

    Example:
      >>> mechanism = PartitionSelection(selection_share=0.2)
      >>> [round(e.noise_multiplier, 3) for e in mechanism.event(2.0).events]
      [4.472, 2.236]

    Reference: Ghazi et al., "Sparsity-Preserving Differentially Private
    Training of Large Embedding Models", 2023 (DP-AdaFEST).
    """

    selection_share: float = 0.2
    threshold: float | None = None
    expected_untouched: float = 10.0

    def __post_init__(self) -> None:
        _check("selection_share", self.selection_share, "above 0 and below 1")
        if not _LEAST_SHARE <= self.selection_share <= 1 - _LEAST_SHARE:
            raise ValueError(
                f"selection_share={self.selection_share!r} was given; expected "
                f"a finite number from {_LEAST_SHARE:g} to 1 - "
                f"{_LEAST_SHARE:g}: with less, counts or values would be noise "
                "only. To leave the selection out use Gaussian()."
            )
        _check("expected_untouched", self.expected_untouched, "above 0")
        if self.expected_untouched >= FEWEST_ROWS:
            raise ValueError(
                f"expected_untouched={self.expected_untouched!r} was given; "
                f"expected less than {FEWEST_ROWS}. Give a low threshold to "
                "have most rows selected, or use Gaussian()."
            )
        if self.threshold is not None:
            _check("threshold", self.threshold, "at least 0")

    def clipped(
        self,
        terms: Sequence[Factor],
        key: tf.Tensor,
        facts: PublicFacts,
        *,
        scale: tf.Tensor | float = 1.0,
        valid: tf.Tensor | None = None,
    ) -> list[Sum]:
        """Clipped sums, and then counts of the tables that are selected from.

        Joint sensitivity: 1 in the counts, `clip_norm` in the sums. A unit
        whose gradient is not finite has no influence on either.
        """
        clipped = clip_and_sum(
            terms, clip_norm=facts.clip_norm, scale=scale, valid=valid
        )
        finite = tf.math.is_finite(clipped.norms)
        counted = finite if valid is None else finite & valid
        tables = [
            factor
            for factor, variable in zip(terms, facts.variables, strict=True)
            if self._selects(variable)
        ]
        return [*clipped.sums, *contribution_counts(tables, counted)]

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        variables = facts.variables
        selected_from = sum(map(self._selects, variables))
        if len(sums) != len(variables) + selected_from:
            raise ValueError(
                f"{len(sums)} sums were given for {len(variables)} variables; "
                f"expected those of clipped(...), with {selected_from} counts "
                "of rows at the end."
            )
        gradients, counts = sums[: len(variables)], sums[len(variables) :]
        if facts.stddev == 0:
            return [deduplicated(total) for total in gradients]
        remaining = iter(counts)
        counts = [
            next(remaining) if self._selects(variable) else total
            for variable, total in zip(variables, gradients, strict=True)
        ]
        tables = MergedTables(gradients, facts)
        return tables.apart(
            self._released(
                tables.together(gradients),
                tables.together(counts),
                key,
                tables.facts,
            )
        )

    def _released(
        self,
        gradients: Sequence[Sum],
        counts: Sequence[Sum],
        key: tf.Tensor,
        facts: PublicFacts,
    ) -> list[Sum]:
        stddev = facts.stddev / math.sqrt(1 - self.selection_share)
        return [
            self._selected(
                _with_shape(total, variable.shape),
                _with_shape(count, (variable.shape[0], 1)),
                fold_in(key, place),
                stddev,
                facts,
            )
            if self._selects(variable)
            else with_noise(total, fold_in(key, place), stddev)
            for place, (variable, total, count) in enumerate(
                zip(facts.variables, gradients, counts, strict=True)
            )
        ]

    def _selects(self, variable: Variable) -> bool:
        if not variable.sparse or variable.shape[0] == 0:
            return False
        return (
            self.threshold is not None
            or variable.shape[0] > self.expected_untouched
        )

    def _standard_threshold(self, rows: int, count_stddev: float) -> float:
        """The threshold in standard deviations of the noise on counts."""
        if self.threshold is None:
            return -float(special.ndtri(self.expected_untouched / rows))
        return self.threshold / count_stddev

    def _selected(
        self,
        total: tf.IndexedSlices,
        counts: tf.IndexedSlices,
        key: tf.Tensor,
        stddev: float,
        facts: PublicFacts,
    ) -> tf.IndexedSlices:
        """The selected rows of a table with noise, filled up with zeros."""
        rows, *shape = tf.get_static_value(total.dense_shape).tolist()
        width = math.prod(shape)
        count_stddev = facts.noise_multiplier / math.sqrt(self.selection_share)
        threshold = self._standard_threshold(rows, count_stddev)
        probability = float(special.ndtr(-threshold))
        dense = probability > _LARGE_PART
        if dense:
            total, counts = _with_all_rows(total), _with_all_rows(counts)
        touched = touched_rows(total)
        # Of the same ids, hence of the same rows in the same order.
        count = touched_rows(counts, tf.float64).values[:, 0]
        size = tf.shape(touched.ids)[0]
        noise = count_stddev * normal([size], fold_in(key, _COUNTS))
        noisy = count + tf.cast(noise, tf.float64)
        ids, live = (
            touched.ids,
            touched.live & (noisy > threshold * count_stddev),
        )
        values = touched.values
        values += stddev * normal([size, width], fold_in(key, _VALUES))
        if not dense:
            hits = untouched_hits(
                rows,
                probability,
                touched.ids,
                fold_in(key, _HITS),
                facts.failure_probability
                / sum(map(self._selects, facts.variables)),
            )
            drawn = normal(
                [tf.shape(hits.ids)[0], width], fold_in(key, _HIT_VALUES)
            )
            ids = tf.concat([ids, hits.ids], 0)
            live = tf.concat([live, hits.live], 0)
            values = tf.concat([values, stddev * drawn], 0)
        values = tf.where(live[:, tf.newaxis], rounded(values, stddev), 0.0)
        return released_rows(ids, values, total)

    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        return dp_accounting.ComposedDpEvent(
            [
                dp_accounting.GaussianDpEvent(
                    noise_multiplier / math.sqrt(part)
                )
                for part in (self.selection_share, 1 - self.selection_share)
            ]
        )

    @property
    def description(self) -> str:
        chosen = (
            f"counts above {self.threshold:g}"
            if self.threshold is not None
            else f"{self.expected_untouched:g} rows of pure noise expected"
        )
        return (
            "Gaussian noise on rows of tables that noisy counts of units "
            f"select ({chosen}; the selection has {self.selection_share:g} of "
            "the privacy), and on every entry of other variables"
        )


def _check(name: str, value: Any, expected: str) -> None:
    good = isinstance(value, numbers.Real) and not isinstance(value, bool)
    good = good and math.isfinite(value)
    good = good and (value > 0 or (value == 0 and expected == "at least 0"))
    if not good or (value >= 1 and "below 1" in expected):
        raise ValueError(
            f"{name}={value!r} was given; expected a finite number {expected}."
        )


def _with_shape(
    total: tf.IndexedSlices, shape: tuple[int, ...]
) -> tf.IndexedSlices:
    """The same sum; arguments of a traced function have forgotten the shape."""
    shape = tf.constant(shape, tf.int64)
    return tf.IndexedSlices(total.values, total.indices, shape)


def _with_all_rows(total: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same sum, with zeros added to every row: all rows are touched."""
    rows = tf.get_static_value(total.dense_shape)[0]
    zeros = tf.zeros([rows, *total.values.shape[1:]], total.values.dtype)
    return tf.IndexedSlices(
        tf.concat([total.values, zeros], 0),
        tf.concat(
            [total.indices, tf.range(rows, dtype=total.indices.dtype)], 0
        ),
        total.dense_shape,
    )
