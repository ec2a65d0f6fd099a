"""A filter in place of a plan: what it does not pay for is not released."""

from __future__ import annotations

from typing import Any

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import privacy_accountant

import tf_sparse_dp as tsdp
from tests.optimizers import small_run

keras = tf.keras
ZERO_OUT = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


def model(budget: Any, *, jit_compile: bool = False, **options: Any) -> Any:
    result = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), budget, **options
    )
    result.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
    return result


def step_event(sampling: Any, noise_multiplier: float, **options: Any) -> Any:
    plan = tsdp.PrivacyPlan(
        noise_multiplier=noise_multiplier,
        delta=1e-2,
        sampling=sampling,
        **options,
    )
    return plan.step_event


def joined(entries: Any) -> Any:
    """Equal events in a row as one."""
    result: list[Any] = []
    for event, count in entries:
        if result and result[-1][0] == event:
            count += result.pop()[1]
        result.append((event, count))
    return result


def poisson(steps: int = 40) -> tsdp.PoissonSampling:
    return small_run.poisson(steps)


def train(trained: Any, sampling: Any, **options: Any) -> Any:
    callbacks = [tsdp.PrivacyBudget(reserve=3), *options.pop("callbacks", [])]
    return trained.fit(
        small_run.dataset(sampling), verbose=0, callbacks=callbacks, **options
    )


def renyi(tmp_path: Any) -> tsdp.PrivacyFilter:
    return tsdp.RenyiFilter(epsilon=2.0, delta=1e-2)


def child(tmp_path: Any) -> tsdp.PrivacyFilter:
    return renyi(tmp_path).child("a model")


def shared(tmp_path: Any) -> tsdp.PrivacyFilter:
    return tsdp.SharedBudget(tmp_path / "budget.jsonl", renyi(tmp_path))


def declared(tmp_path: Any) -> tsdp.PrivacyFilter:
    sequence = [(step_event(poisson(), 1.0), 40)]
    return tsdp.PldFilter(epsilon=2.0, delta=1e-2, sequence=sequence)


@pytest.mark.parametrize(
    ("make", "jit_compile"),
    [
        (renyi, False),
        (renyi, True),
        (child, False),
        (shared, False),
        (declared, False),
    ],
)
def test_training_ends_when_the_budget_does(
    make: Any, jit_compile: bool, tmp_path: Any
) -> None:
    sampling, budget = poisson(), make(tmp_path)
    event = step_event(sampling, 1.0)
    (tmp_path / "other").mkdir()
    expected = make(tmp_path / "other").affordable(event, 40)
    assert 3 < expected < 40 and expected % 3
    trained = model(
        budget,
        sampling=sampling,
        noise_multiplier=1.0,
        jit_compile=jit_compile,
    )
    assert trained.optimizer.compositions_left == expected
    train(trained, sampling)
    optimizer = trained.optimizer
    assert optimizer.compositions_spent == expected
    assert optimizer.ledger().entries == [(event, expected)]
    assert optimizer.compositions_left == 0
    assert joined(budget.entries) == [(event, expected)]
    assert optimizer.budget_left == budget.remaining() < 0.2
    statement = optimizer.privacy_statement()
    assert statement.private
    assert (statement.epsilon_spent, statement.epsilon) == (2.0, 2.0)
    assert "the whole budget of the filter" in " ".join(str(statement).split())
    with pytest.raises(tsdp.BudgetExhausted):
        train(trained, sampling)
    # Without the callback no step is taken either.
    before = small_run.weights(trained)
    with pytest.raises(tsdp.BudgetExhausted):
        trained.fit(small_run.dataset(sampling), verbose=0)
    for a, b in zip(before, small_run.weights(trained), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (tsdp.ZcdpFilter, {}),
        (tsdp.RenyiFilter, {}),
        (tsdp.ApproxDPFilter, {"mechanism": tsdp.Laplace()}),
    ],
)
def test_passes_are_paid_when_they_start(kind: Any, options: Any) -> None:
    budget = kind(epsilon=3.0, delta=1e-2, neighboring_relation=ZERO_OUT)
    sampling = tsdp.EpochSampling(
        num_examples=small_run.EXAMPLES, batch_size=32, epochs=20
    )
    noise = "laplace" if options else "gaussian"
    event = step_event(sampling, 4.0, noise=noise)
    expected = budget.affordable(event, 20)
    assert 1 < expected < 20
    trained = model(budget, sampling=sampling, noise_multiplier=4.0, **options)
    data = sampling.dataset((small_run.FEATURES, small_run.LABELS))
    trained.fit(data, epochs=20, verbose=0, callbacks=[tsdp.PrivacyBudget()])
    assert trained.optimizer.compositions_spent == expected
    assert joined(budget.entries) == [(event, expected)]


@pytest.mark.once
def test_steps_that_were_not_paid_ahead_are_refused(tmp_path: Any) -> None:
    trained = model(child(tmp_path), sampling=poisson(), noise_multiplier=1.0)
    with pytest.raises(tsdp.PrivacyStateError, match="was not paid ahead"):
        trained.fit(small_run.dataset(poisson()), verbose=0)
    assert trained.optimizer.compositions_spent == 0


@pytest.mark.once
def test_a_loop_of_ones_own_reserves(tmp_path: Any) -> None:
    budget = child(tmp_path)
    trained = model(budget, sampling=poisson(), noise_multiplier=1.0)
    trained.optimizer.reserve(3)
    assert sum(count for _, count in budget.entries) == 3
    for batch in small_run.dataset(poisson()).take(2):
        trained.train_on_batch(*batch)
    trained.optimizer.settle()
    assert trained.optimizer.compositions_spent == 2
    assert sum(count for _, count in budget.entries) == 2


@pytest.mark.once
def test_after_settling_steps_have_to_be_paid_for_again() -> None:
    trained = model(renyi(None), sampling=poisson(), noise_multiplier=1.0)
    batch = next(iter(small_run.dataset(poisson())))
    trained.train_on_batch(*batch)  # The trace takes hold of the filter.
    trained.optimizer.settle()
    trained.train_on_batch(*batch)
    with pytest.raises(tsdp.PrivacyStateError, match="was not paid ahead"):
        trained.optimizer.privacy_statement()
    trained.optimizer.reserve(1)
    trained.train_on_batch(*batch)
    assert trained.optimizer.compositions_spent == 2
    assert trained.optimizer.privacy_statement().private


class Louder(keras.callbacks.Callback):
    """More noise from the third step on."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            self.model.optimizer.noise_multiplier = 3.0


@pytest.mark.parametrize("make", [renyi, child])
def test_noise_changes_and_each_step_pays_for_its_own(
    make: Any, tmp_path: Any
) -> None:
    sampling, budget = poisson(6), make(tmp_path)
    trained = model(budget, sampling=sampling, noise_multiplier=1.0)
    train(trained, sampling, callbacks=[Louder()])
    optimizer = trained.optimizer
    events = [
        (step_event(sampling, 1.0), 2),
        (step_event(sampling, 3.0), 4),
    ]
    assert optimizer.noise_multiplier == 3.0
    assert optimizer.ledger().entries == events
    assert joined(budget.entries) == events


def only_noise(
    sampling: Any, noise_multiplier: float, jit_compile: bool = False
) -> tuple[Any, Any]:
    """A model that nothing but noise moves: the gradients are zero."""
    wide = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2000)])
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0),
        tsdp.RenyiFilter(epsilon=20.0, delta=1e-2),
        sampling=sampling,
        noise_multiplier=noise_multiplier,
        clip_norm=0.5,
    )
    wide.compile(
        optimizer=optimizer,
        loss=lambda y, p: 0.0 * p[:, 0],
        jit_compile=jit_compile,
    )
    return wide, optimizer


@pytest.mark.once
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_noise_is_what_it_was_set_to(jit_compile: bool) -> None:
    sampling = poisson(4)
    wide, optimizer = only_noise(sampling, 2.0, jit_compile)
    batches = iter(small_run.dataset(sampling))
    for noise_multiplier in (2.0, 7.3, 1.1):
        optimizer.noise_multiplier = noise_multiplier
        before = wide.get_weights()[0]
        wide.train_on_batch(*next(batches))
        moved = wide.get_weights()[0] - before
        expected = noise_multiplier * 0.5 / sampling.batch_size
        # 8,000 draws: the standard deviation is known to 0.8 %, and 5 % are
        # exceeded with probability 3e-10.
        assert np.std(moved) == pytest.approx(expected, rel=0.05)


@pytest.mark.once
@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, 1e9, "1", True])
def test_noise_that_makes_no_sense_is_refused(wrong: Any) -> None:
    trained = model(renyi(None), sampling=poisson(), noise_multiplier=1.0)
    with pytest.raises((ValueError, TypeError), match="noise_multiplier is"):
        trained.optimizer.noise_multiplier = wrong
    assert trained.optimizer.noise_multiplier == 1.0


@pytest.mark.once
def test_a_plan_keeps_its_noise() -> None:
    trained = model(small_run.plan())
    with pytest.raises(ValueError, match="only where a filter pays"):
        trained.optimizer.noise_multiplier = 2.0


@pytest.mark.once
def test_one_at_a_time_decides_within_its_graph() -> None:
    budget, sampling = renyi(None), poisson(3)
    options = {"sampling": sampling, "noise_multiplier": 1.0}
    first, second = model(budget, **options), model(budget, **options)
    first.optimizer.reserve(1)
    for refused in (
        lambda: second.optimizer.reserve(1),
        # Of another model: tf-keras does not train one whose trace failed.
        lambda: model(budget, **options).fit(
            small_run.dataset(sampling), verbose=0
        ),
        lambda: budget.spend(dp_accounting.GaussianDpEvent(9.0)),
        lambda: budget.compose(dp_accounting.GaussianDpEvent(9.0)),
        lambda: budget.child("another").spend(
            dp_accounting.GaussianDpEvent(9.0)
        ),
    ):
        with pytest.raises(tsdp.PrivacyStateError, match="is held by"):
            refused()
    train(first, sampling)
    train(second, sampling)
    assert joined(budget.entries) == [(step_event(sampling, 1.0), 6)]
    assert first.optimizer.ledger().num_events == 3
    budget.spend(dp_accounting.GaussianDpEvent(9.0))


@pytest.mark.once
@pytest.mark.parametrize("jit_compile", [False, True])
def test_batches_of_several_sizes(jit_compile: bool) -> None:
    sampling = tsdp.VaryingPoissonSampling(
        num_examples=small_run.EXAMPLES,
        batch_sizes=(4, 16),
        steps=60,
        max_batch_sizes=(50, 60),
    )
    budget = tsdp.RenyiFilter(epsilon=4.0, delta=1e-2)
    trained = model(
        budget,
        sampling=sampling,
        noise_multiplier=1.0,
        jit_compile=jit_compile,
    )
    # Without a seed, all would be of one size one time in a thousand.
    with pytest.warns(tsdp.PrivacyWarning, match="repeatable"):
        data = sampling.dataset((small_run.FEATURES, small_run.LABELS), seed=0)
    budget_callback = tsdp.PrivacyBudget(reserve=3)
    trained.fit(data, verbose=0, callbacks=[budget_callback])
    optimizer = trained.optimizer
    taken = optimizer.compositions_spent
    assert 2 < taken < 60
    assert optimizer.ledger().entries == joined(budget.entries)
    found = {}
    for event, count in budget.entries:
        probability = event.event.sampling_probability
        found[probability] = found.get(probability, 0) + count
    assert set(found) == {4 / 64, 16 / 64}
    assert sum(found.values()) == taken
    assert not budget.can_spend(optimizer.plan.step_event(1.0, kind=1))
    assert optimizer.privacy_statement().private


@pytest.mark.once
def test_batches_of_several_sizes_are_divided_by_their_own() -> None:
    sampling = tsdp.VaryingPoissonSampling(
        num_examples=64, batch_sizes=(2, 32), steps=8
    )
    wide, _ = only_noise(sampling, noise_multiplier=3.0)
    sizes = {k.rows: k.expected_batch_size for k in sampling.step_kinds}
    seen = set()
    for batch in small_run.dataset(sampling):
        before = wide.get_weights()[0]
        wide.train_on_batch(*batch)
        moved = wide.get_weights()[0] - before
        rows = int(batch[0].shape[0])
        expected = 3.0 * 0.5 / sizes[rows]
        assert np.std(moved) == pytest.approx(expected, rel=0.05)
        seen.add(rows)
    # One size only has a chance of 1/128, for which nothing is wrong.
    assert seen <= set(sizes)


@pytest.mark.once
def test_what_varies_needs_a_filter_that_decides_in_the_graph(
    tmp_path: Any,
) -> None:
    sampling = tsdp.VaryingPoissonSampling(
        num_examples=64, batch_sizes=(4, 16), steps=3
    )
    options = {"sampling": sampling, "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match="batches of several sizes"):
        model(child(tmp_path), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"noise_multiplier": 1.0}, "Expected both"),
        ({"sampling": poisson()}, "Expected both"),
        (
            {
                "noise_multiplier": 1.0,
                "sampling": tsdp.EpochSampling(
                    num_examples=64, batch_size=32, epochs=2
                ),
            },
            "Make the filter with neighboring_relation",
        ),
        (
            {
                "noise_multiplier": 1.0,
                "sampling": poisson(),
                "expected_batch_size": 8.0,
            },
            "leave them out",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        model(renyi(None), **options)


@pytest.mark.once
def test_a_sampling_without_a_filter_is_refused() -> None:
    with pytest.raises(ValueError, match="sampling was given without a filter"):
        model(small_run.plan(), sampling=poisson())


@pytest.mark.parametrize("plan", [tsdp.PrivacyOdometer(delta=1e-6), 3.0])
def test_what_is_neither_plan_nor_filter(plan: Any) -> None:
    with pytest.raises(TypeError, match=f"plan is a {type(plan).__name__}; "):
        model(plan, sampling=poisson(), noise_multiplier=1.0)


def test_a_filter_of_pairs_is_not_for_gaussian_noise() -> None:
    with pytest.raises(
        privacy_accountant.UnsupportedEventError, match="use a RenyiFilter, or"
    ):
        model(
            tsdp.ApproxDPFilter(epsilon=2.0, delta=1e-2),
            sampling=poisson(),
            noise_multiplier=1.0,
        )


def test_who_finds_a_filter_spent_is_told_that_others_may_have() -> None:
    sampling = poisson(3)
    for budget in (
        tsdp.RenyiFilter(epsilon=2.0, delta=1e-2),
        tsdp.RenyiFilter(epsilon=2.0, delta=1e-2).child("one"),
    ):
        event = step_event(sampling, 1.0)
        budget.spend(event, budget.affordable(event, 1000))
        trained = model(budget, sampling=sampling, noise_multiplier=1.0)
        with pytest.raises(tsdp.BudgetExhausted) as refused:
            train(trained, sampling)
        told = str(refused.value)
        assert f"{budget.remaining():.3g} of its budget is left" in told
        assert "has taken 0 steps, and others" in told


def test_steps_that_were_not_declared_say_so() -> None:
    sampling = poisson(3)
    other = step_event(sampling, 2.0)
    trained = model(
        tsdp.PldFilter(epsilon=2.0, delta=1e-2, sequence=[(other, 3)]),
        sampling=sampling,
        noise_multiplier=1.0,
    )
    with pytest.raises(tsdp.BudgetExhausted) as refused:
        trained.fit(small_run.dataset(sampling), verbose=0)
    assert f"goes on with 3 of {other!r}" in str(refused.value)
    assert "make the filter with a sequence of" in str(refused.value)
    with pytest.raises(ValueError, match="goes on with 3 of"):
        train(trained, sampling)


def test_noise_that_no_filter_knows() -> None:
    trained = model(renyi(None), sampling=poisson(), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="noise_multiplier is 0, expected a"):
        trained.optimizer.noise_multiplier = 0


def test_a_ledger_is_a_path() -> None:
    with pytest.raises(TypeError, match="ledger is 3, expected the path"):
        model(small_run.plan(), ledger=3)
