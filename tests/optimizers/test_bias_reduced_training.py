"""Bias-reduced SGD as users type it: it trains, pays, stops and says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import privacy_accountant

import tf_sparse_dp as tsdp
from tf_sparse_dp.accounting.filters.bias_reduced import BiasReducedFilter
from tf_sparse_dp.optimizers.core import PrivateStep

keras = tf.keras
layers = keras.layers
ROWS, EXAMPLES, LEVELS = 40, 16, 4
RADIUS = 0.5
_random = np.random.default_rng(0)
IDS = _random.integers(0, ROWS, (EXAMPLES, 2)).astype("int32")
FEATURES = _random.normal(size=(EXAMPLES, 3)).astype("float32")
LABELS = _random.integers(0, 2, (EXAMPLES, 1)).astype("float32")
SAMPLING = tsdp.BiasReducedSampling(num_examples=EXAMPLES, steps=300)


def sparse_model() -> Any:
    return keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            layers.Embedding(ROWS, 3),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )


def dense_model() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dense(1)])


def budget_for(accounting: Any = "tight", units: int = EXAMPLES) -> Any:
    return tsdp.BiasReducedBudget(
        num_examples=units, epsilon=3.0, delta=1e-3, accounting=accounting
    )


def optimizer_for(budget: Any, inner: Any = None, **options: Any) -> Any:
    options = {
        "sampling": SAMPLING,
        "noise_multiplier": budget.noise_multiplier,
        "mechanism": tsdp.BiasReduction(inner or tsdp.Projection()),
        **options,
    }
    return tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.01), budget.filter, **options
    )


def compiled(model: Any, budget: Any, inner: Any = None, **compile: Any) -> Any:
    model.compile(
        optimizer_for(budget, inner),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        **compile,
    )
    return model


def train(model: Any, *callbacks: Any, **options: Any) -> Any:
    sparse = any(isinstance(layer, layers.Embedding) for layer in model.layers)
    data = SAMPLING.dataset((IDS if sparse else FEATURES, LABELS))
    callbacks = (tsdp.PrivacyBudget(), *callbacks)
    return model.fit(data, verbose=0, callbacks=list(callbacks), **options)


def stops_where_python_does(budget: Any, entries: Any) -> bool:
    """Whether a fresh filter pays for all of it, step by step, and no more."""
    fresh = type(budget.filter).from_config(budget.filter.get_config())
    dearest = budget.step_events()[-1]
    for event, count in entries:
        for _ in range(count):
            if not fresh.can_spend(dearest):
                return False
            fresh.spend(event)
    return not fresh.can_spend(dearest)


@pytest.mark.parametrize(
    ("model", "inner", "accounting"),
    [
        (sparse_model, tsdp.Projection(), "tight"),
        (sparse_model, tsdp.Projection(), "paper"),
        (
            sparse_model,
            tsdp.CompressedSensing(measurements=8, iterations=2),
            "tight",
        ),
        (dense_model, tsdp.Projection(), "paper"),
        (dense_model, tsdp.CompressedSensing(), "tight"),
    ],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_it_trains_until_the_filter_stops_it(
    model: Callable[[], Any], inner: Any, accounting: str
) -> None:
    budget = budget_for(accounting)
    trained = compiled(model(), budget, inner)
    start = [v.numpy() for v in trained.trainable_variables]
    mean = tsdp.AverageIterate(assign=False)
    one = tsdp.RandomIterate(assign=False)
    train(trained, tsdp.ProjectedIterate(ball=RADIUS), mean, one)
    optimizer = trained.optimizer
    steps = optimizer.compositions_spent
    assert 1 <= steps < SAMPLING.steps
    assert steps == int(optimizer.iterations.numpy()) == mean.count == one.count
    assert not optimizer.can_go_on
    # What was spent is in the ledger, and within the budget.
    paid = budget.filter
    assert sum(count for _, count in paid.entries) == steps
    assert optimizer.ledger().num_events == steps
    assert not paid.exceeded
    assert stops_where_python_does(budget, paid.entries)
    assert not stops_where_python_does(budget, [*paid.entries, *paid.entries])
    if accounting == "tight":
        assert paid.get_epsilon(1e-3) <= 3.0
    # It moved, within the ball.
    moved = [
        v.numpy() - s
        for v, s in zip(trained.trainable_variables, start, strict=True)
    ]
    length = math.sqrt(sum(np.square(m).sum() for m in moved))
    assert 0 < length <= RADIUS * (1 + 1e-5)
    with pytest.raises(tsdp.BudgetExhausted):
        train(trained)


@pytest.mark.once
@pytest.mark.parametrize("accounting", ["tight", "paper"])
def test_the_statement_says_what_is_guaranteed(accounting: str) -> None:
    trained = compiled(dense_model(), budget_for(accounting), tsdp.Gaussian())
    train(trained)
    statement = trained.optimizer.privacy_statement()
    assert statement.private, statement.reasons
    assert (statement.epsilon, statement.delta) == (3.0, 1e-3)
    assert statement.epsilon_spent == 3.0  # A filter claims all of it.
    assert statement.neighbouring_relation == "replace_one"
    name = {"tight": "RenyiFilter", "paper": "BiasReducedFilter"}[accounting]
    assert statement.accountant == name
    words = " ".join(str(statement).split())
    for text in (
        "any one example replaced by any other (replace one)",
        "bias reduction by four releases each",
        "a number N from 0 to 3 is drawn in public",
        "2^(N+1) of 16 examples without replacement",
        "the rows of a batch were left in their order",
        "num_examples = 16 counts every example",
        "and is public",
    ):
        assert text in words, words


@pytest.mark.once
def test_a_filter_that_paid_for_less_is_not_called_private() -> None:
    budget = budget_for("paper")
    trained = compiled(dense_model(), budget, tsdp.Gaussian())
    train(trained)
    budget.filter.compose(budget.step_events()[0], 1)
    statement = trained.optimizer.privacy_statement()
    assert not statement.private
    assert "More was released" in str(statement)


class Counted(keras.Model):
    """Counts how often it is called: once in each trace."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(ROWS, 3)
        self.score = layers.Dense(1)
        self.calls = 0

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.calls += 1
        return self.score(tf.reduce_sum(self.table(inputs), 1))


@pytest.mark.once
@pytest.mark.parametrize("shapes", ["open", "known"])
def test_traces_are_few_and_have_one_pass_each(
    shapes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most one for each size of a batch, whether shapes are known or not."""
    released: list[int] = []
    clipped = PrivateStep.clipped

    def counted(self: Any, *args: Any) -> Any:
        result = clipped(self, *args)
        released.append(1)
        return result

    monkeypatch.setattr(PrivateStep, "clipped", counted)
    model = Counted()
    model(IDS)
    model.calls = 0
    compiled(model, budget_for("paper"))
    model.optimizer.build(model.trainable_variables)
    draws = SAMPLING.dataset((IDS, LABELS))
    sizes: set[int] = set()
    most = LEVELS
    if shapes == "open":
        model.fit(draws, verbose=0, callbacks=[tsdp.PrivacyBudget()])
    else:
        model.optimizer.reserve(1)
        for batch in draws:
            if not model.optimizer.can_go_on:
                break
            sizes.add(len(batch[1]))
            model.train_on_batch(*batch[:2], sample_weight=batch[2])
        most = len(sizes)
    assert model.optimizer.compositions_spent >= most or shapes == "open"
    assert 1 <= len(released) <= most <= LEVELS == len(SAMPLING.step_kinds)
    assert model.calls == len(released)


@pytest.mark.parametrize("accounting", ["tight", "paper"])
def test_what_was_spent_is_saved_and_loaded(
    accounting: str, tmp_path: Any
) -> None:
    budget = budget_for(accounting)
    trained = compiled(dense_model(), budget, tsdp.Gaussian())
    train(trained, steps_per_epoch=1)
    assert trained.optimizer.compositions_spent == 1
    trained.save(str(tmp_path / "model.keras"))
    loaded = keras.models.load_model(str(tmp_path / "model.keras"))
    again = loaded.optimizer
    assert again.private_step.mechanism == tsdp.BiasReduction(tsdp.Gaussian())
    assert again.plan.sampling == SAMPLING
    assert again.compositions_spent == 1
    assert again.plan.filter.entries == budget.filter.entries
    assert again.compositions_left == trained.optimizer.compositions_left
    if trained.optimizer.can_go_on:
        train(loaded)
    assert not again.plan.filter.exceeded
    assert again.privacy_statement().private
    assert stops_where_python_does(budget, again.plan.filter.entries)


@pytest.mark.once
def test_compiled_by_xla() -> None:
    units = 4
    budget = budget_for("paper", units)
    sampling = tsdp.BiasReducedSampling(num_examples=units, steps=50)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    model.compile(
        optimizer_for(budget, tsdp.Gaussian(), sampling=sampling),
        loss="mse",
        jit_compile=True,
    )
    data = sampling.dataset((FEATURES[:units], LABELS[:units]))
    model.fit(data, verbose=0, callbacks=[tsdp.PrivacyBudget()])
    assert stops_where_python_does(budget, budget.filter.entries)
    assert model.optimizer.privacy_statement().private


REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
POISSON = tsdp.PoissonSampling(num_examples=EXAMPLES, batch_size=4, steps=5)


def renyi(**options: Any) -> tsdp.RenyiFilter:
    return tsdp.RenyiFilter(epsilon=3.0, delta=1e-3, **options)


@pytest.mark.once
@pytest.mark.parametrize(
    ("budget", "options", "match"),
    [
        # One of the two without the other.
        (
            lambda: renyi(neighboring_relation=REPLACE_ONE),
            {"mechanism": tsdp.Gaussian()},
            "together with BiasReducedSampling",
        ),
        (
            lambda: renyi(neighboring_relation=REPLACE_ONE),
            {"mechanism": "auto"},
            "together with BiasReducedSampling",
        ),
        (
            lambda: renyi(),
            {"sampling": POISSON},
            "together with BiasReducedSampling",
        ),
        (
            lambda: None,
            {"sampling": None, "expected_batch_size": 4.0},
            "with no sampling",
        ),
        # A plan, which has a sampling of its own.
        (
            lambda: tsdp.PrivacyPlan(epsilon=3.0, delta=1e-3, sampling=POISSON),
            {"sampling": None, "noise_multiplier": None},
            "together with BiasReducedSampling",
        ),
        (
            lambda: tsdp.PrivacyPlan(epsilon=3.0, delta=1e-3, sampling=POISSON),
            {"noise_multiplier": None},
            "without a filter",
        ),
        # Other neighbours, units or filters.
        (lambda: renyi(), {}, "neighboring_relation="),
        (
            lambda: renyi(neighboring_relation=REPLACE_ONE),
            {"examples_per_unit": 2},
            "examples_per_unit=2",
        ),
        (
            lambda: tsdp.ZcdpFilter(
                epsilon=3.0, delta=1e-3, neighboring_relation=REPLACE_ONE
            ),
            {"noise_multiplier": 500.0},
            "ZcdpFilter",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    budget: Callable[[], Any], options: dict[str, Any], match: str
) -> None:
    options = {
        "sampling": SAMPLING,
        "noise_multiplier": 30.0,
        "mechanism": tsdp.BiasReduction(),
        **options,
    }
    errors = (ValueError, TypeError, privacy_accountant.UnsupportedEventError)
    with pytest.raises(errors, match=match):
        tsdp.DPSparseOptimizer(keras.optimizers.SGD(0.01), budget(), **options)


@pytest.mark.once
def test_noise_below_the_papers_is_refused() -> None:
    filter = BiasReducedFilter(epsilon=3.0, delta=1e-3, num_examples=EXAMPLES)
    error = privacy_accountant.UnsupportedEventError
    with pytest.raises(error, match="noise of at least"):
        tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.01),
            filter,
            sampling=SAMPLING,
            noise_multiplier=30.0,
            mechanism=tsdp.BiasReduction(),
        )


def test_lazy_tables_are_refused() -> None:
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            tsdp.layers.LazyEmbedding(ROWS, 3),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    budget = budget_for()
    compiled(model, budget, tsdp.Gaussian())
    with pytest.raises(ValueError, match="LazyEmbedding"):
        model.fit(
            SAMPLING.dataset((IDS, LABELS)),
            verbose=0,
            callbacks=[tsdp.PrivacyBudget()],
        )
    assert not budget.filter.entries


@pytest.mark.once
def test_noise_stays_as_it_is_and_batches_too() -> None:
    budget = budget_for("paper")
    trained = compiled(dense_model(), budget, tsdp.Gaussian())
    with pytest.raises(ValueError, match="cannot be changed"):
        trained.optimizer.noise_multiplier = 2 * budget.noise_multiplier
    batched = SAMPLING.dataset((FEATURES, LABELS)).unbatch().batch(4)
    error = tsdp.PrivacyStateError
    with pytest.raises(error, match="not the number that the sampling gives"):
        trained.fit(
            batched.take(3), verbose=0, callbacks=[tsdp.PrivacyBudget()]
        )
    assert trained.optimizer.compositions_spent == 0


@pytest.mark.once
def test_the_dearest_step_has_to_fit_and_the_message_says_so() -> None:
    budget = budget_for()
    dearest = budget.step_events()[-1]
    while budget.filter.can_spend(dearest):
        budget.filter.spend(dearest)
    optimizer = optimizer_for(budget)
    optimizer.pay_ahead(1, 1)
    with pytest.raises(tsdp.BudgetExhausted, match="the dearest one has") as e:
        optimizer.check_next()
    assert "overflow" not in str(e.value)
