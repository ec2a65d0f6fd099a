"""The claims of README.md, one by one.

Words stand there as they stand here, with the figures of the record. Claims
that share a record stand together.
"""

from __future__ import annotations

from benchmarks.claims import costs, guarantees
from benchmarks.claims.claim import Claim


def _cheaper(words: str, framework: str, factor: float) -> Claim:
    """That privacy costs less here than in another framework."""
    than = f"at least {factor:g} times" if factor > 1 else "more than"
    return Claim(
        words=words,
        record="peers",
        measure=costs.cheaper_than(framework, factor),
        measured="{factor:2s} times, {compared:.0f} comparisons{failures}",
        condition=(
            f"with 26 tables of {costs.LARGE:,} rows or more, the time of "
            "their best private step over that of their sparse step without "
            f"privacy is {than} the same ratio of ours"
        ),
    )


CLAIMS = (
    Claim(
        words=(
            "With lazy noise a step takes at most {ratio:.2f} times as long as "
            "the same step without privacy{transformer}{longer}, on tables of "
            "{least:,.0f} to {most:,.0f} rows"
        ),
        record="peers",
        measure=costs.lazy_step,
        measured="{ratio:.2f}{transformer}{longer}",
        condition=(
            f"at each size at most {costs.STEP_RATIO} "
            f"({costs.TRANSFORMER_RATIO} for a transformer), or at most "
            f"{costs.EXTRA_MS:g} ms more"
        ),
    ),
    _cheaper(
        "with 26 tables of 100,000 rows or more, that ratio is at least "
        "{factor:2s} times as large with TensorFlow Privacy{failures}",
        "TF-Privacy",
        5,
    ),
    _cheaper(
        "at least {factor:2s} times as large with Opacus{failures}",
        "Opacus",
        5,
    ),
    _cheaper(
        "at least {factor:2s} times as large with jax_privacy{failures}",
        "jax_privacy",
        1,
    ),
    Claim(
        words=(
            "dense noise, drawn when a row is next read, at the cost of the "
            "rows that a batch looks up"
        ),
        record="scaling",
        measure=costs.lazy_growth,
        measured=(
            "{least:.2f} to {most:.2f} of the step without privacy, at most "
            "{growth:.2f} times the smallest table's ratio"
        ),
        condition=(
            f"at most {costs.GROWTH} times the smallest table's ratio, over "
            "a factor of 100 in rows or more"
        ),
    ),
    Claim(
        words=(
            "take 1/{projection:2s} and 1/{threshold:2s} of that time on a "
            "table of {rows:.0f} million rows"
        ),
        record="mechanisms",
        measure=costs.release_speed,
        measured="1/{projection:.0f} and 1/{threshold:.0f} of the CPU time",
        condition=f"both at most 1/{costs.CHEAPER}",
    ),
    Claim(
        words="no more on a larger one",
        record="mechanisms",
        measure=costs.release_growth,
        measured=(
            "{projection:.2f} (`Projection`) and {threshold:.2f} "
            "(`Threshold`) of the smallest table's CPU time on the largest"
        ),
        condition=f"both at most {costs.GROWTH}",
    ),
    Claim(
        words="Private training is less accurate than ordinary training",
        record="accuracy",
        measure=guarantees.private_is_worse,
        measured="by {least:.4f} to {most:.4f} of AUC",
        condition=(
            "ordinary training is ahead of all mechanisms at all ε on "
            + " and ".join(guarantees.COMPARED)
        ),
    ),
    Claim(
        words=(
            "Audits of {cases:.0f} mechanisms and settings at ε = 1 and 4 "
            "found no lower bound above {nearest:2s} % of the ε that is stated"
        ),
        record="audit",
        measure=guarantees.audited,
        measured="at most {nearest:2s} %, {cases:.0f} mechanisms and settings",
        condition="below the stated ε for each mechanism, at ε = 1 and 4",
    ),
    Claim(
        words=(
            "{found:.0f} of {controls:.0f} trainings that were broken on "
            "purpose were found out"
        ),
        record="audit",
        measure=guarantees.controls,
        measured="{found:.0f} of {controls:.0f}; in no setting: {missed}",
        condition=(
            "in some setting of each of "
            + ", ".join(guarantees.MUST_BE_FOUND)
            + "; a skipped lazy read, too"
        ),
    ),
    Claim(
        words=(
            "Of {cases:,.0f} malformed inputs none crashed, trained without "
            "being paid for, or was skipped silently"
        ),
        record="faults",
        measure=guarantees.faults,
        measured="{cases:,.0f} cases, {refused:,.0f} refused",
        condition=(
            "1,000 cases or more, all refused or paid for; no crash, no "
            "unpaid step, no silent skip"
        ),
    ),
    Claim(
        words=(
            "Noise, steps and batch sizes for a budget are within "
            "{percent:.2f} % of what jax_privacy calibrates"
        ),
        record="agreement",
        measure=guarantees.agreement,
        measured="{percent:.2f} %",
        condition="at most 1 %",
    ),
    Claim(
        words=(
            "Errors of private means follow the paper's rates over n, d and s "
            "in {following:.0f} of {sweeps:.0f} sweeps"
        ),
        record="paper",
        measure=guarantees.paper_means,
        measured="{following:.0f} of {sweeps:.0f}",
        condition="no slope of a mean is flatter than the rates'",
    ),
)
