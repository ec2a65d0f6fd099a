"""TensorFlow Recommenders' models train unmodified."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers import small_run

pytestmark = pytest.mark.skipif(
    small_run.KERAS_3, reason="TensorFlow Recommenders needs tf-keras"
)

EXAMPLES = 400


def _features() -> tuple[dict[str, np.ndarray], np.ndarray]:
    random = np.random.RandomState(0)
    users = random.randint(0, 20, EXAMPLES).astype("int32")
    items = random.randint(0, 30, EXAMPLES).astype("int32")
    ratings = ((users + items) % 2).astype("float32")[:, None]
    return {"user": users, "item": items}, ratings


def _ranking_model() -> Any:
    import tensorflow_recommenders as tfrs

    layers = tf.keras.layers

    class Ranking(tfrs.models.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = layers.Embedding(20, 8)
            self.items = layers.Embedding(30, 8)
            self.score = tf.keras.Sequential(
                [layers.Dense(16, "relu"), layers.Dense(1)]
            )
            self.task = tfrs.tasks.Ranking(
                loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
                metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.0)],
            )

        def compute_loss(self, inputs: Any, training: bool = False) -> Any:
            features, ratings, *_ = inputs
            x = [self.users(features["user"]), self.items(features["item"])]
            scores = self.score(tf.concat(x, -1))
            return self.task(labels=ratings, predictions=scores)

    return Ranking()


def test_a_ranking_model_trains_within_its_plan() -> None:
    sampling = tsdp.PoissonSampling(
        num_examples=EXAMPLES, batch_size=40, epochs=2
    )
    plan = tsdp.PrivacyPlan(epsilon=8.0, delta=1e-4, sampling=sampling)
    model = _ranking_model()
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(tf.keras.optimizers.Adagrad(0.1), plan)
    )
    history = model.fit(
        sampling.dataset(_features()),
        verbose=0,
        callbacks=[tsdp.PrivacyBudget()],
    )
    assert model.optimizer.compositions_left == 0
    assert history.history["epsilon"][-1] <= 8.0


def test_retrieval_with_in_batch_negatives_is_refused() -> None:
    import tensorflow_recommenders as tfrs

    class Retrieval(tfrs.models.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = tf.keras.layers.Embedding(20, 8)
            self.items = tf.keras.layers.Embedding(30, 8)
            self.task = tfrs.tasks.Retrieval()

        def compute_loss(self, inputs: Any, training: bool = False) -> Any:
            features, *_ = inputs
            return self.task(
                self.users(features["user"]), self.items(features["item"])
            )

    model = Retrieval()
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            tf.keras.optimizers.Adagrad(0.1),
            noise_multiplier=1.0,
            expected_batch_size=40,
            loss_reduction="sum",
        )
    )
    data = tf.data.Dataset.from_tensor_slices(_features()).batch(40)
    with pytest.raises(tsdp.NotSeparableError, match="in-batch"):
        model.fit(data, verbose=0)
