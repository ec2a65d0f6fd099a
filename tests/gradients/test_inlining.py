"""What is called is looked into: it separates, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.gradients.per_example import RowTerms
from tf_sparse_dp.gradients.separation import Separation

pytestmark = pytest.mark.once

ROWS, WIDTH = 4, 3
X = np.random.RandomState(0).randn(ROWS, WIDTH).astype("float32")
W = tf.Variable(np.random.RandomState(1).randn(WIDTH, 2).astype("float32"))
COUNT = tf.Variable(0.0)


def terms(forward: Callable[[Any], Any]) -> tuple[np.ndarray, float]:
    """Every example's term of the gradient of W, and the loss."""

    @tf.function(
        input_signature=[tf.TensorSpec([None, WIDTH])], autograph=False
    )
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(batch))
        separation = Separation(tape.gradient(loss, [W]), ["W"], [W.shape])
        return separation.parts[0].terms.per_example(), loss

    found, loss = step(tf.constant(X))
    return found.numpy(), float(loss)


def looped(forward: Callable[[Any], Any]) -> tuple[np.ndarray, float]:
    """The same, one example at a time."""
    found, total = [], 0.0
    for row in range(ROWS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(tf.constant(X[row : row + 1])))
        found.append(tape.gradient(loss, W).numpy())
        total += float(loss)
    return np.stack(found), total


@tf.function(autograph=False)
def _squared(x: Any) -> Any:
    return tf.square(x @ W)


@tf.function(autograph=False, reduce_retracing=True)
def _of_squared(x: Any) -> Any:
    return {"sine": tf.sin(_squared(x)), "unused": tf.reduce_mean(x)}


@tf.function(autograph=False)
def _counting(x: Any) -> Any:
    COUNT.assign_add(1.0)
    return tf.square(x @ W)


@tf.function(autograph=False)
def _checked(x: Any) -> Any:
    tf.debugging.assert_less(tf.reduce_max(x), 99.0)
    tf.print(tf.shape(x), output_stream="file:///dev/null")
    return tf.square(x @ W)


@tf.custom_gradient
def _doubled(x: Any) -> Any:
    return x, lambda upstream: 2.0 * upstream


def _captures_the_batch(x: Any) -> Any:
    return tf.function(lambda: tf.square(x @ W), autograph=False)()


def _twice(x: Any) -> Any:
    return _squared(x) + _squared(tf.tanh(x) @ tf.ones([WIDTH, WIDTH]))


@tf.function(
    autograph=False, input_signature=[tf.TensorSpec([None, None], tf.float32)]
)
def _of_open_shape(x: Any) -> Any:
    return tf.square(tf.reshape(x, tf.shape(x)) @ W)


@pytest.mark.parametrize(
    "forward",
    [
        _squared,
        lambda x: _of_squared(x)["sine"],
        _captures_the_batch,
        _checked,
        _twice,
        _of_open_shape,
        lambda x: _doubled(_squared(_doubled(x))),
    ],
    ids="call nested capture checked twice shape custom".split(),
)
def test_terms_are_those_of_a_loop(forward: Callable[[Any], Any]) -> None:
    found, loss = terms(forward)
    expected, total = looped(forward)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(loss, total, rtol=1e-5)
    assert np.abs(expected).max() > 0.1


def test_terms_of_a_forward_pass_that_runs_twice() -> None:
    def forward(x: Any) -> Any:
        return tf.sin(_squared(x))

    found, loss = terms(tf.recompute_grad(forward))
    expected, total = looped(forward)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(loss, total, rtol=1e-5)


def test_gradients_that_a_function_returns() -> None:
    table = tf.Variable(np.ones((9, 2), "float32"))

    @tf.function(autograph=False)
    def gradients(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(table, ids)))
        return {"table": tape.gradient(loss, table)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int32)])
    def step(ids: Any) -> Any:
        gradient = gradients(ids)["table"]
        assert isinstance(gradient, tf.IndexedSlices)
        return tsdp.per_example_gradients(
            [gradient], [table], loss_reduction="sum"
        )

    found = step(tf.constant([[1, 2], [3, 3]]))
    assert isinstance(found.terms[0], RowTerms)
    np.testing.assert_array_equal(found.terms[0].row_ids, [1, 2, 3, 3])
    np.testing.assert_allclose(
        found.norms, [np.sqrt(16.0), np.sqrt(32.0)], rtol=1e-6
    )


def test_writes_are_not_made_twice() -> None:
    COUNT.assign(0.0)
    terms(lambda x: _counting(_counting(x) @ tf.ones([2, WIDTH])))
    np.testing.assert_array_equal(COUNT, 2.0)


def test_forward_and_backward_pass_see_the_same_random_numbers() -> None:
    @tf.function(autograph=False)
    def dropped(x: Any) -> Any:
        return tf.nn.dropout(x, 0.5) @ W

    for _ in range(5):
        found, loss = terms(dropped)
        # The loss is linear in W.
        np.testing.assert_allclose((found * W).numpy().sum(), loss, atol=1e-4)


def _function(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def hidden(x: Any) -> Any:
        return tf.square(inner(x) @ W)

    return tf.function(hidden, autograph=False)


def _shared_by_name(x: Any) -> Any:
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.float32, shape=[WIDTH], shared_name="shared by name"
    )
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.reduce_mean(x, 0))
    return x - tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)


def _shape_of_what_python_saw(x: Any) -> Any:
    seen = tf.ensure_shape(
        tf.py_function(lambda v: v, [x[0]], tf.float32), [WIDTH]
    )
    # Not tf.size, which would be a constant.
    return x * tf.cast(tf.raw_ops.Size(input=seen), tf.float32)


def _from_python(x: Any) -> Any:
    seen = tf.numpy_function(lambda: X[0], [], tf.float32, stateful=False)
    return x - tf.ensure_shape(seen, [WIDTH])


def _assigned_and_used(x: Any) -> Any:
    return x * COUNT.assign_add(tf.reduce_mean(x))


MIXING = {
    "rolled": (lambda x: x + tf.roll(x, 1, 0), "Roll"),
    "sorted": (lambda x: x + tf.sort(x, axis=0), "TopKV2|Sort|Neg|GatherV2"),
    "centred": (lambda x: x - tf.reduce_mean(x, 0), "Sub"),
    "attention": (lambda x: tf.nn.softmax(x @ tf.transpose(x)) @ x, "MatMul"),
    "shared by name": (_shared_by_name, "VarHandleOp"),
    "shape of Python": (_shape_of_what_python_saw, "EagerPyFunc"),
    "Python": (_from_python, "PyFuncStateless"),
    "branch": (
        lambda x: tf.cond(x[0, 0] > 0, lambda: x, lambda: -x),
        "StatelessIf|If|StridedSlice",
    ),
    "loop": (
        lambda x: tf.while_loop(
            lambda i, y: i < 2, lambda i, y: (i + 1, y * 2.0), [0, x]
        )[1],
        "While",
    ),
}


@pytest.mark.parametrize("deep", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_in_a_function_is_refused(name: str, deep: bool) -> None:
    inner, operation = MIXING[name]
    forward = _function(inner)
    if deep:
        forward = _function(tf.function(inner, autograph=False))
    with pytest.raises(tsdp.NotSeparableError) as error:
        terms(forward)
    said = str(error.value)
    assert "Nothing was trained" in said
    assert any(kind in said for kind in operation.split("|")), said
    assert "/hidden/" in said, said


def test_what_a_function_remembers_is_refused() -> None:
    with pytest.raises(tsdp.NotSeparableError, match="writes example data"):
        terms(_function(_assigned_and_used))


def test_a_tensor_of_an_outer_function_stays_refused() -> None:
    @tf.function(autograph=False)
    def outer(x: Any) -> Any:
        @tf.function(autograph=False)
        def step(y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(_squared(y - tf.reduce_mean(x, 0)))
            return tsdp.per_example_gradients(tape.gradient(loss, [W]), [W])

        return step(2.0 * x)

    with pytest.raises(tsdp.NotSeparableError, match="of an outer function"):
        outer(tf.constant(X))


def test_unnamed_functions_have_a_place_in_names() -> None:
    with pytest.raises(tsdp.NotSeparableError, match="PartitionedCall/lambda/"):
        terms(tf.function(lambda x: tf.roll(x, 1, 0) @ W, autograph=False))
