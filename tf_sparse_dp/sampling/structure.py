"""Nested data taken apart into named arrays, and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WEIGHT = "sample_weight"
"""The name of the column of weights."""


def flattened(data: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The structures of x and y, and what they and the weights consist of."""
    if not isinstance(data, tuple) or not 1 <= len(data) <= 3:
        raise TypeError(
            f"The data is a {type(data).__name__}, expected a tuple (x,), "
            "(x, y) or (x, y, sample_weight). Pass features without labels "
            "as (x,)."
        )
    x, y, weight = (*data, None, None)[:3]
    leaves: dict[str, Any] = {}
    x_structure = _named(x, "x", leaves)
    if not leaves:
        raise ValueError("x holds no arrays, expected at least one. Fill it.")
    y_structure = None if y is None else _named(y, "y", leaves)
    if weight is not None:
        leaves[WEIGHT] = weight
    return x_structure, y_structure, leaves


def _named(tree: Any, name: str, leaves: dict[str, Any]) -> Any:
    """Moves the leaves of a tree to `leaves`, and leaves their names behind."""
    if isinstance(tree, Mapping):
        return {
            k: _named(tree[k], f"{name}[{k!r}]", leaves) for k in sorted(tree)
        }
    if isinstance(tree, tuple):
        parts = [_named(v, f"{name}[{i}]", leaves) for i, v in enumerate(tree)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    leaves[name] = tree
    return name


def filled(structure: Any, named: Mapping[str, Any]) -> Any:
    """The tree with the leaves back in place of their names."""
    if isinstance(structure, dict):
        return {k: filled(v, named) for k, v in structure.items()}
    if isinstance(structure, tuple):
        parts = [filled(v, named) for v in structure]
        named_tuple = hasattr(structure, "_fields")
        return type(structure)(*parts) if named_tuple else tuple(parts)
    return named[structure]
