"""Uniform integers, subsets and permutations are exactly uniform."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from sampling_claims import refuted

from tf_sparse_dp.sampling.draws import Draws, checked_seed, fresh_draws

pytestmark = [pytest.mark.once, pytest.mark.lane]


@pytest.fixture
def draws() -> Draws:
    return next(fresh_draws(seed=1))


def _refuted_as_uniform(outcomes: list, support: list) -> list[str]:
    assert set(outcomes) <= set(support)
    counts = Counter(outcomes)
    names = {str(outcome): counts[outcome] for outcome in support}
    p = 1 / len(support)
    return refuted(names, len(outcomes), dict.fromkeys(names, p))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 6])
def test_every_subset_is_equally_likely(draws, size):
    """False failure: 1e-6. Sizes above 3 go by the complement."""
    support = list(itertools.combinations(range(6), size))
    drawn = [tuple(draws.subset(6, size).tolist()) for _ in range(4000)]
    assert not _refuted_as_uniform(drawn, support)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
def test_every_subset_of_each_population_is_equally_likely(draws, size):
    """False failure: 1e-6 for each population."""
    populations = np.tile([4, 5, 6], 3000)
    chosen = draws.subsets(populations, size)
    assert chosen.shape == (populations.size, size)
    for population in (4, 5, 6):
        support = list(itertools.combinations(range(population), size))
        rows = np.sort(chosen[populations == population], axis=1)
        drawn = [tuple(row) for row in rows.tolist()]
        assert not _refuted_as_uniform(drawn, support)


def test_subsets_of_rows_are_independent(draws):
    """Pairs of rows that are drawn together. False failure: 1e-6."""
    chosen = np.sort(draws.subsets(np.full(6000, 4), 2), axis=1).reshape(-1, 4)
    pairs = list(itertools.combinations(range(4), 2))
    support = [(*a, *b) for a in pairs for b in pairs]
    drawn = [tuple(row) for row in chosen.tolist()]
    assert not _refuted_as_uniform(drawn, support)


def test_integers_below_bounds_of_their_own_are_uniform(draws):
    """False failure: 1e-6 for each bound."""
    bounds = np.tile([1, 2, 3, 7], 3000)
    drawn = draws.below_each(bounds)
    for bound in (1, 2, 3, 7):
        some = drawn[bounds == bound].tolist()
        assert not _refuted_as_uniform(some, list(range(bound)))


def test_permutations_of_rows_are_uniform_and_independent(draws):
    """False failure: 1e-6."""
    orders = list(itertools.permutations(range(3)))
    support = [(*a, *b) for a in orders for b in orders]
    rows = draws.permutations(8000, 3).reshape(-1, 6).tolist()
    assert not _refuted_as_uniform([tuple(row) for row in rows], support)
    assert draws.permutations(0, 3).shape == (0, 3)


def test_subset_by_cutting_sorted_draws_is_rejected(draws):
    """The tempting shortcut, drawing a surplus and cutting it, is biased."""
    support = list(itertools.combinations(range(6), 2))
    surplus = [np.unique(draws.indices(6, 6))[:2] for _ in range(4000)]
    drawn = [tuple(s.tolist()) for s in surplus if s.size == 2]
    assert _refuted_as_uniform(drawn, support)


def test_every_permutation_is_equally_likely(draws):
    """False failure: 1e-6."""
    support = list(itertools.permutations(range(4)))
    drawn = [tuple(draws.permutation(4).tolist()) for _ in range(6000)]
    assert not _refuted_as_uniform(drawn, support)


def test_permutation_by_naive_swaps_is_rejected(draws):
    """Swapping each place with any place favours some orders."""

    def naive() -> tuple[int, ...]:
        order = list(range(4))
        for i, j in enumerate(draws.indices(4, 4)):
            order[i], order[j] = order[j], order[i]
        return tuple(order)

    support = list(itertools.permutations(range(4)))
    assert _refuted_as_uniform([naive() for _ in range(6000)], support)


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 8])
def test_integers_are_uniform(draws, bound):
    """False failure: 1e-6, twice."""
    support = list(range(bound))
    assert not _refuted_as_uniform(draws.indices(bound, 5000).tolist(), support)
    many = [draws.below(bound) for _ in range(5000)]
    assert not _refuted_as_uniform(many, support)


def _scripted(*numbers: int, width: int = 8) -> Draws:
    """Draws that see the given numbers, in turn, as their random bytes."""
    script = b"".join(number.to_bytes(width, "little") for number in numbers)
    place = iter(range(0, len(script) + 1, width))

    def random_bytes(count: int) -> bytes:
        start = next(place)
        for _ in range(count // width - 1):
            next(place)
        return script[start : start + count]

    return Draws(random_bytes)


def test_words_that_would_bias_the_remainder_are_drawn_again():
    # 2^64 = 1 mod 3: the last word would make 0 likelier than 1 and 2.
    draws = _scripted(2**64 - 1, 5, 2**64 - 1, 7)
    assert draws.indices(3, 2).tolist() == [1, 2]


def test_equal_words_do_not_order_a_permutation():
    assert _scripted(4, 4, 9, 3).permutation(2).tolist() == [1, 0]


def test_large_integers_are_drawn_again_when_out_of_range():
    assert _scripted(255, 6, width=1).below(130) == 6


def test_subset_of_a_large_population_is_sorted_distinct_and_in_range(draws):
    drawn = draws.subset(10**12, 5000)
    assert drawn.size == 5000
    assert (np.diff(drawn) > 0).all()
    assert drawn[0] >= 0
    assert drawn[-1] < 10**12
    # All 5000 in one half: probability 2^-4999.
    assert drawn[0] < 5 * 10**11 < drawn[-1]


def test_unseeded_draws_never_repeat():
    first, second = itertools.islice(fresh_draws(None), 2)
    # Equal with probability 2^-128.
    assert first.below(2**128) != second.below(2**128)


def test_seeded_passes_differ_and_repeat():
    passes = [d.below(2**128) for d in itertools.islice(fresh_draws(3), 3)]
    again = [d.below(2**128) for d in itertools.islice(fresh_draws(3), 3)]
    other = next(fresh_draws(4)).below(2**128)
    assert passes == again
    assert len({*passes, other}) == 4


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_bad_seed(seed):
    with pytest.raises((TypeError, ValueError), match="seed is"):
        checked_seed(seed)
