"""What steps and releases cost, by the rows of records.

Each function takes a record's rows and returns a `Finding`. What a claim needs
and the rows do not have raises: nothing holds for want of rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from benchmarks.claims.claim import Finding, Row, having

# What a step may take over the step that is not private; or this much more.
STEP_RATIO, TRANSFORMER_RATIO, EXTRA_MS = 1.25, 1.45, 3.0
# A cost that does not depend on the table may differ by this much.
GROWTH = 1.15
# How much cheaper than dense noise a sparse release has to be.
CHEAPER = 50
# What peers are compared on: the model with 26 tables, from here on.
COMPARED, LARGE = "dlrm", 10**5
OURS = "tf_sparse_dp"
# What frameworks do without privacy; "not private" updates rows alone.
BASE = "not private"
NOT_PRIVATE = (
    *(BASE, "clipping alone", "keras Embedding", "keras SGD"),
    *("torch Embedding", "jax grad"),
)


# peers.json: model, rows, framework, contender, base, ratio, extra ms, failed.


def lazy_step(rows: Sequence[Row]) -> Finding:
    """The largest ratio of our step with lazy noise, over all sizes."""
    ours = having(rows, framework=OURS, contender="lazy noise", base=BASE)
    broken, kept, longer = [], {False: [0.0], True: [0.0]}, [0.0]
    for row in ours:
        where = f"{row['model']}, {row['rows']:,} rows"
        if row["failed"]:
            broken.append(f"{where}: {row['failed']}")
            continue
        special = _transformer(row["model"])
        limit = TRANSFORMER_RATIO if special else STEP_RATIO
        if row["ratio"] <= limit:
            kept[special].append(row["ratio"])
        elif row["extra ms"] <= EXTRA_MS:
            longer.append(row["extra ms"])
        else:
            broken.append(
                f"{where}: {row['ratio']:.2f} > {limit} and "
                f"{row['extra ms']:.1f} ms > {EXTRA_MS:g} ms"
            )
    sizes = sorted({row["rows"] for row in ours})
    if len(sizes) < 2:
        broken.append("one size of the table shows no growth")
    return Finding(
        figures={
            "ratio": max(kept[False]),
            "transformer": f" ({max(kept[True]):.2f} for a transformer)"
            if len(kept[True]) > 1
            else "",
            "longer": f", or {max(longer):.1f} ms longer"
            if len(longer) > 1
            else "",
            "least": sizes[0],
            "most": sizes[-1],
        },
        broken=broken,
    )


def cheaper_than(
    framework: str, factor: float
) -> Callable[[Sequence[Row]], Finding]:
    """By how much a framework's ratio is above ours, at the least.

    The framework is given its best contender, over its own step that is not
    private and updates rows alone. Where none finished, the words say so.
    """

    def measure(rows: Sequence[Row]) -> Finding:
        theirs = [
            row
            for row in rows
            if _plain(row["framework"]) == _plain(framework)
            and row["model"] == COMPARED
            and row["rows"] >= LARGE
            and row["base"] == BASE
            and row["contender"] not in NOT_PRIVATE
        ]
        if not theirs:
            raise ValueError(f"no row of {framework} has {LARGE:,} rows")
        broken, quotients, failures = [], [], []
        for model, size in sorted({(r["model"], r["rows"]) for r in theirs}):
            where = f"{model}, {size:,} rows"
            own = having(
                rows,
                framework=OURS,
                contender="lazy noise",
                base=BASE,
                model=model,
                rows=size,
            )[0]
            finished = [
                row["ratio"]
                for row in having(theirs, model=model, rows=size)
                if not row["failed"]
            ]
            if own["failed"]:
                broken.append(f"{where}: ours failed, {own['failed']}")
            elif not finished:
                failures.append(where)
            else:
                quotients.append(min(finished) / own["ratio"])
                if quotients[-1] < factor or quotients[-1] <= 1:
                    broken.append(
                        f"{where}: {min(finished):.2f} over "
                        f"{own['ratio']:.2f} is not {factor:g} or more"
                    )
        if not quotients:
            broken.append("it finished nowhere, so nothing was compared")
        said = f" (it did not finish: {'; '.join(failures)})"
        return Finding(
            figures={
                "factor": min(quotients, default=0.0),
                "failures": said if failures else "",
                "compared": len(quotients),
            },
            broken=broken,
        )

    return measure


def _plain(name: str) -> str:
    plain = re.sub("[^a-z]", "", str(name).lower())
    return plain.replace("tensorflow", "tf")


def _transformer(model: str) -> bool:
    return "transformer" in model.lower() or "attention" in model.lower()


# mechanisms.json: measure, mechanism, way, and figures of a release.


def release_speed(rows: Sequence[Row]) -> Finding:
    """How many times as long dense noise takes, in CPU time, in graphs."""
    figures, broken = {}, []
    for name in ("projection", "threshold"):
        (row,) = having(
            rows, measure="speed", way="graph", mechanism=_MECHANISM[name]
        )
        figures[name] = row["cpu dense over this"]
        figures["rows"] = row["table rows"] / 1e6
        if figures[name] < CHEAPER:
            broken.append(f"{name}: {figures[name]:.0f} < {CHEAPER}")
    return Finding(figures=figures, broken=broken)


def release_growth(rows: Sequence[Row]) -> Finding:
    """CPU time on the largest table over that on the smallest."""
    figures, broken = {}, []
    for name in ("projection", "threshold"):
        grown = having(rows, measure="growth", mechanism=_MECHANISM[name])
        figures[name] = max(
            row["last over first"]
            for row in grown
            if row["last over first"] is not None
        )
        if figures[name] > GROWTH:
            broken.append(f"{name}: {figures[name]:.2f} > {GROWTH}")
    return Finding(figures=figures, broken=broken)


_MECHANISM = {"projection": "projection of rows", "threshold": "threshold"}


# scaling.json: rows, law, contender, ratio.


def lazy_growth(rows: Sequence[Row]) -> Finding:
    """The ratio of lazy noise on the largest table over the smallest one."""
    lazy = having(rows, contender="lazy noise")
    broken, growth = [], []
    for law in sorted({row["law"] for row in lazy}):
        own = sorted(having(lazy, law=law), key=lambda row: row["rows"])
        growth.append(max(row["ratio"] for row in own) / own[0]["ratio"])
        if growth[-1] > GROWTH:
            broken.append(f"{law}: {growth[-1]:.2f} > {GROWTH}")
        if own[-1]["rows"] < 100 * own[0]["rows"]:
            broken.append(f"{law}: sizes are too near to each other")
    return Finding(
        figures={
            "growth": max(growth),
            "least": min(row["ratio"] for row in lazy),
            "most": max(row["ratio"] for row in lazy),
        },
        broken=broken,
    )
