"""The cases and their reference, under one name."""

from __future__ import annotations

from tests.cases import CASES
from tests.cases.case import (
    BATCHES,
    EXAMPLES,
    KERAS_3,
    KERASES,
    LEARNING_RATE,
    RUNNING,
    Case,
)
from tests.cases.loop import (
    Loop,
    built,
    dataset,
    learning_rate,
    norm,
    rows,
    tensors,
)

__all__ = [
    "BATCHES",
    "CASES",
    "EXAMPLES",
    "KERAS_3",
    "KERASES",
    "LEARNING_RATE",
    "RUNNING",
    "Case",
    "Loop",
    "built",
    "dataset",
    "learning_rate",
    "norm",
    "rows",
    "tensors",
]
