"""Projection releases what noise on all cells and projection would give.

Keys are fixed. With others, a true claim would be refuted with probability 1e-6
at most per statistic, and fewer than 700 statistics are compared.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.mechanisms import dense_definitions
from tests.mechanisms.dense_definitions import Table
from tests.mechanisms.public_facts import facts
from tests.mechanisms.repeated_release import (
    Release,
    dense,
    keys,
    refuted,
    sample,
    slices,
)
from tf_sparse_dp.mechanisms import (
    Projection,
    ball_projection,
    exact_projection,
)
from tf_sparse_dp.mechanisms.exact_projection import falling_bounds
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.mechanisms.noise_norms import GaussianNorms
from tf_sparse_dp.mechanisms.noisy_tables import Layout

pytestmark = pytest.mark.once

MANY = 150
LOOKUPS = 4
BATCH = 20.0  # So that rows are projected on a ball of radius 40.


def _table(rows: int, width: int, touched: int, size: float, seed: int = 3):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal([touched, width])
    values *= size / np.linalg.norm(values, axis=1, keepdims=True)
    ids = rng.choice(rows, touched, replace=False)
    return Table(rows, ids, values.astype("float32"))


@dataclasses.dataclass(frozen=True)
class Case:
    """A mechanism, and tables (rows, width) of data that it sees."""

    mechanism: Projection
    shapes: Sequence[tuple[int, int]] = ((2500, 4),)
    touched: int = 60
    batch: float = BATCH

    def tables(self, size: float) -> list[Table]:
        """With touched rows whose norm is so many times that of noise."""
        return [
            _table(*shape, self.touched, size * self.noise_size, seed)
            for seed, shape in enumerate(self.shapes)
        ]

    def facts(self, failure_probability: float) -> PublicFacts:
        return PublicFacts(
            variables=tuple(
                Variable(shape=shape, sparse=True, lookups=LOOKUPS)
                for shape in self.shapes
            ),
            clip_norm=1.0,
            noise_multiplier=1.0,
            expected_batch_size=self.batch,
            failure_probability=failure_probability,
        )

    @property
    def noise_size(self) -> float:
        """What the docstring says it is."""
        if self.mechanism.noise == "gaussian":
            return 1.0
        return math.sqrt(sum(LOOKUPS * width for _, width in self.shapes))

    def layouts(self) -> list[Layout]:
        geometry, noise = self.mechanism.geometry, self.mechanism.noise
        return [
            Layout(shape, geometry, noise, self.noise_size)
            for shape in self.shapes
        ]

    def radius(self, shapes: Sequence[tuple[int, int]]) -> float:
        per_lookup = (
            width if self.mechanism.geometry == "coordinates" else 1
            for _, width in shapes
        )
        return math.sqrt(LOOKUPS * sum(per_lookup)) * self.batch

    def by_definition(
        self, tables: Sequence[Table], rng: np.random.Generator
    ) -> Release:
        draw = rng.laplace if self.mechanism.noise == "laplace" else rng.normal
        noise = functools.partial(draw, 0.0, self.noise_size)
        balls = [[t] for t in tables]
        if self.mechanism.tables == "together":
            balls = [list(tables)]
        found, thresholds = [], []
        for ball in balls:
            radius = self.radius([(t.rows, t.width) for t in ball])
            released, threshold = dense_definitions.projected(
                ball,
                lambda shape: noise(size=shape),
                self.noise_size,
                radius,
                self.mechanism.geometry,
            )
            found += released
            thresholds.append(threshold)
        return found, thresholds

    def traced(
        self, failure_probability: float = 2.0**-100, jit: bool = False
    ) -> Callable[..., Any]:
        public = self.facts(failure_probability)

        def run(pairs: Any, key: tf.Tensor) -> Any:
            sums = [
                tf.IndexedSlices(values, ids, tf.constant(shape, tf.int64))
                for (ids, values), shape in zip(pairs, self.shapes, strict=True)
            ]
            return self.mechanism.projected(sums, key, public)

        return tf.function(run, jit_compile=jit)


@functools.cache
def traced(case: Case, failure_probability: float = 2.0**-100) -> Any:
    """Once for all tests that change nothing."""
    return case.traced(failure_probability)


def released(
    function: Callable[..., Any], tables: Sequence[Table], key: tf.Tensor
) -> Release:
    found, thresholds = function([slices(t) for t in tables], key)
    return [dense(total) for total in found], [float(t) for t in thresholds]


@functools.cache
def defined(case: Case, size: float, count: int = MANY) -> np.ndarray:
    tables = case.tables(size)
    rng = np.random.default_rng(7)
    return sample(
        tables,
        lambda _: case.by_definition(tables, rng),
        range(count),
        case.mechanism.geometry,
    )


def drawn(
    function: Callable[..., Any], case: Case, size: float, count: int = MANY
) -> np.ndarray:
    tables = case.tables(size)
    return sample(
        tables,
        lambda key: released(function, tables, key),
        keys(count),
        case.mechanism.geometry,
    )


CASES = {
    "rows": Case(Projection()),
    "coordinates": Case(Projection(geometry="coordinates")),
    "laplace": Case(Projection(geometry="coordinates", noise="laplace")),
    "together": Case(Projection(), ((2500, 4), (300, 8), (1500, 4))),
    "each": Case(Projection(tables="each"), ((2500, 4), (1500, 1))),
}
WEAK, STRONG = 1.0, 5.0


# With the data for which they are tested. A large ball makes the bound fall to
# 0, and one that is larger still has all of the noise in it.
EXACT = {
    "rows": (CASES["rows"], (WEAK, STRONG)),
    "laplace": (CASES["laplace"], (WEAK, STRONG)),
    "together": (Case(Projection(), ((2500, 4), (300, 8))), (STRONG,)),
    "nearly all": (Case(Projection(), batch=1000.0), (WEAK,)),
    "all": (Case(Projection(geometry="coordinates"), batch=4000.0), (WEAK,)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_distribution_is_that_of_the_definition(name: str) -> None:
    case = CASES[name]
    function = traced(case)
    for size in (WEAK, STRONG):
        assert not refuted(drawn(function, case, size), defined(case, size))


@pytest.mark.parametrize("name", ["rows", "laplace"])
def test_compiled_by_xla_it_is_the_same(name: str) -> None:
    """Key by key, hence in distribution."""
    case = CASES[name]
    function, compiled = traced(case), case.traced(jit=True)
    for size in (WEAK, STRONG):
        tables = case.tables(size)
        for key in keys(20, seed=2):
            graph, thresholds = released(function, tables, key)
            xla, others = released(compiled, tables, key)
            np.testing.assert_allclose(thresholds, others, rtol=1e-5)
            for one, other in zip(graph, xla, strict=True):
                assert one.any()
                np.testing.assert_allclose(one, other, atol=1e-2)


@pytest.mark.parametrize("name", EXACT)
def test_the_distribution_where_nothing_may_fail(name: str) -> None:
    case, sizes = EXACT[name]
    function = traced(case, failure_probability=0.0)
    for size in sizes:
        assert not refuted(
            drawn(function, case, size, MANY // 2), defined(case, size)
        )


def test_bounds_had_to_be_lowered() -> None:
    """Else the test before would have tested only the first of them."""
    for name, least in [("rows", 100), ("nearly all", 1000), ("all", 9000)]:
        case, _ = EXACT[name]
        counts = defined(case, WEAK)[:, 1]
        first, *others = falling_bounds(case.layouts())
        expected = sum(
            layout.cells * layout.norms.survival(first)
            for layout in case.layouts()
        )
        assert expected == pytest.approx(16, rel=1e-6)
        assert counts.mean() > least
        assert others[-1] == 0.0
    thresholds = {
        name: defined(EXACT[name][0], WEAK)[:, 0]
        for name in ("all", "nearly all")
    }
    assert thresholds["all"].max() == 0.0
    assert 0.1 < thresholds["nearly all"].mean() < 1.5


@pytest.mark.parametrize(
    ("name", "failure_probability"),
    [("together", 2.0**-100), ("laplace", 0.0)],
)
def test_eagerly_it_is_the_same(name: str, failure_probability: float) -> None:
    case = CASES[name]
    function = traced(case, failure_probability)
    tables = case.tables(STRONG)
    for key in keys(1):
        graph, thresholds = released(function, tables, key)
        eager, others = released(function.python_function, tables, key)
        np.testing.assert_allclose(thresholds, others, rtol=1e-6)
        for one, other in zip(graph, eager, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-2)


def test_a_bound_that_is_too_high_is_the_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And that the release is then another one is found out."""
    case = CASES["rows"]
    tables = case.tables(WEAK)
    bound = float(np.float32(np.median(defined(case, WEAK)[:, 0])))
    monkeypatch.setattr(ball_projection, "certain_threshold", lambda *_: bound)
    found = drawn(case.traced(), case, WEAK)
    assert found[:, 0].min() == np.float32(bound) < found[:, 0].max()
    assert refuted(found, defined(case, WEAK))
    rng = np.random.default_rng(8)

    def bounded(_: Any) -> Release:
        noisy = tables[0].dense() + rng.standard_normal([2500, 4])
        sizes = np.linalg.norm(noisy, axis=1)
        threshold = dense_definitions.projection_threshold(sizes, 40.0)
        threshold = max(threshold, bound)
        shrunk = dense_definitions.shrunk(noisy, threshold, "rows", 1.0)
        return [shrunk], [threshold]

    assert not refuted(found, sample(tables, bounded, range(MANY)))


@pytest.mark.parametrize("wrong", ["norms", "bound", "between"])
def test_wrong_draws_are_refuted(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms of another width; a bound lowered too little; its cells at once."""
    case = CASES["rows"]
    if wrong == "norms":
        monkeypatch.setattr(
            Layout,
            "norms",
            property(lambda self: GaussianNorms(self.size, self.width + 1)),
        )
        failure_probability = 2.0**-100
    else:
        failure_probability = 0.0
        between = exact_projection.exceedances_between

        def bad(norms, cells, low, high, excluded, key):
            if wrong == "bound":
                low = low + 0.2 * (high - low)
            else:
                excluded = excluded[: case.touched]
            return between(norms, cells, low, high, excluded, key)

        monkeypatch.setattr(exact_projection, "exceedances_between", bad)
    function = case.traced(failure_probability)
    if wrong == "between":
        with pytest.raises(AssertionError):  # Cells are drawn twice.
            drawn(function, case, WEAK)
    else:
        assert refuted(drawn(function, case, WEAK), defined(case, WEAK))


@pytest.mark.parametrize("name", ["rows", "coordinates", "laplace"])
def test_the_distribution_at_a_million_coordinates(name: str) -> None:
    case = dataclasses.replace(
        CASES[name], shapes=((125_000, 8),), touched=500, batch=60.0
    )
    few = 20
    assert not refuted(
        drawn(case.traced(), case, STRONG, few), defined(case, STRONG, few)
    )


# What is public.


def table_sum(rows: int = 2000, **options: Any) -> tf.IndexedSlices:
    dtype = options.get("dtype", tf.float32)
    tail = options.get("tail", (4,))
    ids = options.get("ids", [1, 5, 5, rows - 1])
    values = np.linspace(1, 9, len(ids) * math.prod(tail))
    return tf.IndexedSlices(
        tf.cast(values.reshape([len(ids), *tail]), dtype),
        tf.constant(ids, tf.int64),
        tf.constant([rows, *tail], tf.int64),
    )


KEY = tf.constant([5, 6], tf.int64)


@pytest.mark.parametrize("failure_probability", [2.0**-100, 0.0])
def test_released_norms_add_up_to_the_radius(
    failure_probability: float,
) -> None:
    sums = [table_sum(), tf.zeros([3]), table_sum(3000, tail=(2, 3))]
    public = facts(
        sums,
        0.3,
        lookups=5,
        clip_norm=0.5,
        expected_batch_size=12.0,
        failure_probability=failure_probability,
    )

    def totals(mechanism: Projection) -> list[float]:
        first, vector, second = mechanism.release(sums, KEY, public)
        assert vector.shape == (3,)
        return [
            dense_definitions.norms(
                dense(total).reshape(len(dense(total)), -1), mechanism.geometry
            ).sum()
            for total in (first, second)
        ]

    radius = 0.5 * 12.0
    coordinates = {"geometry": "coordinates"}
    for options, expected in [
        ({}, [math.sqrt(5 + 5)]),
        ({"tables": "each"}, [math.sqrt(5)] * 2),
        (coordinates, [math.sqrt(5 * 4 + 5 * 6)]),
        ({**coordinates, "tables": "each"}, [math.sqrt(20), math.sqrt(30)]),
        ({**coordinates, "noise": "laplace"}, [math.sqrt(50)]),
    ]:
        found = totals(Projection(**options))
        if len(expected) == 1:
            found = [sum(found)]
        np.testing.assert_allclose(
            found, radius * np.array(expected), rtol=1e-3
        )


def test_laplace_clips_and_draws_for_all_coordinates_of_a_unit() -> None:
    mechanism = Projection(geometry="coordinates", noise="laplace")
    public = PublicFacts(
        variables=(
            Variable(shape=(50, 4), sparse=True, lookups=3),
            Variable(shape=(7, 2)),
            Variable(shape=(2,), sparse=True, lookups=9),
        ),
        clip_norm=0.5,
        noise_multiplier=2.0,
        expected_batch_size=10.0,
        failure_probability=0.0,
    )
    assert mechanism.l1_sensitivity(public) == pytest.approx(
        0.5 * math.sqrt(3 * 4 + 14 + 2)
    )
    assert mechanism.noise_family == "laplace"
    assert Projection().noise_family == "gaussian"


def test_lookups_that_are_not_known() -> None:
    sums = [table_sum()]
    public = facts(sums, 0.3, lookups=None)
    with pytest.raises(ValueError, match=r"lookups=\.\.\.\).*Threshold\(\)"):
        Projection().check(public)
    pure = Projection(geometry="coordinates", noise="laplace")
    with pytest.raises(
        ValueError, match=r'"laplace", lookups=\.\.\.\).*Laplace\(\)'
    ):
        pure.check(public)
    told = Projection(lookups=7)
    told.check(public)
    known = facts(sums, 0.3, lookups=7)
    for one, other in zip(
        told.projected(sums, KEY, public)[1],
        Projection().projected(sums, KEY, known)[1],
        strict=True,
    ):
        assert one == other
    with pytest.raises(ValueError, match="0 rows"):
        Projection().check(facts(sums, 0.3, lookups=0))


def test_no_more_lookups_than_rows() -> None:
    sums = [table_sum(1200)]
    one, other = (
        Projection(lookups=n).projected(sums, KEY, facts(sums, 0.3))[1]
        for n in (1200, 10**9)
    )
    assert one == other


@pytest.mark.parametrize(
    "options",
    [
        {"geometry": "columns"},
        {"noise": "uniform"},
        {"tables": "some"},
        {"noise": "laplace"},
        {"lookups": 0},
        {"lookups": 2.5},
        {"lookups": True},
    ],
    ids=str,
)
def test_bad_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Projection(**options)


def test_a_table_without_rows() -> None:
    public = PublicFacts(
        variables=(Variable(shape=(0, 4), sparse=True, lookups=1, name="t"),),
        clip_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=1.0,
        failure_probability=0.0,
    )
    with pytest.raises(ValueError, match=r"'t'.*0 rows"):
        Projection().check(public)


EDGES = {
    "empty": {"ids": []},
    "every row": {"ids": list(range(1500)), "rows": 1500},
    "rank 1": {"tail": ()},
    "rank 3": {"tail": (2, 3)},
    "width 1": {"tail": (1,)},
    "bfloat16": {"dtype": tf.bfloat16},
    "few rows": {"rows": 7},
    "one row": {"rows": 1, "ids": [0, 0]},
}


@pytest.mark.parametrize(
    ("edge", "failure_probability"),
    [
        *((edge, 2.0**-100) for edge in EDGES),
        *((edge, 0.0) for edge in ("empty", "every row", "rank 3", "one row")),
    ],
)
def test_edges(edge: str, failure_probability: float) -> None:
    total = table_sum(**EDGES[edge])
    for geometry in ("rows", "coordinates"):
        mechanism = Projection(geometry=geometry)
        public = facts(
            [total], 0.5, lookups=2, failure_probability=failure_probability
        )
        (found,) = mechanism.release([total], KEY, public)
        assert found.dtype == total.dtype
        array = dense(found).astype("float64")
        assert np.isfinite(array).all() and array.any()
        quiet = dataclasses.replace(
            public, noise_multiplier=1e-6, expected_batch_size=1e6
        )
        (found,) = mechanism.release([total], KEY, quiet)
        # The ball is much larger than the sums, and the noise is small.
        np.testing.assert_allclose(
            dense(found).astype("float64"),
            tf.cast(tf.convert_to_tensor(total), tf.float64),
            rtol=1e-2,
            atol=1e-4,
        )
