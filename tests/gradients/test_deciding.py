"""Whether a step is taken, and how often, is not for examples to decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients import deciding, functions, state

pytestmark = [pytest.mark.once, pytest.mark.lane]

X = np.arange(12, dtype="float32").reshape(4, 3)
DATA = tf.data.Dataset.from_tensors(X).repeat(3)


class Trained:
    """A weight, and a function that takes a step with it."""

    def __init__(self) -> None:
        self.w = tf.Variable(np.ones((3, 1), "float32"))
        self.public = tf.Variable(2)
        self.optimizer = tsdp.DPSparseOptimizer(
            tf.keras.optimizers.SGD(1.0),
            noise_multiplier=0.0,
            expected_batch_size=1.0,
        )
        self.optimizer.build([self.w])
        self.step = tf.function(self._step, autograph=False)

    def _step(self, x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x @ self.w)
        gradient = tape.gradient(loss, self.w)
        self.optimizer.apply_gradients([(gradient, self.w)])

    def run(self, around: Callable[[Trained, Any], Any]) -> int:
        """Steps that were taken."""
        outer = tf.function(lambda x: around(self, x), autograph=False)
        outer(tf.constant(X))
        return int(self.optimizer.iterations.numpy())


def _times(trained: Trained, x: Any, start: Any, end: Any, by: Any) -> None:
    def body(i: Any) -> Any:
        trained.step(x)
        return (i + by(i),)

    tf.while_loop(lambda i: i < end, body, [start])


def _if_finite(trained: Trained, x: Any) -> None:
    finite = tf.reduce_all(tf.math.is_finite(x))
    tf.cond(finite, lambda: trained.step(x), lambda: None)


def _case(trained: Trained, x: Any) -> None:
    there = tf.cast(x[0, 0] > 0, tf.int32)
    tf.switch_case(there, [lambda: trained.step(x), lambda: None])


def _branch_in_a_function(trained: Trained, x: Any) -> None:
    tf.function(lambda value: _if_finite(trained, value), autograph=False)(x)


def _branch_in_a_loop(trained: Trained, x: Any) -> None:
    def body(i: Any) -> Any:
        _if_finite(trained, x)
        return (i + 1,)

    tf.while_loop(lambda i: i < 2, body, [0])


def _branch_of_a_batch(trained: Trained, x: Any) -> None:
    batch = next(iter(DATA))
    tf.cond(batch[0, 0] > 0, lambda: trained.step(x), lambda: None)


def _by_what_was_remembered(trained: Trained, x: Any) -> None:
    trained.public.assign(tf.cast(tf.reduce_max(x), tf.int32))
    tf.cond(trained.public > 1, lambda: trained.step(x), lambda: None)


def _by_what_is_remembered_later(trained: Trained, x: Any) -> None:
    tf.cond(trained.public > 1, lambda: trained.step(x), lambda: None)
    tf.function(lambda: trained.public.assign_add(tf.cast(x[0, 0], tf.int32)))()


def _end_of_a_loop(trained: Trained, x: Any) -> None:
    end = tf.cast(tf.reduce_max(x), tf.int32)
    _times(trained, x, 0, end, lambda i: 1)


def _start_of_a_loop(trained: Trained, x: Any) -> None:
    start = tf.cast(tf.reduce_min(x), tf.int32)
    _times(trained, x, start, 2, lambda i: 1)


def _steps_of_a_loop(trained: Trained, x: Any) -> None:
    _times(trained, x, 0, 2, lambda i: tf.cast(x[i, 1], tf.int32))


def _branch_by_what_a_loop_found(trained: Trained, x: Any) -> None:
    def body(i: Any, found: Any) -> Any:
        tf.cond(found, lambda: trained.step(x), lambda: None)
        return i + 1, x[i, 1] > 2

    tf.while_loop(lambda i, found: i < 3, body, [0, True])


def _by_way_of_another(trained: Trained, x: Any) -> None:
    def body(i: Any, end: Any, hidden: Any) -> Any:
        trained.step(x)
        return i + 1, hidden, tf.cast(x[0, 2], tf.int32)

    tf.while_loop(lambda i, end, hidden: i < end, body, [0, 2, 2])


REFUSED = [
    _if_finite,
    _case,
    _branch_in_a_function,
    _branch_in_a_loop,
    _branch_of_a_batch,
    _by_what_was_remembered,
    _by_what_is_remembered_later,
    _end_of_a_loop,
    _start_of_a_loop,
    _steps_of_a_loop,
    _branch_by_what_a_loop_found,
    _by_way_of_another,
]


@pytest.mark.parametrize("around", REFUSED, ids=lambda f: f.__name__[1:])
def test_data_do_not_decide(around: Any) -> None:
    trained = Trained()
    with pytest.raises(tsdp.errors.NotSeparableError, match="branch or loop"):
        trained.run(around)
    assert int(trained.optimizer.iterations.numpy()) == 0


def _fixed(trained: Trained, x: Any) -> None:
    _times(trained, x, 0, 3, lambda i: 1)


def _by_a_variable(trained: Trained, x: Any) -> None:
    trained.public.assign_add(0)
    _times(trained, x, 0, tf.identity(trained.public), lambda i: 1)
    tf.cond(trained.public > 1, lambda: trained.step(x), lambda: None)


def _every_other_round(trained: Trained, x: Any) -> None:
    def body(i: Any) -> Any:
        tf.cond(i % 2 == 0, lambda: trained.step(x), lambda: None)
        return (i + 1,)

    tf.while_loop(lambda i: i < 6, body, [0])


def _while_there_are_batches(trained: Trained, x: Any) -> None:
    iterator = iter(DATA)

    def body(given: Any) -> Any:
        def take() -> None:
            trained.step(given.get_value())

        tf.cond(given.has_value(), take, lambda: None)
        return (iterator.get_next_as_optional(),)

    first = iterator.get_next_as_optional()
    tf.while_loop(lambda given: given.has_value(), body, [first])


@pytest.mark.parametrize(
    "around",
    [_fixed, _by_a_variable, _every_other_round, _while_there_are_batches],
    ids=lambda f: f.__name__[1:],
)
def test_what_is_public_may(around: Any) -> None:
    assert Trained().run(around) == 3


def _apply_if_finite(trained: Trained, x: Any, apply: Any) -> None:
    finite = tf.reduce_all(tf.math.is_finite(x))
    tf.cond(finite, apply, lambda: tf.no_op())


def _apply_in_a_function(trained: Trained, x: Any, apply: Any) -> None:
    _apply_if_finite(trained, x, tf.function(apply, autograph=False))


def _apply_in_a_loop(trained: Trained, x: Any, apply: Any) -> None:
    rounds = tf.cast(tf.reduce_all(tf.math.is_finite(x)), tf.int32)
    tf.while_loop(lambda i: i < rounds, lambda i: (apply() and i + 1,), [0])


@pytest.mark.parametrize(
    "decide",
    [_apply_if_finite, _apply_in_a_function, _apply_in_a_loop],
    ids=lambda f: f.__name__[1:],
)
def test_nor_whether_gradients_are_applied(decide: Any) -> None:
    """They are computed in every step, by the function that all is in."""
    trained = Trained()

    @tf.function(autograph=False)
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x @ trained.w)
        gradient = tape.gradient(loss, trained.w)

        def apply() -> bool:
            trained.optimizer.apply_gradients([(gradient, trained.w)])
            return True

        decide(trained, x, apply)

    with pytest.raises(tsdp.errors.NotSeparableError, match="branch or loop"):
        step(tf.constant(X))
    assert int(trained.optimizer.iterations.numpy()) == 0


def _inner(x: Any) -> None:
    tf.print(tf.reduce_sum(x), output_stream="file:///dev/null")


def _unknown_in_a_branch(trained: Trained, x: Any) -> None:
    hidden = tf.function(_inner, autograph=False)
    tf.cond(x[0, 0] > 0, lambda: hidden(x), lambda: None)
    trained.step(x)


def _unknown_beside_the_step(trained: Trained, x: Any) -> None:
    hidden = tf.function(_inner, autograph=False)
    tf.cond(x[0, 0] > 0, lambda: trained.step(x), lambda: hidden(x))


def _unknown_in_a_loop(trained: Trained, x: Any) -> None:
    hidden = tf.function(_inner, autograph=False)

    def body(i: Any) -> Any:
        hidden(x)
        return (i + 1,)

    tf.while_loop(lambda i: i < tf.cast(x[0, 1], tf.int32), body, [0])
    trained.step(x)


@pytest.mark.parametrize(
    "around",
    [_unknown_in_a_branch, _unknown_beside_the_step, _unknown_in_a_loop],
    ids=lambda f: f.__name__[1:],
)
def test_what_cannot_be_looked_into_might_take_the_step(
    around: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a function with attributes, or one whose definition is elsewhere.

    Others refuse it, too, for what it might write; this does not rest on them.
    """

    class Blind(functions.Library):
        def get(self, name: str) -> functions.Function | None:
            return None if "_inner" in name else super().get(name)

    monkeypatch.setattr(deciding, "Library", Blind)
    trained = Trained()
    with pytest.raises(tsdp.errors.NotSeparableError, match="branch or loop"):
        trained.run(around)
    assert int(trained.optimizer.iterations.numpy()) == 0


@pytest.mark.parametrize("known", [True, False])
def test_what_cannot_be_looked_into_is_not_the_private_update(
    known: bool,
) -> None:
    """Writes of the update are left out of what a step writes; no others."""
    trained = Trained()

    @tf.function(autograph=False)
    def outer(x: Any) -> None:
        trained.step(x)
        trained.public.assign(tf.cast(x[0, 0], tf.int32))

    graph = outer.get_concrete_function(tf.TensorSpec([4, 3])).graph

    class Blind(functions.Library):
        def get(self, name: str) -> functions.Function | None:
            return super().get(name) if known else None

    found = state.writes(graph, Blind(graph))
    calls = [write for write in found if "Call" in write.kind]
    assert bool(calls) == (not known)
    assert any(write.kind == "AssignVariableOp" for write in found)
