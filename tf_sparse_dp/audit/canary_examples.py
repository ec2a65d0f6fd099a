"""Examples that are made to be found again, and data with them at the end."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_sparse_dp.sampling.sources import RandomAccess
from tf_sparse_dp.sampling.structure import WEIGHT, filled, flattened


@dataclasses.dataclass(frozen=True)
class Field:
    """Where in the data an id stands.

    Attributes:
      feature: What the user calls it.
      leaf: Name of the array.
      column: Of the array, or None for all of it.
    """

    feature: Any
    leaf: str
    column: int | None = None

    def values(self, leaves: Mapping[str, np.ndarray]) -> np.ndarray:
        """All ids of the data in it, [examples, ids of each]."""
        array = leaves[self.leaf]
        if self.column is not None:
            array = array[:, self.column]
        return array.reshape(len(array), -1)

    def put(self, leaves: dict[str, np.ndarray], ids: np.ndarray) -> None:
        """Gives each example its id."""
        array = leaves[self.leaf]
        # Strings may be longer than those of the data.
        dtype = np.result_type(array, ids) if array.dtype.kind in "SU" else None
        array = array.astype(dtype or array.dtype)
        if self.column is not None:
            array[:, self.column] = ids
        else:
            array[:] = ids.reshape(-1, *[1] * (array.ndim - 1))
        leaves[self.leaf] = array


class Examples:
    """Data taken apart: `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Args:
      data: Arrays, or dicts and tuples of arrays, of one length.

    Raises:
      TypeError, ValueError: The data are of another form.
    """

    def __init__(self, data: Any):
        if isinstance(data, RandomAccess):
            raise TypeError(
                "The data is a RandomAccess, expected arrays, to which "
                "canaries can be added: (x, y). For an audit read a part of "
                "the data into memory."
            )
        self._x, self._y, leaves = flattened(data)
        self.leaves = {name: np.asarray(leaf) for name, leaf in leaves.items()}
        sizes = {len(a) if a.ndim else 0 for a in self.leaves.values()}
        if len(sizes) != 1 or not min(sizes):
            shapes = {name: a.shape for name, a in self.leaves.items()}
            raise ValueError(
                f"The data has arrays of shapes {shapes}, expected the same "
                "number of rows, at least one, in all of them. Several inputs "
                "go in a tuple or a dict; a list is read as one array."
            )
        self.size = sizes.pop()
        self.weights = self.leaves.pop(WEIGHT, np.ones(self.size, "float32"))

    def field(self, feature: Any) -> Field:
        """Where a feature stands.

        Raises:
          ValueError: There is no such feature.
        """
        if self._x == "x":  # A single array.
            if feature is None:
                return Field(feature, "x")
            width = self.leaves["x"].shape[1:2]
            if isinstance(feature, int) and width and 0 <= feature < width[0]:
                return Field(feature, "x", feature)
            choices: Any = f"None, or a column below {(*width, 0)[0]}"
        elif feature is not None:
            name = f"x[{feature!r}]"
            if name in self.leaves:
                return Field(feature, name)
            if feature in self.leaves:
                return Field(feature, feature)
        if self._x != "x":
            choices = [name for name in self.leaves if name.startswith("x")]
        raise ValueError(
            f"features names {feature!r}, expected what holds the ids on whose "
            f"rows canaries shall be alone, of {choices}. Name a key of the "
            "features, a place in their tuple, or a column of their array."
        )

    def taken(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Copies of some examples, by name of the array."""
        return {name: array[rows] for name, array in self.leaves.items()}

    def batch(
        self, leaves: Mapping[str, np.ndarray], weights: np.ndarray
    ) -> tuple[Any, Any, np.ndarray]:
        """Arrays in the form of the data: `(x, y, weight)`."""
        y = None if self._y is None else filled(self._y, leaves)
        return filled(self._x, leaves), y, weights

    def with_added(
        self, leaves: Mapping[str, np.ndarray], weights: np.ndarray
    ) -> tuple[Any, Any, np.ndarray]:
        """The data with other examples at the end."""
        joined = {
            name: np.concatenate([array, leaves[name]])
            for name, array in self.leaves.items()
        }
        return self.batch(joined, np.concatenate([self.weights, weights]))


def unused_ids(used: np.ndarray, table_rows: int, count: int) -> np.ndarray:
    """The last `count` row numbers of a table that data do not use.

    Raises:
      ValueError: There are fewer.
    """
    free = np.setdiff1d(np.arange(table_rows), used.ravel())
    if free.size < count:
        raise ValueError(
            f"The data leave {free.size} of the table's {table_rows} rows "
            f"unused, expected at least {count}, one for each canary. Make "
            f"the table larger by {count - free.size} rows, or take fewer "
            "canaries."
        )
    return free[free.size - count :]


def checked_ids(feature: Any, ids: Any, count: int) -> np.ndarray:
    """One id for each canary, from those that the user gave.

    Raises:
      ValueError: They are too few, or not different.
    """
    vector = np.asarray(ids)
    if vector.ndim != 1 or len(np.unique(vector[:count])) < count:
        raise ValueError(
            f"ids of {feature!r} are {vector.size} values of shape "
            f"{vector.shape}, expected a vector that begins with {count} "
            "different ones, one for each canary. Give more ids, or take "
            "fewer canaries."
        )
    return vector[:count]


def put_label(leaves: dict[str, np.ndarray], label: Any) -> None:
    """Gives all examples one label.

    Raises:
      ValueError: There is not one array of labels.
    """
    names = [name for name in leaves if name.startswith("y")]
    if len(names) != 1:
        raise ValueError(
            f"label is {label!r}, and the data have {len(names)} arrays of "
            "labels; expected one. Leave label out."
        )
    array = leaves[names[0]]
    leaves[names[0]] = np.broadcast_to(
        np.asarray(label, array.dtype), array.shape
    ).copy()


def flipped_coins(
    count: int, seed: int | None, random: np.random.Generator
) -> np.ndarray:
    """Fair coins, of the operating system unless a test asks for others."""
    if seed is not None:
        return random.random(count) < 0.5
    flipped = np.frombuffer(secrets.token_bytes(count), np.uint8)
    return (flipped & 1).astype(bool)
