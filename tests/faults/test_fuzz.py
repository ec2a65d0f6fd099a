"""Malformed inputs are refused or paid; the thousand are in benchmarks.

Each case is drawn from a fixed seed, and holds for every draw or is a fault:
there is no false alarm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.faults import fuzz, malformed, stored
from tests.faults.seen import (
    BROKEN,
    CRASHED,
    PAID,
    REFUSED,
    SKIPPED,
    UNCLEAR,
    UNPAID,
    WRONG,
    Seen,
    verdict,
    watched,
)

keras = tf.keras

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore")]

CASES = 66  # Six of each family.


def test_malformed_inputs_are_refused_or_paid() -> None:
    told = fuzz.run_cases(0, CASES, seed=11)
    found = [one for one in told if "verdict" in one]
    assert len(found) == CASES
    wrong = [one for one in found if one["verdict"] in WRONG]
    assert not wrong
    # Some are refused, and some are taken: both sides are looked at.
    counts = fuzz.table(found)[-1]
    assert counts[REFUSED] > 10 and counts[PAID] > 10


@pytest.mark.parametrize("form", stored.FORMS)
def test_what_is_not_damaged_is_loaded(form: str) -> None:
    """Else it would be refused for another reason."""
    assert stored._count(form, stored.saved()) == stored.SPENT


VERDICTS = [
    (Seen(changed=True, steps=1, spent=1), PAID),
    (Seen(error="ValueError: no"), REFUSED),
    (Seen(error="ValueError: no", spent=1, steps=1), REFUSED),
    (Seen(changed=True, steps=1, spent=0), UNPAID),
    (Seen(changed=True, error="ValueError: no"), UNPAID),
    (Seen(steps=2, spent=1, changed=True), UNPAID),
    (Seen(), SKIPPED),
    (Seen(spent=1), SKIPPED),
    (Seen(error="ValueError: no", must_step=True), SKIPPED),
    (Seen(changed=True, steps=2, spent=2, must_step=True), UNCLEAR),
    (Seen(error="?", clear=False), UNCLEAR),
    (Seen(changed=True, steps=1, spent=1, finite=False), BROKEN),
]


@pytest.mark.parametrize("seen, expected", VERDICTS)
def test_what_must_not_be_is_found(seen: Seen, expected: str) -> None:
    assert verdict(seen) == expected


@pytest.fixture
def ordinary() -> Any:
    """A model that is not private at all."""
    model = keras.models.clone_model(malformed.model())
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


@pytest.mark.parametrize("value, expected", [(1.0, UNPAID), (np.nan, BROKEN)])
def test_an_ordinary_optimizer_fails(
    ordinary: Any, value: float, expected: str
) -> None:
    inputs = {"x": np.float32(value) * malformed.X, "ids": malformed.IDS}
    with watched(ordinary, must_step=True) as found:
        malformed.fit(ordinary, inputs, malformed.Y)
    assert verdict(found.seen) == expected


def test_a_step_that_data_leave_out_is_found() -> None:
    model = malformed.model()
    x = np.full_like(malformed.X, np.nan)
    with watched(model, must_step=True) as found:
        if np.isfinite(x).all():
            malformed.fit(model, {"x": x, "ids": malformed.IDS}, malformed.Y)
    assert verdict(found.seen) == SKIPPED


def test_an_error_that_says_nothing_is_found() -> None:
    with watched(malformed.model()) as found:
        raise ValueError
    assert verdict(found.seen) == UNCLEAR


_DYING = """
import json, os, signal, sys
first, cases = int(sys.argv[4]), int(sys.argv[6])
for case in range(first, cases):
    told = {"case": case, "family": "dying"}
    print("case", json.dumps(told), flush=True)
    if case == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told.update(verdict="taken and paid", charged=True)
    print("case", json.dumps(told), flush=True)
"""


def test_a_process_that_dies_is_a_fault_and_the_next_goes_on() -> None:
    found = fuzz.in_processes(4, seed=0, command=["-c", _DYING])
    assert [one["verdict"] for one in found] == [PAID, CRASHED, PAID, PAID]
    assert fuzz.table(found)[-1][CRASHED] == 1
