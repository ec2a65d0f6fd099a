"""Canaries in models of one's own, and whether missing noise is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from benchmarks.audit import lazy_read_skipped, noise_cut

keras = tf.keras

WIDTH, OTHERS = 4, 8
# A canary on such a label always has a gradient of the clip norm.
FAR = [1e3, 0.0, 0.0, 0.0]
DATA = (
    np.arange(OTHERS, dtype="int32")[:, np.newaxis],
    np.zeros((OTHERS, WIDTH), "float32"),
)
# Of bounds that come near the truth, where there is no delta.
SURE = 1 - 1e-9


def table_model(count: int, optimizer: Any, layer: Any = None) -> Any:
    """Gives the row of an id; there is nothing else to train."""
    layer = layer or keras.layers.Embedding(OTHERS + count, WIDTH, name="items")
    model = keras.Sequential(
        [keras.Input((1,), dtype="int32"), layer, keras.layers.Flatten()]
    )
    model.compile(optimizer, loss="mse")
    # Else the step is traced twice, the first time for variables alone.
    optimizer.build(model.trainable_variables)
    return model


def audited(
    count: int,
    *,
    mechanism: Any = None,
    lazy: bool = False,
    denoise: bool = False,
    epsilon: float = 1.0,
    passes: int = 1,
    confidence: float = 0.95,
) -> tsdp.audit.AuditReport:
    mechanism = mechanism or tsdp.Gaussian()
    laplace = mechanism.noise_family == "laplace"
    size = OTHERS + count
    sampling = tsdp.EpochSampling(
        num_examples=size, batch_size=size, epochs=passes
    )
    plan = tsdp.PrivacyPlan(
        epsilon=epsilon,
        delta=0.0 if laplace else 1e-7,
        sampling=sampling,
        noise=mechanism.noise_family,
    )
    layer, tables = None, None
    if lazy or denoise:
        layer = tsdp.layers.LazyEmbedding(size, WIDTH, denoise=denoise)
        tables = tsdp.DualAveraging(float(size)) if denoise else None
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(float(size)),
        plan,
        mechanism=mechanism,
        tables=tables,
    )
    model = table_model(count, optimizer, layer)
    canaries = tsdp.audit.Canaries(model, count=count, label=FAR)
    model.fit(
        sampling.dataset(canaries.add_to(DATA)),
        epochs=passes,
        callbacks=[tsdp.PrivacyBudget()],
        verbose=0,
    )
    return canaries.report(confidence=confidence)


MECHANISMS = {
    "gaussian": {},
    "lazy": {"lazy": True},
    "dual averaging": {"denoise": True},
    "projection": {"mechanism": tsdp.Projection()},
    "threshold": {"mechanism": tsdp.Threshold(untouched_rows=400)},
    "partitions": {"mechanism": tsdp.PartitionSelection(threshold=1.0)},
    "frequencies": {
        "mechanism": tsdp.FrequencySelection(rows={"items": range(1200)})
    },
    "laplace": {"mechanism": tsdp.Laplace()},
    "sensing": {"mechanism": tsdp.CompressedSensing(measurements=300)},
}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            options,
            id=name,
            marks=[] if name in ("gaussian", "lazy") else [pytest.mark.once],
        )
        for name, options in MECHANISMS.items()
    ],
)
def test_every_mechanism_can_be_audited(options: dict) -> None:
    """And passes. By chance it does not with probability below 1e-9.

    With a delta, a bound above 4 takes 596 guesses of which 594 are right, or
    1192 and 1183. With Gaussian noise on all rows 73 % and 65 % are; thresholds
    tell less of the same noise. Laplace noise is as telling as epsilon allows:
    there the confidence is what it takes.
    """
    mechanism = options.get("mechanism", tsdp.Gaussian())
    pure = mechanism.noise_family == "laplace"
    report = audited(
        1200 - OTHERS,
        epsilon=4.0,
        confidence=SURE if pure else 0.95,
        **options,
    )
    assert not report.violation
    if mechanism in (tsdp.Gaussian(), tsdp.Laplace()):
        # 65 % of all guesses are right, or more; 55 % would do.
        assert report.lower_bound > 0
    assert report.stated_epsilon == pytest.approx(4.0, rel=1e-3)
    assert report.own_share == pytest.approx(1.0)
    assert report.moved > 0
    words = " ".join(str(report).split())
    assert "no violation found" in words
    assert "That is no proof" in words


def test_missing_noise_is_found() -> None:
    """Without a seed, not found with probability below 1e-11.

    Of the 625 largest and smallest of 20,000 scores 84 % are guessed right, as
    they are normal and 1/1.4 of a standard deviation apart; 77 % would refute
    an epsilon of 1.
    """
    with noise_cut(0.3):
        report = audited(20_000)
    assert report.violation
    assert "VIOLATION" in str(report)


@pytest.mark.once
def test_missing_laplace_noise_is_found() -> None:
    """Without a seed, not found with probability below 1e-100.

    Of 4000 guesses 91 % are right, and 76 % would refute an epsilon of 1.
    """
    with noise_cut(0.3):
        report = audited(4000, mechanism=tsdp.Laplace())
    assert report.violation


def test_a_lazy_read_that_is_skipped_is_found() -> None:
    """Without a seed, not found with probability below 1e-100.

    Of 64 steps the last one's noise is left, an eighth. 93 % of the 1000
    largest and smallest of 4000 scores are guessed right; 76 % would refute
    an epsilon of 1.
    """
    with lazy_read_skipped():
        report = audited(4000, lazy=True, passes=64)
    assert report.violation


def two_towers(count: int, **options: Any) -> tuple[Any, Any, Any]:
    """A recommender with features by name, and its data."""
    keras.utils.set_random_seed(0)
    inputs = {
        name: keras.Input((), dtype="int32", name=name)
        for name in ("user", "item")
    }
    towers = [
        keras.layers.Embedding(50 + count, 8, name="users")(inputs["user"]),
        keras.layers.Embedding(40, 8, name="goods")(inputs["item"]),
    ]
    hidden = keras.layers.Dense(8, "relu")(keras.layers.concatenate(towers))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    sampling = tsdp.PoissonSampling(
        num_examples=300 + count, batch_size=100, steps=3
    )
    plan = tsdp.PrivacyPlan(epsilon=2.0, delta=1e-5, sampling=sampling)
    model.compile(
        tsdp.DPSparseOptimizer(
            keras.optimizers.Adam(0.01), plan, mechanism=tsdp.Projection()
        ),
        loss="binary_crossentropy",
    )
    random = np.random.default_rng(0)
    features = {
        "user": random.integers(50, size=300).astype("int32"),
        "item": random.integers(40, size=300).astype("int32"),
    }
    labels = random.integers(2, size=(300, 1)).astype("float32")
    return model, sampling, (features, labels)


def test_two_lines_for_a_model_of_ones_own(tmp_path: Any) -> None:
    """A saved model can be audited as well.

    So few canaries refute an epsilon of 2 only if 41 or more are guessed and
    nearly all guesses right: in 3 steps, with probability below 1e-6.
    """
    model, sampling, data = two_towers(60)
    canaries = tsdp.audit.Canaries(model, "user", count=60)
    x, y, weight = canaries.add_to(data)
    model.fit(sampling.dataset((x, y, weight)), verbose=0)
    report = canaries.report()
    assert not report.violation
    assert report.neighbouring_relation == "add_or_remove_one"
    assert report.delta == 1e-5
    assert 0.05 < report.own_share < 1.0

    # Ids that nobody has, everything else that of some example.
    assert len(y) == len(weight) == 360
    np.testing.assert_array_equal(x["user"][300:], np.arange(50, 110))
    np.testing.assert_array_equal(x["user"][:300], data[0]["user"])
    assert x["user"].dtype == np.int32
    assert set(x["item"][300:]) <= set(data[0]["item"])
    np.testing.assert_array_equal(weight[:300], 1.0)
    np.testing.assert_array_equal(weight[300:] > 0, canaries.included)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(canaries.scores(loaded), canaries.scores())
    assert canaries.report(loaded).lower_bound == (
        canaries.report().lower_bound
    )


def test_scores_without_noise_are_the_coins() -> None:
    """Rows of canaries that are out stay, others move to where they push."""
    optimizer = tsdp.DPSparseOptimizer(
        keras.optimizers.SGD(1.0), noise_multiplier=0.0, expected_batch_size=1
    )
    model = table_model(30, optimizer)
    canaries = tsdp.audit.Canaries(model, count=30, label=FAR, seed=0)
    x, y, weight = canaries.add_to(DATA)
    model.fit(x, y, sample_weight=weight, batch_size=38, verbose=0)
    np.testing.assert_allclose(canaries.scores(), canaries.included, atol=1e-3)
    report = canaries.report(epsilon=1.0, delta=0.0)
    assert report.violation
    assert report.moved == canaries.included.sum()
    with pytest.raises(ValueError, match="Pass epsilon and delta"):
        canaries.report()


def test_ids_that_a_vocabulary_knows() -> None:
    names = np.array([f"user {n}" for n in range(20)])
    own = [f"a canary of some length, number {n}" for n in range(12)]
    lookup = keras.layers.StringLookup(vocabulary=[*names, *own])
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            lookup,
            keras.layers.Embedding(40, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", loss="mse")
    data = (names[:, np.newaxis], np.ones((20, 1), "float32"))
    with pytest.raises(ValueError, match="Pass ids="):
        tsdp.audit.Canaries(model, count=12).add_to(data)
    unknown = [f"nobody {n}" for n in range(12)]  # All on one row.
    with pytest.raises(ValueError, match="0 of 12 canaries have a row"):
        tsdp.audit.Canaries(model, count=12, ids=unknown).add_to(data)
    canaries = tsdp.audit.Canaries(model, count=12, ids=own)
    x, _, _ = canaries.add_to(data)
    assert x[20:, 0].tolist() == own


def test_users() -> None:
    """Each canary is a user of its own. 20 of them cannot refute 2."""
    ids = np.repeat(np.arange(10, dtype="int32"), 3)[:, np.newaxis]
    labels = np.zeros((30, WIDTH), "float32")
    sampling = tsdp.UserSampling(
        num_users=10 + 20, users_per_batch=15, examples_per_user=2, steps=2
    )
    plan = tsdp.PrivacyPlan(epsilon=2.0, delta=1e-5, sampling=sampling)
    optimizer = tsdp.DPSparseOptimizer(keras.optimizers.SGD(1.0), plan)
    model = table_model(30, optimizer)
    canaries = tsdp.audit.Canaries(model, count=20, label=FAR)
    data = canaries.add_to((ids, labels))
    users = canaries.user_ids(np.repeat(np.array(list("abcdefghij")), 3))
    assert len(set(users[:30])) == 10
    assert len(set(users[30:]) - set(users[:30])) == 20
    model.fit(sampling.dataset(data, users), verbose=0)
    assert not canaries.report().violation
    canaries._users = False
    with pytest.raises(ValueError, match=r"canaries\.user_ids"):
        canaries.report()


@pytest.fixture(scope="module")
def sgd_model() -> Any:
    return table_model(30, keras.optimizers.SGD(1.0))


@pytest.mark.once
def test_coins_are_the_operating_systems(sgd_model: Any) -> None:
    """30 of them are the same twice with probability 2^-30."""
    made = [tsdp.audit.Canaries(sgd_model, count=30) for _ in range(2)]
    seeded = [tsdp.audit.Canaries(sgd_model, count=30, seed=1) for _ in "ab"]
    for canaries in made + seeded:
        canaries.add_to(DATA)
    first, second = (canaries.included for canaries in made)
    assert (first != second).any()
    np.testing.assert_array_equal(seeded[0].included, seeded[1].included)


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({"count": 31}, DATA, "30 of the table's 38 rows unused"),
        ({"features": "user"}, DATA, "features names 'user'"),
        ({"features": 1}, DATA, "a column below 1"),
        ({}, ({"user": DATA[0]}, DATA[1]), r"of \[\"x\['user'\]\"\]"),
        ({"ids": [3, 3, 4]}, DATA, "begins with 3 different ones"),
        ({"ids": [8, 9]}, DATA, "2 values of shape"),
        ({}, (DATA[0], DATA[1][:3]), "the same number of rows"),
        ({"label": 1.0}, (DATA[0],), "0 arrays of labels"),
    ],
)
def test_refuses_to_add(
    sgd_model: Any, options: dict, data: Any, message: str
) -> None:
    canaries = tsdp.audit.Canaries(sgd_model, **{"count": 3, **options})
    with pytest.raises(ValueError, match=message):
        canaries.add_to(data)


@pytest.mark.once
def test_refuses(sgd_model: Any) -> None:
    make = tsdp.audit.Canaries
    with pytest.raises(ValueError, match="has no variables yet"):
        make(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(TypeError, match=r"count is 1\.5"):
        make(sgd_model, count=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight is 0"):
        make(sgd_model, weight=0)
    with pytest.raises(TypeError, match="expected a mapping"):
        make(sgd_model, ["user", "item"], ids=[1, 2])
    with pytest.raises(ValueError, match="expected at least one"):
        make(sgd_model, [])
    canaries = make(sgd_model, count=3)
    with pytest.raises(ValueError, match="not been added"):
        canaries.scores()
    with pytest.raises(TypeError, match="RandomAccess"):
        canaries.add_to(tsdp.RandomAccess(lambda i: i, num_examples=3))
    canaries.add_to(DATA)
    with pytest.raises(ValueError, match="Make new Canaries"):
        canaries.add_to(DATA)
    with pytest.raises(ValueError, match="epsilon is -1"):
        canaries.report(epsilon=-1, delta=0.0)
    with pytest.raises(ValueError, match="expected a vector"):
        canaries.user_ids([[1]])


@pytest.mark.once
def test_refuses_to_report_on_a_model_that_was_not_trained() -> None:
    sampling = tsdp.EpochSampling(num_examples=11, batch_size=11, epochs=1)
    plan = tsdp.PrivacyPlan(epsilon=1.0, delta=1e-5, sampling=sampling)
    optimizer = tsdp.DPSparseOptimizer(keras.optimizers.SGD(1.0), plan)
    canaries = tsdp.audit.Canaries(table_model(3, optimizer), count=3)
    canaries.add_to(DATA)
    with pytest.raises(ValueError, match="has not been trained"):
        canaries.report()
