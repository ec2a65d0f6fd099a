"""The rates of Tables 1 and 2 of the paper, measured.

    python examples/reproduce_paper.py --output report
    python examples/reproduce_paper.py --smoke --output report
    make bench-paper  # all of it, kept for docs/results.md

For each row of the tables the library's algorithm is run on the worst data of
a family, over n, d and s, and its error is set against the upper rate and the
lower bound (`tf_sparse_dp.theory`). Leaves `report.txt` and `report.png`, and
with --json the slopes, in the form of `benchmarks/record.py`.

Rates have no constants. The upper rate of a row is multiplied by what makes it
meet the measured error at one setting, the row's base, and lower rates by the
same factor; so only slopes are compared. Lower bounds that are proven as
numbers (the pure mean) are drawn as they are. Slopes, their standard errors
and verdicts are computed from the points; rates are fitted at the same points,
logarithms and all.

A full run takes 14 minutes on a busy machine of 2 cores. With `--smoke` it
takes about a minute of CPU time, and a slope is that of two points from few
trials: it shows that the program runs, and the slopes of means; hardly more.

Paper: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially Private
Optimization with Sparse Gradients" (2024).
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import pathlib
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from paper_data import DELTA, EPSILON, Outcome, Setting
from paper_report import TOLERANCE, Point, Sweep, draw, figures, text
from paper_rows import Row, rows

_SMOKE = """
A small run (--smoke): every slope is that of two points, from few trials. It
shows that the program runs, and the slopes of means; hardly more."""


def outcomes(index: int, smoke: bool, seed: int) -> dict[Setting, Outcome]:
    """What row number `index` measures, for each setting of its sweeps."""
    row = rows(smoke)[index]
    begin = time.monotonic()
    found = {}
    for setting in row.settings():
        found[setting] = row.measure(setting, row.trials, seed)
        print(
            f"{row.key}: n = {setting.n}, d = {setting.d}, s = {setting.s}: "
            f"{found[setting].error:.4f} ({found[setting].worst} data, "
            f"{time.monotonic() - begin:.0f} s)",
            flush=True,
        )
    return found


def with_bounds(
    row: Row, found: Mapping[Setting, Outcome], seed: int
) -> list[Sweep]:
    """All sweeps of a row, with its rates scaled at the base."""
    factor = found[row.base].error / row.upper(row.base).value

    def point(setting: Setting) -> Point:
        bound, lower = row.upper(setting), math.nan
        if row.proven is not None:
            lower = row.proven(setting, seed)
        elif row.lower is not None:
            lower = factor * row.lower(setting).value
        return Point(
            setting=setting,
            outcome=found[setting],
            upper=factor * bound.value,
            lower=lower,
            regime=bound.regime,
        )

    return [
        Sweep(
            row=row,
            over=over,
            factor=factor,
            points=tuple(point(row.at(over, value)) for value in values),
        )
        for over, values in row.sweeps.items()
    ]


def measured(
    chosen: Mapping[int, Row], smoke: bool, seed: int, jobs: int
) -> list[Sweep]:
    """The rows' sweeps, from as many processes as `jobs`."""
    if jobs == 1:
        found = {index: outcomes(index, smoke, seed) for index in chosen}
    else:
        # TensorFlow does not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context) as pool:
            # The last rows are training, and take longest.
            waiting = {
                index: pool.submit(outcomes, index, smoke, seed)
                for index in reversed(chosen)
            }
            found = {index: task.result() for index, task in waiting.items()}
    return [
        sweep
        for index, row in chosen.items()
        for sweep in with_bounds(row, found[index], seed)
    ]


def keep(
    sweeps: Sequence[Sweep], options: argparse.Namespace, seconds: float
) -> None:
    """Writes the slopes, and what they were measured with."""
    sys.path.append(str(pathlib.Path(__file__).parents[1]))
    from benchmarks import record

    used = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    found = record.record(
        "Do errors grow and fall with n, d and s as the paper's rates do?",
        [figures(sweep) for sweep in sweeps],
        command="make bench-paper",
        settings={
            "epsilon": EPSILON,
            "delta": f"{DELTA:g}, or 0 where pure",
            "seed": options.seed,
            "rows": options.only or "all",
            "smoke": options.smoke,
            "processes": options.jobs,
            "minutes": round(seconds / 60, 1),
            "minutes of CPU time": round(
                sum(u.ru_utime + u.ru_stime for u in used) / 60, 1
            ),
        },
    )
    record.write(found, options.json)


def main() -> None:
    """Measures, prints, writes and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="smaller: two points for a slope, a minute of CPU time",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("paper_rates")
    )
    parser.add_argument(
        "--json", type=pathlib.Path, help="slopes, for docs/results.md"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the data; noise has none"
    )
    parser.add_argument(
        "--only", default="", help="rows whose name has this in it"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    chosen = {
        index: row
        for index, row in enumerate(rows(options.smoke))
        if options.only in row.key
    }
    if not chosen:
        parser.error(f"no row has {options.only!r} in its name")
    options.output.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    sweeps = measured(chosen, options.smoke, options.seed, options.jobs)
    report = text(
        sweeps,
        f"The paper's rates, measured. epsilon = {EPSILON:g}; delta = "
        f"{DELTA:g}, or 0 where pure.\nUpper rates are scaled at each row's "
        "base and marked *, lower rates by the same factor; a lower\nbound "
        "without * is a proven number. Slopes within "
        f"{TOLERANCE:g} or two standard errors of the\nrates', or between "
        "them, 'follow'; but it is 'inconclusive' if two standard errors are "
        f"more\nthan {TOLERANCE:g} and than half of the flatter rate's "
        "slope, if there was one trial only, or if\nall errors are those of "
        "learning nothing." + (_SMOKE if options.smoke else ""),
    )
    (options.output / "report.txt").write_text(report)
    draw(sweeps, options.output / "report.png")
    if options.json:
        keep(sweeps, options, time.monotonic() - begin)
    print(report)
    print(
        f"{time.monotonic() - begin:.0f} s; report.txt and report.png are in "
        f"{options.output}"
    )


if __name__ == "__main__":
    main()
