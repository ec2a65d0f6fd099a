"""Lazy noise trains the model that noise on all rows at every step trains.

Noise is a function here (`noise_paths`), so that both can be compared number by
number: with noise drawn after every step, and with DP-SGD written down anew.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.layers.noise_paths import freeze, rough, without_noise
from tf_sparse_dp.layers.lazy_variable import LazyVariable, lazy_variable
from tf_sparse_dp.layers.pending_noise import PendingNoise
from tf_sparse_dp.mechanisms import gaussian

keras = tf.keras
layers = keras.layers

USERS, ITEMS, WIDTH, HIDDEN = 9, 15, 3, 4
EXAMPLES = 60
CLIP_NORM = 0.5
RATE, DECAY = 0.1, 0.9
ADAM = {"learning_rate": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
UNIT = (RATE * CLIP_NORM / 8) ** 2
PATH = rough(UNIT)

SAMPLING = tsdp.VaryingPoissonSampling(
    num_examples=EXAMPLES,
    batch_sizes=(4, 8),
    steps=14,
    max_batch_sizes=(50, 60),
)
_random = np.random.RandomState(0)
DATA = {
    "user": _random.randint(0, USERS, [EXAMPLES, 1]),
    "liked": _random.randint(0, ITEMS - 4, [EXAMPLES, 3]),  # Some are rare,
    "item": _random.randint(0, ITEMS - 2, [EXAMPLES, 1]),  # and two are never.
}
LABELS = _random.randn(EXAMPLES, 1).astype("float32")


def batches() -> list[Any]:
    """Those of the sampling; and one with too few rows, which is refused.

    Always the same: for some batches a gradient is so near 0 that its rounding
    decides which way Adam goes.
    """
    with pytest.warns(tsdp.PrivacyWarning, match="repeatable"):
        data = SAMPLING.dataset((DATA, LABELS), seed=0)
    drawn = [tf.nest.map_structure(np.array, batch) for batch in data]
    drawn.insert(5, tf.nest.map_structure(lambda x: x[:7], drawn[4]))
    return drawn


def noise_multiplier(step: int) -> float:
    return 1.0 + 0.5 * (step % 3)


def shared_model() -> Any:
    """Users, and items that are looked up four times for every example."""
    inputs = {
        name: keras.Input(x.shape[1:], dtype="int64", name=name)
        for name, x in DATA.items()
    }
    users = tsdp.layers.LazyEmbedding(USERS, WIDTH, name="users")
    items = tsdp.layers.LazyEmbedding(ITEMS, WIDTH, name="items")
    user = layers.Flatten()(users(inputs["user"]))
    liked = layers.GlobalAveragePooling1D()(items(inputs["liked"]))
    item = layers.Flatten()(items(inputs["item"]))
    joined = layers.Concatenate()([user, liked, item])
    hidden = layers.Dense(HIDDEN, activation="tanh", name="hidden")(joined)
    return keras.Model(inputs, layers.Dense(1, name="score")(hidden))


def tables_of(model: Any) -> list[LazyVariable]:
    found = [lazy_variable(v) for v in model.trainable_variables]
    return [table for table in found if table is not None]


@dataclasses.dataclass
class Noise(keras.callbacks.Callback):
    """Changes the noise between steps, and draws all of it if it is asked."""

    optimizer: Any
    eager: bool
    refused: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.optimizer.noise_multiplier = noise_multiplier(self.steps)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.refused += self.optimizer.forget_refusals()[0]
        self.steps += 1
        if self.eager:
            for table in tables_of(self.model):
                table.draw_all()


def trained(
    drawn: list[Any],
    *,
    eager: bool = False,
    capacity: int = 100,
    jit_compile: bool = False,
) -> Any:
    keras.utils.set_random_seed(1)
    model = shared_model()
    for table in tables_of(model):
        table.noise = PendingNoise(table, capacity=capacity)
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.Adam(**ADAM),
        tsdp.RenyiFilter(epsilon=12.0, delta=1e-2),
        sampling=SAMPLING,
        noise_multiplier=noise_multiplier(0),
        clip_norm=CLIP_NORM,
        tables=keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(RATE, 1, DECAY)
        ),
    )
    model.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
    optimizer.build(model.trainable_variables)
    structure = tf.nest.map_structure(
        lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), drawn[0]
    )
    noise = Noise(optimizer, eager)
    data = tf.data.Dataset.from_generator(
        lambda: drawn, output_signature=structure
    )
    counted = data.apply(tf.data.experimental.assert_cardinality(len(drawn)))
    model.fit(counted, verbose=0, callbacks=[noise])
    assert (noise.steps, noise.refused) == (len(drawn), 1)
    assert optimizer.compositions_spent == len(drawn) - 1
    return model


def dense_pattern(shape: Any) -> np.ndarray:
    """Noise of dense variables: always the same, of about the right size."""
    return np.sin(np.arange(np.prod(shape)) * 1.7 + 0.3).reshape(shape)


class DenseDPSGD:
    """DP-SGD with noise on all rows at every step, example by example.

    Args:
      weights: Initial values by name.
    """

    def __init__(self, weights: dict[str, np.ndarray]):
        self.weights = {k: v.astype("float64") for k, v in weights.items()}
        self._moments = {
            k: [np.zeros(v.shape), np.zeros(v.shape)]
            for k, v in weights.items()
        }
        self._variance = 0.0
        self._taken = 0

    def step(self, batch: Any, noise: float, expected: float) -> None:
        features, labels, valid = batch
        total = {name: np.zeros(v.shape) for name, v in self.weights.items()}
        for i in np.flatnonzero(valid):
            example = {name: x[i] for name, x in features.items()}
            gradient = self._gradient(example, labels[i, 0])
            norm = np.sqrt(sum(np.square(g).sum() for g in gradient.values()))
            for name, g in gradient.items():
                total[name] += g * min(1.0, CLIP_NORM / norm)
        stddev = noise * CLIP_NORM / expected
        rate = RATE * DECAY**self._taken
        before = self._variance
        self._variance += (rate * stddev) ** 2
        self._taken += 1
        for name, value in self.weights.items():
            mean = total[name] / expected
            if name in ("users", "items"):
                at = [
                    PATH(np.arange(len(value)), WIDTH, v).numpy()
                    for v in (before, self._variance)
                ]
                value += at[1] - at[0] - rate * mean
            else:
                self._adam(name, mean + stddev * dense_pattern(value.shape))

    def _gradient(self, example: Any, label: float) -> dict[str, np.ndarray]:
        w = {name: tf.constant(v) for name, v in self.weights.items()}
        with tf.GradientTape() as tape:
            tape.watch(list(w.values()))
            user = tf.reshape(tf.gather(w["users"], example["user"]), [-1])
            liked = tf.reduce_mean(tf.gather(w["items"], example["liked"]), 0)
            item = tf.reshape(tf.gather(w["items"], example["item"]), [-1])
            joined = tf.concat([user, liked, item], 0)[tf.newaxis]
            hidden = tf.tanh(joined @ w["hidden/kernel"] + w["hidden/bias"])
            score = hidden @ w["score/kernel"] + w["score/bias"]
            loss = tf.square(score[0, 0] - tf.cast(label, tf.float64))
        gradients = tape.gradient(loss, w)
        return {
            k: tf.convert_to_tensor(g).numpy() for k, g in gradients.items()
        }

    def _adam(self, name: str, gradient: np.ndarray) -> None:
        first, second = self._moments[name]
        first += (gradient - first) * (1 - ADAM["beta_1"])
        second += (gradient**2 - second) * (1 - ADAM["beta_2"])
        rate = ADAM["learning_rate"] / (1 - ADAM["beta_1"] ** self._taken)
        rate *= np.sqrt(1 - ADAM["beta_2"] ** self._taken)
        self.weights[name] -= rate * first / (np.sqrt(second) + ADAM["epsilon"])


def weights_of(model: Any) -> dict[str, np.ndarray]:
    found = {}
    for name in ("users", "items"):
        found[name] = model.get_layer(name).get_weights()[0]
    for name in ("hidden", "score"):
        kernel, bias = model.get_layer(name).get_weights()
        found[f"{name}/kernel"], found[f"{name}/bias"] = kernel, bias
    return found


def farthest(some: dict[str, Any], others: dict[str, Any]) -> float:
    assert some.keys() == others.keys()
    return max(np.abs(some[name] - others[name]).max() for name in some)


@pytest.fixture(scope="module")
def drawn() -> list[Any]:
    return batches()


@pytest.fixture(scope="module")
def expected(drawn: list[Any]) -> dict[str, np.ndarray]:
    keras.utils.set_random_seed(1)
    reference = DenseDPSGD(weights_of(shared_model()))
    sizes = {k.rows: k.expected_batch_size for k in SAMPLING.step_kinds}
    for number, batch in enumerate(drawn):
        if len(batch[1]) in sizes:
            reference.step(
                batch, noise_multiplier(number), sizes[len(batch[1])]
            )
    return reference.weights


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze(monkeypatch, PATH)
    monkeypatch.setattr(
        gaussian,
        "with_noise_together",
        lambda totals, key, stddev: [
            total + tf.cast(stddev * dense_pattern(total.shape), total.dtype)
            for total in totals
        ],
    )


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"capacity": 4}, marks=pytest.mark.lane),
        {"eager": True},
        {"capacity": 4, "jit_compile": True},
    ],
    ids=str,
)
def test_lazy_is_dense(drawn: Any, expected: Any, options: Any) -> None:
    model = trained(drawn, **options)
    assert not any(bool(table.noise.exists) for table in tables_of(model))
    assert farthest(weights_of(model), expected) < 1e-5


@pytest.mark.usefixtures("frozen")
def test_the_last_draw_is_needed_and_enough(
    monkeypatch: pytest.MonkeyPatch, drawn: Any, expected: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LazyVariable, "draw_all", lambda self: None)
        model = trained(drawn)
    for table, name in zip(tables_of(model), ("users", "items"), strict=True):
        assert np.abs(without_noise(table) - expected[name]).max() > 1e-3
    assert farthest(weights_of(model), expected) < 1e-5


@pytest.mark.usefixtures("frozen")
def test_a_lookup_that_misses_noise_is_another_model(
    monkeypatch: pytest.MonkeyPatch, drawn: Any, expected: Any
) -> None:
    monkeypatch.setattr(
        LazyVariable,
        "_drawn",
        lambda self, ids=None: (
            [] if not tf.executing_eagerly() else [self.noise.draw_all()]
        ),
    )
    model = trained(drawn)
    assert farthest(weights_of(model), expected) > 1e-4
