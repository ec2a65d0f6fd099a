"""Noise and stopping of bias-reduced SGD, for a budget."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple

import dp_accounting
import numpy as np

from tf_sparse_dp.accounting.arguments import checked_real
from tf_sparse_dp.accounting.divergences import Array
from tf_sparse_dp.accounting.events import parts_event
from tf_sparse_dp.accounting.filters.bias_reduced import (
    BiasReducedFilter,
    paper_noise_multiplier,
)
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter

_REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
_ORDERS = (*range(2, 33), *range(34, 65, 2), 72, 80, 96, 112, 128, 192, 256)
_MOST_NOISE = 1e6
_PRECISION = 1e-3


class _Part(NamedTuple):
    source_size: int
    sample_size: int
    uses: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BiasReducedBudget:
    r"""The noise of bias-reduced SGD, and the filter that stops it.

    Steps are those of `BiasReducedSampling`: N is drawn in public with
    p_k = C 2^-k, k = 0, ..., floor(log2 n) - 1; then 2^(N+1) of n examples and,
    independently, one more, and four noisy sums with standard deviation z times
    the clip norm. A filter pays for the N that was drawn.

    **"tight"**: a `RenyiFilter` at one order α, with the cost ρ_k(α) of
    exactly that step. `PrivacyBudget` ends training when the dearest step would
    not be paid for, before N is drawn; so whether a step is taken does not
    depend on its batch. With B the filter's budget, z is the least for which

    .. math:: \frac{B - \max_k \rho_k}{\sum_k p_k \rho_k} \ge T

    at some order, with T = `steps`, and the expected number of steps is at
    least T: when training ends, ρ adds up to more than B - max ρ, and its
    expectation is E[steps] Σ p ρ (Wald's identity, for N is independent of
    whether its step is taken).

    **"paper"**: `BiasReducedFilter`, with the paper's noise and stopping rule
    to the letter: every release is (ε/32, δ/16)-DP. For comparison; the noise
    is many times larger, and the number of steps is what it is.

    **Guarantee**: that of the filter: (ε, δ) for neighbours that differ by one
    replaced example, n being public.

    Args:
      num_examples: n, at least 2.
      epsilon: The budget; at most 13 for "paper".
      delta: The budget.
      accounting: "tight" or "paper".
      steps: T, which the expected number of steps is not below; single runs
        differ a lot from it. For "tight" only; by default n / ln(4/δ), the
        paper's order.

    Raises:
      TypeError, ValueError: An argument is not as described, or there is no
        such noise.

    Example:
      >>> budget = BiasReducedBudget(num_examples=1024, epsilon=1.0, delta=1e-6)
      >>> budget.steps, round(budget.noise_multiplier, 1)
      (68, 14.0)
      >>> paper = BiasReducedBudget(
      ...     num_examples=1024, epsilon=1.0, delta=1e-6, accounting="paper"
      ... )
      >>> round(paper.noise_multiplier, 1)
      371.1
    """

    num_examples: int
    epsilon: float
    delta: float
    accounting: Literal["tight", "paper"] = "tight"
    steps: int | None = None

    def __post_init__(self) -> None:
        checked_real("epsilon", self.epsilon)
        checked_real("delta", self.delta, below=1.0)
        _check_count("num_examples", self.num_examples, 2)
        if self.accounting not in ("tight", "paper"):
            raise ValueError(
                f"accounting is {self.accounting!r}, expected 'tight' or "
                "'paper'."
            )
        if self.accounting == "paper":
            if self.steps is not None:
                raise ValueError(
                    f"steps={self.steps!r} was given with accounting='paper', "
                    "whose noise and rule decide how many there are. Leave it "
                    "out, or use 'tight'."
                )
            budget: PrivacyFilter = BiasReducedFilter(
                epsilon=self.epsilon,
                delta=self.delta,
                num_examples=self.num_examples,
            )
            noise = paper_noise_multiplier(self.epsilon, self.delta)
        else:
            if self.steps is None:
                steps = self.num_examples / math.log(4 / self.delta)
                self._set("steps", max(1, math.ceil(steps)))
            _check_count("steps", self.steps, 1)
            noise, order = self._tight()
            budget = self._renyi((order,))
        self._set("_noise", noise)
        self._set("_filter", budget)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def noise_multiplier(self) -> float:
        """Noise over the clip norm, of each of the four sums."""
        return self._noise  # type: ignore[attr-defined, no-any-return]

    @property
    def filter(self) -> PrivacyFilter:
        """The budget to spend: always the same filter."""
        return self._filter  # type: ignore[attr-defined, no-any-return]

    @property
    def probabilities(self) -> Array:
        """Those of N = 0, 1, ..., floor(log2 n) - 1."""
        weights = 2.0 ** -np.arange(self.num_examples.bit_length() - 1)
        result: Array = weights / weights.sum()
        return result

    def step_events(self) -> list[dp_accounting.DpEvent]:
        """What a step costs for each N."""
        return self._events(self.noise_multiplier)

    def _events(self, noise: float) -> list[dp_accounting.DpEvent]:
        one = _Part(self.num_examples, 1, 1)
        # A replaced example is in the whole batch and in one half: twice.
        return [
            parts_event(
                [_Part(self.num_examples, 2 ** (level + 1), 2), one], noise
            )
            for level in range(len(self.probabilities))
        ]

    def _renyi(self, orders: tuple[int, ...]) -> RenyiFilter:
        return RenyiFilter(
            epsilon=self.epsilon,
            delta=self.delta,
            orders=orders,
            neighboring_relation=_REPLACE_ONE,
        )

    def _tight(self) -> tuple[float, int]:
        """The least noise, to a part in a thousand, and its order."""
        # The budget of an order must not be shared with all the others.
        alone = [self._budget_of(order) for order in _ORDERS]
        orders = tuple(a for a, b in zip(_ORDERS, alone, strict=True) if b > 0)
        if not orders:
            raise ValueError(
                f"There is no noise for epsilon = {self.epsilon} and delta = "
                f"{self.delta}. Give larger ones."
            )
        budgets = np.asarray([b for b in alone if b > 0])
        prices = self._renyi(orders)

        @functools.cache
        def steps(noise: float) -> Array:
            costs = np.stack([prices.cost(e)[0] for e in self._events(noise)])
            with np.errstate(divide="ignore", invalid="ignore"):
                expected = (budgets - costs.max(0)) / (
                    self.probabilities @ costs
                )
            result: Array = np.nan_to_num(expected, nan=-np.inf)
            return result

        enough = 1.0
        while steps(enough).max() < self.steps:
            enough *= 2
            if enough > _MOST_NOISE:
                raise ValueError(
                    f"No noise multiplier up to {_MOST_NOISE:g} allows "
                    f"{self.steps} steps at epsilon = {self.epsilon} and "
                    f"delta = {self.delta}. Take fewer steps."
                )
        few = enough / 2 if enough > 1 else 0.0
        while enough - few > _PRECISION * enough:
            middle = (few + enough) / 2
            if steps(middle).max() < self.steps:
                few = middle
            else:
                enough = middle
        return enough, orders[int(np.argmax(steps(enough)))]

    def _budget_of(self, order: int) -> float:
        try:
            return float(self._renyi((order,)).budgets[0])
        except ValueError:  # This order has none.
            return 0.0


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"{name} is {value!r}, expected an integer of at least {least}."
        )
