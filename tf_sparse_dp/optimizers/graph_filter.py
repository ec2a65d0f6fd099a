"""A Rényi filter that decides inside a compiled step.

`RenyiFilter` runs in Python. A compiled step whose events are only known while
it runs (batches of random size, noise that changes) needs one that adds up and
compares there, and refuses the very step that the budget does not pay for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.errors import PrivacyStateError

PARTS = 2**50
"""How many parts there are in a nat of divergence, and in all charges."""

# More than any budget, and small enough that two of them fit int64.
_BEYOND = 2**61


class GraphFilter:
    r"""What a run has spent, counted in small parts, and whether more is left.

    A step costs a divergence for every order α, and a charge of δ. It may be
    taken if, with it, some order stays within its budget, and the charges
    within theirs:

    .. math:: \exists \alpha: \textstyle\sum_t \lceil 2^{50} \rho_{t,\alpha}
      \rceil \le 2^{50} B_\alpha, \quad
      \sum_t \lceil 2^{50} c_t / B \rceil \le 2^{50}

    with B_α = `budgets` and B = `charge_budget`; `RenyiFilter` has the proof
    that all steps taken are then within (ε, δ).

    **Guarantee**: every cost is rounded up once, to a whole number of parts;
    from there on all is exact. No order of summation, device or compiler
    changes a decision, and a step for which the exact sum of the given costs
    does not pay is never taken. Decisions depend on costs only, which are
    public. A cost that is negative or not a number, or an index that is not in
    a table, is beyond every budget.

    What is saved with the model carries the mark of orders and charge budget:
    a filter with others takes no step on top of it. As with `Spending`, a
    second sum, of this process, is never saved and never goes back.

    Args:
      orders: Of the divergences; integers above 1.
      budgets: The largest divergence of every order, below 1024; one whose
        budget is not above 0 pays for nothing.
      charge_budget: The part of δ for the failures and deltas of events.
      saved: An int64 variable of shape [`size(orders)`], at first all zeros,
        that is saved with the model.

    Example:
      >>> saved = tf.Variable(tf.zeros([GraphFilter.size([2, 8])], tf.int64))
      >>> budget = GraphFilter([2, 8], [0.5, 2.0], 1e-6, saved)
      >>> cost = budget.cost([0.1875, 0.75], 0.0)
      >>> for _ in range(3):
      ...     taken = budget.decide(cost)
      ...     budget.spend(cost, taken)
      ...     print(bool(taken), budget.spent())
      True [0.1875 0.75   0.    ]
      True [0.375 1.5   0.   ]
      False [0.375 1.5   0.   ]
    """

    def __init__(
        self,
        orders: Sequence[int],
        budgets: Sequence[float],
        charge_budget: float,
        saved: Any,
    ):
        self._orders = tuple(int(order) for order in orders)
        budgets = tuple(float(budget) for budget in budgets)
        small = all(budget < 1024 for budget in budgets)
        if len(budgets) != len(self._orders) or not small:
            raise ValueError(
                f"budgets={budgets} were given, expected one below 1024 for "
                f"each of {len(self._orders)} orders. Divergences beyond that "
                "are no privacy."
            )
        if not 0 <= charge_budget < 1:
            raise ValueError(
                f"charge_budget={charge_budget!r} was given, expected a part "
                "of delta, from 0 to below 1."
            )
        if tuple(saved.shape) != (self.size(orders),):
            raise ValueError(
                f"saved has shape {tuple(saved.shape)}, expected "
                f"({self.size(orders)},), as size(orders) says."
            )
        self._charge_budget = float(charge_budget)
        # Powers of two change no digit: the product is exact.
        self._limits = np.array(
            [*(math.floor(max(b, 0.0) * PARTS) for b in budgets), PARTS]
        )
        self._mark = _mark(self._orders, self._charge_budget)
        self._saved = saved
        with tf.init_scope():
            self._seen = tf.Variable(
                tf.zeros([self.size(orders)], tf.int64),
                trainable=False,
                name="parts_seen",
            )

    @staticmethod
    def size(orders: Sequence[int]) -> int:
        """Length of the saved vector: mark, divergences, charges."""
        return len(orders) + 2

    @property
    def orders(self) -> tuple[int, ...]:
        """Those of the divergences."""
        return self._orders

    # Costs, in parts: int64, the orders and then the charge on the last axis.

    def cost(self, divergences: Any, charge: Any) -> tf.Tensor:
        """What a step costs, from tensors.

        Args:
          divergences: Upper bounds, float64, with the orders on the last axis.
          charge: Upper bound of what the event takes of `charge_budget`,
            float64, without that axis.
        """
        divergences = tf.convert_to_tensor(divergences, tf.float64)
        charge = tf.convert_to_tensor(charge, tf.float64)[..., tf.newaxis]
        # Zero times infinity is no number; nothing costs nothing.
        shares = tf.where(charge == 0, charge, charge * self._per_charge())
        parts = tf.concat(
            [
                divergences,
                tf.broadcast_to(
                    shares, tf.concat([tf.shape(divergences)[:-1], [1]], 0)
                ),
            ],
            axis=-1,
        )
        parts = tf.math.ceil(parts * PARTS)
        # Whatever is not a number fails this comparison.
        parts = tf.where(parts >= 0, tf.minimum(parts, _BEYOND), _BEYOND)
        return tf.cast(parts, tf.int64)

    def table(
        self, costs: Sequence[tuple[Sequence[float], float]]
    ) -> np.ndarray:
        """Costs of events that are known beforehand: divergences and charges.

        The step then needs no floating-point numbers; see `look_up`.
        """
        with tf.init_scope():
            return np.stack([self.cost(*cost).numpy() for cost in costs])

    @staticmethod
    def look_up(table: np.ndarray, index: Any) -> tf.Tensor:
        """The cost of one event of a table."""
        known = (index >= 0) & (index < len(table))
        # Devices differ in what they read outside of a table.
        found = tf.gather(
            tf.constant(table), tf.clip_by_value(index, 0, len(table) - 1)
        )
        return tf.where(known, found, tf.constant(_BEYOND, tf.int64))

    def _per_charge(self) -> float:
        """At least 1 / charge_budget, with room for rounding a product."""
        if not self._charge_budget:
            return math.inf
        return 1 / self._charge_budget * (1 + 2.0**-50)

    # In the step.

    def decide(self, cost: tf.Tensor) -> tf.Tensor:
        """Whether a step of this cost may be taken; a bool tensor."""
        mark = tf.convert_to_tensor(self._saved)[0]
        ours = (mark == 0) | (mark == self._mark)
        return ours & self.affords(added(self._spent()[1:], cost))

    def affords(self, parts: tf.Tensor) -> tf.Tensor:
        """Whether sums of costs fit some order's budget, and the charges'."""
        within = parts <= tf.constant(self._limits, tf.int64)
        return tf.reduce_any(within[..., :-1], -1) & within[..., -1]

    def spend(self, cost: tf.Tensor, taken: Any) -> None:
        """Adds the cost of a step that was `taken`; leaves it out if not."""
        spent = self._spent()
        mark = tf.constant([self._mark], tf.int64)
        after = tf.concat([mark, added(spent[1:], cost)], 0)
        after = tf.where(taken, after, spent)
        self._saved.assign(after)
        self._seen.assign(after)

    def _spent(self) -> tf.Tensor:
        return tf.maximum(
            tf.convert_to_tensor(self._saved), tf.convert_to_tensor(self._seen)
        )

    # In Python.

    def parts(self) -> np.ndarray:
        """What is saved: the mark, and the parts that were spent."""
        return np.maximum(self._saved.numpy(), self._seen.numpy())

    def spent(self) -> np.ndarray:
        """Divergences spent at the orders, and the charges."""
        parts = self.parts()[1:]
        spent = parts / PARTS
        spent[-1] *= self._charge_budget
        return np.where(parts >= _BEYOND, np.inf, spent)

    def remaining(self) -> float:
        """The part of the budget that is left, from 1.0 down to 0.0."""
        left = 1 - self.parts()[1:] / np.maximum(self._limits, 1)
        left[:-1][self._limits[:-1] == 0] = 0.0
        return float(np.clip(min(left[:-1].max(), left[-1]), 0.0, 1.0))

    def raise_parts(self, loaded: Any = 0) -> None:
        """Takes over loaded `parts` where not more was spent here.

        Raises:
          PrivacyStateError: They were spent of another filter.
        """
        loaded = np.broadcast_to(loaded, [self.size(self._orders)])
        for mark in (int(loaded[0]), int(self._saved.numpy()[0])):
            if mark not in (0, self._mark):
                raise PrivacyStateError(
                    "The saved state was spent of a filter with other orders "
                    "or another budget. Use the filter of the run that saved "
                    "it."
                )
        parts = np.maximum(self.parts(), loaded.astype(np.int64))
        self._saved.assign(parts)
        self._seen.assign(parts)


def added(spent: tf.Tensor, cost: tf.Tensor) -> tf.Tensor:
    """The sum, in parts; what is beyond every budget stays there."""
    return tf.minimum(spent + cost, tf.constant(_BEYOND, tf.int64))


def _mark(orders: tuple[int, ...], charge_budget: float) -> int:
    """A number from 1 that hardly any others have."""
    text = json.dumps([orders, charge_budget.hex()])
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:7], "big") + 1
