"""The training steps that are checked: one for each way to release tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.accounting.filters import RenyiFilter
from tf_sparse_dp.mechanisms import (
    BiasReduction,
    CompressedSensing,
    FrequencySelection,
    Gaussian,
    Mechanism,
    PartitionSelection,
    Projection,
    Threshold,
)
from tf_sparse_dp.sampling.bias_reduced import BiasReducedSampling

TOPOLOGIES = ["v5e:2x2", "v4:2x2x1"]
LOOKUPS, HIDDEN = 3, 64
CLIP_NORM, RATE = 1.0, 0.5


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a table, and of each replica's part of a batch."""

    rows: int
    width: int
    part: int


SMALL = Size(rows=5000, width=8, part=33)  # Also to be run; 33 = 2⁵ + 1.
# Only to be compiled. Sorting what a large batch looks up is what takes the
# compiler long, so that only its table is large by default.
LARGE = Size(rows=1_000_000, width=64, part=33)
LARGE_BATCH = dataclasses.replace(LARGE, part=1025)
# Twice the large table of 256 MB, and some. A step that makes the sums of
# replicas dense takes 2,300 MB.
_SPARSE = 600.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to release tables.

    Attributes:
      mechanism: Gives the mechanism, for a size.
      lazy: Whether the table is one of `LazyEmbedding`.
      drawn: Whether batches are drawn by `BiasReducedSampling`, and a filter
        pays; there is no such step without noise.
      temporaries: How many MB of them are allowed at the large size; None
        if that is compiled only when everything is.
    """

    mechanism: Callable[[Size], Mechanism]
    lazy: bool = False
    drawn: bool = False
    temporaries: float | None = None

    @property
    def replicas(self) -> int:
        """How many cores; more are refused where it is one."""
        return 1 if self.lazy or self.drawn else 4

    def large(self, everything: bool) -> Size | None:
        """The large size that it is compiled for, if any."""
        if everything:
            return LARGE_BATCH
        return None if self.temporaries is None else LARGE

    @property
    def noise(self) -> float:
        """The noise multiplier; a filter pays for no step with little."""
        return 20.0 if self.drawn else 1.5


CASES = {
    "gaussian": Case(lambda size: Gaussian(), temporaries=3000.0),
    "threshold": Case(
        lambda size: Threshold(untouched_rows=100), temporaries=_SPARSE
    ),
    "threshold by SURE": Case(
        lambda size: Threshold(choice="sure"), temporaries=_SPARSE
    ),
    "projection": Case(lambda size: Projection(), temporaries=_SPARSE),
    "partition selection": Case(
        lambda size: PartitionSelection(), temporaries=_SPARSE
    ),
    "frequency selection": Case(
        lambda size: FrequencySelection(rows={"items": range(1000)}),
        temporaries=_SPARSE,
    ),
    "compressed sensing": Case(
        lambda size: CompressedSensing(measurements=125)
    ),
    "bias reduction": Case(lambda size: BiasReduction(), drawn=True),
    "lazy table": Case(lambda size: Gaussian(), lazy=True),
}


def compiled_model(
    case: Case, size: Size, noise: float, **options: Any
) -> tf.keras.Model:
    """A model as a user compiles it, built, and always the same."""
    keras = tf.keras
    keras.utils.set_random_seed(0)
    table = tsdp.layers.LazyEmbedding if case.lazy else keras.layers.Embedding
    layers = [
        keras.Input((LOOKUPS,), dtype="int32"),
        table(size.rows, size.width, name="items"),
        keras.layers.Flatten(),
        keras.layers.Dense(HIDDEN, activation="relu"),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(RATE),
        clip_norm=CLIP_NORM,
        mechanism=case.mechanism(size),
        noise_multiplier=noise,
        seed=1,
        **_account(case, size),
    )
    model.compile(optimizer=optimizer, loss="mse", **options)
    optimizer.build(model.trainable_variables)
    if case.drawn:
        optimizer.reserve(1)
    return model


def _account(case: Case, size: Size) -> dict[str, Any]:
    if not case.drawn:
        return {"expected_batch_size": float(case.replicas * size.part)}
    return {
        "plan": RenyiFilter(
            epsilon=8.0,
            delta=1e-3,
            neighboring_relation=(
                dp_accounting.NeighboringRelation.REPLACE_ONE
            ),
        ),
        "sampling": BiasReducedSampling(
            num_examples=2 * (size.part - 1), steps=4
        ),
    }


def batch(case: Case, size: Size) -> tuple[np.ndarray, ...]:
    """A batch for `train_step`, of which each replica has a part."""
    rng = np.random.default_rng(0)
    examples = case.replicas * size.part
    ids = rng.integers(size.rows, size=(examples, LOOKUPS))
    ids[1] = ids[0]  # Rows that two examples look up,
    ids[2] = ids[2, 0]  # and one that an example looks up three times,
    ids[-1] = ids[0]  # also on another replica.
    labels = rng.normal(size=(examples, 1))
    given = (ids.astype("int32"), labels.astype("float32"))
    if case.drawn:
        return (*given, np.ones([examples], "float16"))
    return given


def mean_stddev(case: Case, size: Size) -> float | None:
    """Standard deviation of the noise of a dense weight's mean gradient.

    None where it is not the same for all mechanisms.
    """
    mechanism = case.mechanism(size)
    if case.drawn:
        return None
    share = 0.0
    if isinstance(mechanism, PartitionSelection):
        share = mechanism.selection_share
    batch_size = case.replicas * size.part
    return case.noise * CLIP_NORM / (1 - share) ** 0.5 / batch_size
