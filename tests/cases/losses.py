"""Losses of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cases.case import (
    BINARY,
    CLASSES,
    FEATURES,
    MIXED,
    ONE_HOT,
    REAL,
    Case,
    dense_model,
    functional,
    keras,
)


def _logits(loss: str) -> Callable[[], Any]:
    return lambda: getattr(keras.losses, loss)(from_logits=True)


def _plain(loss: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(keras.losses, loss)(**options)


CASES = [
    Case(
        "binary cross-entropy of logits",
        functional,
        MIXED,
        BINARY,
        loss=_logits("BinaryCrossentropy"),
        lane=True,
    ),
    Case(
        "binary cross-entropy",
        lambda: dense_model(activation="sigmoid"),
        FEATURES,
        BINARY,
        loss=_plain("BinaryCrossentropy"),
    ),
    Case(
        "sparse cross-entropy of logits",
        lambda: dense_model(3),
        FEATURES,
        CLASSES,
        loss=_logits("SparseCategoricalCrossentropy"),
    ),
    Case(
        "sparse cross-entropy",
        lambda: dense_model(3, "softmax"),
        FEATURES,
        CLASSES,
        loss=_plain("SparseCategoricalCrossentropy"),
        lane=True,
    ),
    Case(
        "cross-entropy",
        lambda: dense_model(3, "softmax"),
        FEATURES,
        ONE_HOT,
        loss=_plain("CategoricalCrossentropy"),
    ),
    Case(
        "several outputs",
        lambda: dense_model(3),
        FEATURES,
        ONE_HOT,
    ),
    *(
        Case(f"loss {name}", dense_model, FEATURES, REAL, loss=_plain(name))
        for name in (
            "MeanAbsoluteError",
            "Huber",
            "LogCosh",
            "MeanAbsolutePercentageError",
        )
    ),
    Case(
        "loss Poisson",
        lambda: dense_model(activation="softplus"),
        FEATURES,
        BINARY,
        loss=_plain("Poisson"),
    ),
    Case(
        "loss KLDivergence",
        lambda: dense_model(3, "softmax"),
        FEATURES,
        ONE_HOT,
        loss=_plain("KLDivergence"),
    ),
    Case(
        "loss CosineSimilarity",
        lambda: dense_model(3),
        FEATURES,
        ONE_HOT,
        loss=_plain("CosineSimilarity"),
    ),
]
