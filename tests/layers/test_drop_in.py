"""LazyEmbedding behaves as keras.layers.Embedding, or says that it does not."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.layers import owed_noise
from tests.layers.owed_noise import LazyEmbedding, table_of

keras = tf.keras
KERAS_3 = hasattr(keras, "__version__")
Embedding = keras.layers.Embedding
ROWS, WIDTH = 10, 3
VALUES = np.arange(ROWS * WIDTH, dtype="float32").reshape(ROWS, WIDTH)


def both(**options: Any) -> tuple[Any, Any]:
    """The two layers, with the same weights."""
    layers = (
        LazyEmbedding(ROWS, WIDTH, **options),
        Embedding(ROWS, WIDTH, **options),
    )
    for layer in layers:
        layer.build((None, None))
        layer.set_weights([VALUES])
    return layers


INPUTS = {
    "ids": tf.constant([[1, 2], [0, 9]]),
    "int64": tf.constant([[1, 2], [0, 9]], tf.int64),
    "small integers": tf.constant([[1, 2]], tf.uint8),
    "floats": tf.constant([[1.0, 2.0], [0.0, 9.0]]),
    "scalar": tf.constant(3),
    "vector": tf.constant([3, 3]),
    "none": tf.zeros([0, 2], tf.int32),
    "many axes": tf.zeros([2, 1, 2, 1], tf.int32),
}


@pytest.mark.lane
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_outputs_are_the_same(policy: str) -> None:
    lazy, plain = both(dtype=policy)
    for ids in INPUTS.values():
        for call in (lambda layer: layer, tf.function):
            found, expected = call(lazy)(ids), call(plain)(ids)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
    assert lazy.embeddings.dtype == plain.embeddings.dtype
    assert lazy.compute_output_shape((None, 4)) == plain.compute_output_shape(
        (None, 4)
    )


def test_ragged_ids_give_ragged_rows() -> None:
    lazy, _ = both()
    ids = tf.ragged.constant([[1, 2], [], [3]])
    rows = lazy(ids)
    assert rows.row_lengths().numpy().tolist() == [2, 0, 1]
    np.testing.assert_array_equal(rows.values, VALUES[[1, 2, 3]])


def test_masks_are_the_same() -> None:
    lazy, plain = both(mask_zero=True)
    ids = tf.constant([[1, 0], [0, 2]])
    np.testing.assert_array_equal(
        lazy.compute_mask(ids), plain.compute_mask(ids)
    )
    assert both()[0].compute_mask(ids) is None
    # And they reach the next layer.
    pooled = keras.layers.GlobalAveragePooling1D()
    np.testing.assert_allclose(pooled(lazy(ids)), pooled(plain(ids)))


def test_gradients_are_the_same() -> None:
    ids = tf.constant([[1, 2], [1, 9]])
    found = []
    for layer in both():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids) ** 2)
        found.append(
            tf.convert_to_tensor(tape.gradient(loss, layer.weights)[0])
        )
    np.testing.assert_array_equal(*found)


@pytest.mark.lane
def test_layers_are_made_again_from_their_configuration() -> None:
    lazy = LazyEmbedding(
        ROWS, WIDTH, embeddings_initializer="ones", mask_zero=True, name="items"
    )
    again = keras.layers.deserialize(keras.layers.serialize(lazy))
    assert type(again) is LazyEmbedding
    assert again.get_config() == lazy.get_config()
    np.testing.assert_array_equal(again(tf.constant([1])), np.ones([1, WIDTH]))
    cloned = keras.models.clone_model(owed_noise.model())
    assert table_of(cloned) is not None


@pytest.mark.lane
def test_weights_go_from_one_layer_to_the_other(tmp_path: pathlib.Path) -> None:
    lazy, plain = owed_noise.model(), owed_noise.model(Embedding)
    owed_noise.owing(table_of(lazy))
    plain.set_weights(lazy.get_weights())
    np.testing.assert_array_equal(
        plain.predict(owed_noise.IDS, verbose=0), lazy(owed_noise.IDS)
    )
    for source, target in ((lazy, plain), (plain, lazy)):
        source.layers[1].set_weights([np.random.rand(20, 8)])
        saved = tf.train.Checkpoint(layer=source.layers[1])
        path = saved.write(str(tmp_path / "checkpoint"))
        tf.train.Checkpoint(layer=target.layers[1]).read(path)
        np.testing.assert_array_equal(
            target.get_weights()[0], source.get_weights()[0]
        )


def test_a_saved_model_is_loaded_with_lazy_noise(
    tmp_path: pathlib.Path,
) -> None:
    made = owed_noise.model()
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not table_of(loaded).noise.exists
    loaded.train_on_batch(owed_noise.IDS, owed_noise.TARGETS)
    assert table_of(loaded).noise.exists


class WithBias(LazyEmbedding):  # type: ignore[misc,valid-type]
    """A layer of a user's own."""

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        self.bias = self.add_weight(shape=(), name="bias")

    def call(self, inputs: Any) -> Any:
        return super().call(inputs) + self.bias


def test_layers_of_ones_own_are_lazy() -> None:
    layer = WithBias(owed_noise.ROWS, owed_noise.WIDTH)
    layer(tf.constant([1]))
    hidden = owed_noise.owing(table_of(layer))
    owed_noise.check(layer.get_weights()[0], table_of(layer), hidden)


def test_layers_may_be_built_in_a_function() -> None:
    layer = LazyEmbedding(ROWS, WIDTH)
    assert tf.function(lambda ids: layer(ids))(tf.constant([1])).shape == (
        1,
        WIDTH,
    )
    sequential = keras.Sequential(
        [LazyEmbedding(ROWS, WIDTH), keras.layers.Flatten()]
    )
    assert sequential(tf.constant([[1, 2]])).shape == (1, 2 * WIDTH)


def test_given_weights_are_the_first_values() -> None:
    layer = LazyEmbedding(ROWS, WIDTH, weights=[VALUES])
    np.testing.assert_array_equal(layer(tf.constant([3])), VALUES[3:4])


REFUSED: dict[str, Any] = {
    "embeddings_regularizer": {"embeddings_regularizer": "l2"},
    "embeddings_constraint": {"embeddings_constraint": "non_neg"},
    "activity_regularizer": {"activity_regularizer": "l2"},
    "bfloat16": {"dtype": "bfloat16"},
    "float64": {"dtype": "float64"},
    "weights were given": {"weights": [VALUES], "denoise": True},
}
if KERAS_3:
    REFUSED["lora_rank"] = {"lora_rank": 2}
    REFUSED["int8"] = {"dtype": "int8_from_float32"}
else:
    REFUSED["sparse"] = {"sparse": True}
    REFUSED["use_one_hot_matmul"] = {"use_one_hot_matmul": True}


@pytest.mark.parametrize("what", REFUSED)
def test_what_lazy_noise_does_not_allow_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=what) as refused:
        LazyEmbedding(ROWS, WIDTH, **REFUSED[what]).build((None,))
    assert any(
        advice in str(refused.value)
        for advice in ("Leave it out", "Give it", "give an init", "Load the")
    )


def test_arguments_in_order_are_looked_at_too() -> None:
    with pytest.raises(ValueError, match="embeddings_regularizer"):
        LazyEmbedding(ROWS, WIDTH, "uniform", "l2")


def test_sparse_ids_are_refused() -> None:
    with pytest.raises((TypeError, ValueError), match="SparseTensor"):
        both()[0](tf.sparse.from_dense([[1, 2]]))


@pytest.mark.skipif(not KERAS_3, reason="only Keras 3 has these methods")
def test_methods_that_would_change_the_table_are_refused() -> None:
    lazy, _ = both()
    with pytest.raises(ValueError, match="was to be quantized"):
        lazy.quantize("int8")
    with pytest.raises(ValueError, match="enable_lora"):
        lazy.enable_lora(2)
    with pytest.raises(ValueError, match="another table"):
        lazy.stateless_call([tf.zeros_like(VALUES)], [], tf.constant([1]))
    np.testing.assert_array_equal(lazy(tf.constant([3])), VALUES[3:4])
