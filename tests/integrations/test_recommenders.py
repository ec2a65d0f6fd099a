"""The retrieval task: its loss, its negatives, and what it costs."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tf_sparse_dp.integrations.recommenders import Retrieval

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
ITEMS, WIDTH, BATCH = 12, 4, 6
_random = np.random.RandomState(0)
TABLE = tf.constant(_random.randn(ITEMS, WIDTH).astype("float32"))
QUERIES = tf.constant(_random.randn(BATCH, WIDTH).astype("float32"))
OWN = np.array([0, 3, 3, 7, 11, 5], "int32")


def _rows(ids: tf.Tensor) -> tf.Tensor:
    return tf.gather(TABLE, ids)


def _losses(ids: bool = True, **options: Any) -> np.ndarray:
    task = Retrieval(np.arange(ITEMS), _rows, **options)
    own = tf.constant(OWN) if ids else None
    return task.example_losses(QUERIES, _rows(OWN), own).numpy()


def _softmax_losses(temperature: float = 1.0) -> np.ndarray:
    scores = QUERIES.numpy() @ TABLE.numpy().T / temperature
    total = np.log(np.exp(scores).sum(1))
    return total - scores[np.arange(BATCH), OWN]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_whole_catalogue_is_a_softmax(temperature: float) -> None:
    np.testing.assert_allclose(
        _losses(temperature=temperature),
        _softmax_losses(temperature),
        atol=1e-5,
    )


WEIGHTS = np.arange(1, ITEMS + 1) / np.arange(1, ITEMS + 1).sum()


@pytest.mark.parametrize("probabilities", [None, WEIGHTS], ids=["even", "own"])
def test_drawn_negatives_expect_the_whole_catalogue(
    probabilities: np.ndarray | None,
) -> None:
    # exp(loss) is linear in what is drawn, so its mean is that of the softmax.
    task = Retrieval(
        np.arange(ITEMS),
        _rows,
        num_negatives=5,
        candidate_probabilities=probabilities,
        seed=1,
    )

    @tf.function
    def once() -> tf.Tensor:
        own = tf.constant(OWN)
        return tf.exp(task.example_losses(QUERIES, _rows(own), own))

    tf.random.set_seed(0)
    draws = np.stack([once() for _ in range(2000)])
    error = draws.std(0) / math.sqrt(len(draws))
    want = np.exp(_softmax_losses())
    # Six examples at five standard errors: a false alarm in 3e-6 of seeds.
    assert (np.abs(draws.mean(0) - want) < 5 * error).all()
    assert (error < 0.03 * want).all()  # A wrong correction would be seen.


def test_each_step_draws_anew() -> None:
    task = Retrieval(np.arange(ITEMS), _rows, num_negatives=3)
    step = tf.function(lambda: task.example_losses(QUERIES, _rows(OWN)))
    assert len({float(step()[0]) for _ in range(20)}) > 10


def test_a_negative_that_is_the_own_candidate_is_left_out() -> None:
    task = Retrieval([0], _rows, num_negatives=4)
    own = tf.zeros([BATCH], tf.int32)
    candidates = tf.repeat(TABLE[:1], BATCH, 0)
    alone = task.example_losses(QUERIES, candidates, own)
    np.testing.assert_allclose(alone, 0, atol=1e-6)
    counted = task.example_losses(QUERIES, candidates)
    np.testing.assert_allclose(counted, math.log(2), rtol=1e-5)


def test_weights_and_reductions() -> None:
    weights = np.arange(BATCH, dtype="float32")
    total = (weights * _softmax_losses()).sum()
    for reduction, want in (("sum", total), ("mean", total / BATCH)):
        task = Retrieval(np.arange(ITEMS), _rows, reduction=reduction)
        loss = task(QUERIES, _rows(OWN), sample_weight=tf.constant(weights))
        np.testing.assert_allclose(loss, want, rtol=1e-5)


def test_the_best_candidates_and_names_for_them() -> None:
    names = np.array([f"item {i}" for i in range(ITEMS)])
    task = Retrieval(np.arange(ITEMS), _rows, candidate_ids=names)
    scores, best = task.top_k(QUERIES, 3)
    want = np.argsort(-(QUERIES.numpy() @ TABLE.numpy().T), 1)[:, :3]
    assert (best.numpy().astype(str) == names[want]).all()
    assert scores.shape == (BATCH, 3)
    features = {"id": np.arange(ITEMS), "year": np.arange(ITEMS)}
    unnamed = Retrieval(features, lambda rows: _rows(rows["id"]))
    with pytest.raises(ValueError, match="the catalogue has none"):
        unnamed.top_k(QUERIES, 3)


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_negatives": 0}, "at least 1"),
        ({"temperature": 0.0}, "above 0"),
        ({"reduction": "none"}, "expected one of"),
        ({"candidate_probabilities": WEIGHTS}, "without num_negatives"),
        ({"candidate_ids": [1, 2]}, "same number of rows"),
        (
            {"num_negatives": 2, "candidate_probabilities": WEIGHTS[1:]},
            "expected 12 numbers",
        ),
        (
            {"num_negatives": 2, "candidate_probabilities": WEIGHTS * 2},
            "expected 1",
        ),
        (
            {
                "num_negatives": 2,
                "candidate_probabilities": np.eye(ITEMS)[0],
            },
            "never learned to be wrong",
        ),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else None,
)
def test_arguments(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Retrieval(np.arange(ITEMS), _rows, **options)


@pytest.mark.once
@pytest.mark.parametrize("negatives", [None, 50])
def test_rows_of_shared_negatives_are_not_written_out(
    negatives: int | None,
) -> None:
    items, batch, width = 60, 32, 16
    users = tf.Variable(tf.ones([9, width]))
    table = tf.Variable(tf.random.stateless_normal([items, width], [0, 1]))
    task = Retrieval(
        np.arange(items),
        lambda ids: tf.gather(table, ids),
        num_negatives=negatives,
    )

    @tf.function(input_signature=[tf.TensorSpec([batch], tf.int32)] * 2)
    def norms(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = task(
                tf.gather(users, user),
                tf.gather(table, item),
                candidate_ids=item,
            )
        variables = [users, table]
        found = tsdp.per_example_gradients(
            tape.gradient(loss, variables), variables
        )
        return found.norms

    graph = norms.get_concrete_function().graph
    wanted: set[str] = set()
    pending = [graph.outputs[0].op]
    while pending:
        op = pending.pop()
        if op.name not in wanted:
            wanted.add(op.name)
            pending.extend(tensor.op for tensor in op.inputs)
    largest = max(
        tensor.shape.num_elements() or 0
        for name in wanted
        for tensor in graph.get_operation_by_name(name).outputs
    )
    assert largest <= batch * (negatives or items) + batch
    assert np.isfinite(
        norms(tf.zeros([batch], tf.int32), tf.range(batch))
    ).all()


def test_private_retrieval_on_visits(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import retrieval
    import visits

    path = request.config.getoption("--data")
    if path is None:
        log, held_out = visits.generate(people=1_500, num_items=200)
        settings: dict[str, Any] = {"batch_size": 500, "epochs": 6}
    else:
        log, held_out = visits.load(path)
        settings = {"batch_size": 1024, "epochs": 2, "num_negatives": 500}
    chance = 20 / (log.num_items - 1)
    assert retrieval.popular(log, held_out, 20) > 0.5 * chance
    for epsilon in (None, 8.0):
        model = retrieval.train(log, epsilon=epsilon, **settings)
        found = model.recall(held_out, 20)
        print(f"epsilon={epsilon}: recall@20 {found:.4f}, chance {chance:.4f}")
        # Generated: 0.52 to 0.54 in a few runs. Real: many times chance.
        assert found > 2 * chance
