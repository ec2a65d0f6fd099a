"""Tables and a figure of what `training_accuracy.py` measured."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

BASELINE = "dense noise"
TUNED_AT = 3.0
Run = dict[str, Any]


def read(results: pathlib.Path) -> list[Run]:
    """Runs that were done."""
    results.touch()
    return [json.loads(line) for line in results.read_text().splitlines()]


def report(results: pathlib.Path, figure: pathlib.Path) -> None:
    """Prints tables in Markdown, and draws a figure."""
    runs = read(results)
    print("| data | ε | mechanism | rate | seeds | AUC | more than dense |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for data in distinct(runs, "data"):
        of_data = having(runs, data=data)
        for epsilon in sorted(distinct(of_data, "epsilon")):
            _print_means(of_data, epsilon)
    print()
    print("| data | ε | mechanism | range of rates | loses at most |")
    print("| --- | ---: | --- | --- | ---: |")
    for data in distinct(runs, "data"):
        for epsilon in sorted(distinct(having(runs, data=data), "epsilon")):
            _print_ranges(having(runs, data=data, epsilon=epsilon))
    _draw(runs, figure)


def having(runs: Iterable[Run], **values: Any) -> list[Run]:
    """The runs with these values."""
    return [run for run in runs if values.items() <= run.items()]


def distinct(runs: Iterable[Run], key: str) -> list[Any]:
    """What runs have for a key, in the order in which it comes first."""
    return list(dict.fromkeys(run[key] for run in runs))


def best_rate(runs: Sequence[Run]) -> float:
    """The best rate on the first seed, which all rates were tried on."""
    first = having(runs, seed=min(run["seed"] for run in runs))
    return float(max(first, key=lambda run: run["auc"])["rate"])


def repeated(runs: Sequence[Run]) -> list[Run]:
    """The runs with those rates that most seeds were tried with."""
    rates = [run["rate"] for run in runs]
    most = max(map(rates.count, rates))
    return [run for run in runs if rates.count(run["rate"]) == most]


def mean(runs: Sequence[Run]) -> tuple[float, float]:
    """Mean AUC, and its standard error."""
    values = [run["auc"] for run in runs]
    if len(values) < 2:
        return float(np.mean(values)), float("nan")
    return float(np.mean(values)), float(
        np.std(values, ddof=1) / np.sqrt(len(values))
    )


def tenfold(runs: Sequence[Run]) -> tuple[float, float, float] | None:
    """The range of rates from r to 10 r that loses least.

    Returns:
      Its ends, and how far below the best rate of all it ever is; None if no
      such range was measured, with a rate between its ends.
    """
    first = having(runs, seed=min(run["seed"] for run in runs))
    auc = {run["rate"]: run["auc"] for run in first}
    best = max(auc.values())
    ranges = []
    for low in auc:
        within = [a for rate, a in auc.items() if low <= rate <= 10 * low]
        if 10 * low in auc and len(within) > 2:
            ranges.append((best - min(within), low, 10 * low))
    if not ranges:
        return None
    lost, low, high = min(ranges)
    return low, high, lost


def _print_means(runs: Sequence[Run], epsilon: float) -> None:
    """Every mechanism at its own best rate, and at that of TUNED_AT."""
    here = having(runs, epsilon=epsilon)
    baseline = having(here, mechanism=BASELINE)
    for name in distinct(here, "mechanism"):
        of_name = having(here, mechanism=name)
        rates = {best_rate(of_name): "best"}
        elsewhere = having(runs, mechanism=name, epsilon=TUNED_AT)
        if elsewhere:
            rates.setdefault(best_rate(elsewhere), f"best at ε = {TUNED_AT:g}")
        for rate, note in rates.items():
            of_rate = having(of_name, rate=rate)
            if not of_rate:
                continue
            auc, error = mean(of_rate)
            more = ""
            if baseline and name != BASELINE:
                at_best = having(baseline, rate=best_rate(baseline))
                other, other_error = mean(at_best)
                more = (
                    f"{auc - other:+.4f} ± {np.hypot(error, other_error):.4f}"
                )
            print(
                f"| {of_rate[0]['data']} | {epsilon:g} | {name} | "
                f"{rate:g} ({note}) | {len(of_rate)} | {auc:.4f} ± {error:.4f} "
                f"| {more} |"
            )


def _print_ranges(runs: Sequence[Run]) -> None:
    for name in distinct(runs, "mechanism"):
        found = tenfold(having(runs, mechanism=name))
        if found is not None:
            low, high, lost = found
            print(
                f"| {runs[0]['data']} | {runs[0]['epsilon']:g} | {name} | "
                f"{low:g} to {high:g} | {lost:.4f} |"
            )


def _draw(runs: Sequence[Run], path: pathlib.Path) -> None:
    """AUC over epsilon at the best rate, and over rates at one epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sets = distinct(runs, "data")
    names = distinct(runs, "mechanism")
    colours = {name: f"C{place}" for place, name in enumerate(names)}
    figure, axes = pyplot.subplots(
        2, len(sets), figsize=(4 * len(sets), 6), squeeze=False
    )
    for data, (top, bottom) in zip(sets, axes.T, strict=True):
        for name, colour in colours.items():
            of_name = having(runs, data=data, mechanism=name)
            points = []
            for epsilon in sorted(distinct(of_name, "epsilon")):
                here = repeated(having(of_name, epsilon=epsilon))
                points.append(
                    (epsilon, *mean(having(here, rate=best_rate(here))))
                )
            if points:
                x, y, error = zip(*points, strict=True)
                top.errorbar(
                    x, y, 2 * np.nan_to_num(error), color=colour, label=name
                )
            tried = having(of_name, epsilon=TUNED_AT)
            if tried:
                rates = sorted(distinct(tried, "rate"))
                bottom.plot(
                    rates,
                    [mean(having(tried, rate=rate))[0] for rate in rates],
                    "o-",
                    color=colour,
                    label=name,
                )
        top.set(title=data, xscale="log", xlabel="ε", ylabel="AUC")
        epsilons = distinct(having(runs, data=data), "epsilon")
        top.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        top.minorticks_off()
        bottom.set(
            xscale="log",
            xlabel=f"learning rate, ε = {TUNED_AT:g}",
            ylabel="AUC",
        )
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
