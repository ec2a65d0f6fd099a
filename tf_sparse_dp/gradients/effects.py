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
# Hand the batch to the graph.
ITERATORS = frozenset({"IteratorGetNext", "IteratorGetNextSync"})
OPTIONALS = frozenset({"OptionalGetValue"})
BATCHES = (
    ITERATORS | OPTIONALS | {"IteratorGetNextAsOptional", "OptionalHasValue"}
)
# Call one function, once, with their inputs as its arguments.
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# What an optimizer of this library writes is private, hence free.
PRIVATE_UPDATE = "tf_sparse_dp_update"
# Python code may give anything, whatever its inputs are.
PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
