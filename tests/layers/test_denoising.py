"""Tables that are read with their noise shrunk away."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.layers.lazy_variable import LazyVariable, lazy_variable

keras = tf.keras
ROWS, WIDTH = 64, 4


def layer(rows: int = ROWS, **options: Any) -> Any:
    made = tsdp.layers.LazyEmbedding(rows, WIDTH, denoise=True, **options)
    made.build((None,))
    return made


def table(made: Any) -> LazyVariable:
    found = lazy_variable(made.embeddings)
    assert found is not None
    return found


def kept(made: Any, name: str) -> Any:
    (found,) = [w for w in made.weights if f"/{name}:" in f"/{w.name}:"]
    return found


def share(change: np.ndarray, variance: float) -> np.ndarray:
    """What of a change is not noise, by column."""
    noise = variance * (1 + np.sqrt(2 / len(change)))
    return np.maximum(0, 1 - noise / np.mean(change**2, 0))


def all_rows(made: Any) -> np.ndarray:
    return made(tf.range(ROWS)).numpy()


@pytest.mark.parametrize("initial", ["uniform", "glorot_uniform", "zeros"])
def test_lookups_give_the_shrunk_rows(initial: str) -> None:
    made = layer(embeddings_initializer=initial)
    before = table(made).numpy()
    np.testing.assert_allclose(all_rows(made), before, atol=1e-7)
    table(made).add(tf.ones([ROWS, WIDTH]), 0.25)
    made_of = table(made).numpy()
    shares = np.array([0.0, 0.25, 0.5, 1.0], np.float32)
    kept(made, "shrinkage").assign(shares)
    expected = before + shares * (made_of - before)
    np.testing.assert_allclose(all_rows(made), expected, atol=1e-6)


def test_the_shrinkage_is_that_of_least_error(
    seeded: np.random.Generator,
) -> None:
    made = layer(4096)
    denoising = table(made).denoising
    before = table(made).numpy()
    sizes = np.array([0.0, 0.1, 1.0, 10.0])
    signal = (seeded.normal(size=[4096, WIDTH]) * sizes).astype("float32")
    table(made).add(signal, 0.5)
    denoising.add_variance(tf.constant(0.5))
    denoising.estimate(4096)
    change = np.float64(table(made).numpy()) - before
    expected = share(change, 0.25)
    found = kept(made, "shrinkage").numpy()
    # A share is 1 less a ratio; a sum of 4096 float32 squares is good to 1e-5.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert found[0] < 0.2 < 0.6 < found[2] < found[3] < 1
    error = [np.mean((f * change - signal) ** 2) for f in (found, 1.0, 0.0)]
    assert error[0] < min(error[1:])


def test_the_shrinkage_comes_from_rows_that_are_fixed_beforehand() -> None:
    """Whatever is in other rows, which batches may have touched."""
    found = []
    for touched in (1, 3, 5):
        made = layer(embeddings_initializer="zeros")
        rows = np.zeros([ROWS, WIDTH], "float32")
        rows[::16] = 1.0  # The sample, of four rows.
        rows[touched] = 100.0
        table(made).assign(rows)
        table(made).denoising.add_variance(tf.constant(0.5))
        table(made).denoising.estimate(4)
        found.append(kept(made, "shrinkage").numpy())
    expected = 1 - 0.25 * (1 + np.sqrt(2 / 4))
    np.testing.assert_allclose(found, np.full([3, WIDTH], expected), rtol=1e-6)


def test_rows_of_the_sample_get_their_noise_first() -> None:
    made = layer(embeddings_initializer="zeros")
    table(made).add(tf.zeros([ROWS, WIDTH]), 2.0)
    table(made).denoising.add_variance(tf.constant(2.0))
    table(made).denoising.estimate(ROWS)
    # Without it, the mean square is 0 and nothing is known of the share.
    np.testing.assert_allclose(
        kept(made, "shrinkage").numpy(),
        share(table(made).numpy(), 4.0),
        atol=1e-5,
    )
    # A number may be 0 on the grid, but not all of a row.
    assert np.all(np.any(table(made).numpy() != 0, 1))


def test_gradients_pass_straight_through() -> None:
    """Else a column whose share is 0 would never be trained again."""
    made = layer()
    kept(made, "shrinkage").assign(np.zeros(WIDTH, "float32"))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(made(tf.constant([3, 3, 5])) * 2.0)
    gradient = tape.gradient(loss, table(made))
    np.testing.assert_array_equal(
        tf.convert_to_tensor(gradient)[3], np.full(WIDTH, 4.0)
    )


# Whole trainings.

SAMPLING = tsdp.PoissonSampling(
    num_examples=40, batch_size=20, steps=12, max_batch_size=40
)


def compiled(rule: Any, denoise: bool = True, **options: Any) -> Any:
    ids = keras.Input((), dtype="int32")
    rows = tsdp.layers.LazyEmbedding(
        ROWS, WIDTH, denoise=denoise, name="items"
    )(ids)
    model = keras.Model(ids, keras.layers.Dense(1, use_bias=False)(rows))
    plan = tsdp.PrivacyPlan(noise_multiplier=1.0, delta=1e-3, sampling=SAMPLING)
    model.compile(
        optimizer=tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1), plan, tables=rule, **options
        ),
        loss="mse",
    )
    return model


def fit(model: Any, steps: int) -> None:
    ids = np.arange(40, dtype="int32") % 8
    labels = np.where(ids % 2, 1.0, -1.0).astype("float32")[:, None]
    model.fit(
        SAMPLING.dataset((ids, labels)),
        steps_per_epoch=steps,
        callbacks=[tsdp.PrivacyBudget()],
        verbose=0,
    )


def test_training_estimates_as_it_goes_and_survives_saving(
    tmp_path: pathlib.Path,
) -> None:
    rule = tsdp.DualAveraging(
        keras.optimizers.schedules.ExponentialDecay(5.0, 10, 0.5),
        estimate_every=3,
    )
    model = compiled(rule)
    items = model.get_layer("items")
    initial = table(items).numpy()
    fit(model, 6)
    rates = 5.0 * 0.5 ** (np.arange(6) / 10)
    variance = np.sum((rates / 20) ** 2)
    np.testing.assert_allclose(
        kept(items, "noise_variance").numpy(), variance, rtol=1e-6
    )
    change = table(items).numpy() - initial
    expected = share(change, variance)
    found = kept(items, "shrinkage").numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        all_rows(items), initial + found * change, atol=1e-5
    )

    assert "one thread" in str(model.optimizer.privacy_statement())

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = loaded.get_layer("items")
    np.testing.assert_array_equal(all_rows(again), all_rows(items))
    np.testing.assert_array_equal(
        kept(again, "noise_variance").numpy(), variance_of(items)
    )
    assert (
        loaded.optimizer.get_config()["tables"]
        == (model.optimizer.get_config()["tables"])
    )
    fit(loaded, 6)
    assert variance_of(again) > variance

    # Into a layer that was made with another key.
    model.save_weights(tmp_path / "model.weights.h5")
    other = compiled(rule)
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(
        all_rows(other.get_layer("items")), all_rows(items)
    )


def test_a_checkpoint_that_was_restored_before_the_layer_was_built(
    tmp_path: pathlib.Path,
) -> None:
    """Its table comes in place of the initial values, not before them."""
    saved = tsdp.layers.LazyEmbedding(ROWS, WIDTH, denoise=True)
    saved(tf.range(ROWS))
    table(saved).add(tf.ones([ROWS, WIDTH]), 0.0)
    kept(saved, "shrinkage").assign(np.full(WIDTH, 0.5, "float32"))
    path = tf.train.Checkpoint(layer=saved).write(tmp_path / "layer")
    restored = tsdp.layers.LazyEmbedding(ROWS, WIDTH, denoise=True)
    if not hasattr(keras, "__version__"):  # Keras 3 restores built layers only.
        tf.train.Checkpoint(layer=restored).read(path)
    restored(tf.range(ROWS))
    tf.train.Checkpoint(layer=restored).read(path)
    np.testing.assert_array_equal(all_rows(restored), all_rows(saved))


def variance_of(made: Any) -> np.ndarray:
    return kept(made, "noise_variance").numpy()


def test_without_noise_it_is_plain_sgd() -> None:
    results = []
    for rule, denoise in (
        (tsdp.DualAveraging(5.0), True),
        (keras.optimizers.SGD(5.0), False),
    ):
        ids = keras.Input((), dtype="int32")
        layer = tsdp.layers.LazyEmbedding(
            ROWS,
            WIDTH,
            denoise=denoise,
            embeddings_initializer="ones",
        )
        model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
        model.layers[-1].set_weights([np.ones([WIDTH, 1]), np.zeros(1)])
        model.compile(
            optimizer=tsdp.DPSparseOptimizer(
                keras.optimizers.SGD(0.1),
                noise_multiplier=0.0,
                expected_batch_size=8,
                tables=rule,
            ),
            loss="mse",
        )
        data = tf.data.Dataset.from_tensors(
            (tf.range(8), tf.ones([8, 1]) * 3.0)
        )
        model.fit(data.repeat(5), verbose=0)
        results.append(all_rows(layer))
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_a_saved_model_looks_rows_up_as_the_layer_does(
    tmp_path: pathlib.Path,
) -> None:
    made = layer()
    made(tf.range(ROWS))
    table(made).add(tf.ones([ROWS, WIDTH]), 0.1)
    kept(made, "shrinkage").assign(np.full(WIDTH, 0.5, "float32"))
    model = keras.Sequential([keras.Input((), dtype="int32"), made])
    tf.saved_model.save(model, str(tmp_path))
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    (found,) = served(tf.range(ROWS)).values()
    np.testing.assert_array_equal(found, all_rows(made))


@pytest.mark.parametrize("denoise", [True, False])
def test_the_rule_must_fit_the_layer(denoise: bool) -> None:
    rule = keras.optimizers.SGD(1.0) if denoise else tsdp.DualAveraging(1.0)
    model = compiled(rule, denoise)
    with pytest.raises(ValueError, match="denoise=True"):
        fit(model, 1)


@pytest.mark.once
@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"learning_rate": "fast"},
        {"learning_rate": 1.0, "estimate_every": 0},
        {"learning_rate": 1.0, "sample_rows": 1.5},
    ],
    ids=str,
)
def test_arguments(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match="expected"):
        tsdp.DualAveraging(**options)


def test_a_rule_cannot_be_changed_but_replaced(tmp_path: pathlib.Path) -> None:
    model = compiled(tsdp.DualAveraging(5.0))
    fit(model, 2)
    with pytest.raises(AttributeError, match="give a schedule"):
        model.optimizer.tables.learning_rate = 10.0
    assert model.optimizer.tables.learning_rate == 5.0
    # The way that the message names.
    path = str(tmp_path / "state")
    tf.train.Checkpoint(optimizer=model.optimizer).write(path)
    plan = model.optimizer.plan
    model.compile(
        tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1), plan, tables=tsdp.DualAveraging(10.0)
        ),
        loss="mse",
    )
    tf.train.Checkpoint(optimizer=model.optimizer).read(path)
    fit(model, 1)
    assert model.optimizer.compositions_spent == 3
    rates = np.array([5.0, 5.0, 10.0])
    np.testing.assert_allclose(
        kept(model.get_layer("items"), "noise_variance").numpy(),
        np.sum((rates / 20) ** 2),
        rtol=1e-6,
    )
