"""Random Keras models: what is accepted sees one example at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gradients.random_graphs import models
from tests.gradients.random_graphs.counting import Counts
from tests.gradients.random_graphs.examination import Examination

MODELS = 30
SHARDS = 3
LEAST_SHARE = 0.6


@pytest.mark.parametrize("shard", range(SHARDS))
def test_what_is_accepted_is_separable(
    shard: int, record_property: Callable[[str, object], None]
) -> None:
    counts = Counts()
    for seed in range(shard, MODELS, SHARDS):
        subject, text = models.subject(seed)
        finding = Examination(subject, seed).examine()
        counts.add(finding, subject.rows, text)
    record_property("random models", counts.as_dict())
    assert not counts.unsound, "\n".join(counts.unsound)
    assert counts.mixing
    assert counts.share >= LEAST_SHARE
