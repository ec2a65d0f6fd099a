"""May this step be taken? Counts what was spent and remembers refusals.

The count that is saved with the model is a variable that the adapters own. A
second count, of this process, is never saved and never goes back: restoring
an older checkpoint cannot lower what was spent here.
"""

from __future__ import annotations

from concurrent import futures
from typing import Any

import tensorflow as tf

from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError

_NO_PASS = -1  # Rows seen in the current pass when none was started.

_RAGGED = (
    "If there are ragged features: those that are combined need the same "
    "lengths in every example, and embedding_lookup_sparse needs an id in the "
    "last (safe_embedding_lookup_sparse does not)."
)


class Spending:
    """The count of compositions: steps, or passes over the data.

    Args:
      plan: The plan that is kept; None enforces nothing.
      saved: The count that is saved with the model, an int64 variable.

    Attributes:
      counts_passes: Whether a composition is a pass over the data.
    """

    def __init__(self, plan: PrivacyPlan | None, saved: Any):
        self._limit = None if plan is None else plan.num_compositions
        self.counts_passes = (
            plan is not None and plan.sampling.composition_unit == "pass"
        )
        self._num_examples = 0
        if plan is not None:
            sampling = plan.sampling
            self._num_examples = sampling.num_units * sampling.examples_per_unit
        self._saved = saved
        self._seen = _counter("compositions_seen")
        self._rows = _counter("rows_in_pass", _NO_PASS)
        self._exhausted = _counter("refused_by_budget")
        self._broken = _counter("refused_by_batch")

    def count(self) -> int:
        """Compositions spent."""
        return int(max(self._saved.numpy(), self._seen.numpy()))

    def remaining(self) -> int | None:
        """Compositions left; None without a plan."""
        if self._limit is None:
            return None
        return max(0, self._limit - self.count())

    def raise_count(self, loaded: int = 0) -> None:
        """Takes over a loaded count unless more was spent here."""
        count = max(self.count(), int(loaded))
        self._saved.assign(count)
        self._seen.assign(count)

    def start_pass(self) -> None:
        """Charges one pass over the data.

        Raises:
          BudgetExhausted: If the plan has no pass left. Nothing is charged.
        """
        if not self.counts_passes:
            return
        if self.remaining() == 0:
            raise BudgetExhausted(self._exhausted_message())
        self.raise_count(self.count() + 1)
        self._rows.assign(0)

    def check_open(self) -> None:
        """Refuses, while a step is traced, what would refuse all its runs.

        Raises:
          BudgetExhausted: If nothing is left of the plan.
          PrivacyStateError: If the plan counts passes and none was started.
        """
        with tf.init_scope():
            if self.counts_passes:
                if int(self._rows.numpy()) == _NO_PASS:
                    raise PrivacyStateError(
                        "The plan counts passes over the data, and none was "
                        "started. Add the PrivacyBudget callback, or call "
                        "optimizer.start_pass() before every pass in a loop "
                        "of your own."
                    )
            elif self.remaining() == 0:
                raise BudgetExhausted(self._exhausted_message())

    def decide(self, batch_size: tf.Tensor, consistent: tf.Tensor) -> tf.Tensor:
        """Whether the step may be taken, and counts it if so.

        Depends on public facts only: counts and shapes, and the form of ragged
        features, which is taken as public.
        """
        rows = tf.cast(batch_size, tf.int64)
        count = tf.maximum(
            tf.cast(self._saved, tf.int64), tf.convert_to_tensor(self._seen)
        )
        affordable = tf.constant(True)
        if self.counts_passes:
            after = count
            affordable = count <= self._limit
            consistent &= self._rows >= 0
            consistent &= self._rows + rows <= self._num_examples
        else:
            after = count + 1
            if self._limit is not None:
                affordable = after <= self._limit
        taken = affordable & consistent
        one = tf.ones([], tf.int64)
        zero = tf.zeros([], tf.int64)
        after = tf.where(taken, after, count)
        self._saved.assign(after)
        self._seen.assign(after)
        self._rows.assign_add(tf.where(taken & (self._rows >= 0), rows, zero))
        self._exhausted.assign_add(tf.where(affordable, zero, one))
        self._broken.assign_add(tf.where(affordable & ~consistent, one, zero))
        return taken

    def raise_refusals(self) -> None:
        """Raises, once, if steps were refused since the last call.

        Raises:
          BudgetExhausted: If the plan was spent.
          PrivacyStateError: If a batch was not in order.
        """
        broken, exhausted = self.forget_refusals()
        if exhausted:
            raise BudgetExhausted(self._exhausted_message(exhausted))
        if broken:
            raise PrivacyStateError(self._broken_message(broken))

    def forget_refusals(self) -> tuple[int, int]:
        """Numbers of steps refused for their batch and for the budget."""
        refused = int(self._broken.numpy()), int(self._exhausted.numpy())
        self._broken.assign(0)
        self._exhausted.assign(0)
        return refused

    def _exhausted_message(self, steps: int = 0) -> str:
        unit = "passes" if self.counts_passes else "steps"
        refused = f"{steps} steps were refused: t" if steps else "T"
        return (
            f"{refused}he plan allows {self._limit} {unit}, and {self.count()} "
            "are spent. The weights are those of the last step within the "
            "plan. Add the PrivacyBudget callback to end training in time, or "
            f"make a plan with more {unit} before you start."
        )

    def _broken_message(self, steps: int) -> str:
        if self.counts_passes:
            return (
                f"{steps} steps were refused because they were outside a pass "
                "over the data, or the pass gave more than the "
                f"{self._num_examples} examples that EpochSampling was told "
                "of, or a batch did not consist of whole units. Add the "
                "PrivacyBudget callback, or call optimizer.start_pass() before "
                "every pass in a loop of your own, and check num_examples. "
                + _RAGGED
            )
        return (
            f"{steps} steps were refused because the inputs of a batch did not "
            "have the same number of rows, or not the number that the "
            "sampling gives, or no multiple of examples_per_unit. Train on "
            "sampling.dataset(...) as it is, without batching it again. "
            + _RAGGED
        )


class CheckpointedCount(tf.train.experimental.PythonState):
    """The count as `tf.train.Checkpoint` sees it: restoring never lowers it.

    A variable alone would take whatever an older checkpoint holds.
    """

    def __init__(self, spending: Spending):
        self._spending = spending

    def serialize(self) -> str:
        # A SavedModel is written while a graph is built, where variables
        # cannot be read; another thread is not building it.
        with futures.ThreadPoolExecutor(1) as thread:
            return str(thread.submit(self._spending.count).result())

    def deserialize(self, string_value: str) -> None:
        self._spending.raise_count(int(string_value))


def _counter(name: str, value: int = 0) -> tf.Variable:
    with tf.init_scope():
        return tf.Variable(value, dtype=tf.int64, trainable=False, name=name)
