"""Rules for operations of your own, and a test for them.

The analysis types each operation of the training step by a rule. One without a
rule that meets example data is refused. Here a rule for it can be declared:

- `rowwise("MyOp")`, if it treats rows one by one: this is what most need.
- `typing`, `factoring` and `lifting`, the decorators that the library's own
  rules use, for everything else.

**A declared rule is an assumption of the guarantee.** The privacy statement and
`explain` name it. A rule that is wrong makes training look private that is not,
so test each with `check`, and read twice what it says.

A rule is for a type of operation. There is none for Python functions or layers
as a whole: the analysis looks into those by itself, so declare the operations
that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients.analysis import Analysis
from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    RowFactor,
)
from tf_sparse_dp.gradients.rules.declared import (
    declared,
    factoring,
    lifting,
    rowwise,
    typing,
)
from tf_sparse_dp.gradients.rules.registry import mixed
from tf_sparse_dp.gradients.types import (
    Batched,
    Block,
    Free,
    Mixed,
    Summed,
    Type,
)
from tf_sparse_dp.numerical import Experiment, Finding, Rows, Run, Split
from tf_sparse_dp.probe import Probe, taken
from tf_sparse_dp.separability import SeparabilityReport, passed, rows_of
from tf_sparse_dp.traced_step import as_batch, open_spec

__all__ = [
    "Analysis",
    "Batched",
    "Block",
    "DenseFactor",
    "Factor",
    "Free",
    "Mixed",
    "OuterFactor",
    "RowFactor",
    "Summed",
    "Type",
    "check",
    "declared",
    "factoring",
    "lifting",
    "mixed",
    "rowwise",
    "typing",
]

_FEWEST = 4
_ROUNDS = 2


def check(
    losses: Callable[..., tf.Tensor],
    *inputs: Any,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> SeparabilityReport:
    """Tests the rules behind a small model against a loop over examples.

    Traces the gradient of the mean loss, with a batch size that is known while
    tracing and with one that is not, and compares what the analysis makes of
    it with the gradients of one example at a time, and with those of batches in
    which some examples are replaced by others. Numbers in the inputs are
    changed at random between rounds.

    Args:
      losses: Maps tensors with one row per example to one loss per example,
        [B], and uses trainable variables before and after what is tested, so
        that both its value and its gradient matter. AutoGraph does not touch
        it.
      inputs: At least 4 different examples: arrays or tensors.
      tolerance: Relative deviation up to which things count as equal.
      seed: Of the random changes.

    Returns:
      The report, if all is well.

    Raises:
      NotSeparableError: If the analysis refuses, or a rule is wrong.
      ValueError: If `losses` or `inputs` are not what is described above.

    Example:
      >>> weights = tf.Variable([[1.0, -1.0], [0.5, 2.0]])
      >>> def losses(x):
      ...     return tf.reduce_sum(tf.tanh(x @ weights), 1)
      >>> check(losses, np.random.RandomState(0).randn(6, 2)).separable
      True
    """
    batch = as_batch(inputs)
    rows = rows_of(batch)
    if rows < _FEWEST:
        raise ValueError(
            f"The inputs have {rows} examples; expected at least {_FEWEST}, "
            "different from each other."
        )
    random = np.random.RandomState(seed)
    findings: list[Finding] = []
    for _ in range(_ROUNDS):
        for static in (False, True):
            tested = _Tested(losses, batch, static)
            experiment = Experiment(
                tested.run, rows, tested.names(), "mean", tolerance
            )
            experiment.check_finite()
            if not experiment.influence() > 0:
                raise ValueError(
                    "The examples have no influence on any gradient, so "
                    "nothing is tested. Pass different examples, and use "
                    "trainable variables before and after what is tested."
                )
            findings += experiment.gradient_tests()
            findings += experiment.term_tests()
            findings.append(experiment.alone(tested.alone))
        batch = _changed(batch, random)
    name = getattr(losses, "__name__", "losses")
    return passed(
        SeparabilityReport(
            model=name,
            examples=experiment.size,
            loss_reduction="mean",
            findings=_worst(findings),
            refusal="",
        )
    )


class _Tested:
    """The mean of some losses, as a training step would see it."""

    def __init__(
        self, losses: Callable[..., tf.Tensor], batch: Any, static: bool
    ):
        self._losses = losses
        self._batch = batch
        self._static = static
        self._functions: dict[int, Any] = {}
        self._probe = Probe()
        with tf.GradientTape() as tape:
            self._loss(batch)
        self._variables = list(tape.watched_variables())
        if not self._variables:
            raise ValueError(
                "The losses use no trainable variable, so there is no gradient "
                "to test. Multiply inputs and outputs by variables."
            )

    def names(self) -> list[str]:
        """Names of the variables.

        Raises:
          NotSeparableError: If the analysis refuses the losses.
        """
        self._function(rows_of(self._batch))
        if self._probe.refusal:
            raise NotSeparableError(self._probe.refusal)
        return list(self._probe.names)

    def run(self, rows: Rows, counted: Split) -> Run:
        """Gradients and terms of some rows."""
        function = self._function(len(rows))
        self._probe.count(counted)
        return self._probe.answer([function(*taken(self._batch, rows))])

    def alone(self, row: int) -> Sequence[Any]:
        """Gradients of one example's loss, without any analysis."""
        return self._gradients(taken(self._batch, (row,)))

    def _function(self, rows: int) -> Any:
        size = rows if self._static else 0
        if size not in self._functions:
            specs = [
                self._spec(part, rows) if self._static else open_spec(part)
                for part in self._batch
            ]
            function = tf.function(
                self._step, input_signature=specs, autograph=False
            )
            function.get_concrete_function()
            self._functions[size] = function
        return self._functions[size]

    @staticmethod
    def _spec(part: Any, rows: int) -> Any:
        if not isinstance(part, tf.Tensor):
            return open_spec(part)  # Ragged and sparse: as they come.
        return tf.TensorSpec([rows, *part.shape[1:]], part.dtype)

    def _step(self, *batch: Any) -> Any:
        self._probe.forget()
        return self._probe.read(self._gradients(batch), self._variables)

    def _gradients(self, batch: Sequence[Any]) -> Sequence[Any]:
        with tf.GradientTape() as tape:
            loss = self._loss(batch)
        return tape.gradient(loss, self._variables)

    def _loss(self, batch: Sequence[Any]) -> tf.Tensor:
        losses = self._losses(*batch)
        if losses.shape.rank != 1:
            raise ValueError(
                f"The losses have shape {losses.shape}; expected one loss per "
                "example, [B]. Sum over the other axes."
            )
        return tf.reduce_mean(losses)


def _changed(batch: Any, random: np.random.RandomState) -> Any:
    """Other examples: numbers with noise, everything else in other rows."""
    order = tuple(random.permutation(rows_of(batch)))

    def change(part: Any) -> Any:
        part = taken(part, order)
        if not part.dtype.is_floating:
            return part
        return part + tf.cast(random.randn(*part.shape), part.dtype)

    return tf.nest.map_structure(change, batch)


def _worst(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Of several outcomes of a test, the one that deviates most."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        known = worst.get(finding.test)
        if known is None or (known.passed, -known.deviation) > (
            finding.passed,
            -finding.deviation,
        ):
            worst[finding.test] = finding
    return tuple(worst.values())
