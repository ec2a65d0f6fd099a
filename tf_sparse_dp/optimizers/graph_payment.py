"""A Rényi filter pays for each step within the compiled step itself."""

from __future__ import annotations

import dp_accounting
import tensorflow as tf

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError
from tf_sparse_dp.optimizers.graph_filter import GraphFilter
from tf_sparse_dp.optimizers.payments import NOT_PAID_AHEAD, TakenOver
from tf_sparse_dp.optimizers.step_record import StepRecord


class GraphPayment:
    """Adds up divergences and decides, step by step, on the device.

    While it does, the filter is held: nothing else can spend from it. What was
    spent goes back to the filter when somebody looks (`events`), and the hold
    ends with `settle`.

    Args:
      plan: Of which the filter is a `RenyiFilter`.
      noise_ratio: Noise now over the plan's, a variable.
      run: The id of this run.
    """

    def __init__(self, plan: AdaptivePlan, noise_ratio: tf.Variable, run: str):
        self._plan = plan
        self._filter: RenyiFilter = plan.filter  # type: ignore[assignment]
        self._ratio = noise_ratio
        self._run = run
        self._taken_over = TakenOver(run)
        with tf.init_scope():
            self._held = tf.Variable(False, trainable=False)
        self._sums = GraphFilter(self._filter)
        self._steps = StepRecord(plan.num_compositions, plan.noise)

    # Within a step.

    def affordable(self, number: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
        kinds = self._plan.kinds
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
        return (
            tf.convert_to_tensor(self._held)
            & self._steps.has_room()
            & self._sums.decide(self._cost)
        )

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
        noise = self._plan.noise_multiplier * float(self._ratio.numpy())
        kinds = range(len(self._plan.kinds))
        costs = self._sums.table(
            [self._plan.step_event(noise, kind) for kind in kinds]
        )
        # Which batch comes next is not known: the dearest must be paid for.
        return min(self._sums.left(cost) for cost in costs)

    def can_go_on(self, count: int) -> bool:
        return self.left(count) > 0

    def check(self, count: int) -> None:
        if not bool(self._held.numpy()):
            raise PrivacyStateError(NOT_PAID_AHEAD)
        if not self.can_go_on(count):
            raise BudgetExhausted(
                f"{self._filter!r} pays for no further step with this noise; "
                f"{count} steps were taken. Set more noise, or make a filter "
                "with a larger budget before you start. (Batches that may "
                "overflow are charged to delta e^epsilon times.)"
            )

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
