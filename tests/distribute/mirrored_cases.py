"""What a private step does on the replicas of a MirroredStrategy.

Run as `python -m tests.distribute.mirrored_cases <name of a case>`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from dp_accounting import NeighboringRelation

import tf_sparse_dp as tsdp
from tests.distribute.replicated import (
    BATCH,
    IDS,
    ROWS,
    TARGETS,
    batches,
    check_close,
    copies,
    make_devices,
    mirrored,
    model_with,
    private,
    scope,
)
from tf_sparse_dp.distribute import replicas
from tf_sparse_dp.mechanisms import BiasReduction
from tf_sparse_dp.random_keys import fold_in
from tf_sparse_dp.random_tails import normal
from tf_sparse_dp.sampling import BiasReducedSampling

KERAS_3 = hasattr(tf.keras, "ops")
MECHANISMS = (
    tsdp.Threshold(),
    tsdp.Projection(),
    tsdp.PartitionSelection(),
    tsdp.CompressedSensing(measurements=64),
)


def trained(number: int | None, epochs: int = 4, **arguments: Any) -> Any:
    """Trains 5 steps an epoch, on one device or on replicas."""
    strategy = None if number is None else mirrored(number)
    model = model_with(lambda: private(**arguments), strategy)
    model.fit(batches(), epochs=epochs, verbose=0)
    assert model.optimizer.compositions_spent == 5 * epochs
    assert model.optimizer.ledger().num_events == 5 * epochs
    assert int(model.optimizer.iterations.numpy()) == 5 * epochs
    # One key for each step, not for each replica.
    assert int(model.optimizer.private_step.keys._count.numpy()) == 5 * epochs
    for variable in [*model.weights, *model.optimizer.variables]:
        first, *others = copies(variable)
        for other in others:
            np.testing.assert_array_equal(first, other)
    return model.get_weights()


def without_noise() -> None:
    """The weights of one device, over 20 steps, on 1, 2 and 4 replicas."""
    expected = trained(None)
    for number in (1, 2, 4):
        check_close(trained(number), expected, 1e-5)
    # Of all mechanisms this one alone has sums of its own without noise.
    selected = trained(2, mechanism=tsdp.PartitionSelection())
    check_close(selected, expected, 1e-5)


def reductions() -> None:
    """Sums are not divided by the number of replicas, means are."""
    weights = []
    for number in (None, 2):
        strategy = None if number is None else mirrored(number)
        with scope(strategy):
            loss = tf.keras.losses.MeanSquaredError(reduction="sum")
        model = model_with(
            lambda: private(loss_reduction="sum"), strategy, loss=loss
        )
        model.fit(batches(), verbose=0)
        weights.append(model.get_weights())
    check_close(weights[1], weights[0], 1e-5)
    check_close(weights[1], trained(2, epochs=1), 1e-5)


def with_noise() -> None:
    """The same key gives the same noise, whatever the number of replicas."""
    for mechanism in MECHANISMS:
        given: Any = {"mechanism": mechanism, "noise_multiplier": 0.5}
        expected = trained(None, epochs=1, **given)
        # Sums are rounded to a grid, 2^-16 or so of the noise, before release.
        check_close(trained(2, epochs=1, **given), expected, 1e-3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseOnEach(tsdp.Gaussian):
    """Wrong: every replica adds noise of its own."""

    def clipped(self, terms: Any, key: Any, facts: Any, **rest: Any) -> Any:
        key = fold_in(key, replicas.local_place()[0])
        return [
            tf.convert_to_tensor(total)
            + normal(variable.shape, fold_in(key, place), facts.stddev)
            for place, (total, variable) in enumerate(
                zip(
                    super().clipped(terms, key, facts, **rest),
                    facts.variables,
                    strict=True,
                )
            )
        ]

    def release(self, sums: Any, key: Any, facts: Any) -> Any:
        return list(sums)


def variance() -> None:
    """The noise of one step is that of one device: its variance.

    Over n = 8000 entries the sample variance of normal noise has a relative
    standard deviation of √(2/n) = 0.0158; five of those fail by chance with
    probability 6e-7 a time.
    """
    for number, mechanism, right in (
        (None, tsdp.Gaussian(), True),
        (2, tsdp.Gaussian(), True),
        (4, tsdp.Gaussian(), True),
        (2, NoiseOnEach(), False),
    ):
        strategy = None if number is None else mirrored(number)
        model = model_with(
            lambda mechanism=mechanism: private(
                inner=tf.keras.optimizers.SGD(1.0),
                mechanism=mechanism,
                noise_multiplier=2.0,
                clip_norm=1e-3,
                seed=11,
            ),
            strategy,
        )
        before = model.get_weights()[0]
        model.fit(batches((IDS[:BATCH], TARGETS[:BATCH])), verbose=0)
        moved = (model.get_weights()[0] - before) * BATCH / 2e-3
        moved = np.delete(moved, np.unique(IDS[:BATCH]), 0)  # Noise alone.
        off = (moved.var() - 1) / math.sqrt(2 / moved.size)
        assert moved.shape[0] > ROWS - 60
        assert (abs(off) < 5) == right, (number, mechanism, off)


def poisson() -> None:
    """One draw, of which every replica gets its part; steps are charged once.

    And a plan refuses the same batches with other numbers of rows.
    """
    sampling = tsdp.PoissonSampling(
        num_examples=200, batch_size=24, steps=6, max_batch_size=64
    )
    plan = tsdp.PrivacyPlan(epsilon=8.0, delta=1e-5, sampling=sampling)
    ids = np.arange(1, 201)
    data = (np.stack([ids] * 3, 1), ids.astype("float32"))
    for number in (2, 4):
        strategy = mirrored(number)
        rows = sampling.dataset(data)
        for x, y, weight in strategy.experimental_distribute_dataset(rows):
            x, y, weight = map(
                strategy.experimental_local_results, (x, y, weight)
            )
            assert [tuple(part.shape) for part in y] == [
                (64 // number,)
            ] * number
            found = np.concatenate([part.numpy()[:, 0] for part in x])
            there = np.concatenate([part.numpy() for part in weight]) > 0
            np.testing.assert_array_equal(found > 0, there)
            np.testing.assert_array_equal(
                found, np.concatenate([part.numpy() for part in y])
            )
            drawn = found[there]
            assert len(set(drawn.tolist())) == len(drawn)
    with mirrored(2).scope():
        odd = dataclasses.replace(sampling, max_batch_size=63)
        try:
            odd.dataset(data)
        except ValueError as error:
            assert "max_batch_size=64" in str(error), error
        else:
            raise AssertionError("63 rows for 2 replicas")
    for account in (plan, tsdp.RenyiFilter(epsilon=8.0, delta=1e-5)):
        adaptive: Any = {}
        if account is not plan:
            adaptive = {"noise_multiplier": 1.0, "sampling": sampling}
        model = model_with(
            lambda account=account, adaptive=adaptive: tsdp.DPSparseOptimizer(
                tf.keras.optimizers.SGD(0.1), account, **adaptive
            ),
            mirrored(2),
        )
        model.fit(
            sampling.dataset(data), verbose=0, callbacks=[tsdp.PrivacyBudget()]
        )
        assert model.optimizer.compositions_spent == 6
        assert model.optimizer.ledger().num_events == 6
        assert model.optimizer.privacy_statement().epsilon <= 8.0


def apart() -> None:
    """What one replica gets wrong, no replica is trained on."""
    strategy = mirrored(2)
    sampling = tsdp.PoissonSampling(
        num_examples=200, batch_size=1, steps=6, max_batch_size=16
    )
    plan = tsdp.PrivacyPlan(epsilon=8.0, delta=1e-5, sampling=sampling)
    model = model_with(
        lambda: tsdp.DPSparseOptimizer(
            tf.keras.optimizers.SGD(0.1), plan, loss_reduction="sum"
        ),
        strategy,
    )
    optimizer = model.optimizer

    @tf.function(reduce_retracing=True)
    def run_on(ids: Any, weight: Any) -> None:
        def step(ids: tf.Tensor, weight: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                each = model(ids)[:, 0] ** 2 * tf.cast(weight, tf.float32)
                loss = tf.reduce_sum(each)
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        strategy.run(step, args=(ids, weight))

    def run(*rows: int) -> None:
        run_on(
            distributed(strategy, *(IDS[:n] for n in rows)),
            distributed(strategy, *(np.ones(n, "float16") for n in rows)),
        )

    run(8, 8)
    assert optimizer.compositions_spent == 1
    before = model.get_weights()
    for rows in ((8, 7), (7, 8), (4, 12)):
        # The first time with sizes that are known while tracing.
        with contextlib.suppress(tsdp.errors.NotSeparableError):
            run(*rows)
    optimizer.forget_refusals()
    run(8, 7)
    assert optimizer.forget_refusals() == (1, 0)
    assert optimizer.compositions_spent == 1
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    run(8, 8)
    assert optimizer.forget_refusals() == (0, 0)
    assert optimizer.compositions_spent == 2


def forms() -> None:
    """Sums of examples are not taken for another replica's regulariser."""
    strategy = mirrored(2)
    model = model_with(private, strategy)

    def step(ids: tf.Tensor, sees: bool) -> None:
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(ids) ** 2) / 2
            if replicas.local_place()[0] == 0:
                table, _, bias = variables
                if not sees:
                    looked_up = tf.gather(tf.convert_to_tensor(table), ids)
                    loss = tf.reduce_mean(looked_up**2) / 2
                loss += tf.reduce_sum(tf.convert_to_tensor(bias) ** 2)
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    ids = distributed(strategy, IDS[:8], IDS[8:16])
    before = model.get_weights()
    for sees in (True, False):
        try:
            tf.function(
                lambda ids, sees=sees: strategy.run(step, (ids, sees)),
                autograph=False,
            )(ids)
        except ValueError as error:
            assert "gradients of different forms" in str(error), error
        else:
            raise AssertionError("trained with two losses")
    check_close(model.get_weights(), before, 0.0)


def distributed(strategy: tf.distribute.Strategy, *parts: Any) -> Any:
    """One part for each replica."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )


def iterators() -> None:
    """Replicas that take from one iterator see one batch, or two draws."""
    strategy = mirrored(2)
    plain = tf.data.Dataset.from_tensor_slices((IDS[:16], TARGETS[:16]))
    plain = plain.batch(8, drop_remainder=True)

    def once(batches: Any, step: Any) -> None:
        strategy.run(step, args=next(batches))

    def first_part(batches: Any, step: Any) -> None:
        parts = map(strategy.experimental_local_results, next(batches))
        strategy.run(step, args=tuple(part[0] for part in parts))

    def one_optional(batches: Any, step: Any) -> None:
        optional = batches.get_next_as_optional()
        strategy.run(lambda: step(*optional.get_value()))

    def each(batches: Any, step: Any) -> None:
        strategy.run(lambda: step(*next(batches)))

    dealt_out = strategy.experimental_distribute_dataset(plain)
    for take, source, shared in (
        (once, dealt_out, False),
        (once, plain, True),
        (first_part, dealt_out, True),
        (one_optional, plain, True),
        (each, plain, True),
    ):
        model = model_with(private, strategy)

        def step(ids: Any, targets: Any, model: Any = model) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(ids)[:, 0] - targets) ** 2) / 2
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            model.optimizer.apply_gradients(
                zip(gradients, variables, strict=True)
            )

        try:
            tf.function(take)(iter(source), step)
        except tsdp.errors.NotSeparableError as error:
            assert shared and "not only, its own" in str(error), error
        else:
            assert not shared, take.__name__
        assert model.optimizer.compositions_spent == (not shared)


def shared() -> None:
    """An example that two replicas see would count twice."""
    strategy = mirrored(2)
    ids, rows = IDS[:8], tf.constant(TARGETS[:8])
    one = distributed(strategy, ids, IDS[8:16])

    def loss(model: Any, ids: Any, targets: Any) -> Any:
        return tf.reduce_mean((model(ids)[:, 0] - targets) ** 2)

    def summed(model: Any, ids: Any, targets: Any) -> Any:
        context = tf.distribute.get_replica_context()
        targets = context.merge_call(
            lambda strategy, value: tf.add_n(
                strategy.experimental_local_results(value)
            ),
            args=(targets,),
        )
        return loss(model, ids, targets)

    for arguments, of in (
        ((tf.constant(ids), rows), loss),
        ((one, rows), loss),
        ((one, distributed(strategy, rows, rows)), summed),
    ):
        model = model_with(private, strategy)

        @tf.function
        def run(*arguments: Any, model: Any = model, of: Any = of) -> None:
            def step(*batch: Any) -> None:
                with tf.GradientTape() as tape:
                    value = of(model, *batch)
                variables = model.trainable_variables
                gradients = tape.gradient(value, variables)
                model.optimizer.apply_gradients(
                    zip(gradients, variables, strict=True)
                )

            strategy.run(step, args=arguments)

        try:
            run(*arguments)
        except tsdp.errors.NotSeparableError as error:
            assert "not only, its own" in str(error), error
        else:
            raise AssertionError("an example counted twice")
        assert model.optimizer.compositions_spent == 0


def saved() -> None:
    """A saved model goes on, with all that was spent, and with other noise."""
    strategy = mirrored(2)
    model = model_with(
        lambda: private(noise_multiplier=1.0, seed=None), strategy
    )
    model.fit(batches(), verbose=0)
    root = model.optimizer.private_step.keys._root.numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with strategy.scope():
            again = tf.keras.models.load_model(path)
        with open(path, "rb") as file:
            assert root.tobytes() not in file.read()
    check_close(again.get_weights(), model.get_weights(), 0.0)
    assert again.optimizer.compositions_spent == 5
    again.fit(batches(), verbose=0)
    assert again.optimizer.compositions_spent == 10
    assert again.optimizer.ledger().num_events == 10
    assert int(again.optimizer.iterations.numpy()) == 10
    keys = again.optimizer.private_step.keys
    assert (keys._root.numpy() != root).any()


def units() -> None:
    """Units of two rows: clipped as on one device, and never cut in two."""
    weights = []
    for number in (None, 2):
        strategy = None if number is None else mirrored(number)
        model = model_with(lambda: private(examples_per_unit=2), strategy)
        model.fit(batches(), verbose=0)
        weights.append(model.get_weights())
    check_close(weights[1], weights[0], 1e-5)
    model = model_with(lambda: private(examples_per_unit=2), mirrored(2))
    odd = tf.data.Dataset.from_tensor_slices((IDS[:6], TARGETS[:6])).batch(
        6, drop_remainder=True
    )
    refuses(model, "3 rows", "examples_per_unit=2", data=odd)


def refuses(model: Any, *texts: str, data: Any = None) -> None:
    """Training raises, and nothing was spent."""
    before = model.get_weights()
    try:
        model.fit(batches() if data is None else data, verbose=0)
    except ValueError as error:
        for text in texts:
            assert text in str(error), error
    else:
        raise AssertionError(f"trained, without a word on {texts}")
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.optimizer.compositions_spent == 0


def refusals() -> None:
    """What is made for one replica says so."""
    strategy = mirrored(2)
    refuses(
        model_with(private, strategy, jit_compile=True),
        "XLA compiles the step",
        "jit_compile=False",
    )
    sampling = BiasReducedSampling(num_examples=len(IDS), steps=3)
    parts: Any = {
        "mechanism": BiasReduction(tsdp.Gaussian()),
        "noise_multiplier": 20.0,
        "sampling": sampling,
    }
    refuses(
        model_with(
            lambda: tsdp.DPSparseOptimizer(
                tf.keras.optimizers.SGD(0.1),
                tsdp.RenyiFilter(
                    epsilon=8.0,
                    delta=1e-5,
                    neighboring_relation=NeighboringRelation.REPLACE_ONE,
                ),
                **parts,
            ),
            strategy,
        ),
        "MirroredStrategy",
        "BiasReducedSampling",
        "use PoissonSampling",
    )
    varying = tsdp.VaryingPoissonSampling(
        num_examples=40,
        batch_sizes=(20, 10),
        steps=5,
        max_batch_sizes=(80, 40),
    )
    refuses(
        model_with(
            lambda: tsdp.DPSparseOptimizer(
                tf.keras.optimizers.SGD(0.1),
                tsdp.RenyiFilter(epsilon=8.0, delta=1e-5),
                sampling=varying,
                noise_multiplier=20.0,
            ),
            strategy,
        ),
        # tf-keras hides batches of several sizes in a branch.
        "2 times as large as others" if KERAS_3 else "No tensor of a batch",
        data=varying.dataset((IDS[:40], TARGETS[:40])),
    )
    table = tsdp.layers.LazyEmbedding(50, 2)
    table.build((None,))
    try:
        with strategy.scope():
            model = tf.keras.Sequential(
                [
                    tf.keras.Input((3,), dtype="int64"),
                    table,
                    tf.keras.layers.Flatten(),
                    tf.keras.layers.Dense(1),
                ]
            )
            model.compile(private(inner=tf.keras.optimizers.SGD(0.1)), "mse")
    except ValueError as error:  # tf-keras sees to that itself.
        assert "LazyVariable" in str(error), error
    else:
        refuses(model, "LazyEmbedding", "MirroredStrategy")
    inner = tf.keras.optimizers.SGD(0.1)
    refuses(
        model_with(lambda: private(inner=inner), strategy), "strategy.scope()"
    )


AGGREGATION: Any = "mean" if KERAS_3 else tf.VariableAggregation.MEAN


class Remembers(tf.keras.layers.Layer):
    """Keeps the mean of what it sees, on all replicas."""

    def __init__(self, reads: bool):
        super().__init__()
        self._reads = reads

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            shape=(),
            initializer="zeros",
            trainable=False,
            name="mean",
            aggregation=AGGREGATION,
        )

    def call(self, inputs: Any) -> Any:
        self.mean.assign(tf.reduce_mean(inputs))
        return inputs + self.mean if self._reads else inputs


def memory() -> None:
    """Examples that are written into weights are found on all replicas."""
    for reads in (True, False):
        strategy = mirrored(2)
        with strategy.scope():
            model = tf.keras.Sequential(
                [
                    tf.keras.Input((4,)),
                    Remembers(reads),
                    tf.keras.layers.Dense(1),
                ]
            )
            model.compile(private(), "mse")
        model.optimizer.protect(model)
        ones = np.ones([BATCH, 4], "float32")
        refuses(
            model,
            "example data",
            data=batches((ones, ones[:, 0])),
        )


def wire() -> None:
    """What replicas send does not grow with the rows of a table."""
    for mechanism in (tsdp.Gaussian(), *MECHANISMS):
        sent = [_bytes_sent(mechanism, rows) for rows in (10**4, 10**7)]
        assert 0 < sent[0] == sent[1] < 10**5, (mechanism, sent)


def _bytes_sent(mechanism: Any, rows: int) -> int:
    """Operands on other devices of operations that take from several."""
    strategy = mirrored(2)
    model = model_with(
        lambda: private(
            inner=tf.keras.optimizers.SGD(0.1),
            mechanism=mechanism,
            noise_multiplier=1.0,
        ),
        strategy,
        rows,
        1,
    )

    @tf.function
    def step(batch: Any) -> None:
        strategy.run(model.train_step, args=(batch,))

    (batch, *_) = strategy.experimental_distribute_dataset(batches())
    graph = step.get_concrete_function(batch).graph
    sent = 0
    for op in graph.get_operations():
        inputs = [x for x in op.inputs if x.dtype != tf.resource]
        devices = {x.device for x in inputs if "CPU" in x.device}
        if len(devices) > 1:
            sent += sum(
                math.prod(x.shape) * x.dtype.size
                for x in inputs
                if x.device.endswith("CPU:1")
            )
    return sent


if __name__ == "__main__":
    make_devices(4)
    for case in sys.argv[1:]:
        globals()[case]()
        print("done", case)
