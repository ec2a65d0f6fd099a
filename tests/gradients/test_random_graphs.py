"""No random graph is accepted whose examples meet, and most others are.

`pytest --graphs 20000` examines more of them than the default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.gradients.random_graphs.counting import count
from tests.gradients.random_graphs.examination import Examination, Subject
from tf_sparse_dp.gradients.rules.registry import TYPING

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("as_traced")]

SHARDS = 5
ROWS = 3
LEAST_SHARE = 0.6
WEIGHT = tf.Variable(np.eye(4, dtype="float64"))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_what_is_accepted_is_separable(
    shard: int,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    graphs = request.config.getoption("--graphs")
    counts = count(range(shard, graphs, SHARDS))
    record_property("random graphs", counts.as_dict())
    assert not counts.unsound, "\n".join(counts.unsound)
    assert not counts.crashes, "\n".join(counts.crashes)
    assert counts.mixing > 0.1 * counts.graphs
    assert counts.share >= LEAST_SHARE


def _examined(loss: Any, static: bool = False) -> Any:
    subject = Subject(
        loss,
        [WEIGHT],
        [tf.TensorSpec([ROWS if static else None, 4], tf.float64)],
        lambda numbers, rows: [numbers.randn(rows, 4)],
        ROWS,
    )
    return Examination(subject, 0).examine()


def test_a_separable_graph_is_told() -> None:
    finding = _examined(lambda x: tf.reduce_mean(tf.tanh(x @ WEIGHT)))
    assert finding.accepted and finding.separable and finding.looped
    assert not finding.problems


def test_a_mixing_graph_is_told() -> None:
    finding = _examined(
        lambda x: tf.reduce_mean(tf.nn.softmax(x @ WEIGHT, 0) ** 2)
    )
    assert not finding.accepted and finding.separable is False
    assert finding.operation == "Softmax"


def _keeps(analysis: Any, op: Any, inputs: Any) -> Any:
    """A wrong rule: whatever an operation does, examples stay apart."""
    return inputs[0]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("op_type", "mix"),
    [
        ("Softmax", lambda x: tf.nn.softmax(x, 0)),
        ("ReverseV2", lambda x: tf.reverse(x, [0])),
        ("Cumsum", lambda x: tf.cumsum(x, 0)),
        ("Max", lambda x: tf.reduce_max(x, 0, keepdims=True)),
    ],
    ids=["Softmax", "ReverseV2", "Cumsum", "Max"],
)
def test_a_wrong_rule_is_found(
    op_type: str, mix: Any, static: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TYPING, op_type, _keeps)
    finding = _examined(
        lambda x: tf.reduce_sum(tf.tanh(x @ WEIGHT) * tf.stop_gradient(mix(x))),
        static,
    )
    assert finding.accepted and finding.separable is False
    assert any("moves" in problem for problem in finding.problems)
