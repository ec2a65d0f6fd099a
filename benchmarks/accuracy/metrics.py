"""How good scores are: over pairs of examples, and at the top of a ranking."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from scipy import stats


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Probability that a good one scores above a bad one; ties count half.

    Not a number if some score is not finite: training diverged.
    """
    if not np.isfinite(scores).all():
        return float("nan")
    good = labels.ravel() > 0
    ranks = stats.rankdata(scores.ravel())[good].sum()
    count = good.sum()
    pairs = count * (len(good) - count)
    return float((ranks - count * (count + 1) / 2) / pairs)


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Some users, and what of all items each of them saw and chose later.

    Args:
      users: Ids [n].
      seen: Places in `users`, and items, that the user chose in training: they
        are not ranked. Two arrays [m].
      chosen: Likewise what the user chose in the test data; every user has
        some, none of it twice.
      top: How many items of the ranking count.
    """

    users: np.ndarray
    seen: tuple[np.ndarray, np.ndarray]
    chosen: tuple[np.ndarray, np.ndarray]
    top: int = 20

    @classmethod
    def of(
        cls,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        number: int,
        top: int = 20,
    ) -> Ranking:
        """A sample of the users of the test data, always the same.

        Args:
          train, test: Users and items, two arrays each.
          number: How many users; all that there are, if these are fewer.
          top: How many items of the ranking count.
        """
        there = np.unique(test[0])
        rng = np.random.default_rng(1)
        users = np.sort(rng.permutation(there)[:number])

        def pairs(
            part: tuple[np.ndarray, np.ndarray],
        ) -> tuple[np.ndarray, ...]:
            kept = np.isin(part[0], users)
            both = np.stack([part[0][kept], part[1][kept]], 1)
            user, item = np.unique(both, axis=0).T
            return np.searchsorted(users, user), item

        seen, chosen = pairs(train), pairs(test)
        return cls(users, seen, chosen, top)  # type: ignore[arg-type]

    def metrics(self, scores: np.ndarray) -> dict[str, float]:
        """Recall and NDCG at `top`, means over users.

        Recall is the part of what a user chose that is among the first `top`.
        Gain is 1 for each of these, discounted by log2(1 + rank), over the most
        that is possible.

        Args:
          scores: Of all items, for each user: [n, items]. Overwritten.
        """
        n, items = scores.shape
        scores[self.seen] = -np.inf
        first = tf.math.top_k(scores, self.top).indices.numpy()
        wanted = self.chosen[0].astype(np.int64) * items + self.chosen[1]
        hits = np.isin(np.arange(n)[:, None] * items + first, wanted)
        chosen = np.bincount(self.chosen[0], minlength=n)
        discounts = 1 / np.log2(np.arange(self.top) + 2)
        most = np.cumsum(discounts)[np.minimum(chosen, self.top) - 1]
        return {
            f"recall@{self.top}": float((hits.sum(1) / chosen).mean()),
            f"ndcg@{self.top}": float((hits @ discounts / most).mean()),
        }
