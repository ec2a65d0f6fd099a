"""What people visited one after another, generated or read from a file."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

ITEM_NAMES = ("item", "movie", "book")
NOTHING = 0  # Stands in a history that is shorter than others.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visits:
    """Items, each with those that the same person visited just before.

    Args:
      history: Ids of the last few items, [n, h]; `NOTHING` where there is none.
      item: The id that came next, [n]; from 1 on.
      num_items: Number of ids, `NOTHING` included. The tables have as many
        rows, so it is released and must be public knowledge.
      synthetic: True if no person is behind the data.
    """

    history: np.ndarray
    item: np.ndarray
    num_items: int
    synthetic: bool = False

    def __len__(self) -> int:
        return len(self.item)

    def rows(self, index: np.ndarray) -> Visits:
        return dataclasses.replace(
            self, history=self.history[index], item=self.item[index]
        )


def in_order(
    user: np.ndarray, item: np.ndarray, length: int, synthetic: bool
) -> tuple[Visits, Visits]:
    """Visits to train on, and everybody's last one, from a time-ordered log."""
    order = np.argsort(user, kind="stable")
    user, item = user[order], item[order].astype("int32")
    history = np.full((len(item), length), NOTHING, "int32")
    for lag in range(1, length + 1):
        same = user[lag:] == user[:-lag]
        history[lag:, lag - 1] = np.where(same, item[:-lag], NOTHING)
    log = Visits(
        history=history,
        item=item,
        num_items=int(item.max()) + 1,
        synthetic=synthetic,
    )
    begun = history[:, 0] != NOTHING
    last = np.append(user[1:] != user[:-1], True)
    return (
        log.rows(np.flatnonzero(begun & ~last)),
        log.rows(np.flatnonzero(begun & last)),
    )


def load(path: pathlib.Path, length: int = 5) -> tuple[Visits, Visits]:
    """Reads arrays `user`, `item` (or movie, book) and perhaps `timestamp`.

    Files that are split already have `train_user`, `train_item`, `test_user`
    and `test_item`; they are put together and split again.
    """
    with np.load(path) as arrays:
        parts = {name: arrays[name] for name in arrays.files}
    if "train_user" in parts:
        user = np.concatenate([parts["train_user"], parts["test_user"]])
        item = np.concatenate([parts["train_item"], parts["test_item"]])
    else:
        names = [name for name in ITEM_NAMES if name in parts]
        if "user" not in parts or not names:
            raise ValueError(
                f"{path} holds {sorted(parts)}; expected 'user' and one of "
                f"{ITEM_NAMES}, or 'train_user', 'train_item' and so on."
            )
        user, item = parts["user"], parts[names[0]]
    if "timestamp" in parts:
        order = np.argsort(parts["timestamp"], kind="stable")
    else:  # No order is known: take any.
        order = np.random.default_rng(0).permutation(len(user))
    _, item = np.unique(item, return_inverse=True)
    return in_order(user[order], item[order] + 1, length, synthetic=False)


def generate(
    people: int = 4_000, num_items: int = 500, length: int = 5
) -> tuple[Visits, Visits]:
    """People who stay near their place in a circle of items."""
    random = np.random.default_rng(0)
    home = random.integers(0, num_items, people)
    visits = 12
    steps = random.geometric(0.1, (people, visits))
    steps *= random.choice([-1, 1], steps.shape)
    item = (home[:, np.newaxis] + steps) % num_items + 1
    user = np.repeat(np.arange(people), visits)
    return in_order(user, item.ravel(), length, synthetic=True)
