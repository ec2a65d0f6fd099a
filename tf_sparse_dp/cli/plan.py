"""Print what a privacy budget buys, choices side by side.

For the same budget and the same number of passes over the data: Poisson
sampling and batches of one's own, several batch sizes, Gaussian and Laplace
noise, and what a filter would cost, with which the run may be changed as it
goes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from tf_sparse_dp.accounting import (
    PrivacyPlan,
    RenyiFilter,
    noise_for_budget,
)
from tf_sparse_dp.accounting.calibration import round_up, shown
from tf_sparse_dp.accounting.events import (
    Noise,
    Sampling,
    neighbouring_relation,
    step_event,
)
from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.sampling import EpochSampling, PoissonSampling, UserSampling

_MOST_FACTOR = 100  # Of noise for a filter, over that of a plan.
_FACTORS = (0.5, 1, 2, 4)
_NOISES: tuple[Noise, ...] = ("gaussian", "laplace")
_TITLES = {
    "poisson": "Poisson sampling (PoissonSampling)",
    "users": "Poisson sampling of users (UserSampling)",
    "passes": "Batches of your own, no amplification (EpochSampling)",
}
_LEGEND = (
    "noise    the noise multiplier: noise over what contributions are clipped",
    "         to, in L2 norm for Gaussian and in L1 norm for Laplace noise",
    "of mean  that over the batch size: the noise of an averaged gradient",
    "filter   the noise multiplier if a RenyiFilter pays, one that suits such",
    "         steps, for a run that is changed as it goes",
    "rows     of a batch in memory, padding included",
)


@dataclasses.dataclass(frozen=True)
class Choice:
    """One way to spend the budget.

    Attributes:
      sampling: "poisson", "users" or "passes".
      neighbouring_relation: What neighbours differ by.
      batch_size: Units that are expected in a batch.
      steps: Of the whole run.
      noise: "gaussian" or "laplace".
      noise_multiplier: Noise over what contributions are clipped to.
      noise_on_mean: The noise multiplier over the batch size.
      filter_noise_multiplier: With which a `RenyiFilter` that suits such steps
        pays for as many; None if there is none.
      accountant: Whose number the noise multiplier is.
      batch_rows: Rows of a batch in memory, padding included.
    """

    sampling: str
    neighbouring_relation: str
    batch_size: int
    steps: int
    noise: str
    noise_multiplier: float
    noise_on_mean: float
    filter_noise_multiplier: float | None
    accountant: str
    batch_rows: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what the command takes."""
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument(
        "--delta",
        type=float,
        required=True,
        help="well below one over the number of examples, or of users",
    )
    units = parser.add_mutually_exclusive_group(required=True)
    units.add_argument(
        "--examples", type=_whole, help="protect examples; how many there are"
    )
    units.add_argument(
        "--users",
        type=_whole,
        help="protect users with all of their examples; how many there are",
    )
    parser.add_argument(
        "--examples-per-user",
        type=_whole,
        help="the most examples that a user adds to a batch, with --users",
    )
    parser.add_argument(
        "--batch-size",
        type=_whole,
        required=True,
        help="examples, or users, in a batch; half of it, twice and four "
        "times as many are shown beside it",
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=float, help="passes over the data")
    length.add_argument(
        "--steps", type=_whole, help="batches, whatever the size"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--no-cache", action="store_true", help="find everything anew"
    )


def _whole(text: str) -> int:
    """A whole number as people write them: 1000000, 1,000,000 or 1e6."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+", text):
        text = text.replace(",", "")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise argparse.ArgumentTypeError(
            f"{text!r} was given, expected a whole number, such as 1000000, "
            "1,000,000 or 1e6"
        )
    return int(number)


def run(given: argparse.Namespace) -> int:
    """Prints the choices.

    Raises:
      ValueError: What is given makes no sense.
    """
    if (given.users is None) != (given.examples_per_user is None):
        raise ValueError(
            "--users and --examples-per-user go together: give how many "
            "users there are and how many examples each adds to a batch at "
            "most, or --examples alone."
        )
    choices, notes = _choices(given)
    if given.json:
        found = {
            "epsilon": given.epsilon,
            "delta": given.delta,
            "unit": "example" if given.users is None else "user",
            "units": given.examples or given.users,
            "choices": [dataclasses.asdict(choice) for choice in choices],
            "notes": notes,
        }
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(_text(given, choices, notes))
    return 0


def _choices(given: argparse.Namespace) -> tuple[list[Choice], list[str]]:
    """All that there is, and why the rest is not."""
    choices: list[Choice] = []
    notes: list[str] = []
    reasons: list[ValueError] = []
    known: dict[Any, float | None] = {}
    for name, sampling in _samplings(given):
        if isinstance(sampling, ValueError):
            reasons.append(sampling)
            _note(notes, name, str(sampling))
            continue
        for noise in _NOISES:
            try:
                choice = _choice(given, name, sampling, noise, known)
            except ValueError as error:
                reasons.append(error)
                _note(notes, f"{name}, {noise} noise", str(error))
                continue
            choices.append(choice)
            if choice.filter_noise_multiplier is None:
                _note(
                    notes, f"filter, {name}, {noise} noise", _no_filter(given)
                )
    if not choices:
        raise reasons[0]
    units = given.examples or given.users
    if given.delta * units >= 1:
        warnings.warn(
            f"delta is {given.delta:g}, expected well below 1/{units} = "
            f"{1 / units:.3g}: with this delta, publishing one of them in the "
            "clear would count as private.",
            PrivacyWarning,
            stacklevel=2,
        )
    return choices, notes


def _no_filter(given: argparse.Namespace) -> str:
    """Why there is no number in the column."""
    if given.delta == 0:
        return "a RenyiFilter needs a delta above 0."
    return (
        "no RenyiFilter pays for the run at this epsilon and delta with up to "
        f"{_MOST_FACTOR} times the noise. Raise one of them."
    )


def _note(notes: list[str], what: str, reason: str) -> None:
    """What holds for all batch sizes is said once."""
    note = f"Left out: {what}: {reason}"
    if not any(other.startswith(f"Left out: {what}: ") for other in notes):
        notes.append(note)


def _samplings(
    given: argparse.Namespace,
) -> Iterator[tuple[str, Any]]:
    """Samplings, or the errors that they are refused with."""
    units = given.examples or given.users
    # The one that was asked for is refused aloud, its multiples in silence.
    _poisson(given, given.batch_size)
    sizes = [given.batch_size * factor for factor in _FACTORS]
    whole = [int(size) for size in sizes if 1 <= size <= units]
    for size in whole:
        name = "poisson" if given.users is None else "users"
        yield name, _poisson(given, size)
    for size in whole:
        yield "passes", _passes(given, size)


def _poisson(given: argparse.Namespace, size: int) -> Sampling:
    length = {"epochs": given.epochs, "steps": given.steps}
    if given.users is None:
        return PoissonSampling(
            num_examples=given.examples, batch_size=size, **length
        )
    return UserSampling(
        num_users=given.users,
        users_per_batch=size,
        examples_per_user=given.examples_per_user,
        **length,
    )


def _passes(given: argparse.Namespace, size: int) -> EpochSampling | ValueError:
    units = given.examples or given.users
    rows = given.examples_per_user or 1
    if given.steps is not None:
        epochs = -(-given.steps * size // units)
    elif given.epochs != int(given.epochs):
        return ValueError(
            f"--epochs is {given.epochs:g}, and a pass is charged as a whole. "
            "Give a whole number."
        )
    else:
        epochs = int(given.epochs)
    return EpochSampling(
        num_examples=units * rows,
        batch_size=size * rows,
        epochs=epochs,
        examples_per_unit=rows,
    )


def _choice(
    given: argparse.Namespace,
    name: str,
    sampling: Any,
    noise: Noise,
    known: dict[Any, float | None],
) -> Choice:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # Said once, above.
        plan = noise_for_budget(
            sampling,
            epsilon=given.epsilon,
            delta=given.delta,
            noise=noise,
            cache=not given.no_cache,
        )
    if name == "passes":
        batch_size = sampling.batch_size // sampling.examples_per_unit
        steps = sampling.steps_per_pass * sampling.epochs
        if given.steps is not None:
            steps = given.steps
        rows = sampling.batch_size
    else:
        batch_size = int(sampling.expected_batch_size)
        steps, rows = sampling.num_steps, sampling.batch_rows
    return Choice(
        sampling=name,
        neighbouring_relation=sampling.neighbouring_relation,
        batch_size=batch_size,
        steps=steps,
        noise=noise,
        noise_multiplier=plan.noise_multiplier,
        noise_on_mean=plan.noise_multiplier / batch_size,
        filter_noise_multiplier=_filter_noise(plan, known),
        accountant=plan.accountant,
        batch_rows=rows,
    )


def _filter_noise(
    plan: PrivacyPlan, known: dict[Any, float | None]
) -> float | None:
    """The least noise, to 4 digits, for which a filter pays for all steps."""
    if plan.delta == 0:
        return None
    # Without amplification all batch sizes cost the same.
    costs = plan.step_event, plan.num_compositions
    if costs not in known:
        known[costs] = _least_filter_noise(plan)
    return known[costs]


def _least_filter_noise(plan: PrivacyPlan) -> float | None:
    relation = neighbouring_relation(plan.neighbouring_relation)

    def pays(noise_multiplier: float) -> bool:
        event = step_event(
            plan.sampling,
            noise_multiplier=noise_multiplier,
            noise=plan.noise,
            release_failure=plan.release_failure,
        )
        try:
            budget = RenyiFilter.suited_to(
                event,
                epsilon=plan.epsilon,
                delta=plan.delta,
                neighboring_relation=relation,
            )
        except ValueError:  # Not even for one.
            return False
        return budget.can_spend(event, plan.num_compositions)

    low = high = plan.noise_multiplier
    while not pays(high):
        low, high = high, 1.2 * high
        if high > _MOST_FACTOR * plan.noise_multiplier:
            return None
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        if pays(middle):
            high = middle
        else:
            low = middle
    return round_up(high, digits=4)


def _text(
    given: argparse.Namespace, choices: list[Choice], notes: list[str]
) -> str:
    unit = "example" if given.users is None else "user"
    units = given.examples or given.users
    if given.steps is not None:
        length = _counted(given.steps, "step")
    else:
        length = _counted(given.epochs, "epoch")
    lines = [
        f"epsilon = {given.epsilon:g}, delta = {given.delta:g}, for any one of "
        f"{_counted(units, unit)}, {length}"
    ]
    if given.users is not None:
        lines[0] += ", at most "
        lines[0] += _counted(given.examples_per_user, "example") + " of each"
    for name, title in _TITLES.items():
        rows = [choice for choice in choices if choice.sampling == name]
        if rows:
            relation = {
                "add_or_remove_one": f"one {unit} is there or not",
                "zero_out": f"one {unit} counts or not",
            }[rows[0].neighbouring_relation]
            lines += ["", f"{title}; neighbours: {relation}"]
            lines += _table(rows)
    return "\n".join([*lines, "", *_LEGEND, *notes]) + "\n"


def _counted(number: float, what: str) -> str:
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {what}" + ("" if number == 1 else "s")


def _table(rows: list[Choice]) -> list[str]:
    """One line for each batch size, with columns for each noise."""
    head = ["batch", "steps", "rows"]
    noises = [n for n in _NOISES if any(row.noise == n for row in rows)]
    above = ["", "", ""]
    for noise in noises:
        above += [noise, "", ""]
        head += ["noise", "of mean", "filter"]
    cells = [above, head]
    for size in dict.fromkeys(row.batch_size for row in rows):
        same = {row.noise: row for row in rows if row.batch_size == size}
        one = next(iter(same.values()))
        line = [f"{size:,}", f"{one.steps:,}", f"{one.batch_rows:,}"]
        for noise in noises:
            row = same.get(noise)
            if row is None:
                line += ["-", "-", "-"]
                continue
            filtered = row.filter_noise_multiplier
            line += [
                shown(row.noise_multiplier),
                f"{row.noise_on_mean:.2e}",
                "-" if filtered is None else shown(filtered),
            ]
        cells.append(line)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in cells
    ]
