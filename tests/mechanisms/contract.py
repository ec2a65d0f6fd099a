"""What mechanisms promise, one by one, and how to find out.

`MECHANISMS` lists every mechanism in every form that differs in what is to be
tested; `test_contract.py` holds all of them to the same promises.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import stats
from tensorflow.python.framework import op_callbacks

from tf_sparse_dp import mechanisms
from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE
from tf_sparse_dp.gradients.factors import DenseFactor, Factor, RowFactor
from tf_sparse_dp.mechanisms.interface import (
    Mechanism,
    PublicFacts,
    Sum,
    Variable,
)

CLIP_NORM = 0.5
KEY = tf.constant([11, 12], tf.int64)
NAMES = ("embedding/table", "bias", "embedding/numbers")


def gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """Delta of Gaussian noise at sensitivity 1, exactly (Balle and Wang)."""
    half = 0.5 / noise_multiplier
    shift = epsilon * noise_multiplier
    return stats.norm.cdf(half - shift) - math.exp(epsilon) * stats.norm.cdf(
        -half - shift
    )


def l2_distance(sums: Sequence[np.ndarray], facts: PublicFacts) -> float:
    """Length of a difference of clipped sums over the sensitivity."""
    return _l2(sums) / facts.clip_norm


def distance_with_counts(
    sums: Sequence[np.ndarray], facts: PublicFacts
) -> float:
    """Where sums have 0.7 of the privacy, and counts of rows 0.3."""
    count = len(facts.variables)
    gradients, counts = sums[:count], sums[count:]
    return math.hypot(
        math.sqrt(0.7) * l2_distance(gradients, facts),
        math.sqrt(0.3) * _l2(counts),
    )


def laplace_delta(epsilon: float, noise_multiplier: float) -> float:
    """Delta of Laplace noise at sensitivity 1, from its two densities."""
    return max(0.0, -math.expm1((epsilon - 1 / noise_multiplier) / 2))


def l1_distance(sums: Sequence[np.ndarray], facts: PublicFacts) -> float:
    """The same where the sensitivity is that of Laplace noise."""
    return sum(np.abs(total).sum() for total in sums) / _l1_sensitivity(facts)


def laplace_noise(facts: PublicFacts) -> Any:
    scale = facts.noise_multiplier * _l1_sensitivity(facts)
    return stats.laplace(scale=scale)


def _l1_sensitivity(facts: PublicFacts) -> float:
    """The largest L1 norm of one unit of norm clip_norm: all entries equal."""
    reached = sum(
        math.prod((v.lookups, *v.shape[1:]) if v.sparse else v.shape)
        for v in facts.variables
    )
    return facts.clip_norm * math.sqrt(reached)


def gaussian_noise(facts: PublicFacts) -> Any:
    """The distribution of the noise on one entry of a dense variable."""
    return stats.norm(scale=facts.stddev)


def _l2(arrays: Sequence[np.ndarray]) -> float:
    return math.sqrt(sum(np.square(array).sum() for array in arrays))


@dataclasses.dataclass(frozen=True)
class Case:
    """One mechanism, and what is expected of it in particular.

    Attributes:
      name: Of the test.
      mechanism: What is tested.
      sparse: Whether noise on large tables leaves them sparse.
      compiles: Whether to see if XLA compiles it, once for each class.
      distance: How far apart clipped sums of neighbours are; 1 is allowed.
      norm: What one unit's contribution is clipped by: its length, and the
        largest allowed.
      delta: Delta of one release at an epsilon, by a formula of its own.
      noise: The distribution of the noise on dense variables.
      recovers: Whether tables are computed from what is on the grid, and not
        on it themselves.
    """

    name: str
    mechanism: Mechanism
    sparse: bool = True
    compiles: bool = True
    distance: Callable[[Sequence[np.ndarray], PublicFacts], float] = l2_distance
    norm: Callable[[Sequence[np.ndarray], PublicFacts], float] = l2_distance
    delta: Callable[[float, float], float] = gaussian_delta
    noise: Callable[[PublicFacts], Any] = gaussian_noise
    recovers: bool = False


MECHANISMS = [
    Case("gaussian", mechanisms.Gaussian(), sparse=False),
    Case("automatic", mechanisms.Automatic(), compiles=False),
    Case(
        "laplace",
        mechanisms.Laplace(),
        sparse=False,
        distance=l1_distance,
        norm=l1_distance,
        delta=laplace_delta,
        noise=laplace_noise,
    ),
    Case(
        "frequency selection",
        mechanisms.FrequencySelection(rows={"embedding": [0]}),
    ),
    Case(
        "partition selection",
        mechanisms.PartitionSelection(selection_share=0.3),
        distance=distance_with_counts,
        noise=lambda facts: stats.norm(scale=facts.stddev / math.sqrt(0.7)),
    ),
    Case("threshold", mechanisms.Threshold()),
    Case("threshold-sure", mechanisms.Threshold(choice="sure"), compiles=False),
    Case("projection", mechanisms.Projection()),
    Case(
        "projection-coordinates",
        mechanisms.Projection(geometry="coordinates", tables="each"),
        compiles=False,
    ),
    Case(
        "projection-laplace",
        mechanisms.Projection(geometry="coordinates", noise="laplace"),
        compiles=False,
        distance=l1_distance,
        norm=l1_distance,
        delta=laplace_delta,
        noise=laplace_noise,
    ),
    Case(
        "compressed sensing",
        # Which recovers noise too, so that weights always move.
        mechanisms.CompressedSensing(
            measurements=20, solver="basis_pursuit", iterations=50
        ),
        sparse=False,
        recovers=True,
    ),
]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Units' terms for a table, a table of numbers and a dense variable.

    Attributes:
      ids: Rows that units look up, [B, L].
      values: Terms of the first table, [B, L, width].
      dense: Terms of the dense variable, [B, n].
      shape: Shape of the first table; the second has as many rows.
      numbers: Whether there is a second table.
    """

    ids: np.ndarray
    values: np.ndarray
    dense: np.ndarray
    shape: tuple[int, ...]
    numbers: bool = True

    @classmethod
    def random(
        cls,
        units: int,
        shape: tuple[int, ...] = (50, 4),
        *,
        lookups: int = 3,
        size: float = 0.1,
    ) -> Batch:
        rng = np.random.default_rng(units)
        width = math.prod(shape[1:])
        ids = rng.integers(shape[0], size=(units, lookups)).astype("int32")
        values = rng.standard_normal((units, lookups, width))
        dense = rng.standard_normal((units, 5))
        return cls(
            ids,
            (size * values).astype("float32"),
            (size * dense).astype("float32"),
            shape,
        )

    @property
    def units(self) -> int:
        return len(self.ids)

    @property
    def inputs(self) -> tuple[tf.Tensor, ...]:
        return tuple(map(tf.constant, (self.ids, self.values, self.dense)))

    def terms(
        self, ids: tf.Tensor, values: tf.Tensor, dense: tf.Tensor
    ) -> list[Factor]:
        """Factors of tensors like `inputs`."""
        terms = [RowFactor(values, ids, self.shape), DenseFactor(dense)]
        if self.numbers:
            terms.append(RowFactor(values[:, :, :1], ids, self.shape[:1]))
        return terms

    def facts(self, noise_multiplier: float = 1.0, **others) -> PublicFacts:
        terms = self.terms(*self.inputs)
        return PublicFacts(
            variables=tuple(map(Variable.of, terms, NAMES)),
            clip_norm=others.pop("clip_norm", CLIP_NORM),
            noise_multiplier=noise_multiplier,
            expected_batch_size=others.pop("expected_batch_size", 20.0),
            failure_probability=RELEASE_FAILURE,
            **others,
        )

    def dense_terms(self) -> list[list[np.ndarray]]:
        """Every unit's terms by definition, in float64."""
        width = math.prod(self.shape[1:])
        found = []
        for ids, values, dense in zip(
            self.ids, self.values.astype("float64"), self.dense, strict=True
        ):
            table = np.zeros([self.shape[0], width])
            np.add.at(table, ids, values)
            numbers = table[:, 0].copy()
            found.append(
                [
                    table.reshape(self.shape),
                    dense.astype("float64"),
                    numbers,
                ]
            )
        return found


def clipped_sums(case: Case, batch: Batch, facts: PublicFacts):
    """Sums of clipped terms by definition, in float64."""
    totals = [np.zeros(variable.shape) for variable in facts.variables]
    for terms in batch.dense_terms():
        factor = 1 / max(1.0, case.norm(terms, facts))
        for total, term in zip(totals, terms, strict=True):
            total += factor * term
    return totals


def clip(
    case: Case,
    batch: Batch,
    facts: PublicFacts,
    valid: np.ndarray | None = None,
) -> list[np.ndarray]:
    """What the mechanism's `clipped` gives, dense, in float64."""
    sums = case.mechanism.clipped(
        batch.terms(*batch.inputs),
        KEY,
        facts,
        valid=None if valid is None else tf.constant(valid),
    )
    return [dense(total) for total in sums]


def step(
    case: Case, batch: Batch, facts: PublicFacts
) -> Callable[..., list[Sum]]:
    """Clips and releases, as an optimizer does."""

    def run(key, valid, ids, values, dense_terms):
        case.mechanism.check(facts)
        sums = case.mechanism.clipped(
            batch.terms(ids, values, dense_terms), key, facts, valid=valid
        )
        return case.mechanism.release(sums, key, facts)

    return run


def arguments(batch: Batch, valid: np.ndarray | None = None) -> tuple:
    """What `step` is called with."""
    if valid is None:
        valid = np.ones(batch.units, bool)
    return (KEY, tf.constant(valid), *batch.inputs)


def dense(total: Sum) -> np.ndarray:
    """A sum as one array, repeated rows added, in float64."""
    if not isinstance(total, tf.IndexedSlices):
        return total.numpy().astype("float64")
    shape = tf.get_static_value(total.dense_shape)
    result = np.zeros(shape)
    np.add.at(result, total.indices.numpy(), total.values.numpy())
    return result


def present(total: Sum) -> dict[int, np.ndarray]:
    """The entries of a tensor, or the rows of a table that are not zero."""
    if not isinstance(total, tf.IndexedSlices):
        return dict(enumerate(total.numpy()))
    rows = zip(total.indices.numpy(), total.values.numpy(), strict=True)
    return {row: values for row, values in rows if values.any()}


def ill_formed(total: Sum, shape: tuple[int, ...], private: bool) -> str:
    """What is wrong with a released sum; empty if nothing is."""
    if not isinstance(total, tf.IndexedSlices):
        return "" if tuple(total.shape) == shape else f"shape {total.shape}"
    ids, values = total.indices.numpy(), total.values.numpy()
    if tuple(tf.get_static_value(total.dense_shape)) != shape:
        return f"dense shape {total.dense_shape}"
    if values.shape != (len(ids), *shape[1:]):
        return f"{len(ids)} ids of values of shape {values.shape}"
    if ids.size and (ids.min() < 0 or ids.max() >= shape[0]):
        return f"ids from {ids.min()} to {ids.max()} of {shape[0]} rows"
    is_full = values.reshape(len(ids), math.prod(shape[1:])).any(1)
    full = ids[is_full]
    if private and ids[~is_full].any():
        return "rows of zeros that tell of the batch"
    if len(np.unique(full)) != len(full):
        return "rows that are not zero come more than once"
    return ""


# How large tensors are.


@contextlib.contextmanager
def eager_sizes() -> Iterator[dict[str, int]]:
    """Entries of the largest output of each kind of operation that runs."""
    found: dict[str, int] = {}

    def look(op_type, inputs, attrs, outputs, op_name=None, graph=None):
        for tensor in outputs:
            size = tensor.shape.num_elements() if graph is None else 0
            found[op_type] = max(found.get(op_type, 0), size)

    op_callbacks.add_op_callback(look)
    try:
        yield found
    finally:
        op_callbacks.remove_op_callback(look)


def graph_sizes(graph: tf.Graph) -> dict[str, int]:
    """The same for a graph and all functions in it, as far as is known.

    Dimensions that are not known while tracing count as 1.
    """
    definition = graph.as_graph_def(add_shapes=True)
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    found: dict[str, int] = {}
    for node in nodes:
        for shape in node.attr["_output_shapes"].list.shape:
            size = math.prod(max(dim.size, 1) for dim in shape.dim)
            found[node.op] = max(found.get(node.op, 0), size)
    return found


_HLO_RESULT = re.compile(r"= \(?\w+\[([\d,<=]+)\]\S* ([\w-]+)\(")


def hlo_sizes(text: str) -> dict[str, int]:
    """The same for what XLA makes of it, where every shape is known."""
    found: dict[str, int] = {}
    for shape, name in _HLO_RESULT.findall(text):
        dims = shape.replace("<=", "").split(",")
        size = math.prod(int(dim) for dim in dims)
        found[name] = max(found.get(name, 0), size)
    return found
