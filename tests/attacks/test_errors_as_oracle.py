"""Attack: give somebody data that make a step fail, and see whether it does.

Whether a step is taken, what it is charged and whether it raises must be the
same for all values of the same shapes. An example whose gradient is no number
counts as absent: what is released is what would be without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp

keras = tf.keras
layers = keras.layers

X = np.random.RandomState(0).randn(8, 4).astype("float32")
IDS = np.arange(16, dtype="int32").reshape(8, 2)
Y = X.sum(1, keepdims=True)
TARGET = 3  # Whose data the attack makes up.
EXTREME = [
    *(np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, 1e30, 1e-30),
]


class Trained:
    """A model that takes the same step with the same noise over and over."""

    def __init__(self, loss: str) -> None:
        x, ids = keras.Input((4,)), keras.Input((2,), dtype="int32")
        rows = layers.Flatten()(layers.Embedding(20, 3)(ids))
        hidden = layers.Dense(5, "relu")(layers.Concatenate()([x, rows]))
        last = "sigmoid" if loss == "binary_crossentropy" else None
        self.model = keras.Model([x, ids], layers.Dense(1, last)(hidden))
        self.optimizer = tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=0.3,
            expected_batch_size=8,
            seed=0,
        )
        self.model.compile(self.optimizer, loss)
        self.start = [w.copy() for w in self.model.get_weights()]

    def step(self, x: np.ndarray, y: np.ndarray, weight: Any) -> np.ndarray:
        """Weights after a step, which is charged once and raises nothing."""
        self.model.set_weights(self.start)
        self.optimizer._private.keys._count.assign(0)
        before = self.optimizer.compositions_spent
        self.model.train_on_batch([x, IDS], y, sample_weight=weight)
        assert self.optimizer.compositions_spent == before + 1
        found = np.concatenate([np.ravel(w) for w in self.model.get_weights()])
        assert np.isfinite(found).all()
        return found


@pytest.fixture(scope="module", params=["mse", "binary_crossentropy"])
def trained(request: pytest.FixtureRequest) -> Trained:
    return Trained(request.param)


def _attacks() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    ones = np.ones(8, "float32")
    found = {}
    for value in EXTREME:
        for name in ("a feature", "all features", "label", "weight"):
            x, y, weight = X.copy(), Y.copy(), ones.copy()
            if name == "a feature":
                x[TARGET, 1] = value
            elif name == "all features":
                x[TARGET] = value
            elif name == "label":
                y[TARGET] = value
            else:
                weight[TARGET] = value
            found[f"{value} as {name}"] = x, y, weight
    return found


def test_no_value_makes_a_step_fail(trained: Trained) -> None:
    """Nor is any worth more than its clip norm: 1, of 8 examples, times 0.1."""
    without = np.ones(8, "float32")
    without[TARGET] = 0.0
    absent = trained.step(X, Y, without)
    same = trained.step(X, Y, without)
    np.testing.assert_array_equal(absent, same)  # As the noise is the same.
    reached = []
    for name, data in _attacks().items():
        moved = np.linalg.norm(trained.step(*data) - absent)
        assert moved <= 0.1 / 8 * (1 + 1e-4), name
        reached.append(moved)
    # Some of them do all they can: the bound is the right one.
    assert max(reached) > 0.1 / 8 * 0.99


def test_who_is_no_number_counts_as_absent(trained: Trained) -> None:
    without = np.ones(8, "float32")
    without[TARGET] = 0.0
    absent = trained.step(X, Y, without)
    for value in (np.nan, np.inf):
        x = X.copy()
        x[TARGET] = value
        y = Y.copy()
        y[TARGET] = value
        for features, labels in ((x, Y), (X, y)):
            for weights in (without, np.ones(8, "float32")):
                found = trained.step(features, labels, weights)
                np.testing.assert_array_equal(found, absent)
    everybody = np.full_like(X, np.nan)
    assert not np.array_equal(
        trained.step(everybody, Y, np.ones(8, "float32")),
        np.concatenate([np.ravel(w) for w in trained.start]),
    )  # A batch of no numbers still gives noise.


def test_without_the_guard_a_value_would_be_seen(trained: Trained) -> None:
    """What an ordinary optimizer does with the same data."""
    model = keras.models.clone_model(trained.model)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = X.copy()
    x[TARGET] = np.nan
    model.train_on_batch([x, IDS], Y)
    assert not np.isfinite(model.get_weights()[1]).all()


def test_errors_of_ids_out_of_range_are_loud_and_charged() -> None:
    """TensorFlow's, and it names the id: docs/sharp_edges.md says so."""
    for table in (layers.Embedding, tsdp.layers.LazyEmbedding):
        ids = keras.Input((2,), dtype="int32")
        rows = layers.Flatten()(table(20, 3)(ids))
        model = keras.Model(ids, layers.Dense(1)(rows))
        optimizer = tsdp.DPSparseOptimizer(
            keras.optimizers.SGD(0.1),
            noise_multiplier=1.0,
            expected_batch_size=8,
        )
        model.compile(optimizer, "mse", jit_compile=False)
        model.train_on_batch(IDS, Y)
        before = [w.copy() for w in model.get_weights()]
        bad = IDS.copy()
        bad[TARGET, 0] = 20
        with pytest.raises(tf.errors.InvalidArgumentError, match="20"):
            model.train_on_batch(bad, Y)
        for left, right in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(left, right)
        spent = optimizer.compositions_spent
        model.train_on_batch(IDS, Y)  # And it can go on.
        assert optimizer.compositions_spent == spent + 1
