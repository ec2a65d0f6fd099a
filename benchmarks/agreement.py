"""Whether jax_privacy calibrates DP-SGD as we do, to within 1 %.

The two need different environments (`make agreement` sets up both):

    python agreement.py ours | other/python agreement.py jax_privacy

The first prints our answers as JSON, the second compares them with those of
jax_privacy, by its own accountant, and fails if any differs by more than 1 %.
With a further argument, quick, both leave out what takes long.
"""

from __future__ import annotations

import json
import sys
import time

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


def compare(answers: dict) -> bool:
    """Prints both answers to all questions; whether all agree."""
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

    agree = True

    def show(what: str, case: str, mine: float, theirs: float) -> None:
        nonlocal agree
        difference = mine / theirs - 1
        agree &= abs(difference) <= 0.01
        print(
            f"| {what} | {case} | {mine:g} | {theirs:.5g} | "
            f"{100 * difference:+.2f} % |",
            flush=True,
        )

    print("| answer | n, batch, steps, noise; ε, δ | ours | theirs | more |")
    print("|---|---|---|---|---|")
    for mine, case in zip(answers["noise"], NOISE, strict=True):
        n, b, k, epsilon, delta = case
        theirs = accounting.calibrate_noise_multiplier(
            batch_sizes=b, num_updates=k, tol=1e-3, **common(n, epsilon, delta)
        )
        text = f"{n:,}, {b:,}, {k:,}, ?; {epsilon:g}, {delta:g}"
        show("noise", text, mine, theirs)
    for mine, case in zip(answers["steps"], STEPS, strict=True):
        n, b, z, epsilon, delta = case
        theirs = accounting.calibrate_num_updates(
            batch_sizes=b, noise_multipliers=z, **common(n, epsilon, delta)
        )
        text = f"{n:,}, {b:,}, ?, {z:g}; {epsilon:g}, {delta:g}"
        show("steps", text, mine, theirs)
    for mine, case in zip(answers["sizes"], SIZES, strict=True):
        n, k, z, epsilon, delta = case
        theirs = accounting.calibrate_batch_size(
            num_updates=k, noise_multipliers=z, **common(n, epsilon, delta)
        )
        text = f"{n:,}, ?, {k:,}, {z:g}; {epsilon:g}, {delta:g}"
        show("batch size", text, mine, theirs)
    return agree


def main() -> int:
    """Answers or compares, as the one argument says."""
    if sys.argv[2:] == ["quick"]:
        del NOISE[2:], STEPS[1:], SIZES[1:], sys.argv[2:]
    match sys.argv[1:]:
        case ["ours"]:
            json.dump(ours(), sys.stdout)
            return 0
        case ["jax_privacy"]:
            answers = json.load(sys.stdin)
            started = time.monotonic()
            agree = compare(answers)
            print(f"compared in {time.monotonic() - started:.0f} s")
            print("agreed within 1 %" if agree else "DISAGREED by over 1 %")
            return 0 if agree else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
