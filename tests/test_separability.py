"""`check_separable` finds what mixes, without the analysis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers import small_run
from tests.optimizers.refusals import (
    FEATURES,
    IDS,
    TARGETS,
    OwnStep,
    Through,
    compiled,
    dense_model,
    private,
)
from tests.test_explanation import RECOMMENDER_BATCH, recommender, state

keras = tf.keras
layers = keras.layers
BATCH = (FEATURES, TARGETS)


@pytest.mark.usefixtures("seeded")
def test_a_recommender_with_any_optimizer() -> None:
    users = np.array([3, 1, 4, 2, 5, 9], "int32")
    items = np.random.RandomState(0).randint(0, 30, (6, 5)).astype("int32")
    batch = ({"user": users, "items": items}, np.arange(6.0)[:, None])
    model = recommender()
    for optimizer in (private(), "adam"):
        model.compile(optimizer=optimizer, loss="mse")
        report = tsdp.check_separable(model, batch)
        assert report.separable and not report.refusal
        assert report.examples == 6
        assert len(report.findings) == 6
        assert max(f.deviation for f in report.findings) < 1e-5
        assert "nothing found" in str(report)
        assert repr(report) == str(report)


def _statistics(x: Any) -> Any:
    return (x - tf.reduce_mean(x, 0)) / (1.0 + tf.math.reduce_std(x, 0))


MIXING = {
    "batch statistics": _statistics,
    "a sort over the batch": lambda x: tf.sort(x, 0),
    "attention across the batch": (
        lambda x: tf.nn.softmax(x @ tf.transpose(x)) @ x
    ),
    "neighbours": lambda x: x * tf.roll(x, 1, 0),
    "the first example": lambda x: x * x[:1],
    # Of so many that no two batches have the same.
    "a count": (lambda x: x / (1.0 + tf.reduce_sum(tf.floor(100 * tf.abs(x))))),
}


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_is_found(name: str) -> None:
    model = compiled(Through(MIXING[name]))
    with pytest.raises(tsdp.NotSeparableError) as error:
        tsdp.check_separable(model, BATCH)
    report = error.value.report
    assert isinstance(report, tsdp.SeparabilityReport)
    assert not report.findings[0].passed
    assert report.findings[0].deviation > 0.01
    assert "Examples mix" in str(error.value)
    assert report.refusal and report.refusal in " ".join(
        str(error.value).split()
    )


def test_a_loss_divided_by_the_batch_total_is_found() -> None:
    class Weighted(Through):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y, weight = data
            with tf.GradientTape() as tape:
                errors = (self(x, training=True) - y)[:, 0] ** 2
                loss = tf.reduce_sum(errors * weight) / tf.reduce_sum(weight)
            variables = self.trainable_variables
            gradients = tape.gradient(
                loss,
                [v.value for v in variables]
                if small_run.KERAS_3
                else variables,
            )
            self.optimizer.apply_gradients(
                zip(gradients, variables, strict=True)
            )
            return {"loss": loss}

    model = compiled(Weighted(tf.tanh))
    weight = np.linspace(0.1, 1.0, 8)
    with pytest.raises(tsdp.NotSeparableError, match="Examples mix"):
        tsdp.check_separable(model, (*BATCH, weight))
    # With weights that are all the same nothing is to be seen, and nothing is:
    # this is evidence and no proof. The analysis sees it all the same.
    report = tsdp.check_separable(model, (*BATCH, np.ones(8)))
    assert report.refusal


def test_what_the_analysis_cannot_prove_may_pass() -> None:
    model = compiled(Through(tf.math.bessel_i0e))
    report = tsdp.check_separable(model, BATCH)
    assert report.separable
    assert "BesselI0e" in report.refusal
    assert "The analysis refuses this step" in str(report)
    assert len(report.findings) == 3  # No terms to compare.


@pytest.mark.parametrize("given, actual", [("mean", "sum"), ("sum", "mean")])
def test_a_wrong_reduction_is_found(given: str, actual: str) -> None:
    reduction = {"sum": "sum", "mean": "sum_over_batch_size"}[actual]
    model = compiled(
        dense_model(),
        optimizer=private(loss_reduction=given),
        loss=keras.losses.MeanSquaredError(reduction=reduction),
    )
    with pytest.raises(tsdp.NotSeparableError) as error:
        tsdp.check_separable(model, BATCH)
    assert f"pass loss_reduction={actual!r}" in " ".join(
        str(error.value).split()
    )
    passed = [finding.passed for finding in error.value.report.findings]
    assert passed == [True, False, True, True, True, True]
    assert tsdp.check_separable(model, BATCH, loss_reduction=actual).separable


class Remembering(layers.Layer):
    """Keeps a running mean that nothing reads."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(
            name="mean", shape=(4,), initializer="zeros", trainable=False
        )

    def call(self, inputs: Any) -> Any:
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))
        return tf.tanh(inputs)


def test_a_running_mean_that_nothing_reads_is_found() -> None:
    model = compiled(Through(Remembering()))
    before = np.array(model.function.mean)
    with pytest.raises(tsdp.NotSeparableError) as error:
        tsdp.check_separable(model, BATCH)
    *others, memory = error.value.report.findings
    assert all(finding.passed for finding in others)
    assert not memory.passed and "mean" in memory.worst
    assert "leaves with the saved model" in memory.remedy.replace("\n", " ")
    np.testing.assert_array_equal(np.array(model.function.mean), before)


class Centred(Remembering):
    """Keeps a running mean that gradients read."""

    def call(self, inputs: Any) -> Any:
        return super().call(inputs) * (1.0 + self.mean)


def test_a_running_mean_that_gradients_read_is_refused_and_found() -> None:
    model = compiled(Through(Centred()))
    with pytest.raises(tsdp.NotSeparableError) as error:
        tsdp.check_separable(model, BATCH)
    assert "writes example data" in error.value.report.refusal
    text = " ".join(str(error.value).split())
    assert "The analysis refuses this step: The step writes" in text
    assert "accepted what it should not" not in text


class Negatives(keras.Model):
    """A retrieval model with drawn negatives."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.query = layers.Dense(4)
        self.table = layers.Embedding(9, 4)
        self.task = tsdp.integrations.recommenders.Retrieval(
            tf.range(9), self.table, num_negatives=3, **options
        )

    def train_step(self, data: Any) -> dict[str, Any]:
        x, ids = data
        with tf.GradientTape() as tape:
            loss = self.task(self.query(x), self.table(ids), candidate_ids=ids)
        variables = self.trainable_variables
        gradients = tape.gradient(
            loss,
            [v.value for v in variables] if small_run.KERAS_3 else variables,
        )
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("probabilities", [None, np.full(9, 1 / 9)])
def test_drawn_negatives_are_fixed(probabilities: Any) -> None:
    model = Negatives(candidate_probabilities=probabilities)
    model.compile(optimizer="sgd")
    sampler = model.task._sampler
    report = tsdp.check_separable(model, (FEATURES, IDS[:, 0]))
    assert report.separable and not report.refusal
    assert len(report.findings) == 6
    assert model.task._sampler is sampler


def test_gradients_that_are_not_finite_are_told_first() -> None:
    features = np.array(FEATURES)
    features[5] = 0.0  # One that only takes another's place.
    model = compiled(Through(lambda x: x / tf.norm(x, axis=1)[:, None]))
    assert tsdp.check_separable(model, BATCH).separable
    with pytest.raises(ValueError, match=r"not finite.*divide_no_nan") as error:
        tsdp.check_separable(model, (features, TARGETS))
    assert model.hidden.kernel.name.split(":")[0] in str(error.value)
    assert "randomness" not in str(error.value)


def test_dropout_is_switched_off_and_nothing_changes() -> None:
    model = Through(layers.Dropout(0.5, seed=3))
    model.compile(optimizer=private(), loss="mse", metrics=["mae"])
    model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)
    before, spent = state(model), model.optimizer.compositions_spent
    assert tsdp.check_separable(model, BATCH).separable
    assert model.function.rate == 0.5
    assert model.optimizer.compositions_spent == spent
    for old, new in zip(before, state(model), strict=True):
        np.testing.assert_array_equal(old, new)


class Inside(layers.Layer):
    """Has a dropout layer in a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = layers.Dropout(0.5, seed=1)

    @tf.function
    def function(self, inputs: Any) -> Any:
        return self.dropout(inputs, training=True)

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def test_dropout_that_cannot_be_switched_off_is_told() -> None:
    model = compiled(Through(Inside()))
    assert tsdp.explain(model, BATCH).separable  # Traced here, with dropout.
    with pytest.raises(ValueError, match="that was called before"):
        tsdp.check_separable(model, BATCH)


@pytest.mark.usefixtures("seeded")
def test_the_rounding_of_a_gradient_that_vanishes_is_no_mixing() -> None:
    ids = keras.Input((5,), dtype="int32")
    seen = layers.Embedding(9, 4)(ids)
    scores = layers.Reshape((5,))(layers.Dense(1, name="scores")(seen))
    weights = layers.Softmax()(scores)  # The bias of the scores cancels.
    model = compiled(keras.Model(ids, layers.Dense(1)(weights)), IDS)
    assert tsdp.check_separable(model, (IDS, TARGETS)).separable


def test_a_batch_of_a_sampling() -> None:
    model = small_run.model()
    # None of 60 has as many with probability 7e-22.
    for batch in small_run.dataset(small_run.poisson(60)):
        drawn = int(np.sum(np.asarray(batch[2]) > 0))
        if drawn >= 8:
            break
    report = tsdp.check_separable(model, batch)
    assert report.separable and not report.refusal
    # Padding has no influence; examples alone are compared.
    assert report.examples == drawn // 2


def test_weights_without_labels_are_no_labels() -> None:
    class Unlabelled(Through):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, labels, weight = data
            assert labels is None
            with tf.GradientTape() as tape:
                errors = self(x, training=True)[:, 0] ** 2
                loss = tf.reduce_mean(errors * tf.cast(weight, tf.float32))
            variables = self.trainable_variables
            gradients = tape.gradient(
                loss,
                [v.value for v in variables]
                if small_run.KERAS_3
                else variables,
            )
            self.optimizer.apply_gradients(
                zip(gradients, variables, strict=True)
            )
            return {"loss": loss}

    model = compiled(Unlabelled(tf.tanh), optimizer="sgd")
    batch = (FEATURES, None, np.linspace(0.1, 1.0, 8))
    assert tsdp.explain(model, batch).separable
    report = tsdp.check_separable(model, batch)
    assert report.separable and not report.refusal


class Bag(keras.Model):
    """Pools ragged or sparse ids in a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(20, 4)
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.score(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        ids, y = data
        if not self.table.built:
            self.table.build(None)
        with tf.GradientTape() as tape:
            table = self.table.embeddings
            table = table.value if small_run.KERAS_3 else table
            if isinstance(ids, tf.SparseTensor):
                pooled = tf.nn.safe_embedding_lookup_sparse(
                    table, ids, combiner="sum"
                )
            else:
                rows = tf.ragged.map_flat_values(tf.gather, table, ids)
                pooled = tf.reduce_sum(rows, 1)
            loss = tf.reduce_mean((self(tf.reshape(pooled, [-1, 4])) - y) ** 2)
        variables = self.trainable_variables
        gradients = tape.gradient(
            loss,
            [v.value for v in variables] if small_run.KERAS_3 else variables,
        )
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("sparse", [False, True], ids=["ragged", "sparse"])
def test_ragged_and_sparse_features(sparse: bool) -> None:
    ids = tf.ragged.constant([[1, 2], [3], [4, 4, 5], [6], [7, 8], [1], [9, 9]])
    targets = np.arange(7.0)[:, None]
    batch = (ids.to_sparse() if sparse else ids, targets)
    model = Bag()
    model.compile(optimizer="sgd")
    explanation = tsdp.explain(model, batch)
    assert explanation.separable
    assert explanation.variables[0].form == "rows"
    report = tsdp.check_separable(model, batch)
    assert report.examples == 7
    assert len(report.findings) == 6 and not report.refusal


def test_a_step_of_ones_own() -> None:
    model = compiled(OwnStep(lambda gradients: gradients), IDS)
    assert tsdp.check_separable(model, (IDS, TARGETS)).separable

    def clipped(gradients: list[Any]) -> list[Any]:
        return tf.clip_by_global_norm(gradients, 0.01)[0]

    model = compiled(OwnStep(clipped), IDS)
    with pytest.raises(tsdp.NotSeparableError, match="Examples mix"):
        tsdp.check_separable(model, (IDS, TARGETS))


def _noisy(x: Any) -> Any:
    return x * tf.random.uniform(tf.shape(x))


def _refused_inputs() -> dict[str, tuple[Callable[[], Any], Any, str]]:
    same = (np.ones((8, 4), "f"), np.ones((8, 1), "f"))
    return {
        "few": (dense_model, (FEATURES[:3], TARGETS[:3]), "3 examples"),
        "uneven": (dense_model, (FEATURES, TARGETS[:7]), "one row per"),
        "same": (dense_model, same, "batch of different examples"),
        "random": (lambda: Through(_noisy), BATCH, "Remove other randomness"),
    }


@pytest.mark.parametrize("name", _refused_inputs())
def test_where_nothing_can_be_seen_that_is_said(name: str) -> None:
    build, batch, says = _refused_inputs()[name]
    with pytest.raises(ValueError, match=says) as error:
        tsdp.check_separable(compiled(build()), batch)
    assert not isinstance(error.value, tsdp.NotSeparableError)


def test_an_unknown_reduction_and_a_model_without_optimizer() -> None:
    model = compiled(dense_model())
    with pytest.raises(ValueError, match=r"'none' was given.*'sum'"):
        tsdp.check_separable(model, BATCH, loss_reduction="none")
    with pytest.raises(ValueError, match="Compile it first"):
        tsdp.check_separable(dense_model(), BATCH)
    with pytest.raises(TypeError, match="expected a model of"):
        tsdp.check_separable(model.optimizer, RECOMMENDER_BATCH)
