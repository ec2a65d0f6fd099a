"""Steps for TPUs, traced by TPUStrategy itself on a machine without TPUs.

What they compile to is checked by `make tpu-check`; see docs/tpu.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.accounting.filters import RenyiFilter
from tf_sparse_dp.gradients.internals import is_compiled
from tf_sparse_dp.gradients.separation import Separation
from tools.tpu_check.cases import CASES, SMALL
from tools.tpu_check.strategy import tpu_strategy_of
from tools.tpu_check.traced import traced

pytestmark = pytest.mark.once
keras = tf.keras


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(True)


def test_the_bridge_takes_a_step_and_names_what_it_refuses() -> None:
    strategy = tpu_strategy_of(4)
    traced(strategy, CASES["threshold"], SMALL, 1.0).check_bridge()

    def count(data: Any) -> tf.Tensor:
        return tf.reduce_sum(tf.unique_with_counts(data[0][:, 0]).count)

    broken = traced(strategy, CASES["gaussian"], SMALL, 1.0, also=count)
    with pytest.raises(Exception, match="UniqueWithCounts"):
        broken.check_bridge()


def test_tables_are_updated_by_rows() -> None:
    step = traced(tpu_strategy_of(4), CASES["threshold"], SMALL, 1.0)
    definition = step.function.graph.as_graph_def()
    kinds = {
        node.op
        for function in definition.library.function
        for node in function.node_def
    }
    # A sum over replicas of what is released would be of the whole table.
    assert "CrossReplicaSum" not in kinds
    assert "ResourceScatterUpdate" in kinds


@functools.cache
def one_core() -> tf.distribute.Strategy:
    return tpu_strategy_of(1)


def run_on_tpu(function: Any, *args: tf.Tensor) -> None:
    """Traces a replica's function; nothing can be run."""
    strategy = one_core()

    @tf.function(autograph=False)
    def step(*args: tf.Tensor) -> None:
        strategy.run(function, args=args)

    step.get_concrete_function(*args)


def separated(x: tf.Tensor, weight: tf.Variable) -> Separation:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weight)))
    gradient = tape.gradient(loss, weight)
    return Separation([gradient], ["weight"], [tuple(weight.shape)])


def test_a_replica_knows_the_batch_by_what_is_handed_to_it() -> None:
    with one_core().scope():
        weight = tf.Variable(tf.ones([3, 1]))
    seen: list[Any] = []

    def step(x: tf.Tensor) -> None:
        found = separated(x, weight)
        seen.append([root.op.type for root in found.analysis.roots])
        seen.append([root.op.type for root in found.inputs])
        seen.append(found.analysis.sizes.batch_size)
        seen.append(is_compiled(found.analysis.graph))

    run_on_tpu(step, tf.ones([4, 3]))
    assert seen[0] == ["TPUReplicatedInput"]
    assert "Placeholder" not in seen[1]
    assert seen[2:] == [4, True]


def test_what_was_computed_outside_of_the_replica_is_refused() -> None:
    strategy = one_core()
    with strategy.scope():
        weight = tf.Variable(tf.ones([3, 1]))

    def replica(x: tf.Tensor) -> None:
        separated(x, weight)

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> None:
        centred = x - tf.reduce_mean(x, axis=0)
        strategy.run(replica, args=(centred,))

    with pytest.raises(tsdp.NotSeparableError):
        step.get_concrete_function(tf.ones([4, 3]))


def test_products_in_bfloat16_are_refused() -> None:
    tf.config.experimental.enable_tensor_float_32_execution(True)
    with one_core().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(
            tsdp.DPSparseOptimizer(
                keras.optimizers.SGD(0.1),
                noise_multiplier=1.0,
                expected_batch_size=4,
            ),
            loss="mse",
        )
        model.optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        model.train_step((x, y))

    with pytest.raises(ValueError, match="TPUs in bfloat16"):
        run_on_tpu(step, tf.ones([4, 3]), tf.ones([4, 1]))


def test_a_filter_that_needs_float64_on_the_tpu_is_refused() -> None:
    sampling = tsdp.PoissonSampling(num_examples=100, batch_size=4, steps=2)
    with one_core().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(
            tsdp.DPSparseOptimizer(
                keras.optimizers.SGD(0.1),
                RenyiFilter(epsilon=4.0, delta=1e-3),
                noise_multiplier=4.0,
                sampling=sampling,
            ),
            loss="mse",
        )
        model.optimizer.build(model.trainable_variables)
        model.optimizer.reserve(1)
    rows = sampling.max_batch_size

    def step(x: tf.Tensor, y: tf.Tensor, valid: tf.Tensor) -> None:
        model.train_step((x, y, valid))

    with pytest.raises(ValueError, match="pairs of float32"):
        run_on_tpu(
            step,
            tf.ones([rows, 3]),
            tf.ones([rows, 1]),
            tf.ones([rows], tf.float16),
        )
