"""Whether what models tell of single examples stays below the stated epsilon.

For every mechanism a table is trained in which each row is looked up by one
canary alone, whose gradient has the clip norm and lies in that row: the case
in which the noise on one row is all that protects an example. Controls cut the
noise, or skip that of rows that are read, and have to be found out.

    python -m benchmarks.audit            # writes benchmarks/results/audit.json
    python -m benchmarks.audit --smoke    # a few cases, and writes nothing
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks import record
from tf_sparse_dp.layers.pending_noise import PendingNoise
from tf_sparse_dp.optimizers.core import PrivateStep

keras = tf.keras

CANARIES = 20_000
RUNS = 4000  # With the canary, and as many without it.
WIDTH = 4
OTHERS = 8  # Ordinary examples, on rows of their own.
DELTA = 1e-7
CONFIDENCE = 0.99
EPSILONS = (1.0, 4.0)
PASSES = 16
AS_STATED, CUT, SKIPPED = "as stated", "noise x 0.3", "lazy read skipped"
# Far from any value of a row: the gradient always has the clip norm.
FAR = [1e3] + [0.0] * (WIDTH - 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is audited.

    Attributes:
      name: For the record.
      mechanism: Made for a table of so many rows.
      layer: "embedding", "lazy" or "denoised".
      sampling: Made for so many examples.
      controls: What is done to the noise, one after another.
      rows_per_canary: The size of the table over the number of canaries.
      canaries: The part of all canaries that is used.
    """

    name: str
    mechanism: Callable[[int], Any]
    layer: str = "embedding"
    sampling: Callable[[int], Any] = lambda n: tsdp.EpochSampling(
        num_examples=n, batch_size=n, epochs=1
    )
    controls: tuple[str, ...] = (AS_STATED, CUT)
    rows_per_canary: int = 1
    canaries: float = 1.0

    def optimizer(self, epsilon: float, examples: int, rows: int) -> Any:
        """The optimizer for a table, and its sampling."""
        sampling = self.sampling(examples)
        mechanism = self.mechanism(rows)
        rate = getattr(sampling, "expected_batch_size", 1.0)
        if isinstance(mechanism, tsdp.BiasReduction):
            budget = tsdp.BiasReducedBudget(
                num_examples=examples, epsilon=epsilon, delta=DELTA
            )
            spent: Any = budget.filter
            options = {
                "sampling": sampling,
                "noise_multiplier": budget.noise_multiplier,
            }
        else:
            spent = tsdp.PrivacyPlan(
                epsilon=epsilon,
                delta=0.0 if mechanism.noise_family == "laplace" else DELTA,
                sampling=sampling,
                noise=mechanism.noise_family,
            )
            options = {}
        if self.layer == "denoised":
            options["tables"] = tsdp.DualAveraging(rate)
        return sampling, tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(rate), spent, mechanism=mechanism, **options
        )


def _passes(n: int) -> Any:
    return tsdp.EpochSampling(num_examples=n, batch_size=n, epochs=PASSES)


def _full(n: int) -> Any:
    return tsdp.PoissonSampling(num_examples=n, batch_size=n, steps=1)


def _sampled(n: int) -> Any:
    return tsdp.PoissonSampling(num_examples=n, batch_size=n // 4, steps=8)


def _bias_reduced(n: int) -> Any:
    return tsdp.BiasReducedSampling(num_examples=n, steps=10_000)


CASES = (
    Case("Gaussian", lambda n: tsdp.Gaussian()),
    Case(
        "Gaussian, all in each batch", lambda n: tsdp.Gaussian(), sampling=_full
    ),
    Case("Gaussian, sampled", lambda n: tsdp.Gaussian(), sampling=_sampled),
    Case("LazyEmbedding", lambda n: tsdp.Gaussian(), "lazy"),
    Case(
        "LazyEmbedding, 16 passes",
        lambda n: tsdp.Gaussian(),
        "lazy",
        _passes,
        (AS_STATED, CUT, SKIPPED),
    ),
    Case("DualAveraging", lambda n: tsdp.Gaussian(), "denoised"),
    Case("Projection", lambda n: tsdp.Projection()),
    Case(
        "Projection, coordinates",
        lambda n: tsdp.Projection(geometry="coordinates"),
    ),
    Case("Threshold", lambda n: tsdp.Threshold(untouched_rows=1000)),
    Case("Threshold, 10 untouched rows", lambda n: tsdp.Threshold()),
    Case(
        "PartitionSelection", lambda n: tsdp.PartitionSelection(threshold=1.0)
    ),
    Case(
        "PartitionSelection, 10 untouched rows",
        lambda n: tsdp.PartitionSelection(),
    ),
    Case(
        "FrequencySelection",
        lambda n: tsdp.FrequencySelection(rows={"items": range(n)}),
    ),
    Case("Laplace", lambda n: tsdp.Laplace()),
    Case(
        "Projection, Laplace noise",
        lambda n: tsdp.Projection(geometry="coordinates", noise="laplace"),
    ),
    Case(
        "CompressedSensing",
        lambda n: tsdp.CompressedSensing(measurements=18_000),
        rows_per_canary=4,
        canaries=0.25,
    ),
    Case(
        "BiasReduction",
        lambda n: tsdp.BiasReduction(tsdp.Gaussian()),
        sampling=_bias_reduced,
        canaries=0.05,
    ),
)
SMOKE = ("Gaussian", "LazyEmbedding, 16 passes", "Projection")


def noise_cut(by: float) -> Any:
    """While open, every release has less noise than its plan says."""
    facts_of = PrivateStep.public_facts

    def public_facts(self: Any, *args: Any, **kwargs: Any) -> Any:
        facts = facts_of(self, *args, **kwargs)
        less = by * facts.noise_multiplier
        return dataclasses.replace(facts, noise_multiplier=less)

    return _patched(PrivateStep, "public_facts", public_facts)


def lazy_read_skipped() -> Any:
    """While open, rows that a step reads count as noisy, and are not."""

    def draw(self: Any, ids: tf.Tensor) -> tf.Tensor:
        ids = tf.unique(ids)[0]
        marked = tf.raw_ops.ResourceScatterUpdate(
            resource=self._first.handle,
            indices=ids,
            updates=tf.fill(tf.shape(ids), tf.identity(self._step)),
        )
        with tf.control_dependencies([marked]):
            return tf.constant(True)

    return _patched(PendingNoise, "_draw_traced", draw)


@contextlib.contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def control_of(name: str) -> Any:
    """What to open while a case is audited."""
    if name == CUT:
        return noise_cut(0.3)
    return lazy_read_skipped() if name == SKIPPED else contextlib.nullcontext()


def table_model(rows: int, layer: str, optimizer: Any) -> Any:
    """Gives the row of an id; there is nothing else to train."""
    if layer == "embedding":
        table = keras.layers.Embedding(rows, WIDTH, name="items")
    else:
        table = tsdp.layers.LazyEmbedding(
            rows, WIDTH, denoise=layer == "denoised", name="items"
        )
    model = keras.Sequential(
        [keras.Input((1,), dtype="int32"), table, keras.layers.Flatten()]
    )
    model.compile(optimizer, loss="mse")
    return model


def one_run(case: Case, epsilon: float, control: str, canaries: int) -> dict:
    """A row of the record, from one training run."""
    canaries = int(case.canaries * canaries)
    examples = OTHERS + canaries
    rows = OTHERS + case.rows_per_canary * canaries
    sampling, optimizer = case.optimizer(epsilon, examples, rows)
    model = table_model(rows, case.layer, optimizer)
    data = (
        np.arange(OTHERS, dtype="int32")[:, np.newaxis],
        np.zeros((OTHERS, WIDTH), "float32"),
    )
    passes = getattr(sampling, "steps_per_pass", None)
    with control_of(control):
        canary = tsdp.audit.Canaries(model, count=canaries, label=FAR)
        model.fit(
            sampling.dataset(canary.add_to(data)),
            epochs=sampling.epochs if passes else 1,
            callbacks=[tsdp.PrivacyBudget()],
            verbose=0,
        )
        report = canary.report(confidence=CONFIDENCE)
    return {
        "mechanism": case.name,
        "stated epsilon": epsilon,
        "delta": report.delta,
        "sampling": _described(sampling),
        "canaries": canaries,
        "runs": 1,
        "lower bound": round(report.lower_bound, 3),
        "confidence": CONFIDENCE,
        "control": control,
        "violation": report.lower_bound > epsilon,
        "guesses": report.bound.guesses,
        "correct": report.bound.correct,
    }


def many_runs(epsilon: float, control: str, runs: int) -> dict:
    """A row of the record, from many runs of dense noise with one canary."""
    sampling = tsdp.EpochSampling(num_examples=2, batch_size=2, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That nothing is enforced.
        plan = tsdp.PrivacyPlan(epsilon=epsilon, delta=DELTA, sampling=sampling)
        # A plan would end after one run.
        optimizer = tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(2.0),
            mechanism=tsdp.Gaussian(),
            noise_multiplier=plan.noise_multiplier,
            expected_batch_size=2,
        )
    model = table_model(OTHERS, "embedding", optimizer)
    initial = model.get_weights()
    scores: dict[float, list[float]] = {1.0: [], 0.0: []}
    ids = np.array([[0], [1]], "int32")
    labels = np.array([FAR, FAR], "float32")
    with control_of(control):
        for _ in range(runs):
            for weight, found in scores.items():
                model.set_weights(initial)
                weights = np.array([weight, 1.0], "float32")
                model.train_on_batch(ids, labels, weights)
                found.append(model.get_weights()[0][0, 0] - initial[0][0, 0])
    bound = tsdp.audit.many_runs(
        scores[1.0], scores[0.0], delta=DELTA, confidence=CONFIDENCE
    )
    return {
        "mechanism": "Gaussian, many runs",
        "stated epsilon": epsilon,
        "delta": DELTA,
        "sampling": _described(sampling),
        "canaries": 1,
        "runs": 2 * runs,
        "lower bound": round(bound.epsilon, 3),
        "confidence": CONFIDENCE,
        "control": control,
        "violation": bound.epsilon > epsilon,
        "guesses": bound.guesses,
        "correct": bound.correct,
    }


def _described(sampling: Any) -> str:
    if isinstance(sampling, tsdp.EpochSampling):
        return f"{sampling.epochs} pass{'es' * (sampling.epochs > 1)}"
    if isinstance(sampling, tsdp.BiasReducedSampling):
        return "batches of random sizes, until the filter is spent"
    return (
        f"Poisson, q = {sampling.sampling_probability:.3g}, "
        f"{sampling.num_steps} step{'s' * (sampling.num_steps > 1)}"
    )


def main() -> int:
    """Audits all cases, and says whether any is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", help="cases whose name has this in it")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.smoke or case.name in SMOKE]
    if options.only:
        cases = [case for case in CASES if options.only in case.name]
    epsilons = EPSILONS[1:] if options.smoke else EPSILONS
    rows = []
    started = time.process_time()
    for epsilon in epsilons:
        work = [
            lambda c=case, k=control, e=epsilon: one_run(c, e, k, CANARIES)
            for case in cases
            for control in case.controls
        ]
        if not options.smoke and not options.only:
            work += [
                lambda k=control, e=epsilon: many_runs(e, k, RUNS)
                for control in (AS_STATED, CUT)
            ]
        for audit in work:
            row = audit()
            rows.append(row)
            print(
                f"{row['mechanism']:38} {row['stated epsilon']:3g} "
                f"{row['control']:18} >= {row['lower bound']:.3f} "
                f"{'VIOLATION' if row['violation'] else ''}",
                flush=True,
            )
    seconds = time.process_time() - started
    print(f"{seconds:.0f} s of CPU")
    wrong = [r for r in rows if r["violation"] and r["control"] == AS_STATED]
    if not options.smoke and not options.only:
        found = record.record(
            "How much of a single example's presence do rows that it alone "
            "looks up tell, and does the audit find noise that is missing?",
            rows,
            command="python -m benchmarks.audit",
            settings={
                "table width": WIDTH,
                "other examples": OTHERS,
                "confidence of each row": CONFIDENCE,
                "cpu seconds": round(seconds),
            },
        )
        record.write(found, record.RESULTS / "audit.json")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
