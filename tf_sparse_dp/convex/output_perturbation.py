"""Regularised output perturbation for sparse generalised linear models."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import numpy as np

from tf_sparse_dp.accounting import PrivacyFilter
from tf_sparse_dp.accounting.single_release import (
    gaussian_noise_multiplier,
    laplace_noise_multiplier,
)
from tf_sparse_dp.convex import noise
from tf_sparse_dp.convex import sensitivity as movement
from tf_sparse_dp.convex.checks import CLASSIFYING, check, warn
from tf_sparse_dp.convex.domains import Domain, Unconstrained, norm
from tf_sparse_dp.convex.losses import (
    Array,
    Hinge,
    Huber,
    Logistic,
    Loss,
    Squared,
)
from tf_sparse_dp.convex.payment import pay
from tf_sparse_dp.convex.private_weights import PrivateWeights
from tf_sparse_dp.convex.rows import (
    as_csr,
    as_targets,
    clipped,
    with_constant,
)
from tf_sparse_dp.convex.solver import Facts, solve

LossName: TypeAlias = Literal["logistic", "hinge", "huber", "squared"]

# Part of the regulariser's share of the bound that a rounded corner may add.
_HINGE_SHARE = 0.1
# For the last digits of sensitivities themselves.
_ROUNDED_UP = 1 + 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OutputPerturbation:
    r"""Solves a regularised convex problem, adds noise, and projects.

    .. math::
      x^\lambda = \arg\min_{x \in X} \frac1n \sum_i \varphi(a_i^\top x, y_i)
        + \frac\lambda2 \|x - x^0\|_2^2, \qquad
      \hat x \in \arg\min_{x \in X} \|x - (x^\lambda + \xi)\|_\infty

    with $a_i$ the clipped rows, φ = `loss`, X = `domain`, $x^0$ = `initial`.
    Vectors of d entries are dense: time and memory are O(d) and O(non-zeros of
    the rows), never O(n d).

    **Guarantee.** One `release` is ($\epsilon$, $\delta$)-differentially
    private where neighbours differ by one row with its label, replaced by any
    other; the number of rows n, the columns d and all fields are public.

    *Proof.* Clipping acts on each row by itself, so that every gradient of a
    row's loss is at most L long, with s entries. The exact minimisers of
    neighbours are at most $2L/\lambda n$ apart (`l2_sensitivity`), or in L1
    norm as in `l1_sensitivity` if δ = 0. What was computed is within ρ of
    them in L2 norm for certain (`convex.solver`), and rounding it to a grid of
    step g moves each of the $k \le \min(d, s(n+1))$ entries that can differ by
    at most g/2. So the sensitivity is at most $2L/\lambda n + 2\rho + \sqrt k
    g$ in L2 norm, and in L1 norm $2 \sqrt k \rho + k g$ above the exact one.
    Gaussian noise has the exact δ of Balle and Wang (2018). Noise is rounded
    down to the grid and added in whole numbers without error; as that is what
    rounding the sum down gives, it is post-processing, and low-order bits tell
    nothing. Projecting is post-processing. ∎

    Not charged are the far ends of the noise, at 13.3 standard deviations or
    89 scales, which it should exceed with a probability below $10^{-38}$ per
    entry, and the law's relative error of $2^{-47}(1 + |z|)^2$ at z scales.

    δ = 0 needs a smooth loss without constraints, as the bound in L1 norm
    does. How long solving takes depends on the data and is not protected.
    Rows or labels that are not finite, or labels of no class, raise before
    anything is released: that data are well-formed is taken to be public.

    Args:
      loss: "logistic" or "hinge" for labels of -1 and 1, "huber" or "squared"
        for real ones. Hinge needs δ > 0; its corner is rounded, which costs
        excess risk of at most λD²/20. Squared needs a bounded domain and
        `label_bound`, or its gradients had no bound.
      epsilon: Above 0.
      delta: In [0, 1), well below 1/n.
      row_norm: Rows are scaled to at most this L2 norm; best that of typical
        rows, from public knowledge.
      sparsity: How many entries of a row are kept, the largest. None for all.
      domain: `Unconstrained()`, `Ball(radius)` around `initial`, or
        `Box(low, high)` for every weight.
      regularization: λ, or "theorem" for what the paper's theorem says, or
        "bound" for what makes the error bound least with all its constants.
      objective: "erm" or "sco": which risk λ is chosen for, that of the data
        or that of the population. Makes no difference if λ is given.
      distance: D, how far a minimiser is from `initial` at most: for λ and
        accuracy, not for privacy. None for the ball's radius, otherwise 1.
      initial: $x^0$, [d]; public. None for zero.
      intercept: Value of a constant entry that every row gets, whose weight is
        the intercept. It counts in norms and sparsity. 0 for no intercept.
      huber_threshold: Residual beyond which "huber" is linear.
      label_bound: Real labels are clipped to this size. None for no clipping.
      tolerance: How much, of the sensitivity, an inexact solution may add.
      failure_probability: How often the error bound that λ is chosen for may
        fail.
      seed: For tests only: makes the noise reproducible, hence not private.

    Raises:
      TypeError: An argument is of the wrong kind.
      ValueError: An argument is out of range, or the guarantee has no proof.

    Example:
      >>> import numpy as np
      >>> rows, labels = np.eye(4)[np.arange(400) % 4], np.ones(400)
      >>> fit = OutputPerturbation(epsilon=1.0, delta=1e-6, sparsity=1)
      >>> private = fit.release(rows, labels)
      >>> private.weights.shape, round(private.regularization, 3)
      ((4,), 0.139)

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), Algorithm 6. The noise
    is that of the paper's box, whose sensitivity is right; regularisation is
    around $x^0$, from which the theorems measure D.
    """

    loss: LossName = "logistic"
    epsilon: float
    delta: float
    row_norm: float = 1.0
    sparsity: int | None = None
    domain: Domain = dataclasses.field(default_factory=Unconstrained)
    regularization: float | Literal["theorem", "bound"] = "theorem"
    objective: movement.Objective = "erm"
    distance: float | None = None
    initial: Any = None
    intercept: float = 0.0
    huber_threshold: float = 1.0
    label_bound: float | None = None
    tolerance: float = 0.01
    failure_probability: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        check(self)

    def release(
        self,
        rows: Any,
        labels: Any,
        *,
        filter: PrivacyFilter | None = None,
    ) -> PrivateWeights:
        """Weights for these rows. Every call spends a budget of its own.

        Args:
          rows: [n, d]: a scipy matrix, a `tf.SparseTensor` or an array.
          labels: [n]; -1 or 1 for "logistic" and "hinge".
          filter: Pays before the data are used; for
            `NeighboringRelation.REPLACE_ONE`.

        Raises:
          BudgetExhausted: The filter does not pay. Nothing was released.
          ValueError: Rows or labels are not what was expected, or the filter
            is for another relation.

        Warns:
          PrivacyWarning: delta is at least 1/n, or a seed was given.
        """
        matrix = as_csr(rows)
        count, columns = matrix.shape
        bound = None if self.loss in CLASSIFYING else self.label_bound
        targets = as_targets(
            labels, count, bound=bound, signs=self.loss in CLASSIFYING
        )
        if not (count and columns):
            raise ValueError(
                f"Rows of shape {matrix.shape} were given; expected at least "
                "one row and one column."
            )
        initial = self._initial(columns)
        sparsity = min(self.sparsity or columns, columns)
        matrix = clipped(matrix, self.row_norm, sparsity)
        if self.intercept:
            matrix = with_constant(matrix, self.intercept)
            initial = np.append(initial, 0.0)
            sparsity += 1
        facts = self._facts(count, initial, sparsity)
        multiplier = self._noise_multiplier()
        tolerance, sensitivity, step = self._movement(
            facts, multiplier, len(initial)
        )
        warn(self, count)
        if filter is not None:
            pay(filter, self.epsilon, self.delta, multiplier)
        solution = solve(matrix, targets, initial, facts, tolerance)
        scale = multiplier * sensitivity
        pure = self.delta == 0
        whole = noise.steps(solution.point, step)
        whole += noise.whole(
            "laplace" if pure else "normal",
            len(initial),
            step / scale,
            noise.source(self.seed),
        )
        moved = self.domain.nearest_in_every_entry(step * whole, initial)
        weights = initial + moved
        return PrivateWeights(
            weights=weights[:columns],
            intercept=float(weights[columns:].sum()) * self.intercept,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            num_rows=count,
            regularization=facts.regularization,
            tolerance=tolerance,
            sensitivity=sensitivity,
            noise="laplace" if pure else "gaussian",
            scale=scale,
            grid=step,
            seeded=self.seed is not None,
            row_norm=float(self.row_norm),
            sparsity=None if self.sparsity is None else int(self.sparsity),
            label_bound=bound,
        )

    def _initial(self, columns: int) -> Array:
        if self.initial is None:
            return np.zeros(columns)
        initial = np.array(self.initial, np.float64)
        if initial.shape != (columns,) or not np.all(np.isfinite(initial)):
            raise ValueError(
                f"initial of shape {initial.shape} was given; expected "
                f"{columns} finite numbers, one per column."
            )
        return initial

    def _facts(self, count: int, initial: Array, sparsity: int) -> Facts:
        """All that is public; λ and the loss depend on each other."""
        row_norm = math.hypot(self.row_norm, self.intercept)
        length = norm(initial)
        steepness = 1.0
        if self.loss == "huber":
            steepness = self.huber_threshold
        elif self.loss == "squared":
            steepness = self.domain.largest_margin(length, row_norm, sparsity)
            steepness += self.label_bound or 0.0
        facts = Facts(
            loss=self._loss(steepness, 1.0),
            domain=self.domain,
            regularization=1.0,
            row_norm=row_norm,
            sparsity=sparsity,
            num_rows=count,
            initial_norm=length,
            start_norm=norm(
                self.domain.nearest(np.zeros_like(initial), initial)
            ),
        )
        chosen = self._regularization(facts, len(initial))
        smoothing = _HINGE_SHARE * chosen * self._distance**2
        return dataclasses.replace(
            facts,
            loss=self._loss(steepness, smoothing),
            regularization=chosen,
        )

    def _loss(self, steepness: float, smoothing: float) -> Loss:
        if self.loss == "logistic":
            return Logistic()
        if self.loss == "hinge":
            return Hinge.rounded(smoothing)
        kind = Huber if self.loss == "huber" else Squared
        return kind(steepness=steepness)

    @property
    def _distance(self) -> float:
        if self.distance is not None:
            return float(self.distance)
        return float(getattr(self.domain, "radius", 1.0))

    def _regularization(self, facts: Facts, columns: int) -> float:
        if not isinstance(self.regularization, str):
            return float(self.regularization)
        known: dict[str, Any] = {
            "objective": self.objective,
            "lipschitz": facts.lipschitz,
            "smoothness": facts.smoothness,
            "distance": self._distance,
            "num_rows": facts.num_rows,
            "num_columns": columns,
            "sparsity": facts.sparsity,
            "failure_probability": self.failure_probability,
        }
        if self.regularization == "theorem":
            return movement.theorem_regularization(
                epsilon=self.epsilon, delta=self.delta, **known
            )
        return movement.bound_regularization(
            noise_multiplier=self._noise_multiplier(),
            pure=self.delta == 0,
            constrained=not isinstance(self.domain, Unconstrained),
            **known,
        )

    def _noise_multiplier(self) -> float:
        if self.delta == 0:
            return laplace_noise_multiplier(self.epsilon, 0.0)
        return gaussian_noise_multiplier(self.epsilon, self.delta)

    def _movement(
        self, facts: Facts, multiplier: float, columns: int
    ) -> tuple[float, float, float]:
        """Tolerance, sensitivity and grid."""
        support = min(columns, facts.sparsity * (facts.num_rows + 1))
        known: dict[str, Any] = {
            "lipschitz": facts.lipschitz,
            "regularization": facts.regularization,
            "num_rows": facts.num_rows,
        }
        if self.delta == 0:
            exact = movement.l1_sensitivity(
                smoothness=facts.smoothness,
                sparsity=facts.sparsity,
                support=support,
                **known,
            )
            inexact, rounded = 2 * math.sqrt(support), float(support)
        else:
            exact = movement.l2_sensitivity(**known)
            inexact, rounded = 2.0, math.sqrt(support)
        tolerance = max(self.tolerance * exact / inexact, facts.least_tolerance)
        if not tolerance * facts.regularization <= facts.lipschitz:
            raise ValueError(
                f"A regularisation of {facts.regularization:g} for rows of "
                f"norm {facts.row_norm:g} and a curvature of "
                f"{facts.loss.curvature:g} is too weak for float64: rounding "
                "would decide the solution. Expected more regularisation; "
                "give a larger one, or a smaller initial point."
            )
        exact = (exact + inexact * tolerance) * _ROUNDED_UP
        # Fine against the sensitivity, and against the noise.
        step = noise.grid_step(
            exact * min(0.1 * self.tolerance / rounded, 2.0**-10 * multiplier),
            2 * (facts.farthest + 200 * multiplier * exact),
        )
        return tolerance, exact + rounded * step, step
