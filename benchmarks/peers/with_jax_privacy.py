"""Contenders on jax_privacy, and JAX without privacy.

- `not private`: gradients of the rows that were gathered, added to them in
  place. `jax grad`: gradients of whole tables, as `jax.grad` gives them.
- `clipped_grad`: gradients of examples, one example at a time, and noise.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy import noise_addition

from benchmarks.peers import data
from benchmarks.peers.contenders import FRAMEWORKS, NOT_PRIVATE
from benchmarks.peers.turns import Contender, main

BASES = FRAMEWORKS["jax_privacy"].bases
# Examples that are worked on at a time: with a dense gradient of all tables for
# each, more than one took longer (four and 32 were tried).
AT_A_TIME = 1


def initial(setting: data.Setting) -> dict[str, Any]:
    """Weights."""
    rng = np.random.default_rng(data.SEED)

    def layer(inputs: int, units: int) -> dict[str, Any]:
        limit = np.sqrt(6 / (inputs + units))
        kernel = rng.uniform(-limit, limit, (inputs, units))
        return {
            "kernel": jnp.asarray(kernel, jnp.float32),
            "bias": jnp.zeros([units], jnp.float32),
        }

    def table() -> Any:
        values = rng.random((setting.rows, setting.width), np.float32)
        return jnp.asarray(0.1 * values - 0.05)

    def norm() -> dict[str, Any]:
        return {"scale": jnp.ones([width]), "bias": jnp.zeros([width])}

    width = setting.width
    if setting.model == "dlrm":
        first = setting.tables * width + setting.numbers
        units = [first, *data.DLRM_HIDDEN, 1]
        dense: Any = [layer(*pair) for pair in itertools.pairwise(units)]
    elif setting.model == "two-tower":
        units = [width, data.TOWER_HIDDEN, data.TOWER_OUTPUT]
        dense = [
            [layer(*pair) for pair in itertools.pairwise(units)]
            for _ in range(setting.tables)
        ]
    else:
        dense = {
            **{name: layer(width, width) for name in ("q", "k", "v", "out")},
            "norms": [norm(), norm()],
            "ffn": [
                layer(width, data.FEED_FORWARD),
                layer(data.FEED_FORWARD, width),
            ],
            "top": layer(width, 1),
        }
    return {"tables": [table() for _ in range(setting.tables)], "dense": dense}


def apply(layer: Any, x: Any) -> Any:
    """A dense layer."""
    return x @ layer["kernel"] + layer["bias"]


def mlp(layers: Any, x: Any) -> Any:
    """Dense layers with relu between them."""
    for one in layers[:-1]:
        x = jax.nn.relu(apply(one, x))
    return apply(layers[-1], x)


def normalised(norm: Any, x: Any) -> Any:
    """Layer normalisation."""
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-3)
    return x * norm["scale"] + norm["bias"]


def logits(dense: Any, rows: Any, numbers: Any, model: str) -> Any:
    """What comes of rows that were looked up."""
    if model == "dlrm":
        return mlp(dense, jnp.concatenate([*rows, *numbers], -1))
    if model == "two-tower":
        users, items = map(mlp, dense, rows)
        return (users * items).sum(-1, keepdims=True)
    (items,) = rows
    heads = [
        apply(dense[name], items).reshape(*items.shape[:-1], data.HEADS, -1)
        for name in "qkv"
    ]
    seen = jax.nn.dot_product_attention(*heads).reshape(items.shape)
    items = normalised(dense["norms"][0], items + apply(dense["out"], seen))
    items = normalised(dense["norms"][1], items + mlp(dense["ffn"], items))
    return apply(dense["top"], items.mean(-2))


def updates(name: str, setting: data.Setting) -> tuple[Any, Any]:
    """A step, from weights, a state and a batch; and how the state begins."""

    def loss(dense: Any, rows: Any, numbers: Any, y: Any) -> Any:
        z = logits(dense, rows, numbers, setting.model)
        return jnp.mean(jax.nn.softplus(z) - y * z)

    def whole(weights: Any, x: Any, y: Any) -> Any:
        ids, numbers = x[: setting.tables], x[setting.tables :]
        rows = [
            table[i] for table, i in zip(weights["tables"], ids, strict=True)
        ]
        return loss(weights["dense"], rows, numbers, y)

    def descend(weights: Any, gradients: Any) -> Any:
        return jax.tree.map(lambda w, g: w - data.RATE * g, weights, gradients)

    def gathered(weights: Any, state: Any, x: Any, y: Any) -> Any:
        ids, numbers = x[: setting.tables], x[setting.tables :]
        tables, dense = weights["tables"], weights["dense"]
        rows = [table[i] for table, i in zip(tables, ids, strict=True)]
        value, (by_dense, by_rows) = jax.value_and_grad(loss, (0, 1))(
            dense, rows, numbers, y
        )
        tables = [
            table.at[i].add(-data.RATE * gradient)
            for table, i, gradient in zip(tables, ids, by_rows, strict=True)
        ]
        dense = descend(dense, by_dense)
        return {"tables": tables, "dense": dense}, state, value

    def ordinary(weights: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(whole)(weights, x, y)
        return descend(weights, gradients), state, value

    clipped = jax_privacy.clipped_grad(
        whole,
        l2_clip_norm=data.CLIP_NORM,
        normalize_by=setting.batch_size,
        batch_argnums=(1, 2),
        return_values=True,
        microbatch_size=AT_A_TIME,
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=data.NOISE_MULTIPLIER * data.CLIP_NORM / setting.batch_size,
        prng_key=data.SEED,
    )

    def private(weights: Any, state: Any, x: Any, y: Any) -> Any:
        gradients, aux = clipped(weights, x, y)
        gradients, state = privatizer.update(gradients, state)
        return descend(weights, gradients), state, jnp.mean(aux.values)

    if name in BASES:
        return (gathered if name == NOT_PRIVATE else ordinary), lambda _: ()
    return private, privatizer.init


def make(name: str, setting: data.Setting) -> Contender:
    """Sets up a contender."""
    update, begin = updates(name, setting)
    weights = initial(setting)
    state = begin(weights)
    update = jax.jit(update, donate_argnums=(0, 1))
    features, labels = data.batches(setting)
    pool = itertools.cycle(
        [
            jax.tree.map(jnp.asarray, (x, y))
            for *x, y in zip(*features, labels, strict=True)
        ]
    )

    def step() -> Any:
        nonlocal weights, state
        weights, state, loss = update(weights, state, *next(pool))
        jax.block_until_ready((weights, loss))
        return loss

    return Contender(
        step=step,
        loss=float,
        rows=lambda ids: np.array(weights["tables"][0][ids]),
    )


if __name__ == "__main__":
    main(make, "jax_privacy")
