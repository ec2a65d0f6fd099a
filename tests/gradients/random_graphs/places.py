"""Steps that give entries another place, or multiply and add up."""

from __future__ import annotations

import string
from typing import Any

import tensorflow as tf

from tests.gradients.random_graphs.entries import any_axis
from tests.gradients.random_graphs.programs import Program, Size


def transpose(p: Program) -> None:
    place = p.pick(lambda v: v.rank > 1)
    value = p.pool[place]
    order = list(range(value.rank))
    p.random.shuffle(order)
    p.add(
        f"transpose {order}",
        lambda _, x: tf.transpose(x, order),
        place,
        axis=None if value.axis is None else order.index(value.axis),
    )


def _divisor(p: Program, size: int) -> int:
    return p.random.choice([d for d in range(1, size + 1) if size % d == 0])


def reshape(p: Program) -> None:
    """Joins neighbouring axes or parts one, perhaps that of the examples."""
    place = p.pick(lambda v: v.rank > 0)
    value = p.pool[place]
    axis = value.axis
    sizes: list[Any] = value.shape
    careful = p.careful
    whole = axis is not None and sizes[axis] % p.rows == 0
    if whole and not (not careful and p.random.random() < 0.5):
        sizes[axis] = Size(sizes[axis] // p.rows)
    at = p.random.randrange(len(sizes))
    if p.random.random() < 0.5 and at + 1 < len(sizes):
        left, right = sizes[at], sizes[at + 1]
        if isinstance(left, Size) and isinstance(right, Size):
            raise LookupError
        if isinstance(left, Size):
            joined: Any = Size(left.factor * right)
        elif isinstance(right, Size):
            joined = Size(left * right.factor)
        else:
            joined = left * right
        sizes[at : at + 2] = [joined]
        if axis is not None:
            axis -= axis > at
    elif isinstance(sizes[at], Size):
        factor = sizes[at].factor
        part = _divisor(p, factor)
        if p.random.random() < 0.5:
            sizes[at : at + 1] = [Size(factor // part), part]
        else:
            sizes[at : at + 1] = [part, Size(factor // part)]
            axis = at + 1
    else:
        part = _divisor(p, sizes[at])
        sizes[at : at + 1] = [sizes[at] // part, part]
        if axis is not None:
            axis += axis > at
    if p.random.random() < 0.5:
        sizes[p.random.randrange(len(sizes))] = -1
    p.add(
        f"reshape {sizes}",
        lambda c, x: tf.reshape(x, c.shape(sizes)),
        place,
        axis=axis,
    )


def join(p: Program) -> None:
    """Concatenates or stacks two tensors of one shape, or parts them again."""
    left = p.pick(lambda v: v.rank > 0)
    one = p.pool[left]
    right = p.pick(lambda v: v.shape == one.shape and v.axis == one.axis)
    way = p.random.choice(["concat", "stack", "parted"])
    if way == "stack":
        axis = p.random.randint(0, one.rank)
        moved = one.axis
        if moved is not None:
            moved += axis <= moved
        p.add(
            f"stack {axis}",
            lambda _, a, b: tf.stack([a, b], axis),
            left,
            right,
            axis=moved,
        )
        return
    axis = p.random.randrange(one.rank)
    if way == "concat":
        p.add(
            f"concat {axis}",
            lambda _, a, b: tf.concat([a, tf.tanh(b)], axis),
            left,
            right,
            axis=one.axis,
        )
        return
    place = p.random.randrange(2)
    p.add(
        f"parted {axis} {place}",
        lambda _, a, b: tf.split(tf.sin(tf.concat([a, b], axis)), 2, axis)[
            place
        ],
        left,
        right,
        axis=one.axis,
    )


def cut(p: Program) -> None:
    """A part of an axis, by any of the operations that do so."""
    place = p.pick(lambda v: v.rank > 0)
    value = p.pool[place]
    axis = any_axis(p, value)
    size = value.shape[axis]
    begin = p.random.randrange(size)
    length = p.random.randint(1, size - begin)
    way = p.random.choice(["slice", "stride", "split", "unstack", "back"])
    moved = value.axis
    if way == "slice":
        begins = [begin if a == axis else 0 for a in range(value.rank)]
        lengths = [length if a == axis else -1 for a in range(value.rank)]
        p.add(
            f"slice {begins} {lengths}",
            lambda _, x: tf.slice(x, begins, lengths),
            place,
            axis=moved,
        )
    elif way in ("stride", "back"):
        step = 1 if way == "stride" else -1
        keys: list[Any] = [slice(None)] * value.rank
        keys[axis] = slice(begin, None if length > 1 else begin + 1, 1)
        if way == "back":
            keys[axis] = slice(None, None, step)
        if p.random.random() < 0.3:
            keys[axis + 1 :] = [Ellipsis]
        if p.random.random() < 0.3:
            keys.insert(0, tf.newaxis)
            moved = None if moved is None else moved + 1
        chosen = tuple(keys)
        p.add(f"take {chosen}", lambda _, x: x[chosen], place, axis=moved)
    else:
        if moved is not None and way == "unstack":
            moved = None if axis == moved else moved - (axis < moved)

        def function(_: Any, x: Any) -> Any:
            if way == "unstack":
                return tf.unstack(x, num=size, axis=axis)[begin]
            sizes = [begin, length, size - begin - length]
            return tf.split(x, sizes, axis)[1]

        p.add(f"{way} {axis} at {begin}", function, place, axis=moved)


def grow(p: Program) -> None:
    """Pads, repeats, or adds and removes axes of size one."""
    place = p.pick()
    value = p.pool[place]
    way = p.random.choice(["pad", "tile", "expand", "squeeze", "broadcast"])
    moved = value.axis
    if way in ("pad", "tile"):
        axis = any_axis(p, value)
        amounts = [
            [p.random.randint(0, 1), 1] if a == axis else [0, 0]
            for a in range(value.rank)
        ]
        counts = [2 if a == axis else 1 for a in range(value.rank)]
        mode = p.random.choice(["CONSTANT", "REFLECT", "SYMMETRIC"])
        p.add(
            f"{way} {axis} {mode if way == 'pad' else ''}",
            lambda _, x: (
                tf.pad(x, amounts, mode) if way == "pad" else tf.tile(x, counts)
            ),
            place,
            axis=moved,
        )
    elif way == "expand":
        axis = p.random.randint(0, value.rank)
        if moved is not None:
            moved += axis <= moved
        p.add(
            f"expand {axis}",
            lambda _, x: tf.expand_dims(x, axis),
            place,
            axis=moved,
        )
    elif way == "squeeze":
        axes = [a for a, n in enumerate(value.shape) if n == 1 and a != moved]
        axis = p.random.choice(axes) if axes else any_axis(p, value)
        if moved is not None:
            moved -= axis < moved
        p.add(
            f"squeeze {axis}",
            lambda _, x: tf.squeeze(x, axis),
            place,
            axis=moved,
        )
    else:
        sizes: list[Any] = [2, *value.shape]
        if moved is not None and value.shape[moved] % p.rows == 0:
            sizes[moved + 1] = Size(value.shape[moved] // p.rows)
        p.add(
            f"broadcast {sizes}",
            lambda c, x: tf.broadcast_to(x, c.shape(sizes)),
            place,
            axis=None if moved is None else moved + 1,
        )


def dense(p: Program) -> None:
    """A product with a weight, along any axis but that of the examples."""
    place = p.pick(lambda v: v.rank > 0)
    value = p.pool[place]
    way = p.random.choice(["last", "last", "einsum", "vector"])
    if way == "einsum":
        axis = any_axis(p, value)
    else:
        axis = value.rank - 1
        if p.careful and axis == value.axis:
            raise LookupError
    size, width = value.shape[axis], p.random.choice([1, 2, p.width])
    shape = [size] if way == "vector" else [size, width]
    kernel = p.variable(shape)
    labels = string.ascii_lowercase[: value.rank]
    mine = labels[axis]

    def function(c: Any, x: Any) -> Any:
        w = c.variables[kernel]
        if way == "vector":
            return x * w
        if way == "last":
            return tf.tensordot(x, w, 1)
        return tf.einsum(f"{labels},{mine}z->{labels.replace(mine, 'z')}", x, w)

    p.add(
        f"dense {way} {axis} weight {kernel}",
        function,
        place,
        axis=value.axis,
        trained=True,
    )


def product(p: Program) -> None:
    """A matrix product of two tensors of the pool, or with itself."""
    left = p.pick(lambda v: v.rank > 1)
    one = p.pool[left]
    right = left if p.random.random() < 0.3 else p.pick(lambda v: v.rank > 1)
    flags = [p.random.random() < 0.5 for _ in range(2)]
    two = p.pool[right]
    if left == right:
        flags[1] = not flags[0]
    if p.careful and (one.axis, two.axis) != (0, 0):
        raise LookupError
    if p.careful and (one.rank, two.rank) != (3, 3):
        raise LookupError
    p.add(
        f"matmul {flags}",
        lambda _, a, b: tf.matmul(
            a, b, transpose_a=flags[0], transpose_b=flags[1]
        ),
        left,
        right,
        axis=0,
    )


def einsum(p: Program) -> None:
    """Any Einstein sum of two tensors whose sizes allow it."""
    left = p.pick(lambda v: v.rank > 0)
    right = p.pick(lambda v: v.rank > 0)
    one, two = p.pool[left], p.pool[right]
    lefts = string.ascii_lowercase[: one.rank]
    rights, careful = "", p.careful
    if careful and None in (one.axis, two.axis):
        raise LookupError
    for axis, size in enumerate(two.shape):
        same = [
            label
            for label, n in zip(lefts, one.shape, strict=True)
            if n == size and label not in rights
        ]
        label = string.ascii_lowercase[10 + axis]
        if same and p.random.random() < 0.6:
            label = p.random.choice(same)
        if careful and axis == two.axis:
            label = lefts[one.axis]
        elif careful and label == lefts[one.axis]:
            label = string.ascii_lowercase[10 + axis]
        rights += label
    labels = sorted({*lefts, *rights})
    out = p.random.sample(labels, p.random.randint(0, len(labels)))
    axis = None
    if careful:
        kept = lefts[one.axis]
        out = [kept] + [label for label in out if label != kept]
        p.random.shuffle(out)
        axis = out.index(kept)
    equation = f"{lefts},{rights}->{''.join(out)}"
    p.add(
        equation,
        lambda _, a, b: tf.einsum(equation, a, b),
        left,
        right,
        axis=axis,
    )


def attention(p: Program) -> None:
    """Softmax over scores: within an example, or across the batch."""
    rank = 3 if p.careful else 2
    place = p.pick(lambda v: v.rank == rank and v.axis == 0)

    def function(_: Any, x: Any) -> Any:
        scores = tf.matmul(x, x, transpose_b=True)
        return tf.matmul(tf.nn.softmax(scores / 2.0), x)

    p.add(f"attention over {rank - 1} axes", function, place, axis=0)


def convolution(p: Program) -> None:
    """Convolution and pooling over the second axis of three."""
    place = p.pick(lambda v: v.rank == 3)
    value = p.pool[place]
    if p.careful and value.axis != 0:
        raise LookupError
    way = p.random.choice(["conv", "conv2d", "average", "largest"])
    width, channels = p.random.randint(1, 2), p.random.randint(1, 3)
    padding = p.random.choice(["SAME", "VALID"])
    stride = p.random.randint(1, 2)
    kernel = None
    if way == "conv":
        kernel = p.variable([width, value.shape[2], channels])
    elif way == "conv2d":
        kernel = p.variable([width, width, 1, channels])

    def function(c: Any, x: Any) -> Any:
        if way == "conv":
            return tf.nn.conv1d(x, c.variables[kernel], stride, padding)
        if way == "conv2d":
            maps = tf.nn.conv2d(
                x[..., None], c.variables[kernel], stride, padding
            )
            return tf.reduce_sum(maps, 3)
        pool = tf.nn.avg_pool1d if way == "average" else tf.nn.max_pool1d
        return pool(x, width, stride, padding)

    p.add(
        f"{way} {width} {stride} {padding}",
        function,
        place,
        axis=value.axis,
        trained=kernel is not None,
    )


def totals(p: Program) -> None:
    """Statistics of the batch that reach single examples."""
    if p.careful:
        raise LookupError
    place = p.pick()
    way = p.random.choice(["count", "mean", "branch", "largest"])

    def function(_: Any, x: Any) -> Any:
        if way == "count":
            return x / (1.0 + tf.reduce_sum(tf.cast(x > 0, x.dtype)))
        if way == "mean":
            return x - tf.reduce_mean(x)
        if way == "largest":
            return x / (1.0 + tf.reduce_max(tf.abs(x)))
        total = tf.reduce_sum(x)
        return tf.cond(total > 0, lambda: x, lambda: 2.0 * x)

    p.add(f"total {way}", function, place, axis=p.pool[place].axis)
