"""What single steps draw, owe and write, in all the loops that take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.layers.noise_paths import without_noise
from tf_sparse_dp.layers.lazy_variable import LazyVariable, lazy_variable

keras = tf.keras
layers = keras.layers

ROWS, LOOKED_UP, WIDTH = 12, 5, 3  # The first of a table alone are looked up.
BATCH = 4
_random = np.random.RandomState(0)
IDS = _random.randint(0, LOOKED_UP, [6 * BATCH, 2])
LABELS = _random.randn(6 * BATCH, 1).astype("float32")


class Scorer(keras.Model):
    """A model of one's own, whose lookups are in a function of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tsdp.layers.LazyEmbedding(ROWS, WIDTH)
        self.score = layers.Dense(1)
        self.pooled = tf.function(
            lambda ids: tf.reduce_mean(self.table(ids), 1), autograph=False
        )

    def call(self, ids: Any, training: bool = False) -> Any:
        return self.score(self.pooled(ids))


def private(inner: Any = None, **options: Any) -> tsdp.DPSparseOptimizer:
    options = {"noise_multiplier": 1.0, "expected_batch_size": 4, **options}
    return tsdp.DPSparseOptimizer(inner or keras.optimizers.SGD(0.1), **options)


def scorer(optimizer: Any = None, **compile: Any) -> tuple[Any, LazyVariable]:
    model = Scorer()
    model(IDS)
    model.compile(optimizer=optimizer or private(), loss="mse", **compile)
    model.optimizer.build(model.trainable_variables)
    return model, lazy_variable(model.table.embeddings)


def drawn(table: LazyVariable) -> np.ndarray:
    """Of how many steps every row has its noise."""
    noise = table.noise
    return np.maximum(noise._first.numpy(), noise._base.numpy())


def steps_of(table: LazyVariable) -> int:
    return int(table.noise._step.numpy())


def batches(validated: bool = False) -> Any:
    ids = IDS + LOOKED_UP if validated else IDS
    whole = tf.data.Dataset.from_tensor_slices((ids, LABELS))
    return whole.batch(BATCH, drop_remainder=True)


class Watch(keras.callbacks.Callback):
    """Every step has read its rows with all noise, and no others."""

    def __init__(self, table: LazyVariable, each: int = 1):
        super().__init__()
        self.table, self.each = table, each
        self.seen = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += self.each
        assert steps_of(self.table) == self.seen
        last = IDS[(self.seen - 1) * BATCH :][:BATCH]
        assert (drawn(self.table)[last] == self.seen - 1).all()
        assert not drawn(self.table)[LOOKED_UP:].any()


@pytest.mark.lane
@pytest.mark.parametrize(
    ("each", "compile"),
    [(1, {}), (3, {"steps_per_execution": 3}), (1, {"jit_compile": True})],
)
def test_fit_draws_for_rows_that_it_reads(each: int, compile: Any) -> None:
    model, table = scorer(**{"jit_compile": False, **compile})
    watch = Watch(table, each)
    model.fit(batches(), verbose=0, callbacks=[watch])
    assert watch.seen == 6
    assert (drawn(table) == 6).all()  # At the end of fit.
    assert not table.noise.exists


def test_validation_reads_rows_with_their_noise() -> None:
    model, table = scorer(metrics=["mae"])
    seen = []

    class Look(keras.callbacks.Callback):
        def on_test_end(self, logs: Any = None) -> None:
            seen.append(drawn(table))

    ids = IDS[:2] + LOOKED_UP
    model.fit(
        batches(),
        validation_data=(ids, LABELS[:2]),
        verbose=0,
        callbacks=[Look()],
    )
    (after,) = seen
    assert (after[ids] == 6).all()
    unread = np.setdiff1d(np.arange(LOOKED_UP, ROWS), ids)
    assert unread.size and not after[unread].any()


def test_single_batches_draw_for_their_rows() -> None:
    model, table = scorer()
    ids = IDS[:BATCH]
    for step in range(3):
        model.train_on_batch(ids, LABELS[:BATCH])
        assert steps_of(table) == step + 1
        assert set(drawn(table)[ids].ravel()) == {step}
    assert not drawn(table)[LOOKED_UP:].any()
    model.test_on_batch(ids, LABELS[:BATCH])
    assert (drawn(table)[ids] == 3).all()
    model.predict_on_batch(ids + LOOKED_UP)
    assert (drawn(table)[ids + LOOKED_UP] == 3).all()
    assert not drawn(table)[2 * LOOKED_UP :].any()
    assert steps_of(table) == 3


@pytest.mark.parametrize("persistent", [False, True])
def test_own_loops_draw_for_their_rows(persistent: bool) -> None:
    model, table = scorer()

    @tf.function
    def step(ids: Any, labels: Any) -> None:
        with tf.GradientTape(persistent=persistent) as tape:
            loss = tf.reduce_mean(tf.square(model(ids) - labels))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for number in range(3):
        step(IDS[:BATCH], LABELS[:BATCH])
        assert steps_of(table) == number + 1
        assert (drawn(table)[IDS[:BATCH]] == number).all()
    assert not drawn(table)[LOOKED_UP:].any()


class Logits(keras.Model):
    """Scores all rows of its table."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.table = kind(ROWS, WIDTH)

    def call(self, ids: Any, training: bool = False) -> Any:
        pooled = tf.reduce_mean(self.table(ids), 1)
        every = tf.convert_to_tensor(self.table.embeddings)
        return pooled @ tf.transpose(every)


def test_a_table_that_is_read_as_a_whole() -> None:
    """Its gradient is dense, and all of it is drawn before it is read."""
    start = _random.randn(ROWS, WIDTH).astype("float32")
    found = []
    for kind in (tsdp.layers.LazyEmbedding, layers.Embedding):
        for noise in (0.0, 1.0):
            model = Logits(kind)
            model(IDS)
            model.table.set_weights([start])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(
                optimizer=private(
                    noise_multiplier=noise, mechanism=tsdp.Gaussian()
                ),
                loss=loss,
            )
            model.optimizer.build(model.trainable_variables)
            for step in range(3):
                model.train_on_batch(IDS[:BATCH], IDS[:BATCH, 0])
                table = lazy_variable(model.table.embeddings)
                if table is not None:
                    assert (drawn(table) == step).all()
                    assert steps_of(table) == step + 1
            found.append(model.table.get_weights()[0])
    lazy, lazy_noisy, usual, usual_noisy = found
    np.testing.assert_allclose(lazy, usual, atol=1e-6)
    for noisy in (lazy_noisy, usual_noisy):
        # 3 steps of 0.1/4 on 36 entries: a chi-square of 36 degrees of freedom
        # is outside of this with probability below 1e-9.
        size = np.square((noisy - usual) / (0.025 * 3**0.5)).sum()
        assert 2 < size < 140


def test_what_is_owed_follows_rates_and_noise() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [0, 1], [0.1, 0.3, 0.0]
    )
    model, table = scorer(
        private(keras.optimizers.SGD(schedule), clip_norm=2.0)
    )
    expected = 0.0
    for rate in (0.1, 0.3, 0.0):
        model.train_on_batch(IDS[:BATCH], LABELS[:BATCH])
        expected += (rate * 2.0 / 4) ** 2
        assert float(table.noise.variance) == pytest.approx(expected, rel=1e-6)


@pytest.mark.once
def test_a_rate_that_is_set_counts_from_the_next_step() -> None:
    tables = keras.optimizers.SGD(0.1)
    model, table = scorer(private(keras.optimizers.Adam(0.1), tables=tables))
    expected = 0.0
    for rate in (0.1, 0.7):
        tables.learning_rate = rate
        model.train_on_batch(IDS[:BATCH], LABELS[:BATCH])
        expected += (rate / 4) ** 2
        assert float(table.noise.variance) == pytest.approx(expected, rel=1e-6)


def test_refused_steps_owe_nothing_and_write_nothing() -> None:
    sampling = tsdp.PoissonSampling(
        num_examples=len(IDS), batch_size=4, steps=2, max_batch_size=20
    )
    plan = tsdp.PrivacyPlan(noise_multiplier=2.0, delta=1e-2, sampling=sampling)
    model, table = scorer(
        tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.1), plan)
    )
    with pytest.warns(tsdp.PrivacyWarning):  # One in 50 would be empty.
        taken = list(sampling.dataset((IDS, LABELS), seed=0))
    for batch in taken:
        model.train_on_batch(*batch)
    assert steps_of(table) == 2
    held = without_noise(table)
    model.train_on_batch(*taken[0])
    assert model.optimizer.forget_refusals() == (0, 1)
    assert steps_of(table) == 2
    # It was read, with noise; nothing else has changed.
    read = np.unique(taken[0][0][:][np.asarray(taken[0][2]) > 0])
    others = np.setdiff1d(np.arange(1, ROWS), taken[0][0])
    assert read.size and others.size
    np.testing.assert_array_equal(without_noise(table)[others], held[others])
    all_drawn = table.numpy()
    model.train_on_batch(*taken[1])
    assert model.optimizer.forget_refusals() == (0, 1)
    np.testing.assert_array_equal(without_noise(table), all_drawn)
    assert not table.noise.exists


def before(graph: Any, later: Any) -> set[str]:
    """Names of all operations that one has to wait for."""
    found: set[str] = set()
    pending = [later]
    while pending:
        op = pending.pop()
        if op.name not in found:
            found.add(op.name)
            pending += [x.op for x in op.inputs] + list(op.control_inputs)
    return found


@pytest.mark.once
@pytest.mark.parametrize("jit_compile", [False, True])
def test_nothing_is_marked_before_it_is_written(jit_compile: bool) -> None:
    """Owed before it is written; written before it counts as drawn."""
    table = LazyVariable.made(np.zeros([ROWS, WIDTH], "float32"))
    noise = table.noise

    def operations(function: Any, *arguments: Any) -> Any:
        compiled = tf.function(function, jit_compile=jit_compile)
        graph = compiled.get_concrete_function(*arguments).graph
        outer = {id(inner): handle for handle, inner in graph.captures}

        def on(variable: Any, *kinds: str) -> list[Any]:
            return [
                op
                for op in graph.get_operations()
                if op.type in kinds
                and outer.get(id(op.inputs[0])) is variable.handle
            ]

        return graph, on

    graph, on = operations(noise._draw, tf.constant([1, 2, 2], tf.int64))
    (written,) = on(table, "ResourceScatterUpdate")
    (gathered,) = on(table, "ResourceGather")
    (marked,) = on(noise._first, "ResourceScatterUpdate")
    assert gathered.name in before(graph, written)
    assert written.name in before(graph, marked)
    values = tf.IndexedSlices(tf.ones([2, WIDTH]), [1, 1], [ROWS, WIDTH])
    for update, kind in (
        (values, "ResourceScatterAdd"),
        (tf.ones([ROWS, WIDTH]), "AssignAddVariableOp"),
    ):
        graph, on = operations(lambda: table.add(update, 1.0))  # noqa: B023
        (added,) = on(table, kind)
        (counted,) = on(noise._step, "AssignAddVariableOp")
        (summed,) = on(noise._sums, "ResourceScatterUpdate")
        assert counted.name in before(graph, added)
        assert summed.name in before(graph, counted)
    graph, on = operations(lambda: table.sparse_read([3]))
    (read,) = on(table, "ResourceGather")
    (draw,) = [op for op in graph.get_operations() if op.type == "If"]
    assert draw.name in before(graph, read)


class Remembering(layers.Layer):
    """Keeps the last batch, in a branch; its name is all that it shares."""

    def build(self, shape: Any) -> None:
        self.kept = self.add_weight(
            shape=[], initializer="zeros", trainable=False
        )

    def call(self, inputs: Any) -> Any:
        mean = tf.reduce_mean(inputs)

        def keep() -> tf.Tensor:
            self.kept.assign(mean)
            return tf.constant(True)

        tf.cond(mean > 0.0, keep, lambda: tf.constant(False))
        return inputs * (1.0 + tf.convert_to_tensor(self.kept))


def test_a_layer_of_that_name_is_not_trusted() -> None:
    """Only a branch of that very name is, which nobody gets by accident."""
    ids = keras.Input([2], dtype="int64")
    rows = tsdp.layers.LazyEmbedding(ROWS, WIDTH)(ids)
    pooled = layers.GlobalAveragePooling1D()(rows)
    kept = Remembering(name="tf_sparse_dp_pending_noise")(pooled)
    model = keras.Model(ids, layers.Dense(1)(kept))
    model.compile(optimizer=private(), loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(tsdp.NotSeparableError, match="writes example data"):
        model.train_on_batch(IDS[:BATCH], LABELS[:BATCH])


@pytest.mark.once
def test_explain_and_check_know_the_layer() -> None:
    model, table = scorer()
    batch = (IDS[:BATCH], LABELS[:BATCH])
    model.train_on_batch(*batch)
    explained = tsdp.explain(model, batch)
    assert explained.separable and "LazyEmbedding" in explained.mechanism
    assert table.noise.exists  # Nothing was run.
    assert tsdp.check_separable(model, batch).separable
    model.compile(optimizer=private(keras.optimizers.Adam(0.1)), loss="mse")
    assert "need plain SGD" in str(tsdp.explain(model, batch))


class Shifted(keras.Model):
    """A table and a shift; for linear losses, gradients depend on neither."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tsdp.layers.LazyEmbedding(
            ROWS, 1, embeddings_initializer="ones"
        )
        self.shift = layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, ids: Any, training: bool = False) -> Any:
        table = tf.reduce_sum(self.table(ids), 1)
        return table + self.shift(tf.ones_like(table))


def test_decay_and_averages_of_the_others_leave_tables_alone() -> None:
    """Beside a rule for tables, the inner optimizer is for the others."""
    found = []
    for inner in (
        keras.optimizers.SGD(0.1),
        keras.optimizers.AdamW(0.1, weight_decay=0.5),
        keras.optimizers.SGD(
            0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=1
        ),
    ):
        model = Shifted()
        model(IDS)
        optimizer = private(
            inner, tables=keras.optimizers.SGD(0.3), noise_multiplier=0.0
        )
        model.compile(
            optimizer, loss=lambda labels, scores: (labels * scores)[:, 0]
        )
        model.fit(batches(), verbose=0, shuffle=False)
        table, shift = model.get_weights()
        found.append((table, shift.item()))
    assert found[0][0].min() < 0.95  # It was trained,
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][0], found[2][0])
    np.testing.assert_array_equal(found[0][0][LOOKED_UP:], 1.0)
    assert len({round(shift, 3) for _, shift in found}) == 3  # as were others.
