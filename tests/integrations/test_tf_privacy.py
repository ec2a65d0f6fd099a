"""Mechanisms in the query framework of TensorFlow Privacy."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tf_sparse_dp as tsdp
from tests.mechanisms.dense_definitions import row_threshold
from tests.noise_claims import (
    ENOUGH,
    FALSE_ALARM,
    UNSEEDED,
    assert_stddev,
    distribution_refuted,
    independence_refuted,
)
from tf_sparse_dp.mechanisms import Automatic, Mechanism

tf_privacy = pytest.importorskip(
    "tf_sparse_dp.integrations.tf_privacy",
    reason="TensorFlow Privacy is for Python up to 3.11; lanes do without",
)
nested_query = pytest.importorskip(
    "tensorflow_privacy.privacy.dp_query.nested_query"
)
normalized_query = pytest.importorskip(
    "tensorflow_privacy.privacy.dp_query.normalized_query"
)
test_utils = pytest.importorskip(
    "tensorflow_privacy.privacy.dp_query.test_utils"
)
run_query = test_utils.run_query

Variable = tf_privacy.Variable
KERAS_3 = tsdp.DPSparseOptimizer.__module__.endswith("keras3")
ROOT = pathlib.Path(__file__).parents[2]
once = pytest.mark.once
TABLE = Variable(shape=(2000, 4), sparse=True, lookups=2, name="model/items")
SMALL = Variable(shape=(50, 3), sparse=True, lookups=1, name="model/items")


def query(mechanism: Mechanism | None = None, **others: Any) -> Any:
    return tf_privacy.MechanismSumQuery(
        mechanism or tsdp.Gaussian(),
        **{
            "clip_norm": 0.5,
            "noise_multiplier": 2.0,
            "expected_batch_size": 4,
            "seed": 3,
            **others,
        },
    )


def preprocessed(a_query: Any, record: Any) -> Any:
    params = a_query.derive_sample_params(a_query.initial_global_state())
    return a_query.preprocess_record(params, record)


def noise_of(a_query: Any, record: Any) -> Any:
    """What is released for a sample of one record, without the record."""
    result, _ = run_query(a_query, [record])
    clipped = preprocessed(a_query, record)
    return tf.nest.map_structure(lambda r, c: (r - c).numpy(), result, clipped)


# Noise.


@once
def test_gaussian_noise_has_the_stddev_of_the_event() -> None:
    record = {"a": tf.ones([ENOUGH // 2]), "b": tf.ones([3, ENOUGH // 4])}
    noise = noise_of(query(), record)
    sample = np.concatenate([noise["a"].ravel(), noise["b"].ravel()])
    assert_stddev(sample, 1.0)
    assert not distribution_refuted(sample)


@once
def test_laplace_noise_has_the_scale_of_the_event() -> None:
    laplace = query(tsdp.Laplace(), noise_multiplier=1.5)
    record = [tf.ones([ENOUGH])]
    clipped = preprocessed(laplace, record)
    bound = 0.5 * math.sqrt(ENOUGH)
    assert np.abs(clipped[0]).sum() == pytest.approx(bound, rel=1e-4)
    (sample,) = noise_of(laplace, record)

    def refuted(scale: float) -> bool:
        """The sum of n absolute values over their scale is Gamma(n)."""
        total = np.abs(sample.astype("float64")).sum() / scale
        tail = stats.gamma(sample.size).cdf(total)
        return 2 * min(tail, 1 - tail) < FALSE_ALARM

    assert not refuted(1.5 * bound)
    assert refuted(0.9 * 1.5 * bound)
    assert refuted(1.1 * 1.5 * bound)
    law = stats.laplace(scale=1.5 * bound)
    assert stats.kstest(sample, law.cdf).pvalue > FALSE_ALARM


@once
def test_no_noise_twice() -> None:
    """Over rounds, tensors, parts of a nested query and copies."""
    one = query()
    both = nested_query.NestedSumQuery([one, one])
    vector = tf.zeros([ENOUGH])
    state, drawn = both.initial_global_state(), []
    for _ in range(2):
        found, state = run_query(both, [[(vector, vector), vector]], state)
        drawn += [part.numpy() for part in tf.nest.flatten(found)]
    fresh = query(seed=None)
    for another in (fresh, copy.deepcopy(fresh), query(seed=None)):
        drawn.append(run_query(another, [vector])[0].numpy())
    for place, left in enumerate(drawn):
        assert_stddev(left, 1.0, UNSEEDED)
        for right in drawn[:place]:
            assert not independence_refuted(left, right, 1.0, UNSEEDED)
    assert independence_refuted(drawn[0], drawn[0], 1.0, UNSEEDED)


@once
def test_each_run_of_a_traced_release_has_noise_of_its_own() -> None:
    a_query = query()
    traces = []

    @tf.function
    def release(records: tf.Tensor) -> tf.Tensor:
        traces.append(1)
        state = a_query.initial_global_state()
        params = a_query.derive_sample_params(state)
        sample = a_query.initial_sample_state(
            tf.TensorSpec(records.shape[1:], records.dtype)
        )
        for record in records:  # A loop of the graph.
            sample = a_query.accumulate_record(params, sample, record)
        return a_query.get_noised_result(sample, state)[0]

    records = tf.eye(3, ENOUGH)
    exact = tf.reduce_sum(records, 0).numpy() / 2  # They are clipped to 0.5.
    drawn = [release(records).numpy() - exact for _ in range(2)]
    assert len(traces) == 1
    assert_stddev(drawn[0], 1.0)
    assert_stddev(drawn[1], 1.0)
    assert not independence_refuted(*drawn, 1.0)
    eager, _ = run_query(query(), list(records))
    np.testing.assert_allclose(eager - exact, drawn[0], atol=1e-6)


# Clipping.


RECORDS = [
    {"a": np.float32([3, 0, 4]), "b": (np.float32([[12.0]]), np.float32(0))},
    {"a": np.float32([0.1, 0, 0]), "b": (np.float32([[0]]), np.float32(0.2))},
    {"a": np.zeros(3, "float32"), "b": (np.float32([[0]]), np.float32(0))},
]


def l2(record: Any) -> float:
    return math.sqrt(sum(np.square(t).sum() for t in tf.nest.flatten(record)))


@once
def test_records_are_clipped_over_all_tensors_together() -> None:
    total: Any = tf.nest.map_structure(np.zeros_like, RECORDS[0])
    for record in RECORDS:
        clipped = preprocessed(query(), record)
        factor = min(1.0, 0.5 / max(l2(record), 1e-9))
        tf.nest.map_structure(
            lambda c, r, f=factor: np.testing.assert_allclose(
                c, f * r, rtol=1e-6
            ),
            clipped,
            record,
        )
        total = tf.nest.map_structure(lambda t, c: t + c, total, clipped)
    result, _ = run_query(query(noise_multiplier=0), RECORDS)
    tf.nest.map_structure(
        lambda r, t: np.testing.assert_allclose(r, t, rtol=1e-6), result, total
    )


@once
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_record_that_is_not_finite_counts_as_zero(bad: float) -> None:
    record = [tf.constant([bad, 1.0]), tf.ones([2])]
    assert l2(preprocessed(query(), record)) == 0


@once
def test_sparse_records_are_clipped_by_what_they_add_up_to() -> None:
    slices = tf.IndexedSlices(
        tf.constant([[3.0], [3.0], [8.0]]),
        tf.constant([1, 1, 2]),
        tf.constant([4, 1]),
    )
    silent = query(noise_multiplier=0)
    assert silent.initial_sample_state([slices])[0].shape == [4, 1]
    ((result,), _) = run_query(silent, [[slices], [tf.ones([4, 1]) / 8]])
    expected = np.array([0, 0.3, 0.4, 0]) + 1 / 8
    np.testing.assert_allclose(result[:, 0], expected, rtol=1e-6)


@once
def test_float64_stays_float64() -> None:
    result, _ = run_query(query(), [tf.ones([2], tf.float64)])
    assert result.dtype == tf.float64


@once
@pytest.mark.parametrize(
    ("record", "error", "words"),
    [
        (tf.ones([2], tf.float16), TypeError, "float32 or float64"),
        (tf.ones([2], tf.bfloat16), TypeError, "float32 or float64"),
        (tf.ones([2], tf.int32), TypeError, "float32 or float64"),
        ([tf.ones([2]), None], TypeError, "NoneType"),
        (tf.sparse.eye(2), TypeError, "SparseTensor"),
        (tf.ragged.constant([[1.0]]), TypeError, "RaggedTensor"),
    ],
    ids=str,
)
def test_records_that_are_refused(
    record: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        query().initial_sample_state(record)
    with pytest.raises(error, match=words):
        preprocessed(query(), record)
    with pytest.raises(error, match=words):
        query().get_noised_result(record, ())


@once
def test_shapes_have_to_be_known() -> None:
    spec = tf.TensorSpec([None], tf.float32)
    with pytest.raises(ValueError, match="known while tracing"):
        query().initial_sample_state(spec)
    with pytest.raises(ValueError, match="known while tracing"):
        tf.function(lambda x: preprocessed(query(), x)).get_concrete_function(
            spec
        )


# Tables.


@once
def test_threshold_keeps_signal_and_little_noise() -> None:
    a_query = query(
        tsdp.Threshold(untouched_rows=40), clip_norm=1.0, variables=[TABLE]
    )
    record = np.zeros(TABLE.shape, "float32")
    record[7] = 0.5  # Norm 1: 200 such records are far above the threshold.
    clipped = preprocessed(a_query, record)
    state = a_query.initial_sample_state(clipped)
    rows = []
    for _ in range(10):
        found, _, _ = a_query.get_noised_result(state + 200 * clipped, ())
        norms = np.linalg.norm(found, axis=1)
        threshold = row_threshold(40 / 2000, 2.0, 4)
        assert abs(norms[7] - (200 - threshold)) < 7 * 2.0
        rows.append(np.count_nonzero(np.delete(norms, 7)))
    test = stats.binomtest(sum(rows), 10 * 1999, 40 / 2000)
    assert test.pvalue > FALSE_ALARM
    assert stats.binomtest(sum(rows), 19990, 60 / 2000).pvalue < FALSE_ALARM


@once
@pytest.mark.parametrize("geometry", ["rows", "coordinates"])
def test_projection_ends_on_its_ball(geometry: str) -> None:
    a_query = query(
        tsdp.Projection(geometry=geometry),
        variables=[Variable(shape=(3,)), TABLE],
    )
    (dense, found), _ = run_query(
        a_query, [[tf.ones([3]), tf.ones(TABLE.shape)]]
    )
    sizes = np.abs(found)
    radius = 0.5 * math.sqrt(2 * 4) * 4
    if geometry == "rows":
        sizes, radius = np.linalg.norm(found, axis=1), 0.5 * math.sqrt(2) * 4
    assert sizes.sum() == pytest.approx(radius, rel=1e-2)
    assert dense.numpy().all()


@once
def test_frequency_selection_adds_noise_to_its_rows_alone() -> None:
    mechanism = tsdp.FrequencySelection(rows={"items": [2, 30]})
    a_query = query(mechanism, variables=[SMALL])
    found, _ = run_query(a_query, [tf.ones(SMALL.shape)])
    assert np.flatnonzero(found.numpy().any(1)).tolist() == [2, 30]


@once
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_automatic_is_clipped_and_released_by_what_it_chooses(
    noise: str,
) -> None:
    automatic = query(Automatic(noise=noise), variables=[SMALL])
    mechanism: Mechanism = tsdp.Gaussian()
    if noise == "laplace":
        mechanism = tsdp.Projection(geometry="coordinates", noise="laplace")
    chosen = query(mechanism, variables=[SMALL])
    record = tf.ones(SMALL.shape)
    np.testing.assert_array_equal(
        preprocessed(automatic, record), preprocessed(chosen, record)
    )
    np.testing.assert_array_equal(
        run_query(automatic, [record])[0], run_query(chosen, [record])[0]
    )


# What is refused.


class Rotating(tsdp.Gaussian):
    """Clips in a way of its own."""

    def clipped(self, terms: Any, key: Any, facts: Any, **others: Any) -> Any:
        return super().clipped(terms, key, facts, **others)


CHOSEN_PRIVATELY = tsdp.FrequencySelection(
    rows={"items": [0]}, spent_epsilon=0.1, spent_delta=1e-7
)


@once
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mechanism": tsdp.PartitionSelection()}, "sum of clipped records"),
        ({"mechanism": tsdp.CompressedSensing()}, "sum of clipped records"),
        ({"mechanism": Rotating()}, "sum of clipped records"),
        ({"mechanism": "auto"}, "expected a mechanism"),
        (
            {"mechanism": CHOSEN_PRIVATELY, "variables": [SMALL]},
            "made privately",
        ),
        ({"mechanism": tsdp.Threshold()}, "is for tables"),
        (
            {"mechanism": tsdp.Projection(), "variables": [Variable(shape=())]},
            "is for tables",
        ),
        (
            {
                "mechanism": tsdp.FrequencySelection(rows={"users": [0]}),
                "variables": [SMALL],
            },
            "has 0 entries",
        ),
        (
            {
                "mechanism": tsdp.Projection(),
                "variables": [Variable(shape=(9, 2), sparse=True)],
            },
            "is not known",
        ),
        ({"variables": [(50, 3)]}, "expected a Variable"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"clip_norm": tf.constant(1.0)}, "Python number"),
        ({"noise_multiplier": -1}, "noise_multiplier=-1"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
        ({"expected_batch_size": math.inf}, "expected_batch_size=inf"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_arguments_that_are_refused(arguments: dict, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        query(**arguments)


@once
def test_records_have_the_shapes_of_the_variables() -> None:
    a_query = query(tsdp.Laplace(), variables=[SMALL])
    for record in ([tf.ones([3, 50])], [tf.ones([50, 3])] * 2):
        with pytest.raises(ValueError, match="one Variable for each tensor"):
            preprocessed(a_query, record)
        with pytest.raises(ValueError, match="one Variable for each tensor"):
            a_query.get_noised_result(record, ())


# Other queries, accountants and optimizers.


@once
def test_in_a_mean_of_nested_queries() -> None:
    both = nested_query.NestedSumQuery(
        {
            "dense": query(noise_multiplier=0, clip_norm=10),
            "table": query(
                tsdp.Threshold(), noise_multiplier=0, variables=[SMALL]
            ),
        }
    )
    mean = normalized_query.NormalizedQuery(both, denominator=4)
    records = [
        {"dense": [tf.fill([2], 1.0)], "table": tf.ones([50, 3]) / 100}
    ] * 2
    state = mean.initial_global_state()
    params = mean.derive_sample_params(state)
    halves = []
    for record in records:
        sample = mean.initial_sample_state(record)
        halves.append(mean.accumulate_record(params, sample, record))
    merged = mean.merge_sample_states(*halves)
    result, _, event = mean.get_noised_result(merged, state)
    np.testing.assert_allclose(result["dense"][0], [0.5, 0.5])
    np.testing.assert_allclose(result["table"], np.full([50, 3], 0.005))
    nothing = dp_accounting.NonPrivateDpEvent()
    assert event == dp_accounting.ComposedDpEvent((nothing, nothing))


@once
@pytest.mark.parametrize(
    ("mechanism", "event"),
    [
        (tsdp.Gaussian(), dp_accounting.GaussianDpEvent(2.0)),
        (tsdp.Threshold(), dp_accounting.GaussianDpEvent(2.0)),
        (tsdp.Laplace(), dp_accounting.LaplaceDpEvent(2.0)),
        (Automatic(noise="laplace"), dp_accounting.LaplaceDpEvent(2.0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_accountants_take_the_events(
    mechanism: Mechanism, event: dp_accounting.DpEvent
) -> None:
    private = query(mechanism, variables=[SMALL], seed=None)
    mean = normalized_query.NormalizedQuery(private, denominator=2)
    state = mean.initial_global_state()
    sample = mean.initial_sample_state(tf.zeros(SMALL.shape))
    pld = dp_accounting.pld.PLDAccountant()
    rdp = dp_accounting.rdp.RdpAccountant()
    for _ in range(3):
        _, state, spent = mean.get_noised_result(sample, state)
        assert spent == event
        pld.compose(spent)
        rdp.compose(spent)
    assert 0 < pld.get_epsilon(1e-6) <= rdp.get_epsilon(1e-6) < 5


@once
@pytest.mark.parametrize("kind", [tsdp.RenyiFilter, tsdp.ZcdpFilter])
@pytest.mark.parametrize("mechanism", [tsdp.Gaussian(), tsdp.Laplace()])
def test_filters_pay_for_the_events(
    kind: type[tsdp.PrivacyFilter], mechanism: Mechanism
) -> None:
    budget = kind(epsilon=5.0, delta=1e-6)
    one = query(mechanism, noise_multiplier=3.0, seed=None)
    both = nested_query.NestedSumQuery([one, one])
    sample = both.initial_sample_state([tf.zeros([2])] * 2)
    _, _, twice = both.get_noised_result(sample, both.initial_global_state())
    alone = budget.affordable(one.event, most=1000)
    assert 2 <= alone < 1000
    assert budget.affordable(twice, most=1000) == alone // 2
    for _ in range(alone):
        budget.spend(one.event)
    with pytest.raises(tsdp.BudgetExhausted):
        budget.spend(one.event)
    assert not kind(epsilon=5.0, delta=1e-6).can_spend(query().event)


@once
@pytest.mark.parametrize("change", [{"noise_multiplier": 0.0}, {"seed": 1}])
def test_what_hides_nothing_has_no_epsilon(change: dict) -> None:
    bare = query(**{"seed": None, **change})
    _, _, event = bare.get_noised_result(tf.zeros([2]), ())
    accountant = dp_accounting.pld.PLDAccountant().compose(event)
    assert accountant.get_epsilon(1e-6) == math.inf


@pytest.mark.skipif(
    KERAS_3, reason="TensorFlow Privacy's optimizers need tf-keras"
)
def test_in_an_optimizer_of_tf_privacy() -> None:
    """Both mechanisms' noise arrives in the weights, divided by the batch."""
    from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras

    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(ENOUGH, input_shape=(1,))]
    )
    optimizer = dp_optimizer_keras.GenericDPSGDOptimizer(
        dp_sum_query=query(), learning_rate=1.0
    )
    model.compile(optimizer, loss=tf.keras.losses.MeanSquaredError("none"))
    before = [w.numpy() for w in model.weights]
    x = np.zeros((4, 1), "float32")
    model.fit(x, model(x).numpy(), batch_size=4, verbose=0)
    kernel, bias = (
        w.numpy() - b for w, b in zip(model.weights, before, strict=True)
    )
    # Gradients are zero: what remains is noise over 4 examples.
    assert_stddev(kernel.ravel(), 0.25)
    assert_stddev(bias.ravel(), 0.25)
    assert not independence_refuted(kernel, bias, 0.25)
    assert optimizer.get_config()["global_state"] == {}


@pytest.mark.skipif(
    KERAS_3, reason="TensorFlow Privacy's optimizers need tf-keras"
)
def test_without_noise_its_adam_and_ours_take_the_same_steps() -> None:
    from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras

    keras = tf.keras
    theirs = dp_optimizer_keras.DPKerasAdamOptimizer(
        l2_norm_clip=0.3, noise_multiplier=0.0, learning_rate=0.01
    )
    ours = tsdp.DPSparseOptimizer(
        keras.optimizers.Adam(0.01),
        noise_multiplier=0.0,
        expected_batch_size=8,
        clip_norm=0.3,
    )
    rng = np.random.default_rng(0)
    # Every batch has every row: theirs moves other rows too, ours does not.
    ids = rng.permuted(np.tile(np.arange(8), [4, 2]), axis=1).reshape(32, 2)
    labels = rng.standard_normal([32, 1])
    start: list[np.ndarray] = []
    ends = []
    for optimizer, reduction in ((theirs, "none"), (ours, "auto")):
        model = keras.Sequential(
            [
                keras.layers.Embedding(8, 3, input_length=2),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        start = start or model.get_weights()
        model.set_weights(start)
        loss = keras.losses.MeanSquaredError(reduction)
        model.compile(optimizer, loss=loss)
        model.fit(ids, labels, batch_size=8, shuffle=False, verbose=0)
        ends.append(model.get_weights())
    for before, left, right in zip(start, *ends, strict=True):
        assert np.abs(left - before).max() > 0.01
        np.testing.assert_allclose(left, right, atol=1e-5)


@once
def test_the_document_runs() -> None:
    """Its blocks say that they need TensorFlow Privacy."""
    text = (ROOT / "docs" / "tf_privacy.md").read_text()
    blocks = re.findall(
        r"^```python tf_privacy\n(.*?)^```\n(?:\n^```text\n(.*?)^```)?",
        text,
        re.M | re.S,
    )
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for code, shown in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "tf_privacy.md", "exec"), names)
        assert out.getvalue() == shown


# Importing.


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@once
def test_imports_when_asked_for_and_leaves_no_flag() -> None:
    run(
        """
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name == "tensorflow_privacy":
                    raise ModuleNotFoundError("none", name=name)

        sys.meta_path.insert(0, Absent())
        import tf_sparse_dp
        assert "tensorflow_privacy" not in sys.modules
        try:
            tf_sparse_dp.integrations.tf_privacy
        except ImportError as error:
            assert "pip install tf_sparse_dp[privacy]" in str(error), error
        else:
            raise SystemExit("imported what is not there")
        assert not hasattr(sys, "skip_tf_privacy_import")

        del sys.meta_path[0]
        ours = tf_sparse_dp.integrations.tf_privacy
        assert not hasattr(sys, "skip_tf_privacy_import")
        import tensorflow_privacy
        assert tensorflow_privacy.__version__
        from tensorflow_privacy.privacy.analysis import (
            compute_dp_sgd_privacy_lib
        )
        from tensorflow_privacy.privacy.dp_query import dp_query
        base = tensorflow_privacy.privacy.dp_query.dp_query
        assert issubclass(ours.MechanismSumQuery, base.SumAggregationDPQuery)
        """
    )


@once
def test_imports_after_an_attempt_that_failed() -> None:
    run(
        """
        import sys

        try:
            import tensorflow_privacy
        except ImportError:
            pass
        from tf_sparse_dp.integrations.tf_privacy import MechanismSumQuery
        assert not hasattr(sys, "skip_tf_privacy_import")
        import tensorflow_privacy
        from tensorflow_privacy.privacy.dp_query import dp_query
        assert issubclass(MechanismSumQuery, dp_query.SumAggregationDPQuery)
        """
    )


@once
@pytest.mark.parametrize("flag", [False, "whatever"])
def test_imports_with_the_flag_of_somebody_else(
    flag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = sys.modules["tensorflow_privacy"]
    monkeypatch.setattr(sys, "skip_tf_privacy_import", flag, raising=False)
    tf_privacy._import_tf_privacy()
    assert sys.modules["tensorflow_privacy"] is mine
    monkeypatch.delitem(sys.modules, "tensorflow_privacy")
    tf_privacy._import_tf_privacy()
    assert sys.skip_tf_privacy_import is flag


@once
def test_there_is_no_other_attribute() -> None:
    with pytest.raises(AttributeError, match="tensorflow_federated"):
        tsdp.integrations.tensorflow_federated  # noqa: B018
