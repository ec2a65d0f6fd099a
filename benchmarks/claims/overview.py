"""The picture of README.md: accuracy over ε, and steps over rows."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.claims.costs import BASE, OURS

# Of accuracy.json: which ratings, and whose lines.
DATA = "goodbooks"
SHOWN = ("denoised sums", "dense noise", "projection, rows")
# Of peers.json: whose lines, by library.
STEPS = {
    OURS: ("lazy noise", "dense noise"),
    "TF-Privacy": ("fast clipping",),
    "Opacus": ("ghost clipping",),
    "jax_privacy": ("clipped_grad",),
}

Row = Mapping[str, Any]


def draw(
    accuracy: Sequence[Row], peers: Sequence[Row], path: pathlib.Path
) -> None:
    """Draws both panels.

    Args:
      accuracy: Rows of accuracy.json.
      peers: Rows of peers.json.
      path: The picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    _accuracy(left, accuracy)
    _steps(right, peers)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _accuracy(panel: Any, rows: Sequence[Row]) -> None:
    here = [
        row
        for row in rows
        if (row["data"], row["unit"], row["metric"]) == (DATA, "example", "auc")
    ]
    for row in here:
        if row["contender"] == "not private":
            panel.axhline(
                row["mean"], color="black", linestyle=":", label="not private"
            )
    for name in SHOWN:
        points = sorted(
            (row["epsilon"], row["mean"], 2 * (row["standard error"] or 0))
            for row in here
            if row["contender"] == name
        )
        panel.errorbar(*zip(*points, strict=True), marker="o", label=name)
    panel.set_xscale("log", base=2)
    panel.set_xlabel("ε, for one example, with Poisson sampling")
    panel.set_ylabel("AUC on held-out examples")
    panel.set_title(f"Accuracy: {DATA}", fontsize=11)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)


def _steps(panel: Any, rows: Sequence[Row]) -> None:
    for framework, contenders in STEPS.items():
        for contender in contenders:
            points = sorted(
                (row["rows"], row["ratio"])
                for row in rows
                if (row["framework"], row["model"], row["contender"])
                == (framework, "dlrm", contender)
                and row["base"] == BASE
                and row["ratio"] is not None
            )
            if points:
                panel.loglog(
                    *zip(*points, strict=True),
                    marker="o",
                    label=f"{framework}: {contender}",
                )
    panel.axhline(1.0, color="grey", linewidth=1)
    panel.set_xlabel("rows of each of 26 tables")
    panel.set_ylabel("private step over the same\nlibrary's ordinary one")
    panel.set_title("Time of a step", fontsize=11)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
