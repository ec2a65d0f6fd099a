"""Whether jax_privacy calibrates DP-SGD as we do, to within 1 %.

The two need different environments (`make bench-agreement` sets up both):

    python -m benchmarks.agreement ours |
      other/python -m benchmarks.agreement jax_privacy --json agreement.json

The first prints our answers as JSON, the second compares them with those of
jax_privacy, by its own accountant, and fails if any differs by more than 1 %.
With --quick both leave out what takes long.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import Any

from benchmarks import record

# Theirs is asked for noise to within this.
TOLERANCE = 1e-3
# How far answers may be apart.
LIMIT = 0.01
# Examples, expected batch size, steps, epsilon, delta.
NOISE = [
    (60_000, 600, 1_000, 1.0, 1e-6),
    (10_000, 5_000, 20, 2.0, 1e-5),
    (60_000, 256, 3_000, 8.0, 1e-6),
    (1_000_000, 4_096, 2_000, 3.0, 1e-8),
]
# Examples, expected batch size, noise multiplier, epsilon, delta.
STEPS = [
    (10_000, 2_000, 4.0, 2.0, 1e-5),
    (60_000, 600, 1.0, 2.0, 1e-6),
    (1_000_000, 8_192, 0.8, 3.0, 1e-8),
]
# Examples, steps, noise multiplier, epsilon, delta.
SIZES = [(10_000, 50, 4.0, 1.0, 1e-5), (60_000, 1_000, 1.0, 2.0, 1e-6)]


def ours() -> dict:
    """Our answers to all questions."""
    import tf_sparse_dp as tsdp

    noise, steps, sizes = [], [], []
    for n, b, k, epsilon, delta in NOISE:
        sampling = tsdp.PoissonSampling(num_examples=n, batch_size=b, steps=k)
        plan = tsdp.noise_for_budget(
            sampling, epsilon=epsilon, delta=delta, cache=False
        )
        noise.append(plan.noise_multiplier)
    for n, b, z, epsilon, delta in STEPS:
        plan = tsdp.steps_for_budget(
            tsdp.PoissonSampling(num_examples=n, batch_size=b, steps=1),
            noise_multiplier=z,
            epsilon=epsilon,
            delta=delta,
            cache=False,
        )
        steps.append(plan.num_compositions)
    for n, k, z, epsilon, delta in SIZES:
        plan = tsdp.batch_size_for_budget(
            tsdp.PoissonSampling(num_examples=n, batch_size=1, steps=k),
            noise_multiplier=z,
            epsilon=epsilon,
            delta=delta,
            cache=False,
        )
        sizes.append(plan.sampling.batch_size)
    return {"noise": noise, "steps": steps, "sizes": sizes}


def compare(answers: dict) -> list[dict[str, Any]]:
    """Prints both answers to all questions, and returns them."""
    from jax_privacy import accounting

    accountant = accounting.DpsgdTrainingAccountant(
        dp_accountant_config=accounting.PldAccountantConfig()
    )

    def common(n: int, epsilon: float, delta: float) -> dict:
        return {
            "accountant": accountant,
            "num_samples": n,
            "target_epsilon": epsilon,
            "target_delta": delta,
        }

    rows: list[dict[str, Any]] = []

    def show(answer: str, mine: float, theirs: float, **case: Any) -> None:
        keys = ("examples", "batch", "steps", "noise", "epsilon", "delta")
        known = {key: case.get(key) for key in keys}
        more = mine / theirs - 1
        rows.append(
            {"answer": answer, **known, "ours": mine, "theirs": float(theirs)}
            | {"more": more}
        )
        shown = ", ".join(f"{key} {value:g}" for key, value in case.items())
        print(
            f"{answer:11}{shown:66}{mine:9g}{theirs:9.5g}{100 * more:+7.2f} %",
            flush=True,
        )

    for mine, (n, b, k, epsilon, delta) in zip(
        answers["noise"], NOISE, strict=True
    ):
        theirs = accounting.calibrate_noise_multiplier(
            batch_sizes=b,
            num_updates=k,
            tol=TOLERANCE,
            **common(n, epsilon, delta),
        )
        case = {"examples": n, "batch": b, "steps": k}
        show("noise", mine, theirs, **case, epsilon=epsilon, delta=delta)
    for mine, (n, b, z, epsilon, delta) in zip(
        answers["steps"], STEPS, strict=True
    ):
        theirs = accounting.calibrate_num_updates(
            batch_sizes=b, noise_multipliers=z, **common(n, epsilon, delta)
        )
        case = {"examples": n, "batch": b, "noise": z}
        show("steps", mine, theirs, **case, epsilon=epsilon, delta=delta)
    for mine, (n, k, z, epsilon, delta) in zip(
        answers["sizes"], SIZES, strict=True
    ):
        theirs = accounting.calibrate_batch_size(
            num_updates=k, noise_multipliers=z, **common(n, epsilon, delta)
        )
        case = {"examples": n, "steps": k, "noise": z}
        show("batch size", mine, theirs, **case, epsilon=epsilon, delta=delta)
    return rows


def keep(
    rows: list[dict[str, Any]], ours: dict[str, str], path: pathlib.Path
) -> None:
    """Writes the rows, with the versions of both environments."""
    found = record.record(
        "Does jax_privacy calibrate noise, steps and batch sizes as we do?",
        rows,
        command="make bench-agreement",
        settings={
            "neighbours": "add or remove one example",
            "sampling": "Poisson",
            "theirs is asked for noise to within": TOLERANCE,
        },
    )
    theirs = found["versions"]
    found["versions"] = ours | {
        f"{name} (theirs)" if name in ours else name: version
        for name, version in theirs.items()
        if ours.get(name) != version
    }
    record.write(found, path)


def main() -> int:
    """Answers or compares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("who", choices=["ours", "jax_privacy"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, help="keep the figures")
    options = parser.parse_args()
    if options.quick:
        del NOISE[2:], STEPS[1:], SIZES[1:]
    if options.who == "ours":
        json.dump(ours() | {"versions": record.versions()}, sys.stdout)
        return 0
    answers = json.load(sys.stdin)
    started = time.monotonic()
    rows = compare(answers)
    print(f"compared in {time.monotonic() - started:.0f} s")
    agree = all(abs(row["more"]) <= LIMIT for row in rows)
    print("agreed within 1 %" if agree else "DISAGREED by over 1 %")
    if options.json is not None:
        keep(rows, answers["versions"], options.json)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
