"""What a tensor of the traced step may depend on.

Every tensor on the way to a gradient gets one of four types. `B` is the
number of examples in the batch.

| type | meaning |
| --- | --- |
| `Free` | a function of weights, constants, randomness and shapes only |
| `Batched` | each row along one axis depends on one example only |
| `Summed` | a free part plus a sum over examples of terms of one example |
| `Mixed` | anything else, or nothing proven |

Ragged and sparse features have types of their own, in `ragged_types`.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, TypeAlias


@dataclasses.dataclass(frozen=True)
class BatchMultiple:
    """The size of an axis that holds `per_example` rows per example."""

    per_example: int


@dataclasses.dataclass(frozen=True)
class BatchPlusOne:
    """The size of the row splits of a ragged batch."""


@dataclasses.dataclass(frozen=True)
class DataSize:
    """A size that the examples decide together, known by name only.

    Attributes:
      of: What is counted; equal names have equal sizes.
      times: Multiple of that number.
    """

    of: Any
    times: int = 1


Dim: TypeAlias = "int | BatchMultiple | BatchPlusOne | DataSize | None"


@dataclasses.dataclass(frozen=True)
class Block:
    """A run of outer * B * inner rows; row j is of example (j // inner) % B."""

    outer: int = 1
    inner: int = 1

    @property
    def per_example(self) -> int:
        return self.outer * self.inner


@dataclasses.dataclass(frozen=True)
class Free:
    """Does not depend on example data."""


@dataclasses.dataclass(frozen=True)
class Batched:
    """Rows along `axis` are the blocks one after another."""

    axis: int
    blocks: tuple[Block, ...] = (Block(),)

    @property
    def per_example(self) -> int:
        return sum(block.per_example for block in self.blocks)

    def moved_to(self, axis: int) -> Batched:
        return Batched(axis, self.blocks)


@dataclasses.dataclass(frozen=True)
class Summed:
    """The example axis has been contracted, linearly."""


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Examples interact, or nobody has proven that they do not.

    Attributes:
      reason: What happened, in words.
      operation: Name of the operation where it happened.
      remedy: What the user can do about it.
    """

    reason: str
    operation: str
    remedy: str = ""


class Ragged(abc.ABC):
    """A tensor of a ragged or sparse feature; see `ragged_types`.

    Only rules that are registered for such tensors see them.
    """

    @property
    @abc.abstractmethod
    def rows(self) -> Dim:
        """The size of axis 0."""


Type: TypeAlias = "Free | Batched | Summed | Mixed | Ragged"
FREE = Free()
SUMMED = Summed()
