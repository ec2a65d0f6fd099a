"""Epsilons of TensorFlow Privacy's statement are those of our plans.

It prints two for one example (add or remove one): for `ceil(epochs)` Gaussian
releases, which is what `EpochSampling` is charged, and for Poisson batches.
Each has three decimals. By default it takes half the noise multiplier, for
microbatches of several examples, which we do not have.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import dp_accounting
import pytest

import tf_sparse_dp as tsdp

pytest.importorskip(
    "tf_sparse_dp.integrations.tf_privacy",
    reason="TensorFlow Privacy is for Python up to 3.11; lanes do without",
)
lib = pytest.importorskip(
    "tensorflow_privacy.privacy.analysis.compute_dp_sgd_privacy_lib"
)
pytestmark = pytest.mark.once

PRINTED = 0.0005
LINE = r"Epsilon {}:\s+(\d+\.\d+|inf)\n"


class Setting(NamedTuple):
    examples: int
    batch: int
    epochs: int
    noise_multiplier: float
    delta: float


SETTINGS = [
    Setting(60_000, 256, 15, 1.1, 1e-5),
    Setting(50_000, 500, 10, 2.0, 1e-6),
    Setting(100_000, 1000, 1, 0.8, 1e-7),
    Setting(20_000, 2000, 50, 6.0, 1e-6),
]


def printed(setting: Setting, **options: Any) -> tuple[float, float]:
    """Epsilon with each example once per epoch, and with Poisson batches."""
    text = lib.compute_dp_sgd_privacy_statement(
        *setting, **{"used_microbatching": False, **options}
    )
    (passes,) = re.findall(
        LINE.format("with each example occurring once per epoch"), text
    )
    (poisson,) = re.findall(
        LINE.format(r"assuming Poisson sampling \(\*\)"), text
    )
    return float(passes), float(poisson)


def plans(
    setting: Setting, max_batch_size: int | None = None
) -> tuple[tsdp.PrivacyPlan, tsdp.PrivacyPlan]:
    """With passes over batches of one's own, and with Poisson batches."""
    size = {
        "num_examples": setting.examples,
        "batch_size": setting.batch,
        "epochs": setting.epochs,
    }
    samplings = (
        tsdp.EpochSampling(**size),
        tsdp.PoissonSampling(**size, max_batch_size=max_batch_size),
    )
    passes, poisson = (
        tsdp.PrivacyPlan(
            noise_multiplier=setting.noise_multiplier,
            delta=setting.delta,
            sampling=sampling,
        )
        for sampling in samplings
    )
    return passes, poisson


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_loss_distributions_give_the_same(setting: Setting) -> None:
    theirs = printed(setting, accountant_type=lib.AccountantType.PLD)
    for plan, epsilon in zip(plans(setting), theirs, strict=True):
        assert plan.accountant == "PLD"
        # Ours allows for rounding, and has another grid.
        assert plan.epsilon == pytest.approx(epsilon, rel=1e-3, abs=PRINTED)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_default_of_rdp_is_larger(setting: Setting) -> None:
    both = zip(plans(setting), printed(setting), strict=True)
    for (plan, epsilon), (least, most) in zip(
        both, [(1.055, 1.075), (1.07, 1.26)], strict=True
    ):
        assert least < epsilon / plan.epsilon < most  # As docs/ say.
        # The releases are the same ones: what differs is the accountant.
        same = dp_accounting.rdp.RdpAccountant().compose(plan.event())
        assert same.get_epsilon(setting.delta) == pytest.approx(
            epsilon, abs=PRINTED
        )


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=str)
def test_rdp_gives_the_same_where_we_take_it(setting: Setting) -> None:
    tiny = setting._replace(delta=1e-14)
    for plan, epsilon in zip(
        plans(tiny, 2 * setting.batch + 500), printed(tiny), strict=True
    ):
        assert plan.accountant == "RDP"
        # They have orders between integers as well.
        assert epsilon - PRINTED <= plan.epsilon < 1.01 * epsilon


def test_what_is_not_the_same_is_told_apart() -> None:
    setting = SETTINGS[1]
    passes, poisson = plans(setting)
    for other in (
        {"used_microbatching": True},
        {"noise_multiplier": 0.98 * setting.noise_multiplier},
    ):
        changed = setting
        if "noise_multiplier" in other:
            changed, other = setting._replace(**other), {}
        theirs = printed(
            changed, accountant_type=lib.AccountantType.PLD, **other
        )
        assert theirs[0] > 1.01 * passes.epsilon
        assert theirs[1] > 1.01 * poisson.epsilon
