"""Without noise, training is what a loop over examples gives, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests import model_cases as cases
from tests import model_table
from tests.cases.alike import ALIKE


def _compiled(case: cases.Case, model: Any, clip_norm: float) -> Any:
    optimizer = tsdp.DPSparseOptimizer(
        tf.keras.optimizers.SGD(cases.learning_rate(clip_norm)),
        clip_norm=clip_norm,
        noise_multiplier=0.0,
        expected_batch_size=8,
        loss_reduction=case.reduction,
    )
    model.compile(optimizer=optimizer, loss=case.loss(), **case.compile)
    return model


def _equal(case: cases.Case, model: Any) -> str:
    initial = [v.numpy().copy() for v in model.trainable_variables]
    loop = cases.Loop(case, model)
    clip_norm = loop.median_norm()  # Half of the examples clip.
    expected = loop.weights(clip_norm, 8.0)
    _compiled(case, model, clip_norm)
    # Else the step is traced twice, the first time for variables alone.
    model.optimizer.build(model.trainable_variables)
    model.fit(cases.dataset(case), verbose=0)
    moved = 0.0
    for v, want, start in zip(
        model.trainable_variables, expected, initial, strict=True
    ):
        np.testing.assert_allclose(
            v.numpy(), want, rtol=0, atol=case.tolerance, err_msg=v.name
        )
        moved = max(moved, float(np.abs(want - start).max()))
    assert moved > 1e-3  # The comparison is not one of zeros.
    assert model.optimizer.compositions_spent == 3
    return "equal to the loop"


def _accepted(case: cases.Case, model: Any) -> str:
    initial = [v.numpy().copy() for v in model.trainable_variables]
    _compiled(case, model, 1.0).fit(cases.dataset(case), verbose=0)
    for v, start in zip(model.trainable_variables, initial, strict=True):
        assert np.isfinite(v.numpy()).all()
        assert np.abs(v.numpy() - start).max() > 0
    assert model.optimizer.compositions_spent == 3
    return "accepted (random)"


def _refused(case: cases.Case, model: Any) -> str:
    initial = [np.array(v) for v in model.weights]
    with pytest.raises(tsdp.NotSeparableError) as error:
        _compiled(case, model, 1.0).fit(cases.dataset(case), verbose=0)
    said = str(error.value)
    assert re.search(case.refusal(), said), said
    assert "(operation '" in said
    assert "Nothing was trained. " in said
    for v, start in zip(model.weights, initial, strict=True):
        np.testing.assert_array_equal(np.array(v), start)
    assert model.optimizer.compositions_spent == 0
    return f"refused: {case.why}"


def _marks(case: cases.Case) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.lane] if case.lane else []
    if case.name in ALIKE:
        marks.append(pytest.mark.once)
    return marks


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            marks=_marks(case),
        )
        for case in cases.CASES
        if case.only in ("", cases.RUNNING)
    ],
)
def test_models(
    case: cases.Case,
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> None:
    if not case.lane:  # The others run as users run them.
        request.getfixturevalue("as_traced")
    if case.needs and not hasattr(tf.keras.layers, case.needs):
        pytest.skip(f"this version of Keras has no {case.needs}")
    check = _accepted if case.random else _equal
    if case.refusal():
        check = _refused
    outcome = check(case, cases.built(case))
    assert outcome == case.outcome()
    record_property("outcome", outcome)


@pytest.mark.once
def test_the_table_lists_the_cases_and_what_comes_of_them() -> None:
    table = {
        case.name: {by: case.outcome(by) for by in cases.KERASES}
        for case in cases.CASES
    }
    assert model_table.PATH.read_text() == model_table.text(
        table, list(cases.KERASES)
    ), "docs/models.md is stale: run this file with --write-table"


@pytest.mark.once
def test_cases_say_why() -> None:
    for case in cases.CASES:
        assert bool(case.refused) == bool(case.why), case.name
        assert "|" not in case.name + case.why, case.name


@pytest.mark.once
def test_what_one_keras_shows_comes_of_it_on_both() -> None:
    alike = [case for case in cases.CASES if case.name in ALIKE]
    assert len(alike) == len(ALIKE)
    for case in alike:
        assert not case.only and not case.lane, case.name
        assert len({case.outcome(by) for by in cases.KERASES}) == 1, case.name
