"""Which operations with state do what."""

from __future__ import annotations

# Read a variable or a table and leave it as it is.
READS = frozenset(
    "ReadVariableOp ResourceGather ResourceGatherNd VariableShape "
    "VarIsInitializedOp LookupTableFindV2 LookupTableSizeV2".split()
)
# Draw random numbers.
RANDOM = frozenset(
    "RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal "
    "RngReadAndSkip StatefulUniform StatefulStandardNormalV2 "
    "StatefulTruncatedNormal StatefulUniformInt "
    "StatefulUniformFullInt".split()
)
# Give no example data when their inputs hold none, and may run twice.
HARMLESS = READS | RANDOM
# Tell somebody, or stop the step. What they tell is not private, and is no
# part of a model.
TELLING = frozenset({"Assert", "PrintV2", "WriteFile"})
# Hand the batch to the graph.
ITERATORS = frozenset({"IteratorGetNext", "IteratorGetNextSync"})
OPTIONALS = frozenset({"OptionalGetValue"})
# Hands each replica of a TPU its own of the inputs, one for each replica.
REPLICATED = "TPUReplicatedInput"
BATCHES = (
    ITERATORS | OPTIONALS | {"IteratorGetNextAsOptional", "OptionalHasValue"}
)
# Call one function, once, with their inputs as its arguments.
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# Do nothing but what the functions do that they call.
FLOW = CALLS | frozenset(
    "If StatelessIf While StatelessWhile Case StatelessCase".split()
)
# What an optimizer of this library writes is private, hence free. It writes in
# a branch of this name.
PRIVATE_UPDATE = "tf_sparse_dp_update"
# Gives rows of a table that are about to be read the noise that they lack. What
# a row then holds does not depend on who reads it: `layers.pending_noise`.
PENDING_NOISE = "tf_sparse_dp_pending_noise"
# Python code, files and other calls may give anything, whatever the inputs
# are, although TensorFlow takes some of these for free of state.
OUTSIDE = frozenset(
    "PyFunc PyFuncStateless EagerPyFunc ReadFile MatchingFiles "
    "GetElementAtIndex Batch Unbatch".split()
)


def is_private_update(op_type: str, name: str) -> bool:
    """Whether an operation is the branch in which an optimizer writes."""
    return _is_branch(op_type, name, PRIVATE_UPDATE)


def is_pending_noise(op_type: str, name: str) -> bool:
    """Whether an operation is the branch in which a table gets its noise."""
    return _is_branch(op_type, name, PENDING_NOISE)


def _is_branch(op_type: str, name: str, wanted: str) -> bool:
    in_scope = name.split("/")[-1].startswith(wanted)
    return in_scope and op_type in ("If", "StatelessIf")
