"""Privacy, faults, accuracy and rates, by the rows of records.

Each function takes a record's rows and returns a `Finding`. What a claim needs
and the rows do not have raises: nothing holds for want of rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.claims.claim import Finding, Row

# Where noise that is cut has to be found.
MUST_BE_FOUND = (
    *("Gaussian", "LazyEmbedding", "DualAveraging", "Projection", "Threshold"),
    *("PartitionSelection", "FrequencySelection", "Laplace"),
)

# audit.json: mechanism, stated epsilon, lower bound, control, violation.


def audited(rows: Sequence[Row]) -> Finding:
    """How near lower bounds come to the epsilon that is stated."""
    honest = [row for row in rows if not _is_control(row)]
    broken, stated = [], {}
    for row in honest:
        epsilon = row["stated epsilon"]
        stated.setdefault(row["mechanism"], set()).add(float(epsilon))
        if row["lower bound"] >= epsilon or row["violation"]:
            broken.append(
                f"{row['mechanism']}: at least {row['lower bound']:.3g}, "
                f"while {epsilon:g} is stated"
            )
    if not honest:
        raise ValueError("no row is without a control")
    for mechanism, found in stated.items():
        if missing := sorted({1.0, 4.0} - found):
            broken.append(f"{mechanism} was not audited at {missing}")
    return Finding(
        figures={
            "cases": len(stated),
            "nearest": max(
                100 * row["lower bound"] / row["stated epsilon"]
                for row in honest
            ),
        },
        broken=broken,
    )


def controls(rows: Sequence[Row]) -> Finding:
    """In which mechanisms the audit finds what was broken on purpose."""
    wrong = [row for row in rows if _is_control(row)]
    found: dict[str, bool] = {}
    for row in wrong:
        # What follows a comma is a setting; `MUST_BE_FOUND` are mechanisms.
        name = row["mechanism"].split(",")[0]
        found[name] = found.get(name, False) or bool(row["violation"])
    broken = [
        f"{name}: noise that is missing was not found in any setting"
        for name in MUST_BE_FOUND
        if not found.get(name)
    ]
    if not any("skip" in row["control"] and row["violation"] for row in wrong):
        broken.append("a lazy read that was skipped was not found")
    missed = sorted(name for name, seen in found.items() if not seen)
    return Finding(
        figures={
            "found": sum(bool(row["violation"]) for row in wrong),
            "controls": len(wrong),
            "missed": ", ".join(missed) or "none",
        },
        broken=broken,
    )


def _is_control(row: Row) -> bool:
    return row["control"] not in (None, False, "", "none", "as stated")


# faults.json: family, cases, refused, taken and paid, crashed, and so on.


def faults(rows: Sequence[Row]) -> Finding:
    """How many malformed inputs were tried, and what came of them."""
    families = [row for row in rows if row["family"] != "all"]
    broken = []
    for row in families:
        for name in ("crashed", "unpaid steps", "silent skips"):
            if row[name]:
                broken.append(f"{row['family']}: {row[name]} {name}")
        known = row["refused before any step"] + row["taken and paid"]
        if known != row["cases"]:
            broken.append(
                f"{row['family']}: {known} of {row['cases']} cases are known"
            )
    cases = sum(row["cases"] for row in families)
    if cases < 1000:
        broken.append(f"{cases} cases are fewer than 1,000")
    return Finding(
        figures={
            "cases": cases,
            "refused": sum(row["refused before any step"] for row in families),
        },
        broken=broken,
    )


# accuracy.json: data, unit, contender, epsilon, metric, mean.


COMPARED = ("goodbooks", "gowalla")


def private_is_worse(rows: Sequence[Row]) -> Finding:
    """Whether ordinary training is ahead of all that is private, by AUC.

    On data on which plain SGD without clipping trains well; where it does not,
    clipping by itself helps, which the notes of the record are about.
    """
    broken, gaps = [], []
    rows = [r for r in rows if r["data"] in COMPARED and r["metric"] == "auc"]
    for data, unit in sorted({(r["data"], str(r["unit"])) for r in rows}):
        own = [r for r in rows if (r["data"], str(r["unit"])) == (data, unit)]
        ordinary = [r for r in own if _not_private(r)]
        private = [r for r in own if not _not_private(r)]
        if not ordinary or not private:
            continue
        for row in private:
            gaps.append(max(r["mean"] for r in ordinary) - row["mean"])
            if gaps[-1] <= 0:
                broken.append(
                    f"{data}, {unit}: {row['contender']} at "
                    f"{row['epsilon']} is no worse"
                )
    if not gaps:
        raise ValueError("no private run stands beside an ordinary one")
    return Finding(
        figures={"least": min(gaps), "most": max(gaps)}, broken=broken
    )


def _not_private(row: Row) -> bool:
    name = row["contender"].lower()
    return bool(re.search(r"(not|non|without)\W?priva|ordinary", name))


# agreement.json: answer, ours, theirs, more.


def agreement(rows: Sequence[Row]) -> Finding:
    """How far our answers are from theirs, in percent."""
    broken = [
        f"{row['answer']}: {row['ours']} and {row['theirs']}"
        for row in rows
        if abs(row["more"]) > 0.01
    ]
    if missing := {"noise", "steps", "batch size"} - {
        r["answer"] for r in rows
    }:
        broken.append(f"no answer is about {sorted(missing)}")
    return Finding(
        figures={"percent": max(100 * abs(row["more"]) for row in rows)},
        broken=broken,
    )


# paper.json: measured, over, slope, verdict.


def paper_means(rows: Sequence[Row]) -> Finding:
    """In how many sweeps the errors of means follow the paper's rates."""
    means = [row for row in rows if row["measured"].startswith("mean, ")]
    following = [row for row in means if row["verdict"] == "follows"]
    broken = [
        f"{row['measured']}, over {row['over']}: {row['verdict']}, "
        f"{row['slope']:.2f}"
        for row in means
        if row["verdict"] in ("flatter", "unknown")
    ]
    if len(means) < 8:
        broken.append("not all means were measured")
    return Finding(
        figures={"following": len(following), "sweeps": len(means)},
        broken=broken,
    )
