"""Puts random steps together and ends with a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.gradients.random_graphs import bags, entries, places
from tests.gradients.random_graphs.programs import Program

# Each step with how often it is tried.
STEPS: dict[Callable[[Program], None], int] = {
    entries.unary: 4,
    entries.binary: 6,
    entries.constant: 3,
    entries.spread: 2,
    entries.batch_size: 1,
    entries.reduction: 4,
    entries.along: 4,
    entries.choice: 2,
    entries.lookup: 3,
    entries.candidates: 2,
    bags.bag: 8,
    bags.lengths: 3,
    entries.one_hot: 1,
    entries.gather: 3,
    entries.scatter: 1,
    places.transpose: 3,
    places.reshape: 5,
    places.join: 3,
    places.cut: 4,
    places.grow: 3,
    places.dense: 6,
    places.product: 2,
    places.einsum: 3,
    places.attention: 1,
    places.convolution: 2,
    places.totals: 2,
}
_NOT_POSSIBLE = (
    LookupError,
    ArithmeticError,
    ValueError,
    tf.errors.InvalidArgumentError,
)
LOSSES = ["mean", "sum", "squares", "rows", "labels", "entropy", "classes"]
MIXING_LOSSES = ["count", "product", "logarithm", "pairs"]


def make(seed: int) -> Program:
    """A random program whose last tensor is a loss."""
    p = Program(seed)
    functions, weights = list(STEPS), list(STEPS.values())
    wanted = p.random.randint(2, 9)
    for _ in range(6 * wanted):
        if len(p.steps) >= wanted:
            break
        try:
            p.random.choices(functions, weights)[0](p)
        except _NOT_POSSIBLE:
            continue
    while not p.pool[-1].trained:
        try:
            places.dense(p)
        except _NOT_POSSIBLE:
            continue
    _end(p)
    return p


def _end(p: Program) -> None:
    """One or two losses, perhaps with a regulariser."""
    losses = []
    while not losses or (len(losses) < 2 and p.random.random() < 0.3):
        kinds = LOSSES if p.careful else [*LOSSES, *MIXING_LOSSES]
        try:
            losses.append(_loss(p, p.random.choice(kinds)))
        except _NOT_POSSIBLE:
            continue
    weight = p.random.randrange(len(p.variables))
    penalised = p.random.random() < 0.2

    def function(c: Any, *values: Any) -> Any:
        total = tf.add_n(values)
        if penalised:
            total += 0.1 * tf.reduce_sum(tf.square(c.variables[weight]))
        return total

    p.add("total loss", function, *losses, axis=None)


def _loss(p: Program, kind: str) -> int:
    last = len(p.pool) - 1
    while not p.pool[last].trained or p.pool[last].rank == 0:
        last -= 1
        if last < 0:
            raise LookupError
    place = last if p.random.random() < 0.8 else p.pick(lambda v: v.trained)
    value = p.pool[place]
    scale = 2.0 / value.tensor.shape.num_elements()
    by_rows = value.axis == 0 and value.shape[0] == p.rows
    if kind in ("labels", "rows", "entropy", "classes") and not by_rows:
        raise LookupError
    if kind in ("entropy", "classes") and value.rank != 2:
        raise LookupError

    def function(c: Any, x: Any, y: Any, ids: Any) -> Any:
        if kind == "mean":
            return tf.reduce_mean(x)
        if kind == "sum":
            return tf.reduce_sum(tf.tanh(x))
        if kind == "squares":
            return tf.reduce_mean(tf.square(x))
        if kind == "count":
            total = tf.reduce_sum(tf.square(x))
            return total / (1.0 + tf.reduce_sum(tf.cast(x > 0, x.dtype)))
        if kind == "product":
            return tf.reduce_mean(x) * tf.reduce_mean(tf.tanh(x))
        if kind == "logarithm":
            return tf.math.log1p(scale * tf.reduce_sum(tf.square(x)))
        if kind == "pairs":
            flat = tf.reshape(x, [-1])
            return tf.reduce_mean(tf.nn.relu(flat[:, None] - flat[None]))
        if kind == "entropy":
            labels = tf.nn.softmax(tf.stop_gradient(tf.sin(x)))
            losses = tf.nn.softmax_cross_entropy_with_logits(labels, x)
        elif kind == "classes":
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                ids % value.shape[1], x
            )
        else:
            other_axes = list(range(1, x.shape.rank))
            losses = tf.reduce_sum(x, other_axes) if other_axes else x
            if kind == "labels":
                losses = tf.nn.sigmoid_cross_entropy_with_logits(
                    tf.sigmoid(y), losses
                )
        return tf.reduce_sum(losses) / tf.cast(c.rows, x.dtype)

    return p.add(f"loss {kind}", function, place, 2, 3, axis=None)
