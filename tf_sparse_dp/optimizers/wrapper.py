"""What the adapters for Keras 3 and tf-keras have in common."""

from __future__ import annotations

import dataclasses
import os
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tf_sparse_dp.accounting.adaptive_plan import AdaptivePlan, Plan
from tf_sparse_dp.accounting.events import Sampling
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.ledger_run import random_id
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.selected import Selected
from tf_sparse_dp.accounting.statement import (
    PrivacyStatement,
    privacy_statement,
)
from tf_sparse_dp.distribute import processes, replicas
from tf_sparse_dp.distribute.refusals import (
    check_share,
    check_strategy,
    check_variables,
)
from tf_sparse_dp.errors import (
    BudgetExhausted,
    PrivacyStateError,
    PrivacyWarning,
    callers_level,
)
from tf_sparse_dp.gradients.effects import PRIVATE_UPDATE
from tf_sparse_dp.gradients.memory import weights_of
from tf_sparse_dp.gradients.separation import Gradient
from tf_sparse_dp.layers.lazy_variable import lazy_variable, not_lazy
from tf_sparse_dp.local_variable import TPU_STRATEGIES
from tf_sparse_dp.mechanisms.interface import Mechanism
from tf_sparse_dp.optimizers.accounts import (
    adaptive_plan,
    header_of,
    ledger_file,
    payments_for,
)
from tf_sparse_dp.optimizers.core import PrivateStep, Released
from tf_sparse_dp.optimizers.graph_payment import GraphPayment
from tf_sparse_dp.optimizers.record import CheckpointedLedger, Events, Record
from tf_sparse_dp.optimizers.row_updates import by_rows
from tf_sparse_dp.optimizers.saved_state import SavedState
from tf_sparse_dp.optimizers.spending import Spending
from tf_sparse_dp.optimizers.table_rules import TableRule
from tf_sparse_dp.optimizers.trained_before import (
    Trainer,
    others_than,
    register,
    told,
)
from tf_sparse_dp.sampling.counts import whole_number
from tf_sparse_dp.sampling.workers import current_share

FLOAT16_REFUSAL = (
    "The mixed_float16 policy scales the loss and skips steps depending on the "
    "raw gradients, which is not private. Use the policy 'mixed_bfloat16' or "
    "'float32'."
)
_ASSUMPTIONS = (
    "What enters the training step is one batch, row i of every tensor coming "
    "from example i alone; and every step sees a batch of its own. On several "
    "replicas it is dealt out among them: none sees rows of another one, and "
    "no example is drawn by two.",
    "Ragged and sparse features are well formed in every example: as many "
    "weights as ids, and an id where a lookup without a default needs one. A "
    "batch in which they are not is not trained on, and that shows.",
    "Tensors that the training step takes from outside the batch (weights at "
    "the start, vocabularies, tables, constants) do not come from the training "
    "data. Python code that the step calls keeps nothing of the batch.",
    "Noise is drawn with Philox in float32, keyed by 128 bits of the operating "
    "system's randomness: the guarantee holds up to that generator and up to "
    "rounding.",
)

_LAZY_TABLES = (
    "Tables of LazyEmbedding, which lack noise in memory until they are read, "
    "are read by way of their layer or variable, and by one thread at a time."
)
_WORKERS = (
    "All workers have the same data in the same order. An example, or a user, "
    "that is not there leaves its number empty: all others keep theirs, by "
    "which they are dealt out. The network between workers, over which ids "
    "that examples look up, their clipped gradients, sums without noise and "
    "parts of the noise keys travel, is trusted. All workers run the same "
    "versions on machines that round alike, so that one noise is added to one "
    "sum."
)
_TPU = (
    "The TPU multiplies float32 matrices in the highest precision, as it is "
    "told to, and gives all its cores the same bits where they exchange sums. "
    "Nobody has run this library on one yet."
)


class PrivateWrapper(SavedState):
    r"""Trains any Keras model privately, with any Keras optimizer inside.

    Takes the model's gradients apart into one term per example, by a proof on
    the traced step that examples do not mix; adds up those of one privacy unit
    (an example, or a user with several), clips every unit's sum, adds noise,
    and hands the private mean to the inner optimizer:

    $\tilde g = \frac{1}{\bar n} ( \sum_u \min(1, C/|g_u|) g_u + \sigma C \xi ),
    \quad g_u = \sum_{i \in u} g_i$

    with $C$ = `clip_norm`, $\sigma$ = the plan's noise multiplier, $\bar n$ =
    the expected number of units in a batch, $\xi$ standard normal (for
    `Gaussian`). What no example influences, such as a regulariser's gradient,
    is added as it is.

    **Guarantee.** With a plan, the trainable weights are (epsilon, delta)-
    differentially private at all times, for the plan's neighbouring relation
    and sampling; `privacy_statement()` spells it out. A step beyond the plan is
    not taken. Metrics, losses, weights that layers update by themselves, and
    anything else outside of the trainable weights are not covered.

    Args:
      inner_optimizer: An optimizer of the running `tf.keras`. Where only some
        rows of a table are released, it updates those alone: rows without a
        release do not move, whatever Adam or momentum remember of them.
      plan: The budget that is kept: a `PrivacyPlan`, or a privacy filter for
        a run whose noise or length is not known beforehand. None needs
        `noise_multiplier` and `expected_batch_size`, and enforces nothing.
      clip_norm: Largest L2 norm of one unit's gradient, over all variables:
        of the sum over up to `examples_per_unit` examples, so that a norm
        which suits single examples is small for units of many.
      mechanism: How sums are released. "auto" is `Gaussian()` while noise on
        all rows is cheap beside the step, else `Projection()`, or
        `Threshold(untouched_rows=1000)` where the lookups of an example are not
        bounded; it looks at shapes, batch size and noise alone, and `explain`
        says why.
        With a plan for Laplace noise it is `Projection` by coordinates, or
        `Laplace()`.
      noise_multiplier: Standard deviation of the noise over `clip_norm`, in
        place of a plan. 0.0 is not private. With a filter, the noise to start
        with; assign to `optimizer.noise_multiplier` to change it.
      expected_batch_size: What noisy sums are divided by, in place of a plan:
        the number of units in a batch, not of examples.
      sampling: With a filter, how batches are drawn, and how many at most; a
        plan has its own.
      tables: How tables of `LazyEmbedding` are updated: a plain
        `keras.optimizers.SGD`, or `DualAveraging`. `inner_optimizer` then
        updates all other variables; by default it updates these too, and has
        to be a plain SGD itself.
      ledger: Path of a file that keeps what was spent, for all runs that share
        a plan's budget, crashes included. Steps are paid ahead in it, which
        the `PrivacyBudget` callback sees to; `reserve` does it elsewhere.
      examples_per_unit: How many consecutive examples of a batch are one
        privacy unit; 1 makes every example a unit. By default what the plan's
        sampling has, which it has to agree with. Batches consist of whole
        units. If one example's gradient is not finite, its unit is left out.
      loss_reduction: "mean" or "sum": how the loss combines examples. Checked
        against the graph where it can be seen there.
      seed: For tests only. A fixed seed makes the noise predictable, and the
        privacy statement says so.
      name: Name of the optimizer.

    Raises:
      ValueError, TypeError: If an argument is not what is described above.
      NotSeparableError: While tracing, if examples may mix.
      BudgetExhausted: Out of `fit` (at its end), the `PrivacyBudget` callback,
        saving, or `privacy_statement()`, whichever comes first, if steps were
        refused because the plan is spent.

    Example:
      >>> import tensorflow as tf
      >>> import tf_sparse_dp as tsdp
      >>> sampling = tsdp.PoissonSampling(
      ...     num_examples=10_000, batch_size=100, epochs=1
      ... )
      >>> plan = tsdp.PrivacyPlan(epsilon=3.0, delta=1e-5, sampling=sampling)
      >>> optimizer = tsdp.DPSparseOptimizer(
      ...     tf.keras.optimizers.Adagrad(0.1), plan, clip_norm=1.0
      ... )
      >>> optimizer.compositions_left
      100

    Reference: Abadi et al., "Deep Learning with Differential Privacy", 2016.
    """

    _keras: Any  # The Keras module of the adapter, its name, and the other's.
    _running: str
    _other: str
    _base_arguments: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        inner_optimizer: Any,
        plan: PrivacyPlan | PrivacyFilter | None = None,
        *,
        clip_norm: float = 1.0,
        mechanism: Mechanism | str = "auto",
        noise_multiplier: float | None = None,
        expected_batch_size: float | None = None,
        sampling: Sampling | None = None,
        tables: Any = None,
        ledger: str | os.PathLike[str] | None = None,
        examples_per_unit: int | None = None,
        loss_reduction: str = "mean",
        seed: int | None = None,
        name: str = "dp_sparse_optimizer",
    ):
        self._check_inner(inner_optimizer)
        super().__init__(name=name, **self._base_arguments)  # type: ignore[call-arg]
        self.inner_optimizer = inner_optimizer
        self._tables = TableRule(self._keras, inner_optimizer, tables)
        account: Any = plan
        if isinstance(plan, PrivacyFilter):
            account = adaptive_plan(plan, sampling, noise_multiplier, mechanism)
            noise_multiplier = None
        elif sampling is not None and isinstance(plan, PrivacyPlan | None):
            raise ValueError(
                "sampling was given without a filter. A plan has its own, and "
                "without a plan nothing is said about batches: leave it out."
            )
        self._private = step = PrivateStep(
            account,
            clip_norm=clip_norm,
            mechanism=mechanism,
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            examples_per_unit=examples_per_unit,
            loss_reduction=loss_reduction,
            seed=seed,
        )
        self._compositions = self.add_variable(  # type: ignore[attr-defined]
            shape=(), dtype="int64", name="compositions"
        )
        self._share = current_share()
        self._on_tpu = isinstance(tf.distribute.get_strategy(), TPU_STRATEGIES)
        if self._share.worker > 0:
            ledger = None  # Of processes that train together, one pays.
        self._file = file = ledger_file(step, ledger)
        run = random_id() if file is None else file.run
        self._payments = payments_for(step, file, run)
        self._spending = Spending(step.plan, self._compositions, self._payments)
        self._trainer = Trainer(
            step.plan,
            None if file is None else file.id,
            run,
            *self._spending.counters,
        )
        self._warned_of: list[Trainer] = []
        self._record = Record(
            header_of(step),
            self._spending.taken_here,
            self._last_events,
            run,
            None if file is None else file.id,
        )
        if file is not None:
            self._spending.take_over(file.ledger())
        self._checkpointed_ledger = CheckpointedLedger(
            self._saved_ledger, self._load_ledger
        )

    def _check_inner(self, inner: Any) -> None:
        expected = self._keras.optimizers.Optimizer
        if isinstance(inner, expected) and not isinstance(
            inner, PrivateWrapper
        ):
            if hasattr(inner, "inner_optimizer"):
                raise ValueError(FLOAT16_REFUSAL)  # It scales the loss.
            return
        if type(inner).__module__.split(".")[0] == self._other:
            raise TypeError(
                f"inner_optimizer is {type(inner).__name__} of {self._other}, "
                f"but tf.keras is {self._running}. Use the optimizers of "
                "tf.keras, or set the environment variable "
                "TF_USE_LEGACY_KERAS before importing TensorFlow (1 for "
                "tf-keras, unset for Keras 3)."
            )
        raise TypeError(
            f"inner_optimizer is {inner!r}; expected an optimizer of "
            f"{self._running} such as tf.keras.optimizers.Adagrad(0.1)."
        )

    # What users ask.

    @property
    def plan(self) -> Plan | None:
        """The plan that is kept; with a filter, that and its sampling."""
        return self._private.plan

    @property
    def clip_norm(self) -> float:
        """Largest norm of one unit's gradient, over all variables."""
        return self._private.clip_norm

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over `clip_norm`, now.

        Where a filter pays, it can be set between steps, by whatever is public
        or was released already; between passes, if passes are counted.
        """
        return self._private.noise_multiplier_now

    @noise_multiplier.setter
    def noise_multiplier(self, noise_multiplier: float) -> None:
        ratio = self._private.ratio_of(noise_multiplier)
        self._record.ledger()  # What was taken had other noise.
        with self._spending.changing_noise():
            self._private.noise_ratio.assign(ratio)  # type: ignore[union-attr]

    @property
    def loss_reduction(self) -> str:
        """How the loss combines examples, "mean" or "sum"."""
        return self._private.loss_reduction

    @property
    def tables(self) -> Any:
        """The rule for tables of `LazyEmbedding`; None without one."""
        return self._tables.given

    @property
    def examples_per_unit(self) -> int:
        """How many consecutive examples are clipped as one."""
        return self._private.examples_per_unit

    @property
    def private_step(self) -> PrivateStep:
        """The step up to the inner optimizer; for looking into it."""
        return self._private

    @property
    def compositions_spent(self) -> int:
        """Steps taken, or passes started, whichever the plan counts.

        With a ledger file, also what all others have paid for in it.
        """
        return self._in_all()

    @property
    def compositions_left(self) -> int | None:
        """Steps or passes left in the plan; None without a plan."""
        return self._spending.remaining()

    def start_pass(self) -> None:
        """Charges one pass over the data, under a plan that counts passes.

        The `PrivacyBudget` callback does it at the start of every epoch; a
        training loop of your own does it before every pass.

        Raises:
          BudgetExhausted: If the plan has no pass left.
        """
        self._check_state()
        self._spending.start_pass()

    def reserve(self, steps: int) -> None:
        """Sees to it that the next steps are paid ahead.

        Needed where a ledger file, or a filter other than `RenyiFilter`, pays.
        The `PrivacyBudget` callback does it; a training loop of your own does
        it before so many steps.

        Raises:
          BudgetExhausted: If there is nothing left to pay with.
        """
        self._check_state()
        steps = whole_number("steps", steps)
        self._spending.reserve(steps, steps)
        self._spending.check()

    def pay_ahead(self, need: int, block: int) -> None:
        """Pays for a block of steps if fewer than `need` are paid ahead."""
        if not self._spending.counts_passes:
            self._spending.reserve(need, block)

    def check_next(self) -> None:
        """Says why the next step or pass would not be taken, if so.

        Raises:
          BudgetExhausted: There is nothing left to pay with.
          PrivacyStateError: It was not paid ahead.
        """
        self._spending.check()

    @property
    def workers(self) -> int:
        """How many processes train together."""
        return self._share.workers

    def agree(self, strategy: tf.distribute.Strategy | None) -> None:
        """Lets processes that train together know what any of them spent.

        All of them call it at the same time, before their first step and after
        anything was restored; the `PrivacyBudget` callback does at the start of
        `fit`.

        Args:
          strategy: In which they train.

        Raises:
          PrivacyStateError: In all of them, if their weights have different
            numbers of steps in them, or a filter pays and they have spent
            different parts of it.
        """
        if self.workers == 1 or strategy is None:
            return
        taken = int(tf.convert_to_tensor(self.iterations))
        steps = processes.numbers(taken, strategy)
        if len(set(steps)) > 1:
            raise PrivacyStateError(
                "The weights of workers have different numbers of steps in "
                f"them: {steps}. Restore the same checkpoint in all workers."
            )
        own = self._spending.count()
        counts = processes.numbers(own, strategy)
        adaptive = isinstance(self._private.plan, AdaptivePlan)
        if adaptive and len(set(counts)) > 1:
            raise PrivacyStateError(
                f"Workers have taken different numbers of steps: {counts}. "
                "What those of others cost, a filter cannot be told by their "
                "number. Restore the same checkpoint in all workers."
            )
        self._spending.raise_count(max(counts))

    def check_together(self, strategy: tf.distribute.Strategy | None) -> None:
        """Says why the next step would not be taken, if one worker cannot pay.

        All processes that train together call it at the same time.

        Raises:
          BudgetExhausted: In all of them.
        """
        left = self.compositions_left
        if left is None:
            return
        if self.workers == 1 or strategy is None:
            if left == 0:
                self.check_next()
        elif min(processes.numbers(left, strategy)) == 0:
            self.check_next()
            raise BudgetExhausted(
                "Another worker, which keeps the ledger, has nothing left to "
                "pay the next step with."
            )

    @property
    def can_go_on(self) -> bool:
        """Whether there is anything left to pay the next step or pass with.

        Processes that train together must end together, and know of each other
        only in steps: they go on until one refuses a step.
        """
        if self._share.workers > 1:
            return not self._spending.was_exhausted()
        return self._spending.can_go_on()

    @property
    def budget_left(self) -> float | None:
        """The part of the filter's budget that is left; None without one."""
        plan = self._private.plan
        if not isinstance(plan, AdaptivePlan):
            return None
        self._record.ledger()
        return plan.filter.remaining()

    def settle(self) -> None:
        """Gives back what was paid ahead and was not taken.

        What is not given back when a process ends stays spent. The
        `PrivacyBudget` callback does it at the end of `fit`.
        """
        self._record.ledger()
        self._spending.settle()

    def _last_events(self, number: int) -> Events:
        for payment in self._payments:
            if isinstance(payment, GraphPayment):
                return payment.events()
        return [(self._private.event(), number)]

    def privacy_statement(self) -> PrivacyStatement:
        """What is guaranteed of the training so far, in plain words.

        Raises:
          BudgetExhausted: Once, if steps were refused and nobody was told.
        """
        self._check_state()
        self._record.ledger()  # A filter is told what the graph has spent.
        self._spending.raise_refusals()
        step = self._private
        statement = privacy_statement(
            plan=step.plan,
            mechanism=step.released_by,
            clip_norm=step.clip_norm,
            noise_multiplier=step.noise_multiplier_now,
            compositions=self._in_all(),
            noise=step.mechanism.noise_family,
            fixed_sizes=step.fixed_sizes,
            examples_per_unit=step.examples_per_unit,
            seeded=step.was_seeded,
            extra_assumptions=(
                *_assumptions(step.declared_rules),
                *((_LAZY_TABLES,) if self._tables.seen else ()),
                *((_WORKERS,) if self._share.workers > 1 else ()),
                *((_TPU,) if self._on_tpu else ()),
                *step.mechanism.assumptions,
            ),
            spent_before=step.mechanism.spent_before,
        )
        if self._trainer.selected is not None:
            statement = self._trainer.selected.stated(statement, step.plan)
        return dataclasses.replace(
            statement, also_trained=told(self.other_trainers())
        )

    def mark_selected(self, *, epsilon: float, delta: float) -> None:
        """From now on the claim is that of a selection among several runs.

        `private_selection` calls it for the models that it returns.

        Args:
          epsilon: Of the whole selection.
          delta: Of the whole selection.
        """
        self._trainer.selected = Selected(
            epsilon=epsilon, delta=delta, compositions=self._in_all()
        )

    @property
    def trainer(self) -> Trainer:
        """What others have to know of this optimizer."""
        return self._trainer

    def other_trainers(self) -> list[Trainer]:
        """Who else trained its variables, at a cost that it does not state."""
        ledger = self._record.ledger()
        runs = {run.id: run.num_events for run in ledger.runs}
        bare = 0  # Others in a file count, too.
        if self._file is None and self._share.worker == 0:
            bare = self._spending.count() - ledger.num_events
        return others_than(self._trainer, runs, bare)

    def _meet(self, variables: Sequence[Any]) -> None:
        """Warns, once, if others trained them and their cost is not known."""
        register(variables, self._trainer)
        with tf.init_scope():
            others = [
                other
                for other in self.other_trainers()
                if other not in self._warned_of
            ]
            self._warned_of += others
            spent = "; ".join(map(str, others))
        if others:
            warnings.warn(
                "This DPSparseOptimizer trains weights that another private "
                f"optimizer of this process has trained ({spent}). What that "
                "spent is not in the account of this one: the two compose. "
                "Build a new model for a new run; or train on with the "
                "optimizer that there is, or with one into which its state was "
                "loaded; or give both the same filter, SharedBudget or ledger "
                "file.",
                PrivacyWarning,
                stacklevel=callers_level(),
            )

    def _in_all(self) -> int:
        """Compositions, with those of all others that share a ledger file."""
        count = self._spending.count()
        if self._file is None:
            return count
        others = self._file.num_events - self._file.events_of(self._file.run)
        return max(count, others + self._spending.taken_here())

    def forget_refusals(self) -> tuple[int, int]:
        """Refused steps since the last call: for their batch, for the budget.

        For a caller that handles them; nothing is raised for them later.
        """
        return self._spending.forget_refusals()

    def refused_batches(self, steps: int) -> str:
        """What may be wrong with the batches of so many refused steps."""
        return self._spending.refused_batches(steps)

    def protect(self, model: Any) -> None:
        """Refuses steps that write example data into the model's weights.

        Weights that no gradient reads, such as running statistics, leave with
        the saved model all the same. The `PrivacyBudget` callback calls this.
        Metrics are not weights, and not private.

        Raises:
          NotSeparableError: If a step that was traced before does so.
        """
        reference = weakref.ref(model)

        def weights() -> list[Any]:
            model = reference()
            return [] if model is None else weights_of(model)

        self._private.protect(weights)

    def check_tables(self, variables: Sequence[Any]) -> None:
        """Refuses variables with lazy noise that nothing here can update.

        Raises:
          ValueError: With the reason.
        """
        tables = [lazy_variable(v) for v in variables]
        self._tables.check([t for t in tables if t is not None])

    # The step.

    def _take_step(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        apply_inner: Callable[[list[Gradient], list[Any]], Any],
    ) -> None:
        self._check_state()
        self._spending.check_open()
        check_strategy(tf.distribute.get_strategy())
        check_share(self._share)
        self.check_tables(variables)
        self._meet(variables)
        tables = [lazy_variable(v) for v in variables]
        check_variables(
            [*not_lazy(variables), self.iterations, self._compositions],
            self._private.keys.variables,
        )
        step = self._private.clipped(
            gradients,
            [getattr(v, "path", v.name) for v in variables],
            [tuple(v.shape) for v in variables],
            [table is not None for table in tables],
            lambda kind: (
                *self._spending.vote(kind),
                tf.cast(self.iterations, tf.int64),
            ),
        )
        replicas.combined(
            step.own,
            lambda sums: self._update(
                self._private.released(step, sums),
                variables,
                tables,
                apply_inner,
            ),
        )

    def _update(
        self,
        released: Released,
        variables: Sequence[Any],
        tables: Sequence[Any],
        apply_inner: Callable[[list[Gradient], list[Any]], Any],
    ) -> None:
        """The step from the release on, once for all replicas."""
        taken = self._spending.decide(
            released.batch_size,
            released.affordable,
            released.consistent,
            released.alike,
        )

        def take() -> tf.Tensor:
            rest, lazy = [], []
            for gradient, variable, table in zip(
                released.gradients, variables, tables, strict=True
            ):
                if table is None:
                    rest.append((gradient, variable))
                else:
                    lazy.append((gradient, table))
            self._tables.update(lazy, released.stddev)
            if rest:
                with (
                    by_rows(self.inner_optimizer),
                    replicas.updating_all_copies(),
                ):
                    apply_inner(*map(list, zip(*rest, strict=True)))
            else:
                self.iterations.assign_add(1)
            return tf.constant(True)

        tf.cond(taken, take, lambda: tf.constant(False), name=PRIVATE_UPDATE)

    # What Keras asks.

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable: Any) -> None:
        # Some versions of Keras set a counter of ours, which is not used,
        # before there is an inner optimizer.
        if hasattr(self, "inner_optimizer"):
            self.inner_optimizer.iterations = variable

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        self.inner_optimizer.finalize_variable_values(not_lazy(var_list))
        for variable in var_list:
            table = lazy_variable(variable)
            if table is not None:
                table.draw_all()
        self._spending.raise_refusals()


def _assumptions(declared_rules: Collection[str]) -> tuple[str, ...]:
    if not declared_rules:
        return _ASSUMPTIONS
    return (
        *_ASSUMPTIONS,
        "Rules that were declared with tf_sparse_dp.rules are right; nobody "
        f"proves them. Declared for: {', '.join(sorted(declared_rules))}.",
    )
