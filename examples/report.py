"""The picture that the demo leaves behind."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

PRIVATE, TWIN, BUDGET = "#1b6ca8", "#8a8a8a", "#c8553d"


@dataclasses.dataclass(kw_only=True)
class Curve:
    """AUC on held-out examples, at some of the steps of a training run."""

    label: str
    steps: list[int] = dataclasses.field(default_factory=list)
    aucs: list[float] = dataclasses.field(default_factory=list)

    def add(self, step: int, auc: float) -> None:
        self.steps.append(step)
        self.aucs.append(auc)


def _accuracy(
    axes: pyplot.Axes,
    private: Curve,
    twin: Curve,
    epsilons: Sequence[float],
    best_auc: float | None,
) -> None:
    axes.plot(private.steps, private.aucs, color=PRIVATE, label=private.label)
    axes.plot(twin.steps, twin.aucs, color=TWIN, label=twin.label)
    if best_auc is not None:
        axes.axhline(best_auc, color=TWIN, linestyle=":", label="best possible")
    axes.set(
        xlabel="step",
        ylabel="AUC on held-out examples",
        title="Accuracy, and what it costs",
    )
    spent = axes.twinx()
    spent.plot(
        private.steps,
        epsilons,
        color=BUDGET,
        linestyle="--",
        label="ε spent (right)",
    )
    spent.set_ylabel("ε spent", color=BUDGET)
    spent.set_ylim(bottom=0)
    spent.tick_params(axis="y", colors=BUDGET)
    lines = [*axes.get_lines(), *spent.get_lines()]
    axes.legend(
        lines,
        [str(line.get_label()) for line in lines],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.15),
        ncols=2,
        frameon=False,
    )


def _norms(
    axes: pyplot.Axes, norms: np.ndarray | None, clip_norm: float
) -> None:
    axes.set_title("Norms of per-example gradients")
    if norms is None:
        # A histogram of real examples is a release that nobody accounted for.
        axes.text(
            0.5,
            0.5,
            "Not drawn: the data may be about people,\n"
            "and gradient norms are not private.",
            ha="center",
            va="center",
            transform=axes.transAxes,
        )
        axes.set_axis_off()
        return
    shown = norms[norms > 0]
    bins = np.geomspace(np.quantile(shown, 0.001), shown.max(), 60)
    axes.hist(shown, bins=bins, color=PRIVATE, alpha=0.8)
    axes.set_xscale("log")
    axes.axvline(clip_norm, color=BUDGET, linestyle="--")
    clipped = np.mean(norms > clip_norm)
    axes.text(
        0.02,
        0.97,
        f"clip_norm = {clip_norm:g} (dashed), {clipped:.0%} above\n"
        "Synthetic data only: these norms are not\n"
        "private and must not be shown for real data.",
        ha="left",
        va="top",
        fontsize=9,
        transform=axes.transAxes,
    )
    axes.set(xlabel="norm before clipping", ylabel="examples")


def write(
    path: pathlib.Path,
    *,
    private: Curve,
    twin: Curve,
    epsilons: Sequence[float],
    norms: np.ndarray | None,
    clip_norm: float,
    title: str,
    best_auc: float | None = None,
) -> None:
    """Draws AUC and epsilon over the steps, and the norms where permitted.

    Args:
      path: A .png file; its folder is made.
      private: The curve of the private model.
      twin: The curve of the same model without privacy.
      epsilons: What was spent at each of private.steps.
      norms: Per-example gradient norms of synthetic examples, or None.
      clip_norm: The norm to which they were clipped.
      title: Of the whole picture.
      best_auc: What the true probabilities reach, if known.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 4.5), layout="constrained"
    )
    _accuracy(left, private, twin, epsilons, best_auc)
    _norms(right, norms, clip_norm)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
