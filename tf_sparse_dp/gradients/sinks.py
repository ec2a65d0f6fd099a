"""Where data leave a step by no variable: embedding hardware, queues, hosts.

Embedding hardware of TPUs holds tables that are no variables of the model, or
none that an optimizer is asked to train. Taking the gradient of a layer that
uses it sends gradients there, and the hardware updates its tables by an
optimizer of its own. Such an update is neither clipped nor noisy nor paid for,
and it is done whether or not the private step is taken.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients import internals, state
from tf_sparse_dp.gradients.functions import Library

# By parts of names, so that operations of later versions are among them.
_ENGINES = ("TPUEmbedding", "SparseCore", "XlaSparse", "Minibatch")
_REMEDY = (
    "Have the layer do without: TPUEmbedding(..., embedding_feature=tf.tpu."
    "experimental.HardwareFeature.EmbeddingFeature.UNSUPPORTED), or "
    "TableConfig(..., placement='default_device') for DistributedEmbedding; or "
    "use keras.layers.Embedding or tf_sparse_dp.layers.LazyEmbedding. Why "
    "there is no private way yet is in docs/tpu.md."
)


@functools.cache
def is_engine(op_type: str) -> bool:
    """Whether operations of a type use embedding hardware of a TPU."""
    return any(part in op_type for part in _ENGINES)


def check_engines(graph: tf.Graph, library: Library) -> None:
    """Refuses a graph that uses embedding hardware, be it to look up rows.

    Raises:
      NotSeparableError: With the reason.
    """
    for op in graph.get_operations():
        kinds = [op.type]
        if internals.may_call(op.type) and not state.is_private(
            op.type, op.name
        ):
            below = state.nodes_below(state.called_by(op.node_def), library)
            # What cannot be looked into counts as a sink: `state`.
            kinds += [node.op for node in below or []]
        for kind in filter(is_engine, kinds):
            raise _refusal(
                f"The step uses embedding hardware of a TPU (operation "
                f"'{op.name}', {kind}), as TPUEmbedding of TensorFlow "
                "Recommenders and DistributedEmbedding of Keras Recommenders "
                "do where there is any. Such hardware trains its tables by "
                "itself, from gradients that nobody clips, and without noise; "
                "expected tables that are trainable variables of the model.",
                _REMEDY,
                op.name,
            )


def refused_sink(operation: str, kind: str, reason: str) -> NotSeparableError:
    """What is wrong with handing example data over, and what to do."""
    return _refusal(
        "The step hands example data to something that none of its variables "
        f"stands for (operation '{operation}', {kind}: {reason}). Whatever "
        "learns from them there gets no noise.",
        "Take the operation out of the training step. To look at data, "
        "tf.print, tf.summary and metrics may stay; what they show is not "
        "private.",
        operation,
    )


def _refusal(reason: str, remedy: str, operation: str) -> NotSeparableError:
    error = NotSeparableError(f"{reason} Nothing was trained. {remedy}")
    error.reason, error.remedy, error.operation = reason, remedy, operation
    return error
