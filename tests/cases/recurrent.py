"""Recurrent layers, unrolled; loops are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cases.case import MASKED_IDS, REAL, SEQUENCES, Case, keras, layers
from tests.cases.case import embedding as _embedding


def _recurrent(
    layer: Callable[[], Any], mask: bool = False
) -> Callable[[], Any]:
    def build() -> Any:
        ids = keras.Input((5,), dtype="int32")
        x = _embedding(width=4, mask_zero=mask)(ids)
        return keras.Model(ids, layers.Dense(1)(layer()(x)))

    return build


def _all_states() -> Any:
    inputs = keras.Input((5, 4))
    x = layers.GRU(3, unroll=True, return_sequences=True)(inputs)
    x = layers.TimeDistributed(layers.Dense(2, activation="tanh"))(x)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))


def _masking() -> Any:
    inputs = keras.Input((5, 4))
    x = layers.Masking(0.0)(inputs)
    x = layers.SimpleRNN(3, unroll=True)(x)
    return keras.Model(inputs, layers.Dense(1)(x))


_PADDED = SEQUENCES.copy()
_PADDED[::2, 3:] = 0.0
_LOOP = "is part of a loop.*unroll=True"

CASES = [
    *(
        Case(
            f"{name}, unrolled",
            _recurrent(lambda name=name: getattr(layers, name)(3, unroll=True)),
            MASKED_IDS,
            REAL,
        )
        for name in ("SimpleRNN", "GRU", "LSTM")
    ),
    Case(
        "GRU, unrolled, reset before",
        _recurrent(lambda: layers.GRU(3, unroll=True, reset_after=False)),
        MASKED_IDS,
        REAL,
    ),
    Case(
        "GRU, unrolled, backwards",
        _recurrent(lambda: layers.GRU(3, unroll=True, go_backwards=True)),
        MASKED_IDS,
        REAL,
    ),
    *(
        Case(
            f"{name}, unrolled, masked",
            _recurrent(
                lambda name=name: getattr(layers, name)(3, unroll=True),
                mask=True,
            ),
            MASKED_IDS,
            REAL,
        )
        for name in ("GRU", "LSTM")
    ),
    Case(
        "bidirectional LSTM, unrolled",
        _recurrent(lambda: layers.Bidirectional(layers.LSTM(2, unroll=True))),
        MASKED_IDS,
        REAL,
    ),
    Case("GRU, all states, time distributed", _all_states, SEQUENCES, REAL),
    Case("masking", _masking, _PADDED, REAL),
    *(
        Case(
            f"{name}, as a loop",
            _recurrent(lambda name=name: getattr(layers, name)(3)),
            MASKED_IDS,
            REAL,
            refused=_LOOP,
            why="loops are not looked into; unroll=True is",
        )
        for name in ("SimpleRNN", "GRU", "LSTM")
    ),
]
