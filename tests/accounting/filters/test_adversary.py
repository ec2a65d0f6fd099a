"""What an adversary learns who chooses the noise by what was released.

Losses of privacy are simulated. δ is large, so that a simulation can see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting
import numpy as np
import pytest

from tf_sparse_dp import BudgetExhausted, RenyiFilter, ZcdpFilter
from tf_sparse_dp.accounting.filters.additive import AdditiveFilter

pytestmark = [pytest.mark.once]

EPSILON, DELTA = 1.0, 0.05
Gaussian = dp_accounting.GaussianDpEvent


def renyi() -> AdditiveFilter:
    return RenyiFilter(epsilon=EPSILON, delta=DELTA, orders=[4, 6])


def zcdp() -> AdditiveFilter:
    return ZcdpFilter(epsilon=EPSILON, delta=DELTA)


class WithoutDelta(ZcdpFilter):
    """Takes a divergence at some order for an epsilon."""

    def __init__(self) -> None:
        super().__init__(epsilon=EPSILON, delta=DELTA)
        self._budgets = (EPSILON / 2,)


def excess(losses: np.ndarray, epsilon: float | np.ndarray) -> np.ndarray:
    """Whose mean is the hockey-stick divergence, E(1 - e^(ε-L))₊."""
    return -np.expm1(np.minimum(epsilon - losses, 0.0))


def learn(
    make: Callable[[], AdditiveFilter], paths: int, seed: int
) -> np.ndarray:
    """Losses of an adversary who goes on until nothing fits.

    The loss of a Gaussian release with noise multiplier z is normal, with mean
    1/(2z²) and variance 1/z². While it is far below ε the adversary takes all
    that it can; close to ε it takes small steps.
    """
    rng = np.random.default_rng(seed)
    noises = (1.5, 2.5, 4.0, 7.0)
    losses = np.zeros(paths)
    for path in range(paths):
        budget = make()
        place = 0
        while place < len(noises):
            near = abs(losses[path] - EPSILON) < 0.4
            z = noises[max(place, 2 * near)]
            try:
                budget.spend(Gaussian(z))
            except BudgetExhausted:
                place = max(place, 2 * near) + 1
                continue
            losses[path] += rng.normal(0.5 / z**2, 1 / z)
    return losses


@pytest.mark.parametrize("make", [renyi, zcdp])
def test_the_adversary_learns_less_than_the_budget(make) -> None:
    values = excess(learn(make, 5000, seed=1), EPSILON)
    # Five standard deviations: a false failure is one in three million.
    most = values.mean() + 5 * values.std() / math.sqrt(len(values))
    assert most < DELTA
    assert values.mean() > DELTA / 20  # The adversary is not idle.


def test_a_budget_that_forgets_delta_is_caught() -> None:
    values = excess(learn(WithoutDelta, 5000, seed=1), EPSILON)
    least = values.mean() - 5 * values.std() / math.sqrt(len(values))
    assert least > DELTA


def test_composed_epsilon_does_not_hold_after_a_stop() -> None:
    """Whoever stops when the loss is high refutes `get_epsilon`.

    Noise shrinks step by step, so that every step is a new chance. (That the
    filter has long been spent does not matter: its epsilon is asked for.)
    """
    rng = np.random.default_rng(2)
    paths, scales = 100_000, 60
    rhos = 1.35 ** np.arange(scales)
    steps = np.diff(rhos, prepend=0.0)
    budget = zcdp()
    losses = np.zeros(paths)
    stopped = np.full(paths, False)
    learned = np.zeros(paths)
    for step in steps:
        budget.compose(Gaussian(1 / math.sqrt(2 * step)))
        epsilon = budget.get_epsilon(DELTA)
        losses += rng.normal(step, math.sqrt(2 * step), paths)
        now = ~stopped & (losses > epsilon + 2)
        learned[now] = excess(losses[now], epsilon)
        stopped |= now
    learned[~stopped] = excess(losses[~stopped], epsilon)
    assert learned.mean() - 5 * learned.std() / math.sqrt(paths) > DELTA
