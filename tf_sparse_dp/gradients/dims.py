"""Arithmetic of sizes that may be multiples of the batch size."""

from __future__ import annotations

from collections.abc import Sequence

from tf_sparse_dp.gradients.types import (
    BatchMultiple,
    BatchPlusOne,
    DataSize,
    Dim,
)


def multiply(a: Dim, b: Dim) -> Dim:
    """Product of two sizes; None where it is not a multiple of B."""
    if a == 0 or b == 0:
        return 0
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(a, int):
        a, b = b, a
    if not isinstance(b, int):
        return None
    if isinstance(a, BatchMultiple):
        return BatchMultiple(a.per_example * b)
    if isinstance(a, DataSize):
        return DataSize(a.of, a.times * b)
    return a if b == 1 else None


def divide(a: Dim, b: Dim) -> Dim:
    """Quotient of two sizes when it is exact for every B, else None."""
    if a is None or b is None or b == 0:
        return None
    if b == 1:
        return a
    if isinstance(a, BatchPlusOne) or isinstance(b, BatchPlusOne):
        return 1 if a == b else None
    if isinstance(a, DataSize) or isinstance(b, DataSize):
        return _divide_data(a, b)
    if isinstance(a, BatchMultiple):
        size = b.per_example if isinstance(b, BatchMultiple) else b
        if a.per_example % size:
            return None
        quotient = a.per_example // size
        return (
            quotient
            if isinstance(b, BatchMultiple)
            else BatchMultiple(quotient)
        )
    if isinstance(b, BatchMultiple) or a % b:
        return None
    return a // b


def _divide_data(a: Dim, b: Dim) -> Dim:
    if not isinstance(a, DataSize):
        return None
    if isinstance(b, DataSize):
        if a.of != b.of or a.times % b.times:
            return None
        return a.times // b.times
    if not isinstance(b, int) or a.times % b:
        return None
    return DataSize(a.of, a.times // b)


def product(dims: Sequence[Dim]) -> Dim:
    """Product of sizes."""
    result: Dim = 1
    for dim in dims:
        result = multiply(result, dim)
    return result


def broadcast(left: Sequence[Dim], right: Sequence[Dim]) -> list[Dim]:
    """The broadcast of two shapes; None entries where it is not known."""
    rank = max(len(left), len(right))
    left = [1] * (rank - len(left)) + list(left)
    right = [1] * (rank - len(right)) + list(right)
    return [
        b if a == 1 else a if b == 1 or a == b else None
        for a, b in zip(left, right, strict=True)
    ]
