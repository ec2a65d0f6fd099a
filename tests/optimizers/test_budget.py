"""Steps beyond the plan are not taken."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers import small_run

COMPILE = [{}, {"jit_compile": True}, {"steps_per_execution": 4}]


@pytest.mark.parametrize("compile", COMPILE, ids=str)
def test_the_step_beyond_the_plan_is_not_taken(compile: dict[str, Any]) -> None:
    model = small_run.model(small_run.plan(small_run.poisson(4)), **compile)
    small_run.train(model, 4)
    assert model.optimizer.compositions_left == 0
    before = small_run.weights(model)
    slots = [np.asarray(v) for v in model.optimizer.inner_optimizer.variables]
    with pytest.raises(tsdp.BudgetExhausted, match="4 steps, and 4 are spent"):
        small_run.train(model, 4)
    for a, b in zip(before, small_run.weights(model), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(
        slots, model.optimizer.inner_optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(a, np.asarray(b))
    assert model.optimizer.compositions_spent == 4
    # Said once; the statement is to be had afterwards.
    assert model.optimizer.privacy_statement().epsilon_spent > 0


@pytest.mark.parametrize("compile", COMPILE, ids=str)
def test_the_callback_ends_training_in_time(compile: dict[str, Any]) -> None:
    plan = small_run.plan(small_run.poisson(6))
    model = small_run.model(plan, **compile)
    history = small_run.train(
        model, 4, epochs=5, callbacks=[tsdp.PrivacyBudget()]
    )
    assert model.optimizer.compositions_spent == 6
    assert len(history.history["loss"]) == 2
    spent = history.history["epsilon"]
    assert spent == [plan.epsilon_spent(4), plan.epsilon_spent(6)]
    assert spent[-1] <= plan.epsilon
    with pytest.raises(tsdp.BudgetExhausted, match="6 are spent"):
        small_run.train(model, 1, callbacks=[tsdp.PrivacyBudget()])


def test_the_progress_bar_shows_an_upper_bound_of_epsilon(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = small_run.plan(small_run.poisson(50))
    model = small_run.model(plan)
    small_run.train(model, 7, callbacks=[tsdp.PrivacyBudget()], verbose=1)
    output = capsys.readouterr().out
    shown = [float(x) for x in re.findall(r"epsilon: ([\d.e+-]+)", output)]
    assert shown
    assert min(shown) >= plan.epsilon_spent(1) - 1e-4
    assert shown[-1] == pytest.approx(plan.epsilon_spent(7), abs=1e-4)


def test_the_callback_wants_a_private_optimizer() -> None:
    model = small_run.model()
    model.compile(optimizer="sgd", loss="mse")
    with pytest.raises(TypeError, match="needs a DPSparseOptimizer"):
        small_run.train(model, 1, callbacks=[tsdp.PrivacyBudget()])


def test_refusals_in_a_loop_of_ones_own_are_raised_by_the_statement() -> None:
    model = small_run.model(small_run.plan(small_run.poisson(2)))

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any, weight: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    batches = list(small_run.dataset())
    for batch in batches[:2]:
        step(*batch)
    before = small_run.weights(model)
    step(*batches[2])
    for a, b in zip(before, small_run.weights(model), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(tsdp.BudgetExhausted, match="1 steps were refused"):
        model.optimizer.privacy_statement()
    assert model.optimizer.compositions_spent == 2


def epoch_model(epochs: int = 2) -> Any:
    sampling = tsdp.EpochSampling(
        num_examples=small_run.EXAMPLES, batch_size=24, epochs=epochs
    )
    return small_run.model(small_run.plan(sampling))


def own_batches(size: int = 24) -> tf.data.Dataset:
    data = (small_run.FEATURES, small_run.LABELS)
    return tf.data.Dataset.from_tensor_slices(data).shuffle(64).batch(size)


def test_epochs_are_charged_when_they_start() -> None:
    model = epoch_model()
    history = model.fit(
        own_batches(), epochs=9, verbose=0, callbacks=[tsdp.PrivacyBudget()]
    )
    assert len(history.history["loss"]) == 2
    assert model.optimizer.compositions_spent == 2
    assert int(model.optimizer.iterations.numpy()) == 6
    assert history.history["epsilon"][-1] <= model.optimizer.plan.epsilon


def test_an_interrupted_pass_is_charged_whole() -> None:
    model = epoch_model()
    for expected in (1, 2):
        model.fit(
            own_batches(),
            steps_per_epoch=1,
            verbose=0,
            callbacks=[tsdp.PrivacyBudget()],
        )
        assert model.optimizer.compositions_spent == expected
    with pytest.raises(tsdp.BudgetExhausted):
        model.fit(own_batches(), verbose=0, callbacks=[tsdp.PrivacyBudget()])


def test_a_pass_must_be_started() -> None:
    model = epoch_model()
    before = small_run.weights(model)
    with pytest.raises(tsdp.PrivacyStateError, match="none was started"):
        model.fit(own_batches(), verbose=0)
    for a, b in zip(before, small_run.weights(model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pass_gives_each_example_once() -> None:
    model = epoch_model()
    with pytest.raises(tsdp.PrivacyStateError, match="more than the 64"):
        model.fit(
            own_batches().repeat(2),
            verbose=0,
            callbacks=[tsdp.PrivacyBudget()],
        )
    assert int(model.optimizer.iterations.numpy()) == 3


def test_without_a_plan_nothing_is_enforced_and_the_statement_says_so() -> None:
    model = small_run.model()
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            tf.keras.optimizers.SGD(0.1),
            noise_multiplier=0.0,
            expected_batch_size=8,
        ),
        loss="mse",
    )
    model.fit(
        own_batches(8), epochs=3, verbose=0, callbacks=[tsdp.PrivacyBudget()]
    )
    assert model.optimizer.compositions_spent == 24
    assert model.optimizer.compositions_left is None
    statement = model.optimizer.privacy_statement()
    assert not statement.private
    assert "not private" in str(statement).lower()
