"""The binomial table agrees with exact arithmetic."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
from sampling_claims import binomial, refuted

from tf_sparse_dp.sampling.batch_sizes import BatchSizes
from tf_sparse_dp.sampling.draws import fresh_draws

pytestmark = pytest.mark.once

CASES = [(1, 1), (2, 1), (10, 3), (10, 10), (400, 100), (900, 1), (900, 899)]


def _tail(n: int, b: int, limit: int, examples: int) -> Fraction:
    """P(Binomial(examples, b/n) > limit), without rounding."""
    favourable = sum(
        math.comb(examples, k) * b**k * (n - b) ** (examples - k)
        for k in range(limit + 1, examples + 1)
    )
    return Fraction(favourable, n**examples)


@pytest.mark.parametrize(("n", "b"), CASES)
def test_overflow_probability_is_a_tight_upper_bound(n, b):
    sizes = BatchSizes(num_examples=n, batch_size=b)
    for limit in {0, b - 1, b, min(n, b + 5), min(n, b + 60), n - 1, n, n + 1}:
        exact = _tail(n, b, limit, examples=n + 1)
        bound = sizes.overflow_probability(limit)
        assert Fraction(bound) >= exact >= _tail(n, b, limit, examples=n)
        assert bound <= float(exact) * (1 + 1e-14) + 1e-42


@pytest.mark.parametrize(("n", "b"), CASES)
@pytest.mark.parametrize("probability", [1e-3, 1e-19])
def test_smallest_limit_is_the_smallest(n, b, probability):
    sizes = BatchSizes(num_examples=n, batch_size=b)
    limit = sizes.smallest_limit(probability)
    assert _tail(n, b, limit, examples=n + 1) <= probability
    assert limit == 0 or _tail(n, b, limit - 1, examples=n + 1) > probability


def test_what_lies_beyond_the_table_is_bounded_not_forgotten():
    sizes = BatchSizes(num_examples=10**9, batch_size=100)
    assert 0 < sizes.overflow_probability(10**6) <= 1e-42
    assert sizes.overflow_probability(10**9) > 0.0
    assert sizes.overflow_probability(10**9 + 1) == 1e-43


@pytest.mark.parametrize(
    ("n", "b", "whole"),
    [(10, 2, True), (5, 5, True), (200, 100, True), (300, 100, False)],
)
def test_only_whole_tables_claim_that_nothing_is_left_out(n, b, whole):
    """Pure guarantees rest on it."""
    sizes = BatchSizes(num_examples=n, batch_size=b)
    assert (sizes.overflow_probability(n + 1) == 0.0) == whole
    if whole and b < n:
        total = sizes._cumulative[-1]
        found = sizes._cumulative[:1]
        found += [b - a for a, b in itertools.pairwise(sizes._cumulative)]
        for k, weight in enumerate(found):
            exact = Fraction(math.comb(n, k) * b**k * (n - b) ** (n - k), n**n)
            assert weight / total == pytest.approx(float(exact), rel=1e-12)


def test_large_batches_agree_with_the_normal_distribution():
    sizes = BatchSizes(num_examples=10**9, batch_size=10**6)
    three_deviations = math.erfc(3 / math.sqrt(2)) / 2
    tail = sizes.overflow_probability(10**6 + 3000)
    assert tail == pytest.approx(three_deviations, rel=0.02)


@pytest.mark.parametrize(("n", "b"), [(1, 1), (2, 1), (10, 3), (50, 20)])
def test_drawn_sizes_have_their_probabilities(n, b):
    """False failure: 1e-6. A probability that is 10 % off is rejected."""
    draws = next(fresh_draws(seed=2))
    sizes = BatchSizes(num_examples=n, batch_size=b)
    counts = Counter(sizes.draw(draws) for _ in range(20_000))
    assert set(counts) <= set(range(n + 1))
    named = {str(k): counts[k] for k in range(n + 1)}

    def claim(q: float) -> dict[str, float]:
        return {str(k): binomial(n, q, k) for k in range(n + 1)}

    assert not refuted(named, 20_000, claim(b / n))
    assert refuted(named, 20_000, claim(0.9 * b / n))
