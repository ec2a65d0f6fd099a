"""A filter that decides inside a compiled step.

`RenyiFilter` runs in Python, as does `BiasReducedFilter`. A compiled step whose
events are only known while it runs (batches of random size, noise that changes)
needs one that adds up and compares there, and refuses the very step that the
budget does not pay for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf

from tf_sparse_dp.accounting.events import Noise
from tf_sparse_dp.accounting.filters.additive import AdditiveFilter
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter
from tf_sparse_dp.local_variable import local_variable
from tf_sparse_dp.optimizers.graph_divergences import step_divergence

PARTS = 2**50
"""How many parts there are in a nat of divergence, and in all charges."""

# More than any budget, and small enough that two of them fit int64.
_BEYOND = 2**61
_ROUND_UP = 1 + 2.0**-48


class GraphFilter:
    r"""What a run has spent, counted in small parts, and whether more is left.

    A step costs a divergence for every order α, and a charge of δ. It may be
    taken if, with it, some order stays within its budget, and the charges
    within theirs:

    .. math:: \exists \alpha: \textstyle\sum_t \lceil 2^{50} \rho_{t,\alpha}
      \rceil \le 2^{50} B_\alpha, \quad
      \sum_t \lceil 2^{50} c_t / \delta' \rceil \le 2^{50}

    with B_α and δ' the `budgets` and `event_delta` of the `RenyiFilter`, which
    has the proof that all steps taken are then within (ε, δ). A filter that
    `decides_late` has sizes of its own in the place of divergences, and its
    sums leave out the step itself and the one before it, as its proof allows.

    **Guarantee**: every cost is rounded up once, to a whole number of parts;
    from there on all is exact. No order of summation, device or compiler
    changes a decision, and a step for which the exact sum of the given costs
    does not pay is never taken. Decisions depend on costs only, which are
    public. A cost that is negative or not a number, or an index that is not in
    a table, is beyond every budget.

    The sums are of this process, and never go back. What is saved with a model
    is its ledger, from which they come again.

    Args:
      source: The filter whose budgets are kept. What it has spent by now counts
        as spent; what is spent here it has to be told (`StepRecord`).

    Raises:
      ValueError: A budget is 1024 or more.

    Example:
      >>> renyi = RenyiFilter(epsilon=2.0, delta=1e-6, orders=[16, 24])
      >>> budget = GraphFilter(renyi)
      >>> for _ in range(4):
      ...     cost = budget.step_cost(0.1, 1.7)
      ...     taken = budget.decide(cost)
      ...     budget.spend(cost, taken)
      ...     print(bool(taken), round(budget.remaining(), 3))
      True 0.706
      True 0.412
      True 0.118
      False 0.118
    """

    def __init__(self, source: AdditiveFilter):
        self._source = source
        self._orders: tuple[int, ...] = ()
        if isinstance(source, RenyiFilter):
            self._orders = tuple(int(order) for order in source.orders)
        self._event_delta = source.event_delta
        self._price = math.inf
        if source.epsilon < 700:
            self._price = (1 + math.exp(source.epsilon)) * _ROUND_UP
        if not np.all(source.budgets < 1024):
            raise ValueError(
                f"The filter has the budgets {source.budgets}, expected "
                "divergences below 1024, for what is beyond is no privacy. "
                "Make a filter with a smaller epsilon."
            )
        # Powers of two change no digit: the products are exact. The filter
        # adds up in floats, and must find paid for what is paid for here.
        whole = np.append(np.maximum(source.budgets, 0.0), 1.0) * PARTS
        self._limits = np.floor(whole * (1 - 2.0**-41)).astype(np.int64)
        self._parts = local_variable(np.zeros_like(self._limits), name="spent")
        # Without the last step; kept where decisions look at that.
        self._but_last: tf.Variable | None = None
        if source.decides_late:
            self._but_last = local_variable(
                np.zeros_like(self._limits), name="spent_but_last"
            )
        self.take_in()

    @property
    def orders(self) -> tuple[int, ...]:
        """Those of the divergences."""
        return self._orders

    # Costs, in parts: int64, the orders and then the charge on the last axis.

    def cost(self, divergences: Any, charge: Any = 0.0) -> tf.Tensor:
        """What an event costs, from float64 tensors that are upper bounds.

        Args:
          divergences: With the orders on the last axis.
          charge: What the event takes of δ', without that axis.
        """
        divergences = tf.convert_to_tensor(divergences, tf.float64)
        charge = tf.convert_to_tensor(charge, tf.float64)
        # Zero times infinity is no number; nothing costs nothing.
        share = tf.where(charge == 0, charge, charge * self._per_charge())
        shape = tf.concat([tf.shape(divergences)[:-1], [1]], 0)
        share = tf.broadcast_to(share[..., tf.newaxis], shape)
        parts = tf.math.ceil(tf.concat([divergences, share], -1) * PARTS)
        # Whatever is not a number fails this comparison.
        parts = tf.where(parts >= 0, tf.minimum(parts, _BEYOND), _BEYOND)
        return tf.cast(parts, tf.int64)

    def step_cost(
        self,
        sampling_probability: Any,
        noise_multiplier: Any,
        failure_probability: Any = 0.0,
        noise: Noise = "gaussian",
    ) -> tf.Tensor:
        """What a step costs whose facts are only known when it is taken.

        Args:
          sampling_probability: A float64 tensor; None without sampling.
          noise_multiplier: A float64 tensor.
          failure_probability: A float64 tensor; see `FailingDpEvent`.
          noise: "gaussian" or "laplace".

        Raises:
          ValueError: The filter is for replaced units.
        """
        replace_one = dp_accounting.NeighboringRelation.REPLACE_ONE
        if self._source.neighboring_relation is replace_one:
            raise ValueError(
                "The filter is for REPLACE_ONE, under which a clipped sum "
                "changes by twice the clip norm; expected ADD_OR_REMOVE_ONE, "
                "or REPLACE_SPECIAL for EpochSampling, or costs from a table."
            )
        divergences = step_divergence(
            sampling_probability, noise_multiplier, self._orders, noise
        )
        return self.cost(divergences, self._charge(failure_probability))

    def table(self, events: Sequence[dp_accounting.DpEvent]) -> np.ndarray:
        """Costs of events that are known beforehand, one in each row.

        A step that looks its cost up needs no floating-point numbers; see
        `look_up`.

        Raises:
          UnsupportedEventError: The filter does not know what one costs.
        """
        with tf.init_scope():
            costs = [self.cost(*self._source.cost(event)) for event in events]
            return np.stack([cost.numpy() for cost in costs])

    @staticmethod
    def look_up(table: np.ndarray, index: Any) -> tf.Tensor:
        """The cost of one event of a table."""
        known = (index >= 0) & (index < len(table))
        # Devices differ in what they read outside of a table.
        found = tf.gather(
            tf.constant(table), tf.clip_by_value(index, 0, len(table) - 1)
        )
        return tf.where(known, found, tf.constant(_BEYOND, tf.int64))

    def _charge(self, failure: Any) -> tf.Tensor:
        failure = tf.convert_to_tensor(failure, tf.float64)
        return tf.where(failure == 0, failure, failure * self._price)

    def _per_charge(self) -> float:
        """At least 1 / event_delta, with room for rounding a product."""
        if not self._event_delta:
            return math.inf
        return 1 / self._event_delta * _ROUND_UP

    # In the step.

    def decide(self, cost: tf.Tensor) -> tf.Tensor:
        """Whether a step of this cost may be taken; a bool tensor."""
        if self._but_last is not None:
            known = tf.reduce_all(cost < _BEYOND)
            return known & self.affords(tf.convert_to_tensor(self._but_last))
        return self.affords(added(tf.convert_to_tensor(self._parts), cost))

    def affords(self, parts: tf.Tensor) -> tf.Tensor:
        """Whether sums of costs fit some order's budget, and the charges'."""
        within = parts <= tf.constant(self._limits, tf.int64)
        return tf.reduce_any(within[..., :-1], -1) & within[..., -1]

    def spend(self, cost: tf.Tensor, taken: Any) -> None:
        """Adds the cost of a step that was `taken`; leaves it out if not."""
        spent = tf.convert_to_tensor(self._parts)
        if self._but_last is not None:
            before = tf.convert_to_tensor(self._but_last)
            self._but_last.assign(tf.where(taken, spent, before))
        self._parts.assign(tf.where(taken, added(spent, cost), spent))

    # In Python.

    def spent(self) -> np.ndarray:
        """Divergences spent at the orders, and the charges."""
        parts = self._parts.numpy()
        spent = parts / PARTS
        spent[-1] *= self._event_delta
        return np.where(parts >= _BEYOND, np.inf, spent)

    def remaining(self) -> float:
        """The part of the budget that is left, from 1.0 down to 0.0."""
        left = 1 - self._parts.numpy() / np.maximum(self._limits, 1)
        left[:-1][self._limits[:-1] == 0] = 0.0
        return float(np.clip(min(left[:-1].max(), left[-1]), 0.0, 1.0))

    def left(self, cost: np.ndarray) -> int:
        """How many more steps of this cost, a row of a `table`, fit."""
        room = self._limits - self._parts.numpy()
        if self._but_last is None:
            return max(0, self._times(cost, room))
        if self._times(cost, self._limits - self._but_last.numpy()) < 0:
            return 0
        # One step more, if the sums are over; else all that fit, and two.
        return min(self._times(cost, room), _BEYOND) + 2

    @staticmethod
    def _times(cost: np.ndarray, room: np.ndarray) -> int:
        """How often a cost fits; -1 if less than nothing is left."""
        fits = np.floor_divide(np.maximum(room, -1), np.maximum(cost, 1))
        fits = np.where((cost == 0) & (room >= 0), np.iinfo(np.int64).max, fits)
        return max(-1, int(min(fits[:-1].max(), fits[-1])))

    def take_in(self) -> None:
        """Counts what the filter has spent by now, if it is more."""
        with tf.init_scope():
            self._raise(self._parts, self._source.get_state())
            if self._but_last is not None:
                self._raise(self._but_last, self._source.get_seen_state())

    def _raise(self, sums: tf.Variable, state: dict[str, Any]) -> None:
        charge = state["delta"] + self._charge(state["failure"])
        spent = self.cost(state["spent"], charge).numpy()
        sums.assign(np.maximum(sums.numpy(), spent))


def added(spent: tf.Tensor, cost: tf.Tensor) -> tf.Tensor:
    """The sum, in parts; what is beyond every budget stays there."""
    return tf.minimum(spent + cost, tf.constant(_BEYOND, tf.int64))
