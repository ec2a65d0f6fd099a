"""Several replicas of a TPU, traced on a machine without one.

What the traced steps compute is checked by `make tpu-check`; see docs/tpu.md.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import pickle
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp import random_keys
from tf_sparse_dp.distribute.refusals import check_step, check_strategy
from tf_sparse_dp.local_variable import local_variable
from tf_sparse_dp.random_keys import KeyStream
from tf_sparse_dp.sampling.bias_reduced import BiasReducedSampling
from tools.tpu_check.cases import CASES, LOOKUPS, SMALL
from tools.tpu_check.strategy import tpu_strategy_of
from tools.tpu_check.traced import traced
from tools.tpu_check.verdicts import check_copies, check_noise
from tools.tpu_check.wire import bytes_sent

keras = tf.keras
REPLICAS = 4
_SENDS = ("CrossReplicaSum", "AllToAll", "CollectivePermute")


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.fixture(scope="module")
def strategy() -> tf.distribute.Strategy:
    return tpu_strategy_of(REPLICAS)


def compiled_model(strategy: Any, **options: Any) -> Any:
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), **options)
        model.compile(optimizer, loss="mse")
        optimizer.build(model.trainable_variables)
    return model


def without_plan(strategy: Any) -> Any:
    return compiled_model(
        strategy, noise_multiplier=1.0, expected_batch_size=16.0
    )


def trace(function: Any, *args: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(*args)


def parts_of_a_batch(strategy: Any, rows: int = 4) -> Any:
    def part(context: Any) -> Any:
        return tf.ones([rows, 3]), tf.ones([rows, 1])

    return strategy.experimental_distribute_values_from_function(part)


# Sums, and who adds them up.


def operations(graph: Any) -> list[tf.Operation]:
    """Of a step, those in branches and loops among them."""
    functions = [graph, *(f.graph for f in graph._functions.values())]
    return [op for part in functions for op in part.get_operations()]


def sent_by(strategy: Any, name: str, rows: int) -> list[tuple[Any, int]]:
    """Types and sizes of all that a replica sends."""
    size = dataclasses.replace(SMALL, rows=rows, width=4, part=8)
    graph = traced(strategy, CASES[name], size, 1.0).function.graph
    return [
        (op.inputs[0].dtype, op.inputs[0].shape.num_elements())
        for op in operations(graph)
        if op.type in _SENDS
    ]


def test_what_is_released_is_not_added_up_again(
    strategy: tf.distribute.Strategy,
) -> None:
    with strategy.scope():
        layers = [
            keras.Input((LOOKUPS,), dtype="int32"),
            keras.layers.Embedding(5000, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_regularizer="l2"),
        ]
        model = keras.Sequential(layers)
        optimizer = tsdp.DPSparseOptimizer(
            keras.optimizers.Adam(0.1, weight_decay=0.01),
            mechanism=tsdp.mechanisms.Threshold(),
            noise_multiplier=1.0,
            expected_batch_size=32.0,
        )
        model.compile(optimizer, loss="mse")
        optimizer.build(model.trainable_variables)

    def step(parts: Any) -> None:
        strategy.run(model.train_step, args=(parts,))

    parts = strategy.experimental_distribute_values_from_function(
        lambda context: (tf.ones([8, LOOKUPS], tf.int32), tf.ones([8, 1]))
    )
    sent = [
        tuple(op.inputs[0].shape)
        for op in operations(trace(step, parts).graph)
        if op.type in _SENDS and op.inputs[0].dtype == tf.float32
    ]
    # Rows of the table; the kernel's sum, its regulariser, and the bias. For
    # tf-keras two numbers more, of its metrics.
    expected = [(1,), (4, 24, 8), (24, 1), (24, 1)]
    assert sorted(shape for shape in sent if shape) == expected


@pytest.mark.once
@pytest.mark.parametrize(
    "name", ["gaussian", "threshold", "partition selection"]
)
def test_what_is_sent_does_not_grow_with_the_table(
    strategy: tf.distribute.Strategy, name: str
) -> None:
    few, many = (sent_by(strategy, name, rows) for rows in (2000, 100_000))
    assert few == many
    # Ids and rows of 24 lookups, gathered from all replicas.
    assert (tf.float32, REPLICAS * 24 * 4) in few


def test_bytes_are_counted() -> None:
    program = """
      %1 = "stablehlo.all_reduce"(%0) <{groups = dense<0> : tensor<1xi64>}> ({
        %3 = stablehlo.add %a, %b : tensor<f32>
      }) : (tensor<4x30x2xf32>) -> tensor<4x30x2xf32>
      %2 = "stablehlo.all_to_all"(%1) : (tensor<4xi64>) -> tensor<4xi64>
      %4 = stablehlo.reshape %1 : (tensor<9xf32>) -> tensor<9xf32>
    """
    assert bytes_sent(program) == 4 * 30 * 2 * 4 + 4 * 8


def test_noise_of_each_replica_is_found() -> None:
    # 10,000 numbers: 10 % are 14 standard errors of the deviation.
    draws = np.random.default_rng(0).normal(size=[REPLICAS, 10_000])
    assert check_noise([draws[0]], 1.0) == pytest.approx(1.0, abs=0.1)
    for wrong in (draws.sum(0), draws.mean(0), 0.8 * draws[0]):
        with pytest.raises(ValueError, match="of what it should be"):
            check_noise([wrong], 1.0)
    check_copies([[draws[0], draws[0]]])
    with pytest.raises(ValueError, match="not the same on all replicas"):
        check_copies([[draws[0], draws[1]]])


# The batch.


def test_a_distributed_batch_of_the_plan(
    strategy: tf.distribute.Strategy,
) -> None:
    sampling = tsdp.PoissonSampling(
        num_examples=100, batch_size=8, steps=2, max_batch_size=32
    )
    plan = tsdp.PrivacyPlan(epsilon=3.0, delta=1e-3, sampling=sampling)
    model = compiled_model(strategy, plan=plan)
    arrays = np.ones([100, 3], "float32"), np.ones([100, 1], "float32")
    with strategy.scope():
        data = sampling.dataset(arrays)
        iterator = iter(strategy.experimental_distribute_dataset(data))
        model.make_train_function()
        train = model.train_function
        if not hasattr(train, "get_concrete_function"):  # Keras 3.
            cells = zip(
                train.__code__.co_freevars, train.__closure__, strict=True
            )
            train = dict(cells)["multi_step_on_iterator"].cell_contents
        train.get_concrete_function(iterator)

    def step(parts: Any) -> None:
        strategy.run(model.train_step, args=(parts,))

    model = compiled_model(strategy, plan=plan)
    with strategy.scope():
        again = tsdp.PoissonSampling(
            num_examples=100, batch_size=8, steps=2, max_batch_size=36
        ).dataset(arrays)
        batch = next(iter(strategy.experimental_distribute_dataset(again)))
    with pytest.raises(tsdp.NotSeparableError, match="9 rows on each of 4"):
        trace(step, batch)


def test_one_batch_for_all_replicas_is_refused(
    strategy: tf.distribute.Strategy,
) -> None:
    model = without_plan(strategy)
    x, y = tf.ones([4, 3]), tf.ones([4, 1])

    def handed_over(x: tf.Tensor, y: tf.Tensor) -> None:
        strategy.run(model.train_step, args=((x, y),))

    def closed_over(x: tf.Tensor, y: tf.Tensor) -> None:
        strategy.run(lambda: model.train_step((x, y)))

    for step in (handed_over, closed_over):
        with pytest.raises(tsdp.NotSeparableError):
            trace(step, x, y)


def test_rows_that_two_replicas_see_are_refused(
    strategy: tf.distribute.Strategy,
) -> None:
    model = without_plan(strategy)
    orders = ([0, 1, 2, 2], [1, 0, 2, 3], [0, 1, 2, 3])

    def step_of(order: list[int]) -> Any:
        def step(xs: list[tf.Tensor], ys: list[tf.Tensor]) -> None:
            parts = strategy.experimental_distribute_values_from_function(
                lambda context: (
                    xs[order[context.replica_id_in_sync_group]],
                    ys[context.replica_id_in_sync_group],
                )
            )
            strategy.run(model.train_step, args=(parts,))

        return step

    args = [tf.ones([4, 3])] * REPLICAS, [tf.ones([4, 1])] * REPLICAS
    for order in orders[:2]:
        with pytest.raises(tsdp.NotSeparableError, match="One of 4 replicas"):
            trace(step_of(order), *args)
    trace(step_of(orders[2]), *args)


@pytest.mark.parametrize("seen", ["the first part", "all parts", "neither"])
def test_parts_that_all_replicas_see_are_refused(
    strategy: tf.distribute.Strategy, seen: str
) -> None:
    """Beside its own part: an example would count once for each replica."""
    model = without_plan(strategy)

    def step(xs: list[tf.Tensor], ys: list[tf.Tensor]) -> None:
        parts = strategy.experimental_distribute_values_from_function(
            lambda context: (
                xs[context.replica_id_in_sync_group],
                ys[context.replica_id_in_sync_group],
            )
        )

        def own(x: tf.Tensor, y: tf.Tensor) -> None:
            if seen == "the first part":
                x = x * xs[0]
            elif seen == "all parts":
                y = y + tf.reduce_mean(tf.concat(xs, 0), 1, True)[:4]
            model.train_step((x, y))

        strategy.run(own, args=parts)

    args = [tf.ones([4, 3])] * REPLICAS, [tf.ones([4, 1])] * REPLICAS
    if seen == "neither":
        trace(step, *args)
        return
    with pytest.raises(tsdp.NotSeparableError, match="by another way"):
        trace(step, *args)


def test_one_iterator_for_all_replicas_is_refused(
    strategy: tf.distribute.Strategy,
) -> None:
    model = without_plan(strategy)
    data = tf.data.Dataset.from_tensors((tf.ones([4, 3]), tf.ones([4, 1])))

    def step(iterator: Any) -> None:
        parts = strategy.experimental_distribute_values_from_function(
            lambda context: next(iterator)
        )
        strategy.run(model.train_step, args=(parts,))

    with pytest.raises(tsdp.NotSeparableError, match="One of 4 replicas"):
        trace(step, iter(data))


def test_activations_that_are_added_up_are_refused(
    strategy: tf.distribute.Strategy,
) -> None:
    class Total(keras.layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            if context is None or not tf.inside_function():
                return x
            if type(context).__name__ != "_TPUReplicaContext":
                return x
            return context.all_reduce(tf.distribute.ReduceOp.SUM, x)

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(2), Total()]
        )
        optimizer = tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=1.0,
            expected_batch_size=16.0,
        )
        model.compile(optimizer, loss="mse")
        optimizer.build(model.trainable_variables)

    def step(parts: Any) -> None:
        strategy.run(model.train_step, args=(parts,))

    with pytest.raises(tsdp.NotSeparableError, match="CrossReplicaSum"):
        trace(step, parts_of_a_batch(strategy))


# What is refused.


@pytest.mark.once
def test_what_is_for_one_replica(strategy: tf.distribute.Strategy) -> None:
    size = dataclasses.replace(SMALL, part=32)
    with pytest.raises(ValueError, match="was built under TPUStrategyV2"):
        traced(strategy, CASES["lazy table"], size, 1.0)

    def replica() -> None:
        check_step([], BiasReducedSampling(num_examples=64, steps=4), True)

    def step() -> None:
        strategy.run(replica)

    with pytest.raises(ValueError, match="consist of parts"):
        trace(step)


@pytest.mark.parametrize("outer", [False, True])
def test_optimizers_of_another_scope_are_refused(
    strategy: tf.distribute.Strategy, outer: bool
) -> None:
    model = without_plan(strategy)
    inner = keras.optimizers.SGD(0.1)
    if outer:
        inner = model.optimizer.inner_optimizer
    optimizer = tsdp.DPSparseOptimizer(
        inner, noise_multiplier=1.0, expected_batch_size=16.0
    )
    with strategy.scope():
        model.compile(optimizer, loss="mse")

    def step(parts: Any) -> None:
        strategy.run(model.train_step, args=(parts,))

    with pytest.raises(ValueError, match="scope"):
        trace(step, parts_of_a_batch(strategy))


def test_keys_of_another_scope_are_refused(
    strategy: tf.distribute.Strategy,
) -> None:
    model = without_plan(strategy)
    step = model.optimizer.private_step
    step.keys = copy.deepcopy(step.keys)  # Out of the scope: no copies.

    def train(parts: Any) -> None:
        strategy.run(model.train_step, args=(parts,))

    with pytest.raises(ValueError, match="'noise_root"):
        trace(train, parts_of_a_batch(strategy))


@pytest.mark.once
@pytest.mark.parametrize(
    "hosts, cores, job, refused",
    [
        (1, 1, "localhost", False),
        (2, 1, "localhost", True),
        (1, 2, "localhost", True),
        (1, 1, "worker", True),  # Where another process compiles.
    ],
)
def test_hosts_and_cores(
    strategy: tf.distribute.Strategy,
    monkeypatch: pytest.MonkeyPatch,
    hosts: int,
    cores: int,
    job: str,
    refused: bool,
) -> None:
    extended = types.SimpleNamespace(
        num_hosts=hosts,
        num_replicas_per_host=REPLICAS // hosts,
        _num_replicas_in_sync=REPLICAS,
        _tpu_devices=np.zeros([REPLICAS, cores]),
        _host_device=f"/job:{job}/replica:0/task:0/device:CPU:0",
    )
    monkeypatch.setattr(strategy, "_extended", extended)
    if refused:
        with pytest.raises(ValueError, match="several or other hosts"):
            check_strategy(strategy)
    else:
        check_strategy(strategy)


# Variables and draws.


@pytest.mark.once
def test_the_statement_says_what_is_assumed_of_a_tpu(
    strategy: tf.distribute.Strategy,
) -> None:
    on_tpu = without_plan(strategy).optimizer
    assert "The TPU multiplies" in str(on_tpu.privacy_statement())
    elsewhere = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), noise_multiplier=1.0, expected_batch_size=4.0
    )
    assert "TPU" not in str(elsewhere.privacy_statement())


@pytest.mark.once
@pytest.mark.parametrize("replicas", [1, REPLICAS])
def test_counts_have_a_copy_on_each_core(replicas: int) -> None:
    strategy = tpu_strategy_of(replicas)
    with strategy.scope():
        count = local_variable(3, name="count", dtype=tf.int64)
    assert strategy.extended.variable_created_in_scope(count)
    assert [int(copy.numpy()) for copy in count.values] == [3] * replicas


@pytest.mark.once
def test_the_key_is_in_no_file(
    strategy: tf.distribute.Strategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        root = KeyStream()._root
        count = local_variable(3, name="count")
    module = tf.Module()
    module.root = root
    for secret in (root, *root.values):
        for save in (
            copy.deepcopy,
            copy.copy,
            pickle.dumps,
            lambda x: tf.train.Checkpoint(x=x).write(str(tmp_path / "key")),
        ):
            with pytest.raises(RuntimeError, match="about to be saved"):
                save(secret)
    with pytest.raises(RuntimeError, match="about to be saved"):
        tf.saved_model.save(module, str(tmp_path / "model"))
    tf.train.Checkpoint(x=count).write(str(tmp_path / "count"))


@pytest.mark.once
@pytest.mark.parametrize("dtype", [tf.uint32, tf.int64])
def test_pieces_are_the_same_draw(
    monkeypatch: pytest.MonkeyPatch, dtype: tf.DType
) -> None:
    key = tf.constant([5, 7], tf.int64)
    whole = random_keys.random_bits([3, 1001], key, dtype)
    monkeypatch.setattr(random_keys, "_PIECE", 64)
    monkeypatch.setattr(
        random_keys, "TPU_STRATEGIES", (tf.distribute.Strategy,)
    )
    in_pieces = tf.function(
        lambda key: random_keys.random_bits([3, 1001], key, dtype),
        jit_compile=True,
    )
    graph = in_pieces.get_concrete_function(key).graph
    assert any("While" in op.type for op in graph.get_operations())
    np.testing.assert_array_equal(whole, in_pieces(key))
