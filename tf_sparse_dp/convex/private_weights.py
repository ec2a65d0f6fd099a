"""What output perturbation publishes, and what may be claimed about it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tf_sparse_dp.accounting.calibration import shown
from tf_sparse_dp.convex.losses import Array
from tf_sparse_dp.convex.rows import as_csr, clipped
from tf_sparse_dp.convex.wording import claim

_ASSUMPTIONS = (
    "The number of rows and of columns, and all settings, are public or were "
    "chosen without regard to the data.",
    "That all rows and labels are finite, and labels of one of the classes "
    "where there are classes, is public: fitting raises an error otherwise.",
    "Who should be protected as a person has one row.",
    "The noise came from the operating system's random numbers, which are "
    "secret, unpredictable and used once. Its far ends, at 13.3 standard "
    "deviations or 89 scales, are cut off, where it should be with a "
    "probability below 1e-38 per weight; not charged are this and "
    "the law's relative error of 2^-47 (1 + z)^2 at z scales.",
)
_NOT_COVERED = (
    "Anything else that was computed from the data and shown: other fits, "
    "scores on the same rows, errors that were raised. Choosing settings, or "
    "this fit among several, by looking at the data costs privacy of its own.",
    "Preprocessing that was fitted to the data: vocabularies, normalisation, "
    "filtering.",
    "Rows that are predicted: whoever sees a prediction may learn its row.",
    "What the data say about a person who is not in them, or through others' "
    "rows about the same person.",
    "Side channels: how long fitting took, and memory.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateWeights:
    """Weights that may be published, with what is guaranteed.

    Attributes:
      weights: [d], one per column.
      intercept: 0.0 without one.
      epsilon: The guarantee's epsilon.
      delta: The guarantee's delta; 0 is pure differential privacy.
      num_rows: How many rows there were; public.
      regularization: λ.
      tolerance: How far, at most, the solution before noise was from the
        exact one, in L2 norm: part of the sensitivity, and public.
      sensitivity: How far two neighbours' solutions can be apart before
        noise, all included: in L2 norm, or in L1 norm where delta is 0.
      noise: "gaussian" or "laplace".
      scale: The noise's standard deviation, or its scale if Laplace.
      grid: Released differences from the initial point, before they were
        moved into the domain, are multiples of this.
      row_norm: L2 norm that rows were scaled to if they were longer.
      sparsity: How many entries of a row were kept. None for all.
      label_bound: Size that labels were clipped to. None for no clipping.
      seeded: Whether a seed was given; then nothing is private.
      assumptions: What must be true for the guarantee to hold.
      not_covered: What the guarantee does not speak of.
    """

    weights: Array
    intercept: float
    epsilon: float
    delta: float
    num_rows: int
    regularization: float
    tolerance: float
    sensitivity: float
    noise: str
    scale: float
    grid: float
    row_norm: float
    sparsity: int | None
    label_bound: float | None
    seeded: bool
    assumptions: tuple[str, ...] = _ASSUMPTIONS
    not_covered: tuple[str, ...] = _NOT_COVERED

    @property
    def description(self) -> str:
        """The guarantee in plain words, with all that it rests on."""
        kind = f", delta = {shown(self.delta)}"
        if self.delta == 0:
            kind = ", pure up to the far ends of the noise"
        return claim(
            f"Linear model of {self.num_rows} rows, differentially private: "
            f"epsilon = {shown(self.epsilon)}{kind}, for this one fit; "
            "neighbours: one row with its label is replaced by any other. "
            f"Output perturbation with {self.noise} noise of scale "
            f"{self.scale:g} on every weight, "
            f"{'L1' if self.delta == 0 else 'L2'} sensitivity "
            f"{self.sensitivity:g}, regularisation {self.regularization:g}. "
            f"{self._clipping()}",
            self.assumptions,
            self.not_covered,
            seeded=self.seeded,
        )

    def margins(self, rows: Any) -> Array:
        """Rows times weights plus intercept, [n].

        Rows are cut and scaled one by one as those were that the weights were
        fitted to. Post-processing: costs nothing.

        Args:
          rows: [n, d]: a scipy matrix, a `tf.SparseTensor` or an array.

        Raises:
          ValueError: Rows are not finite, or of another number of columns.
        """
        matrix = as_csr(rows)
        columns = len(self.weights)
        if matrix.shape[1] != columns:
            raise ValueError(
                f"Rows of {matrix.shape[1]} columns were given; expected "
                f"{columns}, as many as there are weights."
            )
        matrix = clipped(matrix, self.row_norm, self.sparsity or columns)
        return np.asarray(matrix @ self.weights + self.intercept)

    def _clipping(self) -> str:
        cut = ""
        if self.sparsity is not None:
            entries = "entry" if self.sparsity == 1 else "entries"
            cut = f"cut to its {self.sparsity} largest {entries} and "
        text = (
            f"Before, each row was {cut}scaled to an L2 norm of at most "
            f"{self.row_norm:g}"
        )
        if self.label_bound is not None:
            text += (
                f", and each label clipped to a size of {self.label_bound:g}"
            )
        return f"{text}."
