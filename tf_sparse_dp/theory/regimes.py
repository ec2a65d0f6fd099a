"""Where a problem stands: too few examples, many coordinates, or plenty."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, TypeAlias

from tf_sparse_dp.theory import rates
from tf_sparse_dp.theory.rates import CONSTANT, DENSE, SPARSE, Bound

Task: TypeAlias = Literal["mean", "erm", "sco", "stationarity"]

_TASKS: dict[str, tuple[str, Callable[..., Bound], Callable | None]] = {
    "mean": ("the mean of vectors", rates.mean_upper, rates.mean_lower),
    "erm": ("convex empirical risk", rates.erm_upper, rates.erm_lower),
    "sco": ("convex population risk", rates.sco_upper, rates.sco_lower),
    "stationarity": (
        "the norm of an empirical gradient",
        rates.stationarity_upper,
        None,
    ),
}

# (task, pure, regime) to what the paper's tables rest on, in the library's
# names. "sco" is as "erm".
_ALGORITHMS = {
    ("mean", True, SPARSE): "Projection(noise='laplace')",
    ("mean", True, DENSE): "Projection(noise='laplace')",
    ("mean", False, SPARSE): (
        "CompressedSensing(), or Projection() with ln d for ln(d/s)"
    ),
    ("mean", False, DENSE): "Gaussian(), or Projection(), which is no worse",
    ("erm", True, SPARSE): (
        "convex.OutputPerturbation for smooth losses, "
        "convex.SparseExponentialMechanism for tiny problems without"
    ),
    ("erm", True, DENSE): (
        "a pure method for dense gradients (Bassily, Smith and Thakurta "
        "2014), which is not in this library"
    ),
    ("erm", False, SPARSE): "convex.OutputPerturbation",
    ("erm", False, DENSE): "noisy gradient descent with Gaussian()",
    ("stationarity", False, SPARSE): "SGD with bias reduction",
    ("stationarity", False, DENSE): (
        "variance-reduced gradient descent for dense gradients (Arora et al. "
        "2023), which is not in this library"
    ),
}

_WORDS = {
    CONSTANT: "too few examples to beat a fixed answer",
    SPARSE: "sparsity helps: the rate hardly depends on d",
    DENSE: "so many examples that d no longer hurts",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regime:
    """What the tables say of one problem, up to absolute constants.

    Attributes:
      task: "mean", "erm", "sco" or "stationarity".
      name: "constant", "sparse" or "dense": the term that decides.
      upper: The best upper bound.
      lower: The lower bound; None for "stationarity", where none is known.
      constant_until: Up to about so many examples nothing beats a fixed answer.
      dense_from: From about so many examples the dense term decides; between
        the two, the sparse one. Equal to `constant_until` where sparsity never
        helps.
      algorithm: What attains the upper bound.
      summary: All of it in words.
    """

    task: Task
    name: str
    upper: Bound
    lower: Bound | None
    constant_until: float
    dense_from: float
    algorithm: str
    summary: str


def regime(
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float = 0.0,
    *,
    task: Task = "mean",
) -> Regime:
    """Which of the paper's three regimes a problem is in, and what is best.

    Constants are left out, so near a boundary both sides deserve a try, and a
    simple method can beat the best rate at any one n; see docs/paper.md for
    measurements.

    Args:
      n: Number of examples; public.
      d: Number of coordinates.
      s: How many of them one example's vector or gradient has at most.
      epsilon: Above 0.
      delta: 0 is pure differential privacy.
      task: "mean" (L2 error of a mean of vectors of norm 1), "erm" and "sco"
        (excess risk of convex losses, empirical and population), or
        "stationarity" (norm of the empirical gradient of smooth losses).

    Raises:
      ValueError: An argument is out of range, or no rate is known.

    Example:
      >>> from tf_sparse_dp import theory
      >>> found = theory.regime(100_000, 10**7, 40, 1.0, 1e-6)
      >>> found.name
      'sparse'
      >>> print(found.summary)
      the mean of vectors, n = 100,000, d = 10,000,000, s = 40, epsilon = 1,
      delta = 1e-06: sparsity helps: the rate hardly depends on d. Rate 0.0288,
      lower bound 0.0153, both without constants; sparse from 82.9 to 1.67e+06
      examples. Use CompressedSensing(), or Projection() with ln d for ln(d/s).
    """
    if task not in _TASKS:
        raise ValueError(
            f"task={task!r} was given; expected one of {tuple(_TASKS)}."
        )
    words, upper_of, lower_of = _TASKS[task]
    facts = {"d": d, "s": s, "epsilon": epsilon, "delta": delta}
    upper = upper_of(n=n, **facts)
    lower = lower_of(n=n, **facts) if lower_of else None
    later = upper_of(n=2 * n, **facts)
    exponents = {
        name: math.log2(term / later.terms[name])
        for name, term in upper.terms.items()
    }

    def meeting(first: str, second: str) -> float:
        """Where two terms, both powers of n, are equal."""
        ratio = upper.terms[first] / upper.terms[second]
        return n * ratio ** (1 / (exponents[first] - exponents[second]))

    until = min(meeting(SPARSE, CONSTANT), meeting(DENSE, CONSTANT))
    dense_from = max(until, meeting(DENSE, SPARSE))
    name = upper.regime
    key = ("erm" if task == "sco" else task, delta == 0, name)
    algorithm = _ALGORITHMS.get(key, "a fixed answer, such as zero")
    floor = f"lower bound {lower.value:.3g}" if lower else "none known below"
    span = f"sparse from {until:.3g} to {dense_from:.3g} examples"
    if dense_from <= until:
        span = f"sparsity never helps; dense from {until:.3g} examples"
    return Regime(
        task=task,
        name=name,
        upper=upper,
        lower=lower,
        constant_until=until,
        dense_from=dense_from,
        algorithm=algorithm,
        summary=(
            f"{words}, n = {n:,}, d = {d:,}, s = {s:,}, epsilon = "
            f"{epsilon:g}, delta = {delta:g}: {_WORDS[name]}. Rate "
            f"{upper.value:.3g}, {floor}, both without constants; {span}. "
            f"Use {algorithm}."
        ),
    )
