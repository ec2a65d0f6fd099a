"""Two-tower models with public negatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cases.case import (
    EXAMPLES,
    IDS,
    REAL,
    WEIGHTS,
    Case,
    embedding,
    keras,
    layers,
)
from tf_sparse_dp.integrations.recommenders import Retrieval

_random = np.random.RandomState(3)
ITEMS = 12
OWN = _random.randint(0, ITEMS, EXAMPLES).astype("int32")
# Fewer candidates than drawn, so that there are always some twice.
DRAWN = _random.randint(0, ITEMS, 20).astype("int32")
GENRES = _random.randint(0, 5, (ITEMS, 3)).astype("int32")


class Fixed:
    """Draws the same negatives always, so that a loop can be compared."""

    def __init__(self, drawn: np.ndarray):
        self._drawn = tf.constant(drawn)

    def draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        return self._drawn, tf.math.log(len(self._drawn) / ITEMS)


class TwoTowers(keras.Model):
    """Trains a query tower and a candidate tower, on inputs alone."""

    def __init__(
        self,
        candidates: Any,
        tower: Any,
        drawn: np.ndarray | None = DRAWN,
        ids: bool = True,
        weighted: bool = False,
        **options: Any,
    ):
        super().__init__()
        self.users = keras.Sequential([embedding(), layers.Dense(4)])
        self.tower = tower
        self.ids, self.weighted = ids, weighted
        self.features = candidates
        self.task = Retrieval(
            candidates,
            tower,
            num_negatives=None if drawn is None else len(drawn),
            candidate_ids=np.arange(ITEMS),
            **options,
        )
        if drawn is not None:
            self.task._sampler = Fixed(drawn)

    def call(self, inputs: Any, training: bool = False) -> Any:
        user, item, weight = inputs
        candidates = tf.nest.map_structure(
            lambda t: tf.gather(tf.constant(t), item), self.features
        )
        return self.task(
            self.users(user),
            self.tower(candidates),
            sample_weight=weight if self.weighted else None,
            candidate_ids=item if self.ids else None,
        )

    def train_step(self, data: Any) -> dict[str, Any]:
        (inputs, _) = data
        with tf.GradientTape() as tape:
            loss = self(inputs, training=True)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


class Genres(layers.Layer):
    """Genres that are pooled, beside the item itself; of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.genres = embedding(5, 2)
        self.items = embedding(ITEMS, 2)

    def call(self, inputs: Any) -> Any:
        pooled = tf.reduce_mean(self.genres(inputs["genres"]), 1)
        x = 1 + tf.concat([pooled, self.items(inputs["id"])], 1)
        return tf.math.l2_normalize(x, 1)


def _table() -> Any:
    return embedding(ITEMS)


def _linear() -> Any:
    return keras.Sequential([_table(), layers.Dense(4), layers.Dense(4)])


def _deep() -> Any:
    return keras.Sequential(
        [
            _table(),
            layers.Dense(6, "tanh"),
            layers.Dense(5, "relu"),
            layers.Dense(4),
        ]
    )


def _case(
    name: str,
    tower: Callable[[], Any],
    candidates: Any = None,
    reduction: str = "mean",
    **options: Any,
) -> Case:
    features = np.arange(ITEMS, dtype="int32")
    features = features if candidates is None else candidates
    return Case(
        f"retrieval, {name}",
        lambda: TwoTowers(features, tower(), reduction=reduction, **options),
        (IDS, OWN, WEIGHTS),
        REAL,
        example_loss=lambda model, inputs, _: model(inputs),
        reduction=reduction,
        lane=name in ("shared negatives", "whole catalogue"),
    )


CASES = [
    _case("shared negatives", _table),
    _case("shared negatives without ids", _table, ids=False),
    _case(
        "temperature, weights, sum",
        _table,
        temperature=0.3,
        weighted=True,
        reduction="sum",
    ),
    _case("whole catalogue", _table, drawn=None),
    _case("linear candidate tower", _linear),
    _case("deep candidate tower", _deep),
    _case("deep tower, whole catalogue", _deep, drawn=None),
    _case(
        "several candidate features",
        Genres,
        {"id": np.arange(ITEMS, dtype="int32"), "genres": GENRES},
    ),
]
