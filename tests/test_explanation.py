"""What `explain` says, and that looking changes nothing."""

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

keras = tf.keras
layers = keras.layers
BATCH = (FEATURES, TARGETS)


def recommender() -> Any:
    user = keras.Input((), dtype="int32", name="user")
    items = keras.Input((5,), dtype="int32", name="items")
    history = layers.Embedding(30, 8, name="history")(items)
    history = layers.Dense(4, name="each")(history)
    history = layers.Dense(2, name="wide", use_bias=False)(history)
    joined = layers.Concatenate()(
        [
            layers.Embedding(50, 8, name="users")(user),
            layers.GlobalAveragePooling1D()(history),
        ]
    )
    score = layers.Dense(1, name="score", kernel_regularizer="l2")(joined)
    return keras.Model({"user": user, "items": items}, score)


RECOMMENDER_BATCH = (
    {"user": np.arange(4, dtype="int32"), "items": np.ones((4, 5), "int32")},
    np.zeros((4, 1)),
)


def by_layer(explanation: tsdp.Explanation) -> dict[str, Any]:
    return {v.name.split(":")[0]: v for v in explanation.variables}


def state(model: Any) -> list[np.ndarray]:
    variables = [*model.variables, *model.optimizer.variables]
    variables += [v for metric in model.metrics for v in metric.variables]
    return [np.array(v) for v in variables]


@pytest.mark.parametrize("optimizer", [private, lambda: "adam"])
def test_every_form_of_gradient(optimizer: Callable[[], Any]) -> None:
    model = recommender()
    model.compile(optimizer=optimizer(), loss="mse")
    explanation = tsdp.explain(model, RECOMMENDER_BATCH)
    assert explanation.separable
    found = by_layer(explanation)
    users, history = found["users/embeddings"], found["history/embeddings"]
    assert (users.form, users.sparse, users.rows_per_example) == (
        "rows",
        True,
        1,
    )
    assert (history.rows_per_example, history.norms) == (
        5,
        "from pairs of rows",
    )
    each, wide = found["each/kernel"], found["wide/kernel"]
    assert (each.positions, each.norms) == (5, "from each term")
    assert (wide.positions, wide.norms) == (5, "from each term")
    score = found["score/kernel"]
    assert (score.positions, score.norms) == (1, "from two norms")
    assert score.free and not each.free
    assert found["each/bias"].form == "terms"
    # Written out: T = 5; 8 x 4 and 4 x 2, term by term.
    assert each.cost.contraction == 5 * 8 * 4
    assert each.cost.norms == 5 * 8 * 4 + 8 * 4
    assert each.cost.memory == 8 * 4 * 4
    assert wide.cost.norms == 5 * 4 * 2 + 4 * 2
    assert score.cost.norms == 10 + 1
    total = sum(v.cost.norms for v in found.values())
    assert explanation.cost.norms == total
    text = str(explanation)
    assert f"{total:,} multiply-adds" in text
    assert "outer products, T = 1 + regulariser" in text
    assert "sparse rows, s = 5" in text
    assert "All gradients separate" in text
    assert repr(explanation) == text


def test_units_of_several_examples() -> None:
    model = recommender()
    model.compile(optimizer=private(examples_per_unit=3), loss="mse")
    explanation = tsdp.explain(model, RECOMMENDER_BATCH)
    assert explanation.examples_per_unit == 3
    text = " ".join(str(explanation).split())
    assert "Each run of 3 consecutive examples is clipped as one unit" in text
    assert "per unit:" in text
    score = by_layer(explanation)["score/kernel"]
    assert score.positions == 1  # Of an example; of a unit there are 3.
    assert score.norms == "from each term"
    assert score.cost.norms == 3 * 10 + 10


def test_nothing_changes() -> None:
    model = small_run.model(metrics=["mae"])
    small_run.train(model, 2)
    optimizer = model.optimizer
    batch = next(iter(small_run.dataset()))
    before, spent = state(model), optimizer.compositions_spent
    assert tsdp.explain(model, batch).separable
    assert tsdp.explain(model, small_run.dataset()).separable
    assert not {"apply", "apply_gradients"} & set(vars(optimizer))
    assert optimizer.compositions_spent == spent == 2
    for old, new in zip(before, state(model), strict=True):
        np.testing.assert_array_equal(old, new)
    small_run.train(model, 1)
    assert optimizer.compositions_spent == 3


class Named(keras.Model):
    """Mixes examples between its two Dense layers."""

    def __init__(self, mixing: Any):
        super().__init__(name="named")
        self.hidden = layers.Dense(4, name="hidden")
        self.mixing = mixing
        self.score = layers.Dense(1, name="score")

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.score(self.mixing(self.hidden(inputs)))


@pytest.mark.lane
def test_the_way_from_the_mixing_operation_to_the_variable() -> None:
    model = Named(layers.BatchNormalization(name="norm"))
    model.compile(optimizer="sgd", loss="mse")  # No variables yet.
    explanation = tsdp.explain(model, BATCH)
    assert not explanation.separable
    (refusal,) = [r for r in explanation.refusals if r.variables]
    assert refusal.layer == "norm"
    assert refusal.operation.endswith("SquaredDifference")
    assert "LayerNormalization" in refusal.remedy
    assert len(refusal.variables) == len(explanation.variables) == 6
    stages = [(stage.layer, stage.backward) for stage in refusal.path]
    assert stages == [("norm", False), ("norm", True), ("hidden", True)]
    assert refusal.path[0].first == "SquaredDifference"
    assert refusal.path[-1].last == "MatMul"
    text = str(explanation)
    assert "REFUSED: 6 of 6 gradients" in text
    assert "norm (SquaredDifference" in text
    assert "-> hidden backward (MatMul) ->" in " ".join(text.split())
    for variable in explanation.variables:
        assert variable.form == "refused"
        assert variable.refusal.path[0].layer == "norm"


def test_only_the_variables_that_are_reached_are_refused() -> None:
    model = Named(lambda x: tf.stop_gradient(x))
    extra = tf.Variable(np.ones(4, "float32"))

    def loss(targets: Any, outputs: Any) -> Any:
        return tf.square(targets - outputs)

    class Partly(Named):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                total = tf.reduce_mean(loss(y, self(x, training=True)))
                total += tf.reduce_mean(tf.sort(x, 0) * extra)
            variables = [*self.score.trainable_variables, extra]
            gradients = tape.gradient(
                total,
                [getattr(v, "value", v) for v in variables[:-1]] + [extra]
                if small_run.KERAS_3
                else variables,
            )
            self.optimizer.apply_gradients(
                zip(gradients, variables, strict=True)
            )
            return {"loss": total}

    model = Partly(tf.stop_gradient)
    model.compile(optimizer="sgd")
    explanation = tsdp.explain(model, BATCH)
    forms = [variable.form for variable in explanation.variables]
    assert forms == ["outer products", "terms", "refused"]
    (refusal,) = explanation.refusals
    assert "TopKV2 over the example axis" in refusal.reason
    assert refusal.variables == (extra.name,)


@pytest.mark.parametrize(
    "mixing, layer",
    [
        (lambda x: x - tf.reduce_mean(x, 0), "named"),
        (lambda x: tf.sort(x, 0), "named"),
        (lambda x: tf.nn.softmax(x @ tf.transpose(x)) @ x, "named"),
    ],
)
def test_says_what_the_optimizer_says(
    mixing: Callable[[Any], Any], layer: str
) -> None:
    model = compiled(Named(mixing))
    explanation = tsdp.explain(model, BATCH)
    with pytest.raises(tsdp.NotSeparableError) as error:
        model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)
    refusal = explanation.refusals[0]
    assert refusal.reason in str(error.value)
    assert refusal.operation.split("/")[-1] + "')" in str(error.value)
    assert refusal.remedy in str(error.value)
    assert refusal.layer == layer
    assert "tf_sparse_dp.explain(model, batch)" in str(error.value)


def test_a_step_of_ones_own() -> None:
    def clipped(gradients: list[Any]) -> list[Any]:
        return tf.clip_by_global_norm(gradients, 1.0)[0]

    model = compiled(OwnStep(clipped), IDS)
    explanation = tsdp.explain(model, (IDS, TARGETS))
    assert "is not linear in a sum over examples" in str(explanation)
    assert "Remove gradient clipping" in explanation.refusals[0].remedy
    model = compiled(OwnStep(lambda gradients: gradients), IDS)
    assert tsdp.explain(model, (IDS, TARGETS)).separable


def test_several_steps_per_execution() -> None:
    model = compiled(dense_model(), steps_per_execution=4)
    assert tsdp.explain(model, BATCH).separable


def test_a_wrong_reduction_and_a_batch_that_was_not_sampled() -> None:
    model = compiled(dense_model(), optimizer=private(loss_reduction="sum"))
    explanation = tsdp.explain(model, BATCH)
    (refusal,) = explanation.refusals
    assert "is a mean over the examples" in refusal.reason
    assert "Pass loss_reduction='mean'" in refusal.remedy
    assert "although every gradient separates" in str(explanation)
    model = small_run.model()
    (refusal,) = tsdp.explain(model, BATCH).refusals
    assert "validity columns" in refusal.reason


def _mixes_if_the_size_is_known(x: Any) -> Any:
    return x if x.shape[0] is None else tf.sort(x, 0)


def test_a_sampling_that_fixes_the_number_of_rows() -> None:
    inner = keras.optimizers.SGD(0.1)
    optimizer = tsdp.DPSparseOptimizer(inner, small_run.plan())
    model = compiled(Through(_mixes_if_the_size_is_known), optimizer=optimizer)
    batch = next(iter(small_run.dataset()))
    assert not tsdp.explain(model, batch).separable
    assert not tsdp.explain(model, small_run.dataset()).separable
    with pytest.raises(tsdp.NotSeparableError):
        small_run.train(model, 1)
    # Without a sampling, arrays have no number of rows that is known.
    model.compile(optimizer=private(), loss="mse")
    assert tsdp.explain(model, BATCH).separable


def test_an_ordinary_optimizer_and_a_loss_that_is_a_sum() -> None:
    loss = keras.losses.MeanSquaredError(reduction="sum")
    model = compiled(dense_model(), optimizer="sgd", loss=loss)
    explanation = tsdp.explain(model, BATCH)
    assert explanation.separable
    assert "Note: the loss is a sum" in str(explanation)
    assert "loss_reduction='sum'" in explanation.notes[0]
    # Who was told so already needs no note, nor does a mean.
    private_sum = private(loss_reduction="sum")
    for options in (
        {"optimizer": private_sum, "loss": loss},
        {"optimizer": "sgd", "loss": "mse"},
    ):
        model.compile(**options)
        assert tsdp.explain(model, BATCH).notes == ()


@pytest.mark.parametrize("batch", [FEATURES, (FEATURES,)])
def test_a_batch_without_labels(batch: Any) -> None:
    for look in (tsdp.explain, tsdp.check_separable):
        model = compiled(dense_model())
        with pytest.raises(ValueError, match=r"no labels.*Pass \(x, y\)"):
            look(model, batch)


def test_state_that_remembers_examples() -> None:
    class Centred(layers.Layer):
        def build(self, shape: Any) -> None:
            self.mean = self.add_weight(
                name="mean", shape=(4,), initializer="zeros", trainable=False
            )

        def call(self, inputs: Any) -> Any:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))
            return inputs - self.mean

    model = compiled(Through(Centred()))
    before = np.array(model.function.mean)
    explanation = tsdp.explain(model, BATCH)
    assert any(
        "writes example data" in refusal.reason
        for refusal in explanation.refusals
    )
    assert not explanation.separable
    np.testing.assert_array_equal(np.array(model.function.mean), before)


def test_eager_models_and_loss_scaling_are_told() -> None:
    model = compiled(dense_model(), run_eagerly=True)
    assert "run_eagerly" in str(tsdp.explain(model, BATCH).refusals[0])
    inner = keras.optimizers.SGD(0.1)
    scaled = (
        keras.optimizers.LossScaleOptimizer(inner)
        if small_run.KERAS_3
        else keras.mixed_precision.LossScaleOptimizer(inner)
    )
    model = compiled(dense_model(), optimizer=scaled)
    assert "mixed_float16" in str(tsdp.explain(model, BATCH))


def test_a_loss_that_sees_no_batch() -> None:
    model = compiled(dense_model(), loss=lambda y, p: tf.zeros([]))
    explanation = tsdp.explain(model, BATCH)
    assert not explanation.separable
    assert explanation.variables == () or all(
        v.form == "no gradient" for v in explanation.variables
    )


def test_what_cannot_be_explained_is_said() -> None:
    with pytest.raises(ValueError, match=r"Compile it first.*model\.compile"):
        tsdp.explain(dense_model(), BATCH)
    model = compiled(dense_model())
    with pytest.raises(TypeError, match="expected a model of"):
        tsdp.explain(model.optimizer, BATCH)
    with pytest.raises(TypeError, match="holds a int"):
        tsdp.explain(model, (FEATURES, 3))
    with pytest.raises(ValueError, match="holds a scalar"):
        tsdp.explain(model, (FEATURES, np.array(3.0)))
    assert not {"apply", "apply_gradients"} & set(vars(model.optimizer))


@pytest.mark.skipif(
    small_run.KERAS_3, reason="TensorFlow Recommenders needs tf-keras"
)
def test_recommenders() -> None:
    import tensorflow_recommenders as tfrs

    class Retrieval(tfrs.models.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = layers.Embedding(20, 8)
            self.items = layers.Embedding(30, 8)
            self.task = tfrs.tasks.Retrieval(name="task")

        def compute_loss(self, inputs: Any, training: bool = False) -> Any:
            return self.task(
                self.users(inputs["user"]), self.items(inputs["item"])
            )

    model = Retrieval()
    model.compile(optimizer="adagrad")
    ids = {"user": np.arange(6), "item": np.arange(6)}
    explanation = tsdp.explain(model, ids)
    refusal = explanation.refusals[0]
    assert refusal.layer == "task"
    assert "in-batch" in refusal.remedy
    assert len(refusal.variables) == 2


@pytest.mark.parametrize(
    ("rows", "mechanism", "words"),
    [
        (100, "auto", ["Gaussian noise on every entry", "noise on all rows"]),
        (
            500_000,
            "auto",
            ["projected by rows", "times", "Gaussian()"],
        ),
        (500_000, tsdp.Gaussian(), ["Gaussian noise on every entry"]),
    ],
)
def test_the_mechanism_and_why(
    rows: int, mechanism: Any, words: list[str]
) -> None:
    model = keras.Sequential(
        [
            keras.Input((), dtype="int32"),
            layers.Embedding(rows, 8),
            layers.Dense(1),
        ]
    )
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1),
        noise_multiplier=1.0,
        expected_batch_size=100,
        mechanism=mechanism,
    )
    model.compile(optimizer=optimizer, loss="mse")
    explanation = tsdp.explain(model, (np.arange(4), np.zeros((4, 1))))
    assert all(word in explanation.mechanism for word in words)
    assert explanation.mechanism.split(":")[0] in str(explanation).replace(
        "\n", " "
    )
