"""What a tensor of the traced step may depend on.

Every tensor on the way to a gradient gets one of four types. `B` is the
number of examples in the batch.

| type | meaning |
| --- | --- |
| `Free` | a function of weights, constants, randomness and shapes only |
| `Batched` | each row along one axis depends on one example only |
| `Summed` | a free part plus a sum over examples of terms of one example |
| `Mixed` | anything else, or nothing proven |
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias


@dataclasses.dataclass(frozen=True)
class BatchMultiple:
    """The size of an axis that holds `per_example` rows per example."""

    per_example: int


Dim: TypeAlias = "int | BatchMultiple | None"


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


Type: TypeAlias = "Free | Batched | Summed | Mixed"
FREE = Free()
SUMMED = Summed()
