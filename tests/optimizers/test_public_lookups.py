"""How many rows an example looks up is public, or it is not used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp

# A loop of one's own: what the step remembers has nothing to do with Keras.
pytestmark = pytest.mark.once

keras = tf.keras

WORDS = "fixed without looking at the data"


def model(mechanism: Any, **options: Any) -> Any:
    sampling = tsdp.EpochSampling(num_examples=8, batch_size=4, epochs=5)
    plan = tsdp.PrivacyPlan(
        noise_multiplier=1.0, delta=1e-2, sampling=sampling, **options
    )
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(0.1), plan, mechanism=mechanism
    )
    result = keras.Sequential(
        [keras.layers.Embedding(2000, 4), keras.layers.GlobalMaxPooling1D()]
    )
    result.compile(optimizer=optimizer, loss="mse")
    return result


def train(trained: Any, width: int) -> None:
    """A step of one's own, traced for this width alone."""

    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(trained(ids) - 1.0))
        weights = trained.trainable_variables
        gradients = tape.gradient(loss, weights)
        trained.optimizer.apply_gradients(zip(gradients, weights, strict=True))

    trained.optimizer.start_pass()
    step(tf.reshape(tf.range(4 * width), [4, width]))


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("auto", {}),
        (tsdp.Projection(), {}),
        (tsdp.Laplace(), {"noise": "laplace"}),
    ],
    ids=["auto", "projection", "laplace"],
)
def test_another_width_is_refused(mechanism: Any, options: Any) -> None:
    trained = model(mechanism, **options)
    train(trained, 3)
    before = trained.get_weights()
    with pytest.raises(ValueError, match=r"look up 5 rows of .*, but 3 in"):
        train(trained, 5)
    np.testing.assert_array_equal(before, trained.get_weights())
    statement = trained.optimizer.privacy_statement()
    assert any(WORDS in entry for entry in statement.assumptions)


@pytest.mark.parametrize(
    "mechanism", [tsdp.Gaussian(), tsdp.Threshold()], ids=["gaussian", "rows"]
)
def test_others_do_not_care(mechanism: Any) -> None:
    trained = model(mechanism)
    train(trained, 3)
    train(trained, 5)
    statement = trained.optimizer.privacy_statement()
    assert not any(WORDS in entry for entry in statement.assumptions)
