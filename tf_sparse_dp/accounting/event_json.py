"""Events as JSON and back, for ledgers.

`dp_accounting` can name an event's module and class, and import what a name
says. A ledger is a file that others may have written, so here a name only ever
chooses from a table, and a field must hold what the table says.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import attr
import dp_accounting

from tf_sparse_dp.accounting import dp_events
from tf_sparse_dp.errors import PrivacyStateError


def canonical_json(value: object) -> str:
    """The one text of plain values: sorted, without spaces, ASCII only.

    Raises:
      TypeError: Something in it is not plain.
      ValueError: A number in it is not finite.

    Example:
      >>> canonical_json({"b": (1, 0.5), "a": None})
      '{"a":null,"b":[1,0.5]}'
    """
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
        default=_plain,
    )


def parsed_json(text: str) -> Any:
    """The value of a JSON text; names must not repeat within an object.

    Raises:
      PrivacyStateError: It is not JSON.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise PrivacyStateError(
            f"This is not a ledger's JSON: {error}. The text was cut or "
            "changed; use an intact copy."
        ) from error


def event_to_json(event: dp_accounting.DpEvent) -> dict[str, Any]:
    """The event's class name and fields, as plain values.

    Raises:
      TypeError: The event is not one that a ledger can read back, or a field
        holds something else than its kind says.
      ValueError: A number is not one.

    Example:
      >>> event_to_json(dp_accounting.GaussianDpEvent(1.5))
      {'class_name': 'GaussianDpEvent', 'config': {'noise_multiplier': 1.5}}
    """
    name = type(event).__name__
    # A class of the same name from elsewhere may mean something else.
    if _CLASSES.get(name) is not type(event):
        raise TypeError(
            f"{event!r} is not an event that a ledger can record, expected one "
            f"of {sorted(_CLASSES)}. Describe the release by those; an "
            "ApproxDpEvent says no more than its epsilon and delta."
        )
    fields = {
        field: write(getattr(event, field))
        for field, (write, _) in _FIELDS[name].items()
    }
    return {"class_name": name, "config": fields}


def event_from_json(value: object) -> dp_accounting.DpEvent:
    """The event of an `event_to_json`.

    Raises:
      PrivacyStateError: The value is not an event's.
    """
    try:
        return _read_event(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PrivacyStateError(
            f"A ledger has an event that cannot be read: {error} It was "
            "changed, or is of a newer version of dp_accounting or of this "
            "package; read it with that."
        ) from error


def _plain(value: object) -> Any:
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"{value!r} is of type {type(value).__name__}, expected plain values: "
        "text, numbers, True, False, None, and lists and dicts of them."
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"an object has a name twice, of {sorted(found)}")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _number(value: object) -> float | str:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{value!r} was given, expected a number.")
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    if number == math.inf:
        return "infinity"  # JSON has no number for it.
    if not math.isfinite(number):
        raise ValueError(f"{value!r} was given, expected a number.")
    return number


def _read_number(value: object) -> float:
    if value == "infinity":
        return math.inf
    number = _number(value)
    if isinstance(number, str):
        raise ValueError(f"{value!r} was given, expected a number.")
    return number


def whole_number(value: object) -> int:
    """The value, if it is a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{value!r} was given, expected a whole number.")
    if value < 0:
        raise ValueError(f"{value!r} was given, expected at least 0.")
    return int(value)


def _counts(value: object) -> int | list[int]:
    if isinstance(value, (list, tuple)):
        return [whole_number(part) for part in value]
    return whole_number(value)


def _write_event(value: object) -> dict[str, Any]:
    if not isinstance(value, dp_accounting.DpEvent):
        raise TypeError(f"{value!r} was given, expected an event.")
    return event_to_json(value)


def _read_event(value: object) -> dp_accounting.DpEvent:
    if not isinstance(value, dict) or set(value) != {"class_name", "config"}:
        raise TypeError(f"{value!r} was given, expected an event.")
    name, config = value["class_name"], value["config"]
    if not isinstance(name, str) or name not in _CLASSES:
        raise TypeError(
            f"{name!r} is not the name of an event that is known here."
        )
    fields = _FIELDS[name]
    if not isinstance(config, dict) or set(config) != set(fields):
        raise TypeError(
            f"{name} has the fields {config!r}, expected {sorted(fields)}."
        )
    arguments = {
        field: read(config[field]) for field, (_, read) in fields.items()
    }
    return _CLASSES[name](**arguments)


def _each(kind: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def each(value: object) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{value!r} was given, expected a list.")
        return [kind(part) for part in value]

    return each


# How a field is written and read.
_Kind = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_NUMBER: _Kind = (_number, _read_number)
_NUMBERS: _Kind = (_each(_number), _each(_read_number))
_WHOLE: _Kind = (whole_number, whole_number)
_WHOLES: _Kind = (_counts, _counts)
_EVENT: _Kind = (_write_event, _read_event)
_EVENTS: _Kind = (_each(_write_event), _each(_read_event))

_FIELDS: dict[str, dict[str, _Kind]] = {
    "NoOpDpEvent": {},
    "NonPrivateDpEvent": {},
    "UnsupportedDpEvent": {},
    "GaussianDpEvent": {"noise_multiplier": _NUMBER},
    "LaplaceDpEvent": {"noise_multiplier": _NUMBER},
    "DiscreteLaplaceDpEvent": {
        "noise_parameter": _NUMBER,
        "sensitivity": _WHOLE,
    },
    "RandomizedResponseDpEvent": {
        "noise_parameter": _NUMBER,
        "num_buckets": _WHOLE,
    },
    "MixtureOfGaussiansDpEvent": {
        "standard_deviation": _NUMBER,
        "sensitivities": _NUMBERS,
        "sampling_probs": _NUMBERS,
    },
    "ZCDpEvent": {"rho": _NUMBER, "xi": _NUMBER},
    "SelfComposedDpEvent": {"event": _EVENT, "count": _WHOLE},
    "ComposedDpEvent": {"events": _EVENTS},
    "PoissonSampledDpEvent": {
        "sampling_probability": _NUMBER,
        "event": _EVENT,
    },
    "SampledWithReplacementDpEvent": {
        "source_dataset_size": _WHOLE,
        "sample_size": _WHOLE,
        "event": _EVENT,
    },
    "SampledWithoutReplacementDpEvent": {
        "source_dataset_size": _WHOLE,
        "sample_size": _WHOLE,
        "event": _EVENT,
    },
    "TruncatedSubsampledGaussianDpEvent": {
        "dataset_size": _WHOLE,
        "sampling_probability": _NUMBER,
        "truncated_batch_size": _WHOLE,
        "noise_multiplier": _NUMBER,
    },
    "SingleEpochTreeAggregationDpEvent": {
        "noise_multiplier": _NUMBER,
        "step_counts": _WHOLES,
    },
    "RepeatAndSelectDpEvent": {
        "event": _EVENT,
        "mean": _NUMBER,
        "shape": _NUMBER,
    },
    "ApproxDpEvent": {"epsilon": _NUMBER, "delta": _NUMBER},
    "FailingDpEvent": {"event": _EVENT, "failure_probability": _NUMBER},
    "PublicMixtureDpEvent": {"probabilities": _NUMBERS, "events": _EVENTS},
}


def _classes() -> dict[str, type[dp_accounting.DpEvent]]:
    """Those of the table that the installed dp_accounting, or we, have.

    Should one gain a field, what the table says of it is not all.
    """
    found = {}
    for name, fields in _FIELDS.items():
        for place in (dp_accounting.dp_event, dp_events):
            kind = getattr(place, name, None)
            if kind and {f.name for f in attr.fields(kind)} == set(fields):
                found[name] = kind
    return found


_CLASSES = _classes()
