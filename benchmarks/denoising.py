"""What to make of a noisy sum of gradients, at equal privacy.

    python benchmarks/denoising.py --data goodbooks.npz
    python benchmarks/denoising.py --steps 100 --only dense column

Matrix factorisation trained by DP-SGD with dense noise: a row of 9 numbers for
every user and item, one of them a bias. What is released is S, the running sum
of the clipped and noised gradients, whose noise in every coordinate has the
known variance V. The weights are W_0 - rate * f(S) / batch size, where f is one
of the denoisers in denoisers.py: a function of S and V alone, so of what is
released, and never of which rows the batches held.

The file has arrays `user`, `book` or `movie` or `item`, and `rating` (good from
the threshold in GOOD), of which one in ten is held out; or `train_user`,
`train_item`, `test_user` and `test_item`, where an example is a pair together
with one item drawn at random as what was not chosen. Without a file, ratings
are made up.

All runs of one seed see the same batches and the same noise, and are made in
one pass. What is done already is kept in the file for --results, a line for
each run, and not done again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import denoisers as by
import numpy as np
from scipy import stats

import tf_sparse_dp as tsdp

Array = np.ndarray

WIDTH = by.WIDTH
GOOD = {"goodbooks": 4, "movietweetings": 8}
INITIAL_STDDEV = 0.1

# What may be changed besides the denoiser: how S is summed, and what is read.


def steady(progress: float) -> float:
    """The same rate throughout."""
    return 1.0


def linear_decay(progress: float) -> float:
    """From the rate to none."""
    return 1 - progress


def warmup(progress: float) -> float:
    """From none to the rate over the first tenth."""
    return min(1.0, 0.1 + 9 * progress)


@dataclasses.dataclass(frozen=True)
class Method:
    """A way from gradients to weights.

    Attributes:
        fit: What denoises the sum.
        refresh: Steps after which it is fit again; early on more often.
        sample: Rows it is fit to, always the same; all unless given.
        keep: What is kept of the sum at each step; less than 1 forgets.
        schedule: What gradients count for, by how much of training is done.
        average_from: Share of training after which weights are averaged.
        last: What denoises the sum after the last step, if something else.
    """

    fit: by.Fit
    refresh: int = 10
    sample: int | None = None
    keep: float = 1.0
    schedule: Callable[[float], float] = steady
    average_from: float | None = None
    last: by.Fit | None = None


METHODS = {
    "dense": Method(by.dense),
    "dense, tail average": Method(by.dense, average_from=0.5),
    "dense, average": Method(by.dense, average_from=0.0),
    "dense, decay": Method(by.dense, schedule=linear_decay),
    "dense, warmup": Method(by.dense, schedule=warmup),
    "dense, forgetting .997": Method(by.dense, keep=0.997),
    "column": Method(by.column),
    "column, every 100": Method(by.column, refresh=100),
    "column, 4096 rows": Method(by.column, sample=4096),
    "column, 1024 rows": Method(by.column, sample=1024),
    "column, 1024 rows, every 100": Method(by.column, sample=1024, refresh=100),
    "column, tail average": Method(by.column, average_from=0.5),
    "column, decay": Method(by.column, schedule=linear_decay),
    "column, warmup": Method(by.column, schedule=warmup),
    "column, forgetting .997": Method(by.column, keep=0.997),
    "column, forgetting .999": Method(by.column, keep=0.999),
    "cautious column, 1024 rows": Method(by.cautious_column, 100, 1024),
    "cautious column, 4096 rows": Method(by.cautious_column, 100, 4096),
    "column, half": Method(by.column_less),
    "column, double": Method(by.column_more),
    "column, root": Method(by.column_root),
    "column, at last by rows": Method(by.column, last=by.row_mixture),
    "centred column": Method(by.centred_column),
    "wiener": Method(by.wiener),
    "row": Method(by.row),
    "row and column": Method(by.row_and_column),
    "soft row": Method(by.soft_row),
    "soft row by SURE": Method(by.soft_row_sure, refresh=100, sample=4096),
    "soft": Method(by.soft),
    "soft by SURE": Method(by.soft_sure, refresh=100, sample=4096),
    "column mixture": Method(by.column_mixture, refresh=100, sample=4096),
    "row mixture": Method(by.row_mixture, refresh=100, sample=4096),
    "wiener mixture": Method(by.wiener_mixture, refresh=100, sample=4096),
    "spike and slab": Method(by.spike_and_slab, refresh=100, sample=4096),
}


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples: a user [n], items [n, p], and a label [n, p] for each item."""

    user: Array
    item: Array
    label: Array

    def __getitem__(self, index: Array | slice) -> Examples:
        return Examples(self.user[index], self.item[index], self.label[index])


@dataclasses.dataclass(frozen=True)
class Data:
    """What is trained on, what is held out, and the rows of both tables."""

    train: Examples
    test: Examples
    rows: tuple[int, int]


def rated(
    user: Array, item: Array, label: Array, rows: tuple[int, int]
) -> Data:
    """Ratings in an order that is always the same, a tenth held out."""
    order = np.random.default_rng(1).permutation(len(user))
    label = label.astype(np.float32)
    examples = Examples(user, item[:, None], label[:, None])[order]
    held_out = len(user) // 10
    return Data(examples[held_out:], examples[:held_out], rows)


def chosen(user: Array, item: Array, items: int, seed: int) -> Examples:
    """Pairs, each with another item at random that was not chosen."""
    rng = np.random.default_rng(seed)
    other = (item + rng.integers(1, items, len(item))) % items
    label = np.tile(np.array([1, 0], np.float32), (len(item), 1))
    return Examples(user, np.stack([item, other], 1), label)


def read(path: pathlib.Path | None) -> Data:
    """The data in a file, or made up."""
    if path is None:
        rng = np.random.default_rng(1)
        size, rows = 400_000, (20_000, 5_000)
        user, item = (rng.zipf(1.2, size) % count for count in rows)
        taste, kind = (rng.standard_normal((count, 4)) for count in rows)
        score = (taste[user] * kind[item]).sum(1) + kind[item, 0]
        return rated(user, item, score + rng.logistic(size=size) > 0, rows)
    with np.load(path) as file:
        arrays = {name: file[name].astype(np.int64) for name in file}
    if "rating" in arrays:
        user = arrays["user"]
        item = next(arrays[n] for n in ("book", "movie", "item") if n in arrays)
        user, item = (
            np.unique(a, return_inverse=True)[1] for a in (user, item)
        )
        good = arrays["rating"] >= GOOD.get(path.stem, 4)
        return rated(user, item, good, (user.max() + 1, item.max() + 1))
    users, items = (
        int(max(arrays[f"{part}_{name}"].max() for part in ("train", "test")))
        + 1
        for name in ("user", "item")
    )
    train, test = (
        chosen(arrays[f"{part}_user"], arrays[f"{part}_item"], items, seed)
        for seed, part in enumerate(("train", "test"))
    )
    return Data(train, test, (users, items))


class Segments:
    """Which rows of a table a batch holds, for sums over equal rows."""

    def __init__(self, rows: Array) -> None:
        self.order = np.argsort(rows, kind="stable")
        rows = rows[self.order]
        self.start = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
        self.rows = rows[self.start]

    def add(self, total: Array, values: Array) -> None:
        """Adds values to the rows they belong to."""
        total[self.rows] += np.add.reduceat(values[self.order], self.start)


class Table:
    """The initial value and the noisy sum of a table, and how it is read."""

    def __init__(self, method: Method, initial: Array, scale: float) -> None:
        self.method, self.initial, self.scale = method, initial, scale
        self.total = np.zeros_like(initial)
        self.variance = 0.0
        self.shrink: by.Shrink = by.dense(self.total, 0.0)
        self.average = np.zeros_like(initial)
        self.averaged = 0
        rows = np.random.default_rng(2).permutation(len(initial))
        self.sample = rows[: method.sample] if method.sample else slice(None)

    def read(self, rows: Array | slice) -> Array:
        shrunk = self.shrink(self.total[rows], self.variance)
        return self.initial[rows] - self.scale * shrunk

    def add(
        self,
        held: Segments,
        values: Array,
        noise: Array,
        stddev: float,
        weight: float,
    ) -> None:
        """One step's clipped gradients and noise."""
        keep = self.method.keep
        if keep != 1:
            self.total *= np.float32(keep)
        if weight != 1:
            noise, values = (a * np.float32(weight) for a in (noise, values))
        self.total += noise
        held.add(self.total, values)
        self.variance = keep**2 * self.variance + (weight * stddev) ** 2

    def refit(self, last: bool) -> None:
        fit = self.method.last if last and self.method.last else self.method.fit
        self.shrink = fit(self.total[self.sample], self.variance)

    def accumulate(self) -> None:
        self.average += self.read(slice(None))
        self.averaged += 1

    def final(self) -> Array:
        if self.averaged:
            return self.average / self.averaged
        return self.read(slice(None))


def scores(user: Array, item: Array) -> Array:
    """Biases and a product, of rows [m, k] and [m, p, k]."""
    product = np.einsum("mk,mpk->mp", user[:, 1:], item[..., 1:])
    return user[:, None, 0] + item[..., 0] + product


class Run:
    """One method with one learning rate, as it trains."""

    def __init__(
        self, method: Method, rate: float, batch: int, initial: list[Array]
    ) -> None:
        self.method, self.rate, self.batch = method, rate, batch
        self.user, self.item = (
            Table(method, value, rate / batch) for value in initial
        )
        self.bias = 0.0

    def step(
        self,
        examples: Examples,
        held: tuple[Segments, Segments],
        noise: tuple[Array, Array, float],
        stddev: float,
        step: int,
        steps: int,
    ) -> None:
        """One step of logistic regression on products of rows."""
        user, item = self.user, self.item
        wu, wi = user.read(examples.user), item.read(examples.item)
        score = self.bias + scores(wu, wi)
        error = 1 / (1 + np.exp(-np.clip(score, -30, 30))) - examples.label
        wu[:, 0], wi[..., 0] = 1, 1  # What a bias is multiplied by.
        gu = np.einsum("mp,mpk->mk", error, wi)
        both = error.sum(1)
        square = (gu**2).sum(1) + (error**2).sum(1) * (wu**2).sum(1) + both**2
        clip = 1 / np.maximum(1, np.sqrt(square))
        error *= clip[:, None]
        gu *= clip[:, None]
        gi = (error[..., None] * wu[:, None]).reshape(-1, WIDTH)
        weight = self.method.schedule(step / steps)
        user.add(held[0], gu, noise[0], stddev, weight)
        item.add(held[1], gi, noise[1], stddev, weight)
        gradient = float((both * clip).sum()) + noise[2]
        self.bias -= min(self.rate, 1.0) * weight * gradient / self.batch
        done = step + 1
        early = done < self.method.refresh and done & (done - 1) == 0
        if early or done % self.method.refresh == 0 or done == steps:
            user.refit(done == steps)
            item.refit(done == steps)
        start = self.method.average_from
        if start is not None and done > start * steps and done % 10 == 0:
            user.accumulate()
            item.accumulate()

    def auc(self, test: Examples) -> float:
        """Probability that a good one scores above a bad one."""
        user, item = self.user.final()[test.user], self.item.final()[test.item]
        good = test.label.ravel() > 0
        ranks = stats.rankdata(scores(user, item).ravel())[good].sum()
        count = good.sum()
        pairs = count * (len(good) - count)
        return float((ranks - count * (count + 1) / 2) / pairs)


def train(
    data: Data,
    which: list[tuple[str, float]],
    batch_size: int,
    steps: int,
    stddev: float,
    seed: int,
) -> list[float]:
    """AUC of each method and rate, all with the same batches and noise."""
    rng = np.random.default_rng(seed)
    initial = [
        rng.normal(0, INITIAL_STDDEV, (rows, WIDTH)).astype(np.float32)
        for rows in data.rows
    ]
    for value in initial:
        value[:, 0] = 0
    runs = [
        Run(METHODS[name], rate, batch_size, initial) for name, rate in which
    ]
    noise = [np.empty_like(value) for value in initial]
    size = len(data.train.user)
    for step in range(steps):
        count = rng.binomial(size, batch_size / size)
        batch = data.train[rng.choice(size, count, replace=False)]
        held = Segments(batch.user), Segments(batch.item.ravel())
        for values in noise:
            rng.standard_normal(dtype=np.float32, out=values)
            values *= np.float32(stddev)
        drawn = noise[0], noise[1], stddev * rng.standard_normal()
        for run in runs:
            run.step(batch, held, drawn, stddev, step, steps)
    return [run.auc(data.test) for run in runs]


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[30.0, 100.0, 300.0]
    )
    parser.add_argument("--only", nargs="+", choices=METHODS, metavar="METHOD")
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=pathlib.Path("denoising.jsonl"),
    )
    return parser.parse_args()


def main() -> None:
    """Makes the runs that are not done yet, and prints all of them."""
    options = arguments()
    data = read(options.data)
    plan = tsdp.PrivacyPlan(
        epsilon=options.epsilon,
        delta=options.delta,
        sampling=tsdp.PoissonSampling(
            num_examples=len(data.train.user),
            batch_size=options.batch_size,
            steps=options.steps,
        ),
    )
    setting = {
        "data": options.data.stem if options.data else "made up",
        "epsilon": options.epsilon,
        "delta": options.delta,
        "batch_size": options.batch_size,
        "steps": options.steps,
    }
    print(setting, f"noise multiplier {plan.noise_multiplier:.3f}", flush=True)
    options.results.touch()
    lines = options.results.read_text().splitlines()
    done = [json.loads(line) for line in lines]
    wanted = [
        {**setting, "seed": seed, "method": name, "rate": rate}
        for seed in options.seeds
        for name in options.only or METHODS
        for rate in options.rates
    ]
    for seed in options.seeds:
        new = [
            run
            for run in wanted
            if run["seed"] == seed
            and not any(run.items() <= old.items() for old in done)
        ]
        # Passes of some runs, so that little is lost if one is stopped.
        for start in range(0, len(new), 12):
            runs = new[start : start + 12]
            begin = time.perf_counter()
            aucs = train(
                data,
                [(run["method"], run["rate"]) for run in runs],
                options.batch_size,
                options.steps,
                plan.noise_multiplier,
                seed,
            )
            seconds = (time.perf_counter() - begin) / len(runs)
            for run, value in zip(runs, aucs, strict=True):
                done.append({**run, "auc": value, "seconds": seconds})
                with options.results.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    for run in wanted:
        run = next(old for old in done if run.items() <= old.items())
        print(
            f"{run['method']:30} seed {run['seed']} rate {run['rate']:6g}  "
            f"AUC {run['auc']:.4f}"
        )


if __name__ == "__main__":
    main()
