"""Units of several examples: in every loop of Keras, and in what is stated."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests import model_cases as cases
from tests.optimizers import small_run
from tests.optimizers.refusals import dense_model, refused
from tf_sparse_dp.optimizers.core import PrivateStep

keras = tf.keras
layers = keras.layers

# Cases and the size of units; marked are those that the oldest versions run as
# well, and those in which no loop or loss of Keras matters, so that one shows
# them.
_LANE, _ONCE = pytest.mark.lane, pytest.mark.once
LOOPED = [
    ("embeddings", 5, _ONCE),
    ("shared table", 2, _ONCE),
    ("shared table", 5, _LANE),
    ("towers, shared dense", 5, _ONCE),
    ("masked mean pooling", 5, _ONCE),
    ("dense on sequences", 2, _LANE),
    ("70 lookups of 9 rows", 5, _ONCE),
    ("regularisers", 2, ()),
    ("sum of losses", 5, ()),
    ("jit", 5, _ONCE),
    ("several steps per execution", 2, ()),
]


class UnitLoop(cases.Loop):
    """Training on batches of two units, one example at a time."""

    def __init__(self, case: cases.Case, model: Any, size: int):
        super().__init__(case, model)
        self.size = size

    def unit(self, first: int) -> list[np.ndarray]:
        """The sum over the valid examples of the unit that starts there."""
        total = [np.zeros(v.shape) for v in self.model.trainable_variables]
        for example in range(first, first + self.size):
            if self.case.sample_weight[example] > 0:
                for t, g in zip(total, self.gradients(example), strict=True):
                    t += g
        return total

    def median_norm(self) -> float:
        firsts = range(0, cases.EXAMPLES, self.size)
        return float(np.median([cases.norm(self.unit(i)) for i in firsts]))

    def weights(self, clip_norm: float, expected: float) -> list[np.ndarray]:
        variables = self.model.trainable_variables
        initial = [v.numpy().copy() for v in variables]
        for start in range(0, cases.EXAMPLES, 2 * self.size):
            total = [np.zeros(v.shape) for v in variables]
            for first in (start, start + self.size):
                unit = self.unit(first)
                shrink = min(1.0, clip_norm / max(cases.norm(unit), 1e-30))
                for t, g in zip(total, unit, strict=True):
                    t += shrink * g
            extra = self._regularisers()
            for v, t, e in zip(variables, total, extra, strict=True):
                v.assign(v.numpy() - cases.LEARNING_RATE * (t / expected + e))
        final = [v.numpy().copy() for v in variables]
        for v, value in zip(variables, initial, strict=True):
            v.assign(value)
        return final


@pytest.mark.parametrize(
    ("name", "size"),
    [pytest.param(name, size, marks=marks) for name, size, marks in LOOPED],
)
def test_weights_equal_those_of_a_loop_over_units(name: str, size: int) -> None:
    (case,) = (case for case in cases.CASES if case.name == name)
    # A weight for every example, and zero for the padding among them.
    random = np.random.RandomState(size)
    weights = random.choice([0.0, 0.5, 1.0, 2.0], cases.EXAMPLES)
    case = dataclasses.replace(case, sample_weight=weights.astype("float16"))
    model = cases.built(case)
    loop = UnitLoop(case, model, size)
    clip_norm = loop.median_norm()  # Half of the units clip.
    initial = [v.numpy().copy() for v in model.trainable_variables]
    expected = loop.weights(clip_norm, 4.0)
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(cases.LEARNING_RATE),
            clip_norm=clip_norm,
            noise_multiplier=0.0,
            expected_batch_size=4,
            examples_per_unit=size,
            loss_reduction=case.reduction,
        ),
        loss=case.loss(),
        **case.compile,
    )
    # Else the step is traced twice, the first time for variables alone.
    model.optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensor_slices(
        (case.inputs, case.targets, case.sample_weight)
    )
    model.fit(data.batch(2 * size), verbose=0)
    moved = 0.0
    for v, want, start in zip(
        model.trainable_variables, expected, initial, strict=True
    ):
        # Slack for the parts of units costs up to 1e-4 of a step.
        np.testing.assert_allclose(v.numpy(), want, rtol=0, atol=5e-5)
        moved = max(moved, float(np.abs(want - start).max()))
    assert moved > 1e-3  # The comparison is not one of zeros.


# Neighbouring data sets, through the proof and the clipping of a real step.

CLIP_NORM = 0.7
UNITS = 3


class Recommender(keras.Model):
    """A shared table of few rows, a Dense on a sequence, and one on top."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(4, 3, embeddings_initializer="normal")
        self.over_items = layers.Dense(5, activation="tanh")
        self.norm = layers.LayerNormalization()
        self.hidden = layers.Dense(6, activation="relu")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        item, history, dense = inputs
        x = tf.reduce_mean(self.over_items(self.table(history)), 1)
        x = tf.concat([self.table(item), x, dense], -1)
        return self.score(self.hidden(self.norm(x)))


def _users(random: np.random.RandomState, size: int) -> list[np.ndarray]:
    """A batch; rows of the table repeat within and across examples."""
    n = UNITS * size
    scale = 10.0 ** random.uniform(-2, 2, [n, 1])
    return [
        random.randint(0, 4, n).astype("int32"),
        random.randint(0, 4, (n, 6)).astype("int32"),
        (scale * random.randn(n, 2)).astype("float32"),
        (scale * random.randn(n, 1)).astype("float32"),
        random.choice([0.0, 0.5, 1.0, 3.0], n).astype("float16"),
    ]


def _clipped_sums(size: int, seed: int) -> Callable[..., np.ndarray]:
    """The sum that noise would be added to, all variables in one vector."""
    keras.utils.set_random_seed(seed)
    model = Recommender()
    model([tf.constant(a[:2]) for a in _users(np.random.RandomState(0), 2)[:3]])
    step = PrivateStep(
        None,
        clip_norm=CLIP_NORM,
        mechanism="auto",
        noise_multiplier=0.0,
        expected_batch_size=1.0,
        examples_per_unit=size,
        loss_reduction="mean",
        seed=None,
    )
    variables = [
        getattr(v, "value", v) if cases.KERAS_3 else v
        for v in model.trainable_variables
    ]

    @tf.function(reduce_retracing=True)
    def sums(item: Any, history: Any, dense: Any, y: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.square(model([item, history, dense]) - y)[:, 0]
            loss = tf.reduce_mean(errors * tf.cast(weight, tf.float32))
        gradients = tape.gradient(loss, variables)
        names = [v.name for v in variables]
        clipped = step.clipped(
            gradients,
            names,
            [v.shape for v in variables],
            [False for _ in variables],
            lambda kind: (tf.constant(True), *2 * [tf.zeros([], tf.int64)]),
        )
        released = step.released(clipped, clipped.own)
        return [tf.convert_to_tensor(g) for g in released.gradients]

    def flat(batch: list[np.ndarray]) -> np.ndarray:
        parts = sums(*map(tf.constant, batch))
        return np.concatenate([p.numpy().astype("f8").ravel() for p in parts])

    return flat


@pytest.mark.once  # No optimizer of Keras is in it.
@pytest.mark.parametrize("size", [1, 2, 5])
def test_one_users_examples_move_the_sum_by_at_most_the_clip_norm(
    size: int,
) -> None:
    largest = 0.0
    sums = _clipped_sums(size, seed=size)
    for seed in range(25):
        random = np.random.RandomState(seed)
        batch = _users(random, size)
        rows = np.arange(UNITS * size) // size == random.randint(UNITS)
        with_user = sums(batch)
        padded = [a.copy() for a in batch]
        padded[4][rows] = 0
        broken = [a.copy() for a in padded]
        broken[2][rows] = np.nan
        broken[3][rows] = np.inf
        without = sums(padded)
        np.testing.assert_array_equal(sums(broken), without)
        removed = [a[~rows] for a in batch]
        for other in (without, sums(removed)):
            distance = np.linalg.norm(with_user - other)
            assert distance <= CLIP_NORM * (1 + 1e-5)
            largest = max(largest, distance)
        # Data that spoil the user's gradient leave the user out.
        spoiled = [a.copy() for a in batch]
        spoiled[4][rows] = 1
        spoiled[3][np.flatnonzero(rows)[-1]] = np.nan
        np.testing.assert_allclose(sums(spoiled), without, atol=1e-6)
    assert largest > 0.99 * CLIP_NORM


# Users, from the sampling to the statement.

EXAMPLES = small_run.EXAMPLES
OWNERS = np.random.RandomState(0).randint(0, 20, EXAMPLES)
USERS = tsdp.UserSampling(
    num_users=20,
    users_per_batch=5,
    examples_per_user=3,
    steps=6,
    max_users_per_batch=20,
)
UNITS_OF_FOUR = tsdp.EpochSampling(
    num_examples=EXAMPLES, batch_size=16, epochs=2, examples_per_unit=4
)


def _users_data() -> tf.data.Dataset:
    return USERS.dataset((small_run.FEATURES, small_run.LABELS), OWNERS)


@pytest.mark.lane
@pytest.mark.parametrize(
    "compile",
    [{}, {"jit_compile": True}, {"steps_per_execution": 3}],
    ids=str,
)
def test_training_on_users(compile: dict[str, Any]) -> None:
    model = small_run.model(small_run.plan(USERS), **compile)
    before = small_run.weights(model)
    model.fit(_users_data(), callbacks=[tsdp.PrivacyBudget()], verbose=0)
    assert model.optimizer.compositions_spent == 6
    assert not np.array_equal(before[0], small_run.weights(model)[0])
    statement = model.optimizer.privacy_statement()
    assert statement.private
    assert (statement.unit, statement.examples_per_unit) == ("user", 3)
    text = " ".join(str(statement).split())
    for words in (
        "with and without any one user with all examples of that user",
        "each of 20 users is in the batch",
        "at most 3 examples, chosen at random",
        "the sum over at most 3 examples",
    ):
        assert words in text
    assert "any one example" not in text


def test_noise_is_divided_by_the_number_of_users() -> None:
    """Not by that of examples, which is three times as large.

    The spread of 1998 weights without gradient, moved by noise alone at rate
    1, is noise_multiplier · clip_norm / users_per_batch = 0.2. The estimate has
    a relative error of 1.6 %; that it is off by 10 % has probability 4e-10.
    """
    table = layers.Embedding(1000, 2, embeddings_initializer="zeros")
    model = keras.Sequential(
        [keras.Input((), dtype="int32"), table, layers.Dense(1)]
    )
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0), small_run.plan(USERS), clip_norm=1.0
    )
    model.compile(optimizer=optimizer, loss="mse")
    ids = np.zeros(EXAMPLES, "int32")
    data = USERS.dataset((ids, small_run.LABELS), OWNERS)
    model.fit(data, steps_per_epoch=1, verbose=0)
    assert model.get_weights()[0][1:].std() == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(
    ("sampling", "form"),
    [(USERS, "keras"), (USERS, "checkpoint"), (UNITS_OF_FOUR, "keras")],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_saved_runs_keep_their_units(
    sampling: Any, form: str, tmp_path: pathlib.Path
) -> None:
    def data() -> tf.data.Dataset:
        if sampling is USERS:
            return _users_data()
        return sampling.dataset((small_run.FEATURES, small_run.LABELS))

    budget = [tsdp.PrivacyBudget()]
    model = small_run.model(small_run.plan(sampling))
    model.fit(data(), steps_per_epoch=2, callbacks=budget, verbose=0)
    spent = model.optimizer.compositions_spent
    small_run.save(model, form, tmp_path)
    into = None
    if form == "checkpoint":
        into = small_run.model(small_run.plan(sampling))
    again = small_run.load(form, tmp_path, into)
    assert again.optimizer.plan.sampling == sampling
    assert again.optimizer.get_config()["examples_per_unit"] == (
        sampling.examples_per_unit
    )
    assert again.optimizer.compositions_spent == spent
    again.fit(data(), steps_per_epoch=2, callbacks=budget, verbose=0)
    statement = again.optimizer.privacy_statement()
    assert statement.private
    assert statement.examples_per_unit == sampling.examples_per_unit
    assert statement.unit == sampling.unit


def test_passes_over_units_of_ones_own() -> None:
    model = small_run.model(small_run.plan(UNITS_OF_FOUR))
    there = np.ones(EXAMPLES, "float16")
    there[::7] = 0
    data = (small_run.FEATURES, small_run.LABELS, there)
    model.fit(
        tf.data.Dataset.from_tensor_slices(data).batch(12),
        epochs=2,
        callbacks=[tsdp.PrivacyBudget()],
        verbose=0,
    )
    assert model.optimizer.compositions_spent == 2
    text = " ".join(str(model.optimizer.privacy_statement()).split())
    for words in (
        "any one unit with all examples of that unit replaced by",
        "each of 16 units of 4 consecutive examples",
        "Every unit is in at most one batch of a pass",
        "Every 4 consecutive rows of a batch",
    ):
        assert words in text
    with pytest.raises(tsdp.BudgetExhausted):
        model.optimizer.start_pass()


def test_arrays_whose_units_fit_would_tear_apart() -> None:
    model = small_run.model(small_run.plan(UNITS_OF_FOUR))
    before = small_run.weights(model)
    with pytest.raises(
        tsdp.NotSeparableError,
        match=r"EpochSampling.* 0 validity columns.*shuffles arrays row by row",
    ):
        model.fit(
            small_run.FEATURES,
            small_run.LABELS,
            batch_size=16,
            callbacks=[tsdp.PrivacyBudget()],
            verbose=0,
        )
    for a, b in zip(before, small_run.weights(model), strict=True):
        np.testing.assert_array_equal(a, b)


def _without_noise(size: int) -> Any:
    model = dense_model()
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=0.0,
            expected_batch_size=1,
            examples_per_unit=size,
        ),
        loss="mse",
    )
    return model


def _batches(rows: int, static: bool) -> tf.data.Dataset:
    data = (small_run.FEATURES[:12], small_run.LABELS[:12])
    return tf.data.Dataset.from_tensor_slices(data).batch(
        rows, drop_remainder=static
    )


def test_a_part_of_a_unit_is_refused_when_traced() -> None:
    model = _without_noise(5)
    with refused(model, "has 4 rows", "not a multiple of", "float16"):
        model.fit(_batches(4, static=True), verbose=0)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_part_of_a_unit_is_refused_when_run(jit_compile: bool) -> None:
    model = _without_noise(5)
    model.compile(model.optimizer, loss="mse", jit_compile=jit_compile)
    with refused(
        model,
        "3 steps were refused",
        "no multiple of examples_per_unit",
        error=tsdp.PrivacyStateError,
    ):
        model.fit(_batches(4, static=False), verbose=0)


def test_examples_drawn_one_by_one_are_not_a_batch_of_users() -> None:
    model = small_run.model(small_run.plan(USERS))
    with pytest.raises(tsdp.NotSeparableError, match=r"40 rows.*gives 60"):
        model.fit(small_run.dataset(), verbose=0)
