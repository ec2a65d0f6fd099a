"""Uniform draws, exact and from a cryptographic source.

Who was in a batch is as secret as the noise: whoever can replay the draws has
no amplification to reckon with. Everything here is therefore built on random
bytes alone, and those come from the operating system. Rounding never enters:
integers are drawn by rejection, so each outcome has exactly its probability.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tf_sparse_dp.sampling.counts import whole_number

_LARGEST_WORD = np.uint64(2**64 - 1)


class Draws:
    """Uniform integers, subsets and permutations from a source of bytes.

    Args:
      random_bytes: Returns as many independent uniform bytes as it is asked
        for. The operating system's generator unless told otherwise.

    Example:
      >>> sorted(Draws().permutation(4).tolist())
      [0, 1, 2, 3]
    """

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom):
        self._random_bytes = random_bytes

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound), of any size."""
        bits = (bound - 1).bit_length()
        size = -(-bits // 8)
        while True:
            drawn = int.from_bytes(self._random_bytes(size), "little")
            drawn &= (1 << bits) - 1
            if drawn < bound:
                return drawn

    def indices(self, bound: int, count: int) -> np.ndarray:
        """`count` independent uniform integers in [0, bound)."""
        return self.below_each(np.full(count, bound))

    def below_each(self, bounds: np.ndarray) -> np.ndarray:
        """Independent uniform integers, the j-th in [0, bounds[j])."""
        bounds = bounds.astype(np.uint64)
        # Words at or above the last multiple of the bound would favour small
        # remainders; there are 2^64 mod bound of them.
        one = np.uint64(1)
        fair = _LARGEST_WORD - (_LARGEST_WORD % bounds + one) % bounds
        words = self._words(bounds.size)
        while (unfair := np.flatnonzero(words > fair)).size:
            words[unfair] = self._words(unfair.size)
        return (words % bounds).astype(np.int64)

    def subset(self, population: int, size: int) -> np.ndarray:
        """A uniform subset of range(population), sorted, in O(size).

        Which values are kept depends only on which draws are equal, never on
        what they are; so every subset of that size is equally likely.
        """
        if 2 * size > population:
            # The complement is smaller, and as uniform. Drawing the subset
            # itself would wait long for the last few values.
            kept = np.ones(population, bool)
            kept[self.subset(population, population - size)] = False
            return np.flatnonzero(kept)
        chosen = np.unique(self.indices(population, size))
        while chosen.size < size:
            more = self.indices(population, size - chosen.size)
            chosen = np.union1d(chosen, more)
        return chosen

    def subsets(self, populations: np.ndarray, size: int) -> np.ndarray:
        """One uniform subset of `size` numbers below each population.

        Floyd's algorithm: after round i, what was chosen is a uniform subset of
        i + 1 numbers up to `last`, which takes part only from then on.

        Args:
          populations: Vector of integers, each at least `size`.
          size: How many to choose, without replacement.

        Returns:
          [populations, size]; the order within a row is not uniform.

        Reference: Bentley and Floyd, "A Sample of Brilliance" (1987).
        """
        chosen = np.zeros((populations.size, size), np.int64)
        for i in range(size):
            last = populations - size + i
            drawn = self.below_each(last + 1)
            again = (chosen[:, :i] == drawn[:, None]).any(1)
            chosen[:, i] = np.where(again, last, drawn)
        return chosen

    def permutation(self, size: int) -> np.ndarray:
        """A uniform permutation of range(size)."""
        return self.permutations(1, size)[0]

    def permutations(self, count: int, size: int) -> np.ndarray:
        """Independent uniform permutations: the ranks of random words."""
        while True:
            words = self._words(count * size).reshape(count, size)
            order = np.argsort(words, axis=1)
            # Given that all words differ, every order is equally likely.
            ranked = np.take_along_axis(words, order, axis=1)
            if (np.diff(ranked, axis=1) > 0).all():
                return order

    def _words(self, count: int) -> np.ndarray:
        words = np.frombuffer(self._random_bytes(8 * count), np.uint64)
        return words.copy()


def fresh_draws(seed: int | None) -> Iterator[Draws]:
    """Yields one `Draws` for each pass over a data set, never the same twice.

    Args:
      seed: None for the operating system's entropy. A number makes pass i a
        function of (seed, i); for tests only, since nothing is secret then.
    """
    if seed is None:
        return itertools.repeat(Draws())
    return map(_seeded_draws, itertools.repeat(seed), itertools.count())


def checked_seed(seed: Any) -> int | None:
    """Returns `seed` as None or a number of at least 0."""
    return None if seed is None else whole_number("seed", seed, at_least=0)


def _seeded_draws(seed: int, iteration: int) -> Draws:
    sequence = np.random.SeedSequence((seed, iteration))
    return Draws(np.random.Generator(np.random.Philox(sequence)).bytes)
