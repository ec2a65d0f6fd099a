"""Rows of figures out of turns, a table, and a plot."""

from __future__ import annotations

import json
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import record
from benchmarks.peers import processes
from benchmarks.peers.contenders import FRAMEWORKS, NOT_PRIVATE

FIGURES = (
    *("ms", "cpu_ms", "ratio", "low", "high"),
    *("cpu_ratio", "cpu_low", "cpu_high", "extra_ms"),
)


def versions(python: str) -> dict[str, str]:
    """Of what is installed in another environment."""
    code = "import json; from benchmarks import record; "
    code += "print(json.dumps(record.versions()))"
    done = subprocess.run(
        [python, "-c", code],
        cwd=processes.ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


def row(
    contender: str,
    base: str,
    tried: Mapping[str, Mapping[str, Any]],
    turns: Mapping[str, Sequence[Sequence[float]]] | None,
) -> dict[str, Any]:
    """Figures of a contender over a base.

    Args:
      contender: Its name.
      base: Another's, or the same.
      tried: What came of trying each.
      turns: Of all in the same process: number, clock and CPU milliseconds.
    """
    figures: dict[str, Any] = dict.fromkeys(FIGURES)
    if turns is not None and turns.get(base):
        of_base = {turn: times for turn, *times in turns[base]}
        both = [
            (times, of_base[turn])
            for turn, *times in turns[contender]
            if turn in of_base
        ]
        own, others = (np.array(times) for times in zip(*both, strict=True))
        clock, cpu = (own / others).T
        figures = {
            "ms": float(np.median(own[:, 0])),
            "cpu_ms": float(np.median(own[:, 1])),
            "ratio": float(np.median(clock)),
            **_interval("low", "high", clock),
            "cpu_ratio": float(np.median(cpu)),
            **_interval("cpu_low", "cpu_high", cpu),
            "extra_ms": float(np.median(own[:, 0] - others[:, 0])),
        }
        figures = {key: round(value, 4) for key, value in figures.items()}
    return {
        "contender": contender,
        "base": base,
        **figures,
        "turns": len(turns[contender]) if turns else 0,
        "peak_mb": _rounded(tried[contender].get("peak_mb")),
        "base_peak_mb": _rounded(tried[base].get("peak_mb")),
        "noised_share": tried[contender].get("noised"),
    }


def _interval(low: str, high: str, ratios: np.ndarray) -> dict[str, float]:
    found = record.median_interval(list(ratios))
    return {low: found[0], high: found[1]}


def _rounded(megabytes: float | None) -> float | None:
    return None if megabytes is None else round(megabytes, 1)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints a table."""
    last = None
    for one in rows:
        which = one["framework"], one["model"], one["rows"]
        if which != last:
            print(
                f"\n{which[0]}: {which[1]}, {which[2]:,} rows\n{'':30}"
                f"{'over':18}{'ms':>9}{'ratio':>8}{'95 % interval':>16}"
                f"{'extra ms':>10}{'CPU ratio':>11}{'peak MB':>9}"
            )
            last = which
        line = f"{one['contender']:30}{one['base']:18}"
        if one["ratio"] is None:
            print(line + f"  {one['failed'] or 'without a base'}")
            continue
        span = f"{one['low']:.2f}-{one['high']:.2f}"
        print(
            f"{line}{one['ms']:9.1f}{one['ratio']:8.2f}{span:>16}"
            f"{one['extra_ms']:10.1f}{one['cpu_ratio']:11.2f}"
            f"{one['peak_mb']:9.0f}"
        )


def plot(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Ratios over rows of a DLRM's tables; crosses at the top are failures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(8, 5))
    failures = []
    for name, framework in FRAMEWORKS.items():
        for contender in framework.shown:
            points = [
                (one["rows"], one["ratio"])
                for one in rows
                if one["model"] == "dlrm"
                and one["framework"] == name
                and one["contender"] == contender
                and one["base"] == NOT_PRIVATE
            ]
            known = [point for point in points if point[1] is not None]
            # Also without points it has a colour and a place in the legend.
            (line,) = panel.loglog(
                [point[0] for point in known],
                [point[1] for point in known],
                "o-",
                label=f"{name}: {contender}",
            )
            failures += [
                (point[0], line.get_color())
                for point in points
                if point[1] is None
            ]
    top = panel.get_ylim()[1]
    for place, (size, color) in enumerate(failures):
        panel.plot(size * 1.08 ** (place % 3), 1.5 * top, "x", color=color)
    panel.axhline(1.0, color="grey", linewidth=1)
    panel.set_xlabel("rows of each of 26 tables (x: failed)")
    panel.set_ylabel("private step over the same framework's not private")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
