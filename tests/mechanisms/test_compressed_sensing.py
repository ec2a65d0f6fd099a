"""Compressed sensing clips what it measures, and releases what it recovers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.noise_claims import ENOUGH, assert_stddev, distribution_refuted
from tf_sparse_dp.gradients.clipping import clip_and_sum
from tf_sparse_dp.gradients.factors import DenseFactor, Factor, RowFactor
from tf_sparse_dp.gradients.placed import placed
from tf_sparse_dp.gradients.ragged_rows import as_ragged
from tf_sparse_dp.mechanisms import CompressedSensing, compressed_sensing
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.mechanisms.sketched import SketchedFactor

pytestmark = pytest.mark.once

KEY = tf.constant([5, 6], tf.int64)
CLIP_NORM = 0.5
ROWS = 2000
MATRICES = pytest.mark.parametrize("matrix", ["hadamard", "cosine", "gaussian"])
GEOMETRIES = pytest.mark.parametrize("geometry", ["rows", "coordinates"])


def facts(*terms: Factor, **others: Any) -> PublicFacts:
    return PublicFacts(
        variables=tuple(Variable.of(factor) for factor in terms),
        clip_norm=CLIP_NORM,
        noise_multiplier=others.pop("noise_multiplier", 1.0),
        expected_batch_size=others.pop("expected_batch_size", 100.0),
        failure_probability=2.0**-100,
    )


def table_facts(shape: tuple[int, ...], lookups: int, **others: Any):
    variable = Variable(shape=shape, sparse=True, lookups=lookups)
    options = {"noise_multiplier": 1.0, "expected_batch_size": 100.0, **others}
    return PublicFacts(
        variables=(variable,),
        clip_norm=CLIP_NORM,
        failure_probability=2.0**-100,
        **options,
    )


def number(mechanism: CompressedSensing, public: PublicFacts) -> int | None:
    return mechanism._count(public.variables[0], public)


def aligned(matrix: np.ndarray, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and entries of size 1 at them, whose columns point one way."""
    first = matrix[:, 0]
    products = first @ matrix
    ids = np.argsort(-np.abs(products))[:parts]
    return ids, np.sign(products[ids])


def matrix_of(mechanism: CompressedSensing, public: PublicFacts) -> np.ndarray:
    measurement = mechanism._measurement(0, public.variables[0], KEY, public)
    unit_vectors = tf.eye(measurement.domain, dtype=tf.float64)
    return measurement.measure(unit_vectors).numpy()[:, : measurement.rows]


def adversarial(matrix: np.ndarray) -> tuple[RowFactor, DenseFactor]:
    """Units with aligned rows, one row often, cancelling and huge ones."""
    parts = 16
    ids, signs = aligned(matrix, parts)
    values = np.tile(signs, [7, 1])
    places = np.tile(ids, [7, 1])
    values[1] *= 1e15
    places[2] = ids[0]
    values[2] = np.where(np.arange(parts) % 2, 1e4, -1e4)
    values[2, 0] += 1
    values[3] = 0
    # What the matrix nearly does not see: a large part along its null space.
    places[4] = np.arange(parts)
    *_, directions = np.linalg.svd(matrix[:, :parts])
    values[4] = 1e3 * directions[-1]
    places[5, ::2] = [-1, ROWS] * 4
    values[6] *= 1e-3
    dense = np.zeros([7, 3])
    dense[3] = 5.0
    dense[5] = 0.5
    return (
        RowFactor(
            tf.constant(values[:, :, None], tf.float32),
            tf.constant(places, tf.int32),
            (ROWS, 1),
        ),
        DenseFactor(tf.constant(dense, tf.float32)),
    )


@MATRICES
def test_one_unit_moves_the_sketches_by_the_clip_norm(matrix: str) -> None:
    mechanism = CompressedSensing(measurements=12, matrix=matrix)
    public = facts(
        RowFactor(tf.zeros([1, 16, 1]), tf.zeros([1, 16], tf.int32), (ROWS, 1)),
        DenseFactor(tf.zeros([1, 3])),
    )
    entries = matrix_of(mechanism, public)
    terms = adversarial(entries)

    @tf.function
    def clipped(valid: tf.Tensor) -> list[tf.Tensor]:
        return mechanism.clipped(terms, KEY, public, valid=valid)

    def moved(unit: int) -> float:
        """How far a unit moves everything, among all others."""
        everybody = np.ones(7, bool)
        others = np.arange(7) != unit
        pairs = zip(clipped(everybody), clipped(others), strict=True)
        return math.sqrt(
            sum(np.square(one.numpy() - two).sum() for one, two in pairs)
        )

    distances = [moved(unit) / CLIP_NORM for unit in range(7)]
    assert max(distances) < 1 + 1e-6
    # Clipped and not by far too much: the bound is met.
    for unit in (0, 1, 3, 5):
        assert distances[unit] > 0.999
    assert distances[6] < 0.2

    # Negative control: clipped by the norms of gradients, sketches move
    # further than that.
    table, _ = clip_and_sum(terms, clip_norm=CLIP_NORM).sums
    alone = np.zeros([ROWS, 1])
    weight = CLIP_NORM / 4  # Unit 0 has 16 entries of size 1.
    rows, values = terms[0].ids[0].numpy(), terms[0].values[0].numpy()
    np.add.at(alone, rows, weight * values)
    assert isinstance(table, tf.IndexedSlices)
    np.testing.assert_allclose(table.values[:16], weight * values, rtol=1e-3)
    assert np.linalg.norm(entries @ alone) > 2 * CLIP_NORM


@MATRICES
@GEOMETRIES
def test_sketches_are_those_of_the_clipped_terms(
    matrix: str, geometry: str
) -> None:
    """By definition: g_i min(1, C / |(A g_i, h_i)|), summed, then measured."""
    rng = np.random.default_rng(0)
    width, units, rows = 3, 9, 200
    values = 0.2 * rng.standard_normal((units, 4, width)).astype("float32")
    ids = rng.integers(rows, size=(units, 4)).astype("int32")
    ids[:, 3] = ids[:, 0]
    ids[2, 1] = rows + 5
    values[3, 2, 1] = np.nan
    dense = 0.2 * rng.standard_normal((units, 5)).astype("float32")
    terms = (
        RowFactor(tf.constant(values), tf.constant(ids), (rows, width)),
        DenseFactor(tf.constant(dense)),
    )
    mechanism = CompressedSensing(
        measurements=40, matrix=matrix, geometry=geometry
    )
    public = facts(*terms)
    entries = matrix_of(mechanism, public)
    expected = [0.0, 0.0]
    for unit in range(units):
        if unit in (3, 5):
            continue
        table = np.zeros([rows, width])
        there = ids[unit] < rows
        np.add.at(table, ids[unit][there], 2 * values[unit][there])
        if geometry == "coordinates":
            table = table.reshape(-1, 1)
        both = entries @ table, 2 * dense[unit]
        length = math.sqrt(sum(np.square(part).sum() for part in both))
        weight = min(1.0, CLIP_NORM / length)
        expected = [
            total + weight * part
            for total, part in zip(expected, both, strict=True)
        ]
    found = mechanism.clipped(
        terms, KEY, public, scale=2.0, valid=tf.range(units) != 5
    )
    for total, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(total, other, atol=2e-5)


def test_shared_rows_count_as_lookups() -> None:
    rng = np.random.default_rng(1)
    block = DenseFactor(tf.constant(rng.standard_normal((4, 6, 2)), tf.float32))
    shared = placed(block, tf.range(6), (ROWS, 2), sparse=True)
    mechanism = CompressedSensing(measurements=30)
    one = mechanism.clipped([shared], KEY, facts(shared))
    rows = shared.as_rows()
    two = mechanism.clipped([rows], KEY, facts(rows))
    np.testing.assert_array_equal(one[0], two[0])
    assert one[0].shape == (30, 2)


@MATRICES
def test_sketched_units_are_grouped_masked_and_materialised(
    matrix: str,
) -> None:
    rng = np.random.default_rng(2)
    rows = RowFactor(
        tf.constant(rng.standard_normal((6, 3, 2)), tf.float32),
        tf.constant(rng.integers(ROWS, size=(6, 3))),
        (ROWS, 2),
    )
    mechanism = CompressedSensing(measurements=30, matrix=matrix)
    public = facts(rows)
    measurement = mechanism._measurement(0, public.variables[0], KEY, public)
    sketched = SketchedFactor(rows, measurement)
    terms = sketched.per_example().numpy()
    assert terms.shape == (6, *sketched.shape)
    valid = np.array([True, False, True, True, True, True])
    grouped = sketched.scaled(2.0).masked(tf.constant(valid)).grouped(2)
    expected = 2 * (terms * valid[:, None, None]).reshape(3, 2, 30, 2).sum(1)
    np.testing.assert_allclose(grouped.per_example(), expected, atol=1e-5)
    squares = np.square(expected).sum((1, 2))
    np.testing.assert_allclose(grouped.squared_norms(), squares, rtol=1e-4)
    assert (grouped.squared_norms().numpy() >= squares).all()
    absolute = np.abs(expected).sum((1, 2))
    assert (grouped.absolute_norms().numpy() >= absolute).all()


def test_noise_is_on_every_measurement() -> None:
    """What basis pursuit finds has the noisy sketch for its sketch."""
    width, count = 8, ENOUGH // 8
    nothing = RowFactor(
        tf.zeros([1, 2, width]), tf.zeros([1, 2], tf.int32), (4096, width)
    )
    mechanism = CompressedSensing(
        measurements=count, solver="basis_pursuit", iterations=20
    )
    public = facts(nothing, noise_multiplier=3.0, expected_batch_size=1e6)
    sums = mechanism.clipped([nothing], KEY, public)
    (released,) = mechanism.release(sums, KEY, public)
    noise = matrix_of(mechanism, public) @ released.numpy()
    assert_stddev(noise, 3.0 * CLIP_NORM)
    assert not distribution_refuted(noise / (3.0 * CLIP_NORM))


def test_tables_are_recovered_from_points_of_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terms = RowFactor(
        tf.ones([1, 2, 4]), tf.constant([[3, 4]], tf.int32), (4096, 4)
    )
    mechanism = CompressedSensing(measurements=200)
    public = facts(terms, noise_multiplier=3.0)
    step = 2.0 ** (math.floor(math.log2(3.0 * CLIP_NORM)) - 12)
    seen = []

    def look(solver: str, measurement: Any, sketch: tf.Tensor, **others: Any):
        seen.append(sketch.numpy().astype(float) / step)
        return tf.zeros([4096, 4])

    monkeypatch.setattr(compressed_sensing, "recover", look)
    sums = mechanism.clipped([terms], KEY, public)
    assert np.mean(sums[0] / step != np.round(sums[0] / step)) > 0.3
    mechanism.release(sums, KEY, public)
    np.testing.assert_array_equal(seen, np.round(seen))


def test_a_release_recovers_rows_that_stand_out() -> None:
    ids = np.array([[3], [700]] * 200, "int32")
    values = np.tile([[[3.0, 4.0]]], [400, 1, 1]).astype("float32")
    terms = RowFactor(tf.constant(values), tf.constant(ids), (200_000, 2))
    mechanism = CompressedSensing()
    public = facts(terms, expected_batch_size=400.0)
    mechanism.check(public)
    count = number(mechanism, public)
    assert count is not None and 500 < count < 3000

    @tf.function
    def step(key: tf.Tensor) -> list[Any]:
        return mechanism.release(
            mechanism.clipped([terms], key, public), key, public
        )

    (released,) = step(KEY)
    assert released.shape == (200_000, 2)
    expected = np.zeros([200_000, 2])
    expected[[3, 700]] = 200 * CLIP_NORM * np.array([0.6, 0.8])
    assert np.linalg.norm(released - expected) < 5.0
    (other,) = step(KEY + 1)
    assert not np.array_equal(released, other)


def test_what_is_too_long_is_not_released() -> None:
    terms = RowFactor(tf.ones([50, 1, 1]), tf.fill([50, 1], 7), (ROWS, 1))
    mechanism = CompressedSensing(measurements=60)
    short, long = (
        facts(terms, noise_multiplier=0.1, expected_batch_size=size)
        # The sum is 25 long, and twice the clip norm is 1.
        for size in (20.0, 30.0)
    )
    for public, is_released in ((short, False), (long, True)):
        sums = mechanism.clipped([terms], KEY, public)
        (released,) = mechanism.release(sums, KEY, public)
        assert np.any(released) == is_released


def test_the_number_of_measurements_is_the_papers() -> None:
    """n ε √(s ln(d/s) / ln(1/δ)) at σ = 2 √(2 ln(1/δ)) / ε, for a vector."""
    epsilon, delta, size, entries = 1.0, 1e-6, 10**6, 32
    multiplier = 2 * math.sqrt(2 * math.log(1 / delta)) / epsilon
    public = table_facts(
        (size, 1),
        entries,
        noise_multiplier=multiplier,
        expected_batch_size=500.0,
    )
    ratio = entries * math.log(size / entries) / math.log(1 / delta)
    expected = 500 * epsilon * math.sqrt(ratio)
    for geometry in ("rows", "coordinates"):
        found = number(CompressedSensing(geometry=geometry), public)
        assert found == math.ceil(expected)


def test_small_tables_are_not_measured() -> None:
    mechanism = CompressedSensing()
    found = number(mechanism, table_facts((10**6, 1), 4))
    assert found is not None
    few = math.ceil(found * math.log(found) ** 2)
    assert number(mechanism, table_facts((few // 2, 1), 4)) is None
    assert number(mechanism, table_facts((1, 1), 1)) is None
    assert (
        number(mechanism, table_facts((10**6, 1), 4, noise_multiplier=0.0))
        is None
    )
    fixed = CompressedSensing(measurements=50)
    assert number(fixed, table_facts((51, 4), 1)) == 50
    assert number(fixed, table_facts((50, 4), 1)) is None


def test_an_empty_batch_is_noise_alone() -> None:
    terms = RowFactor(
        tf.zeros([0, 3, 2]), tf.zeros([0, 3], tf.int32), (ROWS, 2)
    )
    mechanism = CompressedSensing(measurements=30)
    (sketch,) = mechanism.clipped([terms], KEY, facts(terms))
    assert sketch.shape == (30, 2) and not np.any(sketch)
    (released,) = mechanism.release([sketch], KEY, facts(terms))
    assert np.isfinite(released).all()


@MATRICES
@GEOMETRIES
def test_sketches_of_parts_add_up(matrix: str, geometry: str) -> None:
    rng = np.random.default_rng(3)
    shape = (500, 2)
    dense = rng.standard_normal(shape).astype("float32")
    ids = np.array([4, 9, 4])
    values = rng.standard_normal((3, 2)).astype("float32")
    few = tf.IndexedSlices(values, ids, tf.constant(shape, tf.int64))
    sensing = CompressedSensing(
        measurements=60, matrix=matrix, geometry=geometry
    )
    total = dense.copy()
    np.add.at(total, ids, values)
    parts = sensing.sketch(tf.constant(dense), KEY) + sensing.sketch(few, KEY)
    whole = sensing.sketch(tf.constant(total), KEY)
    assert whole.shape == (60, 2 if geometry == "rows" else 1)
    np.testing.assert_allclose(parts, whole, atol=1e-4)
    found = sensing.recover(sensing.sketch(few, KEY), KEY, shape)
    expected = total - dense
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert found.shape == shape and error < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"measurements": 0}, "measurements=0 was given"),
        ({"measurements": 2.5}, "measurements=2.5 was given"),
        ({"iterations": True}, "iterations=True was given"),
        ({"geometry": "columns"}, "expected one of .*rows"),
        ({"matrix": "fourier"}, "expected one of .*hadamard"),
        ({"solver": "cosamp"}, "expected one of .*amp"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CompressedSensing(**arguments)


def test_refused_tables() -> None:
    fixed = CompressedSensing(measurements=100)
    ragged = PublicFacts(
        variables=(Variable(shape=(ROWS, 2), sparse=True, name="items"),),
        clip_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=10.0,
        failure_probability=0.0,
    )
    with pytest.raises(ValueError, match=r"'items' of .*any number of times"):
        fixed.check(ragged)
    with pytest.raises(ValueError, match="at 5000 places"):
        fixed.check(table_facts((10**5, 1), 5000))
    with pytest.raises(ValueError, match="Use matrix='hadamard'"):
        CompressedSensing(measurements=10**5, matrix="gaussian").check(
            table_facts((10**6, 1), 3)
        )
    with pytest.raises(ValueError, match="inverts a square matrix"):
        CompressedSensing(
            measurements=10**4, matrix="gaussian", solver="basis_pursuit"
        ).check(table_facts((10**5, 1), 3))
    with pytest.raises(ValueError, match="measured as 2000000000 rows"):
        fixed.check(table_facts((2 * 10**9, 1), 3))
    with pytest.raises(ValueError, match="pass measurements="):
        CompressedSensing().sketch(tf.zeros([9, 2]), KEY)


def test_sums_that_were_clipped_otherwise_are_refused() -> None:
    """Also if facts are not those that sums were clipped with."""
    rows = RowFactor(tf.zeros([2, 1, 2]), tf.zeros([2, 1], tf.int32), (ROWS, 2))
    mechanism, public = CompressedSensing(measurements=30), facts(rows)
    plain = clip_and_sum([rows], clip_norm=CLIP_NORM).sums
    with pytest.raises(ValueError, match="expected its sketch"):
        mechanism.release(plain, KEY, public)
    other = CompressedSensing(measurements=20).clipped([rows], KEY, public)
    with pytest.raises(ValueError, match="expected its sketch"):
        mechanism.release(other, KEY, public)
    with pytest.raises(ValueError, match=r"table 0 of .*tf.SparseTensor"):
        mechanism.clipped([as_ragged(rows)], KEY, public)
    with pytest.raises(ValueError, match="of type bfloat16"):
        half = RowFactor(tf.cast(rows.values, tf.bfloat16), rows.ids, (ROWS, 2))
        mechanism.clipped([half], KEY, public)
