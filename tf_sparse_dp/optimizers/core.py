"""One private step, independent of any Keras: read it from top to bottom."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf

from tf_sparse_dp.accounting.adaptive_plan import (
    AdaptivePlan,
    Plan,
    check_noise_multiplier,
)
from tf_sparse_dp.accounting.calibration import RELEASE_FAILURE
from tf_sparse_dp.distribute import replicas
from tf_sparse_dp.distribute.refusals import check_step
from tf_sparse_dp.distribute.replicas import Contribution
from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients.clipping import terms_of_units
from tf_sparse_dp.gradients.factors import Factor
from tf_sparse_dp.gradients.internals import is_compiled
from tf_sparse_dp.gradients.loss_scale import LossScale
from tf_sparse_dp.gradients.memory import Memory
from tf_sparse_dp.gradients.precision import check_precision
from tf_sparse_dp.gradients.rules.declared import declared_among
from tf_sparse_dp.gradients.separation import (
    Gradient,
    Separated,
    Separation,
)
from tf_sparse_dp.local_variable import local_variable
from tf_sparse_dp.mechanisms.interface import (
    Mechanism,
    PublicFacts,
    Sum,
    Variable,
)
from tf_sparse_dp.optimizers.arguments import (
    check_choice,
    check_noise,
    check_parts,
    check_positive,
    chosen_mechanism,
    unit_size,
)
from tf_sparse_dp.optimizers.own_batch import (
    check_iterators,
    iterator_of,
    own_inputs,
)
from tf_sparse_dp.random_keys import KeyStream, fold_in
from tf_sparse_dp.sampling.padding import is_validity_column
from tf_sparse_dp.sampling.step_kinds import (
    StepKind,
    has_parts,
    kind_of,
    step_kinds,
)

REDUCTIONS = ("mean", "sum")
_SMALLEST_CLIP_NORM = 1e-6
_COMPARED = 2**20  # Of what is drawn from a step's key, nothing else's.


@dataclasses.dataclass(frozen=True)
class Released:
    """What a step gives to the inner optimizer.

    Attributes:
      gradients: Private gradients; None where there was none. Those whose
        noise comes later are not private before.
      stddev: Size of the noise that these lack, on every entry.
      batch_size: Rows of the batch, of all replicas together, int64.
      affordable: Whether all processes can pay the step, a bool tensor.
      consistent: Whether all inputs had as many rows, on all replicas; a bool
        tensor.
      alike: Whether all processes have the same settings; a bool tensor.
    """

    gradients: list[Gradient]
    stddev: tf.Tensor | float
    batch_size: tf.Tensor
    affordable: tf.Tensor
    consistent: tf.Tensor
    alike: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Clipped:
    """The step up to the sums: what a replica does by itself.

    Attributes:
      own: Clipped sums, and what else replicas combine.
      parts: One per gradient; None where there was none.
      facts: What is public.
      mechanism: What releases the sums.
      key: The key that it gets, the same for all replicas.
    """

    own: Contribution
    parts: list[Separated | None]
    facts: PublicFacts
    mechanism: Mechanism
    key: tf.Tensor


class PrivateStep:
    """Turns the gradients of a traced step into private ones.

    Args: as those of `DPSparseOptimizer`.
    """

    def __init__(
        self,
        plan: Plan | None,
        *,
        clip_norm: float,
        mechanism: Mechanism | str,
        noise_multiplier: float | None,
        expected_batch_size: float | None,
        examples_per_unit: int | None,
        loss_reduction: str,
        seed: int | None,
    ):
        check_choice(plan, noise_multiplier, expected_batch_size)
        check_positive("clip_norm", clip_norm)
        if clip_norm < _SMALLEST_CLIP_NORM:
            raise ValueError(
                f"clip_norm={clip_norm!r} was given; expected at least "
                f"{_SMALLEST_CLIP_NORM}, below which float32 loses norms. "
                "Scale the loss up."
            )
        if loss_reduction not in REDUCTIONS:
            raise ValueError(
                f"loss_reduction={loss_reduction!r} was given; expected one of "
                f"{REDUCTIONS}: how the loss combines the examples of a batch."
            )
        self.kinds: tuple[StepKind, ...] = ()
        if plan is None:
            self.noise_multiplier = float(noise_multiplier)  # type: ignore[arg-type]
            self.expected_batch_size = float(expected_batch_size)  # type: ignore[arg-type]
        else:
            self.noise_multiplier = plan.noise_multiplier
            self.kinds = step_kinds(plan.sampling)
            self.expected_batch_size = max(
                kind.expected_batch_size for kind in self.kinds
            )
        self.plan = plan
        # Noise now over noise at the start, if it may change; else None.
        self.noise_ratio: tf.Variable | None = None
        if isinstance(plan, AdaptivePlan):
            self.noise_ratio = local_variable(1.0, name="noise_ratio")
        self.clip_norm = float(clip_norm)
        self.mechanism = chosen_mechanism(mechanism, plan)
        check_noise(plan, self.mechanism)
        check_parts(plan, self.mechanism)
        self.released_by = self.mechanism.description
        self.fixed_sizes = self.mechanism.fixed_sizes
        self.examples_per_unit = unit_size(examples_per_unit, plan)
        self.loss_reduction = loss_reduction
        self.keys = KeyStream(seed)
        self.was_seeded = self.keys.seeded  # Also before it was saved.
        self._memories: list[Memory] = []
        # From what each replica of a traced step takes its batch.
        self._traced: dict[tuple[tf.Graph, int], str | None] = {}
        self._forms: dict[tuple[tf.Graph, tuple[str, ...]], str] = {}
        self._lookups: dict[tuple[int, str], int | None] = {}
        self._own_variables: Callable[[], Iterable[Any]] = tuple
        self.declared_rules: set[str] = set()  # What the guarantee rests on.

    # Traced as it stands: AutoGraph would rewrite everything below, which takes
    # longer than all the rest of tracing.
    @tf.autograph.experimental.do_not_convert
    def clipped(
        self,
        gradients: Sequence[Gradient],
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        noise_later: Sequence[bool],
        vote: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]],
    ) -> Clipped:
        """The step up to the sums, of the rows that this replica has.

        Args:
          gradients: What the tape gave.
          names: Of the variables.
          shapes: Of the variables.
          noise_later: Which variables are tables that get their noise when
            they are read.
          vote: Gives, for the kind of a step, whether it can be paid, how many
            compositions were spent, and how many steps are in the weights.

        Raises:
          NotSeparableError: If the gradients are not proven to be sums of
            per-example terms.
          ValueError: If products are rounded too much, or the mechanism is not
            made for this model.
        """
        check_precision()
        lazy = [n for n, later in zip(names, noise_later, strict=True) if later]
        check_step(
            lazy,
            None if self.plan is None else self.plan.sampling,
            has_parts(self.kinds),
            self.mechanism.spent_before,
        )
        separation = Separation(gradients, names, shapes)
        self._check_first_release(separation)
        self.check_reduction(separation, names)
        valid, consistent = self.validity(separation)
        self._keep_clean(Memory(separation.analysis))
        self.declared_rules.update(
            declared_among(separation.analysis.operations)
        )
        parts = separation.parts
        terms, trained = separation.terms()
        if not terms:
            raise NotSeparableError(
                "No example influences any gradient, so there is nothing to "
                "train privately. Check that the loss depends on the batch."
            )
        terms, valid = terms_of_units(terms, valid, self.examples_per_unit)
        later = lazily_trained(separation, noise_later)
        kind = kind_of(separation.batch_size * replicas.count(), self.kinds)
        facts = self.public_facts(terms, trained, later, kind)
        self._check_lookups(facts)
        mechanism = self.resolved_mechanism(facts)
        self.released_by = mechanism.description
        self.fixed_sizes = mechanism.fixed_sizes
        _check_sizes(mechanism, facts)
        form = self._form(separation, names)
        key = replicas.one_key(self.keys.next)
        scale: tf.Tensor | float = 1.0
        if self.loss_reduction == "mean":
            # Keras divides the mean of each replica by their number.
            scale = separation.batch_size * replicas.count()
        sums = mechanism.clipped(terms, key, facts, scale=scale, valid=valid)
        affordable, count, iterations = replicas.once(lambda: vote(kind))
        own = Contribution(
            sums=sums,
            free=[
                p.free for p in parts if p is not None and p.free is not None
            ],
            rows=tf.cast(separation.batch_size, tf.int64)[tf.newaxis],
            consistent=consistent[tf.newaxis],
            affordable=affordable[tf.newaxis],
            count=count[tf.newaxis],
            iterations=iterations[tf.newaxis],
            # With keys of their own, replicas would each add other noise.
            setting=(self._setting(shapes, form) + fold_in(key, _COMPARED)[0])[
                tf.newaxis
            ],
        )
        return Clipped(own, parts, facts, mechanism, key)

    @tf.autograph.experimental.do_not_convert
    def released(self, step: Clipped, together: Contribution) -> Released:
        """The step from the sums to the inner optimizer, once for all replicas.

        Args:
          step: From `clipped`.
          together: The sums over all replicas, from `replicas.combined`.
        """
        rows = tf.reduce_sum(together.rows)
        kind = kind_of(rows, self.kinds)
        divisor = self._divisor(kind)
        clipped = together.sums
        if self.noise_ratio is not None:
            # The same noise on sums that are r times smaller, and all of it
            # multiplied by r again, is noise that is r times larger.
            ratio = tf.convert_to_tensor(self.noise_ratio)
            clipped = [_divided(total, ratio) for total in clipped]
            divisor /= ratio
        private = step.mechanism.release(clipped, step.key, step.facts)
        released: list[Gradient] = []
        remaining, free = iter(private), iter(together.free)
        for part in step.parts:
            if part is None:
                released.append(None)
            elif part.terms is None:
                released.append(next(free))
            else:
                mean = _divided(next(remaining), divisor)
                if part.free is not None:  # Dense, as regularisers are.
                    mean = tf.convert_to_tensor(mean)
                    mean += tf.cast(next(free), mean.dtype)
                released.append(mean)
        return Released(
            released,
            step.facts.stddev / divisor,
            rows,
            tf.reduce_all(together.affordable),
            tf.reduce_all(together.consistent) & self._is_even(together.rows),
            together.are_alike(),
        )

    def _form(self, separation: Separation, names: Sequence[str]) -> str:
        """Which gradients have terms of examples, and which of them are free.

        Raises:
          ValueError: If those of another replica are of another form.
        """
        form = repr(
            [
                None
                if part is None
                else (
                    part.terms if part.terms is None else type(gradient),
                    part.free is None,
                )
                for part, gradient in zip(
                    separation.parts, separation.gradients, strict=True
                )
            ]
        )
        place = (separation.analysis.graph, tuple(names))
        if self._forms.setdefault(place, form) != form and replicas.count() > 1:
            raise ValueError(
                "Replicas have gradients of different forms: what is a "
                "regulariser on one depends on examples, is missing, or has "
                "other rows on another. Expected the same on all, since what "
                "they bring in is added up: compute the same loss on each."
            )
        return form

    def _setting(self, shapes: Sequence[Sequence[int]], form: str) -> tf.Tensor:
        """A number for what has to be the same in all processes.

        With other noise, two of them would release the same sums and the same
        noise in two proportions, and so the sums. With gradients of another
        form, one would take the sums of examples for what needs no noise.
        """
        sampling = None if self.plan is None else self.plan.sampling
        fixed = (
            *(shapes, form, sampling, type(self.mechanism).__name__),
            *(self.mechanism.get_config(), self.clip_norm),
            *(self.noise_multiplier, self.expected_batch_size),
            *(self.examples_per_unit, self.loss_reduction),
        )
        digest = hashlib.blake2b(repr(fixed).encode(), digest_size=4).digest()
        number = tf.constant(int.from_bytes(digest, "little"), tf.int64)
        if self.noise_ratio is None:
            return number
        ratio = tf.bitcast(tf.convert_to_tensor(self.noise_ratio), tf.int32)
        return number * 2**31 + tf.cast(ratio, tf.int64)  # 0 <= ratio.

    def _is_even(self, rows: tf.Tensor) -> tf.Tensor:
        """Whether replicas have as many rows each, where these are fixed."""
        if all(kind.rows is None for kind in self.kinds):
            return tf.constant(True)
        return tf.reduce_all(rows == rows[0])

    def public_facts(
        self,
        terms: Sequence[Factor],
        names: Sequence[str],
        noise_later: Sequence[bool],
        kind: tf.Tensor | None = None,
    ) -> PublicFacts:
        """What the mechanism may know of a step with these units' terms."""
        in_parts = has_parts(self.kinds)
        return PublicFacts(
            variables=tuple(map(Variable.of, terms, names, noise_later)),
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.expected_batch_size,
            failure_probability=RELEASE_FAILURE
            if self.plan is None
            else self.plan.release_failure,
            levels=len(self.kinds) if in_parts else None,
            level=kind if in_parts else None,
        )

    def resolved_mechanism(self, facts: PublicFacts) -> Mechanism:
        """The mechanism that releases, given what is public.

        Raises:
          ValueError: If it is not made for that.
        """
        mechanism = self.mechanism.resolved(facts)
        if facts.noise_later and not mechanism.allows_noise_later:
            raise ValueError(
                f"'{facts.noise_later[0]}' is a table of LazyEmbedding, which "
                "gets Gaussian noise on every entry when it is read; "
                f"{type(mechanism).__name__} releases tables in another way. "
                "Use mechanism='auto' or Gaussian() with a plan for Gaussian "
                "noise, or keras.layers.Embedding for the table."
            )
        mechanism.check(facts)
        return mechanism

    @property
    def noise_multiplier_now(self) -> float:
        """The noise of the next step."""
        if self.noise_ratio is None:
            return self.noise_multiplier
        return self.noise_multiplier * float(self.noise_ratio.numpy())

    def event(self) -> dp_accounting.DpEvent:
        """What the next step, or pass, costs."""
        if self.plan is None:
            return dp_accounting.UnsupportedDpEvent()  # Who was in the batch?
        if isinstance(self.plan, AdaptivePlan):
            return self.plan.step_event(self.noise_multiplier_now)
        return self.plan.step_event

    def ratio_of(self, noise_multiplier: float) -> np.float32:
        """What `noise_ratio` has to be for other noise, rounded up.

        Raises:
          ValueError, TypeError: Noise cannot change, or not to this.
        """
        if self.noise_ratio is None:
            raise ValueError(
                "Noise can be changed while a run goes on only where a filter "
                "pays for each step as it comes. Give DPSparseOptimizer a "
                "RenyiFilter in place of a plan."
            )
        if has_parts(self.kinds):
            raise ValueError(
                "Noise cannot be changed while a run with "
                f"{type(self.plan.sampling).__name__} goes on: what its steps "  # type: ignore[union-attr]
                "cost is worked out beforehand. Make a new optimizer with the "
                "same filter."
            )
        wanted = check_noise_multiplier(noise_multiplier)
        wanted /= self.noise_multiplier
        ratio = np.float32(wanted)
        if ratio < wanted:
            ratio = np.nextafter(ratio, np.float32(np.inf))
        return ratio

    def protect(self, variables: Callable[[], Iterable[Any]]) -> None:
        """Refuses steps that write example data into a model's variables.

        Args:
          variables: Gives them; asked while a step is traced, when they exist.

        Raises:
          NotSeparableError: If a step that was traced before does so.
        """
        self._own_variables = variables
        for memory in self._memories:
            memory.check(variables())

    def _keep_clean(self, memory: Memory) -> None:
        """Looks at writes now, and again when the whole step is traced."""
        memory.check(self._own_variables())
        memory.check_when_traced(lambda: self._own_variables())
        self._memories.append(memory)

    def _check_lookups(self, facts: PublicFacts) -> None:
        """What a mechanism takes for public must not change with the batch."""
        if self.plan is None or not self.mechanism.uses_lookups:
            return
        for place, variable in enumerate(facts.variables):
            known = self._lookups.setdefault(
                (place, variable.name), variable.lookups
            )
            if variable.lookups != known:
                raise ValueError(
                    f"Examples look up {variable.lookups} rows of "
                    f"'{variable.name}', but {known} in steps before. "
                    f"{type(self.mechanism).__name__} takes the number for "
                    "public, so that it must not depend on the batch: pad all "
                    "ids to one width that is fixed beforehand, or use a "
                    "mechanism that does not need it, such as Gaussian() or "
                    "Threshold()."
                )

    def _check_first_release(self, separation: Separation) -> None:
        """One batch, one release: a second would not see a fresh draw."""
        # Replicas are traced one after another, into one graph.
        graph = separation.analysis.graph
        traced = (graph, replicas.local_place()[0])
        again = traced in self._traced
        self._traced[traced] = iterator_of(separation)
        check_iterators(
            [name for (at, _), name in self._traced.items() if at is graph]
        )
        if again and self.plan is not None:
            raise NotSeparableError(
                "The training step applies gradients twice. The plan charges "
                "each release as one with a batch of its own, so a step may "
                "apply gradients once: compute the gradients of all variables "
                "together."
            )

    def check_reduction(
        self, separation: Separation, names: Sequence[str]
    ) -> None:
        """Refuses gradients that are not reduced as `loss_reduction` says.

        Raises:
          NotSeparableError: If the graph shows another reduction.
        """
        for found, name in zip(reductions(separation), names, strict=True):
            if found is None or found == self.loss_reduction:
                continue
            reason = (
                f"loss_reduction={self.loss_reduction!r} was given, but the "
                f"gradient of '{name}' is a {found} over the examples of the "
                "batch."
            )
            remedy = (
                f"Pass loss_reduction={found!r} to DPSparseOptimizer, or "
                "change the reduction of the loss."
            )
            error = NotSeparableError(f"{reason} {remedy}")
            error.reason, error.remedy = reason, remedy
            raise error

    def validity(
        self, separation: Separation
    ) -> tuple[tf.Tensor | None, tf.Tensor]:
        """Which rows are examples, and whether the batch is in order.

        Raises:
          NotSeparableError: If the batch is not one of the plan's sampling.
        """
        columns = [t for t in own_inputs(separation) if is_validity_column(t)]
        sampling: Any = None if self.plan is None else self.plan.sampling
        if sampling is not None and sampling.requires_validity:
            _check_validity_columns(len(columns), sampling)
        consistent = separation.consistent
        expected = [kind.rows for kind in self.kinds if kind.rows is not None]
        if expected:
            consistent &= self._has_rows(separation, expected)
        if self.examples_per_unit > 1:  # On every replica.
            consistent &= self._whole_units(separation)
        if len(columns) != 1:
            return None, consistent
        (column,) = columns
        consistent &= tf.shape(column)[0] == separation.batch_size
        return column > 0, consistent

    def _has_rows(
        self, separation: Separation, expected: Sequence[int]
    ) -> tf.Tensor:
        """Whether the batch has as many rows as the sampling gives."""
        number = replicas.count()
        if number > 1 and {number * rows for rows in expected} & set(expected):
            raise NotSeparableError(
                f"The plan's sampling gives batches of {expected} rows, some "
                f"of them {number} times as large as others. On {number} "
                "replicas a small batch for each would look like a large one "
                "that was dealt out, although examples may be in several. "
                "Choose max_batch_sizes of other proportions."
            )
        rows = separation.analysis.sizes.batch_size
        if rows is not None and rows * number not in expected:
            shared = "" if number == 1 else f" on each of {number} replicas"
            raise NotSeparableError(
                f"The batch has {rows} rows{shared}, but the plan's sampling "
                f"gives {' or '.join(map(str, expected))} in all. Train on "
                "the dataset(...) of the very sampling that the plan was made "
                "with, without batching it again"
                + (
                    "."
                    if number == 1
                    else ": one data set that is dealt out by fit, or by "
                    "strategy.experimental_distribute_dataset. A smaller "
                    "sampling for each replica would draw examples twice."
                )
            )
        return tf.reduce_any(
            separation.batch_size * number == tf.constant(expected)
        )

    def _divisor(self, kind: tf.Tensor) -> tf.Tensor | float:
        """The number of units that is expected in this batch."""
        if len(self.kinds) <= 1:
            return self.expected_batch_size
        sizes = [kind.expected_batch_size for kind in self.kinds]
        return tf.gather(tf.constant(sizes, tf.float32), tf.maximum(kind, 0))

    def _whole_units(self, separation: Separation) -> tf.Tensor:
        """Whether the batch consists of whole units."""
        rows = separation.analysis.sizes.batch_size
        if rows is not None and rows % self.examples_per_unit:
            raise NotSeparableError(
                f"The batch has {rows} rows, which is not a multiple of "
                f"examples_per_unit={self.examples_per_unit}. Fill the rows "
                "of each unit up to that number, with a float16 column that "
                "is 0 for the rows that only fill up."
            )
        return separation.batch_size % self.examples_per_unit == 0


def reductions(separation: Separation) -> list[str | None]:
    """How each gradient is reduced; None where it is not clear."""
    scale = LossScale(separation.analysis)
    found: list[str | None] = []
    for gradient, part in zip(
        separation.gradients, separation.parts, strict=True
    ):
        if gradient is None or part is None or part.terms is None:
            found.append(None)
            continue
        if isinstance(gradient, tf.IndexedSlices):
            gradient = gradient.values
        found.append(scale.reduction(gradient))
    return found


def _check_validity_columns(count: int, sampling: Any) -> None:
    if count == 1:
        return
    name = type(sampling).__name__
    message = (
        f"The plan's sampling is {name}, but the batch has {count} validity "
        "columns (float16 vectors that mark padding) instead of one, so it "
        "does not look like a batch of that sampling. Train on "
        "sampling.dataset(...) and pass its whole elements to the training "
        "step; "
    )
    if step_kinds(sampling)[0].rows is not None:
        raise NotSeparableError(
            message + "for batches of your own use EpochSampling."
        )
    raise NotSeparableError(
        message + "a data set of your own has a float16 weight for every row, "
        "0 where a unit has fewer examples, and keeps the rows of a unit "
        "together. (fit shuffles arrays row by row.)"
    )


def lazily_trained(
    separation: Separation, noise_later: Sequence[bool]
) -> list[bool]:
    """Which of the variables that examples move get their noise later.

    Raises:
      ValueError: If something else moves one of those, too.
    """
    trained = []
    for part, name, later in zip(
        separation.parts, separation.names, noise_later, strict=True
    ):
        if part is None:
            continue
        if later and part.free is not None:
            raise ValueError(
                f"Something other than examples moves '{name}', a table of "
                "LazyEmbedding: a regulariser or a penalty in the loss. It "
                "would have to see all rows with their noise at every step. "
                "Leave it out, or use keras.layers.Embedding for the table."
            )
        if part.terms is not None:
            trained.append(later)
    return trained


def _divided(total: Sum, by: tf.Tensor | float) -> Sum:
    if isinstance(total, tf.IndexedSlices):
        values = _divided(total.values, by)
        return tf.IndexedSlices(values, total.indices, total.dense_shape)
    return total / tf.cast(by, total.dtype)


def _check_sizes(mechanism: Mechanism, facts: PublicFacts) -> None:
    """XLA needs sizes that are fixed, and those must be allowed to fail."""
    if (
        mechanism.fixed_sizes
        and facts.noise_multiplier > 0
        and facts.failure_probability == 0
        and is_compiled(tf.compat.v1.get_default_graph())
    ):
        raise ValueError(
            "XLA compiles the training step, which takes sizes that are fixed "
            f"beforehand, but {mechanism!r} may fail with such sizes, and the "
            "plan has no room for that: delta is 0 or tiny, or epsilon huge. "
            "Expected a step that is not compiled: pass jit_compile=False to "
            "compile, or choose a mechanism with noise on every entry, "
            f"{mechanism.noise_family.capitalize()}()."
        )
