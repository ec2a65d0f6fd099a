"""What a selection tells about runs that were not the best: nothing."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp


def plan_of(**arguments: Any) -> tsdp.SelectionPlan:
    given = {"run": (0.5, 0.0), "delta": 0.0, "mean_runs": 4, "form": "tight"}
    return tsdp.SelectionPlan(**{**given, **arguments})


def private_scores() -> tsdp.SelectionPlan:
    return plan_of(delta=1e-6, score_noise_multiplier=5.0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch):
    """Fixes how many runs there are."""
    counts = type(plan_of().run_count)

    def fix(number: int) -> None:
        monkeypatch.setattr(counts, "draw", lambda self: number)

    return fix


def names(model: Any) -> list[str]:
    variables = [*model.variables, *model.optimizer.variables]
    return [
        model.name,
        *(layer.name for layer in model.layers),
        *(getattr(v, "path", v.name) for v in variables),
    ]


def new_model(units: int = 1) -> Any:
    layers = [tf.keras.layers.Dense(units) for _ in range(units)]
    model = tf.keras.Sequential([tf.keras.Input((2,)), *layers])
    model.compile("sgd", loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("best", [0, 4])
def test_names_do_not_tell_which_run_it_was(runs, best) -> None:
    """Nor what is made afterwards, how many there were."""
    tf.keras.backend.clear_session()
    runs(5)
    number = itertools.count()

    def train(run: Any) -> Any:
        place = next(number)
        # Losers have more layers, so that their names count, too.
        model = new_model(1 if place == best else 3)
        model.score = float(place == best)
        return model

    result = tsdp.private_selection(train, lambda m: m.score, plan_of())
    found = names(result.value)
    afterwards = names(new_model())
    tf.keras.backend.clear_session()
    assert found == names(new_model())
    assert afterwards == names(new_model())


def test_what_scores_warn_of_is_not_shown() -> None:
    """One example decides whether there is a warning."""
    units = np.array([1.0, -2000.0])

    def score(value: float) -> np.ndarray:
        warnings.warn("an unusual example", stacklevel=1)
        return -np.log1p(np.exp(-units * value))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tsdp.private_selection(
            lambda run: 1.0, score, private_scores(), score_clip=1.0
        )


def test_errors_of_private_scores_are_not_shown() -> None:
    def score(value: float) -> np.ndarray:
        raise KeyError("Smith has the disease")

    with pytest.raises(ValueError, match="score_fn raised an error") as caught:
        tsdp.private_selection(
            lambda run: 1.0, score, private_scores(), score_clip=1.0
        )
    error: BaseException | None = caught.value
    while error is not None:
        assert "Smith" not in repr(error)
        error = error.__cause__ or error.__context__


def test_tracebacks_hold_nothing_of_other_runs(runs) -> None:
    runs(7)
    number = itertools.count()

    def train(run: Any) -> dict[str, int]:
        if next(number) == 5:
            raise RuntimeError("out of memory")
        return {"loser": 1}

    with pytest.raises(RuntimeError, match="out of memory") as caught:
        tsdp.private_selection(train, lambda model: 1.0, plan_of())
    frame = caught.value.__traceback__
    seen = []
    while frame is not None:
        if "private_selection" in frame.tb_frame.f_code.co_filename:
            seen.append(repr(frame.tb_frame.f_locals))
        frame = frame.tb_next
    assert seen and not any("loser': 1" in locals_ for locals_ in seen)
    assert not any("'number': 7" in locals_ for locals_ in seen)
    assert not any("'_': 5" in locals_ for locals_ in seen)
