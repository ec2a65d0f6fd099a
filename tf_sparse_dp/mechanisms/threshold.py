"""Noise on every row, then a threshold that noise alone hardly exceeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_sparse_dp.mechanisms.gaussian import deduplicated, with_noise
from tf_sparse_dp.mechanisms.interface import (
    Mechanism,
    PublicFacts,
    Sum,
    Variable,
)
from tf_sparse_dp.mechanisms.merged_tables import MergedTables
from tf_sparse_dp.mechanisms.noisy_tables import (
    FEWEST_ROWS,
    Layout,
    check_tables,
    noisy_table,
)
from tf_sparse_dp.random_keys import fold_in

CHOICES = ("calibrated", "sure")
_UNTOUCHED_ROWS = 10.0

# SURE looks at thresholds that noise alone exceeds in one row of a hundred at
# most, and in so many rows of a large table: its cost does not grow with rows.
_MOST_PROBABLE = 1e-2
_SURE_HITS = 2_000.0
_SURE_CANDIDATES = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threshold(Mechanism):
    r"""Gaussian noise on every row, then a soft threshold of the rows' norms.

    $\hat s_r = (|z_r| - \tau)_+ z_r / |z_r|$ with $z = s + \xi$, $\xi \sim
    N(0, \sigma^2 I)$ and $\sigma$ = the stddev of `PublicFacts`. Rows that no
    example touched are pure noise, and only those above $\tau$ are ever drawn:
    time and memory grow with the rows that a batch touches, not with those of
    the table, and the result has the distribution of noise on all rows.

    There is one $\tau$ for all tables of one width. With
    `choice="calibrated"`, noise alone exceeds it in `untouched_rows` of their
    rows on average. With `choice="sure"`, $\tau$
    minimises Stein's unbiased estimate of the squared error, $\sum_{|z_r| >
    \tau} [\tau^2 + 2\sigma^2(k - (k-1)\tau/|z_r|) - |z_r|^2]$ for rows of
    width $k$, over thresholds between those that noise alone exceeds in one
    row, and in 1 % of all rows or 2,000 rows, whichever are fewer.

    Variables that are not tables get Gaussian noise on every entry and no
    threshold, and so do tables with fewer than 1000 rows.

    Nothing need be known about how many rows an example reaches. If no norm
    of a row of noise exceeds $\tau$, the squared error is at most $2 \tau
    \sum_r |s_r|$.

    **Guarantee.** If one unit changes all sums together by at most $C$ in L2
    norm, releasing them is a Gaussian mechanism with noise multiplier $\sigma /
    C$ (neighbours: add or remove one unit, or zero one out): thresholds, also
    the ones that SURE chooses, see only noisy rows. Beyond that a release is
    another one than it should be with `PublicFacts.failure_probability`, for
    whatever data. How many rows of zeros fill a release up is not private.

    Args:
      choice: "calibrated" or "sure".
      untouched_rows: How many untouched rows a release contains, expected, of
        all tables of one width; for "calibrated" only. More of them make the
        threshold lower.

    Raises:
      ValueError: If an argument is none of these, or `untouched_rows` is
        given with "sure".

    Example:
      >>> Threshold(choice="sure").description
      'Gaussian noise on every entry, rows of tables soft-thresholded by SURE'

    Reference: Donoho and Johnstone, "Adapting to Unknown Smoothness via
    Wavelet Shrinkage" (1995), here for groups of coordinates.
    """

    choice: str = "calibrated"
    untouched_rows: float = _UNTOUCHED_ROWS

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            raise ValueError(
                f"choice={self.choice!r} was given; expected one of {CHOICES}."
            )
        rows = self.untouched_rows
        number = isinstance(rows, (int, float)) and not isinstance(rows, bool)
        if not number or not 0 < rows < float("inf"):
            raise ValueError(
                f"untouched_rows={rows!r} was given; expected a finite number "
                "above 0, such as 10."
            )
        if self.choice == "sure" and rows != _UNTOUCHED_ROWS:
            raise ValueError(
                f"untouched_rows={rows!r} was given with choice='sure', which "
                "finds the threshold by itself; expected it to be left out. "
                "Leave out one of the two."
            )

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        self.check(facts)
        if facts.noise_multiplier == 0:
            return [deduplicated(total) for total in sums]
        tables = MergedTables(sums, facts)
        return tables.apart(
            self._released(tables.together(sums), key, tables.facts)
        )

    def _released(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        thresholded = [_is_thresholded(v) for v in facts.variables]
        failure = facts.failure_probability / max(sum(thresholded), 1)
        released = []
        for place, total in enumerate(sums):
            own = fold_in(key, place)
            if not thresholded[place]:
                released.append(with_noise(total, own, facts.stddev))
                continue
            layout = Layout(
                facts.variables[place].shape, "rows", "gaussian", facts.stddev
            )
            released.append(self._thresholded(total, own, layout, failure))
        return released

    def _thresholded(
        self,
        total: tf.IndexedSlices,
        key: tf.Tensor,
        layout: Layout,
        failure: float,
    ) -> Sum:
        if self.choice == "sure":
            lowest, highest = sure_range(layout)
            table = noisy_table(total, key, layout, lowest, failure)
            return table.shrunk(
                sure_shift(table.excess, lowest, highest, layout)
            )
        probability = min(self.untouched_rows / layout.rows, 1.0)
        threshold = float(layout.norms.inverse_survival(probability))
        table = noisy_table(total, key, layout, threshold, failure)
        return table.shrunk(tf.zeros([]))

    def check(self, facts: PublicFacts) -> None:
        check_tables(facts)

    @property
    def description(self) -> str:
        chosen = (
            "by SURE"
            if self.choice == "sure"
            else f"so that {self.untouched_rows:g} untouched ones remain"
        )
        return (
            "Gaussian noise on every entry, rows of tables soft-thresholded "
            + chosen
        )


def _is_thresholded(variable: Variable) -> bool:
    return variable.sparse and variable.shape[0] >= FEWEST_ROWS


def sure_range(layout: Layout) -> tuple[float, float]:
    """The thresholds among which SURE chooses, lowest and highest."""
    probability = min(_MOST_PROBABLE, _SURE_HITS / layout.rows)
    return (
        float(layout.norms.inverse_survival(probability)),
        float(layout.norms.inverse_survival(1.0 / layout.rows)),
    )


def sure_shift(
    excess: tf.Tensor,
    lowest: float,
    highest: float,
    layout: Layout,
) -> tf.Tensor:
    """By how much the best of evenly spaced thresholds exceeds the lowest.

    Args:
      excess: By how much norms exceed `lowest`, float32; 0 for others.
      lowest: The lowest threshold.
      highest: The highest.
      layout: What is public about the table.

    Returns:
      A float32 scalar.
    """
    stddev, width = layout.size, layout.width
    shifts = np.linspace(0.0, highest - lowest, _SURE_CANDIDATES)
    thresholds = lowest + shifts
    excess = tf.cast(excess, tf.float64)
    # Candidate j is exceeded by all that is in bins j and above: bin j holds
    # what lies above candidate j, up to candidate j + 1.
    bins = tf.cast(tf.math.ceil(excess / shifts[1]), tf.int32) - 1
    bins = tf.minimum(bins, _SURE_CANDIDATES - 1)  # Below 0 is left out.
    norms = lowest + excess
    sums = tf.math.unsorted_segment_sum(
        tf.stack([tf.ones_like(norms), 1 / norms, tf.square(norms)], 1),
        bins,
        _SURE_CANDIDATES,
    )
    # The compiler for TPUs takes minutes for a cumsum of float64.
    above = np.triu(np.ones([_SURE_CANDIDATES] * 2, bool))[..., np.newaxis]
    sums = tf.reduce_sum(tf.where(above, sums, 0.0), axis=1)
    count, inverse, square = tf.unstack(sums, axis=1)
    risks = (
        count * (thresholds**2 + 2 * stddev**2 * width)
        - 2 * stddev**2 * (width - 1) * thresholds * inverse
        - square
    )
    return tf.gather(tf.constant(shifts, tf.float32), tf.argmin(risks))
