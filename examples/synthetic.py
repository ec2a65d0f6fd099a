"""A recommender's click log, generated or read from a file."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

# Refuse a column that is plainly no identifier, such as a time in seconds.
LARGEST_TABLE = 5_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClickLog:
    """Categorical features and binary labels of one example per row.

    Args:
      features: Column name to ids, shaped [n], or [n, w] for a multi-hot
        feature of w ids per example.
      labels: 0 or 1, shaped [n].
      sizes: Column name to the number of ids. The model's tables have these
        shapes, so the sizes are released and must be public knowledge.
      best_auc: AUC of the probabilities that generated the labels, where they
        are known: no model can be expected to do better.
      synthetic: True if no person is behind the data.
    """

    features: dict[str, np.ndarray]
    labels: np.ndarray
    sizes: dict[str, int]
    best_auc: float | None = None
    synthetic: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: np.ndarray) -> ClickLog:
        return dataclasses.replace(
            self,
            features={name: ids[index] for name, ids in self.features.items()},
            labels=self.labels[index],
        )

    def split(self, held_out: float = 0.1) -> tuple[ClickLog, ClickLog]:
        """Two disjoint parts: for training, and to measure the result."""
        order = np.random.default_rng(1).permutation(len(self))
        count = round(len(self) * held_out)
        return self.rows(order[count:]), self.rows(order[:count])


def log_loss(labels: np.ndarray, scores: np.ndarray) -> float:
    """Mean of -ln of the probability given to what happened.

    Example:
      >>> round(log_loss(np.array([0.0, 1.0]), np.array([0.5, 0.5])), 4)
      0.6931
    """
    scores = np.clip(np.ravel(scores).astype("float64"), 1e-7, 1 - 1e-7)
    labels = np.ravel(labels)
    return float(
        -np.mean(labels * np.log(scores) + (1 - labels) * np.log1p(-scores))
    )


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Probability that a positive example scores above a negative one."""
    _, inverse, counts = np.unique(
        np.ravel(scores), return_inverse=True, return_counts=True
    )
    # Tied scores share the mean of their ranks.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[np.ravel(inverse)]
    positive = np.ravel(labels) > 0.5
    n1 = int(positive.sum())
    n0 = positive.size - n1
    if not n0 or not n1:
        raise ValueError(
            f"AUC needs both labels, given {n1} positive and {n0} negative."
        )
    return float((ranks[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def _zipf(
    rng: np.random.Generator, size: int, exponent: float, count: int
) -> np.ndarray:
    weights = 1.0 / np.arange(10, size + 10) ** exponent
    return rng.choice(size, count, p=weights / weights.sum()).astype(np.int32)


def generate(
    num_examples: int = 300_000,
    *,
    num_users: int = 3000,
    num_items: int = 2000,
    seed: int = 1,
) -> ClickLog:
    """Draws a click log whose users and items follow Zipf's law.

    A user belongs to a region and an item to a category, and each carries tags;
    the label is a coin whose logit is the inner product of the two latent
    factors plus an item's quality and an effect of the hour. Regions,
    categories and tags explain a part of the factors, as in real logs.

    Example:
      >>> log = generate(1000)
      >>> sorted(log.sizes)
      ['category', 'hour', 'item', 'region', 'tags', 'user']
      >>> log.features["tags"].shape
      (1000, 4)
    """
    rng = np.random.default_rng(seed)
    num_regions, num_categories, num_tags, width = 40, 30, 120, 4
    factors = 6

    region_of = rng.integers(num_regions, size=num_users)
    category_of = rng.integers(num_categories, size=num_items)
    # An item's tags are mostly those of its category.
    tags_of = (
        category_of[:, None] * (num_tags // num_categories)
        + rng.integers(num_tags // num_categories + 2, size=(num_items, width))
    ) % num_tags

    def latent(rows: int, scale: float) -> np.ndarray:
        return scale * rng.standard_normal((rows, factors))

    taste = latent(num_regions, 0.85)[region_of] + latent(num_users, 0.35)
    style = latent(num_categories, 0.75)[category_of] + latent(num_items, 0.3)
    style += latent(num_tags, 0.6)[tags_of].mean(axis=1)
    quality = 0.6 * rng.standard_normal(num_items)
    by_hour = 0.3 * np.sin(2 * np.pi * np.arange(24) / 24)

    user = _zipf(rng, num_users, 0.8, num_examples)
    item = _zipf(rng, num_items, 1.0, num_examples)
    hour = rng.integers(24, size=num_examples)
    logits = (taste[user] * style[item]).sum(axis=1) + quality[item]
    logits += by_hour[hour] - 0.5
    labels = rng.random(num_examples) < 1 / (1 + np.exp(-logits))

    features = {
        "user": user,
        "item": item,
        "region": region_of[user],
        "category": category_of[item],
        "hour": hour,
        "tags": tags_of[item],
    }
    return ClickLog(
        features={n: ids.astype(np.int32) for n, ids in features.items()},
        labels=labels.astype(np.float32),
        sizes={
            "user": num_users,
            "item": num_items,
            "region": num_regions,
            "category": num_categories,
            "hour": 24,
            "tags": num_tags,
        },
        best_auc=auc(labels, logits),
        synthetic=True,
    )


def load(
    path: str | pathlib.Path,
    *,
    columns: list[str] | None = None,
    liked: float = 4.0,
) -> ClickLog:
    """Reads a click log from an .npz file.

    The file holds arrays of equal length. `label` is 0 or 1; without it,
    `rating` is used and counts as 1 from `liked` upwards. Every other integer
    array is a categorical feature with ids from 0: [n] for one id per example,
    [n, w] for a multi-hot feature.

    Args:
      path: The file.
      columns: The features to use; all integer arrays by default.
      liked: The lowest rating that counts as a positive example.
    """
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    if "label" in arrays:
        labels = arrays["label"].astype(np.float32)
        if not np.isin(labels, (0, 1)).all():
            raise ValueError(f"label in {path} has values other than 0 and 1.")
    elif "rating" in arrays:
        labels = (arrays["rating"] >= liked).astype(np.float32)
    else:
        raise ValueError(
            f"{path} holds {sorted(arrays)}; expected an array named label "
            "(0 or 1) or rating. Rename the one that the model should predict."
        )
    if columns is None:
        columns = [
            name
            for name, values in arrays.items()
            if name not in ("label", "rating")
            and np.issubdtype(values.dtype, np.integer)
        ]
    features, sizes = {}, {}
    for name in columns:
        ids = arrays.get(name)
        if ids is None or ids.shape[:1] != labels.shape or ids.ndim > 2:
            given = "no such array" if ids is None else f"shape {ids.shape}"
            raise ValueError(
                f"Feature {name} in {path}: {given}; expected "
                f"[{len(labels)}] or [{len(labels)}, w]."
            )
        if ids.min() < 0 or ids.max() >= LARGEST_TABLE:
            raise ValueError(
                f"Feature {name} in {path} has ids {ids.min()} to {ids.max()};"
                f" expected 0 to {LARGEST_TABLE - 1}. Leave it out by naming"
                " the others with --columns."
            )
        features[name] = ids.astype(np.int32)
        sizes[name] = int(ids.max()) + 1
    if not features:
        raise ValueError(f"{path} holds no integer array to learn from.")
    return ClickLog(features=features, labels=labels, sizes=sizes)
