"""Ways to train that hide the examples from the optimizer are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.model_cases import KERAS_3
from tests.optimizers.refusals import (
    FEATURES,
    IDS,
    TARGETS,
    OwnStep,
    compiled,
    dense_model,
    private,
    refused,
)

keras = tf.keras

CLIPPING = {
    "by global norm": lambda gs: tf.clip_by_global_norm(gs, 1.0)[0],
    "by norm": lambda gs: [tf.clip_by_norm(g, 1.0) for g in gs],
    "by value": lambda gs: [
        tf.clip_by_value(tf.convert_to_tensor(g), -0.1, 0.1) for g in gs
    ],
    "signs": lambda gs: [tf.sign(tf.convert_to_tensor(g)) for g in gs],
    "divided by their norm": lambda gs: [
        tf.convert_to_tensor(g) / tf.linalg.global_norm(gs) for g in gs
    ],
}


REMEDY = "Remove gradient clipping or normalisation"


@pytest.mark.parametrize("name", CLIPPING)
def test_gradients_that_were_clipped_in_a_train_step(name: str) -> None:
    model = compiled(OwnStep(CLIPPING[name]), IDS)
    with refused(model, "is not linear in a sum over examples", REMEDY):
        model.fit(IDS, TARGETS, batch_size=8, verbose=0)


def test_gradients_that_were_clipped_in_a_loop() -> None:
    model = compiled(OwnStep(CLIPPING["by norm"]), IDS)
    step = tf.function(lambda x, y: model.train_step((x, y)))
    with refused(model, REMEDY):
        step(tf.constant(IDS), tf.constant(TARGETS))


def test_gradients_left_alone_are_taken() -> None:
    model = compiled(OwnStep(lambda gradients: gradients), IDS)
    model.fit(IDS, TARGETS, batch_size=8, verbose=0)
    assert model.optimizer.compositions_spent == 1


def test_eager_training() -> None:
    model = compiled(dense_model(), run_eagerly=True)
    with refused(model, "eagerly", "without run_eagerly=True"):
        model.fit(FEATURES, TARGETS, verbose=0)


def test_eager_gradients() -> None:
    model = compiled(OwnStep(lambda gradients: gradients), IDS)
    with refused(model, "eagerly", "tf.function"):
        model.train_step((tf.constant(IDS), tf.constant(TARGETS)))


@pytest.fixture
def half_precision() -> Iterator[None]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def test_half_precision(half_precision: None) -> None:
    optimizer = private()
    model = compiled(dense_model(), optimizer=optimizer)
    with refused(
        model,
        "mixed_float16",
        "scales the loss",
        "Use the policy 'mixed_bfloat16'",
        error=ValueError,
        optimizer=optimizer,
    ):
        model.fit(FEATURES, TARGETS, verbose=0)


def _scaled(optimizer: Any) -> Any:
    home = keras.optimizers if KERAS_3 else keras.mixed_precision
    return home.LossScaleOptimizer(optimizer)


def test_a_loss_scale_inside() -> None:
    with pytest.raises(ValueError, match=r"scales the loss.*mixed_bfloat16"):
        tsdp.DPSparseOptimizer(
            _scaled(keras.optimizers.SGD(0.1)),
            noise_multiplier=1.0,
            expected_batch_size=8,
        )


def test_a_loss_scale_around() -> None:
    optimizer = private()
    model = compiled(dense_model(), optimizer=_scaled(optimizer))
    with refused(model, error=ValueError, optimizer=optimizer):
        model.fit(FEATURES, TARGETS, verbose=0)


def test_workers_that_are_not_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter server counts one replica, however many workers there are."""
    workers = object.__new__(tf.distribute.ParameterServerStrategy)
    model = compiled(OwnStep(lambda gradients: gradients), IDS)

    def apply_among_workers() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(tf.distribute, "get_strategy", lambda: workers)
            model.optimizer._take_step([], [], lambda private: None)

    with refused(
        model,
        "asynchronous workers",
        "outside of the distribution strategy",
        error=ValueError,
    ):
        apply_among_workers()


def test_products_in_less_than_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled(OwnStep(lambda gradients: gradients), IDS)
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: ["a GPU"]
    )
    with refused(
        model,
        "TensorFloat-32",
        "enable_tensor_float_32_execution(False)",
        error=ValueError,
    ):
        model.fit(IDS, TARGETS, batch_size=8, verbose=0)
