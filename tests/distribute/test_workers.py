"""Private steps in processes that train together, on loopback."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.distribute import cluster
from tests.distribute.replicated import (
    batches,
    check_close,
    model_with,
    private,
)

CASES = "tests.distribute.worker_cases"


def found_by(
    number: int, folder: pathlib.Path, *cases: str
) -> dict[str, list[dict[str, np.ndarray]]]:
    """What workers found, one after another, for each case."""
    cluster.run(number, folder, CASES, *cases)
    return {
        case: [
            dict(np.load(folder / f"{case}{worker}.npz"))
            for worker in range(number)
        ]
        for case in cases
    }


def check_equal(found: list[dict[str, Any]]) -> dict[str, Any]:
    """All workers found the same, bit by bit."""
    first, *others = found
    for other in others:
        assert other.keys() == first.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(other[name], value, name)
    return first


def check_weights(found: list[dict[str, Any]]) -> None:
    """After 20 steps without noise they are those of one device."""
    model = model_with(private, None)
    model.fit(batches(), epochs=4, verbose=0)
    first = check_equal(found)
    weights = [first[f"weight{i}"] for i in range(3)]
    check_close(weights, model.get_weights(), 1e-5)
    assert first["spent"] == first["events"] == first["iterations"] == 20


def check_noise(found: list[dict[str, Any]]) -> None:
    """Its variance is that of one device.

    Over n = 8000 entries the sample variance of normal noise has a relative
    standard deviation of √(2/n) = 0.0158; six of those fail by chance with
    probability 3e-9.
    """
    noise = check_equal(found)["noise"]
    off = (noise.var() - 1) / math.sqrt(2 / noise.size)
    assert noise.size > 7000 and abs(off) < 6, off


def check_draws(found: list[dict[str, Any]]) -> None:
    """No example is in the parts of two workers, and all have their chance.

    Of 50 batches of 24 expected examples, 1200 are expected in all, with a
    standard deviation of about 33; six of those fail with probability 2e-9.
    Each example is missed by all of them with probability 0.002, and eleven of
    201 are with probability 1e-13.
    """
    everybody = []
    for worker, drawn in enumerate(own["drawn"] for own in found):
        for batch in drawn:
            (there,) = np.nonzero(batch)
            ids = batch[there] - 1
            assert len(set(ids)) == len(ids)
            assert set(ids % len(found)) <= {worker}
            everybody.append(ids)
    assert abs(sum(map(len, everybody)) - 1200 * 201 / 204) < 200
    assert len(np.unique(np.concatenate(everybody))) > 190


def test_two_workers(tmp_path: pathlib.Path) -> None:
    found = found_by(2, tmp_path, "without_noise", "by_plan", "by_filter")
    check_weights(found["without_noise"])
    for case in ("by_plan", "by_filter"):
        first = check_equal(found[case])
        assert first["spent"] == first["events"] == first["iterations"] == 6
        assert first["epsilon"] <= 8.0


@pytest.mark.once
def test_two_workers_agree_or_take_no_step(tmp_path: pathlib.Path) -> None:
    found = found_by(
        2,
        tmp_path,
        "one_step",
        "sparse",
        "poisson",
        "settings",
        "forms",
        "counts",
        "unpaid",
        "uneven",
        "refusals",
    )
    check_noise(found["one_step"])
    check_draws(found["poisson"])
    assert check_equal(found["sparse"])["Projection spent"] == 3
    assert not any(check_equal(found["settings"]).values())
    assert check_equal(found["forms"]) == {"spent": 0}
    assert check_equal(found["counts"]) == {"plan": 4}
    assert check_equal(found["uneven"])["spent"] == 0


@pytest.mark.once
def test_four_workers(tmp_path: pathlib.Path) -> None:
    found = found_by(4, tmp_path, "without_noise", "one_step", "poisson")
    check_weights(found["without_noise"])
    check_noise(found["one_step"])
    check_draws(found["poisson"])


@pytest.mark.once
def test_one_worker(tmp_path: pathlib.Path) -> None:
    check_weights(found_by(1, tmp_path, "without_noise")["without_noise"])
