"""Which tensors of a traced step are the batch of the replica at hand.

Replicas are traced one after another into one graph, which has the batches of
all of them. A unit is clipped once only if no two replicas see its rows; and
rows are examples only if a replica sees no rows but its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.distribute import replicas
from tf_sparse_dp.errors import NotSeparableError
from tf_sparse_dp.gradients.effects import REPLICATED
from tf_sparse_dp.gradients.precision import is_for_tpu
from tf_sparse_dp.gradients.separation import Separation

_NOT_ITS_OWN = (
    "One of {} replicas sees rows of a batch that are not, or not only, its "
    "own: then an example could count more than once. Expected each replica to "
    "be given its part of the batch, and to compute its gradients from that "
    "alone. Pass to strategy.run what comes from a distributed data set "
    "(strategy.experimental_distribute_dataset), and share nothing of the "
    "batch between replicas in the forward pass."
)


def iterator_of(separation: Separation) -> str | None:
    """What a replica takes its batch from; None for arguments.

    Each replica must have one of its own: two that take from one iterator see
    one batch, or two draws.
    """
    op = separation.analysis.roots[0].op
    if op.type == "Placeholder":
        return None
    while op.inputs:
        op = op.inputs[0].op
    return op.name


def check_iterators(iterators: Sequence[str | None]) -> None:
    """Refuses replicas that take their batches from one iterator.

    Raises:
      NotSeparableError: If so.
    """
    known = [name for name in iterators if name is not None]
    if len(set(known)) < len(known):
        raise NotSeparableError(_NOT_ITS_OWN.format(replicas.local_place()[1]))


def own_inputs(separation: Separation) -> list[tf.Tensor]:
    """All tensors of this replica's batch.

    A batch that comes as arguments comes as one tensor for each replica, in
    their order, then the next, and so on: tf.function takes distributed values
    apart in this way. A batch out of an iterator is what one operation gives,
    and each replica has an iterator of its own (`check_iterators`). Where one
    tensor is passed to all replicas, it stands where only one of them finds it
    its own. Replicas of a TPU are traced once for all: each of their tensors
    stands for one per replica, which are looked at together.

    Raises:
      NotSeparableError: If gradients see anything else of a batch, or features
        are ragged or sparse.
    """
    place, number = replicas.local_place()
    on_tpu = is_for_tpu()
    in_all = replicas.count()
    number = in_all if on_tpu else number
    if in_all == 1:
        return separation.inputs
    analysis = separation.analysis
    if analysis.ragged or _has_other_specs(analysis.graph):
        raise NotSeparableError(
            f"The batch has ragged or sparse features, and {in_all} replicas "
            "share it; expected dense features. Pad them to a fixed public "
            "length, or train on one device."
        )
    if number == 1:
        return separation.inputs
    source = analysis.roots[0].op
    if on_tpu:
        own = [t for t in separation.inputs if t.op.type == REPLICATED]
        whole = _are_apart(own, _places(separation), number)
    elif source.type == "Placeholder":
        arguments = [t for t in separation.inputs if t.op.type == "Placeholder"]
        own = arguments[place::number]
        whole = len(arguments) % number == 0
    else:
        own = [t for t in separation.inputs if t.op.name == source.name]
        whole = True
    names = {tensor.name for tensor in own}
    if not whole or any(root.name not in names for root in analysis.roots):
        raise NotSeparableError(_NOT_ITS_OWN.format(number))
    return own


def _places(separation: Separation) -> dict[str, int]:
    """Where arguments stand, by the names of their operations."""
    analysis = separation.analysis
    arguments = [
        op.name
        for op in analysis.graph.get_operations()
        if op.type == "Placeholder"
        and op.outputs[0].dtype != tf.resource
        and not analysis.is_captured(op.outputs[0])
    ]
    return {name: place for place, name in enumerate(arguments)}


def _are_apart(
    handed_over: Sequence[tf.Tensor], places: dict[str, int], number: int
) -> bool:
    """Whether each replica of a TPU is handed a batch that is its own."""
    sources: list[set[int | str]] = [set() for _ in range(number)]
    for tensor in handed_over:
        if len(tensor.op.inputs) != number:
            return False
        for source, part in zip(sources, tensor.op.inputs, strict=True):
            op = part.op
            while op.inputs:  # Of what an iterator gives, the iterator.
                op = op.inputs[0].op
            is_argument = op is part.op and op.name in places
            source.add(places[op.name] % number if is_argument else op.name)
    if any(isinstance(name, int) for source in sources for name in source):
        return len(places) % number == 0 and sources == [
            {place} for place in range(number)
        ]
    alone = all(len(source) == 1 for source in sources)
    return alone and len(set().union(*sources)) == number


def _has_other_specs(graph: tf.Graph) -> bool:
    """Whether an argument is neither a tensor nor one for each replica."""
    for spec in tf.nest.flatten(graph.structured_input_signature):
        parts = getattr(spec, "_value_specs", [spec])
        for part in tf.nest.flatten(parts):
            if isinstance(part, tf.RaggedTensorSpec | tf.SparseTensorSpec):
                return True
    return False
