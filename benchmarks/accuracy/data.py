"""What people liked, as examples to train on, to tune on and to test on."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np

from benchmarks.accuracy.metrics import Ranking

NAMES = ("goodbooks", "movietweetings", "gowalla")
# From which rating on something was liked, where it is not 4.
LIKED = {"movietweetings": 8}
RANKED_USERS = 1000


@dataclasses.dataclass(frozen=True)
class Examples:
    """Ids of rows, by table: [n] or [n, p]; and labels [n] or [n, p]."""

    ids: Mapping[str, np.ndarray]
    label: np.ndarray

    def __getitem__(self, index: np.ndarray | slice) -> Examples:
        ids = {name: value[index] for name, value in self.ids.items()}
        return Examples(ids, self.label[index])


@dataclasses.dataclass(frozen=True)
class Data:
    """Three parts of a data set.

    Args:
      name: What it is called in results.
      train, valid, test: Trained on, chosen a learning rate by, reported.
      tables: How many rows each table has.
      width: How many numbers a row of a table has, of which one is a bias.
      ranking: Users for whom all items are ranked, or None.
    """

    name: str
    train: Examples
    valid: Examples
    test: Examples
    tables: Mapping[str, int]
    width: int = 9
    ranking: Ranking | None = None

    @property
    def entries(self) -> int:
        """How many numbers all tables have: those of a dense gradient."""
        return self.width * sum(self.tables.values())


def read(path: pathlib.Path) -> Data:
    """What a file holds.

    Args:
      path: A file with arrays `user`, one of `item`, `book` and `movie`, and
        `rating`, of which a random 5 % are for tuning and another 5 % for
        testing; or with `train_user`, `train_item`, and the same for `valid`
        and `test`. An example of the second kind is a pair, and beside its item
        one at random.
    """
    with np.load(path) as file:
        arrays = {name: file[name] for name in file}
    if "rating" not in arrays:
        return _chosen(path.stem, arrays)
    name = next(n for n in ("item", "book", "movie") if n in arrays)
    user, item = (
        np.unique(arrays[n], return_inverse=True)[1] for n in ("user", name)
    )
    liked = arrays["rating"] >= LIKED.get(path.stem, 4)
    return _rated(path.stem, user, item, liked)


def _rated(
    name: str, user: np.ndarray, item: np.ndarray, label: np.ndarray
) -> Data:
    """Ratings in a random order that is always the same."""
    order = np.random.default_rng(1).permutation(len(user))
    ratings = Examples(
        {
            "users": user.astype(np.int32),
            "items": item.astype(np.int32)[:, None],
        },
        label.astype(np.float32)[:, None],
    )[order]
    part = len(user) // 20
    return Data(
        name,
        train=ratings[2 * part :],
        valid=ratings[part : 2 * part],
        test=ratings[:part],
        tables={"users": int(user.max()) + 1, "items": int(item.max()) + 1},
    )


def _chosen(name: str, arrays: Mapping[str, np.ndarray]) -> Data:
    parts = ("train", "valid", "test")
    users, items = (
        int(max(arrays[f"{part}_{kind}"].max() for part in parts)) + 1
        for kind in ("user", "item")
    )
    examples = {}
    for seed, part in enumerate(parts):
        item = arrays[f"{part}_item"].astype(np.int32)
        other = np.random.default_rng(seed).integers(1, items, len(item))
        other = ((item + other) % items).astype(np.int32)
        label = np.tile(np.float32([1, 0]), (len(item), 1))
        user = arrays[f"{part}_user"].astype(np.int32)
        pair = np.stack([item, other], 1)
        examples[part] = Examples({"users": user, "items": pair}, label)
    ranking = Ranking.of(
        (arrays["train_user"], arrays["train_item"]),
        (arrays["test_user"], arrays["test_item"]),
        RANKED_USERS,
    )
    tables = {"users": users, "items": items}
    return Data(name, **examples, tables=tables, ranking=ranking)
