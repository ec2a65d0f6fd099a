"""What TensorFlow offers to nobody but itself, kept in one place.

Looking into functions, changing a graph while it is traced, and hearing of
the end of tracing have no public interface. These parts of TensorFlow are the
same from 2.16 to 2.21; a version without them fails here, on import or while
tracing, and trains nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils, op_def_registry
from tensorflow.python.framework.function_def_to_graph import (
    function_def_to_graph_def,
)
from tensorflow.python.ops import control_flow_util
from tensorflow.python.saved_model import save_context

_ELSEWHERE = (
    "keras.src.export",
    "tf_keras.src.export",
    "tensorflow.python.data.ops.structured_function",
)


def body(definition: Any) -> tuple[list[Any], list[str]]:
    """A function's nodes, arguments among them, and names of its returns.

    Tensors have names as in graphs: those in the definition count the outputs
    of an operation by argument.
    """
    graph_def, flat_names = function_def_to_graph_def(definition)
    returns = [
        flat_names[definition.ret[arg.name]]
        for arg in definition.signature.output_arg
    ]
    return list(graph_def.node), returns


def is_known(op_type: str) -> bool:
    """Whether there is an operation of this type."""
    return op_def_registry.get(op_type) is not None


def has_state(op_type: str) -> bool:
    """Whether an operation may have side effects or see those of others."""
    op_def = op_def_registry.get(op_type)
    return op_def is None or op_def.is_stateful


def has_outputs(op_type: str) -> bool:
    """Whether an operation gives anything."""
    op_def = op_def_registry.get(op_type)
    return op_def is None or len(op_def.output_arg) > 0


@functools.cache
def may_call(op_type: str) -> bool:
    """Whether operations of a type can call functions."""
    op_def = op_def_registry.get(op_type)
    kinds = ("func", "list(func)")
    return op_def is None or any(a.type in kinds for a in op_def.attr)


@functools.cache
def may_take_resources(op_type: str) -> bool:
    """Whether operations of a type can have variables or tables as inputs."""
    op_def = op_def_registry.get(op_type)
    if op_def is None:
        return True
    resource = tf.resource.as_datatype_enum
    attributes = {attribute.name: attribute for attribute in op_def.attr}
    for arg in op_def.input_arg:
        name = arg.type_attr or arg.type_list_attr
        if not name:
            if arg.type == resource:
                return True
            continue
        allowed = attributes[name].allowed_values.list.type
        if not allowed or resource in allowed:
            return True
    return False


def takes_resources(node: Any) -> bool:
    """Whether an operation has a variable or a table among its inputs."""
    op_def = op_def_registry.get(node.op)
    if op_def is None:
        return True
    types = [arg.type for arg in op_def.input_arg]
    for arg in op_def.input_arg:
        attribute = node.attr[arg.type_attr or arg.type_list_attr]
        types += [attribute.type, *attribute.list.type]
    return tf.resource.as_datatype_enum in types


def use_instead(op: tf.Operation, old: tf.Tensor, new: tf.Tensor) -> None:
    """Gives an operation a new input in place of an old one."""
    for index, tensor in enumerate(op.inputs):
        if (tensor.op.name, tensor.value_index) == (
            old.op.name,
            old.value_index,
        ):
            op._update_input(index, new)


def read_after(op: tf.Operation, call: tf.Operation) -> None:
    """Lets a read wait for `call`, and for no other user of its variable.

    TensorFlow orders the users of a variable by when they were traced. A read
    that was copied out of a call was traced last but belongs where the call
    is: what was written in between may be computed from the copy.
    """
    written = any(
        tensor
        in auto_control_deps_utils.get_read_write_resource_inputs(user)[1]
        for tensor in op.inputs
        if tensor.dtype == tf.resource
        for user in tensor.consumers()
    )
    manager = op.graph.experimental_acd_manager
    if written and manager is not None:
        manager.run_independently(op)
        op._add_control_input(call)


def is_traced(graph: Any) -> bool:
    """Whether a graph is one of a function that is being traced."""
    return getattr(graph, "_scope_exit_callbacks", None) is not None


def when_traced(graph: tf.Graph, check: Callable[[], None]) -> None:
    """Calls `check` when tracing of the graph ends; it may raise."""
    graph._add_scope_exit_callback(check)


def is_compiled(graph: tf.Graph) -> bool:
    """Whether XLA will compile the graph, as `jit_compile=True` asks for."""
    found: bool = control_flow_util.GraphOrParentsInXlaContext(graph)
    return found


def is_saved_only() -> bool:
    """Whether what is traced goes into a SavedModel and is not run here."""
    return not tf.executing_eagerly() and save_context.in_save_context()


def is_run_elsewhere() -> bool:
    """Whether this is traced for Keras' export, or for threads of tf.data.

    Neither says so to anybody, hence the look at who is calling. What is traced
    may still be run in this process.
    """
    if tf.executing_eagerly():
        return False
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_ELSEWHERE):
            return True
        frame = frame.f_back
    return False
