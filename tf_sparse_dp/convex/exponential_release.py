"""What the exponential mechanism publishes, and what may be claimed of it."""

from __future__ import annotations

import dataclasses

import numpy as np

from tf_sparse_dp.convex.wording import claim

_ASSUMPTIONS = (
    "The number of examples and all settings are public or were chosen "
    "without regard to the data.",
    "The loss is a function of a point and one example alone. That it fails "
    "on no example, and gives as many numbers as there are points, is public: "
    "an error is raised otherwise. Losses that are NaN or infinite raise none.",
    "Who should be protected as a person has one example.",
    "The draw used the operating system's random numbers, which are secret, "
    "unpredictable and used once. It is in whole numbers and exact.",
)
_NOT_COVERED = (
    "Anything else that was computed from the data and shown: other releases, "
    "the risk of the point on the same examples, errors that were raised. "
    "Choosing settings, or this release among several, by looking at the data "
    "costs privacy of its own.",
    "Preprocessing that was fitted to the data.",
    "What the data say about a person who is not in them, or through others' "
    "examples about the same person.",
    "Side channels: how long the losses and the draw took, and memory.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialRelease:
    """A point that may be published, with what is guaranteed.

    Attributes:
      value: [d], of norm 1 at most.
      epsilon: The guarantee's epsilon; delta is 0.
      tau: Fineness of the net.
      net_size: How many points it has; public.
      num_examples: Public.
      loss_range: What each example's losses were cut off at.
      seeded: Whether a seed was given; then nothing is private.
    """

    value: np.ndarray
    epsilon: float
    tau: float
    net_size: int
    num_examples: int
    loss_range: float
    seeded: bool

    @property
    def description(self) -> str:
        """The guarantee in plain words, with all that it rests on."""
        return claim(
            f"One of {self.net_size} points, differentially private: epsilon = "
            f"{self.epsilon:g}, pure; neighbours: one of {self.num_examples} "
            "examples is replaced by any other. Exponential mechanism on a "
            f"net of sparse vectors, tau = {self.tau:.4g}. Before, each "
            "example's losses were shifted to begin at 0 and cut off at "
            f"{self.loss_range:g}.",
            _ASSUMPTIONS,
            _NOT_COVERED,
            seeded=self.seeded,
        )
