"""Output perturbation as users meet it."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np
import pytest
from scipy import sparse

from tf_sparse_dp import (
    ApproxDPFilter,
    BudgetExhausted,
    PrivacyWarning,
    RenyiFilter,
    ZcdpFilter,
)
from tf_sparse_dp.accounting.single_release import gaussian_delta
from tf_sparse_dp.convex import (
    Ball,
    Box,
    OutputPerturbation,
    Unconstrained,
    output_perturbation,
)
from tf_sparse_dp.convex.rows import as_csr, clipped
from tf_sparse_dp.convex.sensitivity import (
    bound_regularization,
    l1_sensitivity,
    theorem_regularization,
)

pytestmark = [pytest.mark.once, pytest.mark.lane]
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


@pytest.fixture(name="data")
def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 8)) * (rng.random((300, 8)) < 0.4)
    return rows, np.where(rows.sum(axis=1) > 0, 1.0, -1.0)


def seeded(**fields) -> OutputPerturbation:
    return OutputPerturbation(
        **({"epsilon": 1.0, "delta": 1e-6, "seed": 5} | fields)
    )


def release(settings: OutputPerturbation, rows, labels):
    with pytest.warns(PrivacyWarning, match="fixed seed"):
        return settings.release(rows, labels)


def test_all_kinds_of_data_are_the_same(data) -> None:
    tf = pytest.importorskip("tensorflow")
    rows, labels = data
    dense = release(seeded(sparsity=3), rows, labels).weights
    for same in (
        sparse.csr_matrix(rows),
        sparse.coo_matrix(rows),
        tf.sparse.from_dense(rows),
    ):
        found = release(seeded(sparsity=3), same, labels)
        np.testing.assert_array_equal(found.weights, dense)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_noise_is_what_is_said(data, delta: float) -> None:
    """Two-sided, on 40,000 weights of empty columns; the seed is fixed."""
    rows, labels = data
    wide = sparse.csr_matrix((rows.shape[0], 40_000))
    found = release(seeded(delta=delta), sparse.hstack([rows, wide]), labels)
    values = found.weights[8:]
    if delta == 0:
        measured = np.mean(np.abs(values))
        assert found.noise == "laplace"
        assert found.scale == pytest.approx(found.sensitivity / 1.0)
    else:
        measured = np.std(values)
        assert found.noise == "gaussian"
        multiplier = found.scale / found.sensitivity
        assert 0.999e-6 < gaussian_delta(1.0, multiplier) <= 1e-6
    assert measured == pytest.approx(found.scale, rel=0.03)
    steps = values / found.grid
    assert np.array_equal(steps, np.rint(steps))


def test_the_sensitivity_includes_tolerance_and_grid(data) -> None:
    rows, labels = data
    settings = seeded(regularization=0.05, tolerance=0.1, sparsity=4)
    found = release(settings, rows, labels)
    exact = 2 / (0.05 * 300)
    least = exact + 2 * found.tolerance + np.sqrt(8) * found.grid
    assert found.tolerance == pytest.approx(0.05 * exact)
    assert least <= found.sensitivity <= 1.001 * least
    pure = release(dataclasses.replace(settings, delta=0.0), rows, labels)
    exact = l1_sensitivity(
        lipschitz=1.0,
        smoothness=0.25,
        regularization=0.05,
        num_rows=300,
        sparsity=4,
        support=8,
    )
    least = exact + 2 * np.sqrt(8) * pure.tolerance + 8 * pure.grid
    assert least <= pure.sensitivity <= 1.001 * least


@pytest.mark.parametrize(
    "domain", [Unconstrained(), Ball(0.3), Box(-0.1, 0.2)], ids=str
)
def test_weights_are_in_the_domain(data, domain) -> None:
    initial = np.full(8, 0.05)
    found = release(seeded(domain=domain, initial=initial), *data)
    moved = found.weights - initial
    np.testing.assert_allclose(domain.nearest(moved, initial), moved)


def test_accuracy_with_a_large_budget(data) -> None:
    rows, labels = data
    settings = seeded(
        epsilon=1e4, regularization=1e-3, intercept=1.0, row_norm=3.0
    )
    found = release(settings, rows, labels)
    margins = rows @ found.weights + found.intercept
    assert np.mean(np.sign(margins) == labels) > 0.9


def test_regression(data) -> None:
    rows, _ = data
    labels = rows @ np.linspace(-0.3, 0.3, 8)
    for settings in (
        seeded(loss="huber", epsilon=1e9, regularization=1e-3, row_norm=3.0),
        seeded(
            loss="squared",
            epsilon=1e9,
            regularization=1e-3,
            row_norm=3.0,
            domain=Ball(1.0),
            label_bound=2.0,
        ),
    ):
        found = release(settings, rows, labels)
        np.testing.assert_allclose(
            found.weights, np.linspace(-0.3, 0.3, 8), atol=0.05
        )


def test_the_statement(data) -> None:
    rows, labels = data
    text = OutputPerturbation(epsilon=1.0, delta=1e-6).release(*data)
    assert text.description.startswith("Linear model of 300 rows")
    for part in ("epsilon = 1, delta = 1e-06", "replaced by any other"):
        assert part in text.description
    assert release(seeded(), rows, labels).description.startswith("NOT PRIVATE")


def test_noise_is_fresh(data) -> None:
    settings = OutputPerturbation(epsilon=1.0, delta=1e-6)
    first, second = settings.release(*data), settings.release(*data)
    # Two of 8 pairs on the grid are equal with probability 2e-5 each.
    assert np.mean(first.weights == second.weights) < 0.5


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("kind", [RenyiFilter, ZcdpFilter, ApproxDPFilter])
def test_a_filter_pays_first(data, kind, delta: float, monkeypatch) -> None:
    budget = kind(epsilon=8.0, delta=1e-5, neighboring_relation=REPLACE_ONE)
    settings = OutputPerturbation(epsilon=1.0, delta=delta)
    settings.release(*data, filter=budget)
    assert budget.remaining() < 1
    monkeypatch.setattr(
        output_perturbation, "solve", lambda *args: pytest.fail("was solved")
    )
    greedy = OutputPerturbation(epsilon=20.0, delta=delta)
    with pytest.raises(BudgetExhausted):
        greedy.release(*data, filter=budget)


def test_a_release_costs_what_it_claims(data) -> None:
    """No more and, by much, no less."""
    budget = RenyiFilter(
        epsilon=1.5, delta=1e-6, neighboring_relation=REPLACE_ONE
    )
    OutputPerturbation(epsilon=1.0, delta=1e-6).release(*data, filter=budget)
    assert not budget.can_spend(dp_accounting.GaussianDpEvent(2 * 4.22))


def test_a_filter_for_other_neighbours_is_refused(data) -> None:
    budget = ZcdpFilter(epsilon=3.0, delta=1e-5)
    with pytest.raises(ValueError, match="expected REPLACE_ONE"):
        OutputPerturbation(epsilon=1.0, delta=1e-6).release(
            *data, filter=budget
        )
    assert budget.remaining() == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"delta": 0.0, "domain": Ball(1.0)}, "expected no constraints"),
        ({"delta": 0.0, "loss": "hinge"}, "expected a smooth loss"),
        ({"loss": "squared", "label_bound": 1.0}, "bounded domain"),
        ({"loss": "squared", "domain": Ball(1.0)}, "label_bound"),
        ({"loss": "absolute"}, "expected one of"),
        ({"regularization": "little"}, "expected one of"),
        ({"regularization": 0.0}, "above 0"),
        ({"epsilon": 0.0}, "above 0"),
        ({"epsilon": float("nan")}, "above 0"),
        ({"delta": 1.0}, "below 1"),
        ({"delta": 1e-45}, "expected 0, or at least"),
        ({"row_norm": float("inf")}, "finite"),
        ({"sparsity": 0}, "at least 1"),
        ({"tolerance": 1.0}, "below 1"),
    ],
)
def test_what_has_no_proof_is_refused(fields, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seeded(**fields)


@pytest.mark.parametrize(
    "fields", [{"sparsity": 1.5}, {"domain": "ball"}, {"epsilon": "1"}]
)
def test_wrong_kinds_are_refused(fields) -> None:
    with pytest.raises(TypeError, match="was given; expected"):
        seeded(**fields)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        ([[np.nan]], [1.0], "finite"),
        ([[1.0]], [np.inf], "finite"),
        ([[1.0]], [0.0], "-1 and 1"),
        ([[1.0]], [1.0, 1.0], "one label per row"),
        ([1.0], [1.0], "two axes"),
        (np.zeros((0, 3)), [], "at least one row"),
    ],
)
def test_wrong_data_are_refused(rows, labels, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seeded().release(rows, labels)


def test_more_is_asked_of_float64_than_it_has(data) -> None:
    with pytest.raises(ValueError, match="too weak for float64"):
        seeded(regularization=1e-14).release(*data)


def test_a_large_delta_is_warned_about(data) -> None:
    with pytest.warns(PrivacyWarning, match="Lower delta"):
        OutputPerturbation(epsilon=1.0, delta=0.01).release(*data)


def test_rows_are_clipped_one_by_one() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(50, 20)) * 10.0 ** rng.integers(-3, 4, (50, 1))
    rows[0, :2] = 1e200, 1e-200
    rows[1] = 0.0
    together = clipped(as_csr(rows), 0.7, 5)
    lengths = np.sqrt(together.power(2).sum(axis=1))
    assert lengths.max() <= 0.7
    assert np.diff(together.indptr).max() == 5
    for index in range(50):
        alone = clipped(as_csr(rows[index : index + 1]), 0.7, 5)
        np.testing.assert_array_equal(
            alone.toarray()[0], together.toarray()[index]
        )
    short = np.array([[0.1, 0.2, 0.0]])
    np.testing.assert_array_equal(clipped(as_csr(short), 1, 2).toarray(), short)


def test_regularisation_has_the_orders_of_the_theorems() -> None:
    known = dict(
        lipschitz=1.0,
        smoothness=0.25,
        distance=1.0,
        num_columns=10**15,
        sparsity=4,
        failure_probability=0.05,
    )

    def slope(delta: float, objective: str, which: str) -> float:
        def at(rows: int) -> float:
            facts = known | {"num_rows": rows, "objective": objective}
            if which == "theorem":
                return theorem_regularization(epsilon=1.0, delta=delta, **facts)
            return bound_regularization(
                noise_multiplier=3.0,
                pure=delta == 0,
                constrained=False,
                **facts,
            )

        return float(np.log10(at(10**13) / at(10**12)))

    assert slope(1e-6, "erm", "theorem") == pytest.approx(-1 / 2)
    assert slope(1e-6, "sco", "theorem") == pytest.approx(-1 / 2, abs=0.02)
    assert slope(0.0, "erm", "theorem") == pytest.approx(-1 / 3)
    assert slope(1e-6, "erm", "bound") == pytest.approx(-1 / 2, abs=1e-3)
    assert slope(0.0, "erm", "bound") == pytest.approx(-2 / 5, abs=0.01)


def test_a_description_says_what_it_rests_on(data) -> None:
    rows, labels = data
    found = OutputPerturbation(
        epsilon=1.0, delta=1e-6, sparsity=3, row_norm=2.0, label_bound=5.0
    ).release(rows, labels)
    first, assumed, beyond = found.description.split("\n\n")
    assert "epsilon = 1, delta = 1e-06, for this one fit" in first
    assert "cut to its 3 largest entries" in first
    assert "L2 norm of at most 2." in first
    assert "label" not in first.split("regularisation")[1]  # Signs are not.
    assert assumed.startswith("This holds if:\n- The number of rows")
    assert "finite" in assumed
    assert "operating system" in assumed
    assert "far ends" in assumed
    assert beyond.startswith("Not covered:\n- ")
    assert max(map(len, (assumed + beyond).splitlines())) <= 80
    real = OutputPerturbation(
        epsilon=1.0, delta=0.0, loss="huber", label_bound=5.0
    ).release(rows, labels)
    first = real.description.splitlines()[0]
    assert "each label clipped to a size of 5." in first
    assert "cut to" not in first


def test_margins_are_those_of_clipped_rows(data) -> None:
    rows, labels = data
    found = OutputPerturbation(
        epsilon=1.0, delta=1e-6, sparsity=2, row_norm=0.5, intercept=2.0
    ).release(rows, labels)
    short = clipped(as_csr(rows), 0.5, 2).toarray()
    np.testing.assert_allclose(
        found.margins(rows), short @ found.weights + found.intercept
    )
    with pytest.raises(ValueError, match="7 columns were given; expected 8"):
        found.margins(rows[:, :7])
