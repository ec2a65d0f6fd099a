"""Neighbouring data sets move the solution by at most what is claimed.

Each problem is solved to a distance that is small against the bound, by the
solver itself; `test_solver` compares the solver with others.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from tf_sparse_dp.convex import Ball, Box, OutputPerturbation, Unconstrained
from tf_sparse_dp.convex.rows import as_csr, clipped
from tf_sparse_dp.convex.sensitivity import l1_sensitivity, l2_sensitivity
from tf_sparse_dp.convex.solver import Facts, solve

pytestmark = [pytest.mark.once]

LOSSES = ("logistic", "hinge", "huber", "squared")
DOMAINS = (Unconstrained(), Ball(0.7), Box(-0.3, 0.5))
CASES = [
    (loss, domain)
    for loss in LOSSES
    for domain in DOMAINS
    if loss != "squared" or not isinstance(domain, Unconstrained)
]
PROBLEMS_EACH = 46  # 11 cases: 506 problems.


def problem(rng, loss, n, d, s):
    """Rows and labels; half of the time all rows want the same."""
    dense = rng.normal(size=(n, d)) * rng.choice([0.1, 1.0, 10.0], (n, 1))
    if rng.random() < 0.5:
        dense = np.abs(dense)
    labels = rng.choice([-1.0, 1.0], n)
    if rng.random() < 0.5:
        labels[:] = 1.0
    if loss in ("huber", "squared"):
        labels *= rng.choice([0.1, 3.0], n)
    return dense, labels


def facts_and_initial(rng, loss, domain, n, d, s):
    regularization = float(10 ** rng.uniform(-1.2, 0.5))
    initial = rng.normal(size=d) * rng.choice([0.0, 0.5])
    settings = OutputPerturbation(
        loss=loss,
        epsilon=1.0,
        delta=1e-6,
        row_norm=1.0,
        domain=domain,
        regularization=regularization,
        label_bound=2.0,
        initial=initial,
    )
    return settings._facts(n, initial, s), initial


def moved(
    first: tuple, second: tuple, initial: np.ndarray, facts: Facts
) -> np.ndarray:
    tolerance = max(
        1e-3 * facts.lipschitz / (facts.regularization * facts.num_rows),
        facts.least_tolerance,
    )
    points = [
        solve(
            clipped(as_csr(rows), facts.row_norm, facts.sparsity),
            np.clip(labels, -2.0, 2.0),
            initial,
            facts,
            tolerance,
        ).point
        for rows, labels in (first, second)
    ]
    return points[0] - points[1]


@pytest.mark.parametrize(("loss", "domain"), CASES, ids=str)
def test_neighbours_are_as_near_as_claimed(loss: str, domain: object) -> None:
    rng = np.random.default_rng([LOSSES.index(loss), DOMAINS.index(domain)])
    largest = 0.0
    for _ in range(PROBLEMS_EACH):
        n, d = int(rng.integers(1, 30)), int(rng.integers(1, 12))
        s = int(rng.integers(1, d + 1))
        facts, initial = facts_and_initial(rng, loss, domain, n, d, s)
        rows, labels = problem(rng, loss, n, d, s)
        other_rows, other_labels = rows.copy(), labels.copy()
        # The opposite of the same row: what moves a solution most.
        other_labels[0] = -labels[0]
        if rng.random() < 0.3:
            other_rows[0] = rng.normal(size=d) * 10
        change = moved(
            (rows, labels), (other_rows, other_labels), initial, facts
        )
        claimed = l2_sensitivity(
            lipschitz=facts.lipschitz,
            regularization=facts.regularization,
            num_rows=n,
        )
        ratio = np.linalg.norm(change) / claimed
        assert ratio <= 1.002
        largest = max(largest, ratio)
        if isinstance(domain, Unconstrained) and loss in ("logistic", "huber"):
            claimed = l1_sensitivity(
                lipschitz=facts.lipschitz,
                smoothness=facts.smoothness,
                regularization=facts.regularization,
                num_rows=n,
                sparsity=s,
                support=d,
            )
            assert np.abs(change).sum() <= 1.01 * claimed
    # Not so loose that the test says nothing.
    assert largest > 0.05


@pytest.mark.parametrize(
    ("loss", "part"),
    [("logistic", 0.7), ("hinge", 0.99), ("huber", 0.99), ("squared", 0.66)],
)
def test_the_bound_is_attained(loss: str, part: float) -> None:
    """So the check above can fail: a bound of that part would be exceeded.

    One row is on the first column, its neighbour on the second where one
    label cannot be as bad as the other, or is the same with the other label.
    All other rows are empty.
    """
    n, d = 20, 3
    domain = Ball(1.0) if loss == "squared" else Unconstrained()
    initial = np.zeros(d)
    if loss == "logistic":  # As steep as it gets: far on the wrong side.
        initial[:2] = -20.0
    settings = OutputPerturbation(
        loss=loss,
        epsilon=1.0,
        delta=1e-6,
        domain=domain,
        regularization=20.0,
        distance=0.1,  # A hinge with a sharp corner.
        label_bound=2.0,
        initial=initial,
    )
    facts = settings._facts(n, initial, 1)
    rows, labels = np.zeros((n, d)), np.ones(n)
    rows[0, 0] = 1.0
    labels[0] = 2.0 if loss in ("huber", "squared") else 1.0
    other_rows, other = rows.copy(), labels.copy()
    if loss == "logistic":
        other_rows[0] = [0.0, 1.0, 0.0]
    else:
        other[0] *= -1
    change = moved((rows, labels), (other_rows, other), initial, facts)
    claimed = l2_sensitivity(
        lipschitz=facts.lipschitz, regularization=20.0, num_rows=n
    )
    assert part * claimed < np.linalg.norm(change) <= claimed


def test_the_l1_bound_is_nearly_attained() -> None:
    """A row that is replaced is answered in the columns of all others.

    All others share column 0 with weight √λ and have columns of their own,
    which answer what happens to column 0. Without the term √(β/λ) the bound
    would be exceeded.
    """
    n, s, regularization = 2000, 4, 0.01
    shared = math.sqrt(regularization)
    own = math.sqrt((1 - regularization) / (s - 1))
    values = np.tile([shared, *[own] * (s - 1)], (n, 1))
    columns = 1 + np.arange(n * s).reshape(n, s)
    columns[:, 0] = 0
    values[0], columns[0] = [1, 0, 0, 0], [0, 1, 2, 3]
    rows = sparse.csr_matrix(
        (values.ravel(), (np.repeat(np.arange(n), s), columns.ravel())),
        shape=(n, n * s + 1),
    )
    settings = OutputPerturbation(
        loss="huber", epsilon=1.0, delta=0.0, regularization=regularization
    )
    initial = np.zeros(rows.shape[1])
    facts = settings._facts(n, initial, s)
    labels = np.zeros(n)
    labels[0] = 2.0
    change = moved((rows, labels), (rows, -labels), initial, facts)
    total = np.abs(change).sum()
    unit = facts.lipschitz * math.sqrt(s) / (regularization * n)
    claimed = unit * (2 + math.sqrt(facts.smoothness / regularization))
    assert 2 * unit < 0.6 * claimed < total <= claimed


def test_solutions_without_constraints_do_not_depend_on_empty_columns() -> None:
    settings = OutputPerturbation(epsilon=1.0, delta=1e-6, regularization=0.1)
    facts = settings._facts(2, np.zeros(1000), 1000)
    rows = np.zeros((2, 1000))
    rows[0, 5] = rows[1, 9] = 1.0
    point = solve(as_csr(rows), np.ones(2), np.zeros(1000), facts, 1e-9).point
    assert np.flatnonzero(point).tolist() == [5, 9]
