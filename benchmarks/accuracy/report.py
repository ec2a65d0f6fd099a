"""One table and one figure of all runs, and what is missing from them."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.accuracy.contenders import (
    CHOICE_SHARE,
    CHOSEN_ROWS,
    DENSE,
    NO_NOISE,
    TUNED_AS,
)
from benchmarks.accuracy.runs import TUNED_AT, Run, rate_at

ROOT = pathlib.Path(__file__).parents[2]
FIGURE = ROOT / "docs" / "accuracy.png"
METRICS = ("auc", "recall@20", "ndcg@20")
COMMAND = "make bench-accuracy"
QUESTION = (
    "How good are models that were trained with each mechanism and mode, at "
    "equal privacy?"
)
LEFT_OUT = {
    "compressed sensing": "is dense noise here, by its own rule: tables of "
    "fewer than m ln^2 m rows are not sketched, m being 10,000 and more",
    "bias reduction": "on movietweetings alone: a run takes ten times as long",
    "by user": "on ratings alone, and not with all mechanisms",
    "click log of 10^7 rows": "10^6 instead, so that dense noise can be tuned",
}


def rows(
    runs: Sequence[Run], asked: Iterable[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for each metric of what was asked for; and what is missing.

    Args:
      runs: All that were done, those for tuning among them.
      asked: What is the same for the runs of one row.
    """
    found, missing = [], []
    for case in asked:
        done = at_tuned_rate(runs, case)
        if not done:
            missing.append(
                {k: case[k] for k in ("data", "unit", "contender", "epsilon")}
            )
            continue
        for metric in METRICS:
            if metric not in done[0]:
                continue
            mean, error = mean_and_error([run[metric] for run in done])
            written = np.mean([run["written"] for run in done])
            found.append(
                {
                    "data": case["data"],
                    "unit": case["unit"],
                    "contender": case["contender"],
                    "epsilon": case["epsilon"],
                    "metric": metric,
                    "mean": round(mean, 5),
                    "standard error": error and round(error, 5),
                    "seeds": len(done),
                    "rate": done[0]["rate"],
                    "reduction": round(float(done[0]["entries"] / written), 2),
                }
            )
    return found, missing


def at_tuned_rate(runs: Sequence[Run], case: Mapping[str, Any]) -> list[Run]:
    """The runs of a case that had the rate which they should have."""
    private = case["contender"] not in NO_NOISE
    tuned = having(
        runs,
        {
            **case,
            "contender": TUNED_AS.get(case["contender"], case["contender"]),
            "epsilon": TUNED_AT if private else None,
            "seed": 0,
        },
    )
    tuned = [run for run in tuned if not math.isnan(run["valid_auc"])]
    if not tuned:
        return []
    best = max(tuned, key=lambda run: run["valid_auc"])["rate"]
    return having(runs, {**case, "rate": rate_at(case["epsilon"], best)})


def having(runs: Iterable[Run], values: Mapping[str, Any]) -> list[Run]:
    """The runs with these values."""
    return [run for run in runs if values.items() <= run.items()]


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and its standard error; None for one value."""
    if len(values) < 2:
        return float(np.mean(values)), None
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values)), float(error)


def report(
    runs: Sequence[Run],
    asked: Sequence[Mapping[str, Any]],
    path: pathlib.Path = record.RESULTS / "accuracy.json",
) -> None:
    """Writes the record and the figure, and prints a table in Markdown."""
    found, missing = rows(runs, asked)
    settings = {
        "clip norm": 1.0,
        "delta": sorted({case["delta"] for case in asked}),
        "rate": f"best of 1, 3, 10, 30, ... at epsilon {TUNED_AT:g} on seed 0, "
        "by AUC on a part held out for that; elsewhere in proportion to the "
        "root of epsilon",
        "reduction": "entries of all tables over entries of the rows that a "
        "step changes, on average; with lazy noise, of those it looks up",
        "frequency selection": f"{CHOICE_SHARE:g} of epsilon and delta for the "
        f"choice of {CHOSEN_ROWS:g} of all rows",
        "ranking": "recall and NDCG over all items that a user has not been "
        "trained on, for 1,000 users who are always the same",
        "runs": len(runs),
        "cpu seconds": round(sum(run["seconds"] for run in runs)),
        "left out": LEFT_OUT,
        "not measured": in_short(missing),
    }
    if found:
        record.write(
            record.record(QUESTION, found, command=COMMAND, settings=settings),
            path,
        )
        draw(found, FIGURE)
    print(table(found))
    for case in missing:
        print("not measured:", ", ".join(map(str, case.values())))


def in_short(missing: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What has no run, by data set and unit: contenders, and at which ε."""
    short: dict[str, dict[str, list[str]]] = {}
    for case in missing:
        of = short.setdefault(f"{case['data']} by {case['unit']}", {})
        epsilon = case["epsilon"]
        of.setdefault(case["contender"], []).append(
            "no noise" if epsilon is None else f"{epsilon:g}"
        )
    return {
        where: "; ".join(
            f"{name} at {' '.join(sorted(epsilons))}"
            for name, epsilons in of.items()
        )
        for where, of in short.items()
    }


def table(found: Sequence[Mapping[str, Any]], metric: str = "auc") -> str:
    """Contenders by epsilon, for each data set and unit, in Markdown."""
    lines = []
    here = [row for row in found if row["metric"] == metric]
    for data, unit in dict.fromkeys((r["data"], r["unit"]) for r in here):
        of = having(here, {"data": data, "unit": unit})
        epsilons = sorted({r["epsilon"] for r in of if r["epsilon"]})
        heads = [f"{data}, by {unit}", *(f"ε = {e:g}" for e in epsilons)]
        lines += ["", f"| {' | '.join(heads)} | rate | smaller |"]
        lines += ["| --- |" + " ---: |" * (len(epsilons) + 2)]
        for name in dict.fromkeys(row["contender"] for row in of):
            cells = []
            for epsilon in epsilons:
                wanted = None if name in NO_NOISE else epsilon
                row = having(of, {"contender": name, "epsilon": wanted})
                cells.append(_cell(row[0]) if row else "–")
            if name in NO_NOISE:
                cells[1:] = [""] * (len(cells) - 1)
            mine = having(of, {"contender": name})
            at = having(mine, {"epsilon": TUNED_AT}) or mine
            cells += [f"{at[0]['rate']:g}", f"{at[0]['reduction']:.3g}"]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any]) -> str:
    mean = f"{row['mean']:.4f}".removeprefix("0")
    if row["standard error"] is None:
        return mean
    return f"{mean} ± {row['standard error']:.4f}".replace("± 0", "± ")


def draw(found: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """AUC against epsilon, a panel for each data set and unit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    here = [row for row in found if row["metric"] == "auc"]
    panels = list(dict.fromkeys((row["data"], row["unit"]) for row in here))
    names = list(dict.fromkeys(row["contender"] for row in here))
    private = [name for name in names if name not in NO_NOISE]
    colours = {name: f"C{place % 10}" for place, name in enumerate(private)}
    width = min(3, len(panels))
    height = -(-len(panels) // width)
    figure, axes = pyplot.subplots(
        height, width, figsize=(4.2 * width, 3.6 * height), squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for (data, unit), axis in zip(panels, axes.flat, strict=False):
        of = having(here, {"data": data, "unit": unit})
        for name, style in zip(NO_NOISE, (":", "-."), strict=True):
            for row in having(of, {"contender": name}):
                axis.axhline(
                    row["mean"], color="black", linestyle=style, label=name
                )
        for place, name in enumerate(private):
            points = sorted(
                having(of, {"contender": name}), key=lambda r: r["epsilon"]
            )
            if points:
                axis.errorbar(
                    [row["epsilon"] for row in points],
                    [row["mean"] for row in points],
                    [2 * (row["standard error"] or 0) for row in points],
                    color=colours[name],
                    marker="os^vDx"[place // 3 % 6],
                    markersize=4,
                    linestyle="-" if name == DENSE or place < 10 else "--",
                    label=name,
                )
        epsilons = sorted({row["epsilon"] for row in of if row["epsilon"]})
        axis.set(title=f"{data}, by {unit}", xscale="log")
        axis.set(xlabel="ε", ylabel="AUC")
        axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axis.minorticks_off()
    labels: dict[str, Any] = {}
    for axis in axes.flat:
        for line, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, line)
    figure.legend(
        labels.values(), labels.keys(), loc="lower center", ncols=4, fontsize=8
    )
    figure.tight_layout(rect=(0, 0.28 / height, 1, 1))
    figure.savefig(path, dpi=100)
