"""What rows lack is drawn once, in one piece or in many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.layers.noise_paths import freeze, whole, without_noise
from tests.noise_claims import (
    ENOUGH,
    assert_stddev,
    distribution_refuted,
    independence_refuted,
    stddev_refuted,
)
from tf_sparse_dp.compiled import kernels
from tf_sparse_dp.layers import pending_noise
from tf_sparse_dp.layers.lazy_variable import LazyVariable
from tf_sparse_dp.layers.pending_noise import PendingNoise

pytestmark = pytest.mark.once

WAYS = ("eager", "graph", "XLA")
ROWS, WIDTH = 13, 3


def run_as(way: str, function: Any) -> Any:
    if way == "eager":
        return function
    return tf.function(function, jit_compile=way == "XLA", autograph=False)


def lazy(value: Any, capacity: int = 1000) -> LazyVariable:
    table = LazyVariable(tf.cast(value, tf.float32))
    table.noise = PendingNoise(table, capacity=capacity, seed=1)
    return table


class Dense:
    """A table that gets all its noise at every step, in numpy.

    And what of it a lazy one has drawn so far: `held`.
    """

    def __init__(self, value: np.ndarray):
        self.sums = value.copy()  # Without any noise.
        self.variance = 0.0
        self.drawn = np.zeros(len(value))  # Variance, row by row.
        self.start = 0.0  # Noise before was replaced together with the rows.

    def owe(self, stddev: float) -> None:
        self.variance += stddev**2

    def read(self, ids: Any) -> np.ndarray:
        self.drawn[ids] = self.variance
        return (self.sums + self._noise(self.variance))[ids]

    def held(self) -> np.ndarray:
        return self.sums + self._noise(self.drawn)

    def replace(self, value: np.ndarray) -> None:
        self.sums = value.copy()
        self.start = self.variance
        self.drawn[:] = self.variance

    def _noise(self, variance: Any) -> np.ndarray:
        ids = np.arange(ROWS)
        stop, start = (
            whole(ids, WIDTH, tf.broadcast_to(np.float64(v), [ROWS]))
            for v in (variance, self.start)
        )
        return (stop - start).numpy()


class Played:
    """One lazy table, and what is done to it, compiled in some way."""

    def __init__(self, way: str, table: LazyVariable):
        self.table = table

        def add(ids: Any, values: Any, stddev: Any) -> Any:
            table.add(tf.IndexedSlices(values, ids, [ROWS, WIDTH]), stddev)

        def add_all(values: Any, stddev: Any) -> Any:
            table.add(values, stddev)

        def replace(value: Any) -> None:
            table.assign(value)

        self.add = run_as(way, add)
        self.add_all = run_as(way, add_all)
        self.read = run_as(way, table.sparse_read)
        self.read_all = run_as(way, lambda: tf.convert_to_tensor(table))
        # XLA has no such operation.
        self.read_entries = run_as(
            "graph" if way == "XLA" else way, table.gather_nd
        )
        self.replace = run_as(way, replace)


@pytest.mark.lane
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("capacity", [3, 1000])
def test_any_reading_gives_what_dense_noise_gives(
    monkeypatch: pytest.MonkeyPatch, way: str, capacity: int
) -> None:
    freeze(monkeypatch, whole)
    rng = np.random.default_rng(capacity)
    value = rng.integers(-50, 50, [ROWS, WIDTH]).astype("float64")
    dense, table = Dense(value), lazy(value, capacity)
    play = Played(way, table)
    steps = 0
    for _ in range(80):
        deed = rng.choice(
            ["add", "add all", "read", "entries", "all", "numpy", "replace"],
            p=[0.38, 0.08, 0.4, 0.06, 0.03, 0.03, 0.02],
        )
        ids = rng.integers(0, ROWS, [2, 2])  # Some of them twice.
        stddev = rng.choice([0.0, 0.5, 1.0, 2.0])
        if deed in ("add", "add all"):
            values = rng.integers(-5, 5, [4, WIDTH]).astype("float32")
            np.add.at(dense.sums, ids.ravel(), values)
            if deed == "add":
                play.add(ids.ravel(), values, stddev)
            else:
                whole_values = np.zeros([ROWS, WIDTH], "float32")
                np.add.at(whole_values, ids.ravel(), values)
                play.add_all(whole_values, stddev)
            dense.owe(stddev)
            steps += 1
        elif deed == "read":
            found = play.read(ids)
            np.testing.assert_array_equal(found, dense.read(ids))
        elif deed == "entries":
            found = play.read_entries(np.stack([ids, ids % WIDTH], -1))
            np.testing.assert_array_equal(
                found,
                np.take_along_axis(dense.read(ids), ids[..., None] % WIDTH, -1)[
                    ..., 0
                ],
            )
        elif deed in ("all", "numpy"):
            found = play.read_all() if deed == "all" else table.numpy()
            np.testing.assert_array_equal(found, dense.read(slice(None)))
        else:
            value = rng.integers(-50, 50, [ROWS, WIDTH]).astype("float64")
            dense.replace(value)
            play.replace(tf.constant(value, tf.float32))
        if capacity == 1000:  # Else rows are drawn when sums are used up.
            np.testing.assert_array_equal(without_noise(table), dense.held())
    assert steps > 20
    np.testing.assert_array_equal(table.numpy(), dense.read(slice(None)))
    assert not table.noise.exists
    assert float(table.noise.variance) == dense.variance


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_drawn_for_nobody(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    freeze(monkeypatch, whole)
    table = lazy(np.ones([ROWS, WIDTH]))
    table.noise.owe(1.0)
    found = run_as(way, table.sparse_read)(np.zeros([0, 2], "int64"))
    assert found.shape == [0, 2, WIDTH]
    np.testing.assert_array_equal(without_noise(table), 1.0)


def test_rows_that_are_none_do_not_show_others_without_noise() -> None:
    """XLA gives the nearest row for them; elsewhere that is an error."""
    ids = np.array([ROWS, -1, 10**9])
    for way in WAYS:
        table = lazy(np.ones([ROWS, ENOUGH]))
        table.noise.owe(1.0)
        read = run_as(way, table.sparse_read)
        if way != "XLA":
            with pytest.raises(tf.errors.InvalidArgumentError):
                read(ids)
            np.testing.assert_array_equal(without_noise(table)[1:-1], 1.0)
            continue
        for found in np.array(read(ids)):
            assert_stddev(found - 1.0, 1.0)


def owe_all(table: LazyVariable, stddevs: Any) -> None:
    for stddev in stddevs:
        table.noise.owe(stddev)


@pytest.mark.lane
@pytest.mark.parametrize("way", WAYS)
def test_the_law_of_a_draw(way: str) -> None:
    """Of all steps since the last one, whichever their noise was.

    Row 0 is read after three steps, with row 1 after five, and again with all
    others after six.
    """
    table = lazy(np.zeros([6, ENOUGH]))
    read = run_as(way, table.sparse_read)
    stddevs = np.array([3.0, 0.5, 1.0, 2.0, 0.25, 1.5])

    def size(start: int, stop: int) -> float:
        return float(np.sqrt(np.square(stddevs[start:stop]).sum()))

    owe_all(table, stddevs[:3])
    first = np.array(read([0, 0, 0]))
    np.testing.assert_array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[0], first[2])
    owe_all(table, stddevs[3:5])
    second = np.array(read([1, 0, 0]))
    np.testing.assert_array_equal(second[1], second[2])
    # Ids that repeat come first: each row has its own variance, not theirs.
    owe_all(table, stddevs[5:])
    third = np.array(read([0, 0, 0, 1, 1, 4, 3, 2]))
    np.testing.assert_array_equal(third[0], third[2])
    np.testing.assert_array_equal(third[3], third[4])
    drawn = [
        (first[0], size(0, 3)),
        (second[0], size(0, 5)),
        (second[1] - first[0], size(3, 5)),
        (third[0] - second[1], size(5, 6)),
        (third[3] - second[0], size(5, 6)),
        (third[5], size(0, 6)),
        (third[6], size(0, 6)),
        (third[7], size(0, 6)),
    ]
    for place, (noise, stddev) in enumerate(drawn):
        assert_stddev(noise, stddev)
        assert not distribution_refuted(noise / stddev)
        for other, _ in drawn[:place]:
            assert not independence_refuted(other, noise, stddev)
    np.testing.assert_array_equal(read([0, 1]), third[[0, 3]])
    np.testing.assert_array_equal(table.numpy()[:2], third[[0, 3]])


@pytest.mark.parametrize("way", WAYS)
def test_late_in_training_noise_is_as_large(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Sums in float32 would forget a step after 2²⁴ of them."""

    def increments() -> np.ndarray:
        table = lazy(np.zeros([2, ENOUGH]))
        sums = table.noise._sums
        sums.assign_add(tf.fill(sums.shape, tf.cast(2**28, "float64")))
        owe_all(table, [1.0, 0.5])
        run_as(way, table.sparse_read)([0, 0, 1])
        return without_noise(table).ravel()

    stddev = np.sqrt(1.25)
    assert_stddev(increments(), stddev)
    right = PendingNoise._sum
    monkeypatch.setattr(
        PendingNoise,
        "_sum",
        lambda self, step: tf.cast(
            tf.cast(right(self, step), tf.float32), tf.float64
        ),
    )
    assert stddev_refuted(increments(), stddev)


def test_no_two_draws_by_kernels_have_anything_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither of one table, one after another, nor of two."""
    by_kernels = []
    right = pending_noise.with_normals

    def counted(use: Any, values: tf.Tensor, *others: Any) -> tf.Tensor:
        by_kernels.append(values.shape)
        return right(use, values, *others)

    monkeypatch.setattr(pending_noise, "with_normals", counted)
    width = kernels._LEAST

    def drawn() -> list[np.ndarray]:
        table = LazyVariable(tf.zeros([3, width]))
        table.noise = PendingNoise(table)
        read = run_as("graph", table.sparse_read)
        before, found = 0.0, []
        for ids in ([0, 2], [2, 0], [0, 2]):
            owe_all(table, [1.5])
            now = np.array(read(ids))[np.argsort(ids)]
            found += [*(now - before)]
            before = now
        assert not without_noise(table)[1].any()
        return found

    draws = [*drawn(), *drawn()]
    assert len(by_kernels) >= 2
    for place, draw in enumerate(draws):
        assert_stddev(draw, 1.5)
        for other in draws[:place]:
            assert not independence_refuted(other, draw, 1.5)
    assert independence_refuted(draws[0], draws[0], 1.5)


def test_sizes_taken_from_other_rows_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What `test_the_law_of_a_draw` is there for, seen to fail."""
    right = PendingNoise._lacking

    def of_others(self: PendingNoise, ids: tf.Tensor, step: tf.Tensor) -> Any:
        rows, start, stop = right(self, ids, step)
        return rows, tf.roll(start, 1, 0), stop

    monkeypatch.setattr(PendingNoise, "_lacking", of_others)
    with pytest.raises(AssertionError):
        test_the_law_of_a_draw("XLA")


@pytest.mark.parametrize("way", WAYS)
def test_rows_lie_on_the_grid_of_the_finest_noise(way: str) -> None:
    """A step of rate 0 has no noise, and no grid that others would lose."""
    rng = np.random.default_rng(0)
    table = lazy(rng.normal(size=[3, ENOUGH]))
    owe_all(table, [0.75, 0.0, 0.3, 0.9, 0.0])
    found = np.array(run_as(way, table.sparse_read)([0, 2, 2]), "float64")
    grid = 0.25 / 4096
    np.testing.assert_array_equal(found % grid, 0)
    assert (found % (2 * grid)).any()
    np.testing.assert_array_equal(table.numpy().astype("float64") % grid, 0)


@pytest.mark.parametrize("way", WAYS)
def test_without_noise_rows_stay_as_they_are(way: str) -> None:
    value = np.random.default_rng(0).normal(size=[3, 5]).astype("float32")
    table = lazy(value)
    owe_all(table, [0.0, 0.0])
    np.testing.assert_array_equal(
        run_as(way, table.sparse_read)([2, 2, 0]), value[[2, 2, 0]]
    )
    np.testing.assert_array_equal(table.numpy(), value)


def test_lookups_in_a_loop_draw_once() -> None:
    """Turns of a loop may run side by side, but not those that write."""
    table = lazy(np.zeros([500, 16]))
    table.noise.owe(1.0)
    ids = np.random.default_rng(0).integers(0, 500, [20, 200])

    @tf.function
    def looked_up() -> tf.Tensor:
        return tf.map_fn(
            table.sparse_read,
            tf.constant(ids),
            fn_output_signature=tf.float32,
            parallel_iterations=20,
        )

    found = looked_up().numpy()
    np.testing.assert_array_equal(found, without_noise(table)[ids])


@pytest.mark.parametrize("width", [1, 3])
def test_chunks_cover_all_rows_once(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    freeze(monkeypatch, whole)
    for chunk in (1, 4, 12):
        monkeypatch.setattr(pending_noise, "_CHUNK", chunk * width)
        for way in ("eager", "graph"):
            table = lazy(np.zeros([ROWS, width]))
            owe_all(table, [1.0, 2.0])
            table.sparse_read([3, 12])
            owe_all(table, [0.5])
            run_as(way, table.draw_all)()
            expected = whole(np.arange(ROWS), width, np.full(ROWS, 5.25))
            expected -= whole(np.arange(ROWS), width, np.zeros(ROWS))
            np.testing.assert_array_equal(without_noise(table), expected)
            assert not table.noise.exists


def test_a_small_step_after_large_ones_has_its_noise() -> None:
    table = LazyVariable.made(np.zeros([1000, 4], np.float32))
    for stddev in (1.0, 8e-9, 1e-12):
        before = float(table.noise.variance)
        table.add(tf.zeros([1000, 4]), stddev)
        added = float(table.noise.variance) - before
        assert stddev**2 <= added <= max(1.01 * stddev**2, 2.0**-50)


def test_a_rate_that_is_no_number_is_forgotten_with_the_table() -> None:
    table = LazyVariable.made(np.ones([5, 2], np.float32))
    for wrong in (np.nan, np.inf):
        table.add(tf.zeros([5, 2]), wrong)
        assert not np.any(np.isfinite(table.numpy()))
        table.assign(np.ones([5, 2], np.float32))
        table.add(tf.zeros([5, 2]), 0.1)
        assert np.all(np.isfinite(table.numpy()))


def test_tiny_noise_leaves_the_table_what_it_is() -> None:
    table = LazyVariable.made(np.full([5, 2], 100.0, np.float32))
    table.add(tf.zeros([5, 2]), 1e-33)
    np.testing.assert_array_equal(table.numpy(), np.full([5, 2], 100.0))
