"""The command `tf-sparse-dp plan`, as it is typed."""

from __future__ import annotations

import configparser
import importlib
import json
import pathlib

import dp_accounting
import pytest

from tf_sparse_dp.accounting import PrivacyPlan, RenyiFilter
from tf_sparse_dp.cli import main
from tf_sparse_dp.sampling import EpochSampling, PoissonSampling, UserSampling

pytestmark = [pytest.mark.once]

BASE = "plan --epsilon 2 --delta 1e-6 --examples 5000 --batch-size 500"


def run(capsys, line):
    assert main(line.split()) == 0
    return capsys.readouterr()


def choices(capsys, line):
    found = json.loads(run(capsys, f"{line} --json").out)
    return {
        (one["sampling"], one["batch_size"], one["noise"]): one
        for one in found["choices"]
    }, found


def test_choices_are_plans(capsys):
    found, rest = choices(capsys, f"{BASE} --epochs 2")
    assert len(found) == 2 * 4 * 2
    assert (rest["unit"], rest["units"], rest["notes"]) == ("example", 5000, [])
    for (name, size, noise), one in found.items():
        kind = {"poisson": PoissonSampling, "passes": EpochSampling}[name]
        sampling = kind(num_examples=5000, batch_size=size, epochs=2)
        plan = PrivacyPlan(
            epsilon=2.0, delta=1e-6, sampling=sampling, noise=noise
        )
        assert one["noise_multiplier"] == plan.noise_multiplier
        assert one["noise_on_mean"] == plan.noise_multiplier / size
        assert one["neighbouring_relation"] == plan.neighbouring_relation
        steps = {"poisson": 10_000 // size, "passes": 2 * -(-5000 // size)}
        assert one["steps"] == steps[name]
    assert sorted({size for _, size, _ in found}) == [250, 500, 1000, 2000]


def test_users(capsys):
    line = BASE.replace("--examples", "--examples-per-user 3 --users")
    found, rest = choices(capsys, f"{line} --batch-size 4000 --steps 8")
    assert (rest["unit"], rest["units"]) == ("user", 5000)
    one = found["users", 4000, "gaussian"]
    plan = PrivacyPlan(
        epsilon=2.0,
        delta=1e-6,
        sampling=UserSampling(
            num_users=5000, users_per_batch=4000, examples_per_user=3, steps=8
        ),
    )
    assert one["noise_multiplier"] == plan.noise_multiplier
    assert one["batch_rows"] == plan.sampling.batch_rows
    passes = found["passes", 2000, "gaussian"]
    assert passes["steps"] == 8
    assert passes["batch_rows"] == 6000
    plan = PrivacyPlan(
        epsilon=2.0,
        delta=1e-6,
        sampling=EpochSampling(
            num_examples=15_000,
            batch_size=6000,
            epochs=4,
            examples_per_unit=3,
        ),
    )
    assert passes["noise_multiplier"] == plan.noise_multiplier


def test_the_noise_of_a_filter_is_the_least_that_pays(capsys):
    found, _ = choices(capsys, f"{BASE} --epochs 2")
    one = found["passes", 500, "gaussian"]
    noise = one["filter_noise_multiplier"]
    assert noise > one["noise_multiplier"]
    event = dp_accounting.GaussianDpEvent(noise)
    budget = RenyiFilter.suited_to(event, epsilon=2.0, delta=1e-6)
    assert budget.can_spend(event, 2)
    less = dp_accounting.GaussianDpEvent(0.999 * noise)
    assert not budget.can_spend(less, 2)


def test_text(capsys):
    printed = run(capsys, f"{BASE} --epochs 2").out
    assert "epsilon = 2, delta = 1e-06, for any one of 5,000 ex" in printed
    assert "Poisson sampling (PoissonSampling); neighbours: one ex" in printed
    assert "no amplification (EpochSampling)" in printed
    assert printed.count("\n  2,000 ") == 2
    assert max(map(len, printed.splitlines())) < 100


def test_what_cannot_be_is_left_out_with_the_reason(capsys):
    found, rest = choices(capsys, f"{BASE} --batch-size 5000 --epochs 1.5")
    assert {name for name, _, _ in found} == {"poisson"}
    (note,) = rest["notes"]
    assert "a pass is charged as a whole" in note
    pure = BASE.replace("1e-6", "0")
    found, rest = choices(capsys, f"{pure} --epochs 1")
    assert {(name, noise) for name, _, noise in found} == {
        ("passes", "laplace")
    }
    assert found["passes", 500, "laplace"]["noise_multiplier"] == 0.5
    assert found["passes", 500, "laplace"]["filter_noise_multiplier"] is None
    assert len(rest["notes"]) == 4


def test_a_large_delta_is_warned_of_once(capsys):
    line = BASE.replace("1e-6", "1e-3") + " --batch-size 5000 --steps 1"
    assert run(capsys, line).err.count("warning: delta is 0.001, ") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "required: command"),
        ("fly", "invalid choice: 'fly'"),
        ("plan --epsilon 2", "required: --delta"),
        (BASE, "one of the arguments --epochs --steps is required"),
        (f"{BASE} --epochs 1 --steps 1", "not allowed with"),
        (f"{BASE} --epochs 0", "epochs is 0.0"),
        (f"{BASE} --epochs 1 --batch-size 9999", "at most num_examples=5000"),
        (f"{BASE} --epochs 1 --epsilon -1", "epsilon is -1.0"),
        (f"{BASE} --epochs 1 --epsilon nan", "epsilon is nan"),
        (f"{BASE} --epochs 1 --delta 2", "delta is 2.0"),
        (f"{BASE} --epochs 1 --examples-per-user 2", "go together"),
        (f"{BASE} --epochs 1 --users 3", "not allowed with"),
        (f"{BASE} --epochs 1 --batch-size 0", "batch_size is 0"),
    ],
)
def test_one_message_and_no_traceback(line, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err.splitlines()[-1]
    assert "Traceback" not in printed.err


def test_help(capsys):
    for line in ("--help", "plan --help"):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert ended.value.code == 0
        assert "choices side by side" in capsys.readouterr().out


def test_the_command_is_installed():
    config = configparser.ConfigParser()
    config.read(pathlib.Path(__file__).parents[2] / "setup.cfg")
    scripts = config["options.entry_points"]["console_scripts"]
    name, _, target = scripts.strip().partition(" = ")
    module, _, function = target.partition(":")
    assert name == "tf-sparse-dp"
    assert getattr(importlib.import_module(module), function) is main


@pytest.mark.parametrize("text", ["1e4", "10,000", "10_000"])
def test_numbers_as_people_write_them(capsys, text):
    line = f"plan --epsilon 2 --delta 1e-6 --batch-size 1e4 --examples {text}"
    out = run(capsys, f"{line} --epochs 1").out
    assert "for any one of 10,000 examples, 1 epoch\n" in out


@pytest.mark.parametrize("text", ["1.5", "10,00", "many", "nan"])
def test_what_is_no_number_is_refused(capsys, text):
    with pytest.raises(SystemExit):
        main(f"{BASE} --epochs 1 --examples {text}".split())
    assert "expected a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ("--epsilon 1 --delta 0", "a RenyiFilter needs a delta above 0"),
        ("--epsilon 1e-3 --delta 1e-6", "no RenyiFilter pays for the run"),
    ],
)
def test_an_empty_column_has_a_reason(capsys, budget, reason):
    line = f"plan {budget} --examples 100 --batch-size 100 --steps 1"
    assert reason in run(capsys, line).out
