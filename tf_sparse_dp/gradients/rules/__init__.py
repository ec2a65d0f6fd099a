"""Typing, factoring and lifting rules, one file per family of operations."""

from tf_sparse_dp.gradients.rules import (
    contractions,
    elementwise,
    lookups,
    loops,
    losses,
    masks,
    normalization,
    partitions,
    public_towers,
    reductions,
    scattered,
    segments,
    slicing,
    sources,
    structure,
)

__all__ = [
    "contractions",
    "elementwise",
    "lookups",
    "loops",
    "losses",
    "masks",
    "normalization",
    "partitions",
    "public_towers",
    "reductions",
    "scattered",
    "segments",
    "slicing",
    "sources",
    "structure",
]
