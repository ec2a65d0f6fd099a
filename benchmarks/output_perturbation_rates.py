"""How the errors of output perturbation fall with n, on easy and hard data.

Excess empirical risk over the best point of a ball of radius D, the
mean over draws of the noise, and its slope in n on logarithmic scales. It fails
if a slope is not within what the theorems say.

- Easy: logistic regression on few columns, with labels of a planted model. An
  upper bound on the error has a slope that the measured one must not exceed.
- Hard: the data sets of the lower bounds with losses that are linear where it
  matters, hinge on the unit ball (delta > 0) and Huber far from its bend
  (delta = 0), against the best point of the unit ball. The measured slope must
  not be below that of the lower bound either. Pure weights are moved to a
  nearest point of the unit ball in L-infinity norm as well, for which the lower
  bound is a number: see `hard`. As nothing does better than zero on such data
  by much, there are also data whose blocks have more rows.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import sparse, special

import tf_sparse_dp as tsdp
from tf_sparse_dp.convex.losses import Hinge, Huber, Logistic, Loss
from tf_sparse_dp.convex.rows import as_csr, clipped
from tf_sparse_dp.convex.solver import solve
from tf_sparse_dp.theory import hard_instances
from tf_sparse_dp.theory import rates as rates_of

EPSILON, DELTA = 1.0, 1e-6
EASY_COLUMNS, EASY_ENTRIES, EASY_DISTANCE = 8, 2, 5.0
HARD_COLUMNS, HARD_ENTRIES = 2**20, 8
# Easy data have as many times the rows: with fewer nothing is learned.
EASY_TIMES = 16
# Slopes of the theorems, for the errors' upper and lower bounds.
UPPER = {DELTA: -1 / 2, 0.0: -1 / 3}
MARGIN = 0.1
# Blocks of hard data with more rows, from which something can be learned.
LONGER = 16


def zipf_rows(
    random: np.random.Generator,
    n: int,
    d: int,
    s: int,
    chance: np.ndarray | None = None,
) -> sparse.csr_matrix:
    """Rows of s entries of norm 1 in all; popular columns come more often."""
    if chance is None:
        chance = 1 / np.arange(10, 10 + d)
    places = np.searchsorted(
        np.cumsum(chance) / chance.sum(), random.random(n * s)
    )
    owners = np.repeat(np.arange(n), s)
    values = np.full(n * s, 1 / math.sqrt(s))
    rows = sparse.csr_matrix(
        (values, (owners, np.minimum(places, d - 1))), shape=(n, d)
    )
    return clipped(as_csr(rows), 1.0, s)


def risk(loss: Loss, rows: sparse.csr_matrix, labels, weights) -> float:
    """The mean loss."""
    return float(np.mean(loss.values(rows @ weights, labels)))


def slope(sizes: list[int], errors: list[float]) -> float:
    """On logarithmic scales."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


@dataclasses.dataclass
class Problem:
    """What is learned from, how, and what is known of the least risk."""

    rows: sparse.csr_matrix
    labels: np.ndarray
    loss: Loss
    kind: str
    entries: int
    distance: float
    best: float
    proven: float = math.nan

    def release(self, delta: float, choice: str) -> np.ndarray:
        """Private weights."""
        domain: tsdp.convex.Ball | tsdp.convex.Unconstrained
        domain = tsdp.convex.Ball(self.distance)
        if delta == 0:
            domain = tsdp.convex.Unconstrained()
        settings = tsdp.convex.OutputPerturbation(
            loss=self.kind,
            epsilon=EPSILON,
            delta=delta,
            sparsity=self.entries,
            distance=self.distance,
            domain=domain,
            regularization=choice,
        )
        return settings.release(self.rows, self.labels).weights

    def excess(self, weights: np.ndarray) -> float:
        """The mean loss over the least one."""
        return risk(self.loss, self.rows, self.labels, weights) - self.best


def easy(n: int, delta: float) -> Problem:
    """Logistic regression; all of it can be learned."""
    random = np.random.default_rng(n)
    rows = zipf_rows(random, n, EASY_COLUMNS, EASY_ENTRIES)
    planted = np.random.default_rng(0).normal(size=EASY_COLUMNS)
    planted *= 0.8 * EASY_DISTANCE / np.linalg.norm(planted)
    chance = special.expit(rows @ planted)
    labels = np.where(random.random(n) < chance, 1.0, -1.0)
    exact = tsdp.convex.OutputPerturbation(
        epsilon=1.0, delta=DELTA, regularization=1e-5
    )
    origin = np.zeros(EASY_COLUMNS)
    facts = exact._facts(n, origin, EASY_ENTRIES)
    best = solve(rows, labels, origin, facts, 0.01).point
    return Problem(
        rows,
        labels,
        Logistic(),
        "logistic",
        EASY_ENTRIES,
        EASY_DISTANCE,
        risk(Logistic(), rows, labels, best),
    )


def hard(n: int, delta: float, times: int = 1) -> Problem:
    """Linear losses, and what no pure algorithm on the unit ball can beat.

    Blocks are hard for an epsilon that is so many times smaller.

    There the mean has a known norm r: blocks have equal rows and do not
    overlap. x of the ball has an excess risk e of r - <x, mean>, and r times
    x/|x| is an estimate of the mean with a squared error of 2re at most. So e
    is at least the squared error of means over 2r.
    """
    data = hard_instances.block_data(
        n, HARD_COLUMNS, HARD_ENTRIES, EPSILON / times, delta, seed=n
    )
    mean = np.asarray(data.rows.mean(axis=0))[0]
    length = float(np.linalg.norm(mean))
    loss: Loss = Hinge.rounded(1e-9)
    kind, labels, proven = "hinge", np.ones(n), math.nan
    if delta == 0:
        loss, kind = Huber(steepness=1.0), "huber"
        labels, proven = np.full(n, 2.0), data.error**2 / (2 * length)
    best = risk(loss, data.rows, labels, mean / length)
    return Problem(
        data.rows, labels, loss, kind, HARD_ENTRIES, 1.0, best, proven
    )


def rates(draws: int, powers: range) -> None:
    """Prints a line of errors for each kind of data and choice of λ."""
    sizes = [2**power for power in powers]
    print(f"excess empirical risk at epsilon {EPSILON:g}; easy data have")
    print(f"{EASY_TIMES} times as many rows as the heads of columns say")
    print(f"{'':<38}", *(f"{n:>8}" for n in sizes), "  slope  allowed")
    good = True
    for delta in (DELTA, 0.0):
        name = f"easy, delta {delta:g}"
        problems = [easy(EASY_TIMES * n, delta) for n in sizes]
        good &= _lines(name, sizes, problems, delta, draws, -math.inf)
        lower = [
            rates_of.erm_lower(
                n=n,
                d=HARD_COLUMNS,
                s=HARD_ENTRIES,
                epsilon=EPSILON,
                delta=delta,
            ).value
            for n in sizes
        ]
        name = f"hard, delta {delta:g}"
        problems = [hard(n, delta) for n in sizes]
        good &= _lines(name, sizes, problems, delta, draws, slope(sizes, lower))
        _line(f"{name}, lower rate", sizes, lower)
        if delta > 0:
            # No lower bound is for these: for comparison with zero.
            name = f"{LONGER} times longer, delta {delta:g}"
            longer = [hard(n, delta, LONGER) for n in sizes]
            _lines(name, sizes, longer, delta, draws, -math.inf)
        else:
            moved = [
                np.mean(
                    [p.excess(_in_ball(p, delta)) for _ in range(draws)]
                ).item()
                for p in problems
            ]
            least = [problem.proven for problem in problems]
            _line("hard, delta 0, theorem, in ball", sizes, moved)
            _line("hard, delta 0, proven least", sizes, least)
            good &= all(map(float.__le__, least, moved))
    if not good:
        raise SystemExit("A slope or an error is not within the theorems'.")


def _in_ball(problem: Problem, delta: float) -> np.ndarray:
    weights = problem.release(delta, "theorem")
    ball = tsdp.convex.Ball(problem.distance)
    return ball.nearest_in_every_entry(weights, np.zeros_like(weights))


def _lines(
    name: str,
    sizes: list[int],
    problems: list[Problem],
    delta: float,
    draws: int,
    lower: float,
) -> bool:
    """For both choices of λ and for weights of zero."""
    allowed = lower - MARGIN, UPPER[delta] + MARGIN
    good = True
    for choice in ("theorem", "bound"):
        errors = [
            float(
                np.mean(
                    [p.excess(p.release(delta, choice)) for _ in range(draws)]
                )
            )
            for p in problems
        ]
        _line(f"{name}, {choice}", sizes, errors, allowed)
        good &= allowed[0] <= slope(sizes, errors) <= allowed[1]
    zeros = [p.excess(np.zeros(p.rows.shape[1])) for p in problems]
    _line(f"{name}, zero", sizes, zeros)
    return good


def _line(
    name: str,
    sizes: list[int],
    errors: list[float],
    allowed: tuple[float, float] | None = None,
) -> None:
    print(
        f"{name:<38}",
        *(f"{error:8.4f}" for error in errors),
        f"{slope(sizes, errors):7.2f}",
        f"{allowed[0]:6.2f}, {allowed[1]:.2f}" if allowed else "",
        flush=True,
    )
