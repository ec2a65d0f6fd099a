"""A training step as TPUStrategy traces it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tools.tpu_check.cases import Case, Size, batch, compiled_model
from tools.tpu_check.lifting import lifted

_HANDED_OVER = "TPUReplicatedInput"
_BRIDGE = "tf-replicated-clustering-bridge-v2"


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """A step on some TPU cores.

    Attributes:
      function: The concrete function that the host would run.
      values: What each replica gets: its number, and its part of the batch.
      variables: What each variable of the step holds, in its order.
      trained: Places of the model's trainable variables among them.
      equal: Places of those of which all replicas have the same copy.
      root: The place of the key of all noise.
    """

    function: Any
    values: list[list[np.ndarray]]
    variables: list[np.ndarray]
    trained: list[int]
    equal: list[int]
    root: int

    def check_bridge(self) -> None:
        """Runs TensorFlow's TPU bridge over the function.

        Raises:
          tf.errors.OpError: Naming the operation that TPUs do not have.
        """
        module = tf.mlir.experimental.convert_function(
            self.function, pass_pipeline="tf-standard-pipeline"
        )
        clustered = tf.mlir.experimental.run_pass_pipeline(module, _BRIDGE)
        if "tf_device.cluster" not in clustered:
            raise RuntimeError(
                "The bridge made no cluster of the step, so that it checked "
                "nothing. Is it traced within strategy.run?"
            )

    def lowered(self) -> str:
        """The replica's program as StableHLO, by the kernels for TPUs.

        Its arguments are the values and the variables; its results what the
        variables hold then.

        Raises:
          tf.errors.OpError: Naming the operation that TPUs do not have.
        """
        graph = self.function.graph
        inputs = [
            op.outputs[0]
            for op in graph.get_operations()
            if op.type == _HANDED_OVER and op.outputs[0].dtype != tf.resource
        ]
        body = [
            op
            for op in graph.get_operations()
            if "_tpu_replicate" in op.node_def.attr
        ]
        step = tf.function(
            lifted(body, inputs, list(_handles(self.function).values())),
            jit_compile=True,
            autograph=False,
        )
        specs = [
            tf.TensorSpec(value.shape, value.dtype)
            for value in (*self.values[0], *self.variables)
        ]
        step.get_concrete_function(*specs)
        return step.experimental_get_compiler_ir(*specs)(
            stage="stablehlo", platform_name="TPU"
        )


def traced(
    strategy: tf.distribute.Strategy,
    case: Case,
    size: Size,
    noise: float,
    also: Callable[[Any], Any] | None = None,
    variables: Sequence[Any] = (),
) -> TracedStep:
    """Traces the training step of a model that is compiled under a strategy.

    Args:
      strategy: See `tpu_strategy_of`; of as many replicas as the case has.
      case: What to train with.
      size: Of the table and of each replica's part of a batch.
      noise: The noise multiplier.
      also: Called with the batch, within the step; for what does not belong.
      variables: That it uses.
    """
    made: list[Any] = list(variables)

    def remembered(next_creator: Any, **kwargs: Any) -> Any:
        made.append(next_creator(**kwargs))
        return made[-1]

    with strategy.scope(), tf.variable_creator_scope(remembered):
        model = compiled_model(case, size, noise)

    def train_step(data: Any) -> Any:
        logs = model.train_step(data)
        return logs if also is None else (logs, also(data))

    def step(*parts: Any) -> Any:
        # As tf.function takes apart what Keras gets from a data set.
        per_replica = strategy.experimental_distribute_values_from_function(
            lambda context: tuple(
                part[context.replica_id_in_sync_group] for part in parts
            )
        )
        return strategy.run(train_step, args=(per_replica,))

    replicas = strategy.num_replicas_in_sync
    values = [np.split(value, replicas) for value in batch(case, size)]
    specs = [
        [tf.TensorSpec(part.shape, part.dtype) for part in parts]
        for parts in values
    ]
    # Else what TPUs lack is left to the host, at every step, and nobody told.
    tf.config.set_soft_device_placement(False)
    try:
        function = tf.function(step, autograph=False).get_concrete_function(
            *specs
        )
    finally:
        tf.config.set_soft_device_placement(True)
    by_handle = {id(handle): v for v in made for handle in _all_handles(v)}
    for variable in function.graph.variables:
        by_handle.setdefault(id(variable.handle), variable)
    names = []
    arrays = []
    equal = []
    for outer in _handles(function):
        if outer not in by_handle:
            raise RuntimeError(
                "The step uses a variable that was not made in the strategy's "
                f"scope: {function.graph.captures}"
            )
        variable = by_handle[outer]
        if variable.synchronization != tf.VariableSynchronization.ON_READ:
            equal.append(len(names))
        names.append(id(variable))
        arrays.append(_first(variable).numpy())
    trained = [names.index(id(_raw(v))) for v in model.trainable_variables]
    handed = [
        [np.array(place, np.int32), *(parts[place] for parts in values)]
        for place in range(replicas)
    ]
    root = names.index(id(model.optimizer.private_step.keys._root))
    return TracedStep(function, handed, arrays, trained, equal, root)


def _handles(function: Any) -> dict[int, list[tf.Tensor]]:
    """The tensors of a function that stand for each variable it captures."""
    found: dict[int, list[tf.Tensor]] = {}
    for outer, inner in function.graph.captures:
        if outer.dtype != tf.resource:
            raise RuntimeError(
                f"The step captures {outer}, which would be a constant of the "
                "program: expected arguments and variables only."
            )
        users = [op for op in inner.consumers() if op.type == _HANDED_OVER]
        tensors = [inner, *(op.outputs[0] for op in users)]
        found.setdefault(id(outer), []).extend(tensors)
    return found


def _all_handles(variable: Any) -> list[Any]:
    """Of a variable, also one with a copy on each core."""
    packed = getattr(variable, "_packed_var", None)
    if packed is not None:
        return [packed.packed_handle]
    copies = getattr(variable, "values", None)
    return [copy.handle for copy in copies or [variable]]


def _first(variable: Any) -> Any:
    """A copy; those that are added up on reading cannot be read here."""
    return getattr(variable, "values", [variable])[0]


def _raw(variable: Any) -> Any:
    """What Keras wraps."""
    return getattr(variable, "_value", variable)
