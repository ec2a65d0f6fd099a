"""The kinds of steps of a sampling, told apart by their number of rows.

Most samplings have one. Where there are several, the account and the mean must
be those of the step that is taken, and what tells a compiled step which one it
is, is the shape of its batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnPart:
    """A part of a batch that is drawn without replacement.

    Attributes:
      source_size: How many units it is drawn from.
      sample_size: How many are drawn.
      uses: In how many noisy sums a unit of it is.
    """

    source_size: int
    sample_size: int
    uses: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepKind:
    """Public facts about one kind of step.

    Attributes:
      rows: Rows of its batches, padding included; None if they vary.
      sampling_probability: With which each unit is in the batch; None claims
        no amplification.
      expected_batch_size: The mean number of units in a batch.
      overflow_probability: Upper bound of the probability that the batch drawn
        is not the batch used.
      parts: If not empty, the batch consists of parts that are drawn
        independently of each other, each without replacement. Then units are
        replaced, not added, and all that `sampling_probability` would say is
        said here.
    """

    rows: int | None
    sampling_probability: float | None
    expected_batch_size: float
    overflow_probability: float
    parts: tuple[DrawnPart, ...] = ()


def step_kinds(sampling: Any) -> tuple[StepKind, ...]:
    """The kinds of steps of any sampling: its own, or else the one it is.

    Example:
      >>> from tf_sparse_dp.sampling import EpochSampling
      >>> epochs = EpochSampling(num_examples=12, batch_size=4, epochs=1)
      >>> [kind.expected_batch_size for kind in step_kinds(epochs)]
      [4.0]
    """
    kinds = getattr(sampling, "step_kinds", None)
    if kinds is not None:
        return tuple(kinds)
    return (
        StepKind(
            rows=sampling.batch_rows,
            sampling_probability=sampling.sampling_probability,
            expected_batch_size=sampling.expected_batch_size,
            overflow_probability=sampling.overflow_probability,
        ),
    )


def has_parts(kinds: Sequence[StepKind]) -> bool:
    """Whether batches consist of parts that are drawn without replacement."""
    return any(kind.parts for kind in kinds)


def kind_of(rows: Any, kinds: Sequence[StepKind]) -> tf.Tensor:
    """Place among the kinds of a batch with so many rows; -1 if it is of none.

    Args:
      rows: An integer tensor or a number.
      kinds: All with different numbers of rows, or at most a single one.

    Example:
      >>> kinds = [
      ...     StepKind(
      ...         rows=rows,
      ...         sampling_probability=0.1,
      ...         expected_batch_size=1.0,
      ...         overflow_probability=0.0,
      ...     )
      ...     for rows in (8, 16)
      ... ]
      >>> [int(kind_of(rows, kinds)) for rows in (8, 16, 9)]
      [0, 1, -1]
    """
    if not kinds or (len(kinds) == 1 and kinds[0].rows is None):
        return tf.zeros([], tf.int32)
    known = tf.constant([kind.rows for kind in kinds], tf.int64)
    same = tf.cast(rows, tf.int64) == known
    place = tf.argmax(tf.cast(same, tf.int32), output_type=tf.int32)
    return tf.where(tf.reduce_any(same), place, -1)
