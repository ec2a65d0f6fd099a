"""Plans for a budget: exact to the last step or unit, cached or not."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import pytest

from tf_sparse_dp.accounting import (
    PrivacyPlan,
    batch_size_for_budget,
    disk_cache,
    for_budget,
    noise_for_budget,
    progress,
    steps_for_budget,
)
from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.sampling import EpochSampling, PoissonSampling, UserSampling

pytestmark = [pytest.mark.once]

BUDGET = {"epsilon": 2.0, "delta": 1e-6}
POISSON = PoissonSampling(num_examples=2000, batch_size=200, steps=20)
USERS = UserSampling(
    num_users=2000, users_per_batch=200, examples_per_user=3, steps=20
)
EPOCHS = EpochSampling(num_examples=2000, batch_size=200, epochs=4)


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """An empty cache of our own, into which even fast answers go."""
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(for_budget, "_SLOW", 0.0)
    return tmp_path / "kept"


def test_what_one_step_costs_is_said():
    sampling = PoissonSampling(num_examples=100_000, batch_size=1_000, epochs=3)
    # So dear that its overflow, charged at that epsilon, uses up delta too.
    with pytest.raises(
        ValueError, match=r"with 1 step .* costs more than [0-9.]+"
    ):
        steps_for_budget(
            sampling, noise_multiplier=0.2, epsilon=1.0, delta=1e-6
        )
    with pytest.raises(ValueError, match="with 1 pass a noise"):
        steps_for_budget(EPOCHS, noise_multiplier=0.5, **BUDGET)
    cut = dataclasses.replace(sampling, max_batch_size=1_000)
    with pytest.raises(ValueError, match="Raise max_batch_size"):
        steps_for_budget(cut, noise_multiplier=9.0, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    "search",
    [
        noise_for_budget,
        functools.partial(steps_for_budget, noise_multiplier=1.0),
        functools.partial(batch_size_for_budget, noise_multiplier=1.0),
    ],
)
def test_searches_are_for_samplings(search):
    with pytest.raises(TypeError, match="sampling is 100000, expected a Poi"):
        search(100_000, **BUDGET)


@pytest.mark.parametrize(
    "search",
    [
        PrivacyPlan,
        noise_for_budget,
        functools.partial(steps_for_budget, noise_multiplier=9.0, at_most=2),
    ],
)
def test_warnings_point_at_the_caller(search):
    with pytest.warns(PrivacyWarning) as warned:
        search(sampling=POISSON, epsilon=2.0, delta=1e-3)
    assert [one.filename for one in warned] == [__file__]


def epsilon(sampling, noise, z):
    return PrivacyPlan(
        noise_multiplier=z, delta=1e-6, sampling=sampling, noise=noise
    ).epsilon


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("sampling", [POISSON, USERS, EPOCHS])
def test_steps_to_the_last_one(sampling, noise):
    z = 6.0 if sampling is EPOCHS else 2.0
    plan = steps_for_budget(sampling, noise_multiplier=z, noise=noise, **BUDGET)
    number = plan.num_compositions
    assert plan.epsilon <= 2.0
    assert plan.sampling == sampling.with_compositions(number)
    assert epsilon(sampling.with_compositions(number), noise, z) <= 2.0
    assert epsilon(sampling.with_compositions(number + 1), noise, z) > 2.0


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("sampling", [POISSON, USERS])
def test_batch_sizes_to_the_last_unit(sampling, noise):
    plan = batch_size_for_budget(
        sampling, noise_multiplier=2.0, noise=noise, **BUDGET
    )
    size = getattr(plan.sampling, "batch_size", None)
    size = size or plan.sampling.users_per_batch
    assert 1 < size < 2000
    assert plan.num_compositions == 20
    assert epsilon(sampling.with_batch_size(size), noise, 2.0) <= 2.0
    assert epsilon(sampling.with_batch_size(size + 1), noise, 2.0) > 2.0


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("sampling", [POISSON, USERS, EPOCHS])
def test_noise_is_that_of_a_plan(sampling, noise):
    plan = PrivacyPlan(sampling=sampling, noise=noise, **BUDGET)
    for _ in range(2):  # The second time from disk.
        found = noise_for_budget(sampling, noise=noise, **BUDGET)
        assert found == plan
        assert found.epsilon == 2.0


def test_all_of_the_data_in_every_batch():
    plan = batch_size_for_budget(
        POISSON, noise_multiplier=100.0, epsilon=2.0, delta=1e-6
    )
    assert plan.sampling.batch_size == 2000
    plan = steps_for_budget(
        POISSON, noise_multiplier=100.0, epsilon=2.0, delta=1e-6, at_most=50
    )
    assert plan.num_compositions == 50


def test_limits_of_batches():
    default = POISSON.with_compositions(10_000)
    assert default == PoissonSampling(
        num_examples=2000, batch_size=200, steps=10_000
    )
    limited = dataclasses.replace(POISSON, max_batch_size=500)
    assert limited.with_compositions(7).max_batch_size == 500
    assert limited.with_batch_size(300).max_batch_size == 500
    assert USERS.with_batch_size(300).max_users_per_batch == (
        POISSON.with_batch_size(300).max_batch_size
    )
    assert USERS.with_compositions(7).examples_per_user == 3
    by_epochs = PoissonSampling(num_examples=2000, batch_size=200, epochs=2)
    assert by_epochs.with_batch_size(100).num_steps == 20
    # Overflow that uses up delta is as good as an infinite epsilon.
    tight = dataclasses.replace(POISSON, max_batch_size=290)
    plan = steps_for_budget(tight, noise_multiplier=5.0, **BUDGET)
    free = steps_for_budget(POISSON, noise_multiplier=5.0, **BUDGET)
    assert plan.num_compositions < free.num_compositions
    plan = batch_size_for_budget(limited, noise_multiplier=100.0, **BUDGET)
    assert 350 < plan.sampling.batch_size < plan.sampling.max_batch_size == 500


def test_no_answer():
    with pytest.raises(ValueError, match="with 1 pass a noise multiplier"):
        steps_for_budget(EPOCHS, noise_multiplier=0.3, **BUDGET)
    with pytest.raises(ValueError, match="batch size of 1"):
        batch_size_for_budget(
            PoissonSampling(num_examples=20, batch_size=10, steps=50),
            noise_multiplier=1.0,
            epsilon=0.1,
            delta=1e-6,
        )
    with pytest.raises(TypeError, match="batch size is nothing that epsilon"):
        batch_size_for_budget(EPOCHS, noise_multiplier=3.0, **BUDGET)
    with pytest.raises(TypeError, match="expected a PoissonSampling"):
        steps_for_budget("poisson", noise_multiplier=3.0, **BUDGET)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="at_most"):
            steps_for_budget(
                EPOCHS, noise_multiplier=3.0, at_most=wrong, **BUDGET
            )
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon is"):
            steps_for_budget(
                EPOCHS, noise_multiplier=3.0, epsilon=wrong, delta=1e-6
            )
    with pytest.raises(ValueError, match="delta is"):
        steps_for_budget(EPOCHS, noise_multiplier=3.0, epsilon=1.0, delta=2.0)


def ask(what):
    if what == "noise":
        return noise_for_budget(POISSON, **BUDGET).noise_multiplier
    if what == "steps":
        return steps_for_budget(
            POISSON, noise_multiplier=2.0, **BUDGET
        ).num_compositions
    return batch_size_for_budget(
        POISSON, noise_multiplier=2.0, **BUDGET
    ).sampling.batch_size


@pytest.mark.parametrize("what", ["noise", "steps", "batch size"])
def test_a_wrong_cache_changes_nothing(what, kept):
    right = ask(what)
    (file,) = kept.glob("*.json")
    text = file.read_text()
    wrongs = [right * 0.9, right * 1.1, right * 0, -right, 10 * right]
    if what != "noise":
        wrongs = [right - 1, right + 1, 0, -right, 10**12]
    wrongs += ["7", None, math.nan, math.inf, True, [right]]
    for wrong in wrongs:
        file.write_text(json.dumps({**json.loads(text), "answer": wrong}))
        assert ask(what) == right
        assert json.loads(file.read_text())["answer"] == right
    for garbage in ("", "{", "[]", "3", '{"answer": 1}', "\0" * 200_000):
        file.write_text(garbage)
        assert ask(what) == right
        assert file.read_text() == text
    other = json.loads(text)
    other["question"]["versions"]["tf_sparse_dp"] = "0"
    file.write_text(json.dumps(other))
    assert disk_cache.remembered(json.loads(text)["question"]) is None


def test_a_right_cache_saves_work(monkeypatch):
    first = ask("steps")
    calls = []
    real = for_budget._epsilon
    monkeypatch.setattr(
        for_budget, "_epsilon", lambda *args: calls.append(1) or real(*args)
    )
    assert ask("steps") == first
    assert len(calls) == 2


def test_questions_are_told_apart(kept):
    steps_for_budget(POISSON, noise_multiplier=2.0, **BUDGET)
    steps_for_budget(POISSON, noise_multiplier=2.5, **BUDGET)
    steps_for_budget(POISSON, noise_multiplier=2.0, epsilon=1.9, delta=1e-6)
    steps_for_budget(POISSON, noise_multiplier=2.0, epsilon=2.0, delta=1e-5)
    steps_for_budget(USERS, noise_multiplier=2.0, **BUDGET)
    assert len(list(kept.iterdir())) == 5


def test_the_cache_can_be_switched_off(kept, monkeypatch, tmp_path):
    steps_for_budget(POISSON, noise_multiplier=2.0, cache=False, **BUDGET)
    monkeypatch.setenv(disk_cache.VARIABLE, "off")
    ask("steps")
    assert not kept.exists()
    # A place that cannot be written is no reason to fail.
    occupied = tmp_path / "file"
    occupied.write_text("mine")
    monkeypatch.setenv(disk_cache.VARIABLE, str(occupied))
    ask("steps")
    assert occupied.read_text() == "mine"
    monkeypatch.delenv(disk_cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert disk_cache.cache_directory().name == "tf_sparse_dp"


def test_fast_answers_are_not_kept(kept, monkeypatch):
    monkeypatch.setattr(for_budget, "_SLOW", 100.0)
    ask("steps")
    assert not kept.exists()


def test_progress(capsys, monkeypatch):
    lines = []
    steps_for_budget(
        POISSON, noise_multiplier=2.0, progress=lines.append, **BUDGET
    )
    assert len(lines) > 3
    assert lines[0].startswith("steps for a budget: evaluation 1, noise mult")
    assert capsys.readouterr().err == ""
    noise_for_budget(EPOCHS, **BUDGET)
    assert capsys.readouterr().err == ""  # It did not take long.
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    noise_for_budget(EPOCHS, cache=False, **BUDGET)
    assert "tf_sparse_dp: noise for a budget: ev" in capsys.readouterr().err
    progress.evaluating("unheard")
