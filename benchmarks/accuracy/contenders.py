"""Who is compared: mechanisms and modes, all made for one epsilon and delta."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks.accuracy.data import Data
from benchmarks.accuracy.models import SGD, loss, model_of, table_name

keras = tf.keras

NOT_PRIVATE = "not private"
CLIPPED = "clipped, no noise"
NO_NOISE = (NOT_PRIVATE, CLIPPED)
DENSE = "dense noise"
LAZY = "lazy noise"
DENOISED = "denoised sums"
FREQUENCY = "frequency selection"
PURE = ("Laplace, δ = 0", "projection, Laplace, δ = 0")
BIAS = "bias reduction"
ESTIMATE_EVERY = 10
# Of epsilon and delta, for finding rows; and how many of them are trained.
CHOICE_SHARE = 0.1
CHOSEN_ROWS = 0.25
_MECHANISMS: dict[str, Callable[[], Any]] = {
    DENSE: tsdp.Gaussian,
    LAZY: tsdp.Gaussian,
    DENOISED: tsdp.Gaussian,
    "projection, rows": tsdp.Projection,
    "projection, coordinates": lambda: tsdp.Projection(geometry="coordinates"),
    "threshold": tsdp.Threshold,
    "threshold, 1000 rows": lambda: tsdp.Threshold(untouched_rows=1000),
    "threshold, SURE": lambda: tsdp.Threshold(choice="sure"),
    "partition selection": tsdp.PartitionSelection,
    "partition selection above 1": lambda: tsdp.PartitionSelection(
        selection_share=0.5, threshold=1.0
    ),
    "Laplace": tsdp.Laplace,
    PURE[0]: tsdp.Laplace,
    PURE[1]: lambda: tsdp.Projection(geometry="coordinates", noise="laplace"),
}
NAMES = (*NO_NOISE, *_MECHANISMS, FREQUENCY, BIAS)
# The same law has the same best rate.
TUNED_AS = {LAZY: DENSE}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is the same for all contenders on a data set.

    Args:
      steps: How many.
      batch_size: How many units are expected in a batch.
      delta: Below one over the number of units.
      unit: "example", or "user".
      examples_per_user: How many of a user's examples are in a batch at most,
        if that is the unit.
      rates: Which learning rates are tried first; a factor of ten apart.
    """

    steps: int
    batch_size: int
    delta: float = 1e-6
    unit: str = "example"
    examples_per_user: int = 8
    rates: tuple[float, ...] = (10.0, 100.0, 1000.0)

    def told(self) -> dict[str, Any]:
        """All of it that makes a difference to a run."""
        told = dataclasses.asdict(self)
        del told["rates"]
        if self.unit == "example":
            del told["examples_per_user"]
        return told

    def sampling(self, data: Data) -> Any:
        """Poisson batches of units."""
        if self.unit == "user":
            return tsdp.UserSampling(
                num_users=data.tables["users"],
                users_per_batch=self.batch_size,
                examples_per_user=self.examples_per_user,
                steps=self.steps,
            )
        return tsdp.PoissonSampling(
            num_examples=len(data.train.label),
            batch_size=self.batch_size,
            steps=self.steps,
        )

    def batches(self, sampling: Any, data: Data) -> tf.data.Dataset:
        """Batches to train on, as the sampling draws them."""
        arrays = (dict(data.train.ids), data.train.label)
        if isinstance(sampling, tsdp.EpochSampling):
            return (
                tf.data.Dataset.from_tensor_slices(arrays)
                .shuffle(len(data.train.label))
                .batch(sampling.batch_size)
            )
        if self.unit == "user":
            return sampling.dataset(arrays, data.train.ids["users"])
        return sampling.dataset(arrays)


class Contender:
    """A model and an optimizer, ready to train.

    Args:
      name: One of `NAMES`.
      data: What is trained on.
      setting: What is the same for all.
      epsilon: Of everything that is private, the choice of rows included;
        None if nothing is.
      rate: Learning rate.
    """

    def __init__(
        self,
        name: str,
        data: Data,
        setting: Setting,
        epsilon: float | None,
        rate: float,
    ):
        self._name, self._data = name, data
        self._count = tf.Variable(0, dtype=tf.int64, trainable=False)
        sampling = setting.sampling(data)
        self._passes = 1
        if name in PURE:
            number = len(data.train.label)
            self._passes = round(setting.steps * setting.batch_size / number)
            sampling = tsdp.EpochSampling(
                num_examples=number,
                batch_size=setting.batch_size,
                epochs=self._passes,
            )
        if name == BIAS:  # Its filter ends training, not the sampling.
            sampling = tsdp.BiasReducedSampling(
                num_examples=len(data.train.label), steps=10 * setting.steps
            )
        self.steps = sampling.num_steps
        self.batches = setting.batches(sampling, data)
        lazy = name in (LAZY, DENOISED)
        self.model = model_of(data, lazy, name == DENOISED)
        self.model.compile(
            optimizer=self._optimizer(setting, sampling, epsilon, rate),
            loss=loss,
            jit_compile=False,
            steps_per_execution=1
            if name == BIAS
            else math.gcd(self.steps // self._passes, 50),
        )

    def train(self) -> None:
        """All steps."""
        ends = self._name in (*PURE, BIAS)
        self.model.fit(
            self.batches,
            epochs=self._passes,
            steps_per_epoch=self.steps // self._passes,
            callbacks=[tsdp.PrivacyBudget()] if ends else [],
            verbose=0,
        )
        self.steps = int(self.model.optimizer.iterations)

    def written(self) -> float:
        """Mean number of the tables' entries that a step wrote.

        With lazy noise those of rows that a batch looks up, which are written
        when they get their noise; and of rows that shrinkage is estimated from.
        """
        if self._name not in (LAZY, DENOISED):
            return self._data.width * float(self._count) / self.steps
        batches = list(self.batches.take(3))
        rows = sum(map(_touched, batches)) / len(batches)
        if self._name == DENOISED:
            sample = tsdp.DualAveraging(1.0).sample_rows
            for size in self._data.tables.values():
                rows += min(sample, size) / ESTIMATE_EVERY
        return self._data.width * rows

    def _optimizer(
        self,
        setting: Setting,
        sampling: Any,
        epsilon: float | None,
        rate: float,
    ) -> Any:
        inner = SGD(rate, self._count)
        if epsilon is None:
            return tsdp.DPSparseOptimizer(
                inner,
                clip_norm=1.0 if self._name == CLIPPED else 1e6,
                noise_multiplier=0.0,
                expected_batch_size=setting.batch_size,
                examples_per_unit=sampling.examples_per_unit,
            )
        if self._name == BIAS:
            budget = tsdp.BiasReducedBudget(
                num_examples=sampling.num_examples,
                epsilon=epsilon,
                delta=setting.delta,
                steps=setting.steps,
            )
            return tsdp.DPSparseOptimizer(
                inner,
                budget.filter,
                sampling=sampling,
                noise_multiplier=budget.noise_multiplier,
                mechanism=tsdp.BiasReduction(tsdp.Projection()),
            )
        mechanism, left = self._mechanism(epsilon, setting.delta)
        plan = tsdp.PrivacyPlan(
            epsilon=left[0],
            delta=0.0 if self._name in PURE else left[1],
            sampling=sampling,
            noise=mechanism.noise_family,
        )
        tables: Any = None
        if self._name == LAZY:
            tables = keras.optimizers.SGD(rate)
        elif self._name == DENOISED:
            tables = tsdp.DualAveraging(rate, estimate_every=ESTIMATE_EVERY)
        return tsdp.DPSparseOptimizer(
            inner, plan, mechanism=mechanism, tables=tables
        )

    def _mechanism(
        self, epsilon: float, delta: float
    ) -> tuple[Any, tuple[float, float]]:
        """The mechanism, and what it leaves of epsilon and delta."""
        if self._name != FREQUENCY:
            return _MECHANISMS[self._name](), (epsilon, delta)
        ids, rows = self._data.train.ids, self._data.tables
        mechanism = tsdp.FrequencySelection.private(
            {table_name(n): ids[n] for n in rows},
            table_rows={table_name(n): size for n, size in rows.items()},
            top={table_name(n): int(CHOSEN_ROWS * rows[n]) for n in rows},
            epsilon=CHOICE_SHARE * epsilon,
            delta=CHOICE_SHARE * delta,
        )
        left = 1 - CHOICE_SHARE
        return mechanism, (left * epsilon, left * delta)


def _touched(batch: Sequence[Any]) -> int:
    """How many rows of all tables the examples of a batch look up."""
    ids, _, *weight = batch
    there = weight[0].numpy() > 0 if weight else slice(None)
    return sum(len(np.unique(i.numpy()[there])) for i in ids.values())
