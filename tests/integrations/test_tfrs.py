"""TensorFlow Recommenders' models train; in-batch negatives do not."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.integrations.recommenders import Retrieval

KERAS_3 = tsdp.DPSparseOptimizer.__module__.endswith("keras3")
pytestmark = pytest.mark.skipif(
    KERAS_3, reason="TensorFlow Recommenders needs tf-keras"
)
if not KERAS_3:
    tfrs = pytest.importorskip(
        "tensorflow_recommenders",
        reason="version lanes do without TensorFlow Recommenders",
    )

layers = tf.keras.layers
DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "recommenders.md"

EXAMPLES, BATCH, CLIP, RATE = 16, 8, 0.2, 0.5
_random = np.random.RandomState(0)
IDS = {
    "user": _random.randint(0, 20, EXAMPLES).astype("int32"),
    "item": _random.randint(0, 30, EXAMPLES).astype("int32"),
}
DENSE = _random.randn(EXAMPLES, 3).astype("float32")
CLICKS = (_random.rand(EXAMPLES) > 0.5).astype("float32")
STARS = _random.rand(EXAMPLES, 1).astype("float32")


class Tables(layers.Layer):
    """An embedding for each feature, as the ranking model wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.user = layers.Embedding(20, 4, "normal")
        self.item = layers.Embedding(30, 4, "normal")

    def call(self, inputs: Any) -> dict[str, tf.Tensor]:
        return {key: getattr(self, key)(ids) for key, ids in inputs.items()}


def _ranking(**options: Any) -> Any:
    return tfrs.experimental.models.Ranking(
        **{
            "embedding_layer": Tables(),
            "bottom_stack": tfrs.layers.blocks.MLP([6, 4], activation="tanh"),
            "top_stack": tfrs.layers.blocks.MLP(
                [6, 1], final_activation="sigmoid"
            ),
            **options,
        }
    )


def _crossed(layer: Callable[[], Any]) -> Any:
    interaction = tf.keras.Sequential([layers.Concatenate(), layer()])
    return _ranking(feature_interaction=interaction)


def _dot(**options: Any) -> Any:
    interaction = tfrs.layers.feature_interaction.DotInteraction(**options)
    return _ranking(feature_interaction=interaction)


BUILT_RANKINGS: dict[str, Callable[[], Any]] = {
    "DLRM": _dot,
    "DLRM, self_interaction": lambda: _dot(self_interaction=True),
    "DLRM, skip_gather": lambda: _dot(skip_gather=True),
    "DCN": lambda: _crossed(tfrs.layers.dcn.Cross),
    "DCN, low rank": lambda: _crossed(
        lambda: tfrs.layers.dcn.Cross(projection_dim=2, diag_scale=0.1)
    ),
    "DCN, several layers": lambda: _crossed(
        lambda: tfrs.layers.feature_interaction.MultiLayerDCN(
            projection_dim=2, num_layers=2
        )
    ),
}


class Towers(tf.keras.Model if KERAS_3 else tfrs.Model):
    """Ratings and clicks and retrieval, as far as they are asked for."""

    def __init__(self, *tasks: str, retrieval: Any = None):
        super().__init__()
        self.tables = Tables()
        self.hidden = layers.Dense(6, "tanh")
        self.stars, self.clicks = layers.Dense(1), layers.Dense(1)
        self.tasks = tasks
        self.stars_task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.MeanSquaredError(),
            metrics=[tf.keras.metrics.RootMeanSquaredError()],
        )
        self.clicks_task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.BinaryCrossentropy(from_logits=True)
        )
        self.retrieval = retrieval(self.tables.item) if retrieval else None

    def compute_loss(self, inputs: Any, training: bool = False) -> tf.Tensor:
        features, (clicks, stars), *_ = inputs
        found = self.tables(features["sparse_features"])
        x = self.hidden(tf.concat([found["user"], found["item"]], 1))
        loss = 0.0
        if "stars" in self.tasks:
            loss += self.stars_task(stars, self.stars(x))
        if "clicks" in self.tasks:
            loss += self.clicks_task(clicks[:, None], self.clicks(x))
        if self.retrieval is not None:
            loss += self.retrieval(
                found["user"],
                found["item"],
                candidate_ids=features["sparse_features"]["item"],
                compute_metrics=not training,
            )
        return loss


def _public(**options: Any) -> Callable[[Any], Any]:
    return lambda table: Retrieval(np.arange(30), table, **options)


MODELS: dict[str, Callable[[], Any]] = {
    "one task": lambda: Towers("clicks"),
    "two tasks": lambda: Towers("clicks", "stars"),
    "ranking and retrieval": lambda: Towers("stars", retrieval=_public()),
}


def _data(model: Any) -> Any:
    features = {"dense_features": DENSE, "sparse_features": IDS}
    labels = (CLICKS, STARS) if isinstance(model, Towers) else CLICKS
    data = tf.data.Dataset.from_tensor_slices((features, labels))
    return data.batch(BATCH, drop_remainder=True)


def _private(**options: Any) -> tsdp.DPSparseOptimizer:
    options = {
        "clip_norm": CLIP,
        "noise_multiplier": 0.0,
        "expected_batch_size": BATCH,
        **options,
    }
    return tsdp.DPSparseOptimizer(tf.keras.optimizers.SGD(RATE), **options)


def _loop(model: Any) -> list[np.ndarray]:
    """Weights after a pass, one example at a time; the model's stay."""

    @tf.function
    def gradients(example: Any) -> Any:
        # The example twice: a mean over both is that of one, and a batch of
        # one would be squeezed away.
        twice = tf.nest.map_structure(lambda t: tf.concat([t, t], 0), example)
        with tf.GradientTape() as tape:
            loss = model.compute_loss(twice, training=True)
        variables = model.trainable_variables
        found = tape.gradient(loss, variables)
        return [
            tf.zeros_like(v) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(found, variables, strict=True)
        ]

    initial = [v.numpy() for v in model.trainable_variables]
    for batch in _data(model):
        totals = [np.zeros(v.shape) for v in model.trainable_variables]
        for i in range(BATCH):
            example = tf.nest.map_structure(lambda t: t[i : i + 1], batch)  # noqa: B023
            found = [g.numpy() for g in gradients(example)]
            norm = np.sqrt(sum((g**2).sum() for g in found))
            for total, g in zip(totals, found, strict=True):
                total += g * min(1.0, CLIP / norm)
        for v, total in zip(model.trainable_variables, totals, strict=True):
            v.assign_sub(RATE * total / BATCH)
    final = [v.numpy() for v in model.trainable_variables]
    for v, value in zip(model.trainable_variables, initial, strict=True):
        v.assign(value)
    return final


@pytest.mark.parametrize("name", [*MODELS, *BUILT_RANKINGS])
def test_models_train_as_a_loop_over_examples_would(name: str) -> None:
    tf.keras.utils.set_random_seed(1)
    model = {**MODELS, **BUILT_RANKINGS}[name]()
    model.compute_loss(next(iter(_data(model))))  # Makes the variables.
    expected = _loop(model)
    before = [v.numpy() for v in model.trainable_variables]
    model.compile(optimizer=_private())
    # Else the step is traced twice, the first time for variables alone.
    model.optimizer.build(model.trainable_variables)
    model.fit(_data(model), verbose=0)
    moved = 0.0
    for v, want, start in zip(
        model.trainable_variables, expected, before, strict=True
    ):
        np.testing.assert_allclose(v, want, atol=1e-5, err_msg=v.name)
        moved = max(moved, np.abs(want - start).max())
    assert moved > 1e-3


@pytest.mark.parametrize("self_interaction", [False, True])
def test_dot_interactions_of_many_features(self_interaction: bool) -> None:
    # The layer's mask has 16 · 8 · 8 entries, too many for a constant.
    ids = tf.keras.Input((8,), batch_size=16, dtype="int32")
    fields = tf.unstack(layers.Embedding(20, 4, "normal")(ids), axis=1)
    x = tfrs.layers.feature_interaction.DotInteraction(
        self_interaction=self_interaction
    )(fields)
    model = tf.keras.Model(ids, layers.Dense(1)(x))
    model.compile(optimizer=_private(), loss="mse")
    before = model.get_weights()
    rows = _random.randint(0, 20, (16, 8)).astype("int32")
    data = tf.data.Dataset.from_tensor_slices((rows, STARS))
    model.fit(data.batch(16, drop_remainder=True), verbose=0)
    for now, was in zip(model.get_weights(), before, strict=True):
        assert np.abs(now - was).max() > 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.1},
        {"num_hard_negatives": 3},
        {"remove_accidental_hits": True},
    ],
    ids=str,
)
def test_negatives_of_the_batch_are_refused(options: dict[str, Any]) -> None:
    model = Towers(retrieval=lambda _: tfrs.tasks.Retrieval(**options))
    model.compile(optimizer=_private(loss_reduction="sum"))
    with pytest.raises(tsdp.NotSeparableError) as error:
        model.fit(_data(model), verbose=0)
    said = str(error.value)
    assert "MatMul pairs different examples" in said
    assert "in-batch negatives" in said
    assert "tf_sparse_dp.integrations.recommenders.Retrieval" in said


def test_a_ranking_model_trains_within_its_plan() -> None:
    sampling = tsdp.PoissonSampling(
        num_examples=EXAMPLES, batch_size=4, epochs=2
    )
    plan = tsdp.PrivacyPlan(epsilon=8.0, delta=1e-3, sampling=sampling)
    model = _crossed(tfrs.layers.dcn.Cross)
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            tfrs.experimental.optimizers.ClippyAdagrad(0.1), plan
        )
    )
    features = {"dense_features": DENSE, "sparse_features": IDS}
    # The model's own loss takes no vector of weights: hand the column that
    # marks padding over as one more feature.
    data = sampling.dataset((features, CLICKS)).map(
        lambda features, labels, valid: ({**features, "valid": valid}, labels)
    )
    history = model.fit(
        data,
        verbose=0,
        callbacks=[tsdp.PrivacyBudget()],
    )
    assert model.optimizer.compositions_left == 0
    assert history.history["epsilon"][-1] <= 8.0


def test_a_batch_size_that_is_not_known_is_refused_with_the_remedy() -> None:
    model = _dot(skip_gather=True)
    model.compile(optimizer=_private())
    data = _data(model).unbatch().batch(BATCH)
    with pytest.raises(tsdp.NotSeparableError, match="drop_remainder=True"):
        model.fit(data, verbose=0)


def test_a_composite_optimizer_is_refused() -> None:
    composite = tfrs.experimental.optimizers.CompositeOptimizer(
        [(tf.keras.optimizers.legacy.SGD(0.1), list)]
    )
    with pytest.raises(TypeError, match="CompositeOptimizer"):
        tsdp.DPSparseOptimizer(
            composite, noise_multiplier=1.0, expected_batch_size=8
        )


def test_factorized_metrics_are_computed_where_they_are_asked_for() -> None:
    def task(table: Any) -> Any:
        candidates = tf.data.Dataset.range(30, output_type=tf.int32).batch(10)
        return Retrieval(
            tf.data.Dataset.range(30),
            table,
            num_negatives=10,
            metrics=tfrs.metrics.FactorizedTopK(
                candidates.map(lambda ids: (ids, table(ids))), ks=(1, 30)
            ),
        )

    model = Towers(retrieval=task)
    model.compile(optimizer=_private())
    trained = model.fit(_data(model), verbose=0).history
    name = "factorized_top_k/top_30_categorical_accuracy"
    assert trained[name] == [0.0]  # Not updated while training.
    found = model.evaluate(_data(model), return_dict=True, verbose=0)
    assert found[name] == 1.0
    assert found[name.replace("30", "1")] < 1.0


def test_metrics_without_identifiers_are_refused_where_ids_are_passed() -> None:
    def task(table: Any) -> Any:
        candidates = tf.data.Dataset.range(30, output_type=tf.int32).batch(10)
        return Retrieval(
            np.arange(30),
            table,
            metrics=tfrs.metrics.FactorizedTopK(candidates.map(table), (1,)),
        )

    model = Towers(retrieval=task)
    model.compile(optimizer=_private())
    model.fit(_data(model), verbose=0)  # No metrics are computed.
    with pytest.raises(ValueError, match="'factorized_top_k' have no ident"):
        model.evaluate(_data(model), verbose=0)
    # Without ids TFRS compares scores.
    ones = tf.ones([2, 4])
    loss = model.retrieval(ones, ones)
    assert np.isfinite(loss)


def test_the_document_runs() -> None:
    blocks = re.findall(
        r"^```python tfrs\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S
    )
    assert blocks
    for block in blocks:
        exec(compile(block, DOCUMENT.name, "exec"), {"__name__": "__doc__"})
