"""The demo's parts, and the whole of it on little data."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import synthetic

    return synthetic


@pytest.mark.once
def test_auc_agrees_with_counting_pairs(synthetic, seeded) -> None:
    labels = seeded.integers(2, size=60)
    scores = seeded.integers(5, size=60)  # many ties
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None]
    counted = np.mean((pairs > 0) + 0.5 * (pairs == 0))
    assert synthetic.auc(labels, scores) == pytest.approx(counted)
    with pytest.raises(ValueError, match="both labels"):
        synthetic.auc(np.ones(3), np.ones(3))


@pytest.mark.once
def test_generated_ids_fit_their_tables(synthetic) -> None:
    log = synthetic.generate(2000)
    for name, ids in log.features.items():
        assert ids.min() >= 0 and ids.max() < log.sizes[name]
    train, held_out = log.split(0.25)
    assert (len(train), len(held_out)) == (1500, 500)


@pytest.mark.once
def test_zipf_head_is_heavier_than_its_tail(synthetic) -> None:
    counts = np.bincount(synthetic.generate(20_000).features["item"])
    assert counts[:100].sum() > 3 * counts[-100:].sum()


@pytest.mark.once
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"user": np.arange(3)}, "named label"),
        ({"label": np.array([0, 1, 2]), "user": np.arange(3)}, "other than"),
        ({"label": np.array([0, 1]), "user": np.arange(3)}, "expected"),
        ({"label": np.array([0, 1]), "user": np.array([0, -1])}, "ids -1"),
        ({"label": np.array([0, 1]), "when": np.array([0, 10**9])}, "columns"),
        ({"label": np.array([0, 1])}, "no integer array"),
    ],
)
def test_bad_files_are_refused(synthetic, tmp_path, arrays, message) -> None:
    np.savez(tmp_path / "log.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        synthetic.load(tmp_path / "log.npz")


def test_demo_on_a_file(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    user = rng.integers(50, size=4000)
    np.savez(
        tmp_path / "log.npz",
        user=user,
        tags=rng.integers(9, size=(4000, 3)),
        rating=np.where(user < 25, 5, 1),
    )
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    command += ["--data", "log.npz", "--epochs", "4", "--batch-size", "400"]
    done = subprocess.run(
        [*command, "--epsilon", "8", "--output", "report.png"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "report.png").read_bytes()[1:4] == b"PNG"
    assert "AUC on held-out examples" in done.stdout
    assert "epsilon" in done.stdout
