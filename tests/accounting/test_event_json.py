"""Events as JSON: all of them, exactly, and nothing but them."""

from __future__ import annotations

import json
import math

import attr
import dp_accounting
import numpy as np
import pytest

from tf_sparse_dp.accounting import dp_events, event_json
from tf_sparse_dp.errors import PrivacyStateError

GAUSSIAN = dp_accounting.GaussianDpEvent(1 / 3)


def every_event() -> list[dp_accounting.DpEvent]:
    """One of each class that the installed dp_accounting and we have."""
    values = {
        "event": GAUSSIAN,
        "events": [GAUSSIAN, dp_accounting.LaplaceDpEvent(2)],
        "probabilities": (0.25, 0.75),
        "count": 3,
        "source_dataset_size": 100,
        "dataset_size": 100,
        "sample_size": 10,
        "truncated_batch_size": 20,
        "step_counts": [4, 5],
        "sensitivity": 2,
        "num_buckets": 4,
        "sensitivities": [1.0, 2.0],
        "sampling_probs": [0.5, 0.5],
    }
    found = []
    for place in (dp_accounting.dp_event, dp_events):
        for kind in vars(place).values():
            if (
                isinstance(kind, type)
                and issubclass(kind, dp_accounting.DpEvent)
                and kind is not dp_accounting.DpEvent
            ):
                names = [field.name for field in attr.fields(kind)]
                found.append(kind(**{n: values.get(n, 0.1) for n in names}))
    return found


@pytest.mark.parametrize("event", every_event(), ids=lambda e: type(e).__name__)
def test_there_and_back(event):
    text = event_json.canonical_json(event_json.event_to_json(event))
    back = event_json.event_from_json(event_json.parsed_json(text))
    assert back == event
    assert type(back) is type(event)
    again = event_json.canonical_json(event_json.event_to_json(back))
    assert again == text


def test_numbers_come_back_exactly():
    for value in (0.1, 5e-324, 1.7976931348623157e308, math.inf, 7, 2**-100):
        event = dp_events.ApproxDpEvent(value, 0.0)
        text = event_json.canonical_json(event_json.event_to_json(event))
        assert event_json.event_from_json(json.loads(text)).epsilon == value
    narrow = dp_accounting.GaussianDpEvent(np.float32(0.1))
    back = event_json.event_from_json(event_json.event_to_json(narrow))
    assert back.noise_multiplier == np.float32(0.1)


def test_a_foreign_event_is_not_written():
    @attr.s(frozen=True, auto_attribs=True)
    class GaussianDpEvent(dp_accounting.DpEvent):
        noise_multiplier: float

    with pytest.raises(TypeError, match="not an event that a ledger"):
        event_json.event_to_json(GaussianDpEvent(1.0))
    with pytest.raises(TypeError, match="expected an event"):
        event_json.event_to_json(
            dp_accounting.SelfComposedDpEvent(GaussianDpEvent, 1)
        )
    with pytest.raises(ValueError, match="expected a number"):
        event_json.event_to_json(dp_accounting.GaussianDpEvent(math.nan))


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"class_name": "os.system", "config": {}},
        {"class_name": "DpEvent", "config": {}},
        {"class_name": ["GaussianDpEvent"], "config": {}},
        {"class_name": "GaussianDpEvent", "config": {}},
        {"class_name": "GaussianDpEvent", "config": {"noise_multiplier": "1"}},
        {"class_name": "GaussianDpEvent", "config": {"noise_multiplier": True}},
        {
            "class_name": "GaussianDpEvent",
            "config": {"noise_multiplier": 1.0, "more": 1},
        },
        {
            "class_name": "SelfComposedDpEvent",
            "config": {
                "count": -1,
                "event": event_json.event_to_json(GAUSSIAN),
            },
        },
        {
            "class_name": "ApproxDpEvent",
            "config": {"epsilon": -1.0, "delta": 0.0},
        },
        {"class_name": "ComposedDpEvent", "config": {"events": "all"}},
    ],
)
def test_what_is_no_event_is_refused(value):
    with pytest.raises(PrivacyStateError, match="event that cannot be read"):
        event_json.event_from_json(value)


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 2}', '{"a": NaN}', "{", "", "[" * 100_000],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(PrivacyStateError, match="not a ledger's JSON"):
        event_json.parsed_json(text)


def test_canonical_text_refuses_what_would_not_come_back():
    with pytest.raises(TypeError, match="expected plain values"):
        event_json.canonical_json({"a": object()})
    with pytest.raises(ValueError):
        event_json.canonical_json([math.nan])
