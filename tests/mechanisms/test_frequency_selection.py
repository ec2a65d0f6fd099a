"""FrequencySelection: noise on rows that were chosen once, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from tests.mechanisms.test_gaussian import WAYS
from tests.noise_claims import (
    ENOUGH,
    UNSEEDED,
    assert_stddev,
    distribution_refuted,
    independence_refuted,
)
from tf_sparse_dp.mechanisms import FrequencySelection
from tf_sparse_dp.mechanisms.interface import PublicFacts, Variable
from tf_sparse_dp.mechanisms.private_counts import (
    noisy_counts,
    unit_counts,
)

pytestmark = pytest.mark.once

KEY = tf.constant([5, 6], tf.int64)
WIDTH, CHOSEN = 4, np.arange(3, 3 + 2 * ENOUGH, 2)  # Half of them are touched.
ROWS = 3 * ENOUGH
STDDEV = 1.5


def facts(*tables: Variable, stddev: float = STDDEV) -> PublicFacts:
    return PublicFacts(
        variables=tables,
        clip_norm=1.0,
        noise_multiplier=stddev,
        expected_batch_size=10.0,
        failure_probability=2.0**-100,
    )


def table(name: str = "items/embeddings", rows: int = ROWS) -> Variable:
    return Variable(shape=(rows, WIDTH), sparse=True, name=name)


def slices(ids: Any, rows: int = ROWS) -> tf.IndexedSlices:
    ids = np.asarray(ids, np.int32)
    values = np.linspace(-5, 5, len(ids) * WIDTH, dtype="float32")
    return tf.IndexedSlices(
        tf.constant(values.reshape(-1, WIDTH)),
        tf.constant(ids),
        tf.constant([rows, WIDTH], tf.int64),
    )


MECHANISM = FrequencySelection(rows={"items": CHOSEN})


def release(way: Callable[..., Any], total: tf.IndexedSlices) -> Any:
    run = way(lambda key: MECHANISM.release([total], key, facts(table()))[0])
    return run(KEY)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_dense_definition_on_the_chosen_rows(
    way: Callable[..., Any],
) -> None:
    """Rows that are chosen or not, once or twice, in no order."""
    touched = np.random.default_rng(0).permutation(ROWS)[: ROWS // 2]
    total = slices(np.concatenate([touched, touched[: ROWS // 8]]))
    found = release(way, total)
    np.testing.assert_array_equal(found.indices, CHOSEN)
    exact = np.zeros([ROWS, WIDTH])
    np.add.at(exact, total.indices.numpy(), total.values.numpy())
    noise = found.values.numpy() - exact[CHOSEN]
    assert_stddev(noise, STDDEV)
    assert not distribution_refuted(noise / STDDEV)
    met = np.isin(CHOSEN, touched)
    assert_stddev(noise[met], STDDEV)
    assert_stddev(noise[~met], STDDEV)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_chosen_has_no_influence(way: Callable[..., Any]) -> None:
    """Ids that the table does not have are among them."""
    others = [0, 1, 2, 4, ROWS - 1, ROWS, 2**31 - 1, -1, -3, -(2**31)]
    nothing, ignored = release(way, slices([])), release(way, slices(others))
    np.testing.assert_array_equal(nothing.indices, ignored.indices)
    np.testing.assert_array_equal(nothing.values, ignored.values)
    one = release(way, slices([*others, 5]))
    moved = (one.values.numpy() != nothing.values.numpy()).any(1)
    np.testing.assert_array_equal(CHOSEN[moved], [5])


def test_tables_have_noise_of_their_own() -> None:
    mechanism = FrequencySelection(rows={"a": range(ENOUGH), "b": [1]})
    one, two, bias = mechanism.release(
        [slices([]), slices([]), tf.zeros([ENOUGH, WIDTH])],
        KEY,
        facts(table("a"), table("b"), Variable(shape=(ENOUGH, WIDTH))),
    )
    assert two.values.shape == (1, WIDTH)
    assert not independence_refuted(one.values.numpy(), bias.numpy(), STDDEV)
    assert_stddev(bias.numpy(), STDDEV)


# Which table is which.


@pytest.mark.parametrize(
    "names",
    [
        ["items/embeddings", "users/embeddings:0"],
        ["model/items/embeddings", "users"],
        ["items/embeddings", "items/bias", "tower/users/table"],
    ],
)
def test_names_that_match(names: list[str]) -> None:
    mechanism = FrequencySelection(rows={"items": [1], "users": [2]})
    mechanism.check(facts(*map(table, names), Variable(shape=(3,))))


@pytest.mark.parametrize(
    ("rows", "names", "words"),
    [
        ({"items": [1]}, ["items", "users"], "'users' has 0 entries"),
        ({"item": [1]}, ["items/embeddings"], "has 0 entries"),
        ({"items": [1], "users": [1]}, ["items"], "'users'] is for none"),
        ({"items": [1], "embeddings": [1]}, ["items/embeddings"], "2 entries"),
        ({"items": [1, ROWS]}, ["items"], f"has {ROWS} rows"),
    ],
)
def test_names_that_do_not(rows: Any, names: list[str], words: str) -> None:
    mechanism = FrequencySelection(rows=rows)
    with pytest.raises(ValueError, match=words.replace("]", r"\]")):
        mechanism.check(facts(*map(table, names)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"rows": {}},
        {"rows": [1, 2]},
        {"rows": {"a": []}},
        {"rows": {"a": [-1]}},
        {"rows": {"a": [0.5]}},
        {"rows": {"a": [[1]]}},
        {"rows": {"a": [1]}, "spent_epsilon": -1.0},
        {"rows": {"a": [1]}, "spent_epsilon": math.nan},
        {"rows": {"a": [1]}, "spent_delta": 1.0},
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match="expected"):
        FrequencySelection(**arguments)


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "is empty"), ([3, -1], "has the id -1"), ([0.5], "type float64")],
)
def test_what_is_wrong_with_rows_is_said(rows: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"rows\['a'\] .*{words}; expected"):
        FrequencySelection(rows={"a": rows})


@pytest.mark.parametrize(
    ("counts", "top", "words"),
    [
        ([1, 2], 1, "counts is of type list; expected a mapping"),
        ({"a": {3: 5}}, 1, "'a' are of type dict and cannot"),
        ({"a": [[1.0]]}, 1, r"have shape \(1, 1\)"),
        ({"a": [1.0, math.nan]}, 1, "nan at row 1, and not finite at 1 of 2"),
        ({"a": [1.0]}, {"b": 1}, r"for \['b'\] and none for the table 'a'"),
    ],
)
def test_what_is_wrong_with_counts_is_said(
    counts: Any, top: Any, words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        FrequencySelection.from_counts(counts, top=top)


# Which rows are chosen.


def test_from_public_counts() -> None:
    counts = {"a": [3, 9, 9, 1, 9], "b": np.arange(4.0)}
    chosen = FrequencySelection.from_counts(counts, top={"a": 2, "b": 1})
    assert chosen.rows == {"a": (1, 2), "b": (3,)}
    assert chosen.spent_before == (0.0, 0.0)
    assert "without the training data" in chosen.assumptions[0]
    for top in (0, 6, 2.0, {"a": 1}):
        with pytest.raises(ValueError, match="expected a whole number"):
            FrequencySelection.from_counts(counts, top=top)
    with pytest.raises(ValueError, match="finite"):
        FrequencySelection.from_counts({"a": [1.0, math.nan]}, top=1)


LOOKUPS = {
    "a": [[], [0], [1, 1, 1], [0, 1, 2], [3, -1, 99], [2] * 5 + [3], [-5]],
    "b": [[], [1], [0, 0], [0, 1, 0, 1], [0], [1], [0]],
}
SIZES = {"a": 4, "b": 2}


def without(unit: int) -> dict[str, Any]:
    return {n: [*u[:unit], *u[unit + 1 :]] for n, u in LOOKUPS.items()}


def difference(one: dict[str, Any], two: dict[str, Any]) -> float:
    return math.sqrt(sum(np.square(one[n] - two[n]).sum() for n in one))


def test_one_unit_counts_for_at_most_1() -> None:
    whole = unit_counts(LOOKUPS, SIZES)
    for unit in range(1, 7):
        distance = difference(whole, unit_counts(without(unit), SIZES))
        assert 1 - 1e-6 < distance <= 1
    assert difference(whole, unit_counts(without(0), SIZES)) == 0
    # By definition: units 1, 3 and 5 look up 2, 5 and 3 different rows.
    np.testing.assert_allclose(
        whole["b"],
        np.array(
            [2**-0.5 + 5**-0.5 + 2**-0.5 + 1, 2**-0.5 + 5**-0.5 + 3**-0.5]
        ),
        atol=1e-6,
    )


def test_arrays_count_as_lists_do() -> None:
    ids = np.random.default_rng(0).integers(-1, 20, size=(50, 3))
    for array in (ids, ids[:, 0]):
        found = unit_counts({"a": array}, {"a": 19})["a"]
        listed = unit_counts({"a": array.tolist()}, {"a": 19})["a"]
        np.testing.assert_array_equal(found, listed)
        tensor = unit_counts({"a": tf.constant(array)}, {"a": 19})["a"]
        np.testing.assert_array_equal(tensor, listed)
    assert not unit_counts({"a": ids[:0]}, {"a": 19})["a"].any()


def test_a_ragged_tensor_has_a_row_for_each_unit() -> None:
    ragged = {n: tf.ragged.constant(u) for n, u in LOOKUPS.items()}
    deeper = {n: r[:, tf.newaxis] for n, r in ragged.items()}
    expected = unit_counts(LOOKUPS, SIZES)
    assert difference(unit_counts(ragged, SIZES), expected) == 0
    assert difference(unit_counts(deeper, SIZES), expected) == 0


def test_noisy_counts() -> None:
    arguments = {"epsilon": 0.8, "delta": 1e-6}
    stddev = 5.198
    spent = [
        PLDAccountant(value_discretization_interval=1e-4)
        .compose(GaussianDpEvent(stddev * factor))
        .get_delta(0.8)
        for factor in (1.01, 0.99)
    ]
    assert spent[0] < 1e-6 < spent[1]
    one, two = (
        noisy_counts(
            {"a": [[1, 2]], "b": [[0]]},
            table_rows={"a": ENOUGH, "b": ENOUGH},
            **arguments,
        )
        for _ in range(2)
    )
    for noise in (one["a"], one["b"]):
        assert_stddev(noise, stddev, UNSEEDED)
    for other in (one["b"], two["a"]):
        assert not independence_refuted(one["a"], other, stddev, UNSEEDED)


def test_a_private_choice() -> None:
    popular = [7, 70, 700]
    chosen = FrequencySelection.private(
        {"a": np.tile(popular, 2000)},
        table_rows={"a": 1000},
        top=3,
        epsilon=1.0,
        delta=1e-5,
    )
    # 2000 units each, noise of about 3.7: wrong with probability below 1e-300.
    assert chosen.rows == {"a": tuple(popular)}
    assert chosen.spent_before == (1.0, 1e-5)
    assert FrequencySelection(**chosen.get_config()) == chosen
    assert "chosen privately" in chosen.description
    assert "FrequencySelection.private" in chosen.assumptions[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": -1.0}, "epsilon=-1.0 .*finite number above 0"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": math.inf}, "epsilon=inf"),
        ({"delta": 0.0}, "delta=0.0 .*above 0 and below 1"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"top": 0}, "top=0"),
        ({"top": 5}, "top=5"),
        ({"table_rows": {"a": 0}}, r"table_rows\['a'\] is 0"),
        ({"table_rows": {"b": 4}}, "tables"),
        ({"lookups": {"a": [[0.5]]}}, "type float64"),
        ({"lookups": {"a": 3}}, "type int"),
        ({"lookups": {"a": {1, 2}}}, "type set"),
        ({"lookups": {"a": {7: [1], 8: [2]}}}, "type dict"),
        ({"lookups": {"a": np.array(3)}}, "type ndarray"),
        ({"lookups": {"a": tf.sparse.eye(2)}}, "type SparseTensor"),
        ({"lookups": [[1]]}, "type list"),
        ({"lookups": {}, "table_rows": {}}, "at least one"),
    ],
)
def test_private_choices_that_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    arguments = {
        "lookups": {"a": [[1], [2]]},
        "table_rows": {"a": 4},
        "top": 1,
        "epsilon": 1.0,
        "delta": 1e-5,
    } | changes
    with pytest.raises((TypeError, ValueError), match=words) as error:
        FrequencySelection.private(arguments.pop("lookups"), **arguments)
    assert "expected" in str(error.value)


def test_tables_need_the_same_units() -> None:
    with pytest.raises(ValueError, match="one entry for each unit"):
        unit_counts({"a": [[1]], "b": [[1], [2]]}, {"a": 4, "b": 4})
