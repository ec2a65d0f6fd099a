"""Accuracy against epsilon for every mechanism and mode, at equal privacy.

    make bench-accuracy
    make bench-accuracy ARGS="--data directory --minutes 30"
    make bench-accuracy ARGS="--sets goodbooks --only 'dense noise'"
    make bench-accuracy ARGS=--report

Matrix factorisation of ratings and check-ins, a bias and 8 factors for every
user and item; and a factorisation machine for a click log that is made up.
`data.read` says what the files hold. All contenders have the same batches,
steps, clip norm and delta, plain SGD (denoised sums: dual averaging), and a
learning rate that was chosen in the same way: the best of 1, 3, 10, 30 and so
on at epsilon = 2 on seed 0, by AUC on examples that are neither trained on nor
reported, and in proportion to the root of epsilon elsewhere. Noise and batches
are the operating system's, so that figures move from run to run.

Runs come in an order in which the most telling ones are first. What is done
is kept, a line for each run, and not done again: stop it when you like, and
start it again. At the end, or with --report, a record and a figure are made of
whatever there is.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from benchmarks.accuracy import click_log, contenders, data, report
from benchmarks.accuracy.contenders import Setting
from benchmarks.accuracy.runs import Done, Runner, rate_at
from benchmarks.record import RESULTS

ROOT = pathlib.Path(__file__).parents[2]
BY_EXAMPLE = Setting(steps=200, batch_size=8192)
BY_USER = Setting(steps=100, batch_size=4096, unit="user", examples_per_user=4)
CLICKS = Setting(steps=60, batch_size=8192, rates=(1.0, 10.0, 100.0, 1000.0))
CLICK_ROWS = 1_000_000
# Those that do well, or that others are compared with; and the rest.
SOME = (
    contenders.NOT_PRIVATE,
    contenders.DENSE,
    contenders.DENOISED,
    "projection, rows",
    "partition selection above 1",
)
MORE = (
    contenders.FREQUENCY,
    contenders.LAZY,
    "partition selection",
    "threshold",
)
LAST = ("threshold, SURE", "projection, coordinates")
OTHERS = ("threshold, 1000 rows", "Laplace", *contenders.PURE)


@dataclasses.dataclass(frozen=True)
class Stage:
    """Runs that belong together."""

    data: str
    setting: Setting
    names: Sequence[str]
    epsilons: Sequence[float]
    seeds: Sequence[int] = (0, 1, 2)


FIRST, THEN, OF_CLICKS = (2.0, 8.0, 0.5), (1.0, 4.0), (2.0, 1.0, 4.0)
BOOKS, FILMS, PLACES = data.NAMES
RATED = (BOOKS, FILMS)
# Each of them once, and then with more seeds.
STAGES = (
    *(Stage(name, BY_EXAMPLE, SOME, FIRST, (0,)) for name in data.NAMES),
    Stage(BOOKS, BY_EXAMPLE, MORE + LAST, FIRST, (0,)),
    Stage(BOOKS, BY_EXAMPLE, SOME, FIRST),
    Stage(BOOKS, BY_EXAMPLE, SOME, THEN, (0,)),
    Stage(click_log.NAME, CLICKS, (contenders.CLIPPED,), (2.0,), (0,)),
    Stage(click_log.NAME, CLICKS, SOME, OF_CLICKS, (0,)),
    Stage(BOOKS, BY_USER, SOME, FIRST, (0,)),
    Stage(click_log.NAME, CLICKS, MORE, OF_CLICKS, (0,)),
    Stage(FILMS, BY_USER, SOME, FIRST, (0,)),
    *(Stage(name, BY_EXAMPLE, SOME, THEN, (0,)) for name in data.NAMES),
    *(Stage(name, BY_EXAMPLE, MORE, FIRST, (0,)) for name in data.NAMES),
    *(Stage(name, BY_EXAMPLE, SOME, FIRST) for name in data.NAMES),
    *(Stage(name, BY_USER, SOME, FIRST) for name in RATED),
    Stage(BOOKS, BY_EXAMPLE, OTHERS, (2.0, 8.0), (0,)),
    *(Stage(name, BY_EXAMPLE, MORE, FIRST) for name in data.NAMES),
    *(Stage(name, BY_EXAMPLE, LAST, FIRST) for name in data.NAMES),
    *(Stage(name, BY_EXAMPLE, SOME + MORE, THEN) for name in data.NAMES),
    *(Stage(name, BY_EXAMPLE, LAST, THEN) for name in data.NAMES),
    *(Stage(name, BY_USER, SOME, THEN) for name in RATED),
    *(Stage(name, BY_USER, (contenders.LAZY,), FIRST + THEN) for name in RATED),
    Stage(click_log.NAME, CLICKS, SOME + MORE, OF_CLICKS, (1,)),
    Stage(FILMS, BY_EXAMPLE, (contenders.BIAS,), (2.0,), (0,)),
    Stage(BOOKS, BY_EXAMPLE, OTHERS, (2.0, 8.0)),
)


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        default=ROOT.parent / "shared" / "data",
        help="where goodbooks.npz, movietweetings.npz and gowalla.npz are",
    )
    parser.add_argument("--sets", nargs="+", metavar="NAME")
    parser.add_argument("--only", nargs="+", choices=contenders.NAMES)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument(
        "--results", type=pathlib.Path, default=RESULTS / "accuracy_runs.jsonl"
    )
    parser.add_argument("--report", action="store_true", help="run nothing")
    return parser.parse_args()


def jobs(stage: Stage, runner: Runner, names: Sequence[str]) -> Iterator[None]:
    """Does the runs of a stage, one for each time it is asked for more."""
    for name in names:
        for epsilon in stage.epsilons:
            if name in contenders.NO_NOISE and epsilon != stage.epsilons[0]:
                continue
            for seed in stage.seeds:
                # Seed 0 has been tuned with, whatever the stage's seeds are.
                rate = rate_at(epsilon, runner.tuned(name, 0))
                if name in contenders.NO_NOISE:
                    rate = runner.tuned(name, 0)
                runner.run(name, epsilon, rate, seed)
                yield


def asked(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """What all runs of each row of the table have in common."""
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    for stage in stages:
        for name in stage.names:
            for epsilon in stage.epsilons:
                private = name not in contenders.NO_NOISE
                case = {
                    "data": stage.data,
                    **stage.setting.told(),
                    "contender": name,
                    "epsilon": epsilon if private else None,
                }
                cases.setdefault(tuple(case.values()), case)
    return list(cases.values())


def main() -> None:
    """Runs what is not done yet, and reports all of it."""
    options = arguments()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")
    done = Done(options.results)
    end = time.monotonic() + 60 * options.minutes
    sets: dict[str, data.Data] = {}
    for stage in () if options.report else STAGES:
        path = options.data / f"{stage.data}.npz"
        made_up = stage.data == click_log.NAME
        names = [n for n in stage.names if n in (options.only or stage.names)]
        if options.sets and stage.data not in options.sets:
            continue
        if not made_up and not path.exists():
            print(f"{path} is not there: nothing is run on it.")
            continue
        if stage.data not in sets:
            sets[stage.data] = (
                click_log.made_up(CLICK_ROWS) if made_up else data.read(path)
            )
        runner = Runner(done, sets[stage.data], stage.setting)
        for _ in jobs(stage, runner, names):
            if time.monotonic() > end:
                break
    report.report(done.runs, asked(STAGES))


if __name__ == "__main__":
    main()
