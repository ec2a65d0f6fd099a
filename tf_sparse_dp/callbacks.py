"""Keeps training within the plan, and shows what was spent."""

from __future__ import annotations

import math
import warnings
from typing import Any

import tensorflow as tf

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan
from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.layers.lazy_variable import lazy_variable
from tf_sparse_dp.optimizers.wrapper import FLOAT16_REFUSAL, PrivateWrapper
from tf_sparse_dp.sampling.counts import whole_number

# Epsilon is computed at this many points of a plan and rounded up in between.
_POINTS = 20


class PrivacyBudget(tf.keras.callbacks.Callback):
    """Ends `fit` when the plan is spent; logs epsilon.

    Puts `epsilon`, the privacy spent so far, into the progress bar and into
    `History`. While an epoch runs it is rounded up to the next of 20 points of
    the plan, because computing it takes time (tf-keras shows none then); at the
    end of an epoch it is exact, the one of the privacy statement. Where a
    filter pays, it is `budget_left`, at the end of an epoch. Under a plan that
    counts passes over the data, charges one at the start of each epoch.

    A step that writes example data into weights of the model, such as running
    statistics, is refused while it is traced, whether gradients read them or
    not: they would leave with the saved model.

    Where a ledger file, or a filter, is paid in blocks of steps, pays for the
    next block in time, and gives back what was not used at the end of `fit`.

    Args:
      reserve: How many steps are paid ahead at a time, where that is needed.
        As many are lost if the process dies.

    Raises:
      NotSeparableError: At the start of `fit`, if an earlier `fit` without
        this callback wrote example data into the model.
      BudgetExhausted: At the start of `fit`, if nothing is left of the plan.
      TypeError: At the start of `fit`, if the model's optimizer is not a
        `DPSparseOptimizer`.
    """

    def __init__(self, *, reserve: int = 100):
        super().__init__()
        self._block = whole_number("reserve", reserve)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if not hasattr(tf.keras, "__version__"):  # tf-keras
            _warn_when_saving_without_count(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self._optimizer()
        optimizer.protect(self.model)
        strategy = getattr(self.model, "distribute_strategy", None)
        optimizer.agree(strategy)
        self._pay_ahead()
        optimizer.check_together(strategy)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._optimizer().start_pass()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._pay_ahead()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        optimizer = self._optimizer()
        if optimizer.plan is None:
            return
        if hasattr(tf.keras, "__version__"):
            # The bar of tf-keras would show the mean over the steps.
            self._log(logs, exact=False)
        if optimizer.plan.sampling.composition_unit == "step":
            self._stop_if_spent()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._optimizer().plan is None:
            return
        self._log(logs, exact=True)
        self._stop_if_spent()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._optimizer().settle()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Tables get all their noise; see `layers.LazyEmbedding`."""
        for variable in self.model.trainable_variables:
            table = lazy_variable(variable)
            if table is not None:
                table.draw_all()

    def _pay_ahead(self) -> None:
        steps = getattr(self.model, "steps_per_execution", None)
        if steps is None:  # tf-keras
            steps = getattr(self.model, "_steps_per_execution", None)
        # A variable of tf-keras, with copies under a strategy.
        steps = 1 if steps is None else int(tf.convert_to_tensor(steps))
        self._optimizer().pay_ahead(steps, self._block)

    def _optimizer(self) -> Any:
        optimizer = self.model.optimizer
        if isinstance(
            getattr(optimizer, "inner_optimizer", None), PrivateWrapper
        ):
            raise ValueError(FLOAT16_REFUSAL)  # Keras put it around ours.
        if not isinstance(optimizer, PrivateWrapper):
            raise TypeError(
                f"The model's optimizer is {type(optimizer).__name__}; "
                "PrivacyBudget needs a DPSparseOptimizer. Compile the model "
                "with one, or leave the callback out."
            )
        return optimizer

    def _log(self, logs: dict[str, Any] | None, exact: bool) -> None:
        if logs is None:
            return
        optimizer = self._optimizer()
        plan, spent = optimizer.plan, optimizer.compositions_spent
        if isinstance(plan, AdaptivePlan):
            if exact:
                logs["budget_left"] = optimizer.budget_left
            return
        if not exact:
            width = math.ceil(plan.num_compositions / _POINTS)
            spent = min(plan.num_compositions, width * math.ceil(spent / width))
        before, _ = optimizer.private_step.mechanism.spent_before
        logs["epsilon"] = before + plan.epsilon_spent(spent)

    def _stop_if_spent(self) -> None:
        optimizer = self._optimizer()
        if optimizer.can_go_on:
            return
        self.model.stop_training = True
        # With several steps per execution, the last one may have gone over.
        broken, _ = optimizer.forget_refusals()
        if broken:
            warnings.warn(
                optimizer.refused_batches(broken),
                PrivacyWarning,
                stacklevel=2,
            )


def _warn_when_saving_without_count(model: Any) -> None:
    """Makes `model.save_weights` warn of files that do not carry the count."""
    save_weights = model.save_weights
    if getattr(save_weights, "warns", False):
        return

    def save_and_warn(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        name = str(filepath)
        h5 = name.endswith((".h5", ".hdf5")) or "h5" in (
            *args,
            *kwargs.values(),
        )
        if h5 and not name.endswith(".weights.h5"):
            warnings.warn(
                f"The weights in {name} carry no optimizer state, so a run "
                "that starts from them does not know what was spent. Save "
                "with model.save('name.keras') or to 'name.weights.h5' to keep "
                "the count.",
                PrivacyWarning,
                stacklevel=2,
            )
        return save_weights(filepath, *args, **kwargs)

    save_and_warn.warns = True  # type: ignore[attr-defined]
    model.save_weights = save_and_warn
