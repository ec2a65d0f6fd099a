r"""Regularised empirical risk, minimised to a proven distance.

.. math:: F(u) = \frac1n \sum_i \varphi(a_i^\top (x^0 + u), y_i)
  + \frac\lambda2 \|u\|_2^2 \quad\text{over}\quad x^0 + u \in X

$F$ is $\lambda$-strongly convex and its gradient is $M$-Lipschitz with $M =
\beta + \lambda$, $\beta$ the curvature of the loss times the squared norm of a
row; $\kappa = M/\lambda$. All three are public.

**Certificate.** $T(v) = P_X(v - \nabla F(v)/M)$ contracts by $q = 1 -
1/\kappa$, as $I - \nabla^2 F/M$ has eigenvalues from $0$ to $q$ and projecting
does not expand; its fixed point is the minimiser $u^*$. Hence $\|v - u^*\| \le
\|v - T(v)\| + q\|v - u^*\|$, and

.. math:: \|T(v) - u^*\|_2 \le q\kappa \|v - T(v)\|_2
  = \tfrac\beta\lambda \|v - T(v)\|_2.

Without constraints the right side is at most $\|\nabla F(v)\|/\lambda$. With
$\hat T$ for what is computed and $e \ge \|\hat T(v) - T(v)\|$ (`rounding`),
$\|\hat T(v) - u^*\| \le \frac\beta\lambda (\|v - \hat T(v)\| + e) + e$.

**Certainty.** Nesterov's accelerated projected gradients reach it. With $u_0$
no worse than $P_X(0)$, which is at most $L/\lambda$ from $u^*$ and has the
least norm of all points, $F(u_0) - F^* \le L^2/\lambda$ and $F(u_k) - F^* \le
2 (1 - \kappa^{-1/2})^k L^2/\lambda$, so that $\|u_k - u^*\| \le 2
e^{-k/2\sqrt\kappa} L/\lambda$. Points $v_k$ between are three times as far at
most, and $\frac\beta\lambda \|v_k - T(v_k)\| \le 2\kappa \|v_k - u^*\| \le
12 \kappa e^{-(k-1)/2\sqrt\kappa} L/\lambda$: a public number of steps suffices
for all data, and no error tells of hard data. Where L-BFGS found a better
$u_0$, fewer do.

Reference: Nesterov, "Introductory Lectures on Convex Optimization" (2004),
Theorem 2.2.3 and section 2.2.4.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, sparse

from tf_sparse_dp.convex.domains import Box, Domain, Unconstrained, norm
from tf_sparse_dp.convex.losses import Array, Loss

_HALF_ULP = 2.0**-53
# Rows whose slopes are added up in one go.
_BLOCK = 1 << 18
# From here on L-BFGS is worth its own steps.
_ILL_CONDITIONED = 300.0
# The tolerance over what rounding alone may amount to.
_SLACK = 64.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    r"""What is public of a problem.

    Attributes:
      loss: $\varphi$.
      domain: $X$.
      regularization: $\lambda$.
      row_norm: $\|a_i\|_2$ at most.
      sparsity: Entries of $a_i$ that are not zero at most.
      num_rows: $n$.
      initial_norm: $\|x^0\|_2$.
      start_norm: $\|P_X(0)\|_2$.
    """

    loss: Loss
    domain: Domain
    regularization: float
    row_norm: float
    sparsity: int
    num_rows: int
    initial_norm: float
    start_norm: float

    @property
    def lipschitz(self) -> float:
        """The norm of one row's gradient at most."""
        return self.loss.steepness * self.row_norm

    @property
    def smoothness(self) -> float:
        r"""$\beta$."""
        return self.loss.curvature * self.row_norm**2

    @property
    def largest_curvature(self) -> float:
        """$M$."""
        return self.smoothness + self.regularization

    @property
    def condition(self) -> float:
        r"""$\kappa$."""
        return 1 + self.smoothness / self.regularization

    @property
    def farthest(self) -> float:
        r"""A norm that no point within $L/\lambda$ of $u^*$ exceeds."""
        return self.start_norm + 2 * self.lipschitz / self.regularization

    @property
    def rounding(self) -> float:
        r"""A bound on $\|\hat T(v) - T(v)\|$ in float64, if v is not too far.

        With $\epsilon = 2^{-53}$: a sum of k products is off by at most
        $k\epsilon$ times the sum of their sizes (to first order; the constants
        are generous), hence

        - a margin by $(s + 8)\epsilon \|a\|(\|x^0\| + \|v\|)$;
        - a slope by the curvature times that and times what $1 - ym$ or
          $m - y$ loses, and by 8ε of itself;
        - the mean of slopes times rows by $c\epsilon L$, as columns are added
          up in blocks of rows: $c$ = rows of a block + number of blocks + 8;
        - the step and the projection (norms to $2^{-46}$) by $256\epsilon$ of
          the vectors in them.

        Reference: Higham, "Accuracy and Stability of Numerical Algorithms"
        (2002), section 3.1.
        """
        length = self.farthest
        margin = self.row_norm * (self.initial_norm + length)
        blocks = math.ceil(self.num_rows / _BLOCK)
        adding = min(self.num_rows, _BLOCK) + blocks + 8
        slope = self.loss.curvature * (
            (self.sparsity + 8) * margin + 4 * (1 + margin)
        )
        slope += 8 * self.loss.steepness
        gradient = self.row_norm * slope + 2 * adding * self.lipschitz
        gradient += 4 * self.regularization * length
        largest = self.largest_curvature
        vectors = length + self.lipschitz / largest
        return _HALF_ULP * (gradient / largest + 256 * vectors)

    def error(self, moved: float) -> float:
        r"""The certificate, for $\|v - \hat T(v)\|$."""
        ratio = self.smoothness / self.regularization
        return ratio * (moved + self.rounding) + self.rounding

    @property
    def least_tolerance(self) -> float:
        """What can be certified in spite of rounding, with room to spare."""
        return _SLACK * self.condition * self.rounding

    def most_steps(self, tolerance: float) -> int:
        """After which the certificate holds, whatever the data."""
        farthest = self.lipschitz / self.regularization
        ratio = max(24 * self.condition * farthest / tolerance, math.e)
        return 2 + math.ceil(2 * math.sqrt(self.condition) * math.log(ratio))


@dataclasses.dataclass(frozen=True)
class Solution:
    """A point that is near the minimiser, and how near for certain.

    Attributes:
      point: $u$, all d entries.
      error: Its L2 distance from the minimiser at most. Depends on the data:
        not to be published.
      steps: Of the accelerated method. Not to be published either.
    """

    point: Array
    error: float
    steps: int


class _Risk:
    """F and its gradient, on the columns that occur."""

    def __init__(
        self,
        rows: sparse.csr_matrix,
        labels: Array,
        initial: Array,
        facts: Facts,
    ):
        self._facts = facts
        self._labels = labels
        self._offsets = rows @ initial
        self._blocks = [
            rows[start : start + _BLOCK]
            for start in range(0, rows.shape[0], _BLOCK)
        ]
        # The transposes are views, in the order that products want.
        self._turned = [block.T for block in self._blocks]

    def _margins(self, point: Array) -> Array:
        parts = [block @ point for block in self._blocks]
        return self._offsets + np.concatenate(parts)

    def _gradient(self, point: Array, margins: Array) -> Array:
        slopes = self._facts.loss.slopes(margins, self._labels)
        total = np.zeros_like(point)
        for index, turned in enumerate(self._turned):
            start = index * _BLOCK
            total += turned @ slopes[start : start + _BLOCK]
        total /= self._facts.num_rows
        return total + self._facts.regularization * point

    def gradient(self, point: Array) -> Array:
        return self._gradient(point, self._margins(point))

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        margins = self._margins(point)
        values = self._facts.loss.values(margins, self._labels)
        value = float(np.mean(values))
        value += self._facts.regularization / 2 * float(np.sum(point * point))
        return value, self._gradient(point, margins)


def solve(
    rows: sparse.csr_matrix,
    labels: Array,
    initial: Array,
    facts: Facts,
    tolerance: float,
) -> Solution:
    r"""A point within `tolerance` of the minimiser, in L2 norm.

    Entries whose column is empty are those of $P_X(0)$, exactly.

    Args:
      rows: [n, d], clipped.
      labels: [n].
      initial: $x^0$, [d].
      facts: The problem's.
      tolerance: At least `facts.least_tolerance`.

    Raises:
      ArithmeticError: The certificate was not reached; by the proof above this
        machine does not round as IEEE 754 says.
    """
    columns, places = np.unique(rows.indices, return_inverse=True)
    few = sparse.csr_matrix(
        (rows.data, places.astype(rows.indices.dtype), rows.indptr),
        shape=(rows.shape[0], len(columns)),
    )
    centre = initial[columns]
    risk = _Risk(few, labels, centre, facts)

    def nearest(point: Array) -> Array:
        return facts.domain.nearest(point, centre)

    point = nearest(np.zeros(len(columns)))
    if facts.condition >= _ILL_CONDITIONED:
        point = _quasi_newton(risk, point, nearest, centre, facts, tolerance)
    found, error, taken = _accelerated(risk, point, nearest, facts, tolerance)
    full = facts.domain.nearest(np.zeros(len(initial)), initial)
    full[columns] = found
    return Solution(full, error, taken)


class _NearEnough(Exception):
    """Ends L-BFGS at its argument."""


def _quasi_newton(
    risk: _Risk,
    start: Array,
    nearest: Callable[[Array], Array],
    centre: Array,
    facts: Facts,
    tolerance: float,
) -> Array:
    """L-BFGS's point where it applies and helps, else `start`."""
    bounds = None
    if isinstance(facts.domain, Box):
        bounds = optimize.Bounds(
            facts.domain.low - centre, facts.domain.high - centre
        )
    elif not isinstance(facts.domain, Unconstrained):
        return start

    def watched(point: Array) -> tuple[float, Array]:
        value, gradient = risk.value_and_gradient(point)
        after = nearest(point - gradient / facts.largest_curvature)
        if facts.error(norm(point - after)) <= tolerance / 2:
            raise _NearEnough(point)
        return value, gradient

    with np.errstate(all="ignore"):  # Losses of huge labels may overflow.
        try:
            value, _ = watched(start)
            result = optimize.minimize(
                watched,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": 500, "ftol": 0.0, "gtol": 0.0},
            )
        except _NearEnough as found:
            return np.array(found.args[0], np.float64)
    point = np.asarray(result.x, np.float64)
    usable = np.all(np.isfinite(point)) and result.fun <= value < math.inf
    return point if usable else start


def _accelerated(
    risk: _Risk,
    point: Array,
    nearest: Callable[[Array], Array],
    facts: Facts,
    tolerance: float,
) -> tuple[Array, float, int]:
    root = math.sqrt(facts.condition)
    momentum = (root - 1) / (root + 1)
    before, ahead = point, point
    steps = facts.most_steps(tolerance)
    for step in range(steps):
        after = nearest(ahead - risk.gradient(ahead) / facts.largest_curvature)
        error = facts.error(norm(ahead - after))
        # The bound on rounding is for points that are not far away.
        if error <= tolerance and norm(ahead) <= facts.farthest:
            return after, error, step + 1
        ahead = after + momentum * (after - before)
        before = after
    raise ArithmeticError(
        f"A distance of {tolerance:g} from the minimiser was not certified in "
        f"{steps} steps, which suffice in IEEE 754 arithmetic. Nothing was "
        "released. Raise tolerance."
    )
