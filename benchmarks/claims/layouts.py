"""The order of records on the page, and how some of them are shown.

A record without an entry shows all its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.claims.tables import Pivot, Table

ORDER = (
    *("peers", "scaling", "mechanisms", "errors", "accuracy"),
    *("audit", "faults", "agreement", "paper"),
)

LAYOUTS: Mapping[str, Sequence[Table | Pivot]] = {
    "peers": (
        Table(
            columns={
                "model": "{model}",
                "rows": "{rows}",
                "framework": "{framework}",
                "step": "{contender}",
                "over": "{base}",
                "ms": "{ms}",
                "ratio (95 %)": "{ratio:.2f} ({low:.2f}-{high:.2f})",
                "CPU ratio (95 %)": (
                    "{cpu_ratio:.2f} ({cpu_low:.2f}-{cpu_high:.2f})"
                ),
                "ms more": "{extra_ms:.1f}",
                "peak MB": "{peak_mb}",
                "failed": "{failed}",
            }
        ),
    ),
    "accuracy": (
        Pivot(
            by=("data", "unit", "metric"),
            index=("contender",),
            across="epsilon",
            cell="{mean:.4f} ± {standard error:.4f} (rate {rate}, {seeds})",
        ),
        Pivot(
            by=("data", "unit", "metric"),
            index=("contender",),
            across="epsilon",
            cell="{mean:.4f} ± {standard_error:.4f} (rate {rate}, {seeds})",
        ),
    ),
    "scaling": (
        Table(
            columns={
                "rows are drawn": "{law}",
                "rows": "{rows}",
                "step": "{contender}",
                "ms": "{ms}",
                "time (95 %)": "{ratio:.3g} ({low:.2f}-{high:.2f})",
                "CPU time": "{cpu_ratio:.2f}",
            }
        ),
    ),
    "mechanisms": (
        Table(
            where={"measure": "speed"},
            columns={
                "speed": "{mechanism}",
                "way": "{way}",
                "rows": "{table_rows}",
                "ms": "{ms}",
                "CPU ms": "{cpu_ms}",
                "dense noise takes, times": "{dense_over_this:.0f}",
                "in CPU time": "{cpu_dense_over_this:.0f}",
            },
        ),
        Pivot(
            where={"measure": "growth"},
            by=("measure",),
            index=("mechanism", "way"),
            across="numbers",
            cell="{cpu_ms:.1f} ms",
        ),
        Pivot(
            where={"measure": "memory"},
            by=("measure",),
            index=("mechanism", "way"),
            across="numbers",
            cell="{peak_mb:.0f} MB",
        ),
    ),
    "errors": (
        Table(
            columns={
                "": "{mechanism}",
                "error": "{error:.3g}",
                "least to most": "{least:.3g} to {most:.3g}",
                "repetitions": "{repetitions}",
            }
        ),
    ),
    "agreement": (
        Table(
            columns={
                "answer": "{answer}",
                "n": "{examples}",
                "batch": "{batch}",
                "steps": "{steps}",
                "noise": "{noise}",
                "ε, δ": "{epsilon}, {delta}",
                "ours": "{ours:.5g}",
                "theirs": "{theirs:.5g}",
                "more": "{more:+.2%}",
            }
        ),
    ),
    "paper": (
        Table(
            columns={
                "measured": "{measured}",
                "over": "{over} = {from} to {to}",
                "slope": "{slope:.2f} ± {standard error:.2f}",
                "upper rate's": "{upper rate's:.2f}",
                "lower bound's": "{lower bound's:.2f}",
                "verdict": "{verdict}",
                "error/upper": (
                    "{least error/upper:.2f} to {most error/upper:.2f}"
                ),
                "error/lower": (
                    "{least error/lower:.2f} to {most error/lower:.2f}"
                ),
                "errors": "{errors}",
                "trials": "{trials}",
            }
        ),
    ),
}
