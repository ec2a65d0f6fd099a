"""The data sets of the lower bounds are what their proofs need."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import sparse

from tf_sparse_dp.theory import hard_instances, rates

pytestmark = [pytest.mark.once]

PURE = (1.0, 0.0)
APPROXIMATE = (0.5, 1e-8)


def problems(rows: sparse.csr_matrix, s: int) -> list[str]:
    """What keeps rows from being s-sparse vectors of norm 1 at most."""
    found = []
    if (np.diff(rows.indptr) > s).any():
        found.append("not sparse")
    if (np.asarray(rows.power(2).sum(axis=1)) > 1).any():
        found.append("too long")
    return found


def least_distance(rows: sparse.csr_matrix) -> float:
    dense = rows.toarray()
    gaps = np.linalg.norm(dense[:, None] - dense[None], axis=2)
    return gaps[~np.eye(len(dense), dtype=bool)].min()


def outside_of_blocks(hard: hard_instances.HardData) -> int:
    """Entries that are not on the diagonal of blocks."""
    entries = hard.rows.tocoo()
    at_row = entries.row // hard.block_rows
    at_column = entries.col // hard.block_columns
    on_diagonal = (at_row == at_column) & (at_row < hard.blocks)
    return int((~on_diagonal).sum())


@pytest.mark.parametrize(("d", "s"), [(12, 1), (30, 3), (40, 8), (200, 16)])
def test_packings_are_sparse_and_far_apart(d, s) -> None:
    promised = hard_instances.log_packing_size(d, s)
    assert promised >= s / 2 * math.log(d / s - 1 / 2)
    size = min(60, math.floor(math.exp(promised)))
    packing = hard_instances.sparse_packing(d, s, size, seed=1)
    assert packing.shape == (size, d) and packing.has_sorted_indices
    assert not problems(packing, s)
    assert least_distance(packing) > hard_instances.SEPARATION * (1 - 1e-9)


def test_random_vectors_are_no_packing() -> None:
    """Without the rejection two of them would be too close."""
    random = np.random.default_rng(0)
    supports = [random.choice(12, 8, replace=False) for _ in range(40)]
    rows = hard_instances._from_supports(np.array(supports), 12)
    assert least_distance(rows) < hard_instances.SEPARATION


def test_greedy_bound_is_no_promise_too_much() -> None:
    """In few dimensions a greedy packing of all vectors can be made."""
    for d, s in ((8, 4), (9, 4), (12, 2), (10, 5)):
        size = math.floor(math.exp(hard_instances.log_packing_size(d, s)))
        for seed in range(20):  # Never stuck.
            hard_instances.sparse_packing(d, s, size, seed=seed)


@pytest.mark.parametrize("privacy", [PURE, APPROXIMATE])
@pytest.mark.parametrize(
    ("n", "d", "s"),
    [(5, 1000, 4), (300, 1000, 4), (300, 5000, 9), (20_000, 64, 2)],
)
def test_blocks(privacy, n, d, s) -> None:
    hard = hard_instances.block_data(n, d, s, *privacy, seed=3)
    assert hard.rows.shape == (n, d) and hard.rows.dtype == np.float64
    assert not problems(hard.rows, s)
    assert outside_of_blocks(hard) == 0
    used = hard.blocks * hard.block_rows
    entries = np.diff(hard.rows.indptr)
    assert (entries[:used] == s).all() and not entries[used:].any()
    assert hard.blocks * hard.block_columns <= d
    bound = rates.mean_lower(
        n=n, d=d, s=s, epsilon=privacy[0], delta=privacy[1]
    )
    if privacy[1]:
        assert hard.error == bound.value and not hard.proven
    else:
        # With its constants the proof gives a fixed part of the rate.
        assert bound.value / 60 < hard.error < bound.value
        assert hard.probability is not None and hard.probability > 0.1


def test_wrong_variants_are_caught() -> None:
    hard = hard_instances.block_data(
        300, 1000, 4, 1.0, block_columns=100, seed=3
    )
    assert hard.blocks == 10
    assert problems(hard.rows * 1.01, 4) == ["too long"]
    assert problems(hard.rows, 3) == ["not sparse"]
    shifted = sparse.csr_matrix(
        (hard.rows.data, hard.rows.indices + 50, hard.rows.indptr), (300, 1050)
    )
    assert outside_of_blocks(dataclasses.replace(hard, rows=shifted)) > 0


def test_pure_blocks_are_copies_and_few_enough() -> None:
    hard = hard_instances.block_data(500, 2000, 4, 1.0, seed=0)
    dense = hard.rows.toarray()
    for block in range(hard.blocks):
        rows = dense[block * hard.block_rows :][: hard.block_rows]
        assert (rows == rows[0]).all()
    # e^(-epsilon n0) > 2/p is what the proof needs, and one more is too many.
    size = hard_instances.log_packing_size(hard.block_columns, 4)
    assert hard.block_rows < size - math.log(2) <= hard.block_rows + 1


def test_supports_are_uniform() -> None:
    """Or an algorithm could guess: every coordinate is drawn equally often."""
    counts = np.zeros(8)
    for seed in range(2000):
        hard = hard_instances.packing_data(3, 8, 2, 0.2, seed=seed)
        counts[hard.rows.indices[:2]] += 1
    # Each is binomial with mean 500 and deviation 19.4: six deviations fail
    # with probability below 2e-8.
    assert (abs(counts - 500) < 117).all()


def test_signs_have_random_means() -> None:
    hard = hard_instances.block_data(2000, 4000, 4, 0.02, 1e-8, seed=0)
    dense = hard.rows.toarray()
    assert set(np.unique(dense)) == {-0.5, 0.0, 0.5}
    first = dense[: hard.block_rows, :4].mean(axis=0) / 0.5
    # Independent fair signs would have means near 0.
    assert np.abs(first).max() > 6 / math.sqrt(hard.block_rows)


def test_an_algorithm_that_is_not_private_is_below_the_bound() -> None:
    """And one that publishes zero is not, so the bound says something."""
    hard = hard_instances.block_data(200, 3000, 6, 1.0, seed=0)
    mean = np.asarray(hard.rows.mean(axis=0)).ravel()
    assert np.linalg.norm(mean) > hard.error > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 10, 6, 1.0), "at most d/2"),
        ((10, 20, 2, 50.0), "expected less"),
        ((10, 20, 2, 50.0, 1e-6), "not even one row"),
        ((0, 20, 2, 1.0), "n=0"),
    ],
)
def test_refusals(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        hard_instances.block_data(*arguments)


def test_more_refusals() -> None:
    with pytest.raises(ValueError, match="sure to exist"):
        hard_instances.sparse_packing(10, 2, 10**6)
    with pytest.raises(ValueError, match="from 2s"):
        hard_instances.block_data(10, 20, 2, 0.1, block_columns=3)
    with pytest.raises(ValueError, match="block_columns"):
        hard_instances.block_data(10, 20, 2, 0.1, 1e-6, block_columns=4)
    with pytest.raises(ValueError, match="fit into"):
        hard_instances.padded_blocks([sparse.eye(3, format="csr")], 2, 9)
