"""Families of malformed data, each a way of drawing cases."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.faults.seen import Seen, watched

keras = tf.keras
layers = keras.layers

ROWS, BATCH = 20, 8
_random = np.random.RandomState(0)
X = _random.randn(BATCH, 4).astype("float32")
IDS = _random.randint(0, ROWS, (BATCH, 3)).astype("int32")
Y = _random.randn(BATCH, 1).astype("float32")
EXTREME = np.array(
    [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, 1e20, -1e-20, 2.0**24],
    "float32",
)
FAR = np.array(
    [-1, -ROWS, -ROWS - 1, ROWS, ROWS + 1, 2**31 - 1, -(2**31), 0, 10**6],
    "int32",
)
TABLES = {"embedding": layers.Embedding, "lazy": tsdp.layers.LazyEmbedding}
SAMPLING = tsdp.PoissonSampling(
    num_examples=64, batch_size=4, steps=2000, max_batch_size=40
)
DRAWN = np.tile(X, [8, 1]), np.tile(Y, [8, 1])

Random = np.random.Generator


def optimizer(plan: Any = None) -> Any:
    given: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch_size": 8}
    return tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1e-3), plan, **({} if plan else given)
    )


@functools.cache
def model(table: str = "embedding", compiled: bool = False) -> Any:
    """A model that was trained on good data, once, for all cases."""
    x = keras.Input((4,), name="x")
    ids = keras.Input((3,), dtype="int32", name="ids")
    rows = layers.Flatten()(TABLES[table](ROWS, 4)(ids))
    outputs = layers.Dense(1)(layers.Concatenate()([x, rows]))
    made = keras.Model({"x": x, "ids": ids}, outputs)
    made.compile(optimizer(), "mse", jit_compile=compiled)
    fit(made, {"x": X, "ids": IDS}, Y)
    return made


def fit(made: Any, inputs: Any, labels: Any, weight: Any = None) -> None:
    made.fit(
        inputs,
        labels,
        sample_weight=np.ones(BATCH, "float32") if weight is None else weight,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    )


def _any_model(random: Random, compiled: bool | None = None) -> Any:
    if compiled is None:
        compiled = bool(random.random() < 0.5)
    return model(str(random.choice(list(TABLES))), compiled)


def _scattered(random: Random, array: np.ndarray, values: np.ndarray) -> Any:
    """A copy in which some entries are others."""
    array = array.copy()
    chosen = random.random(array.shape) < random.choice([0.05, 0.5, 1.0])
    array[chosen] = random.choice(values, int(chosen.sum()))
    return array


def values(random: Random) -> Seen:
    """Numbers that are none, or are extreme, in any bits."""
    data = {"x": X, "y": Y, "weight": np.ones(BATCH, "float32")}
    for name in random.choice(list(data), random.integers(1, 4), False):
        bits = random.integers(0, 2**32, 50, np.uint32).view("float32")
        some = EXTREME if random.random() < 0.6 else bits
        data[name] = _scattered(random, data[name], some)
    made = _any_model(random)
    with watched(made, must_step=True) as found:
        inputs = {"x": data["x"], "ids": IDS}
        fit(made, inputs, data["y"], data["weight"])
    return found.seen


def ids(random: Random) -> Seen:
    """Ids that are negative, huge, or just out of range."""
    some = FAR
    if random.random() < 0.5:
        some = random.integers(-(2**31), 2**31, 50).astype("int32")
    made = _any_model(random)
    with watched(made, must_step=bool(made.jit_compile)) as found:
        fit(made, {"x": X, "ids": _scattered(random, IDS, some)}, Y)
    return found.seen


DTYPES = (
    *("float64", "float16", "int8", "int64", "uint8", "bool", "complex64"),
    *("object", "U3", "S3", "datetime64[s]", "uint64", "float32", "int32"),
)


def dtypes(random: Random) -> Seen:
    """Arrays of other types than the model's."""
    data = {"x": X, "ids": IDS, "y": Y, "weight": np.ones(BATCH, "float32")}
    name = str(random.choice(list(data)))
    dtype = str(random.choice(DTYPES))
    given = data[name]
    if dtype == "datetime64[s]":
        given = given.astype("int64")
    data[name] = given.astype(dtype)
    if dtype == "object" and random.random() < 0.5:
        data[name].flat[0] = random.choice(
            np.array([None, "a", [1, 2]], dtype=object)
        )
    made = _any_model(random, compiled=False)
    with watched(made) as found:
        inputs = {"x": data["x"], "ids": data["ids"]}
        fit(made, inputs, data["y"], data["weight"])
    return found.seen


def _reshaped(random: Random, array: np.ndarray) -> Any:
    ways = [
        lambda a: a[: random.integers(0, BATCH)],
        lambda a: np.concatenate([a, a[: random.integers(1, 4)]]),
        lambda a: a[..., np.newaxis],
        lambda a: a[np.newaxis],
        lambda a: a.T,
        lambda a: a.ravel(),
        lambda a: a[:, :0] if a.ndim > 1 else a[:0],
        lambda a: np.concatenate([a, a], -1),
        lambda a: a[0],
        lambda a: a.flat[0],
        lambda a: np.zeros([0, *a.shape[1:]], a.dtype),
        lambda a: a[..., :1],
    ]
    return ways[random.integers(len(ways))](array)


def shapes(random: Random) -> Seen:
    """Arrays of other ranks, widths and lengths, and of none."""
    data = {"x": X, "ids": IDS, "y": Y, "weight": np.ones(BATCH, "float32")}
    which = list(data) if random.random() < 0.2 else [random.choice(list(data))]
    for name in which:
        data[str(name)] = _reshaped(random, data[str(name)])
    made = _any_model(random, compiled=bool(random.random() < 0.1))
    with watched(made) as found:
        inputs = {"x": data["x"], "ids": data["ids"]}
        fit(made, inputs, data["y"], data["weight"])
    return found.seen


def keys(random: Random) -> Seen:
    """Features that are missing, of other names, or in other structures."""
    given: dict[str, Any] = {"x": X, "ids": IDS}
    ways = [
        lambda: {"x": X},
        lambda: {"ids": IDS},
        lambda: {},
        lambda: {"X": X, "ids": IDS},
        lambda: {**given, "more": X},
        lambda: {"x": {"x": X}, "ids": IDS},
        lambda: {"x": None, "ids": IDS},
        lambda: {"x": "x", "ids": IDS},
        lambda: [X, IDS],
        lambda: [IDS, X],
        lambda: (X,),
        lambda: X,
        lambda: None,
        lambda: 3,
        lambda: {"x": IDS, "ids": X},
        lambda: {1: X, 2: IDS},
        lambda: {"x": [X, X], "ids": IDS},
    ]
    labels = [Y, None, {"y": Y}, [Y, Y], "y", X]
    label = labels[random.integers(len(labels))]
    made = _any_model(random, compiled=False)
    with watched(made) as found:
        inputs = ways[random.integers(len(ways))]()
        fit(made, inputs, label if random.random() < 0.3 else Y)
    return found.seen


class Weighted(keras.Model):
    """Ragged ids, with weights of a feature of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(ROWS, 4)
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        ids, weights = inputs
        rows = self.table(ids.values) * weights.values[:, None]
        return self.score(tf.reduce_sum(ids.with_values(rows), 1))


def _rows(random: Random, lengths: np.ndarray, whole: bool) -> Any:
    many = int(lengths.sum())
    flat = random.integers(0, ROWS, many) if whole else random.random(many)
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(flat, tf.int32 if whole else tf.float32), lengths
    )


@functools.cache
def _ragged_model() -> Any:
    random = np.random.default_rng(0)
    lengths = np.full(BATCH, 2)
    inputs = _rows(random, lengths, True), _rows(random, lengths, False)
    made = Weighted()
    made(inputs)
    made.compile(optimizer(), "mse", jit_compile=False)
    made.fit(_batches(inputs, Y), verbose=0)
    return made


def _batches(*data: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH)


def ragged(random: Random) -> Seen:
    """Lists whose lengths do not fit together, or where none should be."""
    lengths = random.integers(0, 4, BATCH)
    if random.random() < 0.3:
        made = model(str(random.choice(list(TABLES))))
        lists: Any = np.empty(BATCH, object)
        lists[:] = [list(range(size)) for size in lengths]
        forms = [lists, list(lists), _rows(random, lengths, True)]
        given = forms[random.integers(3)]
        with watched(made) as found:
            fit(made, {"x": X, "ids": given}, Y)
        return found.seen
    made = _ragged_model()
    others = lengths.copy()
    if random.random() < 0.7:  # As many in all, or not even that.
        others = random.permutation(others)
        others[0] += random.integers(0, 2)
    with watched(made) as found:
        inputs = _rows(random, lengths, True), _rows(random, others, False)
        made.fit(
            _batches(inputs, Y[: random.integers(BATCH - 1, BATCH + 1)]),
            verbose=0,
        )
    return found.seen


@functools.cache
def _planned_model() -> Any:
    made = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    plan = tsdp.PrivacyPlan(noise_multiplier=5.0, delta=0.1, sampling=SAMPLING)
    made.compile(optimizer(plan), "mse", jit_compile=False)
    made.fit(SAMPLING.dataset(DRAWN).take(1), verbose=0)
    return made


def pipelines(random: Random) -> Seen:
    """Batches that the plan's sampling did not give as they are."""
    data = SAMPLING.dataset(DRAWN).take(int(random.integers(1, 3)))
    ways = [
        # No batch, hence none to take a step with.
        lambda d: d.filter(lambda x, y, v: False),
        lambda d: d.skip(5),
        lambda d: d,
        lambda d: d.unbatch().batch(int(random.choice([1, 8, 39, 41]))),
        lambda d: d.map(lambda x, y, v: (x, y)),
        lambda d: d.map(lambda x, y, v: (x, y, tf.cast(v, tf.float32))),
        lambda d: d.map(lambda x, y, v: (x[:4], y[:4], v[:4])),
        lambda d: d.map(lambda x, y, v: (x, y, v[:4])),
        lambda d: d.map(lambda x, y, v: (x, y[:4], v)),
        lambda d: d.map(lambda x, y, v: (x, y, v * np.float16("nan"))),
        lambda d: d.map(lambda x, y, v: (x * np.nan, y, -v)),
        lambda d: d.map(lambda x, y, v: (x, y, v[:, None])),
        lambda d: d.map(lambda x, y, v: (tf.cast(x, tf.float64), y, v)),
        lambda d: d.batch(2),
        lambda d: d.map(lambda x, y, v: (tf.strings.as_string(x), y, v)),
        lambda d: d.map(
            lambda x, y, v: (tf.debugging.check_numerics(x / 0, "data"), y, v)
        ),
        lambda d: d.map(lambda x, y, v: (x, y, tf.zeros_like(v))),
    ]
    made = _planned_model()
    way = int(random.integers(len(ways)))
    with watched(made, may_be_none=way < 2) as found:
        made.fit(ways[way](data), verbose=0)
    return found.seen


FAMILIES = {
    "values": values,
    "ids": ids,
    "dtypes": dtypes,
    "shapes": shapes,
    "keys": keys,
    "ragged": ragged,
    "pipelines": pipelines,
}
