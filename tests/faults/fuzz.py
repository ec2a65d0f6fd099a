"""Malformed inputs of all families, drawn at random, and what comes of them.

    python -m tests.faults.fuzz --cases 1000 --seed 1 \
        --output benchmarks/results/faults.json

Cases run in a process of their own, which tells of each before it begins and
when it has ended: of one that dies, the case is known, and another process
goes on with the next. A case is known by its number and the seed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from tests.faults.seen import (
    CHARGED,
    CRASHED,
    PAID,
    REFUSED,
    WRONG,
)

QUESTION = (
    "Does any malformed input crash a process, take a step that is not paid, "
    "or decide silently whether a step is taken?"
)
_PATIENCE = 300  # Seconds for one case, before its process counts as dead.


def run_cases(first: int, last: int, seed: int) -> Iterator[dict[str, Any]]:
    """Runs cases in this process; tells of each before and after."""
    import numpy as np

    from tests.faults import malformed, stored
    from tests.faults.seen import verdict

    families = {**malformed.FAMILIES, **stored.FAMILIES}
    names = list(families)
    for case in range(first, last):
        family = names[case % len(names)]
        yield {"case": case, "family": family}
        seen = families[family](np.random.default_rng([seed, case]))
        yield {
            "case": case,
            "family": family,
            "verdict": verdict(seen),
            "charged": seen.spent > 0,
            "error": seen.error,
        }


def _tell(first: int, last: int, seed: int) -> None:
    # TensorFlow writes to standard output too.
    with os.fdopen(os.dup(1), "w") as told:
        for line in run_cases(first, last, seed):
            told.write("case " + json.dumps(line) + "\n")
            told.flush()


def in_processes(
    cases: int,
    seed: int,
    command: Sequence[str] = ("-m", "tests.faults.fuzz"),
) -> list[dict[str, Any]]:
    """What came of all cases, those among them that killed their process.

    Args:
      cases: How many.
      seed: Of all of them.
      command: What the interpreter is told to run; for the test of this.
    """
    found: list[dict[str, Any]] = []
    first = 0
    while first < cases:
        begun: dict[str, Any] = {}
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        child = subprocess.Popen(
            [
                *(sys.executable, *command, "--seed", str(seed)),
                *("--first", str(first), "--cases", str(cases)),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        for line in child.stdout or ():
            if not line.startswith("case "):
                continue
            told = json.loads(line.removeprefix("case "))
            if "verdict" in told:
                found.append(told)
                first = told["case"] + 1
                if told["verdict"] in WRONG:
                    print(told, flush=True)
            begun = told
        child.wait(_PATIENCE)
        if first < cases:
            first = begun.get("case", first)
            found.append({**begun, "verdict": CRASHED, "charged": False})
            errors.seek(0)
            print("died:", found[-1], errors.read()[-500:].decode(), flush=True)
            first += 1
    return found


def table(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each family, and one for all."""
    families = list(dict.fromkeys(one["family"] for one in found))
    rows = []
    for family in [*families, "all"]:
        own = [one for one in found if family in (one["family"], "all")]
        counts = collections.Counter(one["verdict"] for one in own)
        rows.append(
            {
                "family": family,
                "cases": len(own),
                REFUSED: counts[REFUSED],
                CHARGED: sum(
                    one["charged"] for one in own if one["verdict"] == REFUSED
                ),
                PAID: counts[PAID],
                **{phrase: counts[phrase] for phrase in WRONG},
            }
        )
    return rows


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first is not None:
        _tell(given.first, given.cases, given.seed)
        return
    from benchmarks import record

    found = in_processes(given.cases, given.seed)
    rows = table(found)
    for row in rows:
        print(row)
    if given.output is not None:
        command = (
            f"python -m tests.faults.fuzz --cases {given.cases} "
            f"--seed {given.seed} --output {given.output}"
        )
        settings = {
            "cases": given.cases,
            "seed": given.seed,
            "left out": ".weights.h5 on full disks, where HDF5 itself may "
            "end the process",
        }
        record.write(
            record.record(QUESTION, rows, command=command, settings=settings),
            given.output,
        )
    sys.exit(any(one["verdict"] in WRONG for one in found))


if __name__ == "__main__":
    _main()
