"""Random Keras models: what is accepted sees one example at a time."""

from __future__ import annotations

import pytest

from tests.gradients.random_graphs import models
from tests.gradients.random_graphs.counting import Counts
from tests.gradients.random_graphs.examination import Examination

MODELS = 30
SHARDS = 3
LEAST_SHARE = 0.6


@pytest.fixture(scope="module")
def totals() -> Counts:
    return Counts()


@pytest.mark.parametrize("shard", range(SHARDS))
def test_what_is_accepted_is_separable(shard: int, totals: Counts) -> None:
    for seed in range(shard, MODELS, SHARDS):
        subject, text = models.subject(seed)
        finding = Examination(subject, seed).examine()
        assert not finding.problems, f"{text}: {finding.problems}"
        totals.add(finding, subject.rows, text)


def test_most_separable_models_are_accepted(
    totals: Counts, capsys: pytest.CaptureFixture[str]
) -> None:
    if not totals.graphs:  # This test was picked alone.
        for shard in range(SHARDS):
            test_what_is_accepted_is_separable(shard, totals)
    with capsys.disabled():
        print(f"\nmodels: {totals}")
    assert totals.mixing
    assert totals.share >= LEAST_SHARE
