"""What a benchmark leaves behind: one JSON file in `benchmarks/results`.

Every file has the same form, so that `docs/results.md` can be made of all of
them: the question, the command that answers it, the date, the machine and the
versions, the settings, and rows of figures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results"
_PACKAGES = (
    *("tensorflow", "keras", "tf-keras", "dp-accounting", "numpy"),
    *("tensorflow-privacy", "torch", "opacus", "jax", "jax-privacy"),
)


def versions() -> dict[str, str]:
    """Versions of Python and of what is installed of what matters."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def record(
    question: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    command: str,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Figures, with all that says where they come from.

    Args:
      question: One sentence.
      rows: Flat dictionaries of numbers and words, of the same keys.
      command: What to type in a clone to measure this again.
      settings: What was the same for all rows.
    """
    return {
        "question": question,
        "command": command,
        "date": str(datetime.date.today()),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": versions(),
        "settings": dict(settings or {}),
        "rows": [dict(row) for row in rows],
    }


def typed(options: argparse.Namespace) -> dict[str, Any]:
    """What was typed, without the names of files."""
    return {
        name: value
        for name, value in vars(options).items()
        if not isinstance(value, pathlib.Path)
    }


def write(found: Mapping[str, Any], path: pathlib.Path) -> None:
    """Keeps a record; the old one stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(scratch, path)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Order statistics that hold the median with at least 95 %.

    The number of values below the true median is binomial, n coin flips. With
    fewer than 6 values no two of them do; the least and the largest are given.
    """
    ordered = np.sort(np.asarray(values, float))
    n = len(ordered)
    weights = [1.0]
    for k in range(n):
        weights.append(weights[-1] * (n - k) / (k + 1))
    tails = np.cumsum(weights) / 2.0**n
    rank = max(int(np.searchsorted(tails, 0.025, "right")) - 1, 0)
    return float(ordered[rank]), float(ordered[n - 1 - rank])
