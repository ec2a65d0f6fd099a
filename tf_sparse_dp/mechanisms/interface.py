"""What an optimizer asks of a mechanism."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Sum: TypeAlias = "tf.Tensor | tf.IndexedSlices"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism(abc.ABC):
    """Releases sums of clipped gradients privately.

    Fields of a mechanism are public facts. Data and randomness are arguments.
    """

    @abc.abstractmethod
    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, *, stddev: float
    ) -> list[Sum]:
        """Private versions of sums that one example changes by a bounded norm.

        Args:
          sums: One per variable. Row ids of `tf.IndexedSlices` may repeat.
          key: A fresh key, int64 [2].
          stddev: Standard deviation of the noise: noise multiplier times
            clip norm.

        Returns:
          Private sums; row ids of `tf.IndexedSlices` do not repeat.
        """

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """One sentence for the privacy statement."""

    def get_config(self) -> dict[str, Any]:
        """The fields, for `type(self)(**config)`."""
        return dataclasses.asdict(self)
