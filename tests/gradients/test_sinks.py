"""Example data that leave a step by no variable are refused.

Above all to embedding hardware of TPUs, which trains tables by itself. None of
its operations runs here; to be refused, they only have to be traced.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.tpu import tpu_embedding_configuration_pb2
from tensorflow.python.tpu.ops import gen_xla_ops

import tf_sparse_dp as tsdp
from tests.gradients.test_state_writes import WIDTH, Step
from tf_sparse_dp.gradients.functions import Library
from tf_sparse_dp.gradients.sinks import is_engine

pytestmark = pytest.mark.once
ops = tf.raw_ops


def _configuration() -> bytes:
    """One feature of a table that hardware holds."""
    made = tpu_embedding_configuration_pb2.TPUEmbeddingConfiguration()
    made.table_descriptor.add(vocabulary_size=9, dimension=WIDTH)
    made.feature_descriptor.add(table_id=0, input_shape=[4])
    return made.SerializeToString()


CONFIGURATION = _configuration()


def _sent(step: Step, x: Any) -> None:
    ops.SendTPUEmbeddingGradients(
        inputs=[x], learning_rates=[], config=CONFIGURATION
    )


def _enqueued(step: Step, x: Any) -> None:
    ids = tf.cast(x[:, 0], tf.int32)
    ops.EnqueueTPUEmbeddingIntegerBatch(batch=[ids], mode_override="train")


def _received(step: Step, x: Any) -> Any:
    return ops.RecvTPUEmbeddingActivations(num_outputs=1, config=CONFIGURATION)


def _loaded(step: Step, x: Any) -> None:
    ops.LoadTPUEmbeddingStochasticGradientDescentParameters(
        parameters=x, num_shards=1, shard_id=0, table_id=0
    )


def _multiplied(step: Step, x: Any) -> Any:
    ids = tf.cast(x[:, 0], tf.int32)
    return gen_xla_ops.xla_sparse_dense_matmul_with_csr_input(
        row_pointers=ids,
        sorted_sample_ids=ids,
        sorted_token_ids=ids,
        sorted_gains=x[:, 1],
        input_size=4,
        embedding_table=step.rows,
        num_minibatches_per_physical_sparse_core=1,
        quantization_config_low=0.0,
        quantization_config_high=0.0,
        quantization_config_num_buckets=0,
        table_name="rows",
    )


def _trained(step: Step, x: Any) -> None:
    """As TPUEmbeddingV2 does: the table is no variable of the model."""
    ids = tf.cast(x[:, 0], tf.int32)
    table = gen_xla_ops.xla_sparse_dense_matmul_grad_with_sgd_and_csr_input(
        row_pointers=ids,
        sorted_sample_ids=ids,
        sorted_token_ids=ids,
        sorted_gains=x[:, 1],
        activation_gradients=x,
        learning_rate=0.1,
        embedding_table=step.unread,
        num_minibatches_per_physical_sparse_core=1,
        table_name="rows",
    )
    step.unread.assign(table)


def _by_rows(step: Step, x: Any) -> None:
    ids = tf.cast(x[:, 0], tf.int32)
    table = gen_xla_ops.xla_sparse_core_sgd(
        indices=ids,
        gradient=x,
        learning_rate=0.1,
        embedding_table=step.unread,
        feature_width=WIDTH,
    )
    step.unread.assign(table)


def _in_a_function(step: Step, x: Any) -> None:
    inner = tf.function(lambda value: _sent(step, value))
    tf.function(lambda value: inner(2.0 * value))(x)


def _in_a_branch(step: Step, x: Any) -> None:
    def send() -> tf.Tensor:
        _sent(step, x)
        return tf.constant(0)

    tf.cond(x[0, 0] > 0, send, lambda: tf.constant(0))


ENGINES = [
    ("before", _sent),
    ("before", _enqueued),
    ("before", _received),
    ("before", _loaded),
    ("before", _multiplied),
    ("before", _trained),
    ("before", _by_rows),
    ("before", _in_a_branch),
    ("after", _sent),
    ("after", _trained),
    ("after", _in_a_function),
    ("around", _sent),
    ("around", _in_a_function),
]


class OneTable(Step):
    """With a variable that no gradient reads."""

    def __init__(self, **hooks: Any):
        super().__init__(**hooks)
        self.unread = tf.Variable(np.zeros((9, WIDTH), "float32"))


def _untouched(step: Step) -> bool:
    spent = step.optimizer.compositions_spent
    return spent == 0 and bool(np.all(step.w.numpy() == 1.0))


def _name(value: Any) -> str:
    return value if isinstance(value, str) else value.__name__[1:]


@pytest.mark.parametrize(("place", "use"), ENGINES, ids=_name)
def test_embedding_hardware_is_refused(
    place: str, use: Callable[[Step, Any], None]
) -> None:
    step = OneTable(**{place: use})
    with pytest.raises(
        tsdp.NotSeparableError, match="uses embedding hardware of a TPU"
    ) as error:
        step.run()
    for text in ("without noise", "Nothing was trained", "default_device"):
        assert text in str(error.value)
    assert _untouched(step)


def test_a_gradient_that_sends_others_on_its_way_is_refused() -> None:
    """The trap that the layers set: it gives zeros, and trains elsewhere."""
    dummy = tf.Variable([0.0])

    @tf.custom_gradient
    def trap(value: Any) -> Any:
        (rows,) = _received(step, None)

        def backward(gradient: Any) -> Any:
            _sent(step, gradient)
            return tf.zeros_like(value)

        return rows, backward

    def look_up(step: Step, x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(trap(dummy))
        tape.gradient(loss, dummy)

    step = Step(before=look_up)
    with pytest.raises(tsdp.NotSeparableError, match="RecvTPUEmbedding"):
        step.run()
    assert _untouched(step)


def test_names_of_embedding_hardware() -> None:
    """All that this TensorFlow has, and no operation of ordinary models."""
    known = {name for name in dir(ops) if is_engine(name)}
    assert {
        "XlaSparseDenseMatmulGradWithAdagradAndCsrInput",
        "DynamicEnqueueTPUEmbeddingRaggedTensorBatch",
        "RetrieveTPUEmbeddingADAMParameters",
        "GetMinibatchesInCsrWithPhysicalReplica",
    } <= known | set(dir(gen_xla_ops))
    others = "MatMul ResourceGather SparseTensorDenseMatMul XlaDot TPUExecute"
    assert not any(map(is_engine, others.split()))


def _staged(step: Step, x: Any) -> None:
    ops.Stage(values=[x], container="", shared_name="kept")


def _staged_in_a_function(step: Step, x: Any) -> None:
    inner = tf.function(lambda value: _staged(step, value[0]))
    tf.function(lambda value: inner(2.0 * value))(x)


def _staged_in_a_branch(step: Step, x: Any) -> None:
    def stage() -> tf.Tensor:
        _staged(step, tf.constant(1.0))
        return tf.constant(0)

    tf.cond(x[0, 0] > 0, stage, lambda: tf.constant(0))


def _staged_by_way_of_a_variable(step: Step, x: Any) -> None:
    step.other.assign(x[0])
    _staged(step, step.other.read_value())


def _outfed(step: Step, x: Any) -> None:
    ops.OutfeedEnqueueTuple(inputs=[x])


SINKS = [
    ("before", _staged),
    ("before", _staged_in_a_branch),
    ("before", _staged_by_way_of_a_variable),
    ("before", _outfed),
    ("after", _staged),
    ("after", _staged_in_a_function),
    ("around", _staged),
    ("around", _staged_in_a_function),
]


@pytest.mark.parametrize(("place", "hand_over"), SINKS, ids=_name)
def test_what_has_no_variable_gets_no_examples(
    place: str, hand_over: Callable[[Step, Any], None]
) -> None:
    step = Step(**{place: hand_over})
    with pytest.raises(
        tsdp.NotSeparableError, match="none of its variables stands for"
    ) as error:
        step.run()
    assert "Take the operation out" in str(error.value)
    assert _untouched(step)


def test_functions_that_cannot_be_looked_into_get_no_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Library, "get", lambda *_: None)
    step = Step(before=lambda step, x: tf.function(tf.identity)(x))
    with pytest.raises(
        tsdp.NotSeparableError, match="none of its variables stands for"
    ):
        step.run()
    assert _untouched(step)


@pytest.mark.parametrize("place", ["before", "around"])
def test_public_values_may_go_anywhere_and_examples_may_be_shown(
    place: str, tmp_path: pathlib.Path
) -> None:
    def show(step: Step, x: Any) -> None:
        _staged(step, tf.constant(1.0))
        tf.function(lambda: _staged(step, step.read.read_value()))()
        tf.print(x, output_stream=f"file://{tmp_path / 'shown'}")
        tf.debugging.assert_less(x, 1e6)
        tf.io.write_file(str(tmp_path / "kept"), tf.strings.as_string(x[0, 0]))

    step = Step(**{place: show})
    step.run()
    assert step.optimizer.compositions_spent == 1
