import math

import numpy as np
import pytest

from benchmarks.accuracy.click_log import FEATURES, feature_sizes, power_law
from benchmarks.accuracy.metrics import Ranking, auc

pytestmark = pytest.mark.once


def test_auc_counts_pairs():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, [40, 2])
    scores = rng.integers(0, 5, [40, 2]) + 0.5 * labels  # With ties.
    good, bad = scores[labels > 0], scores[labels == 0]
    pairs = [(g > b) + (g == b) / 2 for g in good for b in bad]
    assert auc(labels, scores) == pytest.approx(np.mean(pairs))
    assert auc(labels, -scores) == pytest.approx(1 - np.mean(pairs))


def test_auc_of_diverged_training_is_not_a_number():
    assert math.isnan(auc(np.array([0, 1]), np.array([0.0, np.inf])))


def slow_metrics(train, test, users, scores, top):
    """By the definitions, one user after the other."""
    recalls, gains = [], []
    for place, user in enumerate(users):
        seen = {i for u, i in train if u == user}
        chosen = {i for u, i in test if u == user}
        order = sorted(
            (i for i in range(scores.shape[1]) if i not in seen),
            key=lambda i: -scores[place, i],
        )[:top]
        recalls.append(len(chosen & set(order)) / len(chosen))
        gain = sum(
            1 / math.log2(rank + 1)
            for rank, item in enumerate(order, 1)
            if item in chosen
        )
        ideal = sum(
            1 / math.log2(rank + 1)
            for rank in range(1, min(len(chosen), top) + 1)
        )
        gains.append(gain / ideal)
    return np.mean(recalls), np.mean(gains)


@pytest.mark.parametrize("number", [5, 1000])
def test_ranking_agrees_with_its_definition(number):
    rng = np.random.default_rng(0)
    items, top = 30, 4
    # Pairs repeat, and what was seen is chosen again.
    train = rng.integers(0, [20, items], [200, 2])
    test = rng.integers(0, [20, items], [100, 2])
    ranking = Ranking.of(tuple(train.T), tuple(test.T), number, top)
    assert len(ranking.users) == min(number, len(np.unique(test[:, 0])))
    scores = rng.random([len(ranking.users), items]).astype(np.float32)
    recall, gain = slow_metrics(
        train.tolist(), test.tolist(), ranking.users, scores, top
    )
    found = ranking.metrics(scores.copy())
    assert found[f"recall@{top}"] == pytest.approx(recall)
    assert found[f"ndcg@{top}"] == pytest.approx(gain)
    # Scores that know what was chosen do better, and not by a little.
    scores[ranking.chosen] += 1
    assert ranking.metrics(scores)[f"ndcg@{top}"] > gain + 0.2


def test_features_of_the_click_log_share_the_rows():
    sizes = feature_sizes(100_000)
    assert len(sizes) == FEATURES
    assert 99_900 <= sizes.sum() <= 100_000
    assert sizes[0] == 10 and (np.diff(sizes) >= 0).all()


def test_ids_follow_a_power_law():
    ids = power_law(np.random.default_rng(0), 200_000, 1000)
    assert ids.min() == 0 and ids.max() < 1000
    counts = np.bincount(ids, minlength=1000)
    # Means over decades, so that one id's chance says nothing.
    slope = math.log(counts[10:20].mean() / counts[100:200].mean(), 10)
    assert slope == pytest.approx(1.1, abs=0.05)
