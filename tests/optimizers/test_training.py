"""All the ways in which Keras trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers import small_run

keras = tf.keras
BATCH = 8
EXAMPLES = 64
# Every batch has every row once: Keras 3 is wrong on rows that are repeated,
# and moves rows that were not there, which row updates leave alone.
ROWS = BATCH
IDS = np.arange(EXAMPLES, dtype="int32") % ROWS
LABELS = np.random.RandomState(1).randn(EXAMPLES, 1).astype("float32")


def _model() -> Any:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((), dtype="int32"),
        keras.layers.Embedding(ROWS, 3, embeddings_initializer="normal"),
        keras.layers.Dense(4, "tanh"),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers)


def _data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(BATCH)


def _unclipped(inner: Any) -> Any:
    return tsdp.DPSparseOptimizer(
        inner, clip_norm=1e6, noise_multiplier=0.0, expected_batch_size=BATCH
    )


def _fit(
    optimizer: Any, built: bool = False, **options: Any
) -> list[np.ndarray]:
    model = _model()
    model.compile(optimizer=optimizer, loss="mse")
    if built:  # Else the step is traced twice, first for variables alone.
        optimizer.build(model.trainable_variables)
    model.fit(_data(), epochs=2, verbose=0, **options)
    return small_run.weights(model)


def _inner_optimizers() -> dict[str, Callable[[], Any]]:
    optimizers = keras.optimizers
    decay = optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)
    cases = {
        name: (lambda name=name: getattr(optimizers, name)(0.05))
        for name in (
            "SGD Adagrad Adam RMSprop Ftrl Adadelta Nadam Adamax AdamW Lion "
            "Adafactor"
        ).split()
    }
    cases |= {
        "momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        "amsgrad": lambda: optimizers.Adam(0.05, amsgrad=True),
        "schedule": lambda: optimizers.SGD(decay),
        "weight decay": lambda: optimizers.SGD(0.05, weight_decay=0.01),
        "clipnorm": lambda: optimizers.SGD(0.05, clipnorm=0.1),
        "global_clipnorm": lambda: optimizers.SGD(0.05, global_clipnorm=0.1),
        "average": lambda: optimizers.SGD(0.05, use_ema=True),
    }
    if small_run.KERAS_3:
        cases["accumulation"] = lambda: optimizers.SGD(
            0.05, gradient_accumulation_steps=2
        )
    return cases


@pytest.mark.parametrize("name", _inner_optimizers())
def test_without_noise_and_clipping_any_optimizer_trains_as_ever(
    name: str,
) -> None:
    make = _inner_optimizers()[name]
    for plain, private in zip(
        _fit(make(), built=True),
        # Slots of Adam's kind are also made while the step is traced.
        _fit(_unclipped(make()), built=name != "Adam"),
        strict=True,
    ):
        np.testing.assert_allclose(plain, private, rtol=0, atol=1e-5)


def test_learning_rate_callbacks_reach_the_inner_optimizer() -> None:
    def halve(epoch: int, rate: float) -> float:
        return rate * 0.5

    inner = keras.optimizers.SGD(0.4)
    optimizer = _unclipped(inner)
    _fit(
        optimizer,
        callbacks=[keras.callbacks.LearningRateScheduler(halve)],
    )
    assert float(np.asarray(inner.learning_rate)) == pytest.approx(0.1)
    assert float(np.asarray(optimizer.learning_rate)) == pytest.approx(0.1)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_a_loop_of_ones_own(static: bool, jit: bool) -> None:
    model = _model()
    model.compile(optimizer=_unclipped(keras.optimizers.SGD(0.1)), loss="mse")
    rows = BATCH if static else None
    signature = [
        tf.TensorSpec([rows], tf.int32),
        tf.TensorSpec([rows, 1], tf.float32),
    ]

    @tf.function(input_signature=signature, jit_compile=jit)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for _ in range(2):
        for x, y in _data():
            step(x, y)
    for loop, fit in zip(
        small_run.weights(model),
        _fit(keras.optimizers.SGD(0.1)),
        strict=True,
    ):
        np.testing.assert_allclose(loop, fit, rtol=0, atol=1e-5)


def test_a_loop_over_an_iterator_inside_the_function() -> None:
    model = _model()
    model.compile(optimizer=_unclipped(keras.optimizers.SGD(0.1)), loss="mse")

    @tf.function
    def step(iterator: Any) -> None:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for _ in range(2):
        iterator = iter(_data())
        for _ in range(EXAMPLES // BATCH):
            step(iterator)
    for loop, fit in zip(
        small_run.weights(model),
        _fit(keras.optimizers.SGD(0.1)),
        strict=True,
    ):
        np.testing.assert_allclose(loop, fit, rtol=0, atol=1e-5)


def test_dropout_and_gaussian_noise_layers_train() -> None:
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dropout(0.5),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(1),
        ]
    )
    for compile in ({}, {"jit_compile": True}):
        optimizer = _unclipped(keras.optimizers.SGD(0.1))
        model.compile(optimizer=optimizer, loss="mse", **compile)
        before = small_run.weights(model)
        model.fit(small_run.FEATURES, small_run.LABELS, batch_size=8, verbose=0)
        assert optimizer.compositions_spent == 8
        assert not np.array_equal(before[0], small_run.weights(model)[0])


def test_mixed_bfloat16_trains_close_to_float32() -> None:
    def trained() -> list[np.ndarray]:
        model = _model()
        model.compile(
            optimizer=_unclipped(keras.optimizers.SGD(0.1)), loss="mse"
        )
        model.fit(_data(), verbose=0)
        return small_run.weights(model)

    full = trained()
    policy = keras.mixed_precision
    setter = (
        policy.set_global_policy
        if hasattr(policy, "set_global_policy")
        else policy.set_dtype_policy
    )
    setter("mixed_bfloat16")
    try:
        half = trained()
    finally:
        setter("float32")
    for a, b in zip(full, half, strict=True):
        assert b.dtype == np.float32
        # Eight steps of size 0.1 with gradients of about 1, each rounded to
        # 2**-8: 8 * 0.1 * 2**-8 = 0.003, with room for propagation.
        np.testing.assert_allclose(a, b, rtol=0, atol=0.02)


def test_padding_has_no_influence_even_where_the_loss_ignores_weights() -> None:
    """As TensorFlow Recommenders does: the step never looks at the weights."""
    sampling = tsdp.PoissonSampling(
        num_examples=EXAMPLES, batch_size=BATCH, steps=1, max_batch_size=40
    )
    with pytest.warns(tsdp.PrivacyWarning):
        data = sampling.dataset((IDS, LABELS), seed=3)
    x, y, weight = next(iter(data))
    real = np.flatnonzero(weight.numpy() > 0)
    assert 0 < len(real) < 40

    def stepped(x: Any, y: Any, *weight: Any) -> list[np.ndarray]:
        model = _model()
        optimizer = tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(1.0),
            clip_norm=0.5,
            noise_multiplier=0.0,
            expected_batch_size=BATCH,
        )

        @tf.function
        def step(x: Any, y: Any, *weight: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        step(x, y, *weight)
        return small_run.weights(model)

    padded = stepped(x, y, weight)
    bare = stepped(tf.gather(x, real), tf.gather(y, real))
    for a, b in zip(padded, bare, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
