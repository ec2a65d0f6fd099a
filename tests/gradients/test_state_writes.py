"""State that carries example data from step to step is refused.

A write matters wherever it stands: in a function, in a branch, after the
gradients were applied, in the function around the step, and by way of other
variables. Public values may be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp

pytestmark = pytest.mark.once

ROWS, WIDTH = 4, 3
X = np.random.RandomState(0).randn(ROWS, WIDTH).astype("float32")


class Step:
    """A step that shifts its batch by one variable and updates another.

    Args:
      before: Called with the step and the batch before gradients are taken.
      after: Called after they are applied.
      around: Called in the function that calls the step.
    """

    def __init__(
        self,
        before: Callable[[Any, Any], Any] | None = None,
        after: Callable[[Any, Any], Any] | None = None,
        around: Callable[[Any, Any], Any] | None = None,
    ):
        self.w = tf.Variable(np.ones((WIDTH, 2), "float32"))
        self.read = tf.Variable(np.zeros(WIDTH, "float32"), name="read")
        self.other = tf.Variable(np.zeros(WIDTH, "float32"), name="other")
        self.rows = tf.Variable(np.zeros((9, WIDTH), "float32"))
        self.table = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.float32, 0.0
        )
        self.optimizer = tsdp.DPSparseOptimizer(
            tf.keras.optimizers.SGD(1.0),
            noise_multiplier=0.0,
            expected_batch_size=1.0,
        )
        self.optimizer.build([self.w])
        self._before, self._after, self._around = before, after, around

    def shift(self) -> Any:
        public = self.table.lookup(tf.constant([1], tf.int64))
        return self.read + self.rows[2] + tf.ensure_shape(public, [1])

    def step(self, x: Any) -> None:
        if self._before is not None:
            self._before(self, x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square((x - self.shift()) @ self.w))
        gradient = tape.gradient(loss, self.w)
        self.optimizer.apply_gradients([(gradient, self.w)])
        if self._after is not None:
            self._after(self, x)

    def run(self) -> None:
        inner = tf.function(self.step, autograph=False)

        @tf.function(autograph=False)
        def outer(x: Any) -> None:
            inner(x)
            self._around(self, x)

        step = inner if self._around is None else outer
        step.get_concrete_function(tf.TensorSpec([None, WIDTH]))(tf.constant(X))


def _assigned(step: Step, x: Any) -> None:
    step.read.assign(tf.reduce_mean(x, 0))


def _in_a_function(step: Step, x: Any) -> None:
    tf.function(lambda: _assigned(step, x))()


def _two_functions_deep(step: Step, x: Any) -> None:
    inner = tf.function(lambda value: _assigned(step, value))
    tf.function(lambda value: inner(2.0 * value))(x)


def _in_a_branch(step: Step, x: Any) -> None:
    tf.cond(
        x[0, 0] > 0,
        lambda: step.read.assign(tf.ones([WIDTH])),
        lambda: tf.identity(step.read),
    )


def _in_a_branch_in_a_function(step: Step, x: Any) -> None:
    tf.function(lambda value: _in_a_branch(step, value))(x)


def _in_a_loop(step: Step, x: Any) -> None:
    def body(i: Any) -> Any:
        step.read.assign_add(x[i])
        return i + 1

    tf.while_loop(lambda i: i < 2, body, [tf.constant(0)])


def _scattered(step: Step, x: Any) -> None:
    step.rows.scatter_nd_update([[2]], x[:1])


def _scattered_where_data_say(step: Step, x: Any) -> None:
    where = tf.cast(x[:1, 0] > 0, tf.int32)
    step.rows.scatter_update(tf.IndexedSlices(tf.ones([1, WIDTH]), where))


def _in_a_table(step: Step, x: Any) -> None:
    step.table.insert(tf.range(1, dtype=tf.int64), x[:1, 0])


def _by_way_of_another(step: Step, x: Any) -> None:
    step.read.assign(step.other)
    step.other.assign(x[0])


def _by_way_of_another_in_functions(step: Step, x: Any) -> None:
    tf.function(lambda: step.read.assign(2.0 * step.other))()
    tf.function(lambda value: step.other.assign(value[0]))(x)


def _averaged(step: Step, x: Any) -> None:
    step.read.assign(0.9 * step.read + 0.1 * tf.reduce_mean(x, 0))


def _from_python(step: Step, x: Any) -> None:
    hidden = tf.numpy_function(lambda: X[0], [], tf.float32)
    step.read.assign(tf.ensure_shape(hidden, [WIDTH]))


def _from_python_in_a_function(step: Step, x: Any) -> None:
    tf.function(lambda: _from_python(step, x))()


EXAMPLES = [
    _assigned,
    _in_a_function,
    _two_functions_deep,
    _in_a_branch,
    _in_a_branch_in_a_function,
    _in_a_loop,
    _scattered,
    _scattered_where_data_say,
    _in_a_table,
    _by_way_of_another,
    _by_way_of_another_in_functions,
    _averaged,
    _from_python,
    _from_python_in_a_function,
]


@pytest.mark.parametrize("place", ["before", "after", "around"])
@pytest.mark.parametrize("write", EXAMPLES, ids=lambda f: f.__name__[1:])
def test_example_data_are_refused(
    write: Callable[[Step, Any], None], place: str
) -> None:
    step = Step(**{place: write})
    with pytest.raises(
        tsdp.NotSeparableError, match="writes example data into a variable"
    ) as error:
        step.run()
    assert "(operation '" in str(error.value)
    assert "Nothing was trained" in str(error.value)
    np.testing.assert_array_equal(step.w, np.ones((WIDTH, 2)))
    assert step.optimizer.compositions_spent == 0


def test_the_way_through_inside_and_outside_is_refused() -> None:
    def outside(step: Step, x: Any) -> None:
        step.read.assign(step.other)

    def inside(step: Step, x: Any) -> None:
        step.other.assign(x[0])

    with pytest.raises(tsdp.NotSeparableError, match=r"'read:0'.*is read from"):
        Step(after=inside, around=outside).run()
    with pytest.raises(tsdp.NotSeparableError, match=r"'read:0'.*is read from"):
        Step(after=outside, around=inside).run()


def test_an_argument_may_be_the_variable_that_is_read() -> None:
    step = Step()

    @tf.function(autograph=False)
    def remembering(x: Any, state: Any) -> None:
        step.step(x)
        state.assign(x[0])

    with pytest.raises(tsdp.NotSeparableError, match="writes example data"):
        remembering(tf.constant(X), step.read)


def _counted(step: Step, x: Any) -> None:
    step.read.assign_add(tf.ones([WIDTH]))


def _counted_in_a_function(step: Step, x: Any) -> None:
    tf.function(lambda value: _counted(step, value))(x)


def _counted_rows(step: Step, x: Any) -> None:
    step.read.assign(tf.fill([WIDTH], tf.cast(tf.shape(x)[0], tf.float32)))


def _copied_weights(step: Step, x: Any) -> None:
    step.read.assign(0.9 * step.read + 0.1 * tf.reduce_sum(step.w))


def _random(step: Step, x: Any) -> None:
    step.read.assign(tf.random.normal([WIDTH]))


def _looked_at(step: Step, x: Any) -> None:
    tf.function(lambda value: value + step.read)(x)


def _looked_at_in_a_branch(step: Step, x: Any) -> None:
    tf.cond(x[0, 0] > 0, lambda: x - step.read, lambda: x + step.read)


def _remembered_elsewhere(step: Step, x: Any) -> None:
    step.other.assign(tf.reduce_mean(x, 0) + step.read)


def _remembered_elsewhere_in_a_function(step: Step, x: Any) -> None:
    tf.function(lambda value: _remembered_elsewhere(step, value))(x)


@pytest.mark.parametrize("place", ["before", "after", "around"])
@pytest.mark.parametrize(
    "write",
    [
        _counted,
        _counted_in_a_function,
        _copied_weights,
        _random,
        _looked_at,
        _looked_at_in_a_branch,
        _remembered_elsewhere,
        _remembered_elsewhere_in_a_function,
    ],
    ids=lambda f: f.__name__[1:],
)
def test_public_values_and_what_gradients_do_not_read_are_taken(
    write: Callable[[Step, Any], None], place: str
) -> None:
    step = Step(**{place: write})
    step.run()
    assert step.optimizer.compositions_spent == 1
    assert np.abs(step.w.numpy() - 1.0).max() > 0


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_number_of_rows_is_public(place: str) -> None:
    step = Step(**{place: _counted_rows})
    step.run()
    np.testing.assert_array_equal(step.read, [ROWS] * WIDTH)
