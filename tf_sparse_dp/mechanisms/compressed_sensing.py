"""Compressed sensing: noise on few measurements of a table, then recovery."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.gradients.factors import Factor, RowFactor
from tf_sparse_dp.gradients.placed import PlacedFactor
from tf_sparse_dp.mechanisms.gaussian import deduplicated, with_noise
from tf_sparse_dp.mechanisms.interface import (
    Mechanism,
    PublicFacts,
    Sum,
    Variable,
)
from tf_sparse_dp.mechanisms.measurements import (
    Cosine,
    GaussianColumns,
    Hadamard,
    Measurement,
)
from tf_sparse_dp.mechanisms.recovery import SOLVERS, recover
from tf_sparse_dp.mechanisms.sketched import (
    SketchedFactor,
    as_coordinates,
    coordinate_ids,
)
from tf_sparse_dp.random_keys import fold_in

GEOMETRIES = ("rows", "coordinates")
MATRICES: dict[str, type[Measurement]] = {
    "hadamard": Hadamard,
    "cosine": Cosine,
    "gaussian": GaussianColumns,
}
_NOISE, _MATRIX = 0, 1  # Purposes of keys.
# Beyond these, time and memory are out of proportion.
_MOST_CELLS = 2**30
_MOST_PARTS = 2**12
_MOST_ENTRIES = 2**30
_MOST_SOLVED = 2**13


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressedSensing(Mechanism):
    r"""Adds noise to few random measurements of each table, and recovers it.

    $b = A s + \xi$ with $A$ a random $m \times d$ matrix, $\xi \sim N(0,
    \sigma^2 I)$, $\sigma$ = the stddev of `PublicFacts`; what is released is
    the sparse table that explains $b$, or zero if its norm is beyond $2 C
    \bar n$ with $C$ = clip_norm, $\bar n$ = expected_batch_size. Tables of
    $d < m \ln^2 m$ rows and dense variables get Gaussian noise on every entry.

    With `geometry="rows"`, $A$ is applied to each of a table's $k$ columns, and
    few *rows* are recovered; with "coordinates" the table is one long vector,
    as in the paper. The number of measurements is, for $q$ rows (or
    coordinates) that one unit reaches,

    $$m = 2 \sqrt{2 q (k - 1 + \ln(d/q))} \; \bar n / (z k),$$

    $z$ = noise_multiplier: for $k = 1$ the paper's $n\epsilon \sqrt{q \ln(d/q)
    / \ln(1/\delta)}$ at its $\sigma$.

    **Guarantee.** Units are clipped by the norm of what is measured: $|A
    g_i|^2$, summed over tables, plus the squared norms of the other
    variables. So one unit changes all that gets noise by at most $C$,
    whatever $A$ is, and releasing it is a Gaussian mechanism with noise
    multiplier $\sigma / C$. Neither is there an event in which $A$ fails to
    be a near-isometry, nor does $\delta$ pay for one. Recovery sees only $b$
    and the public $A$. Neighbours: add or remove one unit, or zero one out.

    At the same noise it is no more accurate than a threshold (the noise that a
    row sees is $\sigma$ plus what recovery of the others leaves), and dense by
    definition: recovery touches all rows. It is for the wire: `sketch` makes
    m·k numbers of a table, whose sums over workers are sketches of sums.

    Args:
      measurements: The number $m$ for every table with more rows (or
        coordinates) than that; None for the formula.
      geometry: "rows" or "coordinates".
      matrix: "hadamard" or "cosine" (random rows of a fast transform with
        random signs), or "gaussian" (independent entries, the paper's; for
        small tables).
      solver: "amp" (message passing), "lasso" or "basis_pursuit" (the
        paper's). Which one costs or gains accuracy, never privacy.
      iterations: At most so many of the solver; None for a usual number.

    Raises:
      ValueError: If an argument is none of these.

    Example:
      Three workers have a row each. They agree on a key, and send 128 times
      2 numbers instead of 5000 times 2.

      >>> import tensorflow as tf
      >>> sensing = CompressedSensing(measurements=128)
      >>> key = tf.constant([1, 2], tf.int64)  # Public.
      >>> shape = tf.constant([5000, 2], tf.int64)
      >>> parts = [
      ...     tf.IndexedSlices(tf.constant([[3.0, 4.0]]), [worker], shape)
      ...     for worker in (7, 7, 42)
      ... ]
      >>> sketches = [sensing.sketch(part, key) for part in parts]
      >>> total = sensing.recover(tf.add_n(sketches), key, (5000, 2))
      >>> tf.where(tf.norm(total, axis=1) > 1)[:, 0].numpy().tolist()
      [7, 42]
      >>> total.numpy()[[7, 42]].round(1).tolist()
      [[6.0, 8.0], [3.0, 4.0]]

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), algorithm 2. Clipping
    what is measured is ours.
    """

    measurements: int | None = None
    geometry: str = "rows"
    matrix: str = "hadamard"
    solver: str = "amp"
    iterations: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("geometry", GEOMETRIES),
            ("matrix", tuple(MATRICES)),
            ("solver", tuple(SOLVERS)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} was given; expected one "
                    f"of {choices}."
                )
        for name in ("measurements", "iterations"):
            _check_count(name, getattr(self, name))

    @property
    def fixed_sizes(self) -> bool:
        return False

    @property
    def uses_lookups(self) -> bool:
        return True

    def clipped(
        self,
        terms: Sequence[Factor],
        key: tf.Tensor,
        facts: PublicFacts,
        *,
        scale: tf.Tensor | float = 1.0,
        valid: tf.Tensor | None = None,
    ) -> list[Sum]:
        """As of `Mechanism`, with sketches [m, k] in place of large tables."""
        sketched = []
        for place, (factor, variable) in enumerate(
            zip(terms, facts.variables, strict=True)
        ):
            measurement = self._measurement(place, variable, key, facts)
            if measurement is not None:
                table = _named(place, variable)
                rows = _rows(factor, table)
                if self.geometry == "coordinates":
                    rows = as_coordinates(rows)
                _check_parts(table, rows.rows_per_example)
                factor = SketchedFactor(rows, measurement)
            sketched.append(factor)
        return super().clipped(sketched, key, facts, scale=scale, valid=valid)

    def clipped_parts(
        self,
        terms: Sequence[Factor],
        keys: Sequence[tf.Tensor],
        facts: PublicFacts,
        *,
        parts: Sequence[tf.Tensor],
        scale: tf.Tensor | float = 1.0,
        valid: tf.Tensor | None = None,
    ) -> list[list[Sum]]:
        """As of `Mechanism`; every part has a matrix, hence norms, of its own.

        Raises:
          ValueError: As of `clipped`.
        """
        return [
            self.clipped(
                terms,
                key,
                facts,
                scale=scale,
                valid=part if valid is None else part & valid,
            )
            for key, part in zip(keys, parts, strict=True)
        ]

    def release(
        self, sums: Sequence[Sum], key: tf.Tensor, facts: PublicFacts
    ) -> list[Sum]:
        if facts.stddev == 0:
            return [deduplicated(total) for total in sums]
        released = []
        for place, (total, variable) in enumerate(
            zip(sums, facts.variables, strict=True)
        ):
            noise_key = fold_in(fold_in(key, _NOISE), place)
            measurement = self._measurement(place, variable, key, facts)
            if measurement is None:
                released.append(with_noise(total, noise_key, facts.stddev))
                continue
            _check_sketch(
                total,
                _named(place, variable),
                measurement,
                self._width(variable),
            )
            sketch = with_noise(total, noise_key, facts.stddev)
            table = recover(
                self.solver,
                measurement,
                tf.cast(sketch, tf.float32),
                stddev=facts.stddev,
                iterations=self.iterations,
            )
            # The paper's guard: a mean of clipped terms is not longer.
            longest = 2 * facts.clip_norm * facts.units
            table = tf.where(tf.norm(table) <= longest, table, 0.0)
            released.append(tf.reshape(table, variable.shape))
        return released

    def sketch(self, table: Sum, key: tf.Tensor) -> tf.Tensor:
        """Measurements of a table, to be sent and added up.

        A sketch is not private by itself: it tells what the table tells.
        Clip what is measured and add noise to the sum, as `release` does.

        Args:
          table: [rows, ...], or `tf.IndexedSlices` with few rows.
          key: Stands for the matrix; public, and the same for all that is
            added up. Not one that noise is drawn with.

        Returns:
          A float32 tensor [measurements, k]; k = 1 for coordinates.
        """
        if isinstance(table, tf.IndexedSlices):
            shape = tuple(tf.get_static_value(table.dense_shape).tolist())
            values, ids = table.values, table.indices
        else:
            shape = tuple(table.shape)
            values, ids = table, tf.range(shape[0])
        width = math.prod(shape[1:])
        if self.geometry == "coordinates":
            ids = tf.reshape(coordinate_ids(ids, shape[0], width), [-1])
            width = 1
        measurement = self._own_measurement(shape, key)
        found = measurement.sketch(tf.reshape(values, [-1, width]), ids)
        return tf.cast(found, tf.float32)

    def recover(
        self,
        sketch: tf.Tensor,
        key: tf.Tensor,
        shape: Sequence[int],
        *,
        stddev: float | None = None,
    ) -> tf.Tensor:
        """The table that was measured, as far as its sketch tells.

        Args:
          sketch: A sum of sketches, with noise or without.
          key: The key of the sketches.
          shape: Shape of the table.
          stddev: Standard deviation of the noise, if known; for the lasso.

        Returns:
          A float32 tensor of that shape.
        """
        measurement = self._own_measurement(tuple(shape), key)
        _check_size(
            self.matrix,
            self.solver,
            f"A table of shape {tuple(shape)}",
            measurement.rows,
            measurement.count,
        )
        table = recover(
            self.solver,
            measurement,
            sketch,
            stddev=stddev,
            iterations=self.iterations,
        )
        return tf.reshape(table, shape)

    def check(self, facts: PublicFacts) -> None:
        for place, variable in enumerate(facts.variables):
            if not variable.sparse or facts.stddev == 0:
                continue
            table = _named(place, variable)
            if variable.lookups is None:
                raise ValueError(
                    f"{table} is looked up any number of times by one unit "
                    "(ragged or sparse ids). Compressed sensing needs a fixed "
                    "number: make ids dense, filled up to a length, or use "
                    "another mechanism."
                )
            count = self._count(variable, facts)
            if count is None:
                continue
            cells = self._cells(variable)
            _check_parts(table, variable.lookups * cells // variable.shape[0])
            _check_size(self.matrix, self.solver, table, cells, count)

    @property
    def description(self) -> str:
        number = self.measurements or "few"
        return (
            f"Gaussian noise on {number} measurements of each large table by a "
            f"random {self.matrix} matrix, which are clipped in its place and "
            f"from which it is recovered by {self.geometry}, and on every "
            "entry of all other variables"
        )

    def _width(self, variable: Variable) -> int:
        if self.geometry == "coordinates":
            return 1
        return math.prod(variable.shape[1:])

    def _cells(self, variable: Variable) -> int:
        """Rows of what is measured."""
        if self.geometry == "coordinates":
            return math.prod(variable.shape)
        return variable.shape[0]

    def _count(self, variable: Variable, facts: PublicFacts) -> int | None:
        """How many measurements to make of a variable; None for none."""
        if not variable.sparse or facts.stddev == 0:
            return None
        cells, width = self._cells(variable), self._width(variable)
        if self.measurements is not None:
            return self.measurements if self.measurements < cells else None
        if not cells or variable.lookups is None:
            return None
        reached = variable.lookups * cells // variable.shape[0]
        if not 0 < reached < cells:
            return None
        spread = reached * (width - 1 + math.log(cells / reached))
        ratio = facts.expected_batch_size / facts.noise_multiplier
        count = math.ceil(2 * math.sqrt(2 * spread) * ratio / width)
        if cells < count * max(1.0, math.log(count) ** 2):
            return None
        return count

    def _measurement(
        self, place: int, variable: Variable, key: tf.Tensor, facts: PublicFacts
    ) -> Measurement | None:
        count = self._count(variable, facts)
        if count is None:
            return None
        matrix_key = fold_in(fold_in(key, _MATRIX), place)
        return MATRICES[self.matrix](self._cells(variable), count, matrix_key)

    def _own_measurement(
        self, shape: tuple[int, ...], key: tf.Tensor
    ) -> Measurement:
        if self.measurements is None:
            raise ValueError(
                "The number of measurements was left to the noise of a "
                "training; for a sketch pass measurements=... to "
                "CompressedSensing."
            )
        cells = self._cells(Variable(shape=shape, sparse=True))
        return MATRICES[self.matrix](cells, self.measurements, key)


def _named(place: int, table: Variable) -> str:
    return f"The table {table.name or place!r} of shape {table.shape}"


def _rows(factor: Factor, table: str) -> RowFactor:
    """The terms of a table as one row for each lookup."""
    if isinstance(factor, PlacedFactor):
        factor = factor.as_rows()
    if not isinstance(factor, RowFactor):
        raise ValueError(
            f"{table} is reached at any number of places by one unit (ragged "
            "ids, or a tf.SparseTensor); expected the same number for each "
            "unit, which compressed sensing needs. Make them dense, or use "
            "another mechanism, such as tf_sparse_dp.Threshold()."
        )
    if factor.values.dtype != tf.float32:
        raise ValueError(
            f"{table} has a gradient of type {factor.values.dtype.name}; "
            "expected float32. Keep the table's weights in float32."
        )
    return dataclasses.replace(factor, sparse=True)


def _check_sketch(
    total: Any, table: str, measurement: Measurement, width: int
) -> None:
    if isinstance(total, tf.IndexedSlices) or tuple(total.shape) != (
        measurement.count,
        width,
    ):
        raise ValueError(
            f"{table} was given for release as a sum; expected its sketch, of "
            f"shape {(measurement.count, width)}. Only sums from "
            "CompressedSensing.clipped, with the same facts, are clipped by "
            "what is measured."
        )


def _check_parts(table: str, parts: int) -> None:
    if parts > _MOST_PARTS:
        raise ValueError(
            f"{table} is reached at {parts} places by one unit, all pairs of "
            f"which are looked at; expected up to {_MOST_PARTS}. Use "
            "geometry='rows', or tf_sparse_dp.Gaussian()."
        )


def _check_size(
    matrix: str, solver: str, table: str, cells: int, count: int
) -> None:
    if cells > _MOST_CELLS:
        raise ValueError(
            f"{table} is measured as {cells} rows; expected up to "
            f"{_MOST_CELLS}. Use geometry='rows', or a mechanism that does "
            "not touch all rows, such as tf_sparse_dp.Threshold()."
        )
    if matrix == "gaussian":
        if cells * count > _MOST_ENTRIES:
            raise ValueError(
                f"{table} takes a matrix of {count} x {cells} independent "
                f"entries, to be drawn in each iteration; expected up to "
                f"{_MOST_ENTRIES} entries. Use matrix='hadamard'."
            )
        if solver == "basis_pursuit" and count > _MOST_SOLVED:
            raise ValueError(
                f"{table} has {count} measurements, and basis pursuit with a "
                "gaussian matrix inverts a square matrix of that size; "
                f"expected up to {_MOST_SOLVED}. Use matrix='hadamard', or "
                "solver='amp'."
            )


def _check_count(name: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and (not whole or value < 1):
        raise ValueError(
            f"{name}={value!r} was given; expected None or a whole number "
            "above 0."
        )
