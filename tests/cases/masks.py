"""Entries that are chosen by masks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.cases.case import REAL, SEQUENCES, Case, Through, layers


def _lower_triangle(x: Any) -> Any:
    """Products of different items, each pair once."""
    products = tf.matmul(x, x, transpose_b=True)
    ones = tf.ones_like(products)
    lower = ones - tf.linalg.band_part(ones, 0, -1)
    chosen = tf.boolean_mask(products, lower)
    return tf.reshape(chosen, [tf.shape(x)[0], 10])


CASES = [
    Case(
        "pairs chosen by a constant mask",
        lambda: Through(layers.Dense(3), _lower_triangle),
        SEQUENCES,
        REAL,
    ),
]
