"""What is refused where several replicas take a step, or could."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_dp.distribute import replicas
from tf_sparse_dp.gradients.internals import is_compiled
from tf_sparse_dp.gradients.precision import is_for_tpu
from tf_sparse_dp.local_variable import TPU_STRATEGIES
from tf_sparse_dp.sampling.workers import Share, current_share

_IN_SYNC = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    *TPU_STRATEGIES,
)


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Refuses strategies under which nobody has shown a step to be private.

    Raises:
      ValueError: With the reason.
    """
    # Workers of a parameter server are not in sync, so it counts one replica;
    # but they would write the counts over each other.
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        found = "asynchronous workers"
    elif isinstance(strategy, TPU_STRATEGIES) and not _is_simple(strategy):
        found = "several or other hosts, or several cores for each replica,"
    elif not tf.distribute.has_strategy() or isinstance(strategy, _IN_SYNC):
        return
    else:
        number = strategy.num_replicas_in_sync
        found = f"{number} replica{'' if number == 1 else 's'}"
    raise ValueError(
        f"The training step runs on {found} of {type(strategy).__name__}; "
        "expected one device, or the replicas of a "
        "tf.distribute.MirroredStrategy, MultiWorkerMirroredStrategy or "
        "TPUStrategy. Use one of these, or compile the model outside of the "
        "distribution strategy's scope."
    )


def _is_simple(strategy: Any) -> bool:
    """Whether a TPU has one host, which deals out one draw of each batch.

    Several hosts would each draw a batch of their own. And replicas of several
    cores are not checked: XLA would have to split up what one of them does.
    """
    cores = strategy.extended.num_replicas_per_host
    host = tf.DeviceSpec.from_string(strategy.extended._host_device)
    return (
        strategy.extended.num_hosts == 1
        # Elsewhere, whoever compiles has a switch for precision of its own.
        and host.job == "localhost"
        and cores == strategy.num_replicas_in_sync
        and strategy.extended._tpu_devices.shape[1] == 1
    )


def check_share(made: Share) -> None:
    """Refuses an optimizer that was made for another number of workers.

    Args:
      made: The share of the process when it was made.

    Raises:
      ValueError: If so.
    """
    now = current_share()
    if now != made:
        raise ValueError(
            f"DPSparseOptimizer was made as worker {made.worker} of "
            f"{made.workers}, and takes a step as worker {now.worker} of "
            f"{now.workers}. Make it within `with strategy.scope():` of the "
            "strategy that runs the step."
        )


def check_variables(
    variables: Sequence[Any], local: Sequence[Any] = ()
) -> None:
    """Refuses variables of which replicas have no copies.

    Args:
      variables: Of the model and the optimizers.
      local: Those that have copies on TPUs only: see `local_variable`.

    Raises:
      ValueError: With the reason.
    """
    strategy = tf.distribute.get_strategy()
    on_tpu = isinstance(strategy, TPU_STRATEGIES)
    if not (replicas.has_copies() or on_tpu):
        return
    for variable in (*variables, *(local if on_tpu else ())):
        native = getattr(variable, "value", variable)
        native = variable if callable(native) else native
        if not strategy.extended.variable_created_in_scope(native):
            raise ValueError(
                f"The variable {variable.name!r} was not made in the scope of "
                "the distribution strategy that runs the step. Make the model "
                "and both optimizers, the inner one too, within "
                "`with strategy.scope():`."
            )


def check_step(
    lazy: Sequence[str],
    sampling: Any,
    in_parts: bool,
    spent_before: Sequence[float] = (),
) -> None:
    """Refuses steps that are made for a device without a strategy.

    Args:
      lazy: Names of tables that get their noise when they are read.
      sampling: The plan's sampling; None without a plan.
      in_parts: Whether its batches consist of parts with noise of their own.
      spent_before: What the mechanism cost before training.

    Raises:
      ValueError: With the reason.
    """
    on_tpu = is_for_tpu()
    if not (replicas.has_copies() or (on_tpu and replicas.count() > 1)):
        return
    workers = current_share().workers
    if not on_tpu and is_compiled(tf.compat.v1.get_default_graph()):
        found, remedy = "XLA compiles the step", "pass jit_compile=False"
    elif in_parts:
        found = f"batches of {type(sampling).__name__} consist of parts"
        remedy = "use PoissonSampling"
    elif lazy:
        found = (
            f"'{lazy[0]}' is a table of LazyEmbedding, whose rows get their "
            "noise when one device reads them"
        )
        remedy = "use keras.layers.Embedding"
    elif workers > 1 and any(spent_before):
        found = (
            "its mechanism made a private choice before training, which each "
            f"of {workers} workers did by itself, and one is accounted for"
        )
        remedy = (
            "choose once, elsewhere, pass to all workers what was chosen, and "
            "add the cost to the statement"
        )
    elif sampling is not None and getattr(sampling, "workers", 1) != workers:
        found = (
            f"{workers} workers take it, but {type(sampling).__name__} is not "
            "made for that number: processes that draw or shuffle by "
            "themselves could train on one example twice in a step"
        )
        remedy = (
            f"use PoissonSampling or UserSampling with workers={workers}, and "
            "call its dataset(...) within the scope"
        )
    else:
        return
    strategy = type(tf.distribute.get_strategy()).__name__
    if replicas.processes.are_several():
        strategy = "MultiWorkerMirroredStrategy"
    raise ValueError(
        f"The step runs under {strategy}, and {found}. Expected something "
        f"else there: {remedy}; or make the model outside of the strategy's "
        "scope, for one device."
    )
