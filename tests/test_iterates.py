"""Mean, random and projected iterates, as callbacks of `fit`."""

from __future__ import annotations

import collections
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp import iterates

RATE = 0.1


def weight_model(optimizer: Any = None, **compiled: Any) -> Any:
    """Loss w·x, so that a step with x = 1 takes RATE from the weight."""
    model = tf.keras.Sequential(
        [
            tf.keras.Input([1]),
            tf.keras.layers.Dense(
                1, use_bias=False, kernel_initializer="zeros"
            ),
        ]
    )
    model.compile(
        optimizer or tf.keras.optimizers.SGD(RATE),
        loss=lambda _, w: w[:, 0],
        **compiled,
    )
    return model


def train(model: Any, steps: int, *callbacks: Any) -> None:
    ones = np.ones([steps, 1], np.float32)
    model.fit(ones, ones, batch_size=1, verbose=0, callbacks=list(callbacks))


def weight(model: Any) -> float:
    return float(model.get_weights()[0][0, 0])


def test_the_mean_is_over_the_iterates_that_steps_started_from() -> None:
    model, average = weight_model(), tsdp.AverageIterate()
    train(model, 5, average)
    # 0, -1, ..., -4 times the rate; not -5.
    assert average.count == 5
    assert weight(model) == pytest.approx(-2 * RATE)


def test_a_further_fit_starts_over_or_goes_on() -> None:
    model, average = weight_model(), tsdp.AverageIterate()
    train(model, 5, average)
    train(model, 3, average)
    assert average.count == 3
    assert weight(model) == pytest.approx(-3 * RATE)

    model, kept = weight_model(), tsdp.AverageIterate(assign=False)
    train(model, 2, kept)
    assert weight(model) == pytest.approx(-2 * RATE)
    train(model, 3, kept)
    assert weight(model) == pytest.approx(-5 * RATE)
    kept.assign_to(model)
    assert weight(model) == pytest.approx(-2 * RATE)


def test_a_saved_state_goes_on_in_another_process() -> None:
    model, first = weight_model(), tsdp.AverageIterate(assign=False)
    train(model, 2, first)
    again = weight_model()
    again.set_weights(model.get_weights())
    second = tsdp.AverageIterate()
    second.set_state(first.get_state())
    train(again, 3, second)
    assert weight(again) == pytest.approx(-2 * RATE)


def batches(steps: int) -> Any:
    return tsdp.PoissonSampling(
        num_examples=64, batch_size=16, steps=steps, max_batch_size=64
    )


def private_sgd(steps: int) -> Any:
    plan = tsdp.PrivacyPlan(
        noise_multiplier=2.0, delta=1e-5, sampling=batches(steps)
    )
    return tsdp.DPSparseOptimizer(tf.keras.optimizers.SGD(RATE), plan)


class Seen(tf.keras.callbacks.Callback):
    """The weight at the start of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.weights.append(weight(self.model))


def test_refused_steps_do_not_count() -> None:
    """The plan pays for 4 steps; 6 batches come, and PrivacyBudget ends."""
    ones = np.ones([64, 1], np.float32)
    longer = batches(6)
    model, seen = weight_model(private_sgd(4)), Seen()
    average = tsdp.AverageIterate()
    model.fit(
        longer.dataset((ones, ones)),
        verbose=0,
        callbacks=[average, seen, tsdp.PrivacyBudget()],
    )
    assert average.count == len(seen.weights) == 4
    assert weight(model) == pytest.approx(np.mean(seen.weights), abs=1e-6)

    # Without the callback, steps are refused and fit ends with an exception.
    model, seen = weight_model(private_sgd(4)), Seen()
    average = tsdp.AverageIterate()
    with pytest.raises(tsdp.BudgetExhausted):
        model.fit(
            longer.dataset((ones, ones)), verbose=0, callbacks=[average, seen]
        )
        model.optimizer.finalize_variable_values(model.trainable_variables)
    assert len(seen.weights) == 6
    # The last iterate was the start of steps that were refused: once.
    assert average.count == 5
    average.assign_to(model)
    assert weight(model) == pytest.approx(np.mean(seen.weights[:5]), abs=1e-6)


def reservoir(steps: int, runs: int) -> collections.Counter[int]:
    """Which of the iterates 0, 1, ... was kept, in so many runs."""
    found: collections.Counter[int] = collections.Counter()
    values = [tf.constant([float(k)]) for k in range(steps)]
    for _ in range(runs):
        chosen = tsdp.RandomIterate()
        for number, value in enumerate(values, start=1):
            chosen._count = number
            chosen._count_in([value])
        found[int(chosen.get_state()["weights"][0][0])] += 1
    return found


def chi_squared(found: collections.Counter[int], steps: int, runs: int) -> Any:
    expected = runs / steps
    return sum((found[k] - expected) ** 2 / expected for k in range(steps))


@pytest.mark.once
def test_every_iterate_is_equally_likely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, runs = 6, 3000
    limit = 38.0  # Chi-squared, 5 degrees of freedom: exceeded once in 3e6.
    assert chi_squared(reservoir(steps, runs), steps, runs) < limit
    right = iterates.secrets.randbelow
    # Off by one, which keeps late iterates less often.
    monkeypatch.setattr(
        iterates.secrets, "randbelow", lambda k: right(k + 1) if k > 1 else 0
    )
    assert chi_squared(reservoir(steps, runs), steps, runs) > limit


def test_the_model_gets_one_of_its_iterates() -> None:
    model, chosen = weight_model(), tsdp.RandomIterate()
    train(model, 5, chosen)
    assert chosen.count == 5
    assert min(abs(weight(model) + k * RATE) for k in range(5)) < 1e-6


def two_weights(start: float) -> Any:
    model = tf.keras.Sequential(
        [tf.keras.Input([2]), tf.keras.layers.Dense(1, use_bias=True)]
    )
    model.compile(tf.keras.optimizers.SGD(1.0), loss=lambda _, w: w[:, 0])
    model.set_weights([np.full([2, 1], start), np.full([1], start)])
    return model


def test_a_ball_is_around_the_start_and_over_all_weights() -> None:
    model, radius = two_weights(5.0), 0.5
    x = np.array([[2.0, 1.0]], np.float32)  # The gradient is (2, 1, 1).
    ball = tsdp.ProjectedIterate(ball=radius)
    for _ in range(2):  # The centre stays where the first fit began.
        model.fit(x, x[:, :1], verbose=0, callbacks=[ball])
    moved = np.concatenate([w.ravel() for w in model.get_weights()]) - 5
    expected = -radius * np.array([2.0, 1.0, 1.0]) / math.sqrt(6)
    np.testing.assert_allclose(moved, expected, rtol=1e-5)


def test_within_the_ball_nothing_is_changed() -> None:
    model = two_weights(0.0)
    x = np.array([[2.0, 1.0]], np.float32)
    model.fit(
        x, x[:, :1], verbose=0, callbacks=[tsdp.ProjectedIterate(ball=10.0)]
    )
    assert np.concatenate(
        [w.ravel() for w in model.get_weights()]
    ).tolist() == [
        -2.0,
        -1.0,
        -1.0,
    ]


def test_a_box_holds_every_weight() -> None:
    model = two_weights(0.0)
    x = np.array([[2.0, 1.0]], np.float32)
    model.fit(
        x,
        x[:, :1],
        verbose=0,
        callbacks=[tsdp.ProjectedIterate(box=(-1.5, 1.0))],
    )
    found = np.concatenate([w.ravel() for w in model.get_weights()])
    np.testing.assert_allclose(found, [-1.5, -1.0, -1.0])


def test_the_mean_is_of_projected_iterates_in_any_order() -> None:
    box = tsdp.ProjectedIterate(box=(-1.5 * RATE, 1.0))
    average = tsdp.AverageIterate()
    for callbacks in ([box, average], [average, box]):
        model = weight_model()
        train(model, 4, *callbacks)
        assert weight(model) == pytest.approx(-RATE)  # 0, 1, 1.5, 1.5


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"ball": 1.0, "box": (0.0, 1.0)},
        {"ball": 0.0},
        {"ball": math.inf},
        {"box": (1.0, 1.0)},
        {"box": (math.nan, 1.0)},
        {"box": (0.0, 1.0, 2.0)},
    ],
)
def test_what_is_no_set_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        tsdp.ProjectedIterate(**arguments)


@pytest.mark.parametrize(
    "callback",
    [
        tsdp.AverageIterate(),
        tsdp.RandomIterate(),
        tsdp.ProjectedIterate(ball=1.0),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_what_would_not_be_all_iterates_is_refused(callback: Any) -> None:
    with pytest.raises(ValueError, match="steps_per_execution=2"):
        train(weight_model(steps_per_execution=2), 4, callback)
    lazy = tf.keras.Sequential(
        [
            tf.keras.Input([1], dtype="int32"),
            tsdp.layers.LazyEmbedding(10, 2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1),
        ]
    )
    callback.set_model(lazy)
    with pytest.raises(ValueError, match="LazyEmbedding"):
        callback.on_train_begin()
    empty = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    callback.set_model(empty)
    with pytest.raises(ValueError, match="before fit"):
        callback.on_train_begin()


def test_weights_of_another_model_are_refused() -> None:
    average = tsdp.AverageIterate()
    with pytest.raises(ValueError, match="Train with it"):
        average.assign_to(weight_model())
    train(weight_model(), 2, average)
    with pytest.raises(ValueError, match="same model"):
        average.assign_to(two_weights(0.0))
