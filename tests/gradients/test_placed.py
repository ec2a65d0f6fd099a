"""Terms at shared rows are what they would be if each was written out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.gradients.analysis import Analysis
from tf_sparse_dp.gradients.clipping import clip_and_sum
from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    RowFactor,
)
from tf_sparse_dp.gradients.placed import PlacedFactor, added, placed
from tf_sparse_dp.gradients.rules.lookups import are_distinct

pytestmark = [pytest.mark.once]

EXAMPLES, ROWS, WIDTH = 6, 9, 3
# Some ids occur several times, others not at all.
IDS = np.array([4, 0, 4, 7, 2, 4, 0], "int32")


def _normal(*shape: int, seed: int = 0) -> tf.Tensor:
    values = np.random.RandomState(seed).randn(*shape)
    return tf.constant(values.astype("float32"))


def _lookups(per_example: int) -> RowFactor:
    random = np.random.RandomState(5)
    ids = random.randint(0, ROWS, (EXAMPLES, per_example)).astype("int32")
    ids[0] = 4  # Looked up often, and shared.
    ids[1] = 8  # Not shared.
    return RowFactor(
        _normal(EXAMPLES, per_example, WIDTH, seed=6),
        tf.constant(ids),
        (ROWS, WIDTH),
    )


BLOCKS = {
    "one product": lambda: OuterFactor(
        _normal(EXAMPLES, 1, len(IDS)), _normal(EXAMPLES, 1, WIDTH, seed=1)
    ),
    "transposed": lambda: OuterFactor(
        _normal(EXAMPLES, 1, WIDTH, seed=1),
        _normal(EXAMPLES, 1, len(IDS)),
        (("transpose", (1, 0)),),
    ),
    "several products": lambda: OuterFactor(
        _normal(EXAMPLES, 4, len(IDS)), _normal(EXAMPLES, 4, WIDTH, seed=1)
    ),
    "written out": lambda: DenseFactor(_normal(EXAMPLES, len(IDS), WIDTH)),
}


def _factor(block: str, lookups: int) -> PlacedFactor:
    factor = placed(
        BLOCKS[block](), tf.constant(IDS), (ROWS, WIDTH), sparse=True
    )
    if not lookups:
        return factor
    result = added([_lookups(lookups), factor])
    assert isinstance(result, PlacedFactor)
    return result


def _written_out(block: str, lookups: int) -> np.ndarray:
    """[B, ROWS, WIDTH], by loops."""
    terms = np.zeros((EXAMPLES, ROWS, WIDTH))
    values = BLOCKS[block]().per_example().numpy()
    for example in range(EXAMPLES):
        for place, row in enumerate(IDS):
            terms[example, row] += values[example, place]
        if lookups:
            own = _lookups(lookups)
            for place in range(lookups):
                row = own.ids[example, place].numpy()
                terms[example, row] += own.values[example, place].numpy()
    return terms


@pytest.mark.parametrize("lookups", [0, 1, 3, 70])
@pytest.mark.parametrize("block", BLOCKS)
def test_norms_and_sums(block: str, lookups: int) -> None:
    factor = _factor(block, lookups)
    want = _written_out(block, lookups)
    squares = (want**2).sum((1, 2))
    np.testing.assert_allclose(factor.squared_norms(), squares, rtol=1e-5)
    slack = factor.squared_slack().numpy()
    assert (slack > 0).all() and (slack < 1e-2 * squares).all()
    np.testing.assert_allclose(factor.per_example(), want, atol=1e-4)
    weights = np.array([1.0, 0.5, 0.0, 2.0, 0.0, 0.1], "float32")
    total = tf.convert_to_tensor(factor.weighted_sum(tf.constant(weights)))
    np.testing.assert_allclose(
        total, np.einsum("b,brw->rw", weights, want), atol=1e-4
    )
    np.testing.assert_allclose(
        factor.scaled(-3.0).squared_norms(), 9 * squares, rtol=1e-5
    )


@pytest.mark.parametrize("block", BLOCKS)
def test_units_of_two_examples(block: str) -> None:
    valid = np.array([True, True, True, False, False, True])
    want = _written_out(block, 3) * valid[:, None, None]
    want = want.reshape(EXAMPLES // 2, 2, ROWS, WIDTH).sum(1)
    factor = _factor(block, 3).masked(tf.constant(valid)).grouped(2)
    np.testing.assert_allclose(
        factor.squared_norms(), (want**2).sum((1, 2, 3)[:2]), rtol=1e-5
    )


def test_what_cancels_is_not_lost() -> None:
    # A softmax that is sure: at its own row an example has (p - 1) q.
    query = _normal(EXAMPLES, 1, WIDTH)
    sure = np.zeros((EXAMPLES, 1, len(IDS)), "float32")
    sure[:, :, 3] = 1 - 1e-3
    factor = added(
        [
            RowFactor(-query, tf.fill([EXAMPLES, 1], IDS[3]), (ROWS, WIDTH)),
            placed(
                OuterFactor(tf.constant(sure), query),
                tf.constant(IDS),
                (ROWS, WIDTH),
                sparse=True,
            ),
        ]
    )
    want = 1e-3 * np.linalg.norm(query.numpy(), axis=(1, 2))
    got = np.sqrt(factor.squared_norms().numpy())
    np.testing.assert_allclose(got, want, rtol=1e-3)


@pytest.mark.parametrize("lookups", [0, 3])
def test_clipped_sums_hold_the_norm(lookups: int) -> None:
    factor = _factor("one product", lookups)
    one = np.zeros(EXAMPLES, bool)
    one[2] = True
    clipped = clip_and_sum([factor], clip_norm=0.01, valid=tf.constant(one))
    norm = np.linalg.norm(tf.convert_to_tensor(clipped.sums[0]))
    assert 0.0099 < norm <= 0.01 * (1 + 1e-6)


@pytest.mark.parametrize("out_of_range", [-1, ROWS, ROWS + 4])
def test_ids_out_of_range_do_not_lower_norms(out_of_range: int) -> None:
    """XLA clamps what is read and drops what is added."""

    @tf.function(jit_compile=True, autograph=False)
    def squares() -> tuple[tf.Tensor, tf.Tensor]:
        block = _normal(1, ROWS, WIDTH)
        shared = placed(
            DenseFactor(block), tf.range(ROWS), (ROWS, WIDTH), sparse=True
        )
        nearest = min(max(out_of_range, 0), ROWS - 1)
        own = RowFactor(
            -block[:, nearest : nearest + 1],
            tf.constant([[out_of_range]]),
            (ROWS, WIDTH),
        )
        factor = added([shared, own])
        total = tf.convert_to_tensor(factor.weighted_sum(tf.ones([1])))
        return factor.squared_norms()[0], tf.reduce_sum(tf.square(total))

    norm, released = squares()
    assert norm >= released - 1e-4


def test_an_example_that_is_not_finite_spoils_no_other() -> None:
    factor = _factor("one product", 1)
    left = factor.block.left.numpy()  # type: ignore[union-attr]
    left[2] = np.inf
    block = OuterFactor(tf.constant(left), factor.block.right)  # type: ignore[union-attr]
    spoilt = dataclasses.replace(factor, block=block)
    valid = tf.constant(np.arange(EXAMPLES) != 2)
    for given in (spoilt, factor):
        clipped = clip_and_sum([given], clip_norm=1.0, valid=valid)
        total = tf.convert_to_tensor(clipped.sums[0]).numpy()
        assert np.isfinite(total).all()
        if given is spoilt:
            first = total
    np.testing.assert_array_equal(first, total)


def test_a_table_that_is_also_multiplied_stays_two_matrices() -> None:
    tied = OuterFactor(_normal(EXAMPLES, 1, ROWS), _normal(EXAMPLES, 1, WIDTH))
    rows = _lookups(3)
    total = added([tied, rows])
    assert isinstance(total, PlacedFactor)
    assert isinstance(total.block, OuterFactor)
    want = tied.per_example() + rows.per_example()
    np.testing.assert_allclose(
        total.squared_norms(), tf.reduce_sum(want**2, [1, 2]), rtol=1e-5
    )
    assert isinstance(total.weighted_sum(tf.ones([EXAMPLES])), tf.Tensor)


def test_ids_that_are_known_to_be_distinct() -> None:
    ids = tf.constant([4, 0, 7, 2, 8, 3, 5])
    terms = BLOCKS["one product"]()
    rows = _lookups(3)
    squares, slacks = [], []
    for distinct in (False, True):
        factor = placed(
            terms, ids, (ROWS, WIDTH), sparse=True, distinct=distinct
        )
        factor = added([factor, rows])
        squares.append(factor.squared_norms())
        slacks.append(factor.squared_slack())
    np.testing.assert_allclose(squares[0], squares[1], rtol=1e-6)
    np.testing.assert_allclose(slacks[0], slacks[1], rtol=1e-6)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_only_a_constant_without_repeats_is_distinct(
    big: bool, twice: bool
) -> None:
    # Small constants are part of the graph, large ones are captured.
    array = np.arange(1000 if big else 5)
    array[-1] -= twice
    ids = tf.constant(array)
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(batch: tf.Tensor) -> tf.Tensor:
        counted = tf.where(ids < 0, ids + 9, ids)
        tensors = (tf.reshape(counted, [-1]), batch, tf.argsort(ids))
        analysis = Analysis([batch])
        for tensor in tensors:
            found.append(are_distinct(analysis, tensor))
        return batch

    step.get_concrete_function()
    assert found == [not twice, False, False]


def test_ids_that_wrap_around_are_not_taken_for_distinct() -> None:
    ids = tf.constant([-1, 8])  # The same row of nine.
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(batch: tf.Tensor) -> tf.Tensor:
        wrapped = tf.where(ids < 0, ids + 9, ids)
        found.append(are_distinct(Analysis([batch]), wrapped))
        return batch

    step.get_concrete_function()
    assert found == [False]


def test_ids_that_a_choice_repeats_are_not_taken_for_distinct() -> None:
    ids = tf.constant([0, 1])
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(batch: tf.Tensor) -> tf.Tensor:
        repeated = tf.where(ids < 0, tf.zeros([3, 1], tf.int32), ids)
        flat = tf.reshape(repeated, [-1])
        found.append(are_distinct(Analysis([batch]), flat))
        return batch

    step.get_concrete_function()
    assert found == [False]


def test_two_shared_lookups_of_one_table() -> None:
    parts: list[Factor] = [_factor("one product", 1), _factor("written out", 0)]
    total = added(parts)
    want = _written_out("one product", 1) + _written_out("written out", 0)
    np.testing.assert_allclose(
        total.squared_norms(), (want**2).sum((1, 2)), rtol=1e-5
    )
