"""Which tensors repeat one row: the gradient of a sum or mean over lookups.

Pooling hands the same gradient to every lookup of an example. Norms are
cheaper then. What is not recognised is only slower.
"""

from __future__ import annotations

import tensorflow as tf

_RESHAPES = frozenset({"Reshape", "Identity", "EnsureShape"})
_KEEPS = frozenset({"Cast", "Neg"})
_SCALES = frozenset({"Mul", "RealDiv"})


def repeats_rows(values: tf.Tensor) -> bool:
    """Whether values[b, l] is proven to be values[b, 0], for all b and l.

    Args:
      values: A tensor [B, L, width], L and width known while tracing.
    """
    if not tf.is_symbolic_tensor(values) or values.shape.rank != 3:
        return False
    rows = values.shape[1:]
    if not rows.is_fully_defined():
        return False
    tensor = values
    while True:
        # Whatever lies between two tensors [*, L, width], reshapes keep the
        # order of entries, so the first is the second.
        source = _before_reshapes(tensor)
        if source.shape.rank != 3 or source.shape[1:] != rows:
            return False
        op = source.op
        if op.type in ("Tile", "BroadcastTo"):
            copied = op.inputs[0].shape
            return copied.rank == 3 and copied[1] == 1
        by_scalar = op.type in _SCALES and op.inputs[1].shape.rank == 0
        if op.type not in _KEEPS and not by_scalar:
            return False
        tensor = op.inputs[0]


def _before_reshapes(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type in _RESHAPES:
        tensor = tensor.op.inputs[0]
    return tensor
