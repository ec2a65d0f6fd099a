"""May this step be taken? Counts what was spent and remembers refusals.

The count that is saved with the model is a variable that the adapters own. A
second count, of this process, is never saved and never goes back: restoring
an older checkpoint cannot lower what was spent here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.accounting.adaptive_plan import Plan
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.errors import BudgetExhausted, PrivacyStateError
from tf_sparse_dp.local_variable import local_variable
from tf_sparse_dp.optimizers.payments import BlockPayment, Payment

_MOST = 2**62
_NO_PASS = -1  # Rows seen in the current pass when none was started.

_APART = (
    "{} steps were refused because processes that train together differ in "
    "what was spent, in the steps that are in their weights, or in clip norm, "
    "noise, mechanism, sampling, shapes of variables or what their gradients "
    "depend on. Expected the same in all: run the same program, restore the "
    "same checkpoint, and add the PrivacyBudget callback, or call "
    "optimizer.agree(strategy) before the first step in a loop of your own."
)
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
      payments: All of them have to pay for a step.

    Attributes:
      counts_passes: Whether a composition is a pass over the data.
    """

    def __init__(
        self, plan: Plan | None, saved: Any, payments: Sequence[Payment]
    ):
        self._payments = payments
        self.counts_passes = (
            plan is not None and plan.sampling.composition_unit == "pass"
        )
        self._num_examples = 0
        if plan is not None:
            sampling = plan.sampling
            self._num_examples = sampling.num_units * sampling.examples_per_unit
        self._limit = 0 if plan is None else plan.num_compositions
        self._saved = saved
        self._seen = _counter("compositions_seen")
        self._here = _counter("compositions_here")
        self._rows = _counter("rows_in_pass", _NO_PASS)
        self._exhausted = _counter("refused_by_budget")
        self._broken = _counter("refused_by_batch")
        self._apart = _counter("refused_by_workers")

    def count(self) -> int:
        """Compositions spent."""
        return int(max(self._saved.numpy(), self._seen.numpy()))

    def taken_here(self) -> int:
        """Compositions of this process, for which it has paid itself."""
        return int(self._here.numpy())

    @property
    def counters(self) -> tuple[tf.Variable, tf.Variable]:
        """Compositions of this process, and all; neither goes back."""
        return self._here, self._seen

    def remaining(self) -> int | None:
        """Compositions left; None without a plan."""
        if not self._payments:
            return None
        count = self.count()
        return min(payment.left(count) for payment in self._payments)

    def reserve(self, need: int = 1, block: int = 1) -> None:
        """Pays ahead for a `block`, if fewer than `need` are paid ahead."""
        count = self.count()
        room = max(0, self._limit - count)
        for payment in self._payments:
            payment.reserve(count, min(need, room), min(block, room))

    def check(self) -> None:
        """Says why the next composition would be refused, if it would be.

        Raises:
          BudgetExhausted: If nothing is left.
          PrivacyStateError: If it was not paid ahead.
        """
        for payment in self._payments:
            payment.check(self.count())

    def settle(self) -> None:
        """Gives back what was paid ahead and was not taken."""
        for payment in self._payments:
            payment.settle(self.count())

    def can_go_on(self) -> bool:
        """Whether there is anything left to pay with."""
        count = self.count()
        return all(payment.can_go_on(count) for payment in self._payments)

    @contextlib.contextmanager
    def changing_noise(self) -> Iterator[None]:
        """What was paid, ahead or for a pass, is not for other noise.

        Steps that were paid ahead are paid ahead anew; a pass has to be.
        """
        count = self.count()
        ahead = [
            payment.paid_ahead(count)
            for payment in self._payments
            if isinstance(payment, BlockPayment)
        ]
        for payment in self._payments:
            payment.change_noise(count)
        self._rows.assign(_NO_PASS)
        yield
        if ahead and not self.counts_passes:
            self.reserve(min(ahead), min(ahead))

    def take_over(self, ledger: Ledger) -> None:
        """Counts, and charges, what a loaded ledger says was released."""
        self.raise_count(ledger.num_events)
        self.charge(ledger)

    def charge(self, ledger: Ledger) -> None:
        """Charges what others released; it is not counted."""
        for payment in self._payments:
            payment.take_over(ledger)

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
        self.reserve()
        self.check()
        self.raise_count(self.count() + 1)
        self._here.assign_add(1)
        self._rows.assign(0)

    def check_open(self) -> None:
        """Refuses, while a step is traced, what would refuse all its runs.

        Raises:
          BudgetExhausted: If nothing is left of the plan.
          PrivacyStateError: If the plan counts passes and none was started,
            or the step was not paid ahead.
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
            else:
                for payment in self._payments:
                    payment.open()
                self.check()

    def vote(self, kind: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether a step of this kind can be paid, and compositions spent."""
        count = self._count_now()
        after = count if self.counts_passes else count + 1
        affordable = tf.constant(True)
        for payment in self._payments:
            affordable &= payment.affordable(after, kind)
        return affordable, count

    def _count_now(self) -> tf.Tensor:
        count = tf.maximum(
            tf.cast(self._saved, tf.int64), tf.convert_to_tensor(self._seen)
        )
        return tf.minimum(count, _MOST)  # One more must not be negative.

    def decide(
        self,
        batch_size: tf.Tensor,
        affordable: tf.Tensor,
        consistent: tf.Tensor,
        alike: tf.Tensor,
    ) -> tf.Tensor:
        """Whether the step may be taken, and counts it if so.

        Depends on public facts only: counts and shapes, and the form of ragged
        features, which is taken as public.

        Args:
          batch_size: Rows of the batch.
          affordable: Whether all who vote can pay.
          consistent: Whether the batch is in order.
          alike: Whether processes have the same count and settings.
        """
        rows = tf.cast(batch_size, tf.int64)
        count = self._count_now()
        one = tf.ones([], tf.int64)
        zero = tf.zeros([], tf.int64)
        if self.counts_passes:
            after = count
            consistent &= self._rows >= 0
            consistent &= self._rows + rows <= self._num_examples
        else:
            after = count + 1
        taken = affordable & consistent & alike
        for payment in self._payments:
            payment.pay(taken)
        after = tf.where(taken, after, count)
        self._saved.assign(after)
        self._seen.assign(after)
        self._here.assign_add(after - count)
        self._rows.assign_add(tf.where(taken & (self._rows >= 0), rows, zero))
        self._exhausted.assign_add(tf.where(affordable, zero, one))
        broken = affordable & ~(consistent & alike)
        self._broken.assign_add(tf.where(broken, one, zero))
        self._apart.assign_add(tf.where(alike, zero, one))
        return taken

    def raise_refusals(self) -> None:
        """Raises, once, if steps were refused since the last call.

        Raises:
          BudgetExhausted: If the plan was spent.
          PrivacyStateError: If a batch was not in order, or a step was not
            paid ahead.
        """
        apart = int(self._apart.numpy())
        broken, exhausted = self.forget_refusals()
        if exhausted:
            raise self._not_paid(exhausted)
        if apart:
            raise PrivacyStateError(_APART.format(apart))
        if broken:
            raise PrivacyStateError(self.refused_batches(broken))

    def was_exhausted(self) -> bool:
        """Whether steps were refused for the budget, and nobody was told."""
        return int(self._exhausted.numpy()) > 0

    def forget_refusals(self) -> tuple[int, int]:
        """Numbers of steps refused for their batch and for the budget."""
        refused = int(self._broken.numpy()), int(self._exhausted.numpy())
        self._broken.assign(0)
        self._apart.assign(0)
        self._exhausted.assign(0)
        return refused

    def _not_paid(self, steps: int) -> BudgetExhausted | PrivacyStateError:
        kind: Any = BudgetExhausted
        reason = "What was paid ahead was spent."
        try:
            self.check()
        except (BudgetExhausted, PrivacyStateError) as error:
            kind, reason = type(error), str(error)
        return kind(
            f"{steps} steps were refused. {reason} The weights are those of "
            "the last step that was paid. Add the PrivacyBudget callback to "
            "end training in time."
        )

    def refused_batches(self, steps: int) -> str:
        """What may be wrong with the batches of refused steps."""
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


def _counter(name: str, value: int = 0) -> tf.Variable:
    return local_variable(value, name=name, dtype=tf.int64)
