"""Preprocessing in the model: vocabularies, hashing, buckets, encodings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cases.case import (
    EXAMPLES,
    FEATURES,
    FEW_IDS,
    IDS,
    REAL,
    Case,
    embedding,
    keras,
    layers,
)

_WORDS = np.array(["ant", "bee", "cat", "dog", "elk", "fox"])
_random = np.random.RandomState(2)
NAMES = _random.choice(_WORDS, EXAMPLES)
TAGS = _random.choice(_WORDS, (EXAMPLES, 3))


class Prepared(keras.Model):
    """Integer ids by the given layers, a table, and a score."""

    def __init__(self, *steps: Callable[[Any], Any], width: int = 4):
        super().__init__()
        self.steps = steps
        self.table = embedding(40, width)
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        for step in self.steps:
            inputs = step(inputs)
        x = self.table(inputs)
        if x.shape.rank == 3:
            x = tf.reduce_mean(x, 1)
        return self.score(tf.nn.tanh(x))


class Encoded(keras.Model):
    """What a layer makes of ids, straight into a dense layer."""

    def __init__(self, *steps: Callable[[Any], Any]):
        super().__init__()
        self.steps = steps
        self.hidden = layers.Dense(3, activation="relu")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        for step in self.steps:
            inputs = step(inputs)
        return self.score(self.hidden(tf.cast(inputs, tf.float32)))


class Crossed(keras.Model):
    """A table of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = layers.HashedCrossing(40)
        self.table = embedding(40, 4)
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        pairs = self.cross(inputs)
        return self.score(tf.nn.tanh(self.table(tf.reshape(pairs, [-1]))))


def _names(**options: Any) -> Any:
    return layers.StringLookup(vocabulary=list(_WORDS[:4]), **options)


def _numbers(**options: Any) -> Any:
    return layers.IntegerLookup(vocabulary=list(range(0, 30, 2)), **options)


def _encoding(mode: str) -> Any:
    return layers.CategoryEncoding(num_tokens=6, output_mode=mode)


CASES = [
    Case("string lookup", lambda: Prepared(_names()), NAMES, REAL, lane=True),
    Case(
        "string lookup, several out of vocabulary",
        lambda: Prepared(_names(num_oov_indices=3)),
        TAGS,
        REAL,
    ),
    Case(
        "string lookup, multi-hot",
        lambda: Encoded(_names(output_mode="multi_hot")),
        TAGS,
        REAL,
    ),
    Case("integer lookup", lambda: Prepared(_numbers()), IDS, REAL),
    Case(
        "integer lookup, one-hot",
        lambda: Encoded(_numbers(output_mode="one_hot")),
        IDS[:, None],
        REAL,
    ),
    Case(
        "hashing of strings",
        lambda: Prepared(layers.Hashing(40)),
        NAMES,
        REAL,
    ),
    Case(
        "hashing of strings with salt",
        lambda: Prepared(layers.Hashing(40, salt=[3, 4])),
        TAGS,
        REAL,
    ),
    Case(
        "hashing of integers",
        lambda: Prepared(layers.Hashing(40)),
        FEW_IDS,
        REAL,
    ),
    Case("hashed crossing", Crossed, (NAMES, IDS), REAL),
    Case(
        "discretization",
        lambda: Prepared(
            layers.Discretization(bin_boundaries=[-1.0, 0.0, 0.5])
        ),
        FEATURES,
        REAL,
    ),
    Case(
        "discretization, one-hot",
        lambda: Encoded(
            layers.Discretization(
                bin_boundaries=[-1.0, 0.0, 0.5], output_mode="multi_hot"
            )
        ),
        FEATURES,
        REAL,
    ),
    Case(
        "category encoding, one-hot",
        lambda: Encoded(_encoding("one_hot")),
        FEW_IDS[:, :1],
        REAL,
    ),
    Case(
        "category encoding, multi-hot",
        lambda: Encoded(_encoding("multi_hot")),
        FEW_IDS,
        REAL,
    ),
    Case(
        "category encoding, counts",
        lambda: Encoded(_encoding("count")),
        FEW_IDS,
        REAL,
    ),
    Case(
        "lower case, split off",
        lambda: Prepared(
            lambda x: tf.strings.lower(tf.strings.substr(x, 0, 2)),
            lambda x: tf.strings.to_hash_bucket_strong(x, 40, [1, 2]),
        ),
        NAMES,
        REAL,
    ),
    Case(
        "numbers in strings",
        lambda: Prepared(
            lambda x: tf.strings.to_number(x, tf.int32),
        ),
        IDS.astype(str),
        REAL,
    ),
]
