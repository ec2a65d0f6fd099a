"""Layers in functions of their own, and forward passes that run twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.cases.case import (
    FEATURES,
    MIXED,
    REAL,
    Case,
    embedding,
    keras,
    layers,
)

SIGNATURE = [tf.TensorSpec([None, 6], tf.float32)]


class Blocks(keras.Model):
    """A block of layers in a function, between other layers.

    Args:
      wrap: Makes the function.
      extra: What the block has beside its dense layers.
      times: How often the function is called, with a layer in between.
    """

    def __init__(
        self,
        wrap: Callable[[Any], Any],
        *extra: Callable[[], Any],
        times: int = 1,
    ):
        super().__init__()
        self.before = layers.Dense(6, activation="relu")
        self.inside = layers.Dense(6, activation="tanh")
        self.between = layers.Dense(6)
        self.extra = [make() for make in extra]
        self.score = layers.Dense(1)
        self.times = times
        self.block = wrap(self.call_block)

    def call_block(self, x: Any) -> Any:
        x = self.inside(x)
        for layer in self.extra:
            x = layer(x, training=True)
        return x

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = self.before(inputs)
        for _ in range(self.times):
            x = self.between(self.block(x))
        return self.score(x)


class Nested(Blocks):
    """A function that calls another one."""

    def __init__(self) -> None:
        super().__init__(tf.function)
        self.outer = tf.function(lambda x: tf.sin(self.block(self.block(x))))

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.score(self.outer(self.before(inputs)))


class Tables(keras.Model):
    """Lookups in a function that returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.one = embedding()
        self.several = embedding(6)
        self.score = layers.Dense(1)
        self.look_up = tf.function(self.call_tables)

    def call_tables(self, one: Any, several: Any) -> dict[str, Any]:
        pooled = tf.reduce_mean(self.several(several), 1)
        return {"one": self.one(one), "several": pooled}

    def call(self, inputs: Any, training: bool = False) -> Any:
        one, several, dense = inputs
        found = self.look_up(one, several)
        x = tf.concat([found["one"], found["several"], dense], 1)
        return self.score(tf.tanh(x))


class Whole(keras.Model):
    """A model that is nothing but a function."""

    def __init__(self) -> None:
        super().__init__()
        self.table = embedding()
        self.hidden = layers.Dense(5, activation="tanh")
        self.score = layers.Dense(1)

    @tf.function(reduce_retracing=True)
    def call(self, inputs: Any, training: bool = False) -> Any:
        one, _, dense = inputs
        x = tf.concat([self.table(one), dense], 1)
        return self.score(self.hidden(x))


@tf.custom_gradient
def _halved(x: Any) -> Any:
    return tf.identity(x), lambda upstream: 0.5 * upstream


def _halving(block: Any) -> Any:
    return tf.function(lambda x: _halved(block(_halved(x))))


def _centred(block: Any) -> Any:
    return tf.function(lambda x: block(x - tf.reduce_mean(x, 0)))


def _chosen(block: Any) -> Any:
    return tf.function(
        lambda x: tf.cond(
            tf.random.uniform([]) > 0.5, lambda: block(x), lambda: -block(x)
        )
    )


def _printed(block: Any) -> Any:
    def seen(x: Any) -> Any:
        return tf.ensure_shape(
            tf.py_function(lambda v: v, [x], tf.float32), [None, 6]
        )

    return tf.function(lambda x: block(seen(x)))


def _dropout() -> Any:
    return layers.Dropout(0.5)


CASES = [
    Case(
        "a block in a tf.function",
        lambda: Blocks(tf.function),
        FEATURES,
        REAL,
        lane=True,
    ),
    Case(
        "a block in a tf.function with a signature",
        lambda: Blocks(lambda f: tf.function(f, input_signature=SIGNATURE)),
        FEATURES,
        REAL,
    ),
    Case(
        "a block in a compiled tf.function",
        lambda: Blocks(lambda f: tf.function(f, jit_compile=True)),
        FEATURES,
        REAL,
    ),
    Case(
        "a block in a tf.function, compiled with the step",
        lambda: Blocks(tf.function),
        FEATURES,
        REAL,
        compile={"jit_compile": True},
    ),
    Case(
        "layer norm in a tf.function",
        lambda: Blocks(tf.function, layers.LayerNormalization),
        FEATURES,
        REAL,
    ),
    Case(
        "a tf.function called twice",
        lambda: Blocks(tf.function, times=2),
        FEATURES,
        REAL,
    ),
    Case("a tf.function in a tf.function", Nested, FEATURES, REAL, lane=True),
    Case("tables in a tf.function", Tables, MIXED, REAL, lane=True),
    Case("a model that is a tf.function", Whole, MIXED, REAL),
    Case(
        "recompute_grad on a block",
        lambda: Blocks(tf.recompute_grad),
        FEATURES,
        REAL,
        lane=True,
    ),
    Case(
        "recompute_grad in a tf.function",
        lambda: Blocks(lambda f: tf.function(tf.recompute_grad(f))),
        FEATURES,
        REAL,
    ),
    Case(
        "a tf.function in recompute_grad",
        lambda: Blocks(lambda f: tf.recompute_grad(tf.function(f))),
        FEATURES,
        REAL,
    ),
    Case(
        "custom gradients in a tf.function",
        lambda: Blocks(_halving),
        FEATURES,
        REAL,
    ),
    Case(
        "dropout in a tf.function",
        lambda: Blocks(tf.function, _dropout),
        FEATURES,
        REAL,
        random=True,
        lane=True,
    ),
    Case(
        "dropout in a tf.function called twice",
        lambda: Blocks(tf.function, _dropout, times=2),
        FEATURES,
        REAL,
        random=True,
    ),
    Case(
        "batch norm in a tf.function",
        lambda: Blocks(tf.function, layers.BatchNormalization),
        FEATURES,
        REAL,
        refused=r"operation '.*StatefulPartitionedCall/call_block/",
        why="statistics of the batch",
    ),
    Case(
        "a batch mean in a tf.function",
        lambda: Blocks(_centred),
        FEATURES,
        REAL,
        refused=r"Sub combines a sum .*'.*PartitionedCall/lambda/sub",
        why="statistics of the batch",
    ),
    Case(
        "tf.cond in a tf.function",
        lambda: Blocks(_chosen),
        FEATURES,
        REAL,
        refused=r"If has no separability rule \(operation '.*/lambda/cond",
        why="branches are not looked into",
    ),
    Case(
        "Python code in a tf.function",
        lambda: Blocks(_printed),
        FEATURES,
        REAL,
        refused="in the function 'lambda' with EagerPyFunc",
        why="nothing is known of Python code",
    ),
]
