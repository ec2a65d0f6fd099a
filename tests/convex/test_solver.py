"""The solver is as near the minimiser as it says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import optimize

from tf_sparse_dp.convex import Ball, Box, OutputPerturbation, Unconstrained
from tf_sparse_dp.convex import solver as solver_module
from tf_sparse_dp.convex.domains import norm
from tf_sparse_dp.convex.rows import as_csr, clipped
from tf_sparse_dp.convex.solver import Facts, solve

pytestmark = [pytest.mark.once]


def quadratic(seed: int, domain: object = None) -> tuple:
    """A Huber problem that is quadratic near its solution."""
    rng = np.random.default_rng(seed)
    n, d = 40, 6
    rows = clipped(as_csr(rng.normal(size=(n, d))), 1.0, d)
    labels, initial = rng.normal(size=n) * 0.3, rng.normal(size=d) * 0.2
    settings = OutputPerturbation(
        loss="huber",
        huber_threshold=10.0,
        epsilon=1.0,
        delta=1e-6,
        domain=domain or Unconstrained(),
        regularization=float(10 ** rng.uniform(-4, 0)),
    )
    return rows, labels, initial, settings._facts(n, initial, d)


def exact(rows, labels, initial, facts: Facts) -> np.ndarray:
    dense = rows.toarray()
    n, d = dense.shape
    matrix = dense.T @ dense / n + facts.regularization * np.eye(d)
    return np.linalg.solve(matrix, dense.T @ (labels - dense @ initial) / n)


@pytest.mark.parametrize("seed", range(8))
def test_the_certificate_holds_down_to_rounding(seed: int) -> None:
    rows, labels, initial, facts = quadratic(seed)
    truth = exact(rows, labels, initial, facts)
    for tolerance in (1e-2, 1e-6, facts.least_tolerance):
        tolerance = max(tolerance, facts.least_tolerance)
        found = solve(rows, labels, initial, facts, tolerance)
        assert norm(found.point - truth) <= found.error <= tolerance
        assert found.steps <= facts.most_steps(tolerance)


def test_a_certificate_of_half_the_size_would_be_wrong() -> None:
    """So the test above can fail: where rows are short, nothing is lost."""
    rows, labels, initial, facts = quadratic(1)
    rows = rows * 0.01
    facts = dataclasses.replace(facts, regularization=0.01)
    truth = exact(rows, labels, initial, facts)
    ratios = []
    for tolerance in np.geomspace(1e-2, 1e-5, 10):
        found = solve(rows, labels, initial, facts, tolerance)
        ratios.append(norm(found.point - truth) / found.error)
    assert 0.5 < max(ratios) <= 1


@pytest.mark.parametrize("domain", [Ball(0.15), Box(-0.1, 0.2)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_constrained_solutions_agree_with_another_solver(
    seed: int, domain: object
) -> None:
    rows, labels, initial, facts = quadratic(seed, domain)
    facts = dataclasses.replace(facts, regularization=0.1)
    found = solve(rows, labels, initial, facts, 1e-8).point
    dense = rows.toarray()

    def risk(point: np.ndarray) -> float:
        residuals = dense @ (initial + point) - labels
        return float(np.mean(residuals**2) / 2 + 0.05 * point @ point)

    if isinstance(domain, Ball):
        inside = [
            optimize.NonlinearConstraint(
                lambda u: u @ u, 0, domain.radius**2, jac=lambda u: 2 * u
            )
        ]
    else:
        inside = [
            optimize.LinearConstraint(
                np.eye(6), domain.low - initial, domain.high - initial
            )
        ]
    start = domain.nearest(np.zeros(6), initial)
    other = optimize.minimize(
        risk,
        start,
        method="SLSQP",
        constraints=inside,
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert risk(found) <= other.fun + 1e-12
    np.testing.assert_allclose(found, other.x, atol=1e-5)


def test_hinge_is_solved_when_badly_conditioned() -> None:
    rng = np.random.default_rng(0)
    rows = clipped(as_csr(rng.normal(size=(200, 20))), 1.0, 20)
    labels = rng.choice([-1.0, 1.0], 200)
    settings = OutputPerturbation(
        loss="hinge", epsilon=1.0, delta=1e-6, regularization=0.01
    )
    facts = settings._facts(200, np.zeros(20), 20)
    assert facts.condition > 9e4
    found = solve(rows, labels, np.zeros(20), facts, 1e-4)
    assert found.error <= 1e-4
    finer = solve(rows, labels, np.zeros(20), facts, 1e-5)
    assert norm(found.point - finer.point) <= 1.1e-4


def test_rows_are_added_up_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels, initial, facts = quadratic(3)
    once = solve(rows, labels, initial, facts, 1e-7).point
    monkeypatch.setattr(solver_module, "_BLOCK", 7)
    again = solve(rows, labels, initial, facts, 1e-7).point
    assert norm(once - again) <= 2e-7


def test_rounding_that_cannot_be_is_refused() -> None:
    rows, labels, initial, facts = quadratic(4)
    with pytest.raises(ArithmeticError, match="Nothing was released"):
        solve(rows, labels, initial, facts, facts.rounding)
