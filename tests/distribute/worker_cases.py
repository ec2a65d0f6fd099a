"""What a private step does in processes that train together.

Run as `python -m tests.distribute.worker_cases <case>... <folder>` by each of
them, with TF_CONFIG. Each writes what it has at the end to the folder.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.distribute.replicated import (
    BATCH,
    IDS,
    ROWS,
    TARGETS,
    batches,
    check_close,
    model_with,
    private,
)
from tf_sparse_dp.sampling.workers import current_share


def train(
    strategy: Any, model: Any, data: Any, steps: int, callbacks: Any = ()
) -> None:
    """Trains with `fit`; Keras 3 has none for several processes."""
    data = data.repeat()
    if not hasattr(tf.keras, "ops"):
        model.fit(
            data, steps_per_epoch=steps, verbose=0, callbacks=list(callbacks)
        )
        return
    step = tf.function(
        lambda batch: strategy.run(model.train_step, args=(batch,)),
        autograph=False,
    )
    rows = iter(strategy.experimental_distribute_dataset(data))
    for callback in callbacks:
        callback.set_model(model)
        callback.on_train_begin()
    for number in range(steps):
        for callback in callbacks:
            callback.on_train_batch_begin(number)
        step(next(rows))
        for callback in callbacks:
            callback.on_train_batch_end(number, {})
        if getattr(model, "stop_training", False):
            break
    for callback in callbacks:
        callback.on_train_end()


def without_noise(strategy: Any) -> dict[str, Any]:
    """20 steps without noise."""
    model = model_with(private, strategy)
    train(strategy, model, batches(), 20)
    return facts(model)


def one_step(strategy: Any) -> dict[str, Any]:
    """The noise of one step, on rows that no example looks up."""
    model = model_with(
        lambda: private(
            inner=tf.keras.optimizers.SGD(1.0),
            mechanism=tsdp.Gaussian(),
            noise_multiplier=2.0,
            clip_norm=1e-3,
            seed=None,
        ),
        strategy,
    )
    before = model.get_weights()[0]
    train(strategy, model, batches((IDS[:BATCH], TARGETS[:BATCH])), 1)
    moved = (model.get_weights()[0] - before) * BATCH / 2e-3
    return {"noise": np.delete(moved, np.unique(IDS[:BATCH]), 0)}


def sparse(strategy: Any) -> dict[str, Any]:
    """Mechanisms that leave tables sparse, with noise."""
    found: dict[str, Any] = {}
    for mechanism in (
        tsdp.Threshold(),
        tsdp.Projection(),
        tsdp.PartitionSelection(),
        tsdp.CompressedSensing(measurements=64),
    ):
        model = model_with(
            lambda mechanism=mechanism: private(
                mechanism=mechanism, noise_multiplier=0.5, seed=None
            ),
            strategy,
        )
        train(strategy, model, batches(), 3)
        name = type(mechanism).__name__
        found |= {f"{name} {key}": x for key, x in facts(model).items()}
    return found


def sampling_for(workers: int) -> tsdp.PoissonSampling:
    return tsdp.PoissonSampling(
        num_examples=201,
        batch_size=24,
        steps=6,
        workers=workers,
    )


def poisson(strategy: Any) -> dict[str, Any]:
    """Who is in 50 batches: [steps, rows of this worker], 0 for padding."""
    workers = strategy.num_replicas_in_sync
    ids = np.arange(1, 202)
    with strategy.scope():
        data = sampling_for(workers).dataset((np.stack([ids] * 3, 1), ids))
    drawn = []
    rows = iter(strategy.experimental_distribute_dataset(data))
    for _ in range(50):
        parts = map(strategy.experimental_local_results, next(rows))
        x, y, weight = (np.concatenate(part) for part in parts)
        np.testing.assert_array_equal(x[:, 0], y)
        np.testing.assert_array_equal(y > 0, weight > 0)
        drawn.append(y)
    return {"drawn": np.array(drawn)}


def by_filter(strategy: Any) -> dict[str, Any]:
    """A filter that pays for 6 steps ends training in all workers."""
    sampling = sampling_for(strategy.num_replicas_in_sync)
    account = tsdp.RenyiFilter(epsilon=8.0, delta=1e-5)
    return stopped(
        strategy, sampling, account, noise_multiplier=1.0, sampling=sampling
    )


def by_plan(strategy: Any) -> dict[str, Any]:
    """A plan for 6 steps, in a ledger that the first worker alone opens."""
    sampling = sampling_for(strategy.num_replicas_in_sync)
    plan = tsdp.PrivacyPlan(epsilon=8.0, delta=1e-5, sampling=sampling)
    path = os.path.join(FOLDER, "ledger")
    return stopped(strategy, sampling, plan, ledger=path)


def stopped(
    strategy: Any, drawn_by: Any, account: Any, **given: Any
) -> dict[str, Any]:
    """Trains until the budget ends it."""
    model = model_with(
        lambda: tsdp.DPSparseOptimizer(
            tf.keras.optimizers.SGD(0.1), account, **given
        ),
        strategy,
    )
    ids = np.random.default_rng(0).integers(0, 40, [201, 3])
    with strategy.scope():
        data = drawn_by.dataset((ids, np.zeros(201, "float32")))
    train(strategy, model, data, 9, [tsdp.PrivacyBudget(reserve=4)])
    epsilon = model.optimizer.privacy_statement().epsilon
    return {**facts(model), "epsilon": epsilon}


def settings(strategy: Any) -> dict[str, Any]:
    """A worker with settings, or steps, of its own stops all."""
    worker = number_of(strategy)
    found: dict[str, Any] = {}
    for differs in ("clip_norm", "iterations"):
        clip_norm = 0.5 + 0.1 * worker if differs == "clip_norm" else 0.5
        model = model_with(
            lambda clip_norm=clip_norm: private(clip_norm=clip_norm), strategy
        )
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
        if differs == "iterations" and worker:  # As of another checkpoint.
            iterations = model.optimizer.iterations
            (copy,) = getattr(iterations, "_value", iterations).values
            copy.assign(5)
        before = model.get_weights()
        try:
            train(strategy, model, batches(), 2)
            model.optimizer.privacy_statement()
        except tsdp.errors.PrivacyStateError as error:
            assert "2 steps were refused because processes" in str(error), error
        else:
            raise AssertionError(f"trained with two {differs}")
        check_close(model.get_weights(), before, 0.0)
        found[differs] = model.optimizer.compositions_spent
    return found


def forms(strategy: Any) -> dict[str, Any]:
    """Sums of examples are not taken for another worker's regulariser."""
    first = number_of(strategy) == 0
    model = model_with(private, strategy, width=1)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)

    def step(ids: Any, targets: Any) -> None:
        table, kernel, bias = model.trainable_variables
        with tf.GradientTape() as tape:
            looked_up = tf.gather(tf.convert_to_tensor(table), ids)[:, :, 0]
            loss = tf.reduce_mean((looked_up @ kernel) ** 2) / 2
            if first:
                loss += tf.reduce_sum(tf.convert_to_tensor(bias) ** 2)
            else:
                loss += tf.reduce_mean(targets) * bias[0] / 2
        variables = [table, kernel, bias]
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    run = tf.function(lambda batch: strategy.run(step, batch), autograph=False)
    before = model.get_weights()
    with strategy.scope():
        data = strategy.experimental_distribute_dataset(batches().repeat())
    try:
        run(next(iter(data)))
        model.optimizer.privacy_statement()
    except tsdp.errors.PrivacyStateError as error:
        assert "1 steps were refused because processes" in str(error), error
    else:
        raise AssertionError("trained with two losses")
    check_close(model.get_weights(), before, 0.0)
    return {"spent": model.optimizer.compositions_spent}


def number_of(strategy: Any) -> int:
    """Which worker this is."""
    with strategy.scope():
        return current_share().worker


def counts(strategy: Any) -> dict[str, Any]:
    """Where counts differ, a plan takes the largest, and a filter none."""
    sampling = sampling_for(2)
    plan = tsdp.PrivacyPlan(epsilon=8.0, delta=1e-5, sampling=sampling)
    budget = tsdp.RenyiFilter(epsilon=8.0, delta=1e-5)
    adaptive: Any = {"noise_multiplier": 1.0, "sampling": sampling}
    found: dict[str, Any] = {}
    for name, account, given in (
        ("plan", plan, {}),
        ("filter", budget, adaptive),
    ):
        model = model_with(
            lambda account=account, given=given: tsdp.DPSparseOptimizer(
                tf.keras.optimizers.SGD(0.1), account, **given
            ),
            strategy,
        )
        model.optimizer._spending.raise_count(4 * number_of(strategy))
        try:
            model.optimizer.agree(strategy)
        except tsdp.errors.PrivacyStateError as error:
            assert name == "filter" and "[0, 4]" in str(error), error
        else:
            assert name == "plan"
            found[name] = model.optimizer.compositions_spent
    return found


def unpaid(strategy: Any) -> dict[str, Any]:
    """Where the first worker cannot pay, all say so, before the first step."""
    sampling = sampling_for(2)
    plan = tsdp.PrivacyPlan(epsilon=8.0, delta=1e-5, sampling=sampling)

    def made() -> Any:
        return tsdp.DPSparseOptimizer(
            tf.keras.optimizers.SGD(0.1),
            plan,
            ledger=os.path.join(FOLDER, "spent"),
        )

    model = model_with(made, strategy)
    if number_of(strategy) == 0:
        made().reserve(6)  # Somebody else, who takes all.
    try:
        train(strategy, model, batches(), 1, [tsdp.PrivacyBudget()])
    except tsdp.errors.BudgetExhausted:
        return {}
    raise AssertionError("went on")


def uneven(strategy: Any) -> dict[str, Any]:
    """Parts of different sizes, one of which is a multiple of the other."""
    model = model_with(private, strategy)
    before = model.get_weights()
    rows = 8 * (1 + number_of(strategy))
    data = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.from_tensors(
            (IDS[:rows], TARGETS[:rows])
        ).repeat()
    )
    step = tf.function(
        lambda batch: strategy.run(model.train_step, args=(batch,)),
        autograph=False,
    )
    try:
        step(next(iter(data)))
    except tf.errors.InvalidArgumentError as error:
        assert "different numbers of rows" in str(error), error
    else:
        raise AssertionError("trained on parts of different sizes")
    check_close(model.get_weights(), before, 0.0)
    return facts(model)


def refusals(strategy: Any) -> dict[str, Any]:
    """What each worker would do by itself."""
    workers = strategy.num_replicas_in_sync
    plans = [
        tsdp.PrivacyPlan(epsilon=8.0, delta=1e-5, sampling=sampling)
        for sampling in (
            tsdp.EpochSampling(num_examples=80, batch_size=16, epochs=1),
            sampling_for(1),
        )
    ]
    chosen = tsdp.FrequencySelection.private(
        {"embeddings": IDS},
        table_rows={"embeddings": ROWS},
        top=5,
        epsilon=1.0,
        delta=1e-6,
    )
    sgd = tf.keras.optimizers.SGD
    for text, make in {
        f"workers={workers}": lambda: tsdp.DPSparseOptimizer(sgd(), plans[0]),
        f" workers={workers}": lambda: tsdp.DPSparseOptimizer(sgd(), plans[1]),
        "a private choice": lambda: private(mechanism=chosen),
    }.items():
        model = model_with(make, strategy)
        model.optimizer.start_pass()
        refuses(text, lambda model=model: train(strategy, model, batches(), 1))
    with strategy.scope():
        inner = sgd()
    outside = private(inner=inner)
    model = model_with(lambda: outside, strategy)
    refuses("strategy.scope()", lambda: train(strategy, model, batches(), 1))
    ragged = batches().map(
        lambda ids, y: (tf.RaggedTensor.from_tensor(ids, padding=0), y)
    )
    model = pooled(strategy)
    # As arguments of a loop they come in parts, which do not fit together.
    why = "disagree" if hasattr(tf.keras, "ops") else "ragged"
    refuses(why, lambda: train(strategy, model, ragged, 1))
    ids = IDS[[0] * 201]
    refuses(f"workers={workers}", lambda: sampling_for(workers).dataset((ids,)))
    with strategy.scope():
        refuses("workers=1", lambda: sampling_for(1).dataset((ids,)))
        own = ids + number_of(strategy)
        refuses("not the same", lambda: sampling_for(workers).dataset((own,)))
    return {}


def pooled(strategy: Any) -> Any:
    """A model of ragged ids."""
    keras = tf.keras
    with strategy.scope():
        inputs = keras.Input((None,), dtype="int64", ragged=True)
        rows = keras.layers.Embedding(ROWS, 2)(inputs)
        total = keras.layers.Lambda(lambda x: tf.reduce_sum(x, 1))(rows)
        model = keras.Model(inputs, keras.layers.Dense(1)(total))
        model.compile(private(), "mse")
    return model


def refuses(text: str, act: Any) -> None:
    """An error says what is wrong."""
    try:
        act()
    except ValueError as error:
        assert text.strip() in str(error), error
    else:
        raise AssertionError(f"no word on {text}")


def facts(model: Any) -> dict[str, Any]:
    """What all workers should agree on."""
    optimizer = model.optimizer
    found = {f"weight{i}": w for i, w in enumerate(model.get_weights())}
    found["spent"] = optimizer.compositions_spent
    found["events"] = optimizer.ledger().num_events
    found["iterations"] = int(optimizer.iterations.numpy())
    return found


if __name__ == "__main__":
    *names, FOLDER = sys.argv[1:]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    worker = number_of(strategy)
    for name in names:
        found = globals()[name](strategy)
        np.savez(pathlib.Path(FOLDER) / f"{name}{worker}.npz", **found)
