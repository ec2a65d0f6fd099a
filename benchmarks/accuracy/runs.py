"""Runs, each of them done once; and which learning rate they have."""

from __future__ import annotations

import gc
import json
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.accuracy import contenders
from benchmarks.accuracy.contenders import NO_NOISE, Contender, Setting
from benchmarks.accuracy.data import Data
from benchmarks.accuracy.metrics import auc
from benchmarks.accuracy.models import ranking_scores, scores

TUNED_AT = 2.0
SMALLEST, LARGEST = 1e-2, 1e6
Run = dict[str, Any]


class Done:
    """Runs that were done, in a file with a line for each.

    Args:
      path: The file; it need not be there.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.runs: list[Run] = []
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            # A run that was cut off while it was written is not done.
            whole = [line for line in lines if line.endswith("\n")]
            self.runs = [json.loads(line) for line in whole]
            if len(whole) < len(lines):
                path.write_text("".join(whole))

    def __call__(
        self, asked: Mapping[str, Any], measure: Callable[[], Run]
    ) -> Run:
        """What a run found, from the file if it was done before.

        Args:
          asked: What tells this run from others.
          measure: Does it, and says what it found.
        """
        for run in self.runs:
            if asked.items() <= run.items():
                return run
        begin = time.process_time()
        run = {**asked, **measure()}
        run["seconds"] = round(time.process_time() - begin, 1)
        self.runs.append(run)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(run) + "\n")
        return run


def best_rate(score: Callable[[float], float], first: Sequence[float]) -> float:
    """The best of a grid: 1, 3, 10, 30 and so on.

    Some rates are tried, and then neighbours of the best one, until both of
    them are known. Scores that are not a number lose.

    Args:
      score: Of a rate; the larger, the better.
      first: Which rates are tried first.
    """

    def tried(rate: float) -> float:
        found = score(rate)
        return -math.inf if math.isnan(found) else found

    found = {rate: tried(rate) for rate in first}
    while True:
        best = max(found, key=found.__getitem__)
        unknown = [
            rate
            for rate in (neighbour(best, 1), neighbour(best, -1))
            if rate not in found and SMALLEST <= rate <= LARGEST
        ]
        if not unknown:
            return best
        found[unknown[0]] = tried(unknown[0])


def neighbour(rate: float, step: int) -> float:
    """The next of 1, 3, 10, 30 and so on, up or down."""
    place = round(2 * math.log10(rate)) + step
    return float(f"{10 ** (place / 2):.0e}")


def rate_at(epsilon: float | None, tuned: float) -> float:
    """The rate for an epsilon, from the one that was best at `TUNED_AT`.

    In proportion to the root of epsilon. That is how the best rate of dense
    noise grew where it was tuned at several, so the rule was made for the
    baseline; all have the same one.
    """
    if epsilon is None:
        return tuned
    return float(f"{tuned * math.sqrt(epsilon / TUNED_AT):.2g}")


class Runner:
    """Trains and tests on one data set, for one unit of privacy.

    Args:
      done: What was done before, and whatever will be.
      data: The data set.
      setting: What is the same for all contenders.
    """

    def __init__(self, done: Done, data: Data, setting: Setting):
        self._done, self._data, self._setting = done, data, setting
        self._asked = {
            "data": data.name,
            "entries": data.entries,
            **setting.told(),
        }

    def run(
        self, name: str, epsilon: float | None, rate: float, seed: int
    ) -> Run:
        """One training, and how good its model is."""
        epsilon = None if name in NO_NOISE else epsilon
        asked = {
            **self._asked,
            "contender": name,
            "epsilon": epsilon,
            "rate": rate,
            "seed": seed,
        }
        before = len(self._done.runs)
        run = self._done(
            asked, lambda: self._measured(name, epsilon, rate, seed)
        )
        if len(self._done.runs) > before:
            self._print(run)
        return run

    def tuned(self, name: str, seed: int, epsilon: float = TUNED_AT) -> float:
        """The rate that is best on what is held out for tuning."""
        name = contenders.TUNED_AS.get(name, name)
        return best_rate(
            lambda rate: self.run(name, epsilon, rate, seed)["valid_auc"],
            self._setting.rates,
        )

    def _measured(
        self, name: str, epsilon: float | None, rate: float, seed: int
    ) -> Run:
        tf.keras.backend.clear_session()
        gc.collect()
        tf.keras.utils.set_random_seed(seed)
        data = self._data
        trained = Contender(name, data, self._setting, epsilon, rate)
        trained.train()
        found: Run = {
            f"{part}auc": round(
                auc(examples.label, scores(trained.model, examples)), 5
            )
            for part, examples in (("valid_", data.valid), ("", data.test))
        }
        if data.ranking is not None:
            ranked = ranking_scores(
                trained.model, data.ranking.users, data.tables["items"]
            )
            for metric, value in data.ranking.metrics(ranked).items():
                found[metric] = round(value, 5)
        return {**found, "written": round(trained.written(), 1)}

    @staticmethod
    def _print(run: Run) -> None:
        epsilon = run["epsilon"] or math.inf
        print(
            f"{run['data']:14} {run['unit']:8} {run['contender']:27} "
            f"epsilon {epsilon:4g}  seed {run['seed']}  rate {run['rate']:6g}  "
            f"AUC {run['auc']:.4f}  {run['seconds']:5.1f} s",
            flush=True,
        )
