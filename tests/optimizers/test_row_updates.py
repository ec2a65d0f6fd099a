"""Released rows are updated as the inner optimizer would, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers.small_run import KERAS_3
from tf_sparse_dp.gradients.effects import PRIVATE_UPDATE
from tf_sparse_dp.optimizers.row_updates import RowView, by_rows, is_row_wise

keras = tf.keras
ROWS, WIDTH = 23, 3  # Nothing else in a traced update has 23 rows.


def _without_decay(table: Any) -> Any:
    optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_list=[table])
    return optimizer


def _row_wise_optimizers() -> dict[str, Callable[[Any], Any]]:
    made = keras.optimizers
    schedule = made.schedules.ExponentialDecay(0.3, 1, 0.5)
    return {
        "SGD": lambda table: made.SGD(0.1),
        "momentum": lambda table: made.SGD(0.1, momentum=0.9),
        "nesterov": lambda table: made.SGD(0.1, momentum=0.9, nesterov=True),
        "Adagrad": lambda table: made.Adagrad(0.1),
        "Adam": lambda table: made.Adam(0.1),
        "amsgrad": lambda table: made.Adam(schedule, amsgrad=True),
        "AdamW": _without_decay,
        "Adadelta": lambda table: made.Adadelta(0.1),
        "Adamax": lambda table: made.Adamax(0.1),
        "Nadam": lambda table: made.Nadam(0.1),
        "RMSprop": lambda table: made.RMSprop(0.1),
        "centered": lambda table: made.RMSprop(
            0.1, momentum=0.9, centered=True
        ),
        "Ftrl": lambda table: made.Ftrl(0.1),
        "regularised": lambda table: made.Ftrl(
            0.1,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.1,
            l2_shrinkage_regularization_strength=0.1,
            beta=0.1,
        ),
        "Lion": lambda table: made.Lion(0.1),
        "schedule": lambda table: made.SGD(schedule, momentum=0.5),
        "clipvalue": lambda table: made.Adagrad(0.1, clipvalue=0.5),
        "clipnorm": lambda table: made.Adam(0.1, clipnorm=0.5),
        **(
            {}
            if KERAS_3  # Makes gradients dense, see below.
            else {
                "global_clipnorm": lambda table: made.Adam(
                    0.1, global_clipnorm=0.5
                )
            }
        ),
    }


def _variable(value: np.ndarray, constraint: Any = None) -> Any:
    if not KERAS_3:
        return tf.Variable(value, dtype=tf.float32, constraint=constraint)
    variable = keras.Variable(value, dtype="float32")
    variable.constraint = constraint
    return variable


def _values(variables: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(tf.convert_to_tensor(v)) for v in variables]


class Run:
    """A table and a dense variable, and an optimizer that has them both."""

    def __init__(self, make: Callable[[Any], Any], **options: Any):
        random = np.random.RandomState(0)
        self.table = _variable(random.randn(ROWS, WIDTH), **options)
        self.dense = _variable(random.randn(4))
        self.optimizer = make(self.table)
        self.optimizer.build([self.table, self.dense])

    def apply(self, table: Any, dense: Any) -> None:
        self.optimizer.apply_gradients(
            [(table, self.table), (dense, self.dense)]
        )

    def apply_by_rows(self, ids: Any, values: Any, dense: Any) -> None:
        shape = tf.constant([ROWS, WIDTH], tf.int64)
        with by_rows(self.optimizer):
            self.apply(tf.IndexedSlices(values, ids, shape), dense)

    def apply_to_all(
        self, ids: np.ndarray, values: np.ndarray, dense: np.ndarray
    ) -> None:
        """The optimizer's own dense step, undone in rows without gradient."""
        gradient = np.zeros([ROWS, WIDTH], "float32")
        np.add.at(gradient, ids, values)
        tables = [
            v
            for v in [self.table, *self.optimizer.variables]
            if tuple(v.shape) == (ROWS, WIDTH)
        ]
        before = _values(tables)
        self.apply(tf.constant(gradient), tf.constant(dense))
        released = np.any(gradient != 0, axis=1, keepdims=True)
        for variable, old in zip(tables, before, strict=True):
            new = tf.convert_to_tensor(variable)
            variable.assign(tf.where(released, new, old))

    def state(self) -> list[np.ndarray]:
        return _values([self.table, self.dense, *self.optimizer.variables])

    def check(self, other: Run) -> None:
        for here, there in zip(self.state(), other.state(), strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-6, atol=1e-6)


def _steps(
    count: int = 4, unique: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Different rows; ids that repeat; rows of zeros that fill up."""
    random = np.random.RandomState(1)
    for step in range(count):
        ids = random.choice(ROWS - 1, 6, replace=False) + 1
        if not unique:
            ids[3] = ids[4]
        if step % 2:
            ids[5] = 0
        values = random.randn(6, WIDTH).astype("float32")
        yield (
            np.concatenate([ids, [0, 0]]),
            np.concatenate([values, np.zeros([2, WIDTH], "float32")]),
            random.randn(4).astype("float32"),
        )


CLIPPED = ("clipvalue", "clipnorm", "global_clipnorm")


def _traced(step: Any) -> Any:
    """With sizes that are known only when it runs."""
    return tf.function(step).get_concrete_function(
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None, WIDTH], tf.float32),
        tf.TensorSpec([4], tf.float32),
    )


def _compiled(step: Any) -> Any:
    return tf.function(step, jit_compile=True)


def _check_rows(name: str, mode: Callable[[Any], Any]) -> Any:
    make = _row_wise_optimizers()[name]
    rows, reference = Run(make), Run(make)
    by_row = mode(rows.apply_by_rows)
    if name == "Nadam":  # That of tf-keras counts otherwise in a function.
        reference.apply = tf.function(reference.apply)  # type: ignore[method-assign]
    # Optimizers clip before they sum up, and mechanisms do not repeat ids.
    for step in _steps(unique=name in CLIPPED):
        by_row(*map(tf.constant, step))
        reference.apply_to_all(*step)
        rows.check(reference)
    assert int(np.asarray(rows.optimizer.iterations)) == 4
    return by_row


@pytest.mark.parametrize("name", _row_wise_optimizers())
def test_rows_are_what_the_optimizer_makes_of_them_at_their_cost(
    name: str,
) -> None:
    assert _of_table_size(_check_rows(name, _traced)) == []


@pytest.mark.parametrize("name", ["momentum", "Adam", "Ftrl"])
def test_compiled_rows_are_what_the_optimizer_makes_of_them(name: str) -> None:
    _check_rows(name, _compiled)


def test_eager_rows_are_what_the_optimizer_makes_of_them() -> None:
    _check_rows("amsgrad", lambda step: step)


@pytest.mark.lane
@pytest.mark.parametrize("name", ["nesterov", "Adagrad", "Adam", "Ftrl"])
def test_rows_of_zeros_move_nothing_and_repeated_ids_are_summed(
    name: str,
) -> None:
    make = _row_wise_optimizers()[name]
    given, other = Run(make), Run(make)
    for ids, values, dense in _steps():
        given.apply_by_rows(ids, values, dense)
        summed = np.zeros([ROWS, WIDTH], "float32")
        np.add.at(summed, ids, values)
        nonzero = np.flatnonzero(np.any(summed != 0, axis=1))[::-1]
        before = other.state()[0]
        other.apply_by_rows(nonzero, summed[nonzero], dense)
        given.check(other)
        still = np.setdiff1d(np.arange(ROWS), nonzero)
        np.testing.assert_array_equal(other.state()[0][still], before[still])


def test_a_repeated_id_is_not_two_updates() -> None:
    """Keras 3 alone would accumulate two squares of halves."""
    run = Run(_row_wise_optimizers()["Adagrad"])
    before = run.state()[0][3]
    half = np.full([2, WIDTH], 0.5, "float32")
    run.apply_by_rows(np.array([3, 3]), half, np.zeros(4, "float32"))
    start = 0.1  # Keras's initial_accumulator_value.
    np.testing.assert_allclose(
        before - run.state()[0][3], 0.1 / np.sqrt(start + 1), rtol=1e-5
    )


def _all_operations(graph: Any) -> Iterator[Any]:
    """Those of the functions that it calls as well."""
    yield from graph.get_operations()
    for name in graph._functions:
        function = graph._get_function(name)
        yield from _all_operations(getattr(function, "graph", tf.Graph()))


def _of_size(rows: int, operations: Iterable[Any]) -> list[str]:
    return [
        operation.name
        for operation in operations
        for output in operation.outputs
        if output.shape.rank and output.shape[0] == rows
    ]


def _of_table_size(traced: Any) -> list[str]:
    return _of_size(ROWS, _all_operations(traced.graph))


def test_what_has_the_size_of_the_table_would_be_seen() -> None:
    run = Run(_row_wise_optimizers()["Adam"])

    def whole_step(ids: Any, values: Any, dense: Any) -> None:
        shape = tf.constant([ROWS, WIDTH], tf.int64)
        run.apply(tf.IndexedSlices(values, ids, shape), dense)

    assert _of_table_size(_traced(whole_step))


def test_a_private_step_updates_released_rows_at_their_cost() -> None:
    rows = 1009  # Of which a threshold leaves most out.
    layers = [
        keras.Input((), dtype="int32"),
        keras.layers.Embedding(rows, WIDTH),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    (table, *_) = model.trainable_variables
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.Adam(0.1),
        mechanism=tsdp.Threshold(untouched_rows=10),
        noise_multiplier=0.1,
        expected_batch_size=8,
        seed=0,
    )
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(ids: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(ids) - labels))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    batch = tf.range(8), tf.ones([8, 1])
    before = _values([table])[0]
    step(*batch)
    moved = np.any(_values([table])[0] != before, axis=1)
    assert 0 < np.sum(moved) < 60
    update = [
        operation
        for operation in _all_operations(
            step.get_concrete_function(*batch).graph
        )
        if PRIVATE_UPDATE in operation.graph.name
    ]
    assert any(
        operation.type == "ResourceScatterUpdate" for operation in update
    )
    assert _of_size(rows, update) == []


def _around() -> dict[str, Callable[[Any], Any]]:
    """What concerns all rows, around rules without memory."""
    made = keras.optimizers
    return {
        "weight decay": lambda table: made.Adagrad(0.1, weight_decay=0.1),
        "average": lambda table: made.Adagrad(
            0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
        ),
        "constraint": lambda table: made.Adagrad(0.1),
        "Adafactor": lambda table: made.Adafactor(0.1),
        **(
            {
                "accumulation": lambda table: made.Adam(
                    0.1, gradient_accumulation_steps=2
                ),
                "global_clipnorm": lambda table: made.Adam(
                    0.1, global_clipnorm=0.5
                ),
            }
            if KERAS_3
            else {}
        ),
    }


@pytest.mark.parametrize("name", _around())
def test_what_concerns_all_rows_remains_as_it_was(name: str) -> None:
    options = {}
    if name == "constraint":
        options["constraint"] = keras.constraints.NonNeg()
    rows = Run(_around()[name], **options)
    reference = Run(_around()[name], **options)
    for ids, values, dense in _steps(unique=True):
        rows.apply_by_rows(ids, values, dense)
        gradient = np.zeros([ROWS, WIDTH], "float32")
        gradient[ids[:6]] = values[:6]
        reference.apply(gradient, dense)
        rows.check(reference)


class RowAdagrad(keras.optimizers.Optimizer):
    """One accumulator per row."""

    row_wise = True

    def __init__(self, **options: Any):
        name = {} if KERAS_3 else {"name": "RowAdagrad"}
        rate = {"learning_rate": 0.1} if KERAS_3 else {}
        super().__init__(**name, **rate, **options)
        if not KERAS_3:
            self._learning_rate = self._build_learning_rate(0.1)

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.sums = [
            self.add_variable(shape=(v.shape[0], 1), initializer="ones")
            for v in variables
        ]

    def update_step(self, gradient: Any, variable: Any, rate: Any = 0.1) -> Any:
        places = "_trainable_variables_indices" if KERAS_3 else "_index_dict"
        total = self.sums[getattr(self, places)[self._var_key(variable)]]
        gradient = tf.reshape(gradient, [-1, variable.shape[-1]])
        square = tf.reduce_mean(gradient**2, axis=1, keepdims=True)
        self._add(total, square)
        variable.assign_sub(rate * gradient / tf.sqrt(total))

    def _add(self, total: Any, square: Any) -> None:
        total.assign_add(square)


class MeansOverColumns(RowAdagrad):
    """Not of rows, and it does not say so."""

    row_wise = False

    def update_step(self, gradient: Any, variable: Any, rate: Any = 0.1) -> Any:
        gradient = tf.convert_to_tensor(gradient)
        variable.assign_sub(gradient * tf.reduce_mean(gradient))


class SaysSoWrongly(MeansOverColumns):
    row_wise = True

    def update_step(self, gradient: Any, variable: Any, rate: Any = 0.1) -> Any:
        variable.assign_sub(tf.reduce_mean(gradient, axis=0, keepdims=True))


def _table_alone(optimizer: Any) -> Any:
    table = _variable(np.ones([ROWS, WIDTH]))
    optimizer.build([table])
    values = np.array([[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]], "float32")
    gradient = tf.IndexedSlices(
        tf.constant(values), tf.constant([2, 7]), tf.constant([ROWS, WIDTH])
    )
    with by_rows(optimizer):
        optimizer.apply_gradients([(gradient, table)])
    return table, values


def test_an_optimizer_of_ones_own_may_say_that_it_is_row_wise() -> None:
    optimizer = RowAdagrad()
    table, values = _table_alone(optimizer)
    totals = np.ones([ROWS, 1])
    totals[[2, 7], 0] += np.mean(values**2, axis=1)
    (slot,) = optimizer.sums
    np.testing.assert_allclose(_values([slot])[0], totals, rtol=1e-6)
    expected = np.ones([ROWS, WIDTH])
    expected[[2, 7]] -= 0.1 * values / np.sqrt(totals[[2, 7]])
    np.testing.assert_allclose(_values([table])[0], expected, rtol=1e-6)


def test_other_optimizers_see_whole_tables() -> None:
    assert not is_row_wise(keras.optimizers.Adafactor(0.1))
    table, values = _table_alone(MeansOverColumns())
    expected = np.ones([ROWS, WIDTH])
    mean = values.sum() / (ROWS * WIDTH)
    expected[[2, 7]] -= values * mean
    np.testing.assert_allclose(_values([table])[0], expected, rtol=1e-5)


def test_values_that_are_not_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="computes every row from that row"):
        _table_alone(SaysSoWrongly())


def test_the_optimizer_is_left_as_it_was() -> None:
    run = Run(_row_wise_optimizers()["Adam"])
    for step in _steps(1):
        run.apply_by_rows(*step)
    with pytest.raises(ZeroDivisionError), by_rows(run.optimizer):
        raise ZeroDivisionError
    assert "update_step" not in vars(run.optimizer)
    slots = run.optimizer._momentums
    assert not any(isinstance(slot, RowView) for slot in slots)


def test_bfloat16_values_update_float32_rows() -> None:
    make = _row_wise_optimizers()["Adam"]
    rows, reference = Run(make), Run(make)
    for ids, values, dense in _steps(unique=True):
        rounded = tf.cast(values, tf.bfloat16)
        rows.apply_by_rows(ids, rounded, dense)
        exact = tf.cast(rounded, tf.float32).numpy()
        reference.apply_to_all(ids, exact, dense)
        rows.check(reference)
