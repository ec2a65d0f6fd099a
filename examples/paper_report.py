"""Slopes, verdicts, tables and the picture of the paper's rates."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence

import matplotlib
import numpy as np
from paper_data import Outcome, Setting
from paper_rows import Row

matplotlib.use("Agg")
from matplotlib import pyplot

# Slopes that differ by less are called the same, whatever their errors.
TOLERANCE = 0.05
COLORS = ("#1b6ca8", "#c8553d", "#4a8f3c")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """An error, and the bounds there.

    Attributes:
      upper, lower: Rates times the row's factor; or, of `Row.proven`, the
        number that is proven. NaN where there is none.
      regime: The term of the upper rate that decides.
    """

    setting: Setting
    outcome: Outcome
    upper: float
    lower: float
    regime: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Points of a row along n, d or s, and what they say.

    Attributes:
      factor: What the row's rates were multiplied by.
    """

    row: Row
    over: str
    points: tuple[Point, ...]
    factor: float

    @property
    def values(self) -> list[int]:
        return [getattr(point.setting, self.over) for point in self.points]

    @property
    def errors(self) -> list[float]:
        return [point.outcome.error for point in self.points]

    @property
    def slope(self) -> tuple[float, float]:
        """Measured, with its standard error."""
        return slope(
            self.values,
            self.errors,
            [point.outcome.standard_error for point in self.points],
        )

    @property
    def upper_slope(self) -> float:
        return slope(self.values, [p.upper for p in self.points])[0]

    @property
    def lower_slope(self) -> float:
        return slope(self.values, [p.lower for p in self.points])[0]

    @property
    def verdict(self) -> str:
        if learned_nothing(self.errors, self.row.nothing):
            return "inconclusive"
        return verdict(
            self.over, *self.slope, [self.upper_slope, self.lower_slope]
        )


def slope(
    values: Sequence[float],
    errors: Sequence[float],
    standard_errors: Sequence[float] | None = None,
) -> tuple[float, float]:
    """Of the line that fits best in logarithms, and its standard error.

    NaN where an error is not positive, or no standard errors are known.
    """
    x, y = np.log(values), np.asarray(errors, np.float64)
    if not (y > 0).all():
        return math.nan, math.nan
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()
    spread = math.nan
    if standard_errors is not None:
        parts = weights * np.asarray(standard_errors) / y
        spread = float(np.sqrt(np.square(parts).sum()))
    return float(weights @ np.log(y)), spread


def verdict(
    over: str, found: float, standard_error: float, rates: Sequence[float]
) -> str:
    """Whether a slope is within the theory's, or how it is beyond them.

    "steeper" means that errors fall faster with n, or rise faster with d or s,
    than both rates; "flatter" the opposite. "inconclusive" is what is neither,
    but for noise: two standard errors are more than `TOLERANCE` and more than
    half of the flatter rate's slope, so that slopes far from the theory's, or
    0, would have passed; or the standard error is not known.
    """
    known = [rate for rate in rates if not math.isnan(rate)]
    if math.isnan(found) or not known:
        return "unknown"
    if math.isnan(standard_error):
        return "inconclusive"
    sign = -1 if over == "n" else 1
    steepness = sorted(sign * rate for rate in known)
    room = max(TOLERANCE, 2 * standard_error)
    if sign * found > steepness[-1] + room:
        return "steeper"
    if sign * found < steepness[0] - room:
        return "flatter"
    if room > max(TOLERANCE, min(abs(rate) for rate in known) / 2):
        return "inconclusive"
    return "follows"


def learned_nothing(errors: Sequence[float], nothing: float) -> bool:
    """Whether all errors are those of an answer that ignores the data.

    No rate has constants, and none speaks of where learning begins.
    """
    return min(errors) >= 0.99 * nothing


def summary(sweeps: Sequence[Sweep]) -> str:
    """A table in Markdown, one line for each sweep."""
    lines = [
        "| measured | over | slope | upper rate's | lower bound's | verdict | "
        "error/upper | error/lower |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for sweep in sweeps:
        found, spread = sweep.slope
        over = f"{sweep.over} = {min(sweep.values):,} to {max(sweep.values):,}"
        cells = [
            sweep.row.key,
            over,
            _shown(found) + ("" if math.isnan(spread) else f" ± {spread:.2f}"),
            _shown(sweep.upper_slope),
            _shown(sweep.lower_slope),
            sweep.verdict,
            _range([p.outcome.error / p.upper for p in sweep.points]),
            _range([p.outcome.error / p.lower for p in sweep.points])
            if sweep.row.proven
            else "no constant"
            if sweep.row.lower
            else "none",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def figures(sweep: Sweep) -> dict[str, str | float | None]:
    """The sweep's line of the summary, as numbers; None where there is none."""
    found, spread = sweep.slope
    over_upper = [p.outcome.error / p.upper for p in sweep.points]
    over_lower = [p.outcome.error / p.lower for p in sweep.points]
    proven = sweep.row.proven is not None
    line = {
        "slope": found,
        "standard error": spread,
        "upper rate's": sweep.upper_slope,
        "lower bound's": sweep.lower_slope,
        "least error/upper": min(over_upper),
        "most error/upper": max(over_upper),
        "least error/lower": min(over_lower) if proven else math.nan,
        "most error/lower": max(over_lower) if proven else math.nan,
    }
    return {
        "measured": sweep.row.key,
        "over": sweep.over,
        "from": min(sweep.values),
        "to": max(sweep.values),
        **{k: None if math.isnan(v) else float(v) for k, v in line.items()},
        "verdict": sweep.verdict,
        "trials": sweep.row.trials,
        "errors": ", ".join(f"{error:.3g}" for error in sweep.errors),
    }


def table(sweep: Sweep) -> str:
    """All points of a sweep, and its slopes."""
    kind = "lower" if sweep.row.proven else "lower*"
    lines = [
        f"{sweep.row.key}, over {sweep.over}",
        f"{'n':>9}{'d':>12}{'s':>5}{'error':>10}{'+-':>9}{'upper*':>10}"
        f"{kind:>10}{'error/upper':>13}  {'regime':<10}worst data",
    ]
    for point in sweep.points:
        at, outcome = point.setting, point.outcome
        lines.append(
            f"{at.n:>9}{at.d:>12}{at.s:>5}{outcome.error:>10.4f}"
            f"{_shown(outcome.standard_error, 4):>9}{point.upper:>10.4f}"
            f"{_shown(point.lower, 4):>10}{outcome.error / point.upper:>13.2f}"
            f"  {point.regime:<10}{outcome.worst}"
        )
    found, spread = sweep.slope
    lines.append(
        f"slope {found:.3f} +- {_shown(spread, 3)}, upper "
        f"{sweep.upper_slope:.3f}, lower {_shown(sweep.lower_slope, 3)}: "
        f"{sweep.verdict} (* the rate times {sweep.factor:.3g})"
    )
    return "\n".join(lines)


def text(sweeps: Sequence[Sweep], heading: str) -> str:
    """The whole report."""
    parts = [heading, summary(sweeps)]
    described = set()
    for sweep in sweeps:
        if sweep.row.key not in described:
            described.add(sweep.row.key)
            lines = [f"== {sweep.row.panel}", sweep.row.algorithm]
            parts.append("\n".join([*lines, sweep.row.remark]).strip())
        parts.append(table(sweep))
    return "\n\n".join(parts) + "\n"


def draw(sweeps: Sequence[Sweep], path: pathlib.Path) -> None:
    """A row of panels for each row of the tables; n, d and s side by side."""
    names = list(dict.fromkeys(sweep.row.panel for sweep in sweeps))
    figure, grid = pyplot.subplots(
        len(names),
        3,
        figsize=(12, 2.9 * len(names)),
        layout="constrained",
        squeeze=False,
    )
    for name, line in zip(names, grid, strict=True):
        for over, axes in zip("nds", line, strict=True):
            inside = [
                s for s in sweeps if s.row.panel == name and s.over == over
            ]
            for color, sweep in zip(COLORS, inside, strict=False):
                _draw_sweep(axes, sweep, color)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel(over)
            axes.legend(frameon=False, fontsize=7)
        line[0].set_ylabel("error")
        line[1].set_title(name, fontsize=11, fontweight="bold")
    figure.suptitle(
        "Measured (points; bars: two standard errors), upper rates (dashed, "
        "scaled at the filled point),\nlower rates (dotted, scaled alike) and "
        "proven lower bounds (solid, as they are)"
    )
    figure.savefig(path, dpi=75)
    pyplot.close(figure)


def _draw_sweep(axes, sweep: Sweep, color: str) -> None:
    bars = [2 * p.outcome.standard_error for p in sweep.points]
    found, _ = sweep.slope
    axes.errorbar(
        sweep.values,
        sweep.errors,
        yerr=np.nan_to_num(bars),
        fmt="o",
        mfc="none",
        color=color,
        capsize=2,
        label=f"{sweep.row.key}: {found:.2f}, {sweep.verdict}",
    )
    base = [
        (value, point.outcome.error)
        for value, point in zip(sweep.values, sweep.points, strict=True)
        if point.setting == sweep.row.base
    ]
    axes.plot(*zip(*base, strict=True), "o", color=color)
    axes.plot(
        sweep.values,
        [p.upper for p in sweep.points],
        "--",
        color=color,
        linewidth=1,
    )
    axes.plot(
        sweep.values,
        [p.lower for p in sweep.points],
        "-" if sweep.row.proven else ":",
        color=color,
        linewidth=1,
    )


def _shown(number: float, digits: int = 2) -> str:
    return "none" if math.isnan(number) else f"{number:.{digits}f}"


def _range(numbers: Sequence[float]) -> str:
    return f"{min(numbers):.2f} to {max(numbers):.2f}"
