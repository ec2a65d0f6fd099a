"""Typing, factoring and lifting rules, one file per family of operations."""

from tf_sparse_dp.gradients.rules import (
    contractions,
    elementwise,
    lookups,
    loops,
    losses,
    normalization,
    public_towers,
    reductions,
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
    "normalization",
    "public_towers",
    "reductions",
    "slicing",
    "sources",
    "structure",
]
