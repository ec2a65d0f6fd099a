"""`check_separable`: whether a model's examples mix, by running its step."""

from __future__ import annotations

import contextlib
import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.explanation import example_writes
from tf_sparse_dp.gradients.effects import READS
from tf_sparse_dp.integrations.recommenders import Retrieval
from tf_sparse_dp.numerical import Experiment, Finding, Rows, Run, Split
from tf_sparse_dp.optimizers.wrapper import PrivateWrapper
from tf_sparse_dp.probe import Probe, taken
from tf_sparse_dp.sampling.padding import is_validity_column
from tf_sparse_dp.traced_step import as_batch, open_spec, trace

_FEWEST = 4
_MOST = 32
_REMEMBERS = (
    "The step writes example data into variables, where it is not private: a "
    "later step may read it, and it leaves with the saved model. Keep running "
    "statistics and memories out of the model, or compute them from public "
    "data."
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SeparabilityReport:
    """What `check_separable` found. `str` gives it in words.

    Attributes:
      model: Name of the model, or of the function.
      examples: How many examples a batch of the test had. If 8 or more were
        given it is half of them: the others take their places.
      loss_reduction: The reduction that was undone.
      findings: One per test.
      refusal: Why the analysis refuses the step; empty if it accepts it.
    """

    model: str
    examples: int
    loss_reduction: str
    findings: tuple[Finding, ...]
    refusal: str

    @property
    def separable(self) -> bool:
        """Whether no test found examples that mix."""
        return all(finding.passed for finding in self.findings)

    def __str__(self) -> str:
        outcome = "nothing found" if self.separable else "FAILED"
        lines = [
            f"Check of '{self.model}' with {self.examples} examples and "
            f"loss_reduction={self.loss_reduction!r}: {outcome}",
            *(f"  {finding}" for finding in self.findings),
        ]
        remedies = dict.fromkeys(f.remedy for f in self.findings if f.remedy)
        if self.refusal:
            remedies[f"The analysis refuses this step: {self.refusal}"] = None
        lines += [textwrap.fill(remedy, 79) for remedy in remedies]
        return "\n".join(lines)

    __repr__ = __str__


def check_separable(
    model: Any,
    batch: Any,
    *,
    loss_reduction: str | None = None,
    tolerance: float = 1e-3,
) -> SeparabilityReport:
    """Checks by experiment that the examples of a batch do not mix.

    Runs the model's own training step, without applying gradients, on batches
    in which some examples are replaced by others. The contributions of those
    that stay must stay; a batch twice as long must give the same
    contributions, which a wrong `loss_reduction` does not; no variable but
    metrics may keep anything of the examples. Where the analysis accepts the
    step, its terms and norms are compared with what the experiment shows.

    This is evidence and no proof: it sees what these weights and these examples
    show. It does not use the analysis, and so can contradict it.

    Everything is as before afterwards: weights, metrics, optimizer, budget and
    the state of random generators. Dropout and noise layers are switched off
    for the check, because random masks hide what is looked for; `Retrieval` of
    `integrations.recommenders` takes the same negatives each time.

    Args:
      model: A compiled model, with any optimizer.
      batch: What one step of `fit` gets, with at least 4 different examples,
        or a `tf.data.Dataset` of such. Up to 32 of the examples are used.
      loss_reduction: "mean" or "sum"; by default what the optimizer was told,
        and "mean" if it is not a `DPSparseOptimizer`.
      tolerance: Relative deviation up to which things count as equal; larger
        for models that compute in bfloat16.

    Returns:
      The report, if nothing was found.

    Raises:
      NotSeparableError: If examples mix; `report` has the report.
      TypeError: If the model or the batch is not what is described above.
      ValueError: If nothing can be seen: too few examples, or all alike, or a
        step whose gradients differ each time, or are not finite.

    Example:
      >>> model = tf.keras.Sequential(
      ...     [tf.keras.Input((3,)), tf.keras.layers.Dense(2)]
      ... )
      >>> model.compile(optimizer="sgd", loss="mse")
      >>> batch = (tf.random.normal([8, 3]), tf.random.normal([8, 2]))
      >>> check_separable(model, batch).separable
      True
    """
    if loss_reduction not in (None, "mean", "sum"):
        raise ValueError(
            f"loss_reduction={loss_reduction!r} was given; expected 'mean', "
            "'sum', or None for what the optimizer was told."
        )
    examples = _examples(as_batch(batch))
    with _without_noise(model):
        step = _Step(model, examples)
    if loss_reduction is None:
        loss_reduction = "mean"
        if isinstance(model.optimizer, PrivateWrapper):
            loss_reduction = model.optimizer.loss_reduction
    with step.undone():
        experiment = Experiment(
            step.run, step.rows, step.probe.names, loss_reduction, tolerance
        )
        experiment.check_finite()
        memory = step.memory()
        # State that keeps examples makes two runs differ as well.
        random = experiment.randomness(step.run_on) if memory.passed else 0.0
        if not random <= tolerance:
            raise ValueError(
                "Two runs of the training step on the same batch gave "
                f"gradients that differ by {random:.1e}, relatively, although "
                "Keras' dropout and noise layers were switched off. Remove "
                "other randomness for the check, also that of layers inside "
                "a tf.function that was called before."
            )
        if not experiment.influence() > 0:
            raise ValueError(
                "Replacing examples by others of the batch changes no "
                "gradient, so nothing can be seen. Pass a batch of different "
                "examples."
            )
        findings = experiment.gradient_tests()
        if not step.probe.refusal:
            findings += experiment.term_tests()
        findings.append(memory)
    report = SeparabilityReport(
        model=model.name,
        examples=experiment.size,
        loss_reduction=loss_reduction,
        findings=tuple(findings),
        refusal=step.probe.refusal,
    )
    return passed(report)


def passed(report: SeparabilityReport) -> SeparabilityReport:
    """The report, unless a test failed.

    Raises:
      NotSeparableError: If one did.
    """
    if report.separable:
        return report
    error = NotSeparableError(str(report))
    error.report = report
    raise error


class _Step:
    """A model's training step, to be run on rows of a batch."""

    def __init__(self, model: Any, batch: Any):
        self._batch = batch
        self.rows = rows_of(batch)
        self.probe = Probe()
        self._function = trace(
            model,
            tf.nest.map_structure(open_spec, batch),
            self.probe.read,
            self.probe.forget,
        )
        self._writes = example_writes(model, self.probe.memories)
        for write in self._writes:
            self.probe.refusal = self.probe.refusal or write.refusal().reason
        self._written = self._writable()
        self._values = [variable.numpy() for variable in self._written]
        metrics = {
            id(variable.handle)
            for metric in model.metrics
            for variable in metric.variables
        }
        self._kept = [v for v in self._written if id(v.handle) not in metrics]

    def run(self, rows: Rows, counted: Split) -> Run:
        """Runs the step on some rows, from the state that it started in."""
        self._restore()
        return self.run_on(rows, counted)

    def run_on(self, rows: Rows, counted: Split) -> Run:
        """Runs the step on some rows, from the state that it is in."""
        self.probe.count(counted)
        return self.probe.answer(self._function(taken(self._batch, rows)))

    def memory(self) -> Finding:
        """Whether any variable keeps something of the examples."""
        after = []
        for rows in (range(self.rows), [0] * self.rows):
            self.run(tuple(rows), (True,) * self.rows)
            after.append([variable.numpy() for variable in self._kept])
        changed = [
            variable.name.split(":")[0]
            for variable, one, other in zip(self._kept, *after, strict=True)
            if not np.array_equal(one, other)
        ]
        seen = [
            (write.variable or write.operation).split(":")[0]
            for write in self._writes
        ]
        names = list(dict.fromkeys(seen or changed))
        return Finding(
            test="No variable but metrics keeps anything of the examples",
            passed=not names,
            deviation=float(len(names)),
            worst=", ".join(names),
            remedy=_REMEMBERS if names else "",
        )

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Puts every variable back to its value at the end."""
        try:
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        for variable, value in zip(self._written, self._values, strict=True):
            variable.assign(value)

    def _writable(self) -> list[tf.Variable]:
        """Variables that the step does more with than to read them."""
        graph = self._function.get_concrete_function().graph
        handles = {
            id(outer)
            for outer, inner in graph.captures
            if any(op.type not in READS for op in inner.consumers())
        }
        return [
            variable
            for variable in graph.variables
            if id(variable.handle) in handles
        ]


def rows_of(batch: Any) -> int:
    """The number of examples in a batch."""
    parts = [part for part in tf.nest.flatten(batch) if part is not None]
    sizes = {int(part.shape[0]) for part in parts}
    if len(sizes) != 1:
        raise ValueError(
            f"The tensors of the batch have {sorted(sizes)} rows; expected one "
            "row per example in all of them."
        )
    return sizes.pop()


def _examples(batch: Any) -> Any:
    """Some examples of a batch; padding is left out if there are enough."""
    rows = np.arange(rows_of(batch))
    for part in tf.nest.flatten(batch):
        if part is not None and is_validity_column(part):
            rows = rows[np.asarray(part) > 0]
    if len(rows) < _FEWEST:
        raise ValueError(
            f"The batch has {len(rows)} examples; expected at least {_FEWEST}, "
            "different from each other."
        )
    return taken(batch, tuple(rows[:_MOST]))


@contextlib.contextmanager
def _without_noise(model: Any) -> Iterator[None]:
    """While open, dropout and noise do nothing, and negatives are fixed."""
    layers = tf.keras.layers
    noisy = (
        layers.Dropout,
        layers.AlphaDropout,
        layers.GaussianDropout,
        layers.GaussianNoise,
        layers.SimpleRNNCell,
        layers.LSTMCell,
        layers.GRUCell,
    )
    parts = list(getattr(model, "_flatten_layers", list)())
    switched = [
        (layer, name, getattr(layer, name))
        for layer in parts
        if isinstance(layer, noisy)
        for name in ("rate", "stddev", "dropout", "recurrent_dropout")
        if hasattr(layer, name)
    ]
    with contextlib.ExitStack() as stack:
        for layer in parts:
            if isinstance(layer, Retrieval):
                stack.enter_context(layer.with_fixed_negatives())
        for layer, name, value in switched:
            stack.callback(setattr, layer, name, value)
            setattr(layer, name, 0.0)
        yield
