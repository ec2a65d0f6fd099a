"""Every mechanism keeps the promises that optimizers rely on."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting.pld import PLDAccountant
from scipy import stats

from tests.mechanisms import contract
from tests.mechanisms.contract import KEY, MECHANISMS, Batch, Case
from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp import mechanisms
from tf_sparse_dp.mechanisms import grid, noisy_tables, partition_selection

pytestmark = pytest.mark.once

EVERY = pytest.mark.parametrize("case", MECHANISMS, ids=lambda c: c.name)
LARGE, SMALL = (10_000_000, 32), (5000, 4)


def released(case: Case, batch: Batch, valid=None, **facts):
    """The released sums, which are well formed and finite, dense."""
    public = batch.facts(**facts)
    run = contract.step(case, batch, public)
    private = run(*contract.arguments(batch, valid))
    assert len(private) == len(public.variables)
    for total, variable in zip(private, public.variables, strict=True):
        assert not contract.ill_formed(
            total, variable.shape, private=public.noise_multiplier > 0
        )
    arrays = [contract.dense(total) for total in private]
    assert all(np.isfinite(array).all() for array in arrays)
    return arrays


def test_every_mechanism_is_here() -> None:
    tested = {type(case.mechanism).__name__ for case in MECHANISMS}
    # BiasReduction has batches of its own, and a test of its own.
    assert tested == set(mechanisms.__all__) - {"Mechanism", "BiasReduction"}


@EVERY
@pytest.mark.parametrize("size", [0.01, 1.0])  # Below and above the clip norm.
def test_without_noise_it_is_the_clipped_sum(case: Case, size: float) -> None:
    batch = Batch.random(8, size=size)
    if size == 1.0:
        # L1 norms are bounds from above where a unit looks up a row twice.
        batch.ids[:] = (batch.ids[:, :1] + np.arange(3)) % 50
    facts = batch.facts(noise_multiplier=0.0)
    for found, expected in zip(
        released(case, batch, noise_multiplier=0.0),
        contract.clipped_sums(case, batch, facts),
        strict=True,
    ):
        # Slack for terms that may cancel makes norms larger by up to 1e-5.
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def adversarial() -> Batch:
    """Units that would move the sums far if norms were not what they should.

    Enormous and tiny terms, one row many times, rows that cancel, all of the
    norm in one variable, and equal shares everywhere.
    """
    batch = Batch.random(10, lookups=6, size=1.0)
    ids, values, dense = batch.ids, batch.values, batch.dense
    values[0] *= 1e15
    dense[1] *= 1e15
    values[2] *= 1e-20
    ids[3] = 7
    values[3] = 1.0
    ids[4] = 7
    values[4] = np.where(np.arange(6) % 2, 1e4, -1e4)[:, None]
    values[4, 0] += 1.0
    values[5] = 0.0
    dense[6] = 0.0
    ids[6] = np.arange(6)
    values[6] = 0.25
    ids[7] = np.arange(6)
    dense[7], values[7] = 0.0, 0.0
    values[7, :, 0] = 1.0
    ids[8], dense[8], values[8] = 49, 0.0, 0.0
    values[8, 0, 3] = 1.0
    return batch


@EVERY
def test_one_unit_moves_clipped_sums_by_the_sensitivity(case: Case) -> None:
    batch = adversarial()
    facts = batch.facts()
    everybody = np.ones(batch.units, bool)
    whole = contract.clip(case, batch, facts, everybody)
    distances = []
    for unit in range(batch.units):
        without = contract.clip(
            case, batch, facts, everybody & (np.arange(batch.units) != unit)
        )
        difference = [a - b for a, b in zip(whole, without, strict=True)]
        distances.append(case.distance(difference, facts))
    assert max(distances) <= 1 + 1e-5
    assert max(distances) > 0.99, (
        "the bound is met, so the test means something"
    )


@EVERY
def test_a_unit_that_is_not_finite_counts_as_absent(case: Case) -> None:
    batch = Batch.random(8)
    batch.values[1, 1, 1] = np.nan
    batch.dense[3, 0] = np.inf
    batch.values[4, 0, 2] = -np.inf
    batch.dense[6, 1] = 1e38  # Its square is not finite.
    facts = batch.facts()
    valid = ~np.isin(np.arange(8), [1, 3, 4, 6])
    for found, expected in zip(
        contract.clip(case, batch, facts),
        contract.clip(case, batch, facts, valid),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
    released(case, batch)


@EVERY
def test_an_empty_batch_and_one_of_padding_only(case: Case) -> None:
    released(case, Batch.random(0))
    padding = Batch.random(6)
    nobody = np.zeros(6, bool)
    for total in contract.clip(case, padding, padding.facts(), nobody):
        assert not total.any()
    released(case, padding, nobody)
    for noiseless in (
        released(case, Batch.random(0), noise_multiplier=0.0),
        released(case, padding, nobody, noise_multiplier=0.0),
    ):
        assert not any(total.any() for total in noiseless)


@EVERY
@pytest.mark.parametrize(
    "shape",
    [(50, 1), (40, 2, 3), (1, 4), (2, 1), (5000, 2)],
    ids=str,
)
def test_tables_of_any_shape(case: Case, shape: tuple[int, ...]) -> None:
    released(case, Batch.random(6, shape))
    released(case, Batch.random(6, shape), noise_multiplier=1e-3)


@EVERY
def test_tables_without_rows_are_empty_or_refused(case: Case) -> None:
    batch = dataclasses.replace(Batch.random(0), shape=(0, 4))
    try:
        table, _, numbers = released(case, batch)
    except ValueError as error:
        assert "0 rows" in str(error)
    else:
        assert table.shape == (0, 4) and numbers.shape == (0,)


@EVERY
@pytest.mark.parametrize("rows", [50, 3000])
def test_a_batch_that_touches_every_row(case: Case, rows: int) -> None:
    batch = Batch.random(rows // 5, (rows, 4), lookups=5)
    batch.ids[:] = np.random.default_rng(0).permutation(rows).reshape(-1, 5)
    released(case, batch, expected_batch_size=rows / 5)


@EVERY
def test_eager_graph_and_xla_agree_and_none_is_dense(case: Case) -> None:
    batch = Batch.random(16, LARGE if case.sparse else SMALL, size=1.0)
    batch = dataclasses.replace(batch, numbers=False)
    run = contract.step(case, batch, batch.facts(expected_batch_size=16.0))
    arguments = contract.arguments(batch)
    traced = tf.function(run)
    with contract.eager_sizes() as sizes:
        eager = run(*arguments)
    found = [sizes, contract.graph_sizes(_graph(traced, arguments))]
    others = [traced(*arguments)]
    if case.compiles:
        compiled = tf.function(run, jit_compile=True)
        others.append(compiled(*arguments))
        text = compiled.experimental_get_compiler_ir(*arguments)(stage="hlo")
        found.append(contract.hlo_sizes(text))
    for other in others:
        for one, two in zip(eager, other, strict=True):
            _assert_same(contract.present(one), contract.present(two))
    if case.sparse:
        for sizes in found:
            _assert_small(sizes)


def _graph(traced, arguments) -> tf.Graph:
    return traced.get_concrete_function(*arguments).graph


def _assert_same(one: dict, two: dict) -> None:
    """Up to rounding, which may also make a row of zeros of a small one."""
    assert one
    for row in one.keys() | two.keys():
        np.testing.assert_allclose(
            one.get(row, 0.0), two.get(row, 0.0), rtol=1e-3, atol=1e-3
        )


def _assert_small(sizes: dict[str, int]) -> None:
    assert len(sizes) > 10, "nothing was looked at"
    large = {name: size for name, size in sizes.items() if size >= LARGE[0]}
    assert not large


@EVERY
def test_no_size_need_be_fixed(case: Case) -> None:
    """As pure plans ask for, and private means."""
    batch = Batch.random(16, (5000, 4), size=1.0)
    facts = batch.facts(expected_batch_size=16.0)
    facts = dataclasses.replace(facts, failure_probability=0.0)
    run = contract.step(case, batch, facts)
    for total, variable in zip(
        run(*contract.arguments(batch)), facts.variables, strict=True
    ):
        assert not contract.ill_formed(total, variable.shape, private=True)
        assert np.isfinite(contract.dense(total)).all()


def test_dense_tables_would_be_seen() -> None:
    case = Case("dense", mechanisms.Gaussian())
    batch = Batch.random(4, (1000, 4))
    run = contract.step(case, batch, batch.facts())
    arguments = contract.arguments(batch)
    with contract.eager_sizes() as eager:
        run(*arguments)
    graph = _graph(tf.function(run), arguments)
    compiled = tf.function(run, jit_compile=True)
    text = compiled.experimental_get_compiler_ir(*arguments)(stage="hlo")
    for sizes in (eager, contract.graph_sizes(graph), contract.hlo_sizes(text)):
        assert max(sizes.values()) >= 4000


@EVERY
def test_dense_variables_have_noise_on_every_entry(case: Case) -> None:
    batch = Batch.random(1)
    batch = dataclasses.replace(batch, dense=np.zeros([1, 65_536], "float32"))
    noise = released(case, batch)[1]
    scale = case.noise(batch.facts())

    def refuted(sample: np.ndarray) -> bool:
        # Kolmogorov and Smirnov's distance refutes 1e-6 of the true claims
        # beyond 0.0104; a scale that is wrong by a tenth is 0.023 away.
        return stats.kstest(sample, scale.cdf).pvalue < FALSE_ALARM

    assert not refuted(noise)
    assert refuted(noise / 0.9)
    assert refuted(noise / 1.1)


GRIDS = (grid, noisy_tables, partition_selection)


@EVERY
@pytest.mark.parametrize("rows", [50, 5000])
def test_every_number_is_on_the_grid(
    case: Case, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Low-order bits would tell how a number was computed, hence of the sum."""
    batch = Batch.random(6, (rows, 4), size=1.0)
    batch = dataclasses.replace(batch, dense=np.ones([6, 100], "float32"))
    noise = case.noise(batch.facts()).kwds["scale"]

    def off_the_grid() -> list[float]:
        """The shares, variable by variable, of the numbers that are not 0."""
        step = 2.0 ** (math.floor(math.log2(noise)) - 12)
        found = released(case, batch)
        points = [array[array != 0] / step for array in found]
        assert points[1].size > 90 and (points[0].size or rows > 50)
        checked = points[1:2] if case.recovers else points
        return [np.mean(p != np.round(p)) for p in checked if p.size]

    assert not any(off_the_grid())
    for module in GRIDS:
        monkeypatch.setattr(module, "rounded", lambda values, stddev: values)
    assert min(off_the_grid()) > 0.5


@EVERY
def test_config_round_trip(case: Case) -> None:
    mechanism = case.mechanism
    again = type(mechanism)(**mechanism.get_config())
    assert again == mechanism
    assert again.description == mechanism.description


@EVERY
def test_the_same_key_gives_the_same_and_another_another(case: Case) -> None:
    batch = Batch.random(8, size=1.0)
    run = contract.step(case, batch, batch.facts())
    _, *rest = contract.arguments(batch)
    one, same, other = (
        contract.dense(run(key, *rest)[1]) for key in (KEY, KEY, KEY + 1)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.isclose(one, other, rtol=1e-3).any()


@EVERY
def test_the_event_costs_what_the_mechanism_does(case: Case) -> None:
    noise_multiplier = 0.7
    event = case.mechanism.event(noise_multiplier)
    assert isinstance(event, dp_accounting.DpEvent)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(event)
    for epsilon in (0.1, 0.5, 1.0):
        expected = case.delta(epsilon, noise_multiplier)
        found = accountant.get_delta(epsilon)
        assert found == pytest.approx(expected, rel=1e-2, abs=1e-8)
        assert found >= expected * (1 - 1e-9)


@EVERY
def test_the_description_is_one_phrase(case: Case) -> None:
    text = case.mechanism.description
    assert len(text) > 20 and "\n" not in text and not text.endswith(".")
    family = case.mechanism.noise_family
    assert family in ("gaussian", "laplace")
    assert family.capitalize() in text
    assert math.isfinite(case.delta(1.0, 1.0))
