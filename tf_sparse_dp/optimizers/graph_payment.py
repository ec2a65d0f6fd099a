"""A filter pays for each step within the compiled step itself."""

from __future__ import annotations

import dp_accounting
import numpy as np
import tensorflow as tf

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan
from tf_sparse_dp.accounting.events import parts_of
from tf_sparse_dp.accounting.filters.additive import AdditiveFilter
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError
from tf_sparse_dp.local_variable import local_variable
from tf_sparse_dp.optimizers.graph_filter import GraphFilter
from tf_sparse_dp.optimizers.payments import (
    NOT_PAID_AHEAD,
    TakenOver,
    left_of,
)
from tf_sparse_dp.optimizers.step_record import StepRecord


class GraphPayment:
    """Adds up what steps cost and decides, step by step, on the device.

    While it does, the filter is held: nothing else can spend from it. What was
    spent goes back to the filter when somebody looks (`events`), and the hold
    ends with `settle`.

    Args:
      plan: Of which the filter is a `RenyiFilter`; or another one whose costs
        add up, where all of a batch is drawn in parts, so that they are known
        beforehand.
      noise_ratio: Noise now over the plan's, a variable.
      run: The id of this run.
    """

    def __init__(self, plan: AdaptivePlan, noise_ratio: tf.Variable, run: str):
        self._plan = plan
        self._filter: AdditiveFilter = plan.filter  # type: ignore[assignment]
        self._ratio = noise_ratio
        self._run = run
        self._taken_over = TakenOver(run)
        self._held = local_variable(False, name="held")
        self._sums = GraphFilter(self._filter)
        self._table: np.ndarray | None = None  # Costs of all kinds of steps.
        event = None
        if any(map(parts_of, plan.kinds)):
            self._table = self._costs(plan.noise_multiplier)
            event = self._event_of_kind
        self._steps = StepRecord(plan.num_compositions, plan.noise, event)

    # Within a step.

    def affordable(self, number: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        kinds = self._plan.kinds
        ready = tf.convert_to_tensor(self._held) & self._steps.has_room()
        if self._table is not None:
            # The table is for the noise at the start, which stays.
            ready &= tf.convert_to_tensor(self._ratio) == 1
            self._facts = (
                tf.cast(kind, tf.float64),
                tf.constant(self._plan.noise_multiplier, tf.float64),
                tf.zeros([], tf.float64),
            )
            self._cost = self._sums.look_up(self._table, kind)
            # An unknown one is refused for its batch, not for the budget.
            known = self._sums.look_up(self._table, tf.maximum(kind, 0))
            return ready & self._sums.decide(known)
        kind = tf.maximum(kind, 0)  # An unknown one is refused elsewhere.
        probability = None
        if kinds[0].sampling_probability is not None:
            known = [k.sampling_probability for k in kinds]
            probability = tf.gather(tf.constant(known, tf.float64), kind)
        ratio = tf.cast(tf.convert_to_tensor(self._ratio), tf.float64)
        failures = [
            k.overflow_probability + self._plan.release_failure for k in kinds
        ]
        self._facts = (
            probability,
            self._plan.noise_multiplier * ratio,
            tf.gather(tf.constant(failures, tf.float64), kind),
        )
        self._cost = self._sums.step_cost(*self._facts, self._plan.noise)
        return ready & self._sums.decide(self._cost)

    def pay(self, taken: tf.Tensor) -> None:
        self._sums.spend(self._cost, taken)
        self._steps.write(taken, *self._facts)

    # In Python.

    def events(self) -> list[tuple[dp_accounting.DpEvent, int]]:
        """What was taken since the last call; the filter is told."""
        events = self._steps.events()
        for event, count in events:
            self._hold.compose(event, count, run=self._run)
        self._steps.clear()
        return events

    def left(self, count: int) -> int:
        costs = self._table
        if costs is None:
            ratio = float(self._ratio.numpy())
            costs = self._costs(self._plan.noise_multiplier * ratio)
        # Which batch comes next is not known: the dearest must be paid for.
        return min(self._sums.left(cost) for cost in costs)

    def _costs(self, noise_multiplier: float) -> np.ndarray:
        """What steps of each kind cost, one in each row."""
        kinds = range(len(self._plan.kinds))
        return self._sums.table(
            [self._plan.step_event(noise_multiplier, kind) for kind in kinds]
        )

    def _event_of_kind(
        self, kind: float, noise_multiplier: float, failure: float
    ) -> dp_accounting.DpEvent:
        """Of a step that was written down; failures are in the event.

        The noise is the plan's, which a TPU would not keep to the last digit.
        """
        return self._plan.step_event(self._plan.noise_multiplier, int(kind))

    def can_go_on(self, count: int) -> bool:
        return self.left(count) > 0

    def check(self, count: int) -> None:
        if not bool(self._held.numpy()):
            raise PrivacyStateError(NOT_PAID_AHEAD)
        if not self.can_go_on(count):
            raise BudgetExhausted(
                f"{self._filter!r} pays for no further step with this noise. "
                f"{left_of(self._filter, count)}{self._remarks()} Set more "
                "noise, or make a filter with a larger budget before you start."
            )

    def _remarks(self) -> str:
        told = ""
        if len(self._plan.kinds) > 1:
            told += (
                " Which kind of step comes next is not known, so that the "
                "dearest one has to fit."
            )
        if any(kind.overflow_probability for kind in self._plan.kinds):
            told += (
                " Batches may overflow, which is charged to delta e^epsilon "
                "times."
            )
        return told

    def open(self) -> None:
        if not bool(self._held.numpy()):
            self._hold = self._filter.hold("DPSparseOptimizer")
            self._sums.take_in()
            self._held.assign(True)

    def reserve(self, count: int, need: int, block: int) -> None:
        self.open()

    def settle(self, count: int) -> None:
        if bool(self._held.numpy()):
            self._held.assign(False)
            self._hold.end()

    def change_noise(self, count: int) -> None:
        pass  # Each step pays for the noise that it has.

    def take_over(self, ledger: Ledger) -> None:
        held = bool(self._held.numpy())
        self._taken_over.charge(self._hold if held else self._filter, ledger)
        self._sums.take_in()
