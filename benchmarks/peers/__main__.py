"""What a private step costs over the same framework's own step without privacy.

    make bench-peers
    make bench-peers ARGS="--quick"
    make bench-peers ARGS="--only Opacus --turns 12"

The same models and batches for all: a DLRM of 26 tables, two towers, and a
transformer (`data.py`). Every framework has an environment of its own, and its
contenders are compared with its own steps without privacy (`contenders.py`
names all of them, and the modules there say what they are). SGD, clip norm 1,
noise multiplier 1.

First each contender is tried in a process of its own: whether its loss is
finite, whether rows that nobody looked up have the noise that they should have,
and its peak resident memory, Python and framework included. Whoever takes more
than `--seconds` for a step, or the memory there is, has failed, and is not
tried on a larger table. Then those that did not fail take turns in one process
(in several, each with the steps without privacy, if memory does not do for
one). A ratio is the median over the turns of a contender's time over the base's
in the same turn, with a 95 % interval for that median; by the clock, and in CPU
time of all threads.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
from typing import Any

from benchmarks import record
from benchmarks.peers import data, processes, report
from benchmarks.peers.contenders import FRAMEWORKS, NOT_PRIVATE, Framework

# Of the memory there is, what processes may take.
SHARE = 0.8
STEPS = 4  # In a turn of a fast contender.
SLOW_TURNS = 3
FAST_MS, SLOW_MS, VERY_SLOW_MS = 250.0, 1500.0, 15_000.0
QUESTION = (
    "What does a private step cost over the same framework's step without "
    "privacy?"
)

Found = dict[str, Any]


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="small DLRMs, few turns"
    )
    parser.add_argument("--only", nargs="+", choices=list(FRAMEWORKS))
    parser.add_argument("--models", nargs="+", help="as dlrm or dlrm:10000")
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="most for a step"
    )
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        help="keep the figures; a full sitting keeps them anyway",
    )
    parser.add_argument(
        "--plot", type=pathlib.Path, help="draw them; so does a full sitting"
    )
    options = parser.parse_args()
    if not (options.quick or options.only or options.models):
        options.json = options.json or record.RESULTS / "peers.json"
        options.plot = options.plot or processes.ROOT / "docs" / "peers.png"
    if options.quick:
        options.turns, options.seconds = 6, 40.0
    options.only = options.only or list(FRAMEWORKS)
    return options


def settings(options: argparse.Namespace) -> list[data.Setting]:
    """What is measured."""
    chosen = list(data.SETTINGS)
    if options.quick:
        chosen = [s for s in chosen if s.model == "dlrm" and s.rows <= 10**5]
    if options.models:
        chosen = [
            s
            for s in data.SETTINGS
            if {s.model, f"{s.model}:{s.rows}"} & set(options.models)
        ]
    return chosen


def attempts(
    framework: Framework,
    setting: data.Setting,
    failed_before: dict[tuple[str, str], str],
    options: argparse.Namespace,
) -> dict[str, Found]:
    """What came of trying each contender; fast ones two at a time."""
    found: dict[str, Found] = {}

    def attempt(name: str, megabytes: float) -> None:
        before = failed_before.get((setting.model, name))
        if before:
            found[name] = {"failed": before}
            return
        said, why = processes.run(
            framework,
            setting,
            *("try", name),
            seconds=options.seconds,
            megabytes=megabytes,
        )
        found[name] = {**(said[-1] if said else {}), "failed": why}
        if why:
            failed_before[setting.model, name] = (
                f"not tried; with {setting.rows:,} rows: {why}"
            )
        say(setting, f"{name}: {why or 'works'}")

    fast = [name for name in framework.effects if name not in framework.slow]
    jobs = 2 if setting.rows < 10**6 else 1
    limit = SHARE * processes.available() / jobs
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda name: attempt(name, limit), fast))
    for name in framework.slow:
        attempt(name, SHARE * processes.available())
    return {name: found[name] for name in framework.effects}


def groups(framework: Framework, tried: dict[str, Found]) -> list[list[str]]:
    """Who takes turns in one process, always with the bases.

    The first private contender by itself, as a user's model would be; others
    together as far as memory goes.
    """
    most = SHARE * processes.available()
    works = [name for name, found in tried.items() if not found["failed"]]
    bases = [name for name in works if name in framework.bases]
    first, *others = [name for name in works if name not in bases] or [None]
    made = [[*bases, first] if first else list(bases)]
    for name in others:
        together = [*(made[-1] if len(made) > 1 else bases), name]
        kept = sum(tried[one]["kept_mb"] for one in together)
        step = max(tried[o]["peak_mb"] - tried[o]["kept_mb"] for o in together)
        if len(made) > 1 and kept + step <= most:
            made[-1] = together
        else:
            made.append([*bases, name])
    return made


def plan(ms: float, turns: int) -> tuple[int, int]:
    """How many turns, and steps in each."""
    if ms < FAST_MS:
        return turns, STEPS
    if ms < SLOW_MS:
        return max(turns // 2, SLOW_TURNS), 1
    return (SLOW_TURNS if ms < VERY_SLOW_MS else 1), 1


def measure(
    name: str,
    setting: data.Setting,
    failed_before: dict[tuple[str, str], str],
    options: argparse.Namespace,
) -> list[Found]:
    """Rows of figures of one framework and model."""
    framework = FRAMEWORKS[name].on(setting.model)
    tried = attempts(framework, setting, failed_before, options)
    turns: dict[str, dict[str, Any]] = {}
    for together in groups(framework, tried):
        plans = {c: plan(tried[c]["ms"], options.turns) for c in together}
        if NOT_PRIVATE in plans:  # It takes part in every turn.
            plans[NOT_PRIVATE] = (options.turns, plans[NOT_PRIVATE][1])
        said, why = processes.run(
            framework,
            setting,
            *("time", json.dumps(plans)),
            seconds=15 * 60,
            megabytes=SHARE * processes.available(),
        )
        for contender in together:
            if not why:
                turns[contender] = said[-1]["turns"]
            elif contender not in framework.bases:
                tried[contender]["failed"] = f"in turns with others: {why}"
        say(setting, f"{len(together)} took turns{': ' + why if why else ''}")
    rows = []
    for contender, found in tried.items():
        for base in framework.bases:
            if contender == base and base != NOT_PRIVATE:
                continue
            row = report.row(contender, base, tried, turns.get(contender))
            rows.append(
                {
                    "model": setting.model,
                    "rows": setting.rows,
                    "framework": name,
                    **row,
                    "failed": found["failed"],
                }
            )
            if contender == base:
                break
    return rows


def say(setting: data.Setting, what: str) -> None:
    """Tells how far it is."""
    print(f"  {setting.model}, {setting.rows:,} rows: {what}", flush=True)


def main() -> None:
    """Measures, prints and keeps."""
    options = arguments()
    rows: list[Found] = []
    versions = {}
    for name in options.only:
        print(name, flush=True)
        failed_before: dict[tuple[str, str], str] = {}
        versions[name] = report.versions(processes.python_of(FRAMEWORKS[name]))
        for setting in settings(options):
            rows += measure(name, setting, failed_before, options)
            if options.json is not None:
                kept = record.record(
                    QUESTION,
                    rows,
                    command="make bench-peers",
                    settings={
                        "threads": data.THREADS,
                        "turns": options.turns,
                        "seconds": options.seconds,
                        "environments": versions,
                    },
                )
                record.write(kept, options.json)
    report.show(rows)
    if options.plot is not None:
        report.plot(rows, options.plot)


if __name__ == "__main__":
    main()
