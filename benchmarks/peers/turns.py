"""What runs inside an environment: one contender tried, or several timed.

Each environment's module says which contenders it has and hands over to
`main`. It prints a line of JSON for each thing found, which the driver reads.

- `try NAME`: sets it up, takes a few steps, looks whether it did what it says,
  and how much memory it took. A process of its own for each contender.
- `time NAMES`: contenders take turns, some steps each, in changing order, so
  that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.peers import data
from benchmarks.peers.contenders import FRAMEWORKS, NOISE, NOTHING
from benchmarks.this_process import forget_peak, resident, timed

TRIED_STEPS = 6
SLOW_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Contender:
    """A model that was set up.

    Attributes:
      step: Takes the next batch of the pool and updates all weights; returns
        what `loss` understands, when all is done.
      loss: The number in what `step` returned.
      rows: Some rows of the first table, as anyone would read them.
    """

    step: Callable[[], Any]
    loss: Callable[[Any], float]
    rows: Callable[[np.ndarray], np.ndarray]


Make = Callable[[str, data.Setting], Contender]


def say(**found: Any) -> None:
    """A line for the driver."""
    print(json.dumps(found), flush=True)


def attempt(make: Make, name: str, setting: data.Setting, effect: str) -> None:
    """Sets a contender up, takes steps, and looks at what they did."""
    begin = time.perf_counter()
    contender = make(name, setting)
    untouched = data.not_looked_up(setting, TRIED_STEPS)
    before = contender.rows(untouched)
    say(phase="set up", seconds=time.perf_counter() - begin)
    begin = time.perf_counter()
    contender.step()
    say(phase="first step", seconds=time.perf_counter() - begin)
    gc.collect()
    forget_peak()
    steps, clock = 1, 0.0
    while steps < TRIED_STEPS and clock < 1e3 * SLOW_SECONDS:
        begin = time.perf_counter()
        out = contender.step()
        clock = 1e3 * (time.perf_counter() - begin)
        steps += 1
    peak, kept = resident(peak=True) / 1e6, resident() / 1e6
    loss = contender.loss(out)
    share = look(contender.rows(untouched) - before, effect, steps, setting)
    if not np.isfinite(loss):
        raise RuntimeError(f"the loss is {loss}")
    say(
        phase="tried",
        ms=clock,
        peak_mb=peak,
        kept_mb=kept,
        loss=loss,
        noised=share,
    )


def look(
    change: np.ndarray, effect: str, steps: int, setting: data.Setting
) -> float:
    """The share of rows that moved, after making sure that the right ones did.

    Where all rows get noise, its size has to be right to 5 %: there are some
    thousand rows, so that chance moves it by less than 1 %.
    """
    share = float(np.mean(np.any(change != 0, -1)))
    if effect == NOTHING and share:
        raise RuntimeError(f"{share:.0%} of untouched rows changed")
    if effect == NOISE:
        expected = data.RATE * data.CLIP_NORM * data.NOISE_MULTIPLIER
        expected *= np.sqrt(steps) / setting.batch_size
        ratio = float(np.std(change, dtype=np.float64) / expected)
        if not 0.95 < ratio < 1.05:
            raise RuntimeError(
                f"noise on untouched rows is {ratio:.3g} times what it should "
                f"be, on {share:.0%} of them"
            )
    return share


def take_turns(
    contenders: Mapping[str, Contender],
    plan: Mapping[str, tuple[int, int]],
) -> dict[str, list[tuple[int, float, float]]]:
    """For each contender the turns it took part in, and milliseconds.

    Args:
      contenders: By name.
      plan: In how many turns each takes part, and with how many steps. Those
        that take part in few are spread over all.
    """
    found: dict[str, list[Any]] = {name: [] for name in contenders}
    rng = np.random.default_rng(data.SEED)
    last = max(turns for turns, _ in plan.values())
    for turn in range(last):
        for name in rng.permutation(sorted(contenders)):
            turns, count = plan[name]
            if turn * turns // last == (turn - 1) * turns // last:
                continue
            if count > 1:  # What others left in the caches is not its own.
                contenders[name].step()
            found[name].append((turn, *timed(contenders[name].step, count)))
    return found


def main(make: Make, framework: str) -> None:
    """Does what the driver asks for.

    Args:
      make: Sets up a contender.
      framework: Whose contenders.
    """
    effects = FRAMEWORKS[framework].effects
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, required=True)
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("try").add_argument("name", choices=list(effects))
    timing = tasks.add_parser("time")
    timing.add_argument("plan", help="JSON: name, turns and steps of each")
    options = parser.parse_args()
    setting = data.Setting(options.model, options.rows)
    # Rather this process than another, should memory run out.
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
    if options.task == "try":
        attempt(make, options.name, setting, effects[options.name])
        return
    plan: dict[str, Sequence[int]] = json.loads(options.plan)
    contenders = {}
    for name, (_, count) in plan.items():
        contenders[name] = make(name, setting)
        for _ in range(min(count, 2)):
            contenders[name].step()
    turns = take_turns(contenders, {k: (v[0], v[1]) for k, v in plan.items()})
    say(phase="timed", turns=turns)
