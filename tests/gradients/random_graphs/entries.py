"""Steps that act on entries, on rows of tables, or along one axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.gradients.random_graphs.programs import (
    TABLE_ROWS,
    Program,
    Size,
    Value,
)

UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "sigmoid": tf.sigmoid,
    "softplus": tf.nn.softplus,
    "square": tf.square,
    "exp": lambda x: tf.exp(tf.tanh(x)),
    "abs": tf.abs,
    "sqrt": lambda x: tf.sqrt(tf.abs(x) + 1.0),
    "leaky": tf.nn.leaky_relu,
    "elu": tf.nn.elu,
    "gelu": tf.nn.gelu,
    "log1p": lambda x: tf.math.log1p(tf.square(x)),
    "negative": tf.negative,
    "positive": lambda x: x * tf.cast(x > 0, x.dtype),
    "clip": lambda x: tf.clip_by_value(x, -1.0, 1.0),
    "stop": tf.stop_gradient,
    "erf": tf.math.erf,
    "reciprocal": lambda x: 1.0 / (2.0 + tf.sin(x)),
    "string": lambda x: x + tf.strings.to_number(tf.as_string(x), x.dtype),
    "called": lambda x: tf.function(lambda v: 2.0 * tf.tanh(v))(x),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": tf.add,
    "subtract": tf.subtract,
    "multiply": tf.multiply,
    "maximum": tf.maximum,
    "minimum": tf.minimum,
    "difference": tf.math.squared_difference,
    "divide": lambda a, b: a / (1.0 + tf.square(b)),
    "no_nan": lambda a, b: tf.math.divide_no_nan(a, 1.0 + tf.abs(b)),
    "atan2": lambda a, b: tf.atan2(a, 2.0 + tf.tanh(b)),
    "where": lambda a, b: tf.where(a > 0, a, b),
    "xlogy": lambda a, b: tf.math.xlogy(a, 1.0 + tf.square(b)),
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": tf.reduce_sum,
    "mean": tf.reduce_mean,
    "max": tf.reduce_max,
    "min": tf.reduce_min,
    "logsumexp": tf.reduce_logsumexp,
    "norm": lambda x, axis, keepdims: tf.sqrt(
        1.0 + tf.reduce_sum(tf.square(x), axis, keepdims=keepdims)
    ),
    "variance": tf.math.reduce_variance,
}


def _standardised(x: Any, axis: int) -> Any:
    mean, variance = tf.nn.moments(x, [axis], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1.0)


ALONG: dict[str, Callable[[Any, int], Any]] = {
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "cumsum": tf.cumsum,
    "cumulate back": lambda x, axis: tf.cumsum(
        x, axis, exclusive=True, reverse=True
    ),
    "cumprod": lambda x, axis: tf.math.cumprod(tf.tanh(x), axis),
    "sort": tf.sort,
    "rank": lambda x, axis: x * tf.cast(tf.argsort(x, axis), x.dtype),
    "unit": lambda x, axis: tf.math.l2_normalize(x, axis, 0.1),
    "standardise": _standardised,
    "reverse": lambda x, axis: tf.reverse(x, [axis]),
    "roll": lambda x, axis: tf.roll(x, 1, axis),
}


def unary(p: Program) -> None:
    name, place = p.random.choice(list(UNARY)), p.pick()
    function = UNARY[name]
    p.add(name, lambda _, x: function(x), place, axis=p.pool[place].axis)


def _from_the_right(value: Value) -> int | None:
    return None if value.axis is None else value.axis - value.rank


def binary(p: Program) -> None:
    name, left = p.random.choice(list(BINARY)), p.pick()
    function, one = BINARY[name], p.pool[left]
    if p.careful:
        right = p.pick(
            lambda v: (
                v.axis is None
                or one.axis is None
                or _from_the_right(v) == _from_the_right(one)
            )
        )
    else:
        right = p.pick()
    two = p.pool[right]
    rank = max(one.rank, two.rank)
    places = [a for a in map(_from_the_right, (one, two)) if a is not None]
    p.add(
        name,
        lambda _, a, b: function(a, b),
        left,
        right,
        axis=rank + places[0] if places else None,
    )


def constant(p: Program) -> None:
    """A constant that broadcasts, often with one row per position."""
    place = p.pick()
    value, name = p.pool[place], p.random.choice(list(BINARY))
    function = BINARY[name]
    keep = p.random.randint(0, value.rank)
    shape = [
        size if p.random.random() < 0.6 else 1 for size in value.shape[keep:]
    ]
    array = p.constant(shape)
    p.add(
        f"{name} constant {shape}",
        lambda _, x: function(x, array),
        place,
        axis=value.axis,
    )


def spread(p: Program) -> None:
    """A tensor made from the batch size: ones, positions, random numbers."""
    place = p.pick(lambda v: v.axis is not None)
    value, name = p.pool[place], p.random.choice(["ones", "range", "uniform"])
    axis: int = value.axis  # type: ignore[assignment]
    if value.shape[axis] % p.rows:
        raise LookupError
    rows = Size(value.shape[axis] // p.rows)
    sizes = [rows if a == axis else n for a, n in enumerate(value.shape)]

    def function(context: Any, x: Any) -> Any:
        if name == "ones":
            return x * tf.fill(context.shape(sizes), tf.constant(2.0, x.dtype))
        if name == "range":
            positions = tf.cast(tf.range(rows.factor * context.rows), x.dtype)
            shape = [-1 if a == axis else 1 for a in range(len(sizes))]
            return x * tf.reshape(positions, shape)
        return x * tf.random.stateless_uniform(
            context.shape(sizes), [1, 2], dtype=x.dtype
        )

    p.add(name, function, place, axis=axis)


def batch_size(p: Program) -> None:
    place = p.pick()
    p.add(
        "over batch size",
        lambda c, x: x / tf.cast(c.rows, x.dtype),
        place,
        axis=p.pool[place].axis,
    )


def any_axis(p: Program, value: Value) -> int:
    """An axis; not that of the examples if the program is careful.

    Raises:
      LookupError: If there is none.
    """
    careful = p.careful
    axes = [a for a in range(value.rank) if not careful or a != value.axis]
    if not axes:
        raise LookupError
    return p.random.choice(axes)


def reduction(p: Program) -> None:
    place, name = p.pick(), p.random.choice(list(REDUCTIONS))
    value, function = p.pool[place], REDUCTIONS[name]
    axes = {any_axis(p, value)}
    if p.random.random() < 0.3:
        axes.add(any_axis(p, value))
    keep = p.random.random() < 0.5
    found = [a - value.rank if p.random.random() < 0.5 else a for a in axes]
    axis = value.axis
    if axis in axes:
        axis = None
    elif axis is not None and not keep:
        axis -= sum(a < axis for a in axes)
    p.add(
        f"{name} over {found} keepdims={keep}",
        lambda _, x: function(x, axis=found, keepdims=keep),
        place,
        axis=axis,
    )


def along(p: Program) -> None:
    place, name = p.pick(), p.random.choice(list(ALONG))
    value, function = p.pool[place], ALONG[name]
    axis = any_axis(p, value)
    if p.random.random() < 0.3:
        axis -= value.rank
    p.add(
        f"{name} along {axis}",
        lambda _, x: function(x, axis),
        place,
        axis=value.axis,
    )


def choice(p: Program) -> None:
    """Which entry is the largest, and the largest ones."""
    place = p.pick()
    value = p.pool[place]
    if p.random.random() < 0.5:
        axis = any_axis(p, value)
        moved = value.axis
        if moved is not None:
            moved = None if axis == moved else moved - (axis < moved)
        p.add(
            f"argmax along {axis}",
            lambda _, x: tf.cast(tf.argmax(x, axis), x.dtype),
            place,
            axis=moved,
        )
        return
    if p.careful and value.axis == value.rank - 1:
        raise LookupError
    count = p.random.randint(1, max(1, value.shape[-1]))
    p.add(
        f"top {count}",
        lambda _, x: tf.math.top_k(x, count).values,
        place,
        axis=value.axis,
    )


def _ids(p: Program) -> int:
    return p.random.choice([3, 4])


def lookup(p: Program) -> None:
    table, place = p.variable([TABLE_ROWS, p.width]), _ids(p)
    way = p.random.choice(["embedding", "gather", "one_hot", "hashed"])

    def function(context: Any, ids: Any) -> Any:
        rows = context.variables[table]
        if way == "embedding":
            return tf.nn.embedding_lookup(rows, ids)
        if way == "gather":
            return tf.gather(tf.tanh(rows), ids)
        if way == "one_hot":
            chosen = tf.one_hot(ids, TABLE_ROWS, dtype=rows.dtype)
            return tf.tensordot(chosen, rows, 1)
        hashed = tf.strings.to_hash_bucket_fast(tf.as_string(ids), TABLE_ROWS)
        return tf.gather(rows, hashed)

    p.add(f"{way} of table {table}", function, place, axis=0, trained=True)


def candidates(p: Program) -> None:
    """Scores against rows of a table that all examples share."""
    place = p.pick(lambda v: v.rank > 0 and v.shape[-1] == p.width)
    value = p.pool[place]
    if p.careful and value.axis == value.rank - 1:
        raise LookupError
    table = p.variable([TABLE_ROWS, p.width])
    wanted = [
        p.random.randrange(TABLE_ROWS) for _ in range(p.random.choice([1, 3]))
    ]
    way = p.random.choice(["rows", "table", "tower"])

    def function(context: Any, x: Any) -> Any:
        rows = context.variables[table]
        if way != "table":
            rows = tf.gather(rows, wanted)
        if way == "tower":
            rows = tf.tanh(2.0 * rows)
        return tf.tensordot(x, rows, [[x.shape.rank - 1], [1]])

    text = f"scores against {way} {wanted} of table {table}"
    p.add(text, function, place, axis=value.axis, trained=True)


def one_hot(p: Program) -> None:
    place = _ids(p)
    axis = p.random.randint(-1, p.pool[place].rank)
    moved = 1 if axis == 0 else 0
    p.add(
        f"one_hot on axis {axis}",
        lambda _, ids: tf.one_hot(ids, p.width, axis=axis, dtype=p.dtype),
        place,
        axis=moved,
    )


def gather(p: Program) -> None:
    """Entries of a tensor, by constants or by ids of the examples."""
    place, ids = p.pick(lambda v: v.rank > 0), _ids(p)
    value = p.pool[place]
    if p.random.random() < 0.4:
        axis = any_axis(p, value)
        size, count = value.shape[axis], p.random.randint(1, 3)
        wanted = [p.random.randrange(size) for _ in range(count)]
        p.add(
            f"gather {wanted} on {axis}",
            lambda _, x: tf.gather(x, wanted, axis=axis),
            place,
            axis=value.axis,
        )
        return
    batch_dims = 1 if p.careful else 0
    if batch_dims and (value.axis != 0 or value.shape[0] != p.rows):
        raise LookupError
    if batch_dims and value.rank < 2:
        raise LookupError
    axis = 1 if batch_dims else p.random.randrange(value.rank)
    size = value.shape[axis]
    way = p.random.choice(["gather", "gather_nd"]) if batch_dims else "gather"

    def function(_: Any, x: Any, ids: Any) -> Any:
        if way == "gather":
            return tf.gather(x, ids % size, axis=axis, batch_dims=batch_dims)
        return tf.gather_nd(x, ids[..., None] % size, batch_dims=1)

    p.add(f"{way} on {axis}, {batch_dims}", function, place, ids, axis=0)


def scatter(p: Program) -> None:
    """Rows added up by id, and given back to whoever asked for them."""
    place = p.pick(lambda v: v.rank > 0 and v.shape[0] == p.rows)
    way = p.random.choice(["segment", "scatter", "given back", "unique"])
    if p.careful and way in ("given back", "unique"):
        raise LookupError

    def function(_: Any, x: Any, ids: Any) -> Any:
        if way == "unique":
            _, group = tf.unique(ids)
            shape = [-1] + [1] * (x.shape.rank - 1)
            return x * tf.cast(tf.reshape(group, shape), x.dtype)
        if way == "scatter":
            shape = tf.concat([[TABLE_ROWS], tf.shape(x)[1:]], 0)
            return tf.scatter_nd(ids[:, None], x, shape)
        sums = tf.math.unsorted_segment_sum(x, ids, TABLE_ROWS)
        return tf.gather(sums, ids) if way == "given back" else sums

    axis = 0 if way in ("given back", "unique") else None
    p.add(way, function, place, 3, axis=axis)
