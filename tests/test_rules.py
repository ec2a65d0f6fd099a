"""Rules that users declare: what they may say, and that wrong ones show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests.optimizers.refusals import FEATURES, TARGETS, Through, compiled
from tf_sparse_dp.gradients.rules import registry

pytestmark = pytest.mark.usefixtures("undeclared")

TABLES = (registry.TYPING, registry.FACTORING, registry.LIFTING)
BEFORE = tf.Variable(np.random.RandomState(1).randn(3, 3).astype("float32"))
AFTER = tf.Variable(np.random.RandomState(2).randn(3, 2).astype("float32"))
SHIFT = tf.Variable(np.zeros(2, "float32"))
X = np.random.RandomState(0).randn(6, 3)


def unknown(*op_types: str) -> None:
    """Takes the library's own rules away."""
    for table in TABLES:
        for op_type in op_types:
            table.pop(op_type, None)


def through(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Losses with variables before and after a function."""

    def losses(x: Any) -> Any:
        hidden = function(x @ BEFORE)
        return tf.reduce_sum(tf.tanh(hidden @ AFTER), 1)

    return losses


BESSEL = ("BesselI0e", "BesselI1e")  # The second is the first's derivative.


def test_an_operation_without_a_rule_is_refused_until_it_has_one() -> None:
    losses = through(tf.math.bessel_i0e)
    with pytest.raises(tsdp.NotSeparableError, match="BesselI0e has no"):
        tsdp.rules.check(losses, X)
    tsdp.rules.rowwise("BesselI0e")
    with pytest.raises(tsdp.NotSeparableError, match="BesselI1e has no"):
        tsdp.rules.check(losses, X)
    tsdp.rules.rowwise("BesselI1e")
    report = tsdp.rules.check(losses, X)
    assert report.separable
    assert max(f.deviation for f in report.findings) < 1e-4
    assert len(report.findings) == 6
    assert tsdp.rules.declared() == BESSEL


def test_a_declared_rule_trains_and_is_named() -> None:
    model = compiled(Through(tf.math.bessel_i0e))
    assert "nobody proves" not in str(model.optimizer.privacy_statement())
    tsdp.rules.rowwise(*BESSEL)
    explanation = tsdp.explain(model, (FEATURES, TARGETS))
    assert explanation.separable
    assert explanation.declared_rules == BESSEL
    assert "declared for: BesselI0e, BesselI1e" in " ".join(
        str(explanation).split()
    )
    model.fit(FEATURES, TARGETS, batch_size=8, verbose=0)
    assert model.optimizer.compositions_spent == 1
    statement = model.optimizer.privacy_statement()
    assert any(
        "nobody proves" in text and "BesselI0e, BesselI1e" in text
        for text in statement.assumptions
    )
    # A run that is restored elsewhere still rests on them.
    again = type(model.optimizer).from_config(model.optimizer.get_config())
    assert again.privacy_statement().assumptions == statement.assumptions
    # A model that does without them does not rest on them.
    plain = tsdp.explain(compiled(Through(tf.tanh)), (FEATURES, TARGETS))
    assert plain.declared_rules == ()


def _reversed(x: Any) -> Any:
    return tf.reverse(x, [0])


def _rolled(x: Any) -> Any:
    return x * tf.roll(x, 1, 0)


def _centred(x: Any) -> Any:
    total = tf.cumsum(x, 0)
    return x - 0.1 * total


@pytest.mark.once
@pytest.mark.parametrize(
    "function, op_type",
    [(_reversed, "ReverseV2"), (_rolled, "Roll"), (_centred, "Cumsum")],
)
def test_a_wrong_rule_is_found(
    function: Callable[[Any], Any], op_type: str
) -> None:
    unknown(op_type)
    tsdp.rules.rowwise(op_type)
    with pytest.raises(tsdp.NotSeparableError) as error:
        tsdp.rules.check(through(function), X)
    failed = [f.test for f in error.value.report.findings if not f.passed]
    assert "A term of the analysis sees one example" in failed
    assert "one of them is wrong" in " ".join(str(error.value).split())


def test_a_model_with_a_wrong_rule_is_found_too() -> None:
    unknown("Roll")
    tsdp.rules.rowwise("Roll")
    model = compiled(Through(_rolled))
    assert tsdp.explain(model, (FEATURES, TARGETS)).separable
    with pytest.raises(tsdp.NotSeparableError, match="Examples mix"):
        tsdp.check_separable(model, (FEATURES, TARGETS))


def _with_bias(x: Any) -> Any:
    return tf.reduce_sum(tf.tanh(tf.nn.bias_add(x @ AFTER, SHIFT)), 1)


def _declare_bias_gradient(scale: float) -> None:
    rules = tsdp.rules
    unknown("BiasAddGrad")

    @rules.typing("BiasAddGrad")
    def summed(
        analysis: rules.Analysis, op: tf.Operation, types: Sequence[rules.Type]
    ) -> rules.Type:
        if types[0] == rules.Batched(0):
            return rules.Summed()
        return rules.mixed(op, "has its examples elsewhere")

    @rules.factoring("BiasAddGrad")
    def terms(analysis: rules.Analysis, op: tf.Operation) -> rules.Factor:
        return rules.DenseFactor(scale * op.inputs[0])


@pytest.mark.once
def test_a_contraction_of_ones_own() -> None:
    _declare_bias_gradient(1.0)
    assert tsdp.rules.check(_with_bias, X).separable


@pytest.mark.once
def test_terms_that_do_not_add_up_are_found() -> None:
    _declare_bias_gradient(0.5)
    with pytest.raises(tsdp.NotSeparableError) as error:
        tsdp.rules.check(_with_bias, X)
    failed = {f.test: f.passed for f in error.value.report.findings}
    assert failed["A term of the analysis sees one example"]
    assert not failed["The terms of the analysis add up to the gradient"]


@pytest.mark.once
@pytest.mark.parametrize(
    "function, says",
    [
        (lambda x: tf.math.bessel_i0e(tf.transpose(x)), "examples are on axis"),
        (
            lambda x: x + tf.math.bessel_i0e(tf.reduce_mean(x, 0)),
            "inputs do not agree",
        ),
    ],
)
def test_rows_are_on_axis_0_and_sums_are_no_rows(
    function: Callable[[Any], Any], says: str
) -> None:
    tsdp.rules.rowwise(*BESSEL)
    losses = through(
        lambda x: tf.transpose(function(x)) if "axis" in says else function(x)
    )
    with pytest.raises(tsdp.NotSeparableError, match=says):
        tsdp.rules.check(losses, X)


@pytest.mark.once
def test_an_output_with_other_rows_is_refused() -> None:
    unknown("SpaceToBatchND")
    tsdp.rules.rowwise("SpaceToBatchND")

    @tf.function(input_signature=[tf.TensorSpec([6, 3])])
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = (x @ BEFORE)[:, :, None]
            spread = tf.space_to_batch(hidden, [3], [[0, 0]])
            loss = tf.reduce_mean(spread**2)
        gradients = tape.gradient(loss, [BEFORE])
        return tsdp.per_example_gradients(gradients, [BEFORE])

    with pytest.raises(tsdp.NotSeparableError, match="gives 18 rows"):
        step.get_concrete_function()


@pytest.mark.once
@pytest.mark.parametrize(
    "op_type, says",
    [
        ("MatMul", "The library has a rule"),
        ("Sum", "The library has a rule"),
        ("NoSuchOp", "knows no operation"),
        ("PartitionedCall", "no rule can vouch"),
        ("EagerPyFunc", "no rule can vouch"),
        ("RandomShuffle", "no rule can vouch"),
        ("AssignVariableOp", "no rule can vouch"),
        ("Shape", "no rule can vouch"),
        ("Placeholder", "no rule can vouch"),
    ],
)
def test_what_may_not_be_declared(op_type: str, says: str) -> None:
    for register in (
        tsdp.rules.rowwise,
        tsdp.rules.factoring,
        tsdp.rules.lifting,
    ):
        with pytest.raises(ValueError, match=says):
            register(op_type)
    assert tsdp.rules.declared() == ()


@pytest.mark.once
def test_a_declaration_may_be_repeated_and_not_changed() -> None:
    tsdp.rules.rowwise("BesselI0e")
    tsdp.rules.rowwise("BesselI0e")
    tsdp.rules.rowwise(*BESSEL)
    assert tsdp.rules.declared() == BESSEL

    def other(*_: Any) -> Any:
        return tsdp.rules.Summed()

    with pytest.raises(ValueError, match="exists already"):
        tsdp.rules.typing("BesselI0e")(other)


@pytest.mark.once
def test_a_declaration_that_is_refused_leaves_nothing_behind() -> None:
    tsdp.rules.rowwise("BesselI0e")

    def other(*_: Any) -> Any:
        return tsdp.rules.Summed()

    with pytest.raises(ValueError, match="exists already"):
        tsdp.rules.typing("BesselI1e", "BesselI0e")(other)
    assert "BesselI1e" not in registry.TYPING
    assert tsdp.rules.declared() == ("BesselI0e",)


@pytest.mark.once
@pytest.mark.parametrize(
    "losses, inputs, says",
    [
        (through(tf.tanh), X[:3], "at least 4"),
        (through(tf.tanh), np.ones((6, 3)), "no influence"),
        (lambda x: x[:, 0], X, "no trainable variable"),
        (lambda x: x @ AFTER, X, r"expected one loss per example"),
    ],
)
def test_what_tests_nothing_is_refused(
    losses: Any, inputs: Any, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        tsdp.rules.check(losses, inputs)
