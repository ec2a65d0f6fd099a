"""Private means: right in distribution, and refused where they cannot be."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate, stats

import tf_sparse_dp as tsdp
from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp.mechanisms import Mechanism

pytestmark = pytest.mark.once

N, D, S, K = 40, 60, 3, 4
RNG = np.random.default_rng(0)
IDS = np.stack([RNG.permutation(D)[:S] for _ in range(N)])
VECTORS = np.zeros([N, D], np.float32)
np.put_along_axis(VECTORS, IDS, RNG.standard_normal((N, S)).astype("f4"), 1)
ROWS = RNG.standard_normal((N, S, K)).astype("float32")
REPEATED = IDS.copy()
REPEATED[:, 1] = REPEATED[:, 0]


def table_vectors(ids: np.ndarray = REPEATED, rows: Any = ROWS) -> Any:
    return tf.IndexedSlices(tf.constant(rows), tf.constant(ids), [D, K])


def written_out(ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    tables = np.zeros([len(ids), D, K])
    for table, places, values in zip(tables, ids, rows, strict=True):
        np.add.at(table, places, values)
    return tables


FORMS: dict[str, tuple[Any, np.ndarray]] = {
    "array": (VECTORS, VECTORS),
    "float64": (VECTORS.astype("float64"), VECTORS),
    "lists": (VECTORS.tolist(), VECTORS),
    "tensor": (tf.constant(VECTORS), VECTORS),
    "sparse": (tf.sparse.from_dense(VECTORS), VECTORS),
    "tables": (table_vectors(), written_out(REPEATED, ROWS)),
}
PURE = tsdp.Projection(geometry="coordinates", noise="laplace")


def mean_of(vectors: Any, **arguments: Any) -> tsdp.PrivateMean:
    defaults = {"epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.0, "seed": 1}
    return tsdp.private_mean(vectors, **defaults | arguments)


def dense(mean: tsdp.PrivateMean) -> np.ndarray:
    return np.asarray(tf.convert_to_tensor(mean.value), np.float64)


def clipped_mean(
    vectors: np.ndarray, bound: float, order: int = 2
) -> np.ndarray:
    flat = vectors.reshape(len(vectors), -1).astype("float64")
    norms = np.linalg.norm(flat, order, axis=1)
    flat *= np.minimum(1, bound / np.maximum(norms, 1e-30))[:, None]
    return flat.mean(0).reshape(vectors.shape[1:])


@pytest.mark.parametrize("clip_norm", [0.5, 10.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("form", FORMS)
def test_with_hardly_any_noise_it_is_the_mean(
    form: str, delta: float, clip_norm: float
) -> None:
    vectors, expected = FORMS[form]
    width = K if form == "tables" else 1
    for sparsity in (None, S):
        found = mean_of(
            vectors,
            epsilon=1e7,
            delta=delta,
            clip_norm=clip_norm,
            sparsity=sparsity,
        )
        if delta > 0:
            exact = clipped_mean(expected, clip_norm)
        else:
            known = form == "tables" or sparsity
            entries = S * width if known else D * width
            exact = clipped_mean(expected, clip_norm * entries**0.5, 1)
            if form == "tables":  # Repeated rows of different sign meet.
                bound = np.abs(ROWS).sum((1, 2))
                weights = np.minimum(1, clip_norm * entries**0.5 / bound)
                exact = (expected * weights[:, None, None]).mean(0)
        # Noise and thresholds of less than a thousandth, and the grid.
        np.testing.assert_allclose(dense(found), exact, atol=5e-3 * clip_norm)


@pytest.mark.parametrize("neighbours", ["replace_one", "zero_out"])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_noise_is_what_the_guarantee_needs(
    delta: float, neighbours: str
) -> None:
    """Its distribution by a test, the guarantee by integrating densities."""
    n, d = 3, 20_000
    mean = mean_of(
        np.zeros([n, d]), delta=delta, clip_norm=0.5, neighbours=neighbours
    )
    times = 2 if neighbours == "replace_one" else 1
    family = stats.norm if delta else stats.laplace
    bound = 0.5 if delta else 0.5 * d**0.5
    assert mean.sensitivity == pytest.approx(times * bound / n)
    scale = mean.noise_multiplier * mean.sensitivity
    noise = family(scale=scale)
    assert stats.kstest(dense(mean), noise.cdf).pvalue > FALSE_ALARM
    for wrong in (2 / 3, 1.5):
        other = family(scale=wrong * scale).cdf
        assert stats.kstest(dense(mean), other).pvalue < FALSE_ALARM

    def gap(x: float) -> float:
        moved = noise.pdf(x - mean.sensitivity)
        return max(0.0, noise.pdf(x) - math.e**mean.epsilon * moved)

    points = np.linspace(-40, 40, 81) * scale
    found = sum(
        integrate.quad(gap, low, high)[0]
        for low, high in itertools.pairwise(points)
    )
    assert found <= delta * (1 + 1e-6) + 1e-12
    assert delta == 0 or found > 0.99 * delta


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, {"array": "Gaussian", "sparse": "Threshold"}),
        ({"sparsity": 2}, dict.fromkeys(("array", "sparse"), "Projection")),
        ({"delta": 0.0}, dict.fromkeys(("array", "sparse"), "Laplace")),
        (
            {"delta": 0.0, "sparsity": 2},
            dict.fromkeys(("array", "sparse"), "Projection"),
        ),
    ],
)
def test_what_auto_chooses(
    arguments: dict[str, Any], expected: dict[str, str]
) -> None:
    expected = expected | {"tables": "Projection"}
    for form, name in expected.items():
        mean = mean_of(FORMS[form][0], **arguments)
        assert type(mean.mechanism).__name__ == name
        pure = arguments.get("delta") == 0.0
        assert mean.mechanism.noise_family == (
            "laplace" if pure else "gaussian"
        )
        if name == "Projection" and not pure:
            by_rows = form == "tables"
            geometry = "rows" if by_rows else "coordinates"
            assert mean.mechanism.geometry == geometry  # type: ignore[attr-defined]


@pytest.mark.parametrize("mechanism", [tsdp.Threshold(), PURE, "auto"])
@pytest.mark.parametrize("form", ["sparse", "tables"])
def test_published_rows_do_not_tell_which_the_data_have(
    form: str, mechanism: Any
) -> None:
    """Rows that are not zero, each once, in the order of their ids."""
    large = 50 * D
    ids, rows = IDS.copy(), ROWS.copy()
    ids[:, 0], rows[:, 0] = large - 1, 1.0  # One row is sure to stay.
    vectors: Any = tf.SparseTensor(
        np.stack([np.repeat(np.arange(N), S), ids.ravel()], 1),
        rows[:, :, 0].ravel(),
        [N, large],
    )
    if form == "tables":
        vectors = tf.IndexedSlices(rows, ids, [large, K])
    mean = mean_of(
        vectors,
        epsilon=5.0,
        delta=0.0 if mechanism is PURE else 1e-6,
        sparsity=S,
        mechanism=mechanism,
    )
    assert isinstance(mean.value, tf.IndexedSlices)
    found, values = mean.value.indices.numpy(), mean.value.values.numpy()
    assert (np.diff(found) > 0).all()
    assert values.reshape(len(found), -1).any(1).all()
    # Some rows that the data have, not all of them, and some others.
    touched = np.isin(found, ids)
    assert found[-1] == large - 1
    assert 0 < touched.sum() < len(np.unique(ids))
    assert not touched.all()


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_vectors_that_are_not_finite_count_as_zero(
    bad: float, delta: float
) -> None:
    vectors = VECTORS.astype("float64")
    vectors[3], vectors[7, 5] = 0.0, 0.0
    without = vectors.copy()
    without[7] = 0.0
    vectors[3, IDS[3, 0]], vectors[7, 5] = bad, bad
    rows, no_rows = ROWS.astype("float64"), ROWS.copy()
    rows[5, 1, 2], no_rows[5] = bad, 0.0
    for one, other in [
        (vectors, without),
        (tf.sparse.from_dense(vectors), tf.sparse.from_dense(without)),
        (table_vectors(rows=rows), table_vectors(rows=no_rows)),
    ]:
        one, other = (dense(mean_of(v, delta=delta)) for v in (one, other))
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("wrong", [-1, D, 10**12])
def test_vectors_with_ids_out_of_range_count_as_zero(
    wrong: int, delta: float
) -> None:
    ids, no_rows = IDS.copy(), ROWS.copy()
    ids[5, 1], no_rows[5] = wrong, 0.0
    found = mean_of(table_vectors(ids), delta=delta)
    expected = mean_of(table_vectors(IDS, no_rows), delta=delta)
    np.testing.assert_array_equal(dense(found), dense(expected))
    good = tf.constant([[0, 1], [2, 5], [3, 3]], tf.int64)
    bad = tf.constant([[0, 1], [2, 5], [1, wrong], [1, 4], [3, 3]], tf.int64)
    nobody = tf.constant([[0, 1], [2, 5], [-1, 7], [4, 7], [3, 3]], tf.int64)
    means = [
        dense(
            mean_of(
                tf.SparseTensor(indices, tf.ones([len(indices)]), [4, D]),
                delta=delta,
            )
        )
        for indices in (good, bad, nobody)
    ]
    np.testing.assert_array_equal(means[0], means[1])
    np.testing.assert_array_equal(means[0], means[2])


def test_small_cases() -> None:
    assert dense(mean_of([[1.0]])).shape == (1,)
    assert dense(mean_of([[1]], delta=0)).shape == (1,)
    assert dense(mean_of([[1.0, 0.0]], delta=0, sparsity=1)).shape == (2,)
    assert dense(mean_of(np.eye(2, dtype=np.int8), sparsity=2)).shape == (2,)
    one = tf.IndexedSlices(
        tf.ones([1, 1, 1]), tf.zeros([1, 1], tf.int32), [1, 1]
    )
    assert dense(mean_of(one)).shape == (1, 1)
    nothing = tf.SparseTensor(np.zeros([0, 2]), np.zeros([0]), [2, 5])
    assert dense(mean_of(nothing)).shape == (5,)
    assert dense(mean_of(nothing, delta=0, sparsity=2)).shape == (5,)


def test_many_coordinates_cost_nothing() -> None:
    d = 10**12
    places = RNG.integers(d, size=N)
    vectors = tf.SparseTensor(
        np.stack([np.arange(N), places], 1), tf.ones([N]), [N, d]
    )
    for arguments in ({}, {"sparsity": 1}, {"sparsity": 1, "delta": 0.0}):
        mean = mean_of(vectors, epsilon=1e6, **arguments)
        assert isinstance(mean.value, tf.IndexedSlices)
        found = mean.value.indices.numpy()[mean.value.values.numpy() > 0.5 / N]
        np.testing.assert_array_equal(found, np.unique(places))


def test_seeds_are_for_tests() -> None:
    first, same = mean_of(VECTORS), mean_of(VECTORS)
    np.testing.assert_array_equal(dense(first), dense(same))
    assert first.seeded and "NOT PRIVATE" in first.description
    one, two = (mean_of(VECTORS, seed=None) for _ in range(2))
    assert not np.array_equal(dense(one), dense(two))
    assert not one.seeded and "NOT PRIVATE" not in one.description


def test_the_description() -> None:
    text = mean_of(VECTORS, seed=None).description
    assert "epsilon = 1, delta = 1e-06; neighbours: one vector is" in text
    assert "Gaussian noise on every entry" in text
    assert "L2 sensitivity 0.05, noise multiplier 4.22468" in text
    text = mean_of(VECTORS, delta=0, sparsity=4, seed=None).description
    assert "epsilon = 1, pure in exact arithmetic; " in text
    assert "L1 sensitivity 0.1, noise multiplier 1." in text


@pytest.mark.parametrize(
    "mechanism",
    [
        tsdp.PartitionSelection(selection_share=0.3),
        tsdp.FrequencySelection(rows={"vectors": [0, 1]}),
        tsdp.Laplace(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_other_mechanisms(mechanism: Mechanism) -> None:
    mean = mean_of(VECTORS, mechanism=mechanism, sparsity=S)
    assert mean.mechanism is mechanism
    assert dense(mean).shape == (D,)


def test_sparse_vectors_are_not_measured() -> None:
    with pytest.raises(ValueError, match=r"table 'vectors'.*SparseTensor"):
        mean_of(
            FORMS["sparse"][0],
            mechanism=tsdp.CompressedSensing(measurements=8),
            sparsity=S,
        )


def test_what_a_mechanism_spent_before_is_added() -> None:
    mechanism = tsdp.FrequencySelection(
        rows={"vectors": [0]}, spent_epsilon=0.5, spent_delta=1e-7
    )
    mean = mean_of(VECTORS, mechanism=mechanism, neighbours="zero_out")
    assert (mean.epsilon, mean.delta) == (1.5, pytest.approx(1.1e-6))
    # Replacing a vector is two steps, for what was spent before as well.
    mean = mean_of(VECTORS, mechanism=mechanism, neighbours="replace_one")
    twice = 1e-6 + (1 + math.exp(0.5)) * 1e-7
    assert (mean.epsilon, mean.delta) == (2.0, pytest.approx(twice))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cheating(tsdp.Gaussian):
    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        return dp_accounting.GaussianDpEvent(noise_multiplier / 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unknown(tsdp.Laplace):
    def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        return dp_accounting.UnsupportedDpEvent()


@pytest.mark.parametrize("mechanism", [Cheating(), Unknown()])
def test_mechanisms_that_cost_more_are_refused(mechanism: Mechanism) -> None:
    with pytest.raises(ValueError, match="Account for it by other means"):
        mean_of(VECTORS, mechanism=mechanism)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon=0.0 was given"),
        ({"epsilon": -1.0}, ValueError, "epsilon=-1.0 was given"),
        ({"epsilon": NAN}, ValueError, "epsilon=nan was given"),
        ({"epsilon": INF}, ValueError, "epsilon=inf was given"),
        ({"epsilon": "1"}, TypeError, "epsilon='1' was given"),
        ({"epsilon": True}, TypeError, "epsilon=True was given"),
        ({"delta": 1.0}, ValueError, "delta=1.0 was given"),
        ({"delta": -1e-9}, ValueError, "delta=-1e-09 was given"),
        ({"delta": NAN}, ValueError, "delta=nan was given"),
        ({"clip_norm": 0.0}, ValueError, "clip_norm=0.0 was given"),
        ({"clip_norm": -1.0}, ValueError, "clip_norm=-1.0 was given"),
        ({"clip_norm": NAN}, ValueError, "clip_norm=nan was given"),
        ({"clip_norm": INF}, ValueError, "clip_norm=inf was given"),
        ({"clip_norm": 1e-9}, ValueError, "clip_norm=1e-09 was given"),
        ({"sparsity": 0}, ValueError, "sparsity=0 was given"),
        ({"sparsity": D + 1}, ValueError, "whole number from 1 to 60"),
        ({"sparsity": 2.0}, TypeError, "sparsity=2.0 was given"),
        ({"sparsity": True}, TypeError, "sparsity=True was given"),
        ({"neighbours": "other"}, ValueError, "neighbours='other'"),
        ({"mechanism": "gaussian"}, ValueError, "mechanism='gaussian'"),
        ({"mechanism": None}, ValueError, "mechanism=None"),
        ({"seed": 1.5}, TypeError, "seed=1.5"),
        (
            {"delta": 0.0, "mechanism": tsdp.Gaussian()},
            ValueError,
            "never private at delta = 0",
        ),
        (
            {"delta": 0.0, "mechanism": tsdp.Threshold()},
            ValueError,
            "never private at delta = 0",
        ),
        (
            {"delta": 0.0, "mechanism": tsdp.PartitionSelection()},
            ValueError,
            "never private at delta = 0",
        ),
        ({"mechanism": tsdp.Projection()}, ValueError, "Pass sparsity="),
        ({"mechanism": PURE, "delta": 0.0}, ValueError, "Pass sparsity="),
        (
            {"mechanism": tsdp.CompressedSensing()},
            ValueError,
            "Pass sparsity=",
        ),
    ],
)
def test_bad_arguments(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        mean_of(VECTORS, **arguments)


def test_products_in_less_than_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: ["a GPU"]
    )
    with pytest.raises(ValueError, match="TensorFloat-32"):
        mean_of(VECTORS)


SLICES = tf.IndexedSlices


@pytest.mark.parametrize(
    ("vectors", "error", "words"),
    [
        (np.zeros([0, 5]), ValueError, "no mean of nothing"),
        (np.zeros([5, 0]), ValueError, "no mean of nothing"),
        (np.zeros(5), ValueError, r"shape \(5,\); expected \[n, d\]"),
        (np.zeros([2, 3, 4]), ValueError, r"expected \[n, d\]"),
        ([[1.0], [1.0, 2.0]], TypeError, "the same length"),
        ([["a"]], TypeError, "expected real numbers"),
        (np.ones([2, 2], bool), TypeError, "expected real numbers"),
        (np.ones([2, 2], complex), TypeError, "expected real numbers"),
        (None, TypeError, "cannot be made a tensor"),
        (
            tf.SparseTensor(np.zeros([0, 2]), np.zeros([0]), [0, 5]),
            ValueError,
            "no mean of nothing",
        ),
        (
            tf.SparseTensor(np.zeros([0, 1]), np.zeros([0]), [5]),
            ValueError,
            r"expected \[n, d\]",
        ),
        (SLICES(ROWS, IDS), ValueError, "without a dense_shape"),
        (SLICES(ROWS, IDS, [0, K]), ValueError, "no mean of nothing"),
        (SLICES(ROWS[:0], IDS[:0], [D, K]), ValueError, "no mean of nothing"),
        (SLICES(ROWS, IDS, [D, K + 1]), ValueError, "and dense_shape"),
        (SLICES(ROWS, IDS[:, :2], [D, K]), ValueError, "filled up with rows"),
        (SLICES(ROWS[:, 0], IDS, [D, K]), ValueError, r"\[n, s, k\]"),
        (SLICES(ROWS, IDS.astype("f4"), [D, K]), TypeError, "whole numbers"),
    ],
    ids=range(18),
)
def test_bad_vectors(vectors: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mean_of(vectors)


def test_a_large_delta_warns_where_it_is_given() -> None:
    with pytest.warns(tsdp.PrivacyWarning, match="publishing one") as record:
        tsdp.private_mean(VECTORS, epsilon=1.0, delta=0.1, clip_norm=1.0)
    assert record[0].filename == __file__


def test_traced_calls_are_refused() -> None:
    with pytest.raises(ValueError, match=r"outside of tf\.function"):
        tf.function(lambda: mean_of(VECTORS).value)()
