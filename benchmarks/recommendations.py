"""What people liked, as examples to train on and to hold out."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
from scipy import stats

# From which rating on something was liked, where it is not 4.
LIKED = {"movietweetings": 8}


@dataclasses.dataclass(frozen=True)
class Examples:
    """Users [n], items [n, p], and whether each was liked, [n, p]."""

    user: np.ndarray
    item: np.ndarray
    label: np.ndarray

    def __getitem__(self, index: np.ndarray | slice) -> Examples:
        return Examples(self.user[index], self.item[index], self.label[index])


@dataclasses.dataclass(frozen=True)
class Data:
    """What is trained on, what is held out; and how many users and items."""

    train: Examples
    test: Examples
    users: int
    items: int


def read(path: pathlib.Path | None) -> Data:
    """What a file holds, or made-up ratings.

    Args:
      path: A file with arrays `user`, one of `item`, `book` and `movie`, and
        `rating`, of which one in ten is held out; or with `train_user`,
        `train_item`, `test_user`, `test_item`. An example of the second kind is
        a pair, and beside its item one at random that was not chosen.
    """
    if path is None:
        return _made_up()
    with np.load(path) as file:
        arrays = {name: file[name] for name in file}
    if "rating" not in arrays:
        return _chosen(arrays)
    name = next(n for n in ("item", "book", "movie") if n in arrays)
    user, item = (
        np.unique(arrays[n], return_inverse=True)[1] for n in ("user", name)
    )
    return _rated(user, item, arrays["rating"] >= LIKED.get(path.stem, 4))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Probability that a good one scores above a bad one."""
    if not np.isfinite(scores).all():
        raise ValueError("Scores are not finite, which clipped steps prevent.")
    good = labels.ravel() > 0
    ranks = stats.rankdata(scores.ravel())[good].sum()
    count = good.sum()
    pairs = count * (len(good) - count)
    return float((ranks - count * (count + 1) / 2) / pairs)


def _made_up() -> Data:
    rng = np.random.default_rng(1)
    size, users, items = 400_000, 20_000, 5_000
    user = rng.zipf(1.2, size) % users
    item = rng.zipf(1.2, size) % items
    taste = rng.standard_normal((users, 4))
    kind = rng.standard_normal((items, 4))
    score = (taste[user] * kind[item]).sum(1) + kind[item, 0]
    return _rated(user, item, score + rng.logistic(size=size) > 0)


def _rated(user: np.ndarray, item: np.ndarray, label: np.ndarray) -> Data:
    """Ratings in a random order that is always the same."""
    order = np.random.default_rng(1).permutation(len(user))
    ratings = Examples(
        user.astype(np.int32),
        item.astype(np.int32)[:, None],
        label.astype(np.float32)[:, None],
    )[order]
    held_out = len(user) // 10
    return Data(
        ratings[held_out:],
        ratings[:held_out],
        int(user.max()) + 1,
        int(item.max()) + 1,
    )


def _chosen(arrays: dict[str, np.ndarray]) -> Data:
    parts = ("train", "test")
    users, items = (
        int(max(arrays[f"{part}_{name}"].max() for part in parts)) + 1
        for name in ("user", "item")
    )
    examples = []
    for seed, part in enumerate(parts):
        item = arrays[f"{part}_item"].astype(np.int32)
        other = np.random.default_rng(seed).integers(1, items, len(item))
        other = ((item + other) % items).astype(np.int32)
        label = np.tile(np.float32([1, 0]), (len(item), 1))
        user = arrays[f"{part}_user"].astype(np.int32)
        examples.append(Examples(user, np.stack([item, other], 1), label))
    return Data(*examples, users, items)
